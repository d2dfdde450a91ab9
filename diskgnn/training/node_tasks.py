"""Tasks whose seeds have labels, nodes or pairs of them: one class, any labels, or numbers for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.minibatch import AnyBatch, labels_of
from diskgnn.errors import ConfigError, InputError
from diskgnn.nn.model_output import pair_rows, seed_rows
from diskgnn.training.criterion import metrics_of
from diskgnn.training.node_scores import BinaryTally, ClassTally, LabelTally, RegressionTally, regression_errors


class LabelTask:
    """Serves tasks whose seeds have labels: nodes, of which the model returns a row each, or pairs.

    Of pairs the model returns vectors of the nodes, and its attribute `decoder`, a module as in `decoders.py`, makes a
    row of the two of each pair.

    Args:
        num_outputs: columns of a row.
        of_pairs: whether seeds are pairs.
    """

    target_kind: str
    of_nodes: str  # what it is called

    def __init__(self, num_outputs: int, *, of_pairs: bool = False) -> None:
        self.num_outputs, self.of_pairs = num_outputs, of_pairs
        self.out_channels = None if of_pairs else num_outputs
        self.name = self.of_nodes.replace("node", "pair") if of_pairs else self.of_nodes
        self.metrics = metrics_of(self.target_kind, num_outputs)

    def output(self) -> str:
        """Says in words what a model has to return."""
        row = f"one row of {self.num_outputs} {self._columns()}"
        if self.of_pairs:
            return f"one vector per seed, of which its attribute `decoder` makes {row} per pair"
        return f"{row} per seed"

    def _columns(self) -> str:
        raise NotImplementedError

    def outputs(self, net: nn.Module, batch: AnyBatch) -> Tensor:
        """Returns [B, columns]: the row of each seed."""
        return pair_rows(net, batch) if self.of_pairs else seed_rows(net, batch)

    def accepts(self, outputs: Tensor, num_seeds: int) -> bool:
        """Returns True if there is a row for each seed, with a number for each output."""
        return tuple(outputs.shape) == (num_seeds, self.num_outputs)


class NodeClassification(LabelTask):
    """Tells one class per seed: cross-entropy, and the share of seeds whose class is the most likely one. Of two
    classes, average precision and ROC AUC of class 1, too.
    """

    of_nodes, loss_name, target_kind = "node classification", "cross-entropy", "class"

    def _columns(self) -> str:
        return "classes"

    def accepts(self, outputs: Tensor, num_seeds: int) -> bool:
        """Returns True if there is a logit for each class of each seed; there may be more."""
        return outputs.dim() == 2 and outputs.shape[0] == num_seeds and outputs.shape[1] >= self.num_outputs

    def loss(self, outputs: Tensor, batch: AnyBatch) -> Tensor:
        """Returns [] the mean cross-entropy of logits [B, classes].

        Raises:
            InputError: some seeds have no class (on a GPU torch says so in its own words).
        """
        y = labels_of(batch)
        try:
            return F.cross_entropy(outputs, y)
        except IndexError as error:
            unlabelled = int((y < 0).sum())
            if unlabelled == 0:
                raise
            raise InputError(
                f"source: expected a class of every seed to train on, found none of {unlabelled} of the {len(y)} seeds "
                f"of epoch {batch.epoch}, minibatch {batch.batch_index}: prepare with labels for these, or leave them "
                "out"
            ) from error

    def tally(self, device: torch.device) -> ClassTally:
        """Counts correct classes; of two, keeps how likely the second one is."""
        return BinaryTally(device) if self.num_outputs == 2 else ClassTally(device)


class MultiLabel(LabelTask):
    """Tells any number of labels per seed: binary cross-entropy; micro F1, mean average precision, mean ROC AUC.

    The means are over labels; those that all seeds have, or none, are left out.
    """

    of_nodes, loss_name, target_kind = "multi-label classification", "bce", "multilabel"

    def _columns(self) -> str:
        return "labels"

    def loss(self, outputs: Tensor, batch: AnyBatch) -> Tensor:
        """Returns [] the mean binary cross-entropy of logits [B, labels]."""
        return F.binary_cross_entropy_with_logits(outputs, labels_of(batch).to(outputs.dtype))

    def tally(self, device: torch.device) -> LabelTally:
        """Keeps all logits."""
        return LabelTally(device)


class Regression(LabelTask):
    """Predicts numbers per seed, of which those that are NaN are not known: MAE, RMSE, R2.

    Args:
        num_outputs, of_pairs: see `LabelTask`.
        loss: 'mse', the mean square of errors, or 'l1', the mean of their absolute values.

    Raises:
        ConfigError: another loss.
    """

    of_nodes, target_kind = "regression", "regression"

    def __init__(self, num_outputs: int, loss: str = "mse", *, of_pairs: bool = False) -> None:
        super().__init__(num_outputs, of_pairs=of_pairs)
        if loss not in ("mse", "l1"):
            raise ConfigError(f"loss: expected mse or l1 for regression, found {loss!r}")
        self.loss_name = loss

    def _columns(self) -> str:
        return "numbers"

    def loss(self, outputs: Tensor, batch: AnyBatch) -> Tensor:
        """Returns [] the mean over the numbers that are known."""
        known, errors = regression_errors(outputs, labels_of(batch))
        losses = errors.square() if self.loss_name == "mse" else errors.abs()
        return losses.sum() / known.sum().clamp(min=1)

    def tally(self, device: torch.device) -> RegressionTally:
        """Adds up errors and squares, column by column."""
        return RegressionTally(self.num_outputs, self.loss_name, device)
