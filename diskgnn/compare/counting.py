"""Rows that caches read in the same minibatches, counted without reading any: Belady's bound and the sweep.

Every count starts with an empty cache and covers one epoch: what fills a cache beforehand counts as read. Minibatches
are sampled once; each cache then sees the same input nodes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import RowCache
from diskgnn.baselines.superbatches import SUPERBATCH, SuperbatchFiles, place_superbatch
from diskgnn.compare.results import SweepPoint
from diskgnn.graph.graph import Graph
from diskgnn.packing.accesses import Accesses, hottest_nodes
from diskgnn.packing.reuse import Reuse
from diskgnn.sampling.sample import sample
from diskgnn.storage.samples import Samples

_NO_STATIC = np.empty(0, np.int64)


class InputNodes:
    """The input nodes of one epoch's minibatches, on disk: the sequence that every cache is asked."""

    def __init__(self, graph: Graph, folder: Path, sampling: Mapping[str, Any], memory_bytes: int) -> None:
        """Samples epoch 0 of the train split into `folder`."""
        self.num_nodes, self._folder = graph.num_nodes, folder
        sample(graph, folder / "samples", **sampling, splits=["train"], memory=memory_bytes)
        self._samples = Samples.open(folder / "samples")
        self.requested_rows = sum(len(nodes) for nodes in self)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for minibatch in self._samples.read("train"):
            yield minibatch.only_nodes

    @cached_property
    def accesses(self) -> Accesses:
        """The same, in files that can be read backwards."""
        return Accesses(self, self.num_nodes, self._folder / "inputs.accesses")

    @cached_property
    def reuse(self) -> Reuse:
        """When each is needed again."""
        return Reuse(self.accesses, _NO_STATIC)


def belady_rows(inputs: InputNodes, cache_rows: int) -> int:
    """The fewest rows that any cache of `cache_rows` reads, from empty (Belady's MIN with bypass)."""
    return int(inputs.reuse.misses(cache_rows, from_empty=True).sum(dtype=np.int64))


def diskgnn_rows(inputs: InputNodes, cache_rows: int) -> int:
    """What a prepared epoch holds: its extents' rows, and those that fill the cache when it starts."""
    misses = inputs.reuse.misses(cache_rows)
    initial_rows = np.maximum(inputs.reuse.first_uses - misses, 0)
    return int(misses.sum(dtype=np.int64) + initial_rows.sum(dtype=np.int64))


def static_rows(inputs: InputNodes, cache_rows: int) -> int:
    """With the rows that are needed most often in memory, loaded once, and nothing else (DiskGNN's cache)."""
    counts = inputs.accesses.counts()
    hottest = hottest_nodes(counts, cache_rows)
    return len(hottest) + inputs.requested_rows - int(counts[hottest].sum())


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
    accesses, misses = inputs.accesses, 0
    files = SuperbatchFiles(accesses.scratch.parent)
    for first in range(0, accesses.num_batches, superbatch):
        numbers = range(first, min(first + superbatch, accesses.num_batches))
        for _, disk_nodes, _ in place_superbatch(numbers, accesses.nodes, files, inputs.num_nodes, cache_rows):
            misses += len(disk_nodes)
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
