"""Rows that caches read in the same minibatches, counted without reading any: Belady's bound and the sweep.

Every count starts with an empty cache and covers one epoch: what fills a cache beforehand counts as read. Minibatches
are sampled once; each cache then sees the same input nodes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import RowCache
from diskgnn.baselines.superbatches import SUPERBATCH, SuperbatchFiles, place_superbatch
from diskgnn.compare.results import SweepPoint
from diskgnn.graph.graph import Graph
from diskgnn.packing.placement import Accesses, Schedule, hottest_nodes
from diskgnn.sampling.sample import sample
from diskgnn.storage.samples import Samples

_NO_STATIC = np.empty(0, np.int64)


class InputNodes:
    """The input nodes of one epoch's minibatches, on disk: the sequence that every cache is asked."""

    def __init__(self, graph: Graph, folder: Path, sampling: Mapping[str, Any], memory_bytes: int) -> None:
        """Samples epoch 0 of the train split into `folder`."""
        self.num_nodes, self._folder, self._rounds = graph.num_nodes, folder, 0
        sample(graph, folder / "samples", **sampling, splits=["train"], memory=memory_bytes)
        self._samples = Samples.open(folder / "samples")
        self.requested_rows = sum(len(nodes) for nodes in self)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for minibatch in self._samples.read("train"):
            yield minibatch.only_nodes

    def accesses(self) -> Accesses:
        """The same, as `Schedule` takes it: for one use."""
        self._rounds += 1
        scratch = self._folder / f"{self._rounds}.accesses"
        return Accesses(self._samples, "train", self.num_nodes, scratch, lambda _: None)


def belady_rows(inputs: InputNodes, cache_rows: int) -> int:
    """The fewest rows that any cache of `cache_rows` reads, from empty (Belady's MIN with bypass)."""
    accesses = inputs.accesses()
    schedule = Schedule(accesses, _NO_STATIC, cache_rows, from_empty=True)
    return sum(len(placement.disk_nodes) for placement in schedule)


def diskgnn_rows(inputs: InputNodes, cache_rows: int) -> int:
    """What a prepared epoch holds: its extents' rows, and those that fill the cache when it starts."""
    schedule = Schedule(inputs.accesses(), _NO_STATIC, cache_rows)
    return len(schedule.initial_cpu_nodes) + sum(len(placement.disk_nodes) for placement in schedule)


def static_rows(inputs: InputNodes, cache_rows: int) -> int:
    """With the rows that are needed most often in memory, loaded once, and nothing else (DiskGNN's cache)."""
    accesses = inputs.accesses()
    accesses.scratch.unlink()
    hottest = hottest_nodes(accesses.counts, cache_rows)
    return len(hottest) + inputs.requested_rows - int(accesses.counts[hottest].sum())


def policy_rows(policy: str) -> Callable[[InputNodes, int], int]:
    """What an online eviction policy misses."""

    def count(inputs: InputNodes, cache_rows: int) -> int:
        if cache_rows == 0:
            return inputs.requested_rows
        cache = RowCache(policy, inputs.num_nodes, cache_rows)
        return sum(int(np.count_nonzero(cache.lookup(nodes)[0] < 0)) for nodes in inputs)

    return count


def ginex_rows(inputs: InputNodes, cache_rows: int, superbatch: int = SUPERBATCH) -> int:
    """Belady's MIN within each superbatch; nothing is carried over to the next (Ginex)."""
    accesses, misses = inputs.accesses(), 0
    files = SuperbatchFiles(accesses.scratch.parent)
    for first in range(0, accesses.num_batches, superbatch):
        numbers = range(first, min(first + superbatch, accesses.num_batches))
        for _, disk_nodes, _ in place_superbatch(numbers, accesses.nodes, files, inputs.num_nodes, cache_rows):
            misses += len(disk_nodes)
    accesses.scratch.unlink()
    return misses


COUNTERS: dict[str, Callable[[InputNodes, int], int]] = {
    "cached reads, LRU": policy_rows("lru"),
    "cached reads, S3-FIFO": policy_rows("s3-fifo"),
    "cached reads, SIEVE": policy_rows("sieve"),
    "Ginex": ginex_rows,
    "static cache, packed": static_rows,
    "diskgnn": diskgnn_rows,
}


def sweep(inputs: InputNodes, caches: Sequence[tuple[str, int]]) -> list[SweepPoint]:
    """Rows that each of `COUNTERS` reads with each of `caches` (as given, and in rows)."""
    points = []
    for cache, cache_rows in caches:
        fewest = belady_rows(inputs, cache_rows)
        points += [
            SweepPoint(name, cache, cache_rows, inputs.requested_rows, count(inputs, cache_rows), fewest)
            for name, count in COUNTERS.items()
        ]
    return points
