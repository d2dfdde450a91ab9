"""How well a model does at a task whose seeds are nodes, added up over minibatches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from diskgnn.batches.minibatch import AnyMiniBatch, labels_of
from diskgnn.errors import ConfigError
from diskgnn.units import format_size

MOST_LOGIT_BYTES = 4 << 30  # that `LabelTally` keeps


class ClassTally:
    """Cross-entropy, and the share of seeds whose class is the most likely one."""

    def __init__(self, device: torch.device) -> None:
        self.num_seeds = 0
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._correct = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, outputs: Tensor, batch: AnyMiniBatch) -> None:
        """Count logits [B, classes]."""
        self._loss += F.cross_entropy(outputs, labels_of(batch), reduction="sum")
        self._correct += (outputs.argmax(1) == labels_of(batch)).sum()
        self.num_seeds += len(labels_of(batch))

    def merge(self, other: ClassTally) -> None:
        """Count what another one has counted."""
        self._loss += other._loss
        self._correct += other._correct
        self.num_seeds += other.num_seeds

    def loss(self) -> float:
        """Mean over all seeds."""
        return self._loss.item() / self.num_seeds

    def scores(self) -> dict[str, float]:
        """In [0, 1]."""
        return {"accuracy": self._correct.item() / self.num_seeds}


class LabelTally:
    """Keeps the logits of all seeds, because precision and ROC need their order. At most MOST_LOGIT_BYTES."""

    def __init__(self, device: torch.device) -> None:
        self.num_seeds = 0
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def add(self, outputs: Tensor, batch: AnyMiniBatch) -> None:
        """Count logits [B, labels].

        Raises:
            ConfigError: there are too many to keep.
        """
        self._loss += F.binary_cross_entropy_with_logits(outputs, labels_of(batch).to(outputs.dtype), reduction="sum")
        self.num_seeds += len(labels_of(batch))
        if self.num_seeds * outputs.shape[1] * 4 > MOST_LOGIT_BYTES:
            raise ConfigError(
                f"the scores of {outputs.shape[1]} labels need all logits of a split, and evaluation keeps at most "
                f"{format_size(MOST_LOGIT_BYTES)}: evaluate a smaller split"
            )
        self._logits.append(outputs.float())
        self._labels.append(labels_of(batch))

    def merge(self, other: LabelTally) -> None:
        """Count what another one has counted."""
        self._loss += other._loss
        self._logits += other._logits
        self._labels += other._labels
        self.num_seeds += other.num_seeds

    def loss(self) -> float:
        """Mean over all seeds and labels."""
        return self._loss.item() / (self.num_seeds * self._logits[0].shape[1])

    def scores(self) -> dict[str, float]:
        """In [0, 1]; means over no label are 0."""
        logits, labels = torch.cat(self._logits).cpu().numpy(), torch.cat(self._labels).cpu().numpy() > 0
        guessed = logits > 0
        correct, counted = int((guessed & labels).sum()), int(guessed.sum()) + int(labels.sum())
        both = [c for c in range(labels.shape[1]) if 0 < labels[:, c].sum() < len(labels)]
        curves = [_curves(logits[:, c], labels[:, c]) for c in both]
        return {
            "micro_f1": 2 * correct / max(counted, 1),
            "average_precision": float(np.mean([precision for precision, _ in curves])) if both else 0.0,
            "roc_auc": float(np.mean([area for _, area in curves])) if both else 0.0,
        }


def _curves(logits: npt.NDArray[np.float32], labels: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Average precision, and the area under the ROC curve, of one label; seeds of one logit come together."""
    order = np.argsort(-logits, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(logits[order])), len(order) - 1)  # of each run of one logit
    true = np.cumsum(labels[order])[ends].astype(np.float64)
    recall, false = true / true[-1], ends + 1 - true
    precision = float(np.sum(np.diff(recall, prepend=0) * true / (ends + 1)))
    heights = (recall + np.concatenate([[0], recall[:-1]])) / 2
    return precision, float(np.sum(np.diff(false / false[-1], prepend=0) * heights))


class RegressionTally:
    """Errors and squares of each column, of the numbers that are known; in float64.

    Args:
        columns: numbers per seed.
        loss_name: 'mse' or 'l1'.
        device: of the outputs.
    """

    def __init__(self, columns: int, loss_name: str, device: torch.device) -> None:
        self.num_seeds, self._loss_name = 0, loss_name
        # Rows: numbers known, their mean, sum of squared distances from it, absolute errors, squared errors.
        self._sums = torch.zeros(5, columns, dtype=torch.float64, device=device)

    def add(self, outputs: Tensor, batch: AnyMiniBatch) -> None:
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
        """Mean over all numbers that are known."""
        errors = self._sums[4 if self._loss_name == "mse" else 3]
        return (errors.sum() / self._sums[0].sum().clamp(min=1)).item()

    def scores(self) -> dict[str, float]:
        """MAE and RMSE over all numbers that are known, R2 as the mean over columns."""
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


def regression_errors(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """[B, C] whether a number is known, and outputs less numbers, 0 where it is not."""
    y = y.reshape(outputs.shape)
    known = ~y.isnan()
    return known, torch.where(known, outputs - y, torch.zeros_like(outputs))
