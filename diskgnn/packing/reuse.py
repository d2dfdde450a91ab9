"""When each row of a sequence is needed next, and so how many rows a cache of any size has to read.

A backward pass finds the next use of each access. Each range of nodes has its own, so threads share the work. How many
rows Belady's MIN reads follows from how many accesses of each minibatch have which next use (native/packing/belady.h):
that is a matter of milliseconds once these are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import belady_misses, count_next_uses, exchange_next_uses
from diskgnn.ordered import in_order
from diskgnn.packing.access_columns import INT32
from diskgnn.packing.accesses import Accesses

SCRATCH_SUFFIXES = (".accesses", ".order", ".next", ".arcs")
MAX_BATCHES = 1 << 29  # next uses are int32 and span two cycles


def most_scratch_bytes(num_accesses: int, node_bytes: int, num_batches: int) -> int:
    """What the scratch files take at most for a minibatch of so many accesses, in a sequence of `num_batches`."""
    return num_accesses * (node_bytes + 2 * INT32.itemsize) + min(num_accesses, num_batches) * 2 * INT32.itemsize


class Reuse:
    """The next uses of a sequence, static rows left out. It is repeated, or played `once`."""

    def __init__(
        self, accesses: Accesses, static_nodes: npt.NDArray[np.int64], *, threads: int = 1, once: bool = False
    ) -> None:
        """Reads the sequence backwards; of an int32 per node, `threads` / 8 are in memory at once."""
        self.accesses, self.static_nodes, self._once = accesses, static_nodes, once
        self._next_uses = accesses.column(".next")
        self._arcs = accesses.scratch.with_suffix(".arcs")
        self._next_uses.resize(accesses.offsets[1:])
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(self._find_next_uses, range(accesses.num_ranges)):
                pass
            self.first_uses = np.zeros(accesses.num_batches, np.int32)  # [B] rows that each is the first to need
            self._bounds = self._count(pool, threads)  # [B+1] of minibatches' pairs in the file of arcs

    @property
    def num_rows(self) -> int:
        """Rows that the sequence needs."""
        return int(self.first_uses.sum(dtype=np.int64))

    def most_kept(self, cache_rows: int) -> int:
        """Of a cache of `cache_rows`, what is of use at most. A row of a sequence played once saves a read, or more."""
        if not self._once:
            return min(cache_rows, self.num_rows)
        num_accesses = int(self.accesses.offsets[-1])
        return min(cache_rows, num_accesses - self.total_misses(cache_rows))

    def misses(self, cache_rows: int, *, from_empty: bool = False) -> npt.NDArray[np.int32]:
        """[B] the rows that each minibatch reads with a cache of `cache_rows` under Belady's MIN with bypass.

        The same in every cycle; with `from_empty`, and if there is one only, in one before which the cache is empty:
        the bound for any cache that is.
        """
        pairs = np.empty(0, np.int32) if self._bounds[-1] == 0 else np.memmap(self._arcs, np.int32, "r")
        return belady_misses(self._bounds, pairs, cache_rows, from_empty or self._once)

    def total_misses(self, cache_rows: int) -> int:
        """The rows that a cycle reads, see `misses`."""
        return int(self.misses(cache_rows).sum(dtype=np.int64))

    def read(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Of each minibatch: nodes ascending, where they were, next uses; valid until the next one.

        A next use is a minibatch, counted on into the next cycle; -1 for static rows.
        """
        batches = range(self.accesses.num_batches)
        next_uses = self._next_uses.read(self.accesses.pieces(batches))
        return zip(self.accesses.nodes(batches), self.accesses.order(batches), next_uses, strict=True)

    def read_backwards(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int32]]]:
        """Nodes and next uses of each minibatch from the last one on; valid until the next one."""
        batches = range(self.accesses.num_batches)[::-1]
        next_uses = self._next_uses.read(self.accesses.pieces(batches))
        return zip(self.accesses.nodes(batches), next_uses, strict=True)

    def remove(self) -> None:
        """Delete the scratch files, those of the accesses, too."""
        self.accesses.remove()
        self._arcs.unlink()

    def _find_next_uses(self, node_range: int) -> None:
        """Write those of one range of nodes."""
        accesses = self.accesses
        first_node, end_node = (int(start) for start in accesses.range_starts[node_range : node_range + 2])
        num_batches = accesses.num_batches
        next_use = np.zeros(end_node - first_node, np.int32)
        static = self.static_nodes[(self.static_nodes >= first_node) & (self.static_nodes < end_node)]
        next_use[static - first_node] = -1
        backwards = range(num_batches)[::-1]
        for batch, nodes in zip(backwards, accesses.nodes(backwards, node_range), strict=True):
            # What stays in the end is each node's first use, one cycle on.
            exchange_next_uses(next_use, nodes, num_batches + batch, first_node)
        pieces = accesses.pieces(backwards, node_range)
        for batch, (first, _), nodes in zip(backwards, pieces, accesses.nodes(backwards, node_range), strict=True):
            self._next_uses.write(first, exchange_next_uses(next_use, nodes, batch, first_node))

    def _count(self, pool: ThreadPoolExecutor, threads: int) -> npt.NDArray[np.int64]:
        """Count the next uses of each minibatch into the file of arcs."""
        num_batches, bounds = self.accesses.num_batches, [0]

        def count(piece: tuple[int, int]) -> npt.NDArray[np.int32]:
            (next_uses,) = self._next_uses.read([piece])
            return count_next_uses(next_uses, num_batches)

        calls = (partial(count, piece) for piece in self.accesses.pieces(range(num_batches)))
        with self._arcs.open("wb") as file:
            for pairs in in_order(pool, calls, threads):
                file.write(pairs.data)
                bounds.append(bounds[-1] + len(pairs) // 2)
                uses, rows = pairs[::2], pairs[1::2]
                first = int(np.searchsorted(uses, num_batches))
                self.first_uses[uses[first:] - num_batches] += rows[first:]
        return np.array(bounds, np.int64)
