"""Layers on the blocks of graphs with one type of nodes and edges: GraphSAGE, GCN, GAT."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.blocks import Block
from diskgnn.nn.aggregation import attention, neighbour_max, own_and_mean, weighted_sums

# Moving one element of one edge's row costs about as much as this many multiply-adds of a matrix product.
_MULTIPLY_ADDS_PER_GATHER = 8


class SAGELayer(nn.Module):
    """Computes GraphSAGE: W_self x_i + b + W_neighbours a(x_j of i's neighbours), where a is their mean, sum or
    maximum.

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
        """Maps [num_src, in_channels] to [num_dst, out_channels]."""
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
        """Says what its weights do not tell."""
        return f"aggregation={self.aggregation}"


class GCNLayer(nn.Module):
    """Computes a graph convolution: sum of x_j W / sqrt(out-degree of j * in-degree of i) over i and its neighbours j,
    plus b.

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
        """Maps [num_src, in_channels] to [num_dst, out_channels]."""
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
    """Computes graph attention with one weight matrix for sources and destinations, as DGL's and PyG's GATConv have it.

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
        """Maps [num_src, in_channels] to [num_dst, heads * out_channels], or [num_dst, out_channels] without
        `concat`.
        """
        x_own, weight = x[: block.num_dst], self.weight.view(self.heads, self.out_channels, self.in_channels)
        # a . (W x) = (W^T a) . x
        scores = F.linear(x_own, torch.einsum("hoi,ho->hi", weight, self.destination_attention))
        out = attended(block, x, weight, self.source_attention, scores, transform_first=self.transform_first)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        out += self.bias
        if self.residual is not None:
            out += self.residual(x_own)
        return out


def attended(
    block: Block,
    x: Tensor,
    weight: Tensor,
    source_attention: Tensor,
    destination_scores: Tensor,
    edge_scores: Tensor | None = None,
    *,
    transform_first: bool | None = None,
) -> Tensor:
    """Averages rows that are multiplied by a weight, with attention.

    Args:
        block: the edges.
        x: [num_src, I] rows of the sources.
        weight: [H, O, I] of each head.
        source_attention: [H, O] which makes scores of these products.
        destination_scores, edge_scores: as `attention` takes them.
        transform_first: as `SAGELayer` has it.

    Returns:
        [num_dst, H, O].
    """
    heads, out_channels, in_channels = weight.shape
    if _transforms_first(transform_first, block, in_channels, heads * out_channels, heads):
        h = F.linear(x, weight.flatten(0, 1)).view(-1, heads, out_channels)
        return attention(h, (h * source_attention).sum(dim=2), destination_scores, block, edge_scores)
    # a . (W x) = (W^T a) . x, and the attention-weighted mean of W x_j is W times that of x_j.
    source_scores = F.linear(x, torch.einsum("hoi,ho->hi", weight, source_attention))
    mean = attention(x.unsqueeze(1), source_scores, destination_scores, block, edge_scores)
    return torch.einsum("dhi,hoi->dho", mean, weight)


def transforming_first_is_less_work(block: Block, in_channels: int, out_channels: int, heads: int = 1) -> bool:
    """Returns True if x is better multiplied by the weight before the sum over neighbours, rather than after it.

    Before: a product per source, and narrow rows to sum if out_channels is less than in_channels. After: a product per
    destination, of which a sampled block has far fewer, and rows of x to sum, for GAT once per head.
    """
    product = in_channels * out_channels
    before = block.num_src * product + _MULTIPLY_ADDS_PER_GATHER * block.num_edges * out_channels
    after = block.num_dst * product + _MULTIPLY_ADDS_PER_GATHER * block.num_edges * in_channels * heads
    return before < after


def _transforms_first(asked: bool | None, block: Block, in_channels: int, out_channels: int, heads: int = 1) -> bool:
    return transforming_first_is_less_work(block, in_channels, out_channels, heads) if asked is None else asked
