"""Finds when each row of a sequence is needed next, and so how many rows a cache of any size has to read.

Two backward passes find the next use of each access: the first pass only finds the first use of each node, which is its
next use one cycle later. Threads share the work by ranges of nodes. How many rows Belady's MIN reads follows from how
many accesses of each minibatch have which next use (native/packing/belady.h). Once these are counted, it takes
milliseconds for any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import belady_misses, count_next_uses, exchange_next_uses, page_memory
from diskgnn.ordered import Threads, in_order
from diskgnn.packing.accesses import INT32, Accesses, changes_named

MAX_BATCHES = 1 << 29  # next uses are int32 and span two cycles


def _distance_dtype(num_batches: int) -> np.dtype[Any]:
    """Returns the dtype for how many minibatches later a row is needed next: at most a full cycle, 0 for static rows.

    That is narrower than the number of a minibatch. Memory that was never touched before is expensive.
    """
    return np.min_scalar_type(num_batches)


class Reuse:
    """The next uses of a sequence, without static rows. The sequence is repeated, or played `once`."""

    def __init__(
        self,
        accesses: Accesses,
        static_nodes: npt.NDArray[np.int64],
        *,
        threads: int = 1,
        once: bool = False,
    ) -> None:
        """Reads the sequence backwards, with an int32 per node in memory."""
        self.accesses, self.static_nodes, self._once = accesses, static_nodes, once
        self._distance_dtype = _distance_dtype(accesses.num_batches)
        self._distances = accesses.column("next")
        self._arcs = accesses.path("arcs")
        self._distances.resize(accesses.offsets[1:], self._distance_dtype)
        with Threads(threads) as pool, changes_named(accesses.path("nodes")):
            self._find_next_uses(pool)
            self.first_uses = np.zeros(accesses.num_batches, np.int32)  # [B] rows that each is the first to need
            self._bounds = self._count(pool, threads)  # [B+1] of minibatches' pairs in the file of arcs

    @property
    def num_rows(self) -> int:
        """Returns the number of different rows that the sequence needs."""
        return int(self.first_uses.sum(dtype=np.int64))

    def most_kept(self, cache_rows: int) -> int:
        """Returns how many of `cache_rows` slots are of use at most.

        In a sequence that is played once, a slot is of use only if it saves at least one read.
        """
        if not self._once:
            return min(cache_rows, self.num_rows)
        num_accesses = int(self.accesses.offsets[-1])
        return min(cache_rows, num_accesses - self.total_misses(cache_rows))

    def misses(self, cache_rows: int, *, from_empty: bool = False) -> npt.NDArray[np.int32]:
        """Returns [B] the rows that each minibatch reads with a cache of `cache_rows` under Belady's MIN with bypass.

        They are the same in every cycle. With `from_empty`, or if the sequence is played once, they are those of a
        cycle before which the cache is empty: the lower bound for any cache that starts empty.
        """
        pairs = np.empty(0, np.int32) if self._bounds[-1] == 0 else np.memmap(self._arcs, np.int32, "r")
        with changes_named(self._arcs):
            return belady_misses(self._bounds, pairs, cache_rows, from_empty or self._once)

    def total_misses(self, cache_rows: int) -> int:
        """Returns the rows that a cycle reads, see `misses`."""
        return int(self.misses(cache_rows).sum(dtype=np.int64))

    def read(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Yields for each minibatch its nodes (ascending), their positions in it, and their next uses.

        Arrays are valid until the next ones. A next use is the number of a minibatch, counted on into the next cycle;
        it is -1 for static rows.
        """
        batches = range(self.accesses.num_batches)
        return zip(self.accesses.nodes(batches), self.accesses.order(batches), self._next_uses(batches), strict=True)

    def read_backwards(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int32]]]:
        """Yields nodes and next uses of each minibatch from the last one on; arrays are valid until the next ones."""
        batches = range(self.accesses.num_batches)[::-1]
        return zip(self.accesses.nodes(batches), self._next_uses(batches), strict=True)

    def _next_uses(self, batches: range) -> Iterator[npt.NDArray[np.int32]]:
        """Yields the next uses of each minibatch in `batches`; each array is valid until the next one."""
        pieces = self.accesses.pieces(batches)
        buffer = page_memory(INT32.itemsize * max((last - first for first, last in pieces), default=0)).view(INT32)
        for batch, distances in zip(batches, self._distances.read(pieces), strict=True):
            next_uses = np.add(distances, batch, out=buffer[: len(distances)], dtype=INT32)
            if len(self.static_nodes):
                next_uses[distances == 0] = -1
            yield next_uses

    def _find_next_uses(self, pool: ThreadPoolExecutor) -> None:
        next_use = np.zeros(self.accesses.num_nodes, np.int32)
        next_use[self.static_nodes] = -1
        # The sequence is a cycle: the first pass leaves each node's first use, counted into the next cycle, and the
        # second one starts from it.
        for to_add in (self.accesses.num_batches, 0):
            for _ in pool.map(partial(self._pass, next_use, to_add), range(self.accesses.num_ranges)):
                pass

    def _pass(self, next_use: npt.NDArray[np.int32], to_add: int, node_range: int) -> None:
        """Goes backwards over all minibatches for one range of nodes. The pass where `to_add` is 0 writes what it
        finds.
        """
        accesses = self.accesses
        backwards = range(accesses.num_batches)[::-1]
        first_node, end_node = (int(start) for start in accesses.range_starts[node_range : node_range + 2])
        of_range = next_use[first_node:end_node]
        pieces = accesses.pieces(backwards, node_range)
        for batch, (first, _), nodes in zip(backwards, pieces, accesses.nodes(backwards, node_range), strict=True):
            found = exchange_next_uses(of_range, nodes, to_add + batch, first_node)
            if not to_add:
                found -= batch
                self._distances.write(first, np.maximum(found, 0, out=found).astype(self._distance_dtype))

    def _count(self, pool: ThreadPoolExecutor, threads: int) -> npt.NDArray[np.int64]:
        """Counts the next uses of each minibatch into the file of arcs. Returns where each minibatch's pairs begin."""
        num_batches, bounds = self.accesses.num_batches, [0]

        def count(batch: int) -> npt.NDArray[np.int32]:
            (next_uses,) = self._next_uses(range(batch, batch + 1))
            return count_next_uses(next_uses, num_batches)

        calls = (partial(count, batch) for batch in range(num_batches))
        with self._arcs.open("wb") as file:
            for pairs in in_order(pool, calls, threads):
                self.accesses.scratch.claim(pairs.nbytes)
                file.write(pairs.data)
                bounds.append(bounds[-1] + len(pairs) // 2)
                uses, rows = pairs[::2], pairs[1::2]
                first = int(np.searchsorted(uses, num_batches))
                self.first_uses[uses[first:] - num_batches] += rows[first:]
        return np.array(bounds, np.int64)
