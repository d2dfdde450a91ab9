"""Random reads behind a cache with an online policy: GraphBolt's DiskBasedFeature and CPUCachedFeature."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from diskgnn._native import RowCache, RowReader
from diskgnn.baselines.row_buffers import RowBuffers
from diskgnn.baselines.sampling_source import SamplingSource, SamplingSourceOptions
from diskgnn.batches.batch_source import LoadStats
from diskgnn.errors import ConfigError
from diskgnn.files.read_engine import check_engine, warn_if_no_io_uring
from diskgnn.files.row_reading import row_buffer
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.feature_files import feature_files
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.specs.caches import cache_rows
from diskgnn.units import parse_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

POLICIES = ("sieve", "s3-fifo", "lru")


class RowsOnDisk:
    """Feature rows read at random, past the page cache, into x; and the memory of a cache of some of them."""

    def __init__(self, file: FeatureFile, cached_rows: int, *, engine: str = "auto") -> None:
        """Raises ConfigError: `engine` cannot be used here."""
        check_engine(engine)
        warn_if_no_io_uring(engine)
        self._buffers = RowBuffers(file.rows)
        self._reader = RowReader(
            os.fspath(file.local_path), file.data_offset_bytes, file.row_bytes, file.num_rows, engine
        )
        self._cache = row_buffer(cached_rows, file.row_bytes)[: cached_rows * file.row_bytes]

    def gather(
        self, nodes: npt.NDArray[Any], slots: npt.NDArray[np.int32], admissions: npt.NDArray[np.int32]
    ) -> tuple[Tensor, LoadStats]:
        """Returns x [U, D]: rows with a slot from the cache, others from disk. Admits (position, slot)."""
        x, x_bytes = self._buffers.take(len(nodes))
        requests, read_bytes = self._reader.gather(nodes, slots, admissions.reshape(-1), self._cache, x_bytes)
        missed = int(np.count_nonzero(slots < 0))
        return x, LoadStats(
            cpu_rows=len(nodes) - missed, disk_rows=missed, read_bytes=read_bytes, read_requests=requests
        )


class CachedRows:
    """Feature rows behind a cache whose policy sees one request after the other."""

    ordered = True

    def __init__(self, file: FeatureFile, *, cpu_cache: int | str, policy: str, engine: str = "auto") -> None:
        """See `CachedReads`."""
        if policy not in POLICIES:
            raise ConfigError(f"policy: expected one of {', '.join(POLICIES)}, found {policy!r}")
        capacity = cache_rows(cpu_cache, file.row_bytes, file.num_rows)
        self._rows: RowsOnDisk | None = RowsOnDisk(file, capacity, engine=engine)
        self._cache = RowCache(policy, file.num_rows, capacity) if capacity else None
        self._lock = threading.Lock()  # sources may share these rows

    def gather(self, nodes: npt.NDArray[Any]) -> tuple[Tensor, LoadStats]:
        """Returns x [U, D] of `nodes`."""
        with self._lock:
            if self._rows is None:
                raise ConfigError("the source whose rows these are is closed, or has failed; make a new one")
            slots, admissions = np.full(len(nodes), -1, np.int32), np.empty(0, np.int32)
            try:
                if self._cache is not None:
                    slots, admissions = self._cache.lookup(nodes)
                return self._rows.gather(nodes, slots, admissions)
            except BaseException:
                self._rows = self._cache = None  # rows that the policy believes to be cached may not be there
                raise

    def close(self) -> None:
        """Close the file, free the cache."""
        with self._lock:
            self._rows = self._cache = None


class CachedReads(SamplingSource):
    """A `BatchSource` that samples while training, keeps rows in a cpu cache and reads those that it lacks one by one.

    The original: GraphBolt (DGL 2), `DiskBasedFeature` (io_uring, O_DIRECT, a deep queue) under a `CPUCachedFeature`,
    with sampling, reading and training overlapped as by `overlap_feature_fetch`.
    Kept: every row that the cache lacks is read when it is needed, in whole 4 KiB pages. The policies are SIEVE,
    S3-FIFO and LRU; queries and replacements go row by row through the minibatch.
    Different: missed rows are sorted, and rows whose pages touch share one request of at most 32 KiB, where GraphBolt
    sends one for each row: never more requests, never more bytes. GraphBolt pins rows while their minibatch is
    gathered, and it fails or hangs if the cache is not a few times larger than a minibatch. Here no row is pinned and
    any size works: hits are copied out before rows are admitted. Sampling is our native sampler's, and topology is in
    memory unless `topology='mmap'`. The policy's own memory, at most 40 bytes a cached row and 4 a node, is not taken
    out of `cpu_cache`.

    Hits and misses do not depend on `threads`: one thread gathers, minibatch after minibatch. The first epoch starts
    with an empty cache; later ones, and sources that share it, find what was left in it.

    Args beside those of `SamplingSource`:
        cpu_cache: bytes, '512MiB', or '10%' of all rows. Where several types have features, each gets a share of the
            bytes in proportion to its own.
        policy: 'sieve' (NSDI 2024), 's3-fifo' (SOSP 2023) or 'lru'.
        engine: 'io_uring', 'threads', or 'auto': io_uring where it is allowed.

    Raises beside what `SamplingSource` does:
        ConfigError: no such policy or engine, no cache size.
        OSError: the features cannot be read.

    Example:
        >>> source = CachedReads("graph", fanouts=[10, 10], batch_size=1024, cpu_cache="10%", policy="sieve")
    """

    name = "cached-reads"
    takes_without = reads_whole_rows = True

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        cpu_cache: int | str = "10%",
        policy: str = "sieve",
        engine: str = "auto",
        **sampling: Unpack[SamplingSourceOptions],
    ) -> None:
        super().__init__(
            graph,
            split,
            rows=lambda file: CachedRows(
                file, cpu_cache=share_of_cache(cpu_cache, file, self.graph), policy=policy, engine=engine
            ),
            **sampling,
        )


def share_of_cache(cache: int | str, file: FeatureFile, graph: Graph) -> int | str:
    """Returns what one of a graph's feature files gets of a cache: a share of rows as it is, bytes in proportion."""
    files = [each.whole for each in feature_files(graph).values()]
    if len(files) == 1 or (isinstance(cache, str) and cache.strip().endswith("%")):
        return cache
    rows = parse_size(cache) * file.num_bytes // sum(each.num_bytes for each in files) // file.row_bytes
    return rows * file.row_bytes
