"""Brings edges to buckets of consecutive destinations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import EdgeBuffers
from diskgnn.errors import InputError
from diskgnn.graph.bucket_layout import BucketLayout
from diskgnn.work.shuffle import Shuffle

# src and dst [number of edges in this chunk], both int32 or both int64.
EdgeChunk = tuple[npt.NDArray[Any], npt.NDArray[Any]]
# May be called more than once and must yield the same edges every time.
EdgeSource = Callable[[], Iterator[EdgeChunk]]
# The edges from a number on, to the last.
EdgesFrom = Callable[[int], Iterator[EdgeChunk]]


def edges_from(edges: EdgeSource, seek: EdgesFrom | None, first: int) -> Iterator[EdgeChunk]:
    """Yields the edges from number `first` on: by `seek` if there is one, otherwise by reading those before, too."""
    if seek is not None and first:
        yield from seek(first)
        return
    position = 0
    for src, dst in edges():
        if position + len(src) > first:
            skipped = max(0, first - position)
            yield src[skipped:], dst[skipped:]
        position += len(src)


class EdgeBuckets:
    """Collects the edges of each bucket in a buffer. Full buffers go to a shuffle, as pieces [number, 2] of src, dst.

    If the shuffle is in memory, a buffer holds all edges of its bucket, and is handed over without a copy.
    """

    def __init__(self, layout: BucketLayout, shuffle: Shuffle) -> None:
        self._layout, self._shuffle = layout, shuffle
        self._most_bytes = np.diff(layout.edge_starts) * 2 * layout.dtype.itemsize  # [buckets]
        sizes = np.diff(layout.edge_starts)
        capacities = sizes if layout.in_memory else np.minimum(sizes, layout.buffer_edges)
        starts = np.concatenate([[0], np.cumsum(capacities)])
        self._buffer = np.empty((int(starts[-1]), 2), layout.dtype)
        # Bucket b's buffer starts at _starts[b], is full up to _cursors[b] and ends at _ends[b].
        self._starts, self._cursors, self._ends = starts[:-1], starts[:-1].copy(), starts[1:].copy()
        self._buffers = EdgeBuffers(
            num_sources=layout.num_sources,
            num_nodes=layout.num_nodes,
            shift=layout.shift,
            bucket_of_bin=layout.bucket_of_bin,
            buffer=self._buffer,
            cursors=self._cursors,
            ends=self._ends,
        )

    def add(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], reverse: bool) -> None:
        """Adds edges in their order, with `reverse` each followed by its reverse.

        Raises:
            InputError: these are not the edges that were counted.
        """
        first = 0
        while True:
            try:
                first = self._buffers.scatter(src, dst, first, reverse)
            except IndexError as error:
                raise changed() from error
            edge, backwards = divmod(first, 1 + reverse)
            if edge == len(src):
                return
            self._hand_over(int(self._layout.bucket_of_bin[(src if backwards else dst)[edge] >> self._layout.shift]))

    def hand_over(self) -> None:
        """Brings everything in the buffers to the shuffle."""
        for bucket in np.flatnonzero(self._cursors > self._starts).tolist():
            self._hand_over(bucket)

    def require_all(self) -> None:
        """Checks that as many edges came as were counted.

        Raises:
            InputError: there were fewer.
        """
        if not np.array_equal(self._shuffle.partition_bytes, self._most_bytes):
            raise changed()

    def _hand_over(self, bucket: int) -> None:
        content = self._buffer[self._starts[bucket] : self._cursors[bucket]]
        if not len(content) or self._shuffle.partition_bytes[bucket] + content.nbytes > self._most_bytes[bucket]:
            raise changed()
        self._shuffle.add(bucket, content)
        self._cursors[bucket] = self._starts[bucket]


def changed() -> InputError:
    """Returns an error that says that a source yields other edges than before."""
    return InputError("the edges changed between two readings; convert again when they are at rest")
