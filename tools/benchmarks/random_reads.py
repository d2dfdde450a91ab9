"""The peer of `prepare` + one epoch: rows read one by one with O_DIRECT, and an LRU cache of the same bytes.

What GraphBolt's and Ginex's loaders do, as fast as this disk lets it: every 4 KiB page that a minibatch lacks is read
once (neighbouring pages in one request), 32 requests are in flight, rows are cut out of the pages by NumPy, and
sampling costs nothing: it is taken from the prepared samples.
"""

from __future__ import annotations

import mmap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psutil

from diskgnn._native import read_ranges
from diskgnn.storage.row_format import FeatureFile

PAGE_BYTES = 4096
READERS = 2  # each has 16 requests in flight


@dataclass
class PeerEpoch:
    """One epoch; what was measured on some of its minibatches is scaled to all of them."""

    minibatches: int = 0
    requested_rows: int = 0
    missed_rows: int = 0
    read_rows: int = 0  # of the minibatches whose rows were really read
    read_pages: int = 0
    requests: int = 0
    cache_seconds: float = 0.0  # deciding, for all minibatches
    read_seconds: float = 0.0  # reading and assembling, for those really read

    @property
    def seconds(self) -> float:
        """Of the whole epoch."""
        return self.cache_seconds + self.read_seconds * self.missed_rows / max(self.read_rows, 1)


class LruCache:
    """Which rows a least-recently-used cache of `capacity` rows holds, decided minibatch by minibatch."""

    def __init__(self, num_nodes: int, capacity: int) -> None:
        self.slot_of = np.full(num_nodes, -1, np.int32)
        self.node_of = np.full(capacity, -1, np.int64)
        self.last_use = np.full(capacity, -1, np.int32)  # minibatch; -1: free
        self.now = 0

    def access(self, nodes: npt.NDArray[np.int64]) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray, npt.NDArray]:
        """(slots [U], -1 where missed; missed [M] positions; admitted [A] positions; their slots [A])."""
        slots = self.slot_of[nodes]
        missed = np.flatnonzero(slots < 0)
        self.last_use[slots[slots >= 0]] = self.now
        count = min(len(missed), len(self.node_of))
        victims = np.argpartition(self.last_use, count - 1)[:count] if count else np.empty(0, np.int64)
        victims = victims[self.last_use[victims] < self.now]  # rows of this minibatch stay
        admitted = missed[: len(victims)]
        old = self.node_of[victims]
        self.slot_of[old[old >= 0]] = -1
        self.node_of[victims] = nodes[admitted]
        self.slot_of[nodes[admitted]] = victims
        self.last_use[victims] = self.now
        self.now += 1
        return slots, missed, admitted, victims


class PageReader:
    """Reads rows of a file by whole pages into an address space as large as the file.

    Where memory allows, all of it is backed beforehand, for what a page fault costs is not the disk's fault; what was
    read is never used again. Elsewhere `forget` gives the pages back after every minibatch.
    """

    def __init__(self, features: FeatureFile) -> None:
        self.features = features
        end = features.data_offset_bytes + features.num_rows * features.row_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        self._memory = mmap.mmap(-1, -(-end // PAGE_BYTES) * PAGE_BYTES, flags=flags)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._keeps_pages = len(self._bytes) < psutil.virtual_memory().available // 2
        if self._keeps_pages:
            self._memory.madvise(mmap.MADV_HUGEPAGE)
            self._bytes[::PAGE_BYTES] = 0
        first, count = features.data_offset_bytes, features.num_rows * features.row_bytes
        self._rows = self._bytes[first : first + count].reshape(features.num_rows, features.row_bytes)
        self._pool = ThreadPoolExecutor(READERS)

    def read(self, nodes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], int, int]:
        """(rows [M, row bytes], pages read, requests made)."""
        begins = self.features.data_offset_bytes + nodes * self.features.row_bytes
        first, last = begins // PAGE_BYTES, (begins + self.features.row_bytes - 1) // PAGE_BYTES
        pages = np.unique(np.concatenate([first + i for i in range(int((last - first).max()) + 1)]))
        breaks = np.flatnonzero(np.diff(pages) > 1) + 1
        offsets = pages[np.concatenate([[0], breaks])] * PAGE_BYTES
        lengths = np.diff(np.concatenate([[0], breaks, [len(pages)]])) * PAGE_BYTES
        lengths[-1] = min(lengths[-1], self.features.path.stat().st_size - offsets[-1])
        path = str(self.features.path)
        parts = np.array_split(np.arange(len(offsets)), READERS)
        for future in [
            self._pool.submit(read_ranges, path, "auto", offsets[part], lengths[part], 0, self._bytes)
            for part in parts
            if len(part)
        ]:
            future.result()
        return self._rows[nodes], len(pages), len(offsets)

    def forget(self) -> None:
        """Give the pages read so far back to the system, unless there is room for all."""
        if not self._keeps_pages:
            self._memory.madvise(mmap.MADV_DONTNEED)


def measure_epoch(
    features: FeatureFile, minibatches: list[npt.NDArray[np.int64]], cache_rows: int, max_seconds: float
) -> PeerEpoch:
    """One epoch over `minibatches` (input nodes), from an empty cache.

    The cache decides for every minibatch; rows are read for evenly spaced ones, at most about `max_seconds` of them.
    """
    epoch = PeerEpoch(len(minibatches))
    cache, reader = LruCache(features.num_rows, cache_rows), PageReader(features)
    rows_of_slot = np.zeros((cache_rows, features.row_bytes), np.uint8)
    stride = 1
    for number, nodes in enumerate(minibatches):
        started = time.perf_counter()
        slots, missed, admitted, admitted_slots = cache.access(nodes)
        epoch.cache_seconds += time.perf_counter() - started
        epoch.requested_rows += len(nodes)
        epoch.missed_rows += len(missed)
        if number % stride or not len(missed):
            continue
        started = time.perf_counter()
        x = np.empty((len(nodes), features.row_bytes), np.uint8)
        read, pages, requests = reader.read(nodes[missed])
        x[missed] = read
        hits = np.flatnonzero(slots >= 0)
        x[hits] = rows_of_slot[slots[hits]]
        rows_of_slot[admitted_slots] = x[admitted]
        epoch.read_seconds += time.perf_counter() - started
        reader.forget()
        epoch.read_rows += len(missed)
        epoch.read_pages += pages
        epoch.requests += requests
        if number == 0:  # an empty cache misses all: the later ones say how many can be afforded
            stride = max(1, int(np.ceil(epoch.read_seconds * len(minibatches) / max_seconds)))
    return epoch
