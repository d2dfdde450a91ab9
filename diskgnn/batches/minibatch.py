"""Minibatches, which every loader yields: of a graph with types, and of a graph of one type as a view of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diskgnn.batches import interop
from diskgnn.batches.blocks import Block, Pairs, array_lines, moved
from diskgnn.batches.hop_batch import HopBatch
from diskgnn.batches.tensor_frames import set_frames
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType, TableColumn

if TYPE_CHECKING:
    import dgl
    import torch_geometric


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
    times: Tensor | None = None  # [U] int64 times of the input nodes, if they were kept
    seed_times: Tensor | None = None  # [B] int64 times of the seeds, if they were kept and draws went by times
    columns: Mapping[str, Tensor] | None = None  # of a table whose columns were kept, see `TypedMiniBatch`
    nulls: Mapping[str, Tensor] | None = None
    table: tuple[TableColumn, ...] | None = None

    def __repr__(self) -> str:
        """Says the sizes in a few lines."""
        return _described(self)

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
        return moved(self, device, non_blocking)

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
            times=None if self.times is None else {node_type: self.times},
            seed_times=self.seed_times,
            columns=None if self.columns is None else {node_type: self.columns},
            nulls=None if self.nulls is None else {node_type: self.nulls},
            tables=None if self.table is None else {node_type: self.table},
        )

    def to_dgl(self) -> list[dgl.DGLBlock]:
        """Returns DGL blocks, outermost first, for layers called as `layer(block, (h, h[:block.num_dst_nodes()]))`.

        Ids are local and int32, memory is shared. The blocks carry structure only: features are batch.x.

        Raises:
            ConfigError: dgl cannot be imported.

        Example:
            >>> h = batch.x
            >>> for layer, block in zip(layers, batch.to_dgl()):
            ...     h = layer(block, h)
        """
        return self.by_type("_N", ("_N", "_E", "_N")).to_dgl()  # what DGL calls the only types

    def to_pyg(self) -> torch_geometric.data.Data:
        """Returns one subgraph in a `Data`, for models and loops of PyG: `model(data.x, data.edge_index)[:B]`.

        NeighborLoader draws a node's neighbours once, when it first reaches the node, and uses them in every layer;
        blocks draw them anew in each layer. So this keeps, for each node, the neighbours drawn by the innermost block
        that has it as a destination. Logits are distributed as on NeighborLoader's subgraphs. They equal those on the
        blocks if there is one layer or all neighbours are taken; otherwise only `to_pyg_layers` gives the same logits.

        Attributes of the result, named as in batches of PyG's loaders:

        - x [U, D], and edge_index [2, edges] int64: sources above destinations, grouped by hop from the seeds outwards.
        - batch_size B: the first B nodes are the seeds. input_id [B] int64, their node ids, as PyG has them of a mask.
          The same in seeds.
        - num_sampled_nodes and num_sampled_edges, lists per hop for PyG's `trim_to_layer`. Some nodes, reached only by
          draws that were not kept, may have no edge.
        - n_id [U] int64 if the minibatch has input_nodes: `prepare(keep_input_nodes=True)`.
        - e_id [edges] int64 if its blocks have edge_ids: `prepare(edge_ids=True)`; edge_attr if edges have features.
        - batch [U] where each seed has nodes of its own: its seed.
        - time [U] and seed_time [B] if the minibatch has them: `prepare(keep_times=True)`.
        - tf, a torch_frame.TensorFrame of U rows, of a table that kept its columns; not where torch_frame is missing.
        - of link prediction edge_label_index [2, P], edge_label [P] and, if the minibatch has times of seeds,
          edge_label_time [P], in place of y, input_id and seed_time.

        Unlike PyG's, y [B] is of the seeds only: a packed directory has no labels of other nodes. So `data.y` goes with
        `out[:B]`, and `data.y[:B]` is the same. Masks and other attributes of the data are not in a packed directory
        either: look them up with n_id, or use `diskgnn.pyg`, whose batches have all that PyG's have.

        Raises:
            ConfigError: torch-geometric cannot be imported.
        """
        data, typed = interop.pyg_data().Data(), self.by_type()
        interop.set_subgraph(lambda _: data, typed.blocks, typed.node_counts, typed.x, typed.input_nodes, typed.trees)
        set_frames(lambda _: data, typed.tables, typed.columns, typed.nulls, typed.node_counts[0], self.seeds.device)
        interop.set_times(lambda _: data, typed.times)
        interop.set_target(data, self.seeds, self.y, self.pairs, typed.target_times)
        data.batch_size, data.seeds = self.seeds.numel(), self.seeds
        return data

    def to_pyg_layers(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """Returns one (edge_index, (num_src, num_dst)) per layer, outermost first, for PyG's bipartite layers.

        edge_index is [2, num_edges] int64, sources above destinations. A layer called as `layer((h, h[:size[1]]),
        edge_index)` computes what diskgnn's layer with the same parameters computes on the block; give GATConv
        add_self_loops=False.

        Example:
            >>> h = batch.x
            >>> for layer, (edge_index, size) in zip(layers, batch.to_pyg_layers()):
            ...     h = layer((h, h[: size[1]]), edge_index)
        """
        layers = self.by_type().to_pyg_layers()
        return [(edge_index[ONE_EDGE_TYPE], sizes[ONE_NODE_TYPE]) for edge_index, sizes in layers]


@dataclass(frozen=True)
class TypedMiniBatch:
    """Holds one minibatch of a graph with several types of nodes or edges. Node numbers are local to their type.

    U is the number of input nodes of a type, B of seeds, D of a type's features. In each layer, the destinations of a
    type are the first of its sources.
    """

    x: Mapping[str, Tensor]  # [U, D] features of the input nodes; types without features are left out. Of tables that
    # kept their columns, x, columns and nulls are made of their records where somebody asks for them
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
    times: Mapping[str, Tensor] | None = None  # [U] int64 times of the input nodes of types that have some, as the
    # graph has them, if they were kept; of a node without a time the smallest or largest int64 (`null_time`)
    seed_times: Tensor | None = None  # [B] int64 times of the seeds, in their order, if they were kept and draws went
    # by times
    # Of types whose tables kept their columns, by name: [U] int64 numbers, timestamps in microseconds since 1970,
    # float32 numbers, int32 codes; of embeddings [U, width]. `formats.record_format` says what null is.
    columns: Mapping[str, Mapping[str, Tensor]] | None = None
    nulls: Mapping[str, Mapping[str, Tensor]] | None = None  # [U] bool, of the columns that may be null
    # What these columns are; none of a table without columns, which is a constant.
    tables: Mapping[str, tuple[TableColumn, ...]] | None = None

    def __repr__(self) -> str:
        """Says the sizes in a few lines."""
        return _described(self)

    @property
    def num_input_nodes(self) -> int:
        """Returns the number of input nodes of all types."""
        return sum(self.node_counts[0].values())

    @property
    def num_edges(self) -> int:
        """Returns the number of edges of all types and layers."""
        return sum(block.num_edges for layer in self.blocks for block in layer.values())

    @property
    def target_times(self) -> Tensor | None:
        """Returns the times [B] of the seeds, or [P] of the pairs, whose ends have them; None if they were not kept."""
        if self.seed_times is None or self.pairs is None:
            return self.seed_times
        counts = self.node_counts[-1]
        by_type = dict(zip(counts, torch.split(self.seed_times, [*counts.values()]), strict=True))
        return by_type[self.target[0]][self.pairs.src]

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
            times=None if self.times is None else self.times[name],
            seed_times=self.seed_times,
            columns=None if self.columns is None else self.columns[name],
            nulls=None if self.nulls is None else self.nulls[name],
            table=None if self.tables is None else self.tables[name],
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TypedMiniBatch:
        """Returns the same minibatch with all tensors on `device`."""
        return moved(self, device, non_blocking)

    def to_dgl(self) -> list[dgl.DGLBlock]:
        """Returns DGL blocks with all types of nodes and edges, outermost first, for `HeteroGraphConv` and the like.

        Ids are local and int32, memory is shared. The blocks carry structure only: features are batch.x, and the edges
        of a type in the order of its Block's edge_x.

        Raises:
            ConfigError: dgl cannot be imported.

        Example:
            >>> h = batch.x
            >>> for layer, block in zip(layers, batch.to_dgl()):
            ...     h = layer(block, (h, {name: rows[: block.num_dst_nodes(name)] for name, rows in h.items()}))
        """
        return interop.dgl_blocks(self.blocks, self.node_counts)

    def to_pyg(self) -> torch_geometric.data.HeteroData:
        """Returns one subgraph in a `HeteroData`, for models and loops of PyG.

        See `MiniBatch.to_pyg`, also for what it lacks. Every node type has x [U, D] (or num_nodes, without features),
        n_id [U] if the minibatch has its ids, num_sampled_nodes, batch [U] where each seed has nodes of its own, and
        time [U] if the minibatch has times; every table that kept its columns, or has none, has tf. Every edge type has
        edge_index, num_sampled_edges, and e_id and edge_attr where the blocks have them. The type of the seeds has
        batch_size, y [B], input_id [B], seeds [B] and, if it was kept, seed_time [B]; the type of the edges to predict
        has edge_label_index [2, P] and edge_label [P], and edge_label_time [P] in place of seed_time.

        Raises:
            ConfigError: torch-geometric cannot be imported.

        Example:
            >>> data = batch.to_pyg()
            >>> out = model(data.x_dict, data.edge_index_dict)["paper"][: data["paper"].batch_size]
        """
        data = interop.pyg_data().HeteroData()
        interop.set_subgraph(data.__getitem__, self.blocks, self.node_counts, self.x, self.input_nodes, self.trees)
        set_frames(data.__getitem__, self.tables, self.columns, self.nulls, self.node_counts[0], self.seeds.device)
        interop.set_times(data.__getitem__, self.times)
        interop.set_target(data[self.target], self.seeds, self.y, self.pairs, self.target_times)
        return data

    def to_pyg_layers(self) -> list[tuple[dict[EdgeType, Tensor], dict[str, tuple[int, int]]]]:
        """Returns one (edge_index by edge type, (num_src, num_dst) by node type) per layer, outermost first.

        edge_index is [2, num_edges] int64, sources above destinations, edges in the order of the Block's edge_x. Edge
        types without edges are there, too.

        Example:
            >>> h = batch.x
            >>> for layer, (edge_index, sizes) in zip(layers, batch.to_pyg_layers()):
            ...     pairs = {(s, r, d): (h[s], h[d][: sizes[d][1]]) for s, r, d in edge_index}
            ...     h = layer(pairs, edge_index)  # a HeteroConv
        """
        return interop.pyg_layers(self.blocks, self.node_counts)


AnyMiniBatch = MiniBatch | TypedMiniBatch
AnyBatch = AnyMiniBatch | HopBatch


def labels_of(batch: AnyBatch) -> Tensor:
    """Returns y of a minibatch whose seeds have labels, as those have that a task is for."""
    assert batch.y is not None
    return batch.y


def pairs_of(batch: AnyBatch) -> Pairs:
    """Returns the pairs of a minibatch whose seeds are the ends of some."""
    assert not isinstance(batch, HopBatch)
    assert batch.pairs is not None
    return batch.pairs


def _described(batch: AnyMiniBatch) -> str:
    """Returns the sizes of a minibatch and of all that it holds; attributes that are None are left out.

    Example:
        >>> print(batch)
        MiniBatch(epoch 0, minibatch 3: 512 seeds, 9,876 input nodes, 15,432 edges)
          x: float32 [9876, 128]
          y: int64 [512]
          blocks[0]: 9,876 sources, 3,210 destinations, 12,345 edges
          blocks[1]: 3,210 sources, 512 destinations, 3,087 edges
    """
    head = (
        f"{type(batch).__name__}(epoch {batch.epoch}, minibatch {batch.batch_index}: {len(batch.seeds):,} seeds, "
        f"{batch.num_input_nodes:,} input nodes, {batch.num_edges:,} edges)"
    )
    return "\n  ".join([head, *_lines(batch)])


def _lines(batch: AnyMiniBatch) -> Iterator[str]:
    layers: Sequence[Block | Mapping[EdgeType, Block]] = batch.blocks
    for name in ("x", "y", "input_nodes", "trees", "times", "seed_times", "columns", "nulls"):
        yield from array_lines(name, getattr(batch, name))
    for number, layer in enumerate(layers):
        if isinstance(layer, Mapping):
            yield from (
                f"blocks[{number}][{edge_type}]: {_sizes(each)}" for edge_type, each in layer.items() if each.num_edges
            )
        else:
            yield f"blocks[{number}]: {_sizes(layer)}"
    if batch.pairs is not None:
        yield f"pairs: {len(batch.pairs.src):,}"


def _sizes(block: Block) -> str:
    carried = [name for name in ("edge_ids", "edge_x") if getattr(block, name) is not None]
    with_these = f", with {' and '.join(carried)}" if carried else ""
    return f"{block.num_src:,} sources, {block.num_dst:,} destinations, {block.num_edges:,} edges{with_these}"
