"""Layers of blocks in the shapes that DGL and PyTorch Geometric models take: what methods of minibatches return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diskgnn.batches.blocks import Block, Pairs
from diskgnn.errors import ConfigError
from diskgnn.specs.schema import EdgeType

if TYPE_CHECKING:
    import dgl

Layers = Sequence[Mapping[EdgeType, Block]]  # outermost first
NodeCounts = Sequence[Mapping[str, int]]  # [layers + 1] sources of each layer by node type; the last one: the seeds


def dgl_blocks(layers: Layers, counts: NodeCounts) -> list[dgl.DGLBlock]:
    """Returns a DGL block for each layer.

    Raises:
        ConfigError: dgl cannot be imported.
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
        for layer, (before, after) in zip(layers, pairwise(counts), strict=True)
    ]


def _csc(block: Block) -> tuple[str, tuple[Tensor, Tensor, Tensor]]:
    # Edge ids are optional in DGL's CSC, but without them the backward pass of edge_softmax fails (dgl 1.1.3).
    edge_ids = torch.arange(block.num_edges, dtype=block.indices.dtype, device=block.indices.device)
    return "csc", (block.indptr, block.indices, edge_ids)


def pyg_layers(layers: Layers, counts: NodeCounts) -> list[tuple[dict[EdgeType, Tensor], dict[str, tuple[int, int]]]]:
    """Returns (edge_index [2, num_edges] int64 by edge type, (num_src, num_dst) by node type) for each layer."""
    return [
        (
            {edge_type: _edge_index(block) for edge_type, block in layer.items()},
            {name: (number, after[name]) for name, number in before.items()},
        )
        for layer, (before, after) in zip(layers, pairwise(counts), strict=True)
    ]


def pyg_data() -> Any:
    """Imports `torch_geometric.data`.

    Raises:
        ConfigError: torch-geometric cannot be imported.
    """
    try:
        from torch_geometric import data
    except ImportError as error:
        raise ConfigError(f"to_pyg() needs torch-geometric, found {error}; pip install torch-geometric") from error
    return data


def set_subgraph(
    store_of: Callable[[str | EdgeType], Any],
    layers: Layers,
    counts: NodeCounts,
    x: Mapping[str, Tensor],
    input_nodes: Mapping[str, Tensor] | None,
    trees: Mapping[str, Tensor] | None,
) -> None:
    """Gives PyG's store of each type what a minibatch has of it: of each node, the edges that it drew first.

    Args:
        store_of: returns the store of a node type or an edge type.
        layers, counts, x, input_nodes, trees: as `TypedMiniBatch` has them.
    """
    for name in counts[0]:
        # Nodes are numbered by the hop that reached them: each hop ends where the next block outwards has its sources.
        store, ends = store_of(name), [0, *(layer[name] for layer in counts[::-1])]
        if name in x:
            store.x = x[name]
        else:
            store.num_nodes = ends[-1]
        if input_nodes is not None and name in input_nodes:
            store.n_id = input_nodes[name]
        if trees is not None:
            store.batch = trees[name]
        store.num_sampled_nodes = [after - before for before, after in pairwise(ends)]
    for edge_type in layers[0]:
        starts = [0, *(layer[edge_type[2]] for layer in counts[::-1])]
        blocks = [layer[edge_type] for layer in layers[::-1]]
        store_of(edge_type).num_sampled_edges = _set_edges(store_of(edge_type), blocks, starts)


def set_times(store_of: Callable[[str], Any], times: Mapping[str, Tensor] | None) -> None:
    """Gives PyG's store of each node type the times of its nodes."""
    for name, each in (times or {}).items():
        store_of(name).time = each


def set_target(store: Any, seeds: Tensor, y: Tensor | None, pairs: Pairs | None, times: Tensor | None) -> None:
    """Gives PyG's store of the seeds' type the seeds with their labels and `times`, or the pairs with theirs."""
    if pairs is None:
        if times is not None:
            store.seed_time = times
        store.batch_size, store.y = seeds.numel(), y
        store.input_id = store.seeds = seeds
    else:
        store.edge_label_index, store.edge_label = torch.stack([pairs.src, pairs.dst]), y
        if times is not None:
            store.edge_label_time = times


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
    """Returns [2, edges] int64 of the edges from `first_edge` on."""
    return torch.stack([block.indices[first_edge:].long(), block.destinations[first_edge:].long()])
