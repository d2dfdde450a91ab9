"""Minibatches in the shapes that DGL and PyTorch Geometric models take; `MiniBatch` asks for that of its one type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diskgnn.errors import ConfigError

if TYPE_CHECKING:
    import dgl
    import torch_geometric

    from diskgnn.batches.minibatch import Block, TypedMiniBatch
    from diskgnn.schema import EdgeType


def to_dgl(batch: TypedMiniBatch) -> list[dgl.DGLBlock]:
    """Returns DGL blocks with all types of nodes and edges, outermost first, for `HeteroGraphConv` and the like.

    Ids are local and int32, memory is shared. The blocks carry structure only: features are batch.x, and the edges of
    a type in the order of its Block's edge_x. Those of a `MiniBatch` have one type, for layers called as
    `layer(block, (h, h[:block.num_dst_nodes()]))`.

    Raises:
        ConfigError: dgl cannot be imported.

    Example:
        >>> h = batch.x
        >>> for layer, block in zip(layers, batch.to_dgl()):
        ...     h = layer(block, (h, {name: rows[: block.num_dst_nodes(name)] for name, rows in h.items()}))
    """
    try:
        import dgl
    except ImportError as error:
        raise ConfigError(f"to_dgl() needs dgl, found {error}; install it: pip install dgl==1.1.3 packaging") from error
    return [
        dgl.create_block(
            {edge_type: _csc(block) for edge_type, block in layer.items()},
            num_src_nodes=dict(before),
            num_dst_nodes=dict(after),
        )
        for layer, (before, after) in zip(batch.blocks, pairwise(batch.node_counts), strict=True)
    ]


def _csc(block: Block) -> tuple[str, tuple[Tensor, Tensor, Tensor]]:
    # Edge ids are optional in DGL's CSC, but without them the backward pass of edge_softmax fails (dgl 1.1.3).
    edge_ids = torch.arange(block.num_edges, dtype=block.indices.dtype, device=block.indices.device)
    return "csc", (block.indptr, block.indices, edge_ids)


def to_pyg_layers(
    batch: TypedMiniBatch,
) -> list[tuple[dict[EdgeType, Tensor], dict[str, tuple[int, int]]]]:
    """Returns one (edge_index by edge type, (num_src, num_dst) by node type) per layer, outermost first.

    edge_index is [2, num_edges] int64, sources above destinations, edges in the order of the Block's edge_x. Edge types
    without edges are there, too. A `MiniBatch` has one (edge_index, (num_src, num_dst)) per layer: a layer called as
    `layer((h, h[:size[1]]), edge_index)` computes what diskgnn's layer with the same parameters computes on the block;
    give GATConv add_self_loops=False.

    Example:
        >>> h = batch.x
        >>> for layer, (edge_index, sizes) in zip(layers, batch.to_pyg_layers()):
        ...     pairs = {(s, r, d): (h[s], h[d][: sizes[d][1]]) for s, r, d in edge_index}
        ...     h = layer(pairs, edge_index)  # a HeteroConv
    """
    return [
        (
            {edge_type: _edge_index(block) for edge_type, block in layer.items()},
            {name: (number, after[name]) for name, number in before.items()},
        )
        for layer, (before, after) in zip(batch.blocks, pairwise(batch.node_counts), strict=True)
    ]


def to_data(batch: TypedMiniBatch) -> torch_geometric.data.Data:
    """Returns one subgraph of one type in a `Data`, for models and loops of PyG: `model(data.x, data.edge_index)[:B]`.

    NeighborLoader draws a node's neighbours once, when it first reaches the node, and uses them in every layer;
    blocks draw them anew in each layer. So this keeps, for each node, the neighbours drawn by the innermost block
    that has it as a destination. Logits are distributed as on NeighborLoader's subgraphs. They equal those on the
    blocks if there is one layer or all neighbours are taken; otherwise only `to_pyg_layers` gives the same logits.

    Attributes of the result, named as in batches of PyG's loaders:

    - x [U, D], and edge_index [2, edges] int64: sources above destinations, grouped by hop from the seeds outwards.
    - batch_size B: the first B nodes are the seeds. input_id [B] int64, their node ids, as PyG has them of a mask. The
      same in seeds.
    - num_sampled_nodes and num_sampled_edges, lists per hop for PyG's `trim_to_layer`. Some nodes, reached only by
      draws that were not kept, may have no edge.
    - n_id [U] int64 if the minibatch has input_nodes: `prepare(keep_input_nodes=True)`.
    - e_id [edges] int64 if its blocks have edge_ids: `prepare(edge_ids=True)`; edge_attr if edges have features.
    - batch [U] where each seed has nodes of its own: its seed.
    - of link prediction edge_label_index [2, P] and edge_label [P], in place of y and input_id.

    Unlike PyG's, y [B] is of the seeds only: a packed directory has no labels of other nodes. So `data.y` goes with
    `out[:B]`, and `data.y[:B]` is the same. Masks and other attributes of the data are not in a packed directory
    either: look them up with n_id, or use `diskgnn.pyg`, whose batches have all that PyG's have.

    Raises:
        ConfigError: torch-geometric cannot be imported.
    """
    data = _pyg_data().Data()
    _set_subgraph(batch, lambda _: data)
    data.batch_size, data.seeds = batch.seeds.numel(), batch.seeds
    return data


def to_hetero_data(batch: TypedMiniBatch) -> torch_geometric.data.HeteroData:
    """Returns one subgraph in a `HeteroData`, for models and loops of PyG: see `to_data`, also for what it lacks.

    Every node type has x [U, D] (or num_nodes, without features), n_id [U] if the minibatch has its ids,
    num_sampled_nodes, and batch [U] where each seed has nodes of its own. Every edge type has edge_index,
    num_sampled_edges, and e_id and edge_attr where the blocks have them. The type of the seeds has batch_size, y [B],
    input_id [B] and seeds [B]; the type of the edges to predict has edge_label_index [2, P] and edge_label [P].

    Raises:
        ConfigError: torch-geometric cannot be imported.

    Example:
        >>> data = batch.to_pyg()
        >>> out = model(data.x_dict, data.edge_index_dict)["paper"][: data["paper"].batch_size]
    """
    data = _pyg_data().HeteroData()
    _set_subgraph(batch, data.__getitem__)
    return data


def _set_subgraph(batch: TypedMiniBatch, store_of: Callable[[str | EdgeType], Any]) -> None:
    """Gives the store of each type what a minibatch has of it."""
    for name in batch.node_counts[0]:
        # Nodes are numbered by the hop that reached them: each hop ends where the next block outwards has its sources.
        store, ends = store_of(name), [0, *(layer[name] for layer in batch.node_counts[::-1])]
        if name in batch.x:
            store.x = batch.x[name]
        else:
            store.num_nodes = ends[-1]
        if batch.input_nodes is not None and name in batch.input_nodes:
            store.n_id = batch.input_nodes[name]
        if batch.trees is not None:
            store.batch = batch.trees[name]
        store.num_sampled_nodes = [after - before for before, after in pairwise(ends)]
    for edge_type in batch.blocks[0]:
        starts = [0, *(layer[edge_type[2]] for layer in batch.node_counts[::-1])]
        blocks = [layer[edge_type] for layer in batch.blocks[::-1]]
        store_of(edge_type).num_sampled_edges = _set_edges(store_of(edge_type), blocks, starts)
    store = store_of(batch.target)
    if batch.pairs is None:
        store.batch_size, store.y = batch.seeds.numel(), batch.y
        store.input_id = store.seeds = batch.seeds
    else:
        store.edge_label_index = torch.stack([batch.pairs.src, batch.pairs.dst])
        store.edge_label = batch.y


def _pyg_data() -> Any:
    try:
        from torch_geometric import data
    except ImportError as error:
        raise ConfigError(f"to_pyg() needs torch-geometric, found {error}; pip install torch-geometric") from error
    return data


def _set_edges(store: Any, inwards: Sequence[Block], starts: Sequence[int]) -> list[int]:
    """Give `store` the edges of blocks, innermost first, into destinations from a start on each; how many each has."""
    first = [int(block.indptr[start]) for block, start in zip(inwards, starts, strict=False)]
    hops = [_edge_index(block, edge) for block, edge in zip(inwards, first, strict=True)]
    store.edge_index = torch.cat(hops, dim=1)
    for name, values in (("e_id", [block.edge_ids for block in inwards]),
                         ("edge_attr", [block.edge_x for block in inwards])):  # fmt: skip
        if kept := [value[edge:] for value, edge in zip(values, first, strict=True) if value is not None]:
            store[name] = torch.cat(kept)
    return [hop.shape[1] for hop in hops]


def _edge_index(block: Block, first_edge: int = 0) -> Tensor:
    """[2, edges] int64 of the edges from `first_edge` on."""
    return torch.stack([block.indices[first_edge:].long(), block.destinations[first_edge:].long()])
