"""Checks once what a run of training is asked for."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from diskgnn.errors import ConfigError
from diskgnn.paths import PathLike
from diskgnn.training.criterion import Criterion
from diskgnn.units import seed_number, whole_number


@dataclass(frozen=True)
class TrainingConfig:
    """Holds the arguments of `diskgnn.train` that say how to train: see there.

    Raises:
        ConfigError: a value that makes no sense.
    """

    epochs: int
    lr: float
    weight_decay: float
    amp: bool
    seed: int
    # How often, and where to:
    evaluate_every: int
    record_every_batches: int
    checkpoint: PathLike | None
    checkpoint_every_batches: int | None
    resume: bool
    # What the best epoch is the best by, and how many evaluations without a better one end training:
    best_by: str | None = None
    patience: int | None = None
    keep_going: bool = False  # leave out minibatches whose loss is not finite
    averaging_period: int | None = None  # of several ranks, whose models are averaged after so many steps

    def __post_init__(self) -> None:
        for name in ("epochs", "evaluate_every", "record_every_batches", "checkpoint_every_batches", "patience"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole_number(name, value))
        object.__setattr__(self, "seed", seed_number(self.seed))
        for name in ("lr", "weight_decay"):
            rate = float(getattr(self, name))
            if not 0 <= rate < math.inf:
                raise ConfigError(f"{name}: expected a finite number that is not negative, found {rate}")
            object.__setattr__(self, name, rate)
        if self.checkpoint is None and (self.resume or self.checkpoint_every_batches is not None):
            raise ConfigError(
                "`resume` and `checkpoint_every_batches` need a directory: expected `checkpoint` to name it, found none"
            )

    def criterion(self, metrics: Mapping[str, bool], splits: Collection[str]) -> Criterion:
        """Returns the score that chooses the best epoch, of a task's `metrics` on the validation split.

        Raises:
            ConfigError: there is no such score, or no validation split among the evaluated `splits`.
        """
        given = [name for name in ("best_by", "patience") if getattr(self, name) is not None]
        if given and "valid" not in splits:
            raise ConfigError(f"{given[0]}: expected a validation split to compare epochs on, found none")
        return Criterion.of(metrics, self.best_by, is_required=bool(given))

    def records_after(self, batches: int, num_batches: int) -> int:
        """Returns how many minibatches a step record is due for after so many of an epoch of `num_batches`; 0 if none
        is.
        """
        if batches % self.record_every_batches == 0:
            return self.record_every_batches
        return batches % self.record_every_batches if batches == num_batches else 0

    def evaluates_after(self, epoch: int) -> bool:
        """Returns True if an evaluation is due after `epoch`."""
        return (epoch + 1) % self.evaluate_every == 0 or epoch + 1 == self.epochs

    def stops_early(self, evaluations_since_best: int) -> bool:
        """Returns True if training ends, after so many evaluations without a better one."""
        return self.patience is not None and evaluations_since_best >= self.patience

    def saves_after(self, batches: int) -> bool:
        """Returns True if a checkpoint is due after so many minibatches of an epoch."""
        return self.checkpoint_every_batches is not None and batches % self.checkpoint_every_batches == 0
