"""A layer taken apart into what reads rows and what reads edges, so that each can pass over files by itself.

A layer of a graph neural network computes messages, row by row; sums them over in-neighbours; and makes rows of the
sums, row by row. Sums do not mix columns (attention: columns of different heads). So they are computed a panel of
columns at a time, with this panel of all sources in memory. `typed_steps` has the layers of typed graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.blocks import Block
from diskgnn.nn.aggregation import attention, neighbour_max, neighbour_mean, neighbour_sum
from diskgnn.nn.layer_types import LayerTypes
from diskgnn.nn.layers import GATLayer, GCNLayer, SAGELayer
from diskgnn.specs.schema import EdgeType

ArrayName = tuple[str, str]  # (node type, name): rows of all nodes of a type
_AGGREGATIONS = {"mean": neighbour_mean, "sum": neighbour_sum, "max": neighbour_max}


@dataclass(frozen=True)
class Panel:
    """Some columns of rows that have `heads` x `width` of them: those of some heads, or some of one head's."""

    heads: range
    columns: range  # of each head
    width: int

    def of_row(self, per_head: int) -> slice:
        """Returns where the panel lies in rows that have `per_head` columns for each head: `width`, or another number,
        of which the panel has all.
        """
        if per_head != self.width:
            return slice(self.heads.start * per_head, self.heads.stop * per_head)
        last = (self.heads.stop - 1) * self.width
        return slice(self.heads.start * self.width + self.columns.start, last + self.columns.stop)

    def num_columns(self, per_head: int) -> int:
        """Returns how many these are."""
        found = self.of_row(per_head)
        return int(found.stop - found.start)


class LayerSteps(Protocol):
    """One layer. Rows have a column, or `heads` columns, for each thing they say: see `stored`."""

    types: LayerTypes
    heads: int
    width: int  # columns of each head of the sums
    divisible: bool  # whether the columns of one head can be summed apart
    own_array: str | None  # the array that `own` is, too; None: another one
    edge_bytes: int  # that `aggregate` takes for each edge beside its index
    uses_degrees: bool  # whether `messages` needs to know out-degrees

    def stored(self, node_type: str) -> Mapping[str, int]:
        """Returns the arrays of a node type that sums read, and how many columns they have for each head."""
        ...

    def sources(self, destination: str) -> tuple[ArrayName, ...]:
        """Returns what the sums of a node type read at random of `stored`: of all sources."""
        ...

    def beside(self, destination: str) -> tuple[str, ...]:
        """Returns what they read of the destinations themselves."""
        ...

    def own_columns(self, node_type: str) -> int:
        """Returns the columns of `own`."""
        ...

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        """Maps [n, in] to [n, heads * columns] each: the rows of the arrays of `stored`.

        Args:
            node_type: whose rows these are.
            x: the layer's input.
            out_degrees: [n] int32, if `uses_degrees`.
        """
        ...

    def own(self, node_type: str, x: Tensor) -> Tensor:
        """Maps [n, in] to [n, own columns]: what `after` needs of the node itself."""
        ...

    def aggregate(
        self,
        destination: str,
        blocks: Mapping[EdgeType, Block],
        sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor],
        panel: Panel,
    ) -> Tensor:
        """Returns [n, heads of the panel, its columns]: sums over the in-neighbours of n destinations.

        Args:
            destination: their node type.
            blocks: all edges into them, with sources numbered as in the graph.
            sources: [N, heads of the panel, columns of each] of all sources.
            beside: [n, heads of the panel, columns of each] of the destinations.
            panel: which heads and columns these are.
        """
        ...

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        """Maps [n, own columns] and [n, heads * width] to [n, out]: rows of the next layer, before the activation."""
        ...


class _OneType:
    """Has what the layers of graphs of one type have in common: one list of arrays, one block."""

    heads, divisible, edge_bytes, uses_degrees = 1, True, 0, False
    own_array: str | None = None

    def __init__(self, node_type: str, edge_type: EdgeType) -> None:
        self.types = LayerTypes((node_type,), (edge_type,), (None,))

    def sources(self, destination: str) -> tuple[ArrayName, ...]:
        return ((destination, "x"),)

    def beside(self, destination: str) -> tuple[str, ...]:
        return ()

    def _edges(self, blocks: Mapping[EdgeType, Block]) -> Block:
        return blocks[self.types.edges[0]]


class _SAGE(_OneType):
    """`SAGELayer`: the mean, sum or maximum of rows, or of rows that were multiplied by the weight before."""

    def __init__(self, layer: SAGELayer, node_type: str, edge_type: EdgeType, *, transform_first: bool) -> None:
        super().__init__(node_type, edge_type)
        self._layer, self._first = layer, transform_first
        self.width = layer.out_channels if transform_first else layer.in_channels
        self.own_array = None if transform_first else "x"

    def stored(self, node_type: str) -> Mapping[str, int]:
        return {"x": self.width}

    def own_columns(self, node_type: str) -> int:
        return self.width

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        return {"x": self._layer.neighbours(x) if self._first else x}

    def own(self, node_type: str, x: Tensor) -> Tensor:
        return self._layer.own(x) if self._first else x

    def aggregate(
        self, destination: str, blocks: Mapping[EdgeType, Block], sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor], panel: Panel,
    ) -> Tensor:  # fmt: skip
        found = _AGGREGATIONS[self._layer.aggregation](sources[destination, "x"][:, 0], self._edges(blocks))
        return found.unsqueeze(1)

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        return own + sums if self._first else self._layer.own(own) + self._layer.neighbours(sums)


class _GCN(_OneType):
    """`GCNLayer`: sums of rows, or of rows that were multiplied by the weight before. A row is divided by the root of
    its own degree before, a sum by that of the destination's: no edge has a weight.
    """

    uses_degrees = True

    def __init__(self, layer: GCNLayer, node_type: str, edge_type: EdgeType, *, transform_first: bool) -> None:
        super().__init__(node_type, edge_type)
        self._layer, self._first = layer, transform_first
        self.width = layer.out_channels if transform_first else layer.in_channels

    def stored(self, node_type: str) -> Mapping[str, int]:
        return {"x": self.width}

    def beside(self, destination: str) -> tuple[str, ...]:
        return ("x",)

    def own_columns(self, node_type: str) -> int:
        return 0

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        assert out_degrees is not None
        rows = F.linear(x, self._layer.weight) if self._first else x
        return {"x": rows * (out_degrees + 1).to(x.dtype).rsqrt().unsqueeze(1)}

    def own(self, node_type: str, x: Tensor) -> Tensor:
        return x[:, :0]

    def aggregate(
        self, destination: str, blocks: Mapping[EdgeType, Block], sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor], panel: Panel,
    ) -> Tensor:  # fmt: skip
        block, x = self._edges(blocks), sources[destination, "x"][:, 0]
        factors = (block.in_degrees + 1).to(x.dtype)
        sums = F.embedding_bag(block.indices, x, block.indptr, mode="sum", include_last_offset=True)
        return ((sums + beside["x"][:, 0]) * factors.rsqrt().unsqueeze(1)).unsqueeze(1)

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        return sums + self._layer.bias if self._first else F.linear(sums, self._layer.weight, self._layer.bias)


class _GAT(_OneType):
    """`GATLayer`, with the weight before the sums, as heads of one row share them no more afterwards."""

    edge_bytes = 96

    def __init__(self, layer: GATLayer, node_type: str, edge_type: EdgeType) -> None:
        super().__init__(node_type, edge_type)
        self._layer, self.heads, self.width = layer, layer.heads, layer.out_channels

    def stored(self, node_type: str) -> Mapping[str, int]:
        return {"x": self.width, "source_score": 1, "destination_score": 1}

    def sources(self, destination: str) -> tuple[ArrayName, ...]:
        return (destination, "x"), (destination, "source_score")

    def beside(self, destination: str) -> tuple[str, ...]:
        return ("destination_score",)

    def own_columns(self, node_type: str) -> int:
        return 0 if self._layer.residual is None else len(self._layer.bias)

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        layer = self._layer
        h = F.linear(x, layer.weight)
        by_head = h.view(-1, self.heads, self.width)
        return {
            "x": h,
            "source_score": (by_head * layer.source_attention).sum(dim=2),
            "destination_score": (by_head * layer.destination_attention).sum(dim=2),
        }

    def own(self, node_type: str, x: Tensor) -> Tensor:
        return x[:, :0] if self._layer.residual is None else self._layer.residual(x)

    def aggregate(
        self, destination: str, blocks: Mapping[EdgeType, Block], sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor], panel: Panel,
    ) -> Tensor:  # fmt: skip
        return attention_by_head(
            self._edges(blocks), sources[destination, "x"], sources[destination, "source_score"],
            beside["destination_score"],
        )  # fmt: skip

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        out = sums if self._layer.concat else sums.view(-1, self.heads, self.width).mean(dim=1)
        out = out + self._layer.bias
        return out if self._layer.residual is None else out + own


def one_type_steps(layer: nn.Module, node_type: str, edge_type: EdgeType) -> list[LayerSteps]:
    """Returns the ways to compute a layer of a graph of one type; none where the layer is another one."""
    if isinstance(layer, GATLayer):
        return [_GAT(layer, node_type, edge_type)]
    if isinstance(layer, SAGELayer):
        ways = (False,) if layer.aggregation == "max" else (False, True)  # a maximum is of rows as they are
        return [_SAGE(layer, node_type, edge_type, transform_first=first) for first in ways]
    if isinstance(layer, GCNLayer):
        return [_GCN(layer, node_type, edge_type, transform_first=first) for first in (False, True)]
    return []


def attention_by_head(
    block: Block, x: Tensor, source_scores: Tensor, destination_scores: Tensor, edge_scores: Tensor | None = None
) -> Tensor:
    """Returns `attention` over all sources of a graph, one head at a time: it takes less memory for each edge, and the
    numbers do not depend on how many heads a panel has.

    Args:
        block: the edges.
        x: [N, H, W].
        source_scores: [N, H, 1].
        destination_scores: [n, H, 1].
        edge_scores: [e, H].

    Returns:
        [n, H, W].
    """
    found = [
        attention(
            x[:, head : head + 1], source_scores[:, head], destination_scores[:, head], block,
            None if edge_scores is None else edge_scores[:, head : head + 1],
        )
        for head in range(x.shape[1])
    ]  # fmt: skip
    return torch.cat(found, dim=1)
