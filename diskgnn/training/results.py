"""Results: of an evaluation, of an epoch and of a run of training."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from diskgnn.batches.batch_source import BatchSource, LoadStats
from diskgnn.training.criterion import LOSS


@dataclass(frozen=True)
class Spent:
    """Holds the time, and what a source has done until then; a difference of two is what was spent in between."""

    seconds: float = 0.0
    load: LoadStats = field(default_factory=LoadStats)

    @staticmethod
    def until_now(source: BatchSource) -> Spent:
        """Reads a clock and the source's counters."""
        return Spent(time.perf_counter(), source.stats())

    @staticmethod
    def parse(saved: Mapping[str, Any]) -> Spent:
        """Makes one from what `dataclasses.asdict` made of it. Raises TypeError, KeyError for anything else."""
        found: Spent = _of_numbers(Spent(saved["seconds"], _of_numbers(LoadStats(**saved["load"]))))
        return found

    @staticmethod
    def together(spent: Sequence[Spent]) -> Spent:
        """Adds up processes side by side: the longest seconds of any, and what all have read together."""
        load = {
            field.name: (max if field.name.endswith("_seconds") else sum)(
                getattr(each.load, field.name) for each in spent
            )
            for field in fields(LoadStats)
        }
        return Spent(max(each.seconds for each in spent), LoadStats(**load))

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.load + other.load)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.seconds - other.seconds, self.load - other.load)


@dataclass(frozen=True)
class EvalResult:
    """Holds how well a model does on the seeds of one split."""

    loss: float  # mean over the seeds
    scores: Mapping[str, float]  # by the task's names for them
    num_seeds: int
    seconds: float
    wait_seconds: float  # of `seconds`, spent waiting for minibatches
    read_bytes: int

    @property
    def accuracy(self) -> float:
        """Returns the share of seeds whose class is the most likely one, in [0, 1]; of node classification."""
        return self.scores["accuracy"]

    def as_record(self) -> dict[str, Any]:
        """Names and numbers, flat."""
        return {
            "loss": self.loss, **self.scores, "num_seeds": self.num_seeds, "seconds": self.seconds,
            "wait_seconds": self.wait_seconds, "read_bytes": self.read_bytes,
        }  # fmt: skip


@dataclass(frozen=True)
class EpochResult:
    """Describes one epoch of training."""

    epoch: int
    loss: float  # mean over the minibatches
    train_seconds: float  # without evaluation
    load: LoadStats  # what the train source did for this epoch
    evaluations: Mapping[str, EvalResult] = field(default_factory=dict)  # by split; empty where none was asked for
    skipped_batches: int = 0  # whose loss or gradients were not finite, with `keep_going`

    @property
    def wait_seconds(self) -> float:
        """Returns how many of `train_seconds` were spent waiting for minibatches."""
        return self.load.wait_seconds

    @property
    def read_bytes(self) -> int:
        """Read from disk."""
        return self.load.read_bytes

    @property
    def requested_rows(self) -> int:
        """Returns how many feature rows minibatches asked for."""
        return self.load.requested_rows

    @property
    def hit_rate_device(self) -> float:
        """Returns the share of the requested rows that came from GPU memory, in [0, 1]."""
        return self.load.device_rows / max(self.requested_rows, 1)

    @property
    def hit_rate_pinned(self) -> float:
        """Returns the share of the requested rows that came from pinned host memory."""
        return self.load.pinned_rows / max(self.requested_rows, 1)

    @property
    def hit_rate_cpu(self) -> float:
        """Returns the share of the requested rows that came from the cpu tier; what no tier served came from disk."""
        return self.load.cpu_rows / max(self.requested_rows, 1)

    @property
    def valid_accuracy(self) -> float | None:
        """Returns the accuracy of node classification; None where the validation split was not evaluated."""
        return self.score("valid", "accuracy")

    @property
    def test_accuracy(self) -> float | None:
        """Returns the accuracy of node classification; None where the test split was not evaluated."""
        return self.score("test", "accuracy")

    def score(self, split: str, name: str) -> float | None:
        """Returns one score of a split, or its 'loss'; None where it was not evaluated, or has no such score."""
        if (found := self.evaluations.get(split)) is None:
            return None
        return found.loss if name == LOSS else found.scores.get(name)

    def scores(self) -> dict[str, float]:
        """Returns the scores of all evaluated splits: {'valid_accuracy': ...}."""
        return {f"{split}_{name}": score for split, found in self.evaluations.items()
                for name, score in found.scores.items()}  # fmt: skip

    def as_record(self) -> dict[str, Any]:
        """Names and numbers, flat: see `diskgnn.training.metrics`."""
        names = ("epoch", "loss", "train_seconds", "wait_seconds", "read_bytes", "requested_rows", "hit_rate_device",
                 "hit_rate_pinned", "hit_rate_cpu", "skipped_batches")  # fmt: skip
        losses = {f"{split}_loss": found.loss for split, found in self.evaluations.items()}
        return {**{name: getattr(self, name) for name in names}, **losses, **self.scores()}

    @staticmethod
    def parse(saved: Mapping[str, Any]) -> EpochResult:
        """Makes one from what `dataclasses.asdict` made of it. Raises TypeError, KeyError, AttributeError for anything
        else.
        """
        evaluations = {split: _of_numbers(EvalResult(**found)) for split, found in saved["evaluations"].items()}
        for found in evaluations.values():
            if not all(isinstance(score, int | float) for score in found.scores.values()):
                raise TypeError(f"scores are {found.scores!s:.80}")
        load = _of_numbers(LoadStats(**saved["load"]))
        epoch: EpochResult = _of_numbers(EpochResult(**{**saved, "load": load, "evaluations": evaluations}))
        return epoch


def _of_numbers(made: Any) -> Any:
    """Returns a dataclass, if those of its fields that are to be numbers are (TypeError)."""
    kinds: dict[str, Any] = {"int": int, "float": (int, float)}
    for each in fields(made):
        value = getattr(made, each.name)
        if not isinstance(value, kinds.get(str(each.type), object)):
            raise TypeError(f"{each.name} is {value!s:.80}")
    return made


@dataclass(frozen=True)
class TrainResult:
    """Tells what training did. The model has the weights of the best epoch."""

    epochs: tuple[EpochResult, ...]
    best_epoch: int  # of the best score on the validation split; the last one without validation
    model: nn.Module
    resumed_from: tuple[int, int] | None  # epoch and minibatch

    def scores(self) -> dict[str, float]:
        """Returns the scores of the best epoch, of all evaluated splits: {'valid_mrr': ..., 'test_mrr': ...}."""
        return self.epochs[self.best_epoch].scores()

    @property
    def valid_accuracy(self) -> float | None:
        """Returns the accuracy of the best epoch on the validation split."""
        return self.epochs[self.best_epoch].valid_accuracy

    @property
    def test_accuracy(self) -> float | None:
        """Returns the accuracy of the best epoch on the test split."""
        return self.epochs[self.best_epoch].test_accuracy
