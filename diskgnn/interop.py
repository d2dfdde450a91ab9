"""Minibatches in the shapes that DGL and PyTorch Geometric models take."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diskgnn.errors import ConfigError

if TYPE_CHECKING:
    import dgl
    import torch_geometric

    from diskgnn.minibatch import Block, MiniBatch


def to_dgl(batch: MiniBatch) -> list[dgl.DGLBlock]:
    """DGL blocks, outermost first, for layers called as `layer(block, (h, h[:block.num_dst_nodes()]))`.

    Ids are local and int32, memory is shared. The blocks carry structure only: features are batch.x.

    Raises:
        ConfigError: dgl cannot be imported.

    Example:
        >>> h = batch.x
        >>> for layer, block in zip(layers, batch.to_dgl()):
        ...     h = layer(block, h)
    """
    try:
        import dgl
    except ImportError as error:
        raise ConfigError(f"to_dgl() needs dgl, found {error}; install it: pip install dgl==1.1.3 packaging") from error
    blocks = []
    for block in batch.blocks:
        # Edge ids are optional in DGL's CSC, but without them the backward pass of edge_softmax fails (dgl 1.1.3).
        edge_ids = torch.arange(block.num_edges, dtype=block.indices.dtype, device=block.indices.device)
        csc = ("csc", (block.indptr, block.indices, edge_ids))
        blocks.append(dgl.create_block(csc, num_src_nodes=block.num_src, num_dst_nodes=block.num_dst))
    return blocks


def to_pyg_layers(batch: MiniBatch) -> list[tuple[Tensor, tuple[int, int]]]:
    """One (edge_index, (num_src, num_dst)) per layer, outermost first: the blocks, for PyG's bipartite layers.

    edge_index is [2, num_edges] int64, sources above destinations. A layer called as `layer((h, h[:size[1]]),
    edge_index)` computes what diskgnn's layer with the same parameters computes on the block; give GATConv
    add_self_loops=False.

    Example:
        >>> h = batch.x
        >>> for layer, (edge_index, size) in zip(layers, batch.to_pyg_layers()):
        ...     h = layer((h, h[: size[1]]), edge_index)
    """
    return [(_edge_index(block), (block.num_src, block.num_dst)) for block in batch.blocks]


def to_pyg(batch: MiniBatch) -> torch_geometric.data.Data:
    """One subgraph in a `Data`, as PyG's NeighborLoader yields it, for `model(data.x, data.edge_index)[:B]`.

    NeighborLoader draws a node's neighbours once, when it first reaches the node, and uses them in every layer;
    blocks draw them anew in each layer. So this keeps, for each node, the neighbours drawn by the innermost block
    that has it as a destination. Logits are distributed as on NeighborLoader's subgraphs. They equal those on the
    blocks if there is one layer or all neighbours are taken; otherwise only `to_pyg_layers` gives the same logits.

    Attributes of the result: x [U, D]; edge_index [2, edges] int64, sources above destinations, grouped by hop
    from the seeds outwards; y [B] and seeds [B], of the seeds only, which are the first B nodes; batch_size B;
    n_id [U] if the minibatch has input_nodes; num_sampled_nodes and num_sampled_edges, lists per hop for PyG's
    `trim_to_layer`. Some nodes, reached only by draws that were not kept, may have no edge.

    Raises:
        ConfigError: torch-geometric cannot be imported.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ConfigError(f"to_pyg() needs torch-geometric, found {error}; pip install torch-geometric") from error
    inwards = batch.blocks[::-1]
    # Nodes are numbered by the hop that reached them: each hop ends where the next block outwards has its sources.
    ends = [0, batch.seeds.numel(), *(block.num_src for block in inwards)]
    hops = [_edge_index(block, first_dst=start) for block, start in zip(inwards, ends, strict=False)]
    data = Data(x=batch.x, edge_index=torch.cat(hops, dim=1), y=batch.y)
    data.batch_size = batch.seeds.numel()
    data.seeds = batch.seeds
    data.num_sampled_nodes = [after - before for before, after in pairwise(ends)]
    data.num_sampled_edges = [hop.shape[1] for hop in hops]
    if batch.input_nodes is not None:
        data.n_id = batch.input_nodes
    return data


def _edge_index(block: Block, first_dst: int = 0) -> Tensor:
    """[2, edges] int64 of the edges into destinations from `first_dst` on."""
    first_edge = int(block.indptr[first_dst])
    return torch.stack([block.indices[first_edge:].long(), block.destinations[first_edge:].long()])
