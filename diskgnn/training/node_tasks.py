"""Tasks whose seeds are nodes: one class, any labels, or numbers for each of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.minibatch import AnyMiniBatch, labels_of
from diskgnn.errors import ConfigError
from diskgnn.training.criterion import metrics_of
from diskgnn.training.model_output import seed_rows
from diskgnn.training.node_scores import BinaryTally, ClassTally, LabelTally, RegressionTally, regression_errors


class NodeTask:
    """Tasks whose model returns one row for each seed.

    Args:
        num_outputs: columns of a row.
    """

    target_kind: str

    def __init__(self, num_outputs: int) -> None:
        self.out_channels = num_outputs
        self.metrics = metrics_of(self.target_kind, num_outputs)

    def outputs(self, net: nn.Module, batch: AnyMiniBatch) -> Tensor:
        """[B, columns]: the model's row of each seed."""
        return seed_rows(net, batch)

    def accepts(self, outputs: Tensor, num_seeds: int) -> bool:
        """Whether there is a row for each seed, with a number for each output."""
        return tuple(outputs.shape) == (num_seeds, self.out_channels)


class NodeClassification(NodeTask):
    """One class per seed: cross-entropy, and the share of seeds whose class is the most likely one. Of two classes,
    average precision and ROC AUC of class 1, too.
    """

    name, loss_name, target_kind = "node classification", "cross-entropy", "class"

    def output(self) -> str:
        """What a model has to return, in words."""
        return f"one row of {self.out_channels} classes per seed"

    def accepts(self, outputs: Tensor, num_seeds: int) -> bool:
        """Whether there is a logit for each class of each seed; there may be more."""
        return outputs.dim() == 2 and outputs.shape[0] == num_seeds and outputs.shape[1] >= self.out_channels

    def loss(self, outputs: Tensor, batch: AnyMiniBatch) -> Tensor:
        """[] mean cross-entropy of logits [B, classes]."""
        return F.cross_entropy(outputs, labels_of(batch))

    def tally(self, device: torch.device) -> ClassTally:
        """Counts correct classes; of two, keeps how likely the second one is."""
        return BinaryTally(device) if self.out_channels == 2 else ClassTally(device)


class MultiLabel(NodeTask):
    """Any number of labels per seed: binary cross-entropy; micro F1, mean average precision, mean ROC AUC.

    The means are over labels; those that all seeds have, or none, are left out.
    """

    name, loss_name, target_kind = "multi-label classification", "bce", "multilabel"

    def output(self) -> str:
        """What a model has to return, in words."""
        return f"one row of {self.out_channels} labels per seed"

    def loss(self, outputs: Tensor, batch: AnyMiniBatch) -> Tensor:
        """[] mean binary cross-entropy of logits [B, labels]."""
        return F.binary_cross_entropy_with_logits(outputs, labels_of(batch).to(outputs.dtype))

    def tally(self, device: torch.device) -> LabelTally:
        """Keeps all logits."""
        return LabelTally(device)


class Regression(NodeTask):
    """Numbers per seed, those that are NaN not known: MAE, RMSE, R2.

    Args:
        num_outputs: numbers per seed.
        loss: 'mse', the mean square of errors, or 'l1', the mean of their absolute values.

    Raises:
        ConfigError: another loss.
    """

    name, target_kind = "regression", "regression"

    def __init__(self, num_outputs: int, loss: str = "mse") -> None:
        super().__init__(num_outputs)
        if loss not in ("mse", "l1"):
            raise ConfigError(f"loss: expected mse or l1 for regression, found {loss!r}")
        self.loss_name = loss

    def output(self) -> str:
        """What a model has to return, in words."""
        return f"one row of {self.out_channels} numbers per seed"

    def loss(self, outputs: Tensor, batch: AnyMiniBatch) -> Tensor:
        """[] mean over the numbers that are known."""
        known, errors = regression_errors(outputs, labels_of(batch))
        losses = errors.square() if self.loss_name == "mse" else errors.abs()
        return losses.sum() / known.sum().clamp(min=1)

    def tally(self, device: torch.device) -> RegressionTally:
        """Adds up errors and squares, column by column."""
        return RegressionTally(self.out_channels, self.loss_name, device)
