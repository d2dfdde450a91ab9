"""Which rows the minibatches of a segment share on disk, and how many are worth it: DiskGNN's segmented disk cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError
from diskgnn.formats.samples import Samples
from diskgnn.packing.accesses import hottest_nodes
from diskgnn.progress.reporter import Advance
from diskgnn.units import format_size


class SampledAccesses:
    """Which nodes the minibatches of one sampled epoch need, segment by segment. Node-sized memory is one int32 array.

    Args:
        num_nodes: N of the graph.
        num_static: so many of the nodes that most minibatches need are in memory, and stored nowhere else.
        advance: told of minibatches while they are read for the first time.
    """

    def __init__(self, samples: Samples, num_nodes: int, num_static: int, advance: Advance) -> None:
        self._samples, self._num_nodes = samples, num_nodes
        self.num_batches = samples.config.splits["train"].num_batches
        counts = np.zeros(num_nodes, np.int32)
        for batch in samples.read("train"):
            counts[batch.only_nodes] += 1
            advance(1)
        self.static = hottest_nodes(counts, num_static)  # [S] hottest first
        self._cold = int(counts.sum() - counts[self.static].sum())  # rows requested that are not static

    def fit(self, limit_bytes: int, row_bytes: int, segment_batches: int) -> tuple[int, int]:
        """Returns (rows in each disk cache, minibatches in each segment) with which the stored rows keep to the limit.

        Raises:
            ConfigError: none do.
        """
        kept = limit_bytes // row_bytes  # rows that may be stored
        while True:
            saved = self._savings(segment_batches)
            if self._cold - saved[-1] <= kept:
                return int(np.searchsorted(saved, self._cold - kept)), segment_batches
            if segment_batches >= self.num_batches:
                needed = (self._cold - int(saved[-1])) * row_bytes
                raise ConfigError(
                    f"disk_limit: {format_size(limit_bytes)} ({limit_bytes} bytes) cannot hold the rows of the sampled "
                    f"epoch: at least {format_size(needed)} ({needed} bytes) are needed; raise it, or static_cache"
                )
            segment_batches *= 2

    def _savings(self, segment_batches: int) -> npt.NDArray[np.int64]:
        """Returns [K + 1] rows that need not be stored when every disk cache has k rows, for all k that make a
        difference."""
        segments = []
        for counts, _ in self.segments(segment_batches):
            nodes_by_count = np.bincount(counts, minlength=3)[2:]  # of those needed 2, 3, ... times
            saved = np.repeat(np.arange(1, len(nodes_by_count) + 1), nodes_by_count)[::-1]  # one copy stays
            segments.append(np.concatenate([[0], np.cumsum(saved)]))
        longest = max(map(len, segments))
        total = np.zeros(longest, np.int64)
        for saved in segments:
            total += np.pad(saved, (0, longest - len(saved)), "edge")
        return total

    def segments(
        self, segment_batches: int, hashes: Sequence[npt.NDArray[np.int64]] = ()
    ) -> Iterator[tuple[npt.NDArray[np.int32], list[npt.NDArray[np.int32]]]]:
        """Returns, per segment, [N] how many minibatches need each node (0 for static ones), and per hash function of
        minibatches [N] the least hash of those. To be used before the next segment is asked for."""
        counts = np.zeros(self._num_nodes, np.int32)
        least = [np.empty(self._num_nodes, np.int32) for _ in hashes]
        for number, batch in enumerate(self._samples.read("train")):
            if number % segment_batches == 0:
                counts[:] = 0
                for signature in least:
                    signature[:] = self.num_batches
            counts[batch.only_nodes] += 1
            for values, signature in zip(hashes, least, strict=True):
                signature[batch.only_nodes] = np.minimum(signature[batch.only_nodes], values[number])
            if (number + 1) % segment_batches == 0 or number + 1 == self.num_batches:
                counts[self.static] = 0
                yield counts, least
