"""The peer of `prepare` + one epoch: rows read one by one with O_DIRECT, and an LRU cache of the same bytes.

What GraphBolt's and Ginex's loaders do, as fast as this disk lets it: every 4 KiB page that a minibatch lacks is read
once, rows whose pages touch in one request, 256 requests in flight. Sampling costs nothing: it is taken from the
prepared samples.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import limits
from benchmarks.settings import Settings
from diskgnn._native import DIRECT_ALIGNMENT, RowCache, RowReader
from diskgnn.files.row_reading import row_buffer
from diskgnn.formats.row_format import FeatureFile
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.specs.caches import cache_rows


@dataclass
class PeerEpoch:
    """One epoch; what was measured on some of its minibatches is scaled to all of them."""

    requested_rows: int = 0
    missed_rows: int = 0
    read_rows: int = 0  # of the minibatches whose rows were really read
    read_bytes: int = 0
    requests: int = 0
    cache_seconds: float = 0.0  # deciding, for all minibatches
    read_seconds: float = 0.0  # reading and assembling, for those really read

    @property
    def seconds(self) -> float:
        """Of the whole epoch."""
        return self.cache_seconds + self.read_seconds * self.missed_rows / max(self.read_rows, 1)


def measure_epoch(
    features: FeatureFile, minibatches: list[npt.NDArray[Any]], capacity: int, max_seconds: float
) -> PeerEpoch:
    """One epoch over `minibatches` (input nodes), from an empty cache of `capacity` rows.

    The cache decides for every minibatch; rows are read for evenly spaced ones, at most about `max_seconds` of them.
    """
    epoch, row_bytes = PeerEpoch(), features.row_bytes
    cache = RowCache("lru", features.num_rows, capacity)
    reader = RowReader(str(features.path), features.data_offset_bytes, row_bytes, features.num_rows)
    cached, x = (row_buffer(rows, row_bytes) for rows in (capacity, max(map(len, minibatches))))
    cached[:], x[:] = 0, 0  # what a page fault costs is not the disk's fault
    stride = 1
    for number, nodes in enumerate(minibatches):
        started = time.perf_counter()
        slots, admissions = cache.lookup(nodes)
        epoch.cache_seconds += time.perf_counter() - started
        missed = int(np.count_nonzero(slots < 0))
        epoch.requested_rows += len(nodes)
        epoch.missed_rows += missed
        if number % stride or not missed:
            continue
        started = time.perf_counter()
        requests, read_bytes = reader.gather(
            nodes, slots, admissions, cached[: capacity * row_bytes], x[: len(nodes) * row_bytes]
        )
        epoch.read_seconds += time.perf_counter() - started
        epoch.read_rows += missed
        epoch.read_bytes += read_bytes
        epoch.requests += requests
        if number == 0:  # an empty cache misses all: the later ones say how many can be afforded
            stride = max(1, int(np.ceil(epoch.read_seconds * len(minibatches) / max_seconds)))
    return epoch


def random_reads(settings: Settings) -> dict[str, Any]:
    """An epoch of reads row by row with an LRU cache of the same bytes, feeding a consumer that does nothing."""
    features = Graph.open(settings.graph).feature_file
    minibatches = [minibatch.only_nodes for minibatch in Samples.open(settings.samples).read("train")]
    capacity = max(1, cache_rows(settings.cpu_cache, features.row_bytes, settings.nodes))
    reads_per_second = limits.random_page_reads_per_second(features.path)
    epoch = measure_epoch(features, minibatches, capacity, settings.peer_seconds)
    pages = epoch.read_bytes / DIRECT_ALIGNMENT
    return {
        "seconds": epoch.seconds,
        "requested_rows": epoch.requested_rows,
        "missed_rows": epoch.missed_rows,
        "read_share": epoch.read_rows / max(epoch.missed_rows, 1),
        "pages_per_missed_row": pages / max(epoch.read_rows, 1),
        "pages_per_request": pages / max(epoch.requests, 1),
        "read_bytes_per_second": epoch.read_bytes / max(epoch.read_seconds, 1e-9),
        "requests_per_second": epoch.requests / max(epoch.read_seconds, 1e-9),
        "random_page_reads_per_second": reads_per_second,
        "cache_seconds": epoch.cache_seconds,
    }
