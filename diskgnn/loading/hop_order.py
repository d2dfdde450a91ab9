"""The order in which records of hop features are read: blocks of them at random, mixed again in pools.

It is a pure function of seed and epoch. Train records lie in a random order, so every epoch's is uniformly random;
blocks and pools decide only which records meet in the same minibatch again (Xu et al., In-Database Machine Learning
with CorgiPile, SIGMOD 2022). Where all records are one pool, every order is as likely, whatever came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diskgnn.draws import batch_key, permutation
from diskgnn.specs.shard import Shard

BLOCK_BYTES = 1 << 20
POOL_BLOCKS = 64  # at least, so that few records of a minibatch are of one block
_POOL_MINIBATCHES = 4  # at least, so that which minibatches share blocks differs from epoch to epoch
_ORDERED_BLOCKS = 16  # of a pool whose records stay in the order of the file: nothing is mixed there


@dataclass(frozen=True)
class Pool:
    """Some records of an epoch that are in memory together.

    Attributes:
        first: how many records of the epoch come before it.
        starts: [P] number of the first record of each piece that is read, in the order of reading.
        ends: [P] the number after its last one.
        order: [n] which of those read each record of the epoch is; None: they stay as they are read.
    """

    first: int
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64] | None

    @cached_property
    def num_records(self) -> int:
        """Returns n, the records of all pieces."""
        return int((self.ends - self.starts).sum())

    @property
    def end(self) -> int:
        """Returns how many records of the epoch come before the pool after it."""
        return self.first + self.num_records

    def numbers(self) -> npt.NDArray[np.int64]:
        """Returns [n] the numbers of the records, in the order of the epoch."""
        read = np.concatenate([np.arange(*piece) for piece in zip(self.starts, self.ends, strict=True)])
        return read if self.order is None else read[self.order]

    def as_read(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns `values` [n] of the records in the order of the epoch as they are in that of reading."""
        if self.order is None:
            return values
        read = np.empty_like(values)
        read[self.order] = values
        return read


@dataclass(frozen=True)
class HopOrder:
    """Records of a split, and how each epoch goes through those of a rank.

    An epoch of all ranks is one sequence of blocks, of which each rank has a part, as many records as the others have,
    but for one. All ranks have as many minibatches, of as many seeds, but for one.
    """

    num_records: int
    row_bytes: int
    batch_size: int
    seed: int | None  # of the order; None: that of the file
    shard: Shard

    @property
    def num_seeds(self) -> int:
        """Returns the number of this rank's records in an epoch."""
        begin, end = self._part
        return end - begin

    @property
    def num_batches(self) -> int:
        """Returns the number of this rank's minibatches: as many as all ranks have, or none where it has no record.

        None has one seed, which batch normalisation refuses, unless a rank has one in all: of two, one may have three.
        """
        least, most = self.num_records // self.shard.world_size, -(-self.num_records // self.shard.world_size)
        count = -(-most // self.batch_size)
        return min(count if self.batch_size == 1 else min(count, max(1, least // 2)), self.num_seeds)

    def bounds(self, number: int) -> tuple[int, int]:
        """Returns which records of this rank's epoch minibatch `number` has: from the first to before the second."""
        return self.num_seeds * number // self.num_batches, self.num_seeds * (number + 1) // self.num_batches

    def batch_of(self, record: int) -> int:
        """Returns the number of the minibatch that has this record of this rank's epoch."""
        return ((record + 1) * self.num_batches - 1) // self.num_seeds

    def minibatches(self, pools: Iterable[Pool], first: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yields each minibatch from number `first` on as (number, numbers [B] of its records in the file).

        It comes as soon as all `pools` that have records of it have been yielded.
        """
        number, (begin, end) = first, self.bounds(first)
        numbers = np.empty(0, np.int64)  # of the records that follow, from `begin` on
        for pool in pools:
            numbers = np.concatenate([numbers, pool.numbers()[max(0, begin - pool.first) :]])
            while number < self.num_batches and end <= pool.end:
                yield number, numbers[: end - begin]
                numbers = numbers[end - begin :]
                number += 1
                begin, end = self.bounds(number)

    def pools(self, epoch: int, first: int = 0) -> Iterator[Pool]:
        """Yields the pools of an epoch, from the one on that has record `first` of this rank's part."""
        begin, end = self._part
        if begin == end:
            return
        rows = self.block_rows
        count = -(-self.num_records // rows)
        order = self._permutation(count, "blocks", epoch)
        starts = (np.arange(count) if order is None else order) * rows
        ends = np.minimum(starts + rows, self.num_records)
        after = np.cumsum(ends - starts)  # records of the epoch up to each block's end
        before = after - (ends - starts)
        mine = slice(np.searchsorted(after, begin, "right"), np.searchsorted(before, end, "left"))
        starts = starts[mine] + np.maximum(0, begin - before[mine])
        ends = ends[mine] - np.maximum(0, after[mine] - end)
        num_pools = max(1, len(starts) // self._pool_blocks)
        position = 0
        for number in range(num_pools):
            piece = slice(len(starts) * number // num_pools, len(starts) * (number + 1) // num_pools)
            size = int((ends[piece] - starts[piece]).sum())
            if position + size > first:
                yield Pool(
                    position, starts[piece], ends[piece], self._permutation(size, f"{self.shard.rank}/{number}", epoch)
                )
            position += size

    @property
    def most_pool_rows(self) -> int:
        """Returns how many records a pool has at most."""
        return (2 * self._pool_blocks - 1) * self.block_rows

    @property
    def _pool_blocks(self) -> int:
        if self.seed is None:
            return _ORDERED_BLOCKS
        return max(POOL_BLOCKS, _POOL_MINIBATCHES * self.batch_size // self.block_rows)

    @property
    def _part(self) -> tuple[int, int]:
        """Returns which records of all ranks' epoch are this rank's."""
        rank, world_size = self.shard.rank, self.shard.world_size
        return self.num_records * rank // world_size, self.num_records * (rank + 1) // world_size

    @property
    def block_rows(self) -> int:
        """Returns how many records a block has at most: fewer of few that are mixed, so that each rank has enough."""
        if self.seed is None:
            return max(1, BLOCK_BYTES // self.row_bytes)
        fair = self.num_records // (POOL_BLOCKS * self.shard.world_size)
        return max(1, min(BLOCK_BYTES // self.row_bytes, fair))

    def _permutation(self, count: int, what: str, epoch: int) -> npt.NDArray[np.int64] | None:
        return None if self.seed is None else permutation(count, batch_key(self.seed, f"hops/{what}", epoch))
