"""What every loader yields: blocks and minibatches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    import dgl
    import torch_geometric


class EdgesBySource(NamedTuple):
    """A block's edges grouped by source: source j's are at `indptr[j]:indptr[j+1]` of the other two."""

    indptr: Tensor  # [num_src + 1] int32
    destinations: Tensor  # [num_edges] int32, in [0, num_dst)
    edges: Tensor  # [num_edges] int64, where each edge stands in the block's own order


@dataclass(frozen=True)
class Block:
    """One bipartite message-flow layer, its edges grouped by destination (CSC), with local node numbers.

    Destination node i is source node i (the first `num_dst` sources are the destinations, DGL's convention); its
    sampled in-neighbours are the sources `indices[indptr[i]:indptr[i+1]]`.
    """

    indptr: Tensor  # [num_dst + 1] int32
    indices: Tensor  # [num_edges] int32, in [0, num_src)
    num_src: int

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of sampled edges."""
        return self.indices.numel()

    @cached_property
    def in_degrees(self) -> Tensor:
        """[num_dst] int32: neighbours drawn for each destination."""
        return self.indptr.diff()

    @cached_property
    def out_degrees(self) -> Tensor:
        """[num_src] int32: destinations that drew each source."""
        ones = torch.ones_like(self.indices)
        return ones.new_zeros(self.num_src).index_add_(0, self.indices, ones)

    @cached_property
    def destinations(self) -> Tensor:
        """[num_edges] int32: each edge's destination; with `indices`, the edges as pairs (COO)."""
        numbers = torch.arange(self.num_dst, dtype=self.indices.dtype, device=self.indices.device)
        return numbers.repeat_interleave(self.in_degrees, output_size=self.num_edges)

    @cached_property
    def by_source(self) -> EdgesBySource:
        """The same edges grouped by source: what a backward pass sums over."""
        edges = torch.argsort(self.indices, stable=True)  # stable: a radix sort on a CPU, and deterministic
        indptr = self.indptr.new_zeros(self.num_src + 1)
        torch.cumsum(self.out_degrees, 0, dtype=indptr.dtype, out=indptr[1:])
        return EdgesBySource(indptr, self.destinations[edges], edges)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The same block with its tensors on `device`."""
        return replace(
            self,
            indptr=self.indptr.to(device, non_blocking=non_blocking),
            indices=self.indices.to(device, non_blocking=non_blocking),
        )


@dataclass(frozen=True)
class MiniBatch:
    """One minibatch, ready to train on. U is the number of input nodes, B of seeds, D of features."""

    x: Tensor  # [U, D] features of the input nodes, in the dataset's dtype
    y: Tensor  # [B] int64 labels of the seeds
    blocks: tuple[Block, ...]  # outermost first: blocks[0] takes x, blocks[-1] yields the seeds' rows
    seeds: Tensor  # [B] int64 node ids; input node i < B is seed i
    epoch: int  # the epoch asked for, counted from 0
    batch_index: int  # position in the epoch, counted from 0
    input_nodes: Tensor | None = None  # [U] int64 node ids, if the source was asked for them

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MiniBatch:
        """The same minibatch with all tensors on `device`."""
        return replace(
            self,
            x=self.x.to(device, non_blocking=non_blocking),
            y=self.y.to(device, non_blocking=non_blocking),
            blocks=tuple(block.to(device, non_blocking) for block in self.blocks),
            seeds=self.seeds.to(device, non_blocking=non_blocking),
            input_nodes=None if self.input_nodes is None else self.input_nodes.to(device, non_blocking=non_blocking),
        )

    def to_dgl(self) -> list[dgl.DGLBlock]:
        """The blocks as DGL's own: see `diskgnn.interop.to_dgl`."""
        from diskgnn import interop

        return interop.to_dgl(self)

    def to_pyg(self) -> torch_geometric.data.Data:
        """One subgraph, as PyG's NeighborLoader yields it: see `diskgnn.interop.to_pyg`."""
        from diskgnn import interop

        return interop.to_pyg(self)

    def to_pyg_layers(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """The blocks as (edge_index, size) for PyG's bipartite layers: see `diskgnn.interop.to_pyg_layers`."""
        from diskgnn import interop

        return interop.to_pyg_layers(self)
