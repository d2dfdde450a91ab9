"""GraphSAGE, GAT and GCN on blocks, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.minibatch import Block
from diskgnn.errors import ConfigError
from diskgnn.training.aggregation import attention, neighbour_max, own_and_mean, weighted_sums
from diskgnn.training.model_spec import AGGREGATIONS, ONE_TYPE_MODELS

# Moving one element of one edge's row costs about as much as this many multiply-adds of a matrix product.
ATTENTION_SLOPE = 0.2  # of the leaky ReLU on attention scores, below zero
_MULTIPLY_ADDS_PER_GATHER = 8


class SAGELayer(nn.Module):
    """GraphSAGE: W_self x_i + b + W_neighbours a(x_j of i's neighbours), where a is their mean, sum or maximum.

    Hamilton et al., Inductive Representation Learning on Large Graphs, NeurIPS 2017. Equals DGL's SAGEConv("mean")
    and PyG's SAGEConv(aggr=aggregation). Over no neighbours, all are zero.

    Args:
        in_channels: columns of x.
        out_channels: columns of the result.
        aggregation: 'mean', 'sum' or 'max', of each column.
        transform_first: multiply x by the weight before the sum over neighbours rather than after it; by default
            whatever is less work. A maximum is of x as it is.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        aggregation: str = "mean",
        transform_first: bool | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.aggregation = in_channels, out_channels, aggregation
        self.transform_first = False if aggregation == "max" else transform_first
        self.own = nn.Linear(in_channels, out_channels)
        self.neighbours = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_src, in_channels] -> [num_dst, out_channels]."""
        if _transforms_first(self.transform_first, block, self.in_channels, self.out_channels):
            _, found = self._own_and_neighbours(self.neighbours(x), block)
            out: Tensor = self.own(x[: block.num_dst])
            out += found
        else:
            own, found = self._own_and_neighbours(x, block)
            out = self.own(own)
            out += self.neighbours(found)
        return out

    def _own_and_neighbours(self, x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        if self.aggregation == "max":
            return x[: block.num_dst], neighbour_max(x, block)
        own, mean = own_and_mean(x, block)
        return own, mean if self.aggregation == "mean" else mean * block.in_degrees.unsqueeze(1)

    def extra_repr(self) -> str:
        """What its weights do not tell."""
        return f"aggregation={self.aggregation}"


class GCNLayer(nn.Module):
    """Graph convolution: sum of x_j W / sqrt(out-degree of j * in-degree of i) over i and its neighbours j, plus b.

    Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017: every node counts
    itself once (their A + I), once more for each self-loop that was sampled. Degrees are those within the block plus
    this one, so that the layer equals DGL's GraphConv(norm="both") on the block with an edge from each destination
    to itself added.

    Args:
        in_channels, out_channels, transform_first: as `SAGELayer` has them.
    """

    def __init__(self, in_channels: int, out_channels: int, *, transform_first: bool | None = None) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.transform_first = in_channels, out_channels, transform_first
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_src, in_channels] -> [num_dst, out_channels]."""
        if _transforms_first(self.transform_first, block, self.in_channels, self.out_channels):
            out = self._sums(block, F.linear(x, self.weight))
            out += self.bias
            return out
        return F.linear(self._sums(block, x), self.weight, self.bias)

    @staticmethod
    def _sums(block: Block, x: Tensor) -> Tensor:
        degrees = block.out_degrees.clone()
        degrees[: block.num_dst] += 1
        # Sources that are no destinations and that nobody drew have no edge, hence no weight.
        sources = degrees.clamp(min=1).to(x.dtype).rsqrt()
        destinations = (block.in_degrees + 1).to(x.dtype).rsqrt()
        weights = sources[block.indices] * destinations[block.destinations]
        sums = weighted_sums(x.unsqueeze(1), weights.unsqueeze(1), block).squeeze(1)
        return sums + (sources[: block.num_dst] * destinations).unsqueeze(1) * x[: block.num_dst]


class GATLayer(nn.Module):
    """Graph attention with one weight matrix for sources and destinations, as DGL's and PyG's GATConv have it.

    Velickovic et al., Graph Attention Networks, ICLR 2018. No self-loops are added. With `residual`, a linear map
    of the destination's own row is: so a node counts itself, and has an output of its own without neighbours.

    Args:
        in_channels: columns of x.
        out_channels: columns of each head.
        heads: number of heads.
        concat: heads side by side ([num_dst, heads * out_channels]) if true, else their mean ([num_dst, out_channels]).
        residual: add a linear map of x_i.
        transform_first: as `SAGELayer` has it.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int,
        *,
        concat: bool = True,
        residual: bool = False,
        transform_first: bool | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.transform_first = concat, transform_first
        width = heads * out_channels if concat else out_channels
        self.weight = nn.Parameter(torch.empty(heads * out_channels, in_channels))
        self.source_attention = nn.Parameter(torch.empty(heads, out_channels))
        self.destination_attention = nn.Parameter(torch.empty(heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(width))
        self.residual = nn.Linear(in_channels, width, bias=False) if residual else None
        for parameter in (self.weight, self.source_attention, self.destination_attention):
            nn.init.xavier_uniform_(parameter)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_src, in_channels] -> [num_dst, heads * out_channels], or [num_dst, out_channels] without `concat`."""
        x_own = x[: block.num_dst]
        width = self.heads * self.out_channels
        if _transforms_first(self.transform_first, block, self.in_channels, width, self.heads):
            h = F.linear(x, self.weight).view(-1, self.heads, self.out_channels)
            source_scores = (h * self.source_attention).sum(dim=2)
            destination_scores = (h[: block.num_dst] * self.destination_attention).sum(dim=2)
            out = attention(h, source_scores, destination_scores, block, ATTENTION_SLOPE)
        else:
            # a . (W x) = (W^T a) . x, and the attention-weighted mean of W x_j is W times that of x_j.
            weight = self.weight.view(self.heads, self.out_channels, self.in_channels)
            source_scores = F.linear(x, torch.einsum("hoi,ho->hi", weight, self.source_attention))
            destination_scores = F.linear(x_own, torch.einsum("hoi,ho->hi", weight, self.destination_attention))
            mean = attention(x.unsqueeze(1), source_scores, destination_scores, block, ATTENTION_SLOPE)
            out = torch.einsum("dhi,hoi->dho", mean, weight)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        out += self.bias
        if self.residual is not None:
            out += self.residual(x_own)
        return out


class BlockModel(nn.Module):
    """Layers applied to blocks, outermost first, with an activation and dropout between them.

    Args:
        layers: one module per block, (block, x [num_src, in]) -> [num_dst, out], with an `in_channels` attribute.
        activation: applied after every layer but the last, with the probability of dropout (0 when not training).
        dropout: that probability in training.
    """

    def __init__(
        self, layers: Sequence[nn.Module], activation: Callable[[Tensor, float], Tensor], dropout: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.activation, self.dropout = activation, dropout
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
                f"model has {num_layers} layers, minibatch has {len(blocks)} blocks; "
                f"prepare with {num_layers} fanouts or set num_layers={len(blocks)}"
            )
        if x.shape[1] != in_channels:
            raise ConfigError(
                f"model takes features {in_channels} wide, minibatch has features {x.shape[1]} wide; "
                f"make the model with in_channels={x.shape[1]}"
            )
        h = x.to(next(self.parameters()).dtype)
        for index, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, h)
            if index < num_layers - 1:
                h = self.activation(h, self.dropout if self.training else 0.0)
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
        return BlockModel([SAGELayer(*pair, aggregation=aggregation) for pair in pairs], relu_dropout, dropout)
    if name == "gcn":
        return BlockModel([GCNLayer(*pair) for pair in pairs], relu_dropout, dropout)
    if num_layers > 1 and hidden_channels % heads:
        raise ConfigError(f"gat: expected a hidden width that is a multiple of heads={heads}, found {hidden_channels}")
    layers = [GATLayer(before, after // heads, heads, residual=True) for before, after in pairs[:-1]]
    layers.append(GATLayer(*pairs[-1], heads, concat=False, residual=True))
    return BlockModel(layers, elu_dropout, dropout)


def transforming_first_is_less_work(block: Block, in_channels: int, out_channels: int, heads: int = 1) -> bool:
    """Whether to multiply x by the weight before the sum over neighbours, rather than after it.

    Before: a product per source, and narrow rows to sum if out_channels is less than in_channels. After: a product per
    destination, of which a sampled block has far fewer, and rows of x to sum, for GAT once per head.
    """
    product = in_channels * out_channels
    before = block.num_src * product + _MULTIPLY_ADDS_PER_GATHER * block.num_edges * out_channels
    after = block.num_dst * product + _MULTIPLY_ADDS_PER_GATHER * block.num_edges * in_channels * heads
    return before < after


def _transforms_first(asked: bool | None, block: Block, in_channels: int, out_channels: int, heads: int = 1) -> bool:
    return transforming_first_is_less_work(block, in_channels, out_channels, heads) if asked is None else asked
