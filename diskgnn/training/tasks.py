"""What the seeds are for: the loss that training lowers, and the scores that evaluation reports.

The trainer, the evaluation, the check of a model's output and the trial of a GPU's memory all ask the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from diskgnn.batch_source import BatchSource
from diskgnn.minibatch import MiniBatch


class Tally(Protocol):
    """Adds up how well a model does, minibatch by minibatch, without waiting for the device."""

    num_seeds: int

    def add(self, outputs: Tensor, batch: MiniBatch) -> None:
        """Count the model's `outputs` for one minibatch."""
        ...

    def loss(self) -> float:
        """Mean over all seeds."""
        ...

    def scores(self) -> dict[str, float]:
        """Every score by its name; the task's `metric` is one of them."""
        ...


class Task(Protocol):
    """What the seeds are for."""

    @property
    def name(self) -> str:
        """What a checkpoint says that its model was trained for."""
        ...

    @property
    def metric(self) -> str:
        """The score by which the best epoch is chosen: the higher, the better."""
        ...

    def out_channels(self, source: BatchSource) -> int:
        """Columns that the model returns for `source`."""
        ...

    def output(self, source: BatchSource) -> str:
        """What a model has to return for `source`, in words."""
        ...

    def accepts(self, shape: Sequence[int], num_seeds: int, source: BatchSource) -> bool:
        """Whether a model may return a tensor of `shape` for a minibatch of so many seeds."""
        ...

    def loss(self, outputs: Tensor, batch: MiniBatch) -> Tensor:
        """[] the mean over the minibatch, to be differentiated."""
        ...

    def tally(self, device: torch.device) -> Tally:
        """A new tally, of nothing yet."""
        ...


class NodeClassification:
    """One class per seed: cross-entropy, and the share of seeds whose class is the most likely one."""

    name = "node classification"
    metric = "accuracy"

    def out_channels(self, source: BatchSource) -> int:
        """One logit per class."""
        return source.num_classes

    def output(self, source: BatchSource) -> str:
        """What a model has to return, in words."""
        return f"one row of {source.num_classes} classes per seed"

    def accepts(self, shape: Sequence[int], num_seeds: int, source: BatchSource) -> bool:
        """Whether there is a logit for each class of each seed; there may be more."""
        return len(shape) == 2 and shape[0] == num_seeds and shape[1] >= source.num_classes

    def loss(self, outputs: Tensor, batch: MiniBatch) -> Tensor:
        """[] mean cross-entropy of logits [B, classes]."""
        return F.cross_entropy(outputs, batch.y)

    def tally(self, device: torch.device) -> Tally:
        """Counts correct classes."""
        return _ClassTally(device)


class _ClassTally:
    def __init__(self, device: torch.device) -> None:
        self.num_seeds = 0
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._correct = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, outputs: Tensor, batch: MiniBatch) -> None:
        self._loss += F.cross_entropy(outputs, batch.y, reduction="sum")
        self._correct += (outputs.argmax(1) == batch.y).sum()
        self.num_seeds += len(batch.y)

    def loss(self) -> float:
        return self._loss.item() / self.num_seeds

    def scores(self) -> dict[str, float]:
        return {"accuracy": self._correct.item() / self.num_seeds}
