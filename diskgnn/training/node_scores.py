"""Adds up over minibatches how well a model does at a task whose seeds are nodes."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from diskgnn.batches.minibatch import AnyBatch, labels_of
from diskgnn.errors import ConfigError, DataWarning
from diskgnn.units import format_size

MOST_LOGIT_BYTES = 4 << 30  # that a tally keeps whose scores need their order
NO_CLASS = -1  # the label of seeds without one


class ClassTally:
    """Adds up cross-entropy, and the share of seeds whose class is the most likely one."""

    def __init__(self, device: torch.device) -> None:
        self.num_seeds = 0
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._correct = torch.zeros((), dtype=torch.int64, device=device)
        self._unlabelled = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, outputs: Tensor, batch: AnyBatch) -> None:
        """Count logits [B, classes]."""
        self._loss += F.cross_entropy(outputs, labels_of(batch), reduction="sum", ignore_index=NO_CLASS)
        self._correct += (outputs.argmax(1) == labels_of(batch)).sum()
        self._unlabelled += (labels_of(batch) == NO_CLASS).sum()
        self.num_seeds += len(labels_of(batch))

    def merge(self, other: ClassTally) -> None:
        """Count what another one has counted."""
        self._loss += other._loss
        self._correct += other._correct
        self._unlabelled += other._unlabelled
        self.num_seeds += other.num_seeds

    def loss(self) -> float:
        """Returns the mean over all seeds.

        Raises:
            ConfigError: some have no label.
        """
        if unlabelled := int(self._unlabelled):
            raise _no_labels(unlabelled, self.num_seeds)
        return self._loss.item() / self.num_seeds

    def scores(self) -> dict[str, float]:
        """Returns the scores, in [0, 1]."""
        return {"accuracy": self._correct.item() / self.num_seeds}


class BinaryTally(ClassTally):
    """Adds to `ClassTally` of two classes average precision and the area under the ROC curve of class 1.

    Keeps the log odds of class 1 to class 0 for each seed, in float64: no two are alike by rounding. At most
    MOST_LOGIT_BYTES. A split with more, or without seeds of one class or of the other, has neither score.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._kept = _Kept()

    def add(self, outputs: Tensor, batch: AnyBatch) -> None:
        """Count logits [B, classes]."""
        super().add(outputs, batch)
        logits = outputs[:, :2].double()
        self._kept.add(logits[:, 1:] - logits[:, :1], labels_of(batch).unsqueeze(1))

    def merge(self, other: ClassTally) -> None:
        """Count what another one has counted."""
        assert isinstance(other, BinaryTally)
        super().merge(other)
        self._kept.merge(other._kept)

    def scores(self) -> dict[str, float]:
        """Returns the scores, in [0, 1]."""
        return {**super().scores(), **self._kept.curves()}


class LabelTally:
    """Keeps the logits of all seeds, because precision and ROC need their order. At most MOST_LOGIT_BYTES: past these
    there is neither score."""

    def __init__(self, device: torch.device) -> None:
        self.num_seeds, self._columns = 0, 0
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        # Of all seeds and labels: guessed and true, guessed, true.
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)
        self._kept = _Kept()

    def add(self, outputs: Tensor, batch: AnyBatch) -> None:
        """Count logits [B, labels]."""
        self._columns = outputs.shape[1]
        labels, guessed = labels_of(batch) > 0, outputs > 0
        self._loss += F.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype), reduction="sum")
        self._counts += torch.stack([(guessed & labels).sum(), guessed.sum(), labels.sum()])
        self.num_seeds += len(labels)
        self._kept.add(outputs.float(), labels)

    def merge(self, other: LabelTally) -> None:
        """Count what another one has counted."""
        self._loss += other._loss
        self._counts += other._counts
        self._kept.merge(other._kept)
        self.num_seeds += other.num_seeds

    def loss(self) -> float:
        """Returns the mean over all seeds and labels."""
        return self._loss.item() / (self.num_seeds * self._columns)

    def scores(self) -> dict[str, float]:
        """Returns the scores, in [0, 1]; means over no label are 0."""
        correct, guessed, true = self._counts.tolist()
        means = self._kept.curves()
        if not means and not self._kept.too_many:
            means = {"average_precision": 0.0, "roc_auc": 0.0}
        return {"micro_f1": 2 * correct / max(guessed + true, 1), **means}


class _Kept:
    """Logits and labels of all seeds, where they were computed; none any more once they are more than
    MOST_LOGIT_BYTES."""

    def __init__(self) -> None:
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._bytes = 0
        self.too_many = False

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Keep [B, C] of each.

        Warns:
            DataWarning: there are too many, for the first time.
        """
        if self._has_room(logits.numel() * (logits.element_size() + 1)):
            self._logits.append(logits)
            self._labels.append(labels > 0)

    def merge(self, other: _Kept) -> None:
        """Keep what another one has. Warns as `add`."""
        if other.too_many:
            self._drop()
        elif self._has_room(other._bytes):
            self._logits += other._logits
            self._labels += other._labels

    def _has_room(self, num_bytes: int) -> bool:
        self._bytes += num_bytes
        if self._bytes > MOST_LOGIT_BYTES and not self.too_many:
            self._drop()
            warnings.warn(
                f"average precision and ROC AUC are left out: they need the logits of all seeds of a split, and "
                f"evaluation keeps at most {format_size(MOST_LOGIT_BYTES)} of them; evaluate a smaller split",
                DataWarning,
                stacklevel=4,
            )
        return not self.too_many

    def _drop(self) -> None:
        self.too_many = True
        self._logits.clear()
        self._labels.clear()

    def curves(self) -> dict[str, float]:
        """Returns the means of each column's scores over those that some seeds have and others do not; {} where there
        are none, or too many logits."""
        if self.too_many:
            return {}
        logits, labels = torch.cat(self._logits).cpu().numpy(), torch.cat(self._labels).cpu().numpy()
        both = [c for c in range(labels.shape[1]) if 0 < labels[:, c].sum() < len(labels)]
        found = [_curves(logits[:, c], labels[:, c]) for c in both]
        names = ("average_precision", "roc_auc")
        return {name: float(np.mean(scores)) for name, scores in zip(names, zip(*found, strict=True), strict=False)}


def _curves(logits: npt.NDArray[np.floating], labels: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Average precision, and the area under the ROC curve, of one label; seeds of one logit come together.

    Logits that are no numbers are the lowest, all alike.
    """
    order = np.argsort(-logits, kind="stable")  # numbers first
    highest = np.where(np.isnan(logits), -np.inf, logits)[order]
    ends = np.append(np.flatnonzero(highest[1:] != highest[:-1]), len(order) - 1)  # of each run of one logit
    true = np.cumsum(labels[order])[ends].astype(np.float64)
    recall, false = true / true[-1], ends + 1 - true
    precision = float(np.sum(np.diff(recall, prepend=0) * true / (ends + 1)))
    heights = (recall + np.concatenate([[0], recall[:-1]])) / 2
    return precision, float(np.sum(np.diff(false / false[-1], prepend=0) * heights))


class RegressionTally:
    """Adds up errors and squares of each column, of the numbers that are known; in float64.

    Args:
        columns: numbers per seed.
        loss_name: 'mse' or 'l1'.
        device: of the outputs.
    """

    def __init__(self, columns: int, loss_name: str, device: torch.device) -> None:
        self.num_seeds, self._loss_name = 0, loss_name
        # Rows: numbers known, their mean, sum of squared distances from it, absolute errors, squared errors.
        self._sums = torch.zeros(5, columns, dtype=torch.float64, device=device)

    def add(self, outputs: Tensor, batch: AnyBatch) -> None:
        """Count numbers [B, columns]."""
        known, errors = regression_errors(outputs.double(), labels_of(batch))
        y = torch.where(known, labels_of(batch).reshape(outputs.shape).double(), 0.0)
        count = known.sum(0)
        mean = y.sum(0) / count.clamp(min=1)
        spread = (torch.where(known, y - mean, 0.0)).square().sum(0)
        self._add(torch.stack([count.double(), mean, spread, errors.abs().sum(0), errors.square().sum(0)]))
        self.num_seeds += len(outputs)

    def merge(self, other: RegressionTally) -> None:
        """Count what another one has counted."""
        self._add(other._sums)
        self.num_seeds += other.num_seeds

    def _add(self, sums: Tensor) -> None:
        # Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.
        count, mean, spread = sums[:3]
        before, mean_before = self._sums[0], self._sums[1]
        total = (before + count).clamp(min=1)
        moved = mean - mean_before
        self._sums[2] += spread + moved.square() * before * count / total
        self._sums[1] += moved * count / total
        self._sums[0] += count
        self._sums[3:] += sums[3:]

    def loss(self) -> float:
        """Returns the mean over all numbers that are known.

        Raises:
            ConfigError: none is.
        """
        if self.num_seeds and not self._sums[0].any():
            raise _no_labels(self.num_seeds, self.num_seeds)
        errors = self._sums[4 if self._loss_name == "mse" else 3]
        return (errors.sum() / self._sums[0].sum().clamp(min=1)).item()

    def scores(self) -> dict[str, float]:
        """Returns MAE and RMSE over all numbers that are known, R2 as the mean over columns."""
        known, _, spread, absolute, squared = self._sums
        total = known.sum().clamp(min=1)
        # As scikit-learn has it: a column without spread counts 1 if all of it is met, else 0.
        constant = torch.where(squared > 0, 0.0, 1.0)
        r2 = torch.where(spread > 0, 1 - squared / spread.clamp(min=torch.finfo(torch.float64).tiny), constant)
        return {
            "mae": (absolute.sum() / total).item(),
            "rmse": (squared.sum() / total).sqrt().item(),
            "r2": r2.mean().item(),
        }


def _no_labels(unlabelled: int, num_seeds: int) -> ConfigError:
    return ConfigError(
        f"source: expected a label of every seed, found none of {unlabelled} of {num_seeds}: there is nothing to score "
        f"the model on. `predict` takes seeds without labels"
    )


def regression_errors(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns [B, C] True where a number is known, and outputs less numbers, 0 where it is not."""
    y = y.reshape(outputs.shape)
    known = ~y.isnan()
    return known, torch.where(known, outputs - y, torch.zeros_like(outputs))
