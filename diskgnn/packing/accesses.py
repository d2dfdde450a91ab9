"""The rows that each minibatch of a sequence needs, kept so that they can be read several times, and backwards,
cheaply.

Rows are numbered by node. The nodes of a minibatch are sorted, so that passes over node-sized arrays go from front to
back, and so that a range of nodes is one piece of each minibatch. Threads work on ranges of their own.

What is known of each access is a column. The numbers of the first minibatches stay in memory as far as the budget
reaches, the others are in a scratch file. Number i has the same offset in the file in either case, so the file begins
with a hole where memory is used.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import count_nodes, page_memory, sort_nodes
from diskgnn.errors import ArtifactError
from diskgnn.files import cache_hints
from diskgnn.files.checked_files import write_at
from diskgnn.files.file_reading import fill, opened
from diskgnn.ordered import Threads, in_order
from diskgnn.work.runner import Scratch

_MIN_RANGES = 8  # of nodes
_RANGE_NODES = 1 << 21  # at most, so that an int32 for each of a range's nodes stays in the processor's cache
_CHUNK_NODES = 1 << 20
INT32 = np.dtype(np.int32)
_READ_AHEAD = 4  # pieces


def num_ranges(num_nodes: int) -> int:
    """Returns into how many ranges the nodes are divided, each the work of one thread at a time."""
    return max(_MIN_RANGES, -(-num_nodes // _RANGE_NODES))


class Accesses:
    """The nodes of each minibatch of one sequence, in ascending order, and their positions in the minibatch."""

    def __init__(self, name: str, num_nodes: int, scratch: Scratch, memory: ScratchMemory) -> None:
        """Starts without minibatches. What does not fit `memory` goes to files of `scratch` that begin with `name`."""
        self.num_nodes = num_nodes
        self.scratch = scratch
        self._name, self._memory = name, memory
        self.range_starts = np.linspace(0, num_nodes, num_ranges(num_nodes) + 1).astype(np.int64)
        self._range_bounds: list[npt.NDArray[np.int64]] = []  # per minibatch [num_ranges + 1], in its nodes
        self.offsets: npt.NDArray[np.int64] = np.zeros(1, np.int64)  # [B+1] in accesses
        self._columns: list[AccessColumn] = []
        self._nodes, self._order = self.column("nodes"), self.column("order")

    @staticmethod
    def sort(
        minibatches: Iterable[npt.NDArray[Any]],
        num_nodes: int,
        scratch: Scratch,
        *,
        threads: int = 1,
        memory_bytes: int = 0,
    ) -> Accesses:
        """Sorts the nodes of each minibatch, which are int32 or int64 and distinct.

        What does not fit `memory_bytes` goes to `scratch`.

        Raises:
            IndexError: a node that is not in [0, num_nodes).
        """
        (found,) = Accesses.sort_all(
            ((nodes,) for nodes in minibatches), {"rows": num_nodes}, scratch, threads=threads,
            memory_bytes=memory_bytes,
        )  # fmt: skip
        return found

    @staticmethod
    def sort_all(
        minibatches: Iterable[Sequence[npt.NDArray[Any]]],
        row_sets: Mapping[str, int],
        scratch: Scratch,
        *,
        threads: int = 1,
        memory_bytes: int = 0,
    ) -> list[Accesses]:
        """Sorts the nodes of each minibatch for several row sets. Returns the accesses of each.

        Args:
            minibatches: for each minibatch, the nodes that it needs of each row set.
            row_sets: `num_nodes` of each row set, by its name.
            scratch: gets what does not fit `memory_bytes`, of columns that are added later, too.
            threads: threads that sort.
            memory_bytes: what all of them may keep in memory, with the columns that are added to them later.

        Raises:
            IndexError: a node that is not in [0, num_nodes).
        """
        memory = ScratchMemory(memory_bytes)
        found = [Accesses(name, num_nodes, scratch, memory) for name, num_nodes in row_sets.items()]
        sorting = (
            partial(accesses._sort, nodes, accesses._reserve(nodes))
            for minibatch in minibatches
            for nodes, accesses in zip(minibatch, found, strict=True)
        )
        with Threads(threads) as pool:
            for bounds, accesses in zip(in_order(pool, sorting, threads), itertools.cycle(found)):
                accesses._range_bounds.append(bounds)
        for accesses in found:
            accesses.offsets = accesses._ends()
        return found

    @property
    def num_batches(self) -> int:
        """Returns B, the number of minibatches in the sequence."""
        return len(self.offsets) - 1

    @property
    def num_ranges(self) -> int:
        """Returns the number of ranges of nodes, each the work of one thread at a time."""
        return len(self.range_starts) - 1

    def pieces(self, order: range, node_range: int | None = None) -> list[tuple[int, int]]:
        """Returns (first, last) of the accesses of each minibatch in `order`: all of them, or those of one range of
        nodes.
        """
        if node_range is None:
            return [(int(self.offsets[batch]), int(self.offsets[batch + 1])) for batch in order]
        return [
            (int(self.offsets[batch] + bounds[node_range]), int(self.offsets[batch] + bounds[node_range + 1]))
            for batch, bounds in ((batch, self._range_bounds[batch]) for batch in order)
        ]

    def nodes(self, order: range, node_range: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """Yields the nodes of each minibatch in `order`, ascending; each array is valid until the next one."""
        return self._nodes.read(self.pieces(order, node_range))

    def order(self, order: range) -> Iterator[npt.NDArray[np.int32]]:
        """Yields the positions that nodes had in each minibatch in `order`; an array is valid until the next one."""
        return self._order.read(self.pieces(order))

    def path(self, name: str) -> Path:
        """Returns where a scratch file of these accesses lies."""
        return self.scratch.path(f"{self._name}.{name}")

    def column(self, name: str) -> AccessColumn:
        """Adds an empty column, for one more number of each access."""
        column = AccessColumn(self.path(name), self._memory, self.scratch)
        self._columns.append(column)
        return column

    @property
    def read_bytes(self) -> int:
        """Returns the bytes read from scratch files so far."""
        return sum(column.read_bytes for column in self._columns)

    def counts(self) -> npt.NDArray[np.int32]:
        """Returns [N] how many minibatches need each node."""
        counts = np.zeros(self.num_nodes, np.int32)
        for nodes in self.nodes(range(self.num_batches)):
            count_nodes(counts, nodes)
        return counts

    def _reserve(self, nodes: npt.NDArray[Any]) -> tuple[int, int]:
        return self._nodes.reserve(len(nodes), nodes.dtype), self._order.reserve(len(nodes), INT32)

    def _sort(self, nodes: npt.NDArray[Any], places: tuple[int, int]) -> npt.NDArray[np.int64]:
        """Writes one minibatch into its places. Returns where each range of nodes begins in it."""
        found = sort_nodes(nodes, self.num_nodes)
        for column, first, numbers in zip((self._nodes, self._order), places, found, strict=True):
            column.write(first, numbers)
        return self._bounds_of(found[0])

    def _bounds_of(self, nodes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.searchsorted(nodes, self.range_starts.astype(nodes.dtype))

    def _ends(self) -> npt.NDArray[np.int64]:
        lengths = [int(bounds[-1]) for bounds in self._range_bounds]
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def count_histogram(counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Returns an array whose element c says how many nodes were counted c times."""
    # In chunks: NumPy makes int64 of all that it counts.
    histogram = np.zeros(int(counts.max(initial=0)) + 1, np.int64)
    for first in range(0, len(counts), _CHUNK_NODES):
        chunk = counts[first : first + _CHUNK_NODES]
        # Equal numbers are counted one after the other, in one place: zeros take most of the time where most are zeros.
        if np.count_nonzero(chunk) < len(chunk) // 8:
            chunk = chunk[chunk != 0]
        found = np.bincount(chunk)
        histogram[: len(found)] += found
    histogram[0] += len(counts) - histogram.sum()
    return histogram


def hottest_nodes(counts: npt.NDArray[np.int32], num_rows: int) -> npt.NDArray[np.int64]:
    """Returns the `num_rows` most counted nodes, hottest first, ties by node; fewer if fewer were accessed."""
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
        if chunk.max() < threshold:
            continue
        chosen = chunk > threshold
        at_threshold = np.flatnonzero(chunk == threshold)[:wanted_at_threshold]
        chosen[at_threshold] = True
        wanted_at_threshold -= len(at_threshold)
        found = first + np.flatnonzero(chosen)
        nodes[filled : filled + len(found)] = found
        filled += len(found)
    return nodes[np.lexsort((nodes, -counts[nodes]))]


@contextmanager
def changes_named(path: Path) -> Iterator[None]:
    """Raises an ArtifactError if native code finds bad numbers in scratch files, `path` or beside it, which this run
    wrote itself.
    """
    try:
        yield
    except (IndexError, RuntimeError) as error:  # out of range, or at odds with each other
        raise ArtifactError(
            f"scratch files of {path} are not what was written to them ({error}): the disk does not keep what is "
            "written; the same command makes again what was damaged"
        ) from error


class ScratchMemory:
    """The bytes that several columns may keep in memory together."""

    def __init__(self, most_bytes: int = 0) -> None:
        self.left_bytes = max(0, most_bytes)

    def take(self, num_bytes: int) -> bool:
        """Takes `num_bytes` if that many are left. Returns True if they were taken."""
        fits = num_bytes <= self.left_bytes
        self.left_bytes -= num_bytes * fits
        return fits


class AccessColumn:
    """One number for each access, minibatch after minibatch.

    All numbers of a minibatch are in memory, or all are in the file. Memory is used first: copying numbers to and from
    the file would take longer than much of what is done with them.
    """

    def __init__(self, path: Path, memory: ScratchMemory, scratch: Scratch) -> None:
        """Starts an empty column in the new file `path` of `scratch`. `memory` is shared with other columns."""
        self.path, self._memory, self._scratch = path, memory, scratch
        self.dtype: np.dtype[Any] = INT32  # or that of the first numbers
        self.read_bytes = 0  # from the file so far
        # Room for all that might be kept: pages that nobody writes to take nothing.
        self._kept: npt.NDArray[Any] = page_memory(memory.left_bytes // 8 * 8, sparse=True).view(INT32)
        self._num_kept, self._end = 0, 0
        path.touch()

    def reserve(self, count: int, dtype: np.dtype[Any]) -> int:
        """Reserves `count` places for the next minibatch, which `write` fills. Returns the first of them.

        Raises:
            DiskFullError: the file may not take what memory does not.
        """
        if self._end == 0:
            self._set_dtype(dtype)
        first, self._end = self._end, self._end + count
        # Only a front of the column is kept, so one number says where each minibatch is.
        fits = self._num_kept == first and self._end <= len(self._kept)
        if fits and self._memory.take(count * self.dtype.itemsize):
            self._num_kept = self._end
        else:
            self._scratch.claim(count * self.dtype.itemsize)
        return first

    def resize(self, ends: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> None:
        """Reserves the places of all minibatches at once, which `write` fills in any order.

        The numbers of minibatch b end at `ends[b]` ([B]). They have any value until they are written.

        Raises:
            DiskFullError: the file may not take what memory does not.
        """
        self._set_dtype(dtype)
        for end in ends[ends <= len(self._kept)].tolist():
            if not self._memory.take((end - self._num_kept) * self.dtype.itemsize):
                break
            self._num_kept = end
        self._end = int(ends[-1]) if len(ends) else 0
        self._scratch.claim((self._end - self._num_kept) * self.dtype.itemsize)
        os.truncate(self.path, self._end * self.dtype.itemsize)

    def write(self, first: int, numbers: npt.NDArray[Any]) -> None:
        """Sets the numbers from place `first` on, all of one minibatch.

        Threads may write to different places at the same time. Whoever first writes to fresh memory waits until the
        kernel has cleared it.
        """
        if first < self._num_kept:
            self._kept[first : first + len(numbers)] = numbers
        elif len(numbers):
            self._write_file(first, numbers)

    def read(self, pieces: Sequence[tuple[int, int]]) -> Iterator[npt.NDArray[Any]]:
        """Yields the numbers of each piece (first, last), where a piece lies in one minibatch.

        An array is valid until the next one, and must not be changed. The next few pieces are requested in advance, as
        the kernel does not read ahead by itself when a file is read backwards.
        """
        size, kept = self.dtype.itemsize, self._num_kept
        in_file = [piece for piece in pieces if piece[0] >= kept]
        buffer = page_memory(size * max((last - first for first, last in in_file), default=0)).view(self.dtype)
        with opened(self.path) as descriptor:
            position = 0  # in `in_file`
            for first, last in pieces:
                if first < kept:
                    yield self._kept[first:last]
                    continue
                ahead = position + _READ_AHEAD
                for begin, end in in_file[ahead if position else 0 : ahead + 1]:
                    cache_hints.read_soon(descriptor, begin * size, (end - begin) * size)
                position += 1
                values = buffer[: last - first]
                fill(descriptor, first * size, values.view(np.uint8).data, self.path)
                yield values
        self.read_bytes += sum(last - first for first, last in in_file) * size

    def _set_dtype(self, dtype: np.dtype[Any]) -> None:
        self.dtype, self._kept = dtype, self._kept.view(dtype)

    def _write_file(self, first: int, numbers: npt.NDArray[Any]) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_at(descriptor, first * self.dtype.itemsize, numbers.view(np.uint8).data)
        finally:
            os.close(descriptor)
