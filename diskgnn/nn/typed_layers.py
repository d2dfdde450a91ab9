"""Layers on blocks of several types of nodes and edges, in plain torch: R-GCN, R-GAT, HGT.

Each takes the blocks of a layer and rows by node type, and returns rows of the destinations by node type. Rows of all
types are equally long. What several edge types bring a destination is added up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.blocks import Block
from diskgnn.nn.aggregation import (
    edge_mean,
    edge_products,
    neighbour_mean,
    softmax_over_types,
    weighted_sums,
)
from diskgnn.nn.layer_types import LayerTypes
from diskgnn.nn.layers import attended, transforming_first_is_less_work
from diskgnn.specs.schema import EdgeType

TypedBlocks = Mapping[EdgeType, Block]


class RGCNLayer(nn.Module):
    """Computes W_type x_i + b + the sum over edge types r of W_r mean(x_j of i's neighbours by r).

    Schlichtkrull et al., Modeling Relational Data with Graph Convolutional Networks, ESWC 2018; with a W_type for each
    node type where they have one. Equals PyG's HeteroConv of SAGEConv(root_weight=False), and RGCNConv(aggr="mean").
    Edges with features e_ij bring U_r mean(e_ij), too: W_r and U_r together are a weight of (x_j, e_ij).

    Args:
        in_channels: columns of x.
        out_channels: columns of the result.
        types: of nodes and edges.
        num_bases: every W_r is a mixture of so many weights (their basis decomposition); None: each is its own.
    """

    def __init__(self, in_channels: int, out_channels: int, types: LayerTypes, num_bases: int | None = None) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.types = in_channels, out_channels, types
        self.own = nn.ModuleList(nn.Linear(in_channels, out_channels) for _ in types.destinations)
        self.weight = nn.Parameter(torch.empty(num_bases or len(types.edges), out_channels, in_channels))
        for weight in self.weight:
            nn.init.xavier_uniform_(weight)
        self.mixture = None if num_bases is None else nn.Parameter(torch.empty(len(types.edges), num_bases))
        if self.mixture is not None:
            nn.init.xavier_uniform_(self.mixture)
        self.edge = _edge_maps(types, out_channels)

    def forward(self, blocks: TypedBlocks, x: Mapping[str, Tensor], counts: Mapping[str, int]) -> dict[str, Tensor]:
        """Maps, by node type, [num_src, in_channels] to [num_dst, out_channels].

        Args:
            blocks: of this layer.
            x: rows of the sources.
            counts: destinations of each type; they are the first sources.
        """
        weights = self.weight if self.mixture is None else torch.einsum("rb,boi->roi", self.mixture, self.weight)
        out = {}
        for own, name in zip(self.own, self.types.destinations, strict=True):
            rows = own(x[name][: counts[name]])
            for number, edge_type in self.types.followed(blocks, name):
                block, source, weight = blocks[edge_type], x[edge_type[0]], weights[number]
                if transforming_first_is_less_work(block, self.in_channels, self.out_channels):
                    rows = rows + neighbour_mean(F.linear(source, weight), block)
                else:
                    rows = rows + F.linear(neighbour_mean(source, block), weight)
                if (edge := self.edge[number]) is not None:
                    rows = rows + edge(edge_mean(_features(block, edge), block))
            out[name] = rows
        return out


class RGATLayer(nn.Module):
    """Computes W_type x_i + b + the sum over edge types of graph attention among i's neighbours by that type.

    Busbridge et al., Relational Graph Attention Networks, 2019 (WIRGAT: attention within each type); the linear map of
    the destination's own row as in OGB-LSC's baseline for MAG240M. Equals PyG's HeteroConv of bipartite
    GATConv(add_self_loops=False), plus that map. Features of edges count in the attention, as with GATConv's edge_dim.

    Args:
        in_channels: columns of x.
        out_channels: columns of each head.
        heads: number of heads.
        types: of nodes and edges.
        concat: heads side by side (heads * out_channels columns) if true, else their mean.
    """

    def __init__(
        self, in_channels: int, out_channels: int, heads: int, types: LayerTypes, *, concat: bool = True
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.types, self.concat = types, concat
        width = heads * out_channels if concat else out_channels
        self.own = nn.ModuleList(nn.Linear(in_channels, width) for _ in types.destinations)
        num_types = len(types.edges)
        self.weight = nn.Parameter(torch.empty(num_types, heads * out_channels, in_channels))
        self.source_attention = nn.Parameter(torch.empty(num_types, heads, out_channels))
        self.destination_attention = nn.Parameter(torch.empty(num_types, heads, in_channels))
        for stacked in (self.weight, self.source_attention, self.destination_attention):
            for parameter in stacked:
                nn.init.xavier_uniform_(parameter)
        self.edge = _edge_maps(types, heads)

    def forward(self, blocks: TypedBlocks, x: Mapping[str, Tensor], counts: Mapping[str, int]) -> dict[str, Tensor]:
        """Maps, by node type, [num_src, in_channels] to [num_dst, heads * out_channels], or [num_dst, out_channels]
        without `concat`. See `RGCNLayer.forward`.
        """
        out = {}
        for own, name in zip(self.own, self.types.destinations, strict=True):
            x_own = x[name][: counts[name]]
            rows = own(x_own)
            for number, edge_type in self.types.followed(blocks, name):
                found = self._attended(number, blocks[edge_type], x[edge_type[0]], x_own)
                rows = rows + (found.flatten(1) if self.concat else found.mean(dim=1))
            out[name] = rows
        return out

    def _attended(self, number: int, block: Block, x: Tensor, x_own: Tensor) -> Tensor:
        """Returns [num_dst, heads, out_channels] from edges of one type."""
        weight = self.weight[number].view(self.heads, self.out_channels, self.in_channels)
        scores, edge = F.linear(x_own, self.destination_attention[number]), self.edge[number]
        edge_scores = None if edge is None else edge(_features(block, edge))
        return attended(block, x, weight, self.source_attention[number], scores, edge_scores)


class HGTLayer(nn.Module):
    """Computes a heterogeneous graph transformer: attention among all of a node's neighbours, whatever their types.

    Hu et al., Heterogeneous Graph Transformer, WWW 2020. Equals PyG's HGTConv. Features of edges are not used.

    Args:
        channels: columns of x and of the result.
        heads: attention heads, which share the columns.
        types: of nodes and edges.
        node_types: all that are sources or destinations.
    """

    def __init__(self, channels: int, heads: int, types: LayerTypes, node_types: Sequence[str]) -> None:
        super().__init__()
        self.channels, self.heads, self.types, self.node_types = channels, heads, types, tuple(node_types)
        width, num_types = channels // heads, len(types.edges)
        self.key = nn.ModuleList(nn.Linear(channels, channels) for _ in node_types)
        self.value = nn.ModuleList(nn.Linear(channels, channels) for _ in node_types)
        self.query = nn.ModuleList(nn.Linear(channels, channels) for _ in types.destinations)
        self.out = nn.ModuleList(nn.Linear(channels, channels) for _ in types.destinations)
        self.skip = nn.Parameter(torch.ones(len(types.destinations)))
        self.attention_weight = nn.Parameter(torch.empty(num_types, heads, width, width))
        self.message_weight = nn.Parameter(torch.empty(num_types, heads, width, width))
        self.prior = nn.Parameter(torch.ones(num_types, heads))
        for stacked in (self.attention_weight, self.message_weight):
            for parameter in stacked.flatten(0, 1):
                nn.init.xavier_uniform_(parameter)

    def forward(self, blocks: TypedBlocks, x: Mapping[str, Tensor], counts: Mapping[str, int]) -> dict[str, Tensor]:
        """Maps, by node type, [num_src, channels] to [num_dst, channels]. See `RGCNLayer.forward`."""
        sources = {edge_type[0] for edge_type in self.types.edges if blocks[edge_type].num_edges}
        keys = {name: self._by_head(layer(x[name]))
                for name, layer in zip(self.node_types, self.key, strict=True) if name in sources}  # fmt: skip
        values = {name: self._by_head(layer(x[name]))
                  for name, layer in zip(self.node_types, self.value, strict=True) if name in sources}  # fmt: skip
        out = {}
        for number, name in enumerate(self.types.destinations):
            x_own = x[name][: counts[name]]
            query = self._by_head(self.query[number](x_own))
            attended = self._attended(name, query, keys, values, blocks)
            share = self.skip[number].sigmoid()
            out[name] = share * self.out[number](F.gelu(attended)) + (1 - share) * x_own
        return out

    def _attended(
        self, name: str, query: Tensor, keys: Mapping[str, Tensor], values: Mapping[str, Tensor], blocks: TypedBlocks
    ) -> Tensor:
        """Returns [num_dst, channels] of the destinations of one type."""
        followed = self.types.followed(blocks, name)
        if not followed:
            return query.new_zeros(len(query), self.channels)
        scores = []
        for number, edge_type in followed:
            # q . (k A) = (q A^T) . k, and there are fewer destinations than sources.
            turned = torch.einsum("dho,hio->dhi", query, self.attention_weight[number])
            products = edge_products(turned, keys[edge_type[0]].to(turned.dtype), blocks[edge_type])
            scores.append(products.to(self.prior.dtype) * self.prior[number] / math.sqrt(query.shape[2]))
        shares = softmax_over_types(scores, [blocks[edge_type] for _, edge_type in followed])
        sums = [
            torch.einsum("dhi,hio->dho", weighted_sums(values[edge_type[0]], share, blocks[edge_type]),
                         self.message_weight[number])
            for (number, edge_type), share in zip(followed, shares, strict=True)
        ]  # fmt: skip
        return torch.stack(sums).sum(0).flatten(1)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), self.heads, self.channels // self.heads)


def _edge_maps(types: LayerTypes, out_channels: int) -> nn.ModuleList:
    """For each edge type that has features, a linear map of them; None for the others."""
    maps = nn.ModuleList()
    for width in types.edge_features:
        maps.append(None if width is None else nn.Linear(width, out_channels, bias=False))  # type: ignore[arg-type]
    return maps


def _features(block: Block, edge: nn.Module) -> Tensor:
    assert block.edge_x is not None
    return block.edge_x.to(next(edge.parameters()).dtype)
