"""GraphSAGE, GAT and GCN on blocks: layers in a row, with what is between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.blocks import Block
from diskgnn.errors import ConfigError
from diskgnn.nn.between import Activation, between_layers
from diskgnn.nn.layers import GATLayer, GCNLayer, SAGELayer
from diskgnn.nn.model_spec import ONE_TYPE_MODELS, ModelSpec
from diskgnn.units import counted, whole_number


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


def check_depth(num_layers: int, num_blocks: int) -> None:
    """Refuses a minibatch that is not as deep as the model.

    Raises:
        ConfigError: there are more or fewer blocks than layers.
    """
    if num_blocks != num_layers:
        raise ConfigError(
            f"model has {counted(num_layers, 'layer')}, minibatch has {counted(num_blocks, 'block')}; "
            f"prepare with {counted(num_layers, 'fanout')} or set num_layers={num_blocks}"
        )


class BlockModel(nn.Module):
    """Applies layers to blocks, outermost first, with normalisation, an activation and dropout between them.

    Args:
        layers: one module per block, (block, x [num_src, in]) -> [num_dst, out], with an `in_channels` attribute.
        activation, dropout, norm, skip: what follows every layer but the last, see `nn.between.Between`.
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
        """Returns the logits of the seeds.

        Args:
            blocks: one per layer, outermost first.
            x: [U, D] features of blocks[0]'s sources, in any dtype: cast to the parameters'.

        Returns:
            [B, out_channels].

        Raises:
            ConfigError: There are more or fewer blocks than layers, or x has another width than the model.
        """
        num_layers, in_channels = len(self.layers), self.layers[0].in_channels
        check_depth(num_layers, len(blocks))
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
    """Applies ReLU, then zeroes each element with `probability` and scales the others up to make up for it."""
    kept: Tensor = _ReluDropout.apply(x, probability)  # type: ignore[no-untyped-call]
    return kept


def elu_dropout(x: Tensor, probability: float) -> Tensor:
    """Applies ELU, then dropout."""
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
    """Makes a model that takes (blocks, x) and gives the seeds' logits.

    Args:
        name: 'sage', 'gat' or 'gcn'. GAT has residual connections, and averages the heads of its last layer.
        in_channels: D, columns of x.
        hidden_channels: width between layers; for GAT that of all heads together.
        out_channels: columns of the output: classes.
        num_layers: blocks per minibatch, that is the number of fanouts.
        heads, dropout, aggregation, norm, skip: as `ModelSpec` has them.

    Raises:
        ConfigError: a value that makes no sense, or GAT's heads do not divide its width.

    Example:
        >>> model = make_model("sage", in_channels=128, hidden_channels=256, out_channels=40, num_layers=3)
        >>> logits = model(batch.blocks, batch.x)  # [B, 40]
    """
    if name not in ONE_TYPE_MODELS:
        raise ConfigError(f"model: expected one of {', '.join(ONE_TYPE_MODELS)}, found {name!r}")
    spec = ModelSpec(
        name, whole_number("hidden_channels", hidden_channels), num_layers, heads, dropout, aggregation=aggregation,
        norm=norm, skip=skip,
    )  # fmt: skip
    return one_type_model(spec, whole_number("in_channels", in_channels), whole_number("out_channels", out_channels))


def one_type_model(spec: ModelSpec, in_channels: int, out_channels: int) -> BlockModel:
    """Makes a model that takes (blocks, x) and gives rows of the seeds.

    Args:
        spec: with a name for graphs of one type and a number of layers.
        in_channels, out_channels: columns of x, and of the output.

    Raises:
        ConfigError: GAT's heads do not divide its width.
    """
    assert spec.num_layers is not None
    pairs = list(pairwise([in_channels] + [spec.hidden] * (spec.num_layers - 1) + [out_channels]))
    layers: list[nn.Module]
    if spec.name == "sage":
        layers = [SAGELayer(*pair, aggregation=spec.aggregation) for pair in pairs]
    elif spec.name == "gcn":
        layers = [GCNLayer(*pair) for pair in pairs]
    else:
        if spec.num_layers > 1:
            spec.check_heads()
        layers = [GATLayer(before, spec.hidden // spec.heads, spec.heads, residual=True) for before, _ in pairs[:-1]]
        layers.append(GATLayer(*pairs[-1], spec.heads, concat=False, residual=True))
    activation = elu_dropout if spec.name == "gat" else relu_dropout
    return BlockModel(layers, activation, spec.dropout, norm=spec.norm or "none", skip=spec.skip)
