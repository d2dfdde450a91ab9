"""What every loader yields: blocks, minibatches, and the protocol that the trainer asks of a source of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


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

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The same block with its tensors on `device`."""
        return replace(
            self,
            indptr=self.indptr.to(device, non_blocking=non_blocking),
            indices=self.indices.to(device, non_blocking=non_blocking),
        )


@dataclass(frozen=True)
class MiniBatch:
    """One minibatch, ready to train on. U is the number of input nodes, B of seeds, D the feature width."""

    x: Tensor  # [U, D] features of the input nodes, in the dataset's dtype
    y: Tensor  # [B] int64 labels of the seeds
    blocks: tuple[Block, ...]  # outermost first: blocks[0] takes x, blocks[-1] yields the seeds' rows
    seeds: Tensor  # [B] int64 node ids; input node i < B is seed i
    epoch: int  # the epoch asked for, counted from 0
    index: int  # position in the epoch, counted from 0
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


@runtime_checkable
class BatchSource(Protocol):
    """Anything that the trainer can train or evaluate on: `Loader`, and every baseline."""

    @property
    def num_batches(self) -> int:
        """Minibatches in one epoch."""
        ...

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes)."""
        ...

    @property
    def feature_width(self) -> int:
        """D, columns of x."""
        ...

    @property
    def num_layers(self) -> int:
        """Blocks in each minibatch."""
        ...

    def epoch(self, epoch: int) -> Iterator[MiniBatch]:
        """The minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch."""
        ...

    def stats(self) -> Mapping[str, int | float]:
        """Counters since the source was made: at least requested_rows, read_bytes, wait_seconds, and per tier
        device_rows, pinned_rows, cpu_rows, disk_rows (rows served by each)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where iteration stands (epoch, minibatches consumed), as torchdata's StatefulDataLoader has it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`: the next call of `epoch(state['epoch'])` skips what had been consumed."""
        ...

    def close(self) -> None:
        """Join threads, free buffers. Idempotent."""
        ...
