"""`HopBatch`: a minibatch of seeds with the hop features that `propagate` computed, in place of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diskgnn.batches.blocks import array_lines, moved


@dataclass(frozen=True)
class HopBatch:
    """Holds one minibatch of hop features, ready to train on. B is the number of seeds, H of segments.

    A segment is the seeds' own features, or what an operator makes of them in some hops: `HopsLoader.hops` names them.
    """

    x: Tensor | Mapping[str, Tensor]  # [B, H, D] float32 where segments have one width; else by segment, [B, width]
    y: Tensor | None  # [B] int64 classes, [B, C] uint8 labels or [B, C] float32 numbers. -1 or NaN: none; None: nobody
    # has labels
    seeds: Tensor  # [B] int64 node ids
    epoch: int  # the epoch asked for, counted from 0
    batch_index: int  # position in the epoch, counted from 0

    def __repr__(self) -> str:
        """Says the sizes in a few lines."""
        head = f"HopBatch(epoch {self.epoch}, minibatch {self.batch_index}: {len(self.seeds):,} seeds)"
        return "\n  ".join([head, *array_lines("x", self.x), *array_lines("y", self.y)])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> HopBatch:
        """Returns the same minibatch with all tensors on `device`."""
        return moved(self, device, non_blocking)
