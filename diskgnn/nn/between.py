"""Normalisation, activation, dropout and skip connection, which follow every layer of a model but the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

Activation = Callable[[Tensor, float], Tensor]  # of rows, with the probability of dropout


class BatchNorm(nn.BatchNorm1d):
    """Normalises batches, and also takes no row or a single one in training. These have no spread, so it uses the
    running statistics then, as in evaluation. A minibatch of one seed without neighbours has such a layer.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, C] to [n, C]."""
        if self.training and len(x) < 2:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


NORM_MODULES: dict[str, Callable[[int], nn.Module]] = {
    "none": nn.Identity, "batch": BatchNorm, "layer": nn.LayerNorm
}  # fmt: skip


class Between(nn.Module):
    """Turns a layer's output into the next layer's input: dropout(activation(norm(out))), plus skip(own) if asked for.

    Outside of training each row depends on itself alone, so that `infer` can do this for any window of nodes.

    Args:
        in_channels: columns of the layer's input.
        out_channels: columns of its output.
        norm: 'none', 'batch' or 'layer'.
        activation: takes rows and the probability of dropout.
        dropout: that probability in training.
        skip: add the destinations' own rows of the layer's input, by a linear map where they have another width (He et
            al., Deep Residual Learning for Image Recognition, CVPR 2016).
    """

    def __init__(
        self, in_channels: int, out_channels: int, norm: str, activation: Activation, dropout: float, *, skip: bool
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.norm = NORM_MODULES[norm](out_channels)
        self.activation, self.dropout = activation, dropout
        self.skip: nn.Module | None = None
        if skip:
            is_same = in_channels == out_channels
            self.skip = nn.Identity() if is_same else nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, out: Tensor, own: Tensor) -> Tensor:
        """Returns [n, out_channels].

        Args:
            out: [n, out_channels] of the layer.
            own: [n, in_channels] the destinations' rows in the layer's input.
        """
        rows = self.rows(out)
        return rows if self.skip is None else rows + self.skip(own)

    def rows(self, out: Tensor) -> Tensor:
        """Computes the same without what the skip connection adds."""
        return self.activation(self.norm(out), self.dropout if self.training else 0.0)


def between_layers(
    widths: Sequence[tuple[int, int]], norm: str, activation: Activation, dropout: float, *, skip: bool
) -> nn.ModuleList:
    """Makes a `Between` for each of some layers.

    Args:
        widths: columns of the input and the output of each layer.
        norm, activation, dropout, skip: as `Between` has them.
    """
    return nn.ModuleList(Between(*each, norm, activation, dropout, skip=skip) for each in widths)
