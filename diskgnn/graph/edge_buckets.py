"""Edges brought to buckets of consecutive destinations: in memory if all fit there, otherwise in one scratch file.

How many edges each bucket gets is known before, so every edge goes straight to its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskgnn._native import EdgeBuffers, crc32c
from diskgnn.errors import ArtifactError, InputError
from diskgnn.graph.edge_progress import EdgeProgress, State
from diskgnn.progress import Reporter
from diskgnn.storage import cache_hints, faults
from diskgnn.storage.file_reading import fill, opened
from diskgnn.system.resources import Resources

# src and dst [number of edges in this chunk], both int32 or both int64.
EdgeChunk = tuple[npt.NDArray[Any], npt.NDArray[Any]]
# May be called more than once and must yield the same edges every time.
EdgeSource = Callable[[], Iterator[EdgeChunk]]
# The edges from a number on, to the last.
EdgesFrom = Callable[[int], Iterator[EdgeChunk]]

_MAX_BUCKETS = 256  # unless the budget asks for more: enough to keep all threads busy with cache-sized buckets
_MIN_SHARE_BYTES = 1 << 20
_MAX_BUFFER_BYTES = 1 << 20  # of one bucket: a larger write is no faster
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


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """dtype of node ids in `indices`: int32 while they fit."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)


def directions(src: npt.NDArray[Any], dst: npt.NDArray[Any], reverse: bool) -> tuple[EdgeChunk, ...]:
    """The edges of a chunk, C-contiguous, and with `reverse` their reverses."""
    src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
    return ((src, dst), (dst, src)) if reverse else ((src, dst),)


@dataclass(frozen=True)
class BucketLayout:
    """How nodes are cut into K buckets of consecutive ids, and how much is held at once."""

    dtype: np.dtype[Any]  # of node ids in edges
    num_sources: int
    shift: int  # a bin is 2^shift nodes
    bucket_of_bin: npt.NDArray[np.int32]  # [bins]
    node_starts: npt.NDArray[np.int64]  # [K+1]
    edge_starts: npt.NDArray[np.int64]  # [K+1], in the scratch file or in memory
    in_memory: bool  # all edges are held in memory; there is no scratch file
    buffer_edges: int  # per bucket while scattering, unless in_memory
    buckets_at_once: int  # sorted, or waiting to be written

    @property
    def num_buckets(self) -> int:
        """K."""
        return len(self.node_starts) - 1

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.node_starts[-1])

    @property
    def num_edges(self) -> int:
        """Edges in all buckets."""
        return int(self.edge_starts[-1])


def lay_out_buckets(
    bin_edges: npt.NDArray[np.int64],
    shift: int,
    num_nodes: int,
    resources: Resources,
    self_loops: bool,
    *,
    num_sources: int | None = None,
    record_bytes: int = 0,
    node_starts: npt.NDArray[np.int64] | None = None,
) -> BucketLayout:
    """Cut the nodes into buckets of which one for each thread, and one more, can be sorted at once within the memory.

    Edges lead from `num_sources` nodes (None: `num_nodes`). If each carries a record of `record_bytes`, a quarter of
    the memory is kept for those of one bucket, and another for copying them. `node_starts` are
    those of a layout before, which is kept where it fits.

    Raises:
        ConfigError: one bin alone does not fit.
    """
    num_sources = num_nodes if num_sources is None else num_sources
    memory_bytes, threads = resources.memory_bytes, resources.threads
    dtype = index_dtype(max(num_sources, num_nodes))
    edge_bytes = 2 * dtype.itemsize
    records_bytes = memory_bytes // 4 if record_bytes else 0  # of one bucket
    memory_bytes -= 2 * records_bytes
    order_bytes = 8 if record_bytes else 0
    bin_nodes = np.minimum(num_nodes - (np.arange(len(bin_edges), dtype=np.int64) << shift), 1 << shift)
    # Sorting a bucket holds its edges, its indices, their order if edges carry records, and per node a degree and a sum
    # of degrees.
    bin_bytes = bin_edges * (edge_bytes + dtype.itemsize + order_bytes) + bin_nodes * (16 + self_loops * dtype.itemsize)
    all_edges_bytes, largest_bytes = int(bin_edges.sum()) * edge_bytes, int(bin_bytes.max(initial=1))
    in_memory = all_edges_bytes <= memory_bytes // 2 and all_edges_bytes + largest_bytes <= memory_bytes
    sort_bytes = memory_bytes - all_edges_bytes if in_memory else memory_bytes
    if largest_bytes > sort_bytes:
        largest = int(bin_bytes.argmax())
        first, last = largest << shift, min((largest + 1) << shift, num_nodes) - 1
        resources.require(
            f"to sort the {bin_edges[largest]} in-edges of nodes {first} to {last}",
            largest_bytes * (2 if record_bytes else 1),
        )
    sums = np.concatenate([[0], np.cumsum(bin_bytes)])
    share_bytes = min(sort_bytes // (threads + 1), max(int(sums[-1]) // _MAX_BUCKETS, _MIN_SHARE_BYTES))
    starts = [0]
    if node_starts is not None and np.diff(sums[found := -(-node_starts >> shift)]).max(initial=0) <= sort_bytes:
        starts = found.tolist()
    edges = np.concatenate([[0], np.cumsum(bin_edges)])
    while starts[-1] < len(bin_edges):
        fitting = int(np.searchsorted(sums, sums[starts[-1]] + share_bytes, side="right")) - 1
        if record_bytes:
            most_edges = edges[starts[-1]] + records_bytes // record_bytes
            fitting = min(fitting, int(np.searchsorted(edges, most_edges, side="right")) - 1)
        starts.append(min(max(fitting, starts[-1] + 1), len(bin_edges)))
    bounds = np.array(starts, np.int64)
    bucket_bytes = int(np.diff(sums[bounds]).max(initial=1))
    buffer_bytes = min(_MAX_BUFFER_BYTES, memory_bytes // max(len(starts) - 1, 1))
    return BucketLayout(
        dtype=dtype,
        num_sources=num_sources,
        shift=shift,
        bucket_of_bin=np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(bounds)),
        node_starts=np.minimum(bounds << shift, num_nodes),
        edge_starts=edges[bounds],
        in_memory=in_memory,
        buffer_edges=max(1, buffer_bytes // edge_bytes),
        buckets_at_once=max(1, min(threads + 1, sort_bytes // bucket_bytes)),
    )


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
        """Bring every edge to its bucket; `edges` yields them from a number on. Goes on where a killed run was.

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
                for chunk in edges(first) if not self._is_full() else ():
                    for src, dst in directions(*chunk, reverse):
                        self._append(src, dst)
                        advance(len(src))
                    first += len(chunk[0])
                    if claims:
                        progress.done(len(chunk[0]), partial(self._so_far, first, beside), claims)
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

    def _append(self, src: npt.NDArray[Any], dst: npt.NDArray[Any]) -> None:
        layout, first = self.layout, 0
        while True:
            first = self._buffers.scatter(src, dst, first)
            if first == len(src):
                return
            self._flush(int(layout.bucket_of_bin[dst[first] >> layout.shift]))

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
