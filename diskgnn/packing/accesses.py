"""The rows that each minibatch of a sequence needs, in scratch files that can be read again, and backwards, cheaply.

Rows are numbered by node. Nodes of a minibatch are sorted, so that passes over node-sized arrays go from front to
back, and so that a range of nodes is one piece of each minibatch: threads take ranges of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import count_nodes, page_memory, sort_nodes
from diskgnn.ordered import in_order
from diskgnn.storage import cache_hints
from diskgnn.storage.file_reading import fill, opened

INT32 = np.dtype(np.int32)
_MIN_RANGES = 8  # of nodes
_RANGE_NODES = 1 << 21  # at most, so that an int32 for each of a range's nodes stays in the processor's cache
_CHUNK_NODES = 1 << 20
_READ_AHEAD = 4  # pieces


def num_ranges(num_nodes: int) -> int:
    """Ranges of nodes that threads can work on by themselves."""
    return max(_MIN_RANGES, -(-num_nodes // _RANGE_NODES))


class Accesses:
    """The nodes of each minibatch of one sequence, ascending, and where they were in the minibatch."""

    def __init__(self, num_nodes: int, scratch: Path) -> None:
        """Of no minibatch yet; `scratch` and a file beside it take them."""
        self.num_nodes = num_nodes
        self.scratch = scratch
        self.read_bytes = 0  # from the scratch files so far
        self.dtype: np.dtype[Any] = INT32  # of the nodes
        self._order = scratch.with_suffix(".order")
        self.range_starts = np.linspace(0, num_nodes, num_ranges(num_nodes) + 1).astype(np.int64)
        self._range_bounds: list[npt.NDArray[np.int64]] = []  # per minibatch [num_ranges + 1], in its nodes
        self.offsets: npt.NDArray[np.int64] = np.zeros(1, np.int64)  # [B+1] in accesses

    @staticmethod
    def sort(minibatches: Iterable[npt.NDArray[Any]], num_nodes: int, scratch: Path, *, threads: int = 1) -> Accesses:
        """Sorts the nodes of each minibatch, int32 or int64 and none twice, into `scratch` and a file beside it.

        Raises:
            IndexError: a node that is not in [0, num_nodes).
        """
        (found,) = Accesses.sort_all(((nodes,) for nodes in minibatches), [(num_nodes, scratch)], threads=threads)
        return found

    @staticmethod
    def sort_all(
        minibatches: Iterable[Sequence[npt.NDArray[Any]]], row_sets: Sequence[tuple[int, Path]], *, threads: int = 1
    ) -> list[Accesses]:
        """Those of each row set, of which `minibatches` have the nodes and `row_sets` `num_nodes` and `scratch`."""
        found = [Accesses(num_nodes, scratch) for num_nodes, scratch in row_sets]
        sorting = (
            partial(sort_nodes, nodes, accesses.num_nodes)
            for minibatch in minibatches
            for nodes, accesses in zip(minibatch, found, strict=True)
        )
        with ExitStack() as opened, ThreadPoolExecutor(threads) as pool:
            files = [[opened.enter_context(path.open("wb")) for path in (each.scratch, each._order)] for each in found]
            for (nodes, order), accesses, (nodes_file, order_file) in zip(
                in_order(pool, sorting, threads), itertools.cycle(found), itertools.cycle(files)
            ):
                accesses.dtype = nodes.dtype
                nodes_file.write(nodes.data)  # not tofile: it drops errno
                order_file.write(order.data)
                accesses._range_bounds.append(np.searchsorted(nodes, accesses.range_starts.astype(nodes.dtype)))
        for accesses in found:
            lengths = [int(bounds[-1]) for bounds in accesses._range_bounds]
            accesses.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return found

    @property
    def num_batches(self) -> int:
        """B, minibatches in the sequence."""
        return len(self.offsets) - 1

    @property
    def num_ranges(self) -> int:
        """Ranges of nodes that threads can work on by themselves."""
        return len(self.range_starts) - 1

    def pieces(self, order: range, node_range: int | None = None) -> list[tuple[int, int]]:
        """Where the accesses of each minibatch in `order` begin and end, or those of a range of nodes."""
        if node_range is None:
            return [(int(self.offsets[batch]), int(self.offsets[batch + 1])) for batch in order]
        return [
            (int(self.offsets[batch] + bounds[node_range]), int(self.offsets[batch] + bounds[node_range + 1]))
            for batch, bounds in ((batch, self._range_bounds[batch]) for batch in order)
        ]

    def nodes(self, order: range) -> Iterator[npt.NDArray[Any]]:
        """The nodes of each minibatch in `order`, ascending; valid until the next one."""
        return self.read(self.scratch, self.dtype, self.pieces(order))

    def order(self, order: range) -> Iterator[npt.NDArray[np.int32]]:
        """Where the nodes of each minibatch in `order` were in the minibatch; valid until the next one."""
        return self.read(self._order, INT32, self.pieces(order))

    def read(self, path: Path, dtype: np.dtype[Any], pieces: Sequence[tuple[int, int]]) -> Iterator[npt.NDArray[Any]]:
        """Pieces of a file that holds one `dtype` per access; each is valid until the next one.

        The next few are asked for in advance: backwards, the kernel does not read ahead by itself.
        """
        size = dtype.itemsize
        most = max((last - first for first, last in pieces), default=0)
        buffer = page_memory(most * size).view(dtype)
        with opened(path) as descriptor:
            for position, (first, last) in enumerate(pieces):
                for begin, end in pieces[position + _READ_AHEAD :][:1] if position else pieces[: _READ_AHEAD + 1]:
                    cache_hints.read_soon(descriptor, begin * size, (end - begin) * size)
                values = buffer[: last - first]
                fill(descriptor, first * size, values.view(np.uint8).data, path)
                yield values
        self.read_bytes += sum(last - first for first, last in pieces) * size

    def counts(self) -> npt.NDArray[np.int32]:
        """[N] how many minibatches need each node."""
        counts = np.zeros(self.num_nodes, np.int32)
        for nodes in self.nodes(range(self.num_batches)):
            count_nodes(counts, nodes)
        return counts

    def remove(self) -> None:
        """Delete the scratch files."""
        self.scratch.unlink()
        self._order.unlink()


def count_histogram(counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """How many nodes were counted 0, 1, 2, ... times."""
    # In chunks: NumPy makes int64 of all that it counts.
    histogram = np.zeros(int(counts.max(initial=0)) + 1, np.int64)
    for first in range(0, len(counts), _CHUNK_NODES):
        found = np.bincount(counts[first : first + _CHUNK_NODES])
        histogram[: len(found)] += found
    return histogram


def hottest_nodes(counts: npt.NDArray[np.int32], num_rows: int) -> npt.NDArray[np.int64]:
    """The `num_rows` most counted nodes (fewer if fewer were accessed), hottest first, ties by node."""
    num_rows = min(num_rows, int(np.count_nonzero(counts)))
    if num_rows == 0:
        return np.empty(0, np.int64)
    histogram = count_histogram(counts)
    at_least = np.cumsum(histogram[::-1])[::-1]  # at_least[c]: nodes counted c times or more
    threshold = int(np.flatnonzero(at_least >= num_rows)[-1])
    wanted_at_threshold = num_rows - int(at_least[threshold] - histogram[threshold])
    nodes = np.empty(num_rows, np.int64)
    filled = 0
    # In chunks: NumPy makes int64 of all that it finds, twice the size of `counts`.
    for first in range(0, len(counts), _CHUNK_NODES):
        chunk = counts[first : first + _CHUNK_NODES]
        chosen = chunk > threshold
        at_threshold = np.flatnonzero(chunk == threshold)[:wanted_at_threshold]
        chosen[at_threshold] = True
        wanted_at_threshold -= len(at_threshold)
        found = first + np.flatnonzero(chosen)
        nodes[filled : filled + len(found)] = found
        filled += len(found)
    return nodes[np.lexsort((nodes, -counts[nodes]))]
