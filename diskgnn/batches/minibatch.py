"""Blocks and minibatches, which every loader yields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from diskgnn.batches.describing import describe
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType

if TYPE_CHECKING:
    import dgl
    import torch_geometric

_T = TypeVar("_T")


class EdgesBySource(NamedTuple):
    """Groups a block's edges by source: source j's are at `indptr[j]:indptr[j+1]` of the other two."""

    indptr: Tensor  # [num_src + 1] int32
    destinations: Tensor  # [num_edges] int32, in [0, num_dst)
    edges: Tensor  # [num_edges] int64, where each edge stands in the block's own order


@dataclass(frozen=True)
class Block:
    """Holds one bipartite message-flow layer, its edges grouped by destination (CSC), with local node numbers.

    Destination i's sampled in-neighbours are the sources `indices[indptr[i]:indptr[i+1]]`. Where sources and
    destinations are of one type, destination node i is source node i: the first `num_dst` sources are the destinations
    (DGL's convention).
    """

    indptr: Tensor  # [num_dst + 1] int32
    indices: Tensor  # [num_edges] int32, in [0, num_src)
    num_src: int
    edge_ids: Tensor | None = None  # [num_edges] int64, if they were asked for: see SamplingSpec
    edge_x: Tensor | None = None  # [num_edges, D] edge features, of edge types that have some

    @property
    def num_dst(self) -> int:
        """Returns the number of destination nodes."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Returns the number of sampled edges."""
        return self.indices.numel()

    @cached_property
    def in_degrees(self) -> Tensor:
        """Returns [num_dst] int32: neighbours drawn for each destination."""
        return self.indptr.diff()

    @cached_property
    def out_degrees(self) -> Tensor:
        """Returns [num_src] int32: destinations that drew each source."""
        ones = torch.ones_like(self.indices)
        return ones.new_zeros(self.num_src).index_add_(0, self.indices, ones)

    @cached_property
    def destinations(self) -> Tensor:
        """Returns [num_edges] int32: each edge's destination; with `indices`, the edges as pairs (COO)."""
        numbers = torch.arange(self.num_dst, dtype=self.indices.dtype, device=self.indices.device)
        return numbers.repeat_interleave(self.in_degrees, output_size=self.num_edges)

    @cached_property
    def by_source(self) -> EdgesBySource:
        """Returns the same edges grouped by source: what a backward pass sums over."""
        edges = torch.argsort(self.indices, stable=True)  # stable: a radix sort on a CPU, and deterministic
        indptr = self.indptr.new_zeros(self.num_src + 1)
        torch.cumsum(self.out_degrees, 0, dtype=indptr.dtype, out=indptr[1:])
        return EdgesBySource(indptr, self.destinations[edges], edges)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """Returns the same block with its tensors on `device`."""
        return _moved(self, device, non_blocking)


@dataclass(frozen=True)
class Pairs:
    """Holds the pairs of nodes that a link predictor judges, seed edges and negatives; or pairs that have labels.

    `src` and `dst` are positions among the seeds of their types: rows of what the innermost blocks yield.
    """

    src: Tensor  # [P] int64
    dst: Tensor  # [P] int64
    label: Tensor  # [P] float32: 1 for an edge, 0 for a negative; edges come first. Or the labels given, see `y`

    def y(self, target_kind: str) -> Tensor:
        """Returns the labels as a minibatch has them whose `SourceSchema.target_kind` this is."""
        if target_kind == "class":
            return self.label.long()
        return self.label.unsqueeze(1) if target_kind == "regression" else self.label


@dataclass(frozen=True)
class MiniBatch:
    """Holds one minibatch of a graph of one type of nodes and edges, ready to train on: a view of a `TypedMiniBatch`.

    U is the number of input nodes, B of seeds, D of features.
    """

    x: Tensor  # [U, D] features of the input nodes, in the dataset's dtype
    y: Tensor | None  # of the seeds: [B] int64 classes, [B, C] uint8 labels or [B, C] float32 numbers; of pairs: their
    # labels. -1 or NaN: none. None if no node of their type has labels
    blocks: tuple[Block, ...]  # outermost first: blocks[0] takes x, blocks[-1] yields the seeds' rows
    seeds: Tensor  # [B] int64 node ids; input node i < B is seed i
    epoch: int  # the epoch asked for, counted from 0
    batch_index: int  # position in the epoch, counted from 0
    input_nodes: Tensor | None = None  # [U] int64 node ids, if the source was asked for them
    pairs: Pairs | None = None  # of link prediction
    trees: Tensor | None = None  # [U] int64: the seed that each input node belongs to, where each has nodes of its own

    def __repr__(self) -> str:
        """Sizes, in a few lines."""
        return describe(self)

    @property
    def num_input_nodes(self) -> int:
        """Returns U, the number of input nodes."""
        return self.blocks[0].num_src

    @property
    def num_edges(self) -> int:
        """Returns the number of edges of all layers."""
        return sum(block.num_edges for block in self.blocks)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MiniBatch:
        """Returns the same minibatch with all tensors on `device`."""
        return _moved(self, device, non_blocking)

    def by_type(self, node_type: str = ONE_NODE_TYPE, edge_type: EdgeType = ONE_EDGE_TYPE) -> TypedMiniBatch:
        """Returns the same minibatch as one of a graph with types, whose only ones have these names. Tensors are
        shared.
        """
        counts = [*(block.num_src for block in self.blocks), self.blocks[-1].num_dst]
        return TypedMiniBatch(
            x={node_type: self.x},
            y=self.y,
            blocks=tuple({edge_type: block} for block in self.blocks),
            node_counts=tuple({node_type: count} for count in counts),
            seeds=self.seeds,
            target=node_type if self.pairs is None else edge_type,
            epoch=self.epoch,
            batch_index=self.batch_index,
            input_nodes=None if self.input_nodes is None else {node_type: self.input_nodes},
            pairs=self.pairs,
            trees=None if self.trees is None else {node_type: self.trees},
        )

    def to_dgl(self) -> list[dgl.DGLBlock]:
        """Returns the blocks as DGL's own: see `diskgnn.batches.interop.to_dgl`."""
        from diskgnn.batches import interop

        return interop.to_dgl(self.by_type("_N", ("_N", "_E", "_N")))  # what DGL calls the only types

    def to_pyg(self) -> torch_geometric.data.Data:
        """Returns one subgraph as a `Data`, for models and loops of PyG: see `diskgnn.batches.interop.to_data`."""
        from diskgnn.batches import interop

        return interop.to_data(self.by_type())

    def to_pyg_layers(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """Returns the blocks as (edge_index, size) for PyG's bipartite layers: see
        `diskgnn.batches.interop.to_pyg_layers`.
        """
        from diskgnn.batches import interop

        layers = interop.to_pyg_layers(self.by_type())
        return [(edge_index[ONE_EDGE_TYPE], sizes[ONE_NODE_TYPE]) for edge_index, sizes in layers]


@dataclass(frozen=True)
class TypedMiniBatch:
    """Holds one minibatch of a graph with several types of nodes or edges. Node numbers are local to their type.

    U is the number of input nodes of a type, B of seeds, D of a type's features. In each layer, the destinations of a
    type are the first of its sources.
    """

    x: Mapping[str, Tensor]  # [U, D] features of the input nodes; types without features are left out
    y: Tensor | None  # of the seeds: [B] int64 classes, [B, C] uint8 labels or [B, C] float32 numbers; of pairs: their
    # labels. -1 or NaN: none. None if no node of their type has labels
    blocks: tuple[Mapping[EdgeType, Block], ...]  # outermost first; each layer has every edge type, also without edges
    node_counts: tuple[Mapping[str, int], ...]  # [layers + 1], the sources of each layer; the last one: the seeds
    seeds: Tensor  # [B] int64 node ids; of pairs: those of the source type, then those of the destination type
    target: str | EdgeType  # type of the seeds: of nodes, or of the edges to predict
    epoch: int  # the epoch asked for, counted from 0
    batch_index: int  # position in the epoch, counted from 0
    input_nodes: Mapping[str, Tensor] | None = None  # [U] int64 node ids: of all types if asked for, else of those
    # without features
    pairs: Pairs | None = None  # of link prediction
    trees: Mapping[str, Tensor] | None = None  # [U] int64: the seed that each node belongs to, see `MiniBatch`

    def __repr__(self) -> str:
        """Sizes, in a few lines."""
        return describe(self)

    @property
    def num_input_nodes(self) -> int:
        """Returns the number of input nodes of all types."""
        return sum(self.node_counts[0].values())

    @property
    def num_edges(self) -> int:
        """Returns the number of edges of all types and layers."""
        return sum(block.num_edges for layer in self.blocks for block in layer.values())

    def of_one_type(self) -> MiniBatch:
        """Returns the same minibatch of a graph of one node type and one edge type. Without features, x has no
        columns.
        """
        ((name, num_nodes),) = self.node_counts[0].items()
        return MiniBatch(
            x=self.x[name] if name in self.x else torch.empty((num_nodes, 0), device=self.seeds.device),
            y=self.y,
            blocks=tuple(block for layer in self.blocks for block in layer.values()),
            seeds=self.seeds,
            epoch=self.epoch,
            batch_index=self.batch_index,
            input_nodes=None if self.input_nodes is None else self.input_nodes[name],
            pairs=self.pairs,
            trees=None if self.trees is None else self.trees[name],
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TypedMiniBatch:
        """Returns the same minibatch with all tensors on `device`."""
        return _moved(self, device, non_blocking)

    def to_dgl(self) -> list[dgl.DGLBlock]:
        """Returns the blocks as DGL's own, with all types: see `diskgnn.batches.interop.to_dgl`."""
        from diskgnn.batches import interop

        return interop.to_dgl(self)

    def to_pyg(self) -> torch_geometric.data.HeteroData:
        """Returns one subgraph as a `HeteroData`, for models of PyG: see `diskgnn.batches.interop.to_hetero_data`."""
        from diskgnn.batches import interop

        return interop.to_hetero_data(self)

    def to_pyg_layers(self) -> list[tuple[dict[EdgeType, Tensor], dict[str, tuple[int, int]]]]:
        """Returns the blocks by type, for PyG's bipartite layers: see `diskgnn.batches.interop.to_pyg_layers`."""
        from diskgnn.batches import interop

        return interop.to_pyg_layers(self)


AnyMiniBatch = MiniBatch | TypedMiniBatch


def labels_of(batch: AnyMiniBatch) -> Tensor:
    """Returns y of a minibatch whose seeds have labels, as those have that a task is for."""
    assert batch.y is not None
    return batch.y


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yields all tensors of a minibatch or of a part of one."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, Mapping | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_of(each)


def _moved(value: _T, device: torch.device | str, non_blocking: bool) -> _T:
    """`value`, or what it consists of, with its tensors on `device`."""

    def move(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.to(device, non_blocking=non_blocking)
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{field.name: move(getattr(part, field.name)) for field in fields(part)})
        if isinstance(part, Mapping):
            return {key: move(each) for key, each in part.items()}
        return tuple(map(move, part)) if isinstance(part, tuple) else part

    moved: _T = move(value)
    return moved
