"""Rows that caches read in the same minibatches, counted without reading any: Belady's bound and the sweep.

Every count starts with an empty cache and covers one epoch: what fills a cache beforehand counts as read. Minibatches
are sampled once; each cache then sees the same rows in the same order. Rows of several types have a cache each: what
loaders do, and what "the fewest" assumes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskgnn._native import RowCache
from diskgnn.baselines.superbatches import SUPERBATCH, SuperbatchFiles, place_superbatch
from diskgnn.compare.comparison_record import SweepPoint
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.accesses import Accesses, count_histogram, hottest_nodes
from diskgnn.packing.reuse import Reuse
from diskgnn.packing.row_sets import RowSet, row_sets_of
from diskgnn.packing.tiers import Demand, divide_cpu_rows, divide_static_rows
from diskgnn.sampling.sample import sample
from diskgnn.work.runner import Scratch

_NO_STATIC = np.empty(0, np.int64)


class InputRows:
    """The rows of one type that each minibatch of an epoch needs, on disk: the sequence that every cache is asked."""

    def __init__(
        self, read: Callable[[], Iterator[npt.NDArray[Any]]], num_rows: int, row_bytes: int, scratch: Path
    ) -> None:
        """`read` gives the rows of one minibatch after the other. Files to read backwards go to folder `scratch`."""
        self._read, self.num_rows, self.row_bytes, self._scratch = read, num_rows, row_bytes, scratch
        self.requested_rows = sum(len(rows) for rows in self)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return self._read()

    @cached_property
    def accesses(self) -> Accesses:
        """Returns the same, in files that can be read backwards."""
        return Accesses.sort(self, self.num_rows, Scratch(self._scratch))

    @cached_property
    def reuse(self) -> Reuse:
        """Returns when each row is needed again."""
        return Reuse(self.accesses, _NO_STATIC)


def sample_inputs(graph: Graph, folder: Path, sampling: Mapping[str, Any], memory_bytes: int) -> list[InputRows]:
    """Returns those of each type of epoch 0 of the train split, which is sampled into `folder`."""
    sample(graph, folder / "samples", **sampling, splits=["train"], memory=memory_bytes)
    samples = Samples.open(folder / "samples")

    def reader(row_set: RowSet) -> Callable[[], Iterator[npt.NDArray[Any]]]:
        return lambda: (row_set.needed(minibatch) for minibatch in samples.read("train"))

    return [
        InputRows(reader(each), each.num_rows, each.row_bytes, folder / f"inputs-{number}")
        for number, each in enumerate(row_sets_of(graph, samples.config))
    ]


def belady_rows(inputs: InputRows, cache_rows: int) -> int:
    """Returns the fewest rows that any cache of `cache_rows` reads, from empty (Belady's MIN with bypass)."""
    return int(inputs.reuse.misses(cache_rows, from_empty=True).sum(dtype=np.int64))


def diskgnn_rows(inputs: InputRows, cache_rows: int) -> int:
    """Returns what a prepared epoch holds: its extents' rows, and those that fill the cache when it starts."""
    misses = inputs.reuse.misses(cache_rows)
    initial_rows = np.maximum(inputs.reuse.first_uses - misses, 0)
    return int(misses.sum(dtype=np.int64) + initial_rows.sum(dtype=np.int64))


def static_rows(inputs: InputRows, cache_rows: int) -> int:
    """Counts the rows read if those needed most often are loaded once and stay, and no other does (DiskGNN's cache)."""
    counts = inputs.accesses.counts()
    hottest = hottest_nodes(counts, cache_rows)
    return len(hottest) + inputs.requested_rows - int(counts[hottest].sum())


def policy_rows(policy: str) -> Callable[[InputRows, int], int]:
    """Returns what an online eviction policy misses."""

    def count(inputs: InputRows, cache_rows: int) -> int:
        if cache_rows == 0:
            return inputs.requested_rows
        cache = RowCache(policy, inputs.num_rows, cache_rows)
        return sum(int(np.count_nonzero(cache.lookup(nodes)[0] < 0)) for nodes in inputs)

    return count


def ginex_rows(inputs: InputRows, cache_rows: int, superbatch: int = SUPERBATCH) -> int:
    """Counts Belady's MIN within each superbatch; nothing is carried over to the next (Ginex)."""
    accesses, misses = inputs.accesses, 0
    files = SuperbatchFiles(accesses.path("nodes").parent)
    for first in range(0, accesses.num_batches, superbatch):
        numbers = range(first, min(first + superbatch, accesses.num_batches))
        for _, disk_nodes, _ in place_superbatch(numbers, accesses.nodes, files, inputs.num_rows, cache_rows):
            misses += len(disk_nodes)
    return misses


def _by_saving(inputs: Sequence[InputRows], cache_bytes: int) -> Sequence[int]:
    """Divides the cache as `pack` divides the cpu tier."""
    return divide_cpu_rows([Demand(each.reuse, each.row_bytes) for each in inputs], cache_bytes).rows


def _by_heat(inputs: Sequence[InputRows], cache_bytes: int) -> Sequence[int]:
    """Divides the cache as `pack` divides static rows."""
    counted = [(count_histogram(each.accesses.counts()), each.row_bytes) for each in inputs]
    return divide_static_rows(counted, cache_bytes).rows


def _in_proportion(inputs: Sequence[InputRows], cache_bytes: int) -> Sequence[int]:
    """Divides the cache as caches with a policy divide theirs."""
    all_bytes = sum(each.num_rows * each.row_bytes for each in inputs)
    return [cache_bytes * each.num_rows // all_bytes for each in inputs]


class Counter(NamedTuple):
    """Says how the rows of a loader are counted."""

    rows: Callable[[InputRows, int], int]  # that it reads of one type with a cache of so many rows
    divided: Callable[[Sequence[InputRows], int], Sequence[int]]  # its cache in bytes among several types, in rows


BELADY = Counter(belady_rows, _by_saving)
COUNTERS = {
    "cached reads, LRU": Counter(policy_rows("lru"), _in_proportion),
    "cached reads, S3-FIFO": Counter(policy_rows("s3-fifo"), _in_proportion),
    "cached reads, SIEVE": Counter(policy_rows("sieve"), _in_proportion),
    "Ginex": Counter(ginex_rows, _in_proportion),  # of one type alone
    "static cache, packed": Counter(static_rows, _by_heat),
    "diskgnn": Counter(diskgnn_rows, _by_saving),
}


def rows_by_type(counter: Counter, inputs: Sequence[InputRows], cache_rows: int) -> list[int]:
    """Returns what is read of each type with a cache for `cache_rows` rows of all, of mean width."""
    if len(inputs) == 1:
        return [counter.rows(inputs[0], cache_rows)]
    num_rows = sum(each.num_rows for each in inputs)
    cache_bytes = cache_rows * (sum(each.num_rows * each.row_bytes for each in inputs) // max(num_rows, 1))
    divided = counter.divided(inputs, cache_bytes)
    return [counter.rows(each, rows) for each, rows in zip(inputs, divided, strict=True)]


def sweep(inputs: Sequence[InputRows], caches: Sequence[tuple[str, int]]) -> list[SweepPoint]:
    """Returns the rows that each of `COUNTERS` reads with each of `caches` (as given, and in rows)."""
    points = []
    requested_rows = sum(each.requested_rows for each in inputs)
    for cache, cache_rows in caches:
        fewest = sum(rows_by_type(BELADY, inputs, cache_rows))
        points += [
            SweepPoint(name, cache, cache_rows, requested_rows, sum(rows_by_type(counter, inputs, cache_rows)), fewest)
            for name, counter in COUNTERS.items()
            if len(inputs) == 1 or name != "Ginex"
        ]
    return points
