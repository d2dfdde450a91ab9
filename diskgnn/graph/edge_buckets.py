"""Edges brought to buckets of consecutive destinations: in memory if all fit there, otherwise in one scratch file.

How many edges each bucket gets is known before, so every edge goes straight to its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskgnn._native import EdgeBuffers, crc32c
from diskgnn.errors import ArtifactError, InputError
from diskgnn.graph.bucket_layout import BucketLayout
from diskgnn.graph.edge_progress import EdgeProgress, State
from diskgnn.progress import Reporter
from diskgnn.storage import cache_hints, faults
from diskgnn.storage.file_reading import fill, opened

# src and dst [number of edges in this chunk], both int32 or both int64.
EdgeChunk = tuple[npt.NDArray[Any], npt.NDArray[Any]]
# May be called more than once and must yield the same edges every time.
EdgeSource = Callable[[], Iterator[EdgeChunk]]
# The edges from a number on, to the last.
EdgesFrom = Callable[[int], Iterator[EdgeChunk]]

_CHANGED = "the edges changed between two readings; convert again when they are at rest"


def edges_from(edges: EdgeSource, seek: EdgesFrom | None, first: int) -> Iterator[EdgeChunk]:
    """The edges from the `first` on: by `seek`, or by reading those before, too."""
    if seek is not None and first:
        yield from seek(first)
        return
    position = 0
    for src, dst in edges():
        if position + len(src) > first:
            skipped = max(0, first - position)
            yield src[skipped:], dst[skipped:]
        position += len(src)


class Beside(Protocol):
    """What is brought to a scratch file of its own while edges are brought to their buckets."""

    @property
    def path(self) -> Path:
        """The scratch file."""

    def so_far(self) -> State:
        """What a run needs to know that goes on from here."""


class DamagedScratchError(ArtifactError):
    """The scratch file does not hold what was written to it: the disk does not keep it, or somebody changed it."""


class EdgeBuckets:
    """All edges, bucket by bucket: filled once, then read in any order, by several threads if need be.

    Args:
        layout: says where each bucket starts.
        path: of the scratch file, made only if the edges do not fit in memory. Whoever made this object removes it.
    """

    def __init__(self, layout: BucketLayout, path: Path) -> None:
        self.layout, self.path = layout, path
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
        # Where the next flush of each bucket goes in the scratch file, in edges.
        self._flushed = layout.edge_starts[:-1].copy()
        self._crcs = np.zeros(layout.num_buckets, np.uint32)  # of what was flushed of each bucket
        self._scratch: int | None = None

    def fill(
        self,
        edges: EdgesFrom,
        reverse: bool,
        reporter: Reporter,
        progress: EdgeProgress,
        beside: Beside | None = None,
    ) -> None:
        """Bring every edge to its bucket, with `reverse` each followed by its reverse. Goes on where a killed run was.

        `edges` yields them from a number on. Within a bucket they are in its order, however it cuts them into chunks.
        `beside` is what `edges` brings somewhere itself, which is recorded with them.

        Raises:
            InputError: these are not the edges that were counted.
        """
        first = self._go_on(progress)
        claims = [] if self.layout.in_memory else [self.path.name]
        claims += [] if beside is None else [beside.path.name]
        try:
            with reporter.stage("scatter edges", self.layout.num_edges, "edges") as advance:
                advance(first * (1 + reverse))
                for src, dst in edges(first) if not self._is_full() else ():
                    self._append(np.ascontiguousarray(src), np.ascontiguousarray(dst), reverse)
                    advance(len(src) * (1 + reverse))
                    first += len(src)
                    if claims:
                        progress.done(len(src), partial(self._so_far, first, beside), claims)
            complete = self._complete()
            if complete and claims:
                progress.record(self._so_far(first, beside), claims)
        except IndexError as error:
            raise InputError(_CHANGED) from error
        finally:
            if self._scratch is not None:
                os.close(self._scratch)
        if not complete:
            raise InputError(_CHANGED)
        if not self.layout.in_memory:
            del self._buffers, self._buffer

    def _go_on(self, progress: EdgeProgress) -> int:
        """Open the scratch file, if there is to be one; the first edge that it lacks."""
        if self.layout.in_memory:
            return 0
        begun = "flushed" in progress.state and self.path.exists()
        self._scratch = os.open(self.path, os.O_RDWR | os.O_CREAT | (0 if begun else os.O_TRUNC), 0o600)
        if not begun:
            return 0
        self._flushed[:], self._crcs[:] = progress.state["flushed"], progress.state["flushed_crcs"]
        return progress.number("scattered")

    def _so_far(self, num_edges: int, beside: Beside | None) -> dict[str, npt.NDArray[Any]]:
        """What a run needs to know that goes on after so many edges; all of them are handed to the system."""
        found = {} if beside is None else dict(beside.so_far())
        if self.layout.in_memory:  # these are read again
            return found
        for bucket in np.flatnonzero(self._cursors > self._starts).tolist():
            self._flush(bucket)
        return found | {
            "flushed": self._flushed.copy(),
            "flushed_crcs": self._crcs.copy(),
            "scattered": np.array(num_edges),
        }

    def _is_full(self) -> bool:
        return not self.layout.in_memory and bool((self._flushed == self.layout.edge_starts[1:]).all())

    def read(self, bucket: int) -> npt.NDArray[Any]:
        """[number, 2] edges of a bucket: src, dst.

        Raises:
            DamagedScratchError: they are not what was written.
        """
        start, stop = (int(edge) for edge in self.layout.edge_starts[bucket : bucket + 2])
        if self.layout.in_memory:
            return self._buffer[start:stop]
        offset_bytes, edges = start * 2 * self.layout.dtype.itemsize, np.empty((stop - start, 2), self.layout.dtype)
        content = edges.reshape(-1).view(np.uint8)
        try:
            with opened(self.path) as descriptor:
                fill(descriptor, offset_bytes, content.data, self.path)
                cache_hints.forget(descriptor, offset_bytes, edges.nbytes)
        except ArtifactError as error:
            raise DamagedScratchError(str(error)) from error
        if crc32c(content) != self._crcs[bucket]:
            raise DamagedScratchError(f"{self.path} is not what was written from byte {offset_bytes} on")
        return edges

    def _append(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], reverse: bool) -> None:
        layout, first = self.layout, 0
        while True:
            first = self._buffers.scatter(src, dst, first, reverse)
            edge, backwards = divmod(first, 1 + reverse)
            if edge == len(src):
                return
            self._flush(int(layout.bucket_of_bin[(src if backwards else dst)[edge] >> layout.shift]))

    def _flush(self, bucket: int) -> None:
        content = self._buffer[self._starts[bucket] : self._cursors[bucket]]
        first, end = self._flushed[bucket], self.layout.edge_starts[bucket + 1]
        if self._scratch is None or not len(content) or first + len(content) > end:
            raise IndexError("more edges than were counted")
        faults.point("csc.scatter")
        write_at(self._scratch, content, int(first) * content.strides[0])
        self._crcs[bucket] = crc32c(content.reshape(-1).view(np.uint8), int(self._crcs[bucket]))
        self._flushed[bucket] += len(content)
        self._cursors[bucket] = self._starts[bucket]

    def _complete(self) -> bool:
        """Flush what is left; whether all edges that were counted are there."""
        if self._scratch is None:
            return bool((self._cursors == self._ends).all())
        for bucket in np.flatnonzero(self._cursors > self._starts).tolist():
            self._flush(bucket)
        return bool((self._flushed == self.layout.edge_starts[1:]).all())


def write_at(descriptor: int, content: npt.NDArray[Any], offset_bytes: int) -> None:
    """Write contiguous `content` to a file, all of it, without keeping it in the page cache."""
    view = content.reshape(-1).view(np.uint8).data
    while view:
        written = os.pwrite(descriptor, view, offset_bytes)
        view, offset_bytes = view[written:], offset_bytes + written
    cache_hints.forget(descriptor, offset_bytes - content.nbytes, content.nbytes)
