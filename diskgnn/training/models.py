"""GraphSAGE, GAT and GCN on blocks: layers in a row, with what is between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.minibatch import Block
from diskgnn.errors import ConfigError
from diskgnn.training.between import Activation, between_layers
from diskgnn.training.layers import GATLayer, GCNLayer, SAGELayer
from diskgnn.training.model_spec import AGGREGATIONS, NORMS, ONE_TYPE_MODELS
from diskgnn.units import counted


def in_channels_of(layer: nn.Module) -> int:
    """Returns the width of the rows that a layer takes.

    Raises:
        ConfigError: it does not say.
    """
    found = getattr(layer, "in_channels", None)
    if not isinstance(found, int):
        raise ConfigError(
            f"model: expected layer {type(layer).__name__} to have an attribute in_channels, the width of its input; "
            f"found {found!r}"
        )
    return found


class BlockModel(nn.Module):
    """Layers applied to blocks, outermost first, with normalisation, an activation and dropout between them.

    Args:
        layers: one module per block, (block, x [num_src, in]) -> [num_dst, out], with an `in_channels` attribute.
        activation, dropout, norm, skip: what follows every layer but the last, see `training.between.Between`.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        activation: Activation,
        dropout: float,
        *,
        norm: str = "none",
        skip: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        widths = list(pairwise(in_channels_of(layer) for layer in layers))
        self.between = between_layers(widths, norm, activation, dropout, skip=skip)
        self.decoder: nn.Module | None = None  # of link prediction

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """Logits of the seeds.

        Args:
            blocks: one per layer, outermost first.
            x: [U, D] features of blocks[0]'s sources, in any dtype: cast to the parameters'.

        Returns:
            [B, out_channels].

        Raises:
            ConfigError: There are more or fewer blocks than layers, or x has another width than the model.
        """
        num_layers, in_channels = len(self.layers), self.layers[0].in_channels
        if len(blocks) != num_layers:
            raise ConfigError(
                f"model has {counted(num_layers, 'layer')}, minibatch has {counted(len(blocks), 'block')}; "
                f"prepare with {counted(num_layers, 'fanout')} or set num_layers={len(blocks)}"
            )
        if x.shape[1] != in_channels:
            raise ConfigError(
                f"model takes features {in_channels} wide, minibatch has features {x.shape[1]} wide; "
                f"make the model with in_channels={x.shape[1]}"
            )
        h = x.to(next(self.parameters()).dtype)
        for index, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            out = layer(block, h)
            h = self.between[index](out, h[: block.num_dst]) if index < num_layers - 1 else out
        return h


class _ReluDropout(torch.autograd.Function):
    """Dropout after ReLU, whose result tells the gradient all that it needs: no mask, no second activation is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        kept = torch.relu(x)
        if probability > 0:
            kept.mul_(torch.empty_like(kept, dtype=torch.bool).bernoulli_(1 - probability)).div_(1 - probability)
        ctx.save_for_backward(kept)
        ctx.probability = probability
        return kept

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return gradient.mul(kept > 0).div_(1 - ctx.probability), None


def relu_dropout(x: Tensor, probability: float) -> Tensor:
    """ReLU, then each element zeroed with `probability` and the others scaled up to make up for it."""
    kept: Tensor = _ReluDropout.apply(x, probability)  # type: ignore[no-untyped-call]
    return kept


def elu_dropout(x: Tensor, probability: float) -> Tensor:
    """ELU, then dropout."""
    return F.dropout(F.elu(x), probability)


def make_model(
    name: str,
    in_channels: int,
    hidden_channels: int,
    out_channels: int,
    num_layers: int,
    heads: int = 4,
    dropout: float = 0.5,
    aggregation: str = "mean",
    norm: str = "none",
    skip: bool = False,
) -> BlockModel:
    """A model that takes (blocks, x) and gives the seeds' logits.

    Args:
        name: "sage", "gat" or "gcn". GAT has residual connections, and averages the heads of its last layer.
        in_channels: D, columns of x.
        hidden_channels: width between layers; for GAT that of all heads together.
        out_channels: columns of the output: classes.
        num_layers: blocks per minibatch, that is the number of fanouts.
        heads: attention heads of GAT.
        dropout: probability with which activations are dropped in training, in [0, 1).
        aggregation: of GraphSAGE, see `SAGELayer`.
        norm: of the rows between layers: "none", "batch" or "layer".
        skip: add a layer's input to its output, see `training.between.Between`.

    Raises:
        ConfigError: The name or the aggregation is unknown, a size is not positive, or GAT's heads do not divide its
            width.

    Example:
        >>> model = make_model("sage", in_channels=128, hidden_channels=256, out_channels=40, num_layers=3)
        >>> logits = model(batch.blocks, batch.x)  # [B, 40]
    """
    if name not in ONE_TYPE_MODELS:
        raise ConfigError(f"model must be one of {', '.join(ONE_TYPE_MODELS)}, found {name!r}")
    if aggregation not in AGGREGATIONS:
        raise ConfigError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, found {aggregation!r}")
    if norm not in NORMS:
        raise ConfigError(f"norm must be one of {', '.join(NORMS)}, found {norm!r}")
    for label, size in (
        ("in_channels", in_channels),
        ("hidden_channels", hidden_channels),
        ("out_channels", out_channels),
        ("num_layers", num_layers),
        ("heads", heads),
    ):
        if size < 1:
            raise ConfigError(f"{label} must be at least 1, found {size}")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout must be in [0, 1), found {dropout}")
    pairs = list(pairwise([in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]))
    if name == "sage":
        sage_layers = [SAGELayer(*pair, aggregation=aggregation) for pair in pairs]
        return BlockModel(sage_layers, relu_dropout, dropout, norm=norm, skip=skip)
    if name == "gcn":
        return BlockModel([GCNLayer(*pair) for pair in pairs], relu_dropout, dropout, norm=norm, skip=skip)
    if num_layers > 1 and hidden_channels % heads:
        raise ConfigError(f"gat: expected a hidden width that is a multiple of heads={heads}, found {hidden_channels}")
    layers = [GATLayer(before, after // heads, heads, residual=True) for before, after in pairs[:-1]]
    layers.append(GATLayer(*pairs[-1], heads, concat=False, residual=True))
    return BlockModel(layers, elu_dropout, dropout, norm=norm, skip=skip)
