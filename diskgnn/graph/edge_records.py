"""What edges carry (ids, weights, times, features), brought into the order of the edges in CSC.

Edges and what they carry come in the same order. Each edge's items make one record, and each record goes to the bucket
of its edge, into a scratch file, in the order of arrival. When a bucket's edges have been sorted, its records are read
in their order and divided into the files again. Memory holds a piece of the input and the records of one bucket; where
the in-edges of a few nodes carry more than that, their bucket is read several times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError, InputError
from diskgnn.graph.bucket_layout import BucketLayout
from diskgnn.graph.edge_buckets import DamagedScratchError, EdgeChunk, EdgesFrom, write_at
from diskgnn.graph.edge_progress import State
from diskgnn.schema import EdgeType
from diskgnn.storage import artifacts, cache_hints, faults
from diskgnn.storage.array_file import ArrayFile
from diskgnn.storage.artifacts import edge_file
from diskgnn.storage.file_reading import fill, opened
from diskgnn.storage.writer import ArtifactWriter

_MAX_PIECE_BYTES = 8 << 20
_CHECKSUMS = {artifacts.EDGE_FEATURES: artifacts.EDGE_FEATURE_CHECKSUMS}  # kinds of files that have a file of them


@dataclass(frozen=True)
class EdgeColumn:
    """One item per edge, in the order of the edges."""

    kind: str  # of file: artifacts.EDGE_IDS, WEIGHTS, TIMES or EDGE_FEATURES
    name: str  # for messages
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    chunks_from: Callable[[int], Iterator[npt.NDArray[Any]]]  # the items from that of an edge on, to the last


def record_dtype(columns: tuple[EdgeColumn, ...]) -> np.dtype[Any]:
    """Of all that one edge carries."""
    return np.dtype([(column.kind, column.dtype, column.row_shape) for column in columns])


def require_weights(
    records: Iterator[npt.NDArray[Any]], degrees: npt.NDArray[np.int64], first_node: int, name: str
) -> Iterator[npt.NDArray[Any]]:
    """The same records, those of nodes from `first_node` on with `degrees` in-edges each.

    Raises:
        InputError: at the end, if all weights of a node's in-edges are 0.
    """
    positive = []
    for part in records:
        if artifacts.WEIGHTS in (part.dtype.names or ()):
            positive.append(part[artifacts.WEIGHTS] > 0)
        yield part
    if not positive:
        return
    sums = np.concatenate([[0], np.cumsum(np.concatenate(positive), dtype=np.int64)])
    ends = np.cumsum(degrees)
    without = (degrees > 0) & (sums[ends] == sums[ends - degrees])
    if without.any():
        node = int(without.argmax())
        raise InputError(
            f"{name}: expected a weight above 0 among the {degrees[node]} in-edges of node {first_node + node}, found "
            f"none; leave these edges out, or give them a weight"
        )


def piece_bytes(memory_bytes: int) -> int:
    """How much is copied at a time."""
    return max(1, min(_MAX_PIECE_BYTES, memory_bytes // 16))


def in_pieces(edges: Iterator[EdgeChunk], max_edges: int) -> Iterator[EdgeChunk]:
    """The same edges, at most `max_edges` at a time."""
    for src, dst in edges:
        for start in range(0, len(src), max_edges):
            yield src[start : start + max_edges], dst[start : start + max_edges]


class EdgeRecords:
    """The records of all edges, bucket by bucket, in the scratch file `path`. Whoever made this object removes it.

    Args:
        layout: of the buckets.
        columns: what edges carry.
        path: of the scratch file.
        memory_bytes: of which a quarter is for records of one bucket.
        state: what `so_far` said in a killed run with which this one goes on, or {}.

    Raises:
        DamagedScratchError: that run's scratch file is gone.
    """

    def __init__(
        self, layout: BucketLayout, columns: tuple[EdgeColumn, ...], path: Path, memory_bytes: int, state: State
    ) -> None:
        self._layout, self._columns, self._path = layout, columns, path
        self._dtype = record_dtype(columns)
        record_bytes = max(self._dtype.itemsize, 1)
        self._piece_records = max(1, piece_bytes(memory_bytes) // record_bytes)
        self._held_records = memory_bytes // 4 // record_bytes  # of a bucket
        self._edges = int(state.get("records", 0))  # whose records are there
        if self._edges and not path.exists():
            raise DamagedScratchError(f"{path} is gone")
        # Where the next record of each bucket goes, and the checksums of those that are there.
        self._next = state.get("records_next", layout.edge_starts[:-1]).copy()
        self._crcs = state.get("records_crcs", np.zeros(layout.num_buckets, np.uint32)).copy()

    @property
    def path(self) -> Path:
        """The scratch file."""
        return self._path

    def so_far(self) -> State:
        """What a run needs to know that goes on from here."""
        return {
            "records": np.array(self._edges),
            "records_next": self._next.copy(),
            "records_crcs": self._crcs.copy(),
        }

    def following(self, edges: EdgesFrom, symmetric: bool) -> EdgesFrom:
        """`edges` from a number on; the records of those that are asked for and whose records are not there yet are
        brought to their buckets, in the order in which `EdgeBuckets.fill` gets them."""

        def stream(first: int) -> Iterator[EdgeChunk]:
            items = [_Items(column, self._edges) for column in self._columns]
            flags = os.O_RDWR | os.O_CREAT | (0 if self._edges else os.O_TRUNC)
            descriptor = os.open(self._path, flags, 0o600)
            try:
                for src, dst in in_pieces(edges(first), max(1, self._piece_records // (1 + symmetric))):
                    there = min(max(self._edges - first, 0), len(src))
                    records = np.empty(len(src) - there, self._dtype)
                    for column in items:
                        column.fill(records[column.kind])
                    heads = np.stack([dst[there:], src[there:]], 1) if symmetric else dst[there:, np.newaxis]
                    self._scatter(descriptor, heads, records)
                    first += len(src)
                    self._edges = max(self._edges, first)
                    yield src, dst
            finally:
                os.close(descriptor)

        return stream

    def _scatter(self, descriptor: int, heads: npt.NDArray[Any], records: npt.NDArray[Any]) -> None:
        """Writes each of `records` [n] once for each of its `heads` [n, 1 or 2]."""
        layout, each = self._layout, heads.shape[1]
        buckets = layout.bucket_of_bin[heads.reshape(-1) >> layout.shift]
        # Few enough for 16 bits are sorted without comparisons.
        keys = buckets.astype(np.uint16) if layout.num_buckets <= 1 << 16 else buckets
        order = np.argsort(keys, kind="stable")
        records = records[order // each if each > 1 else order]
        counts = np.bincount(buckets, minlength=layout.num_buckets)
        ends = np.cumsum(counts)
        faults.point("csc.scatter")
        for bucket in np.flatnonzero(counts).tolist():
            part = records[ends[bucket] - counts[bucket] : ends[bucket]].reshape(-1).view(np.uint8)
            write_at(descriptor, part, int(self._next[bucket]) * self._dtype.itemsize)
            self._crcs[bucket] = crc32c(part, int(self._crcs[bucket]))
            self._next[bucket] += counts[bucket]

    def of_bucket(self, bucket: int, order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        """The records of a bucket, `order` of them, in pieces.

        Raises:
            DamagedScratchError: they are not what was written.
        """
        if not len(order):
            return
        if len(order) <= self._held_records:
            (stored,) = self._read(bucket, len(order))
            for first in range(0, len(order), self._piece_records):
                yield stored[order[first : first + self._piece_records]]
            return
        # As many at a time as fit with their numbers, in another pass over the bucket.
        at_once = max(1, self._held_records * self._dtype.itemsize // (self._dtype.itemsize + 16))
        for first in range(0, len(order), at_once):
            places = np.argsort(order[first : first + at_once])
            numbers = order[first : first + at_once][places]
            found, position = np.empty(len(numbers), self._dtype), 0
            for part in self._read(bucket, self._piece_records):
                start, stop = np.searchsorted(numbers, [position, position + len(part)])
                found[places[start:stop]] = part[numbers[start:stop] - position]
                position += len(part)
            for start in range(0, len(found), self._piece_records):
                yield found[start : start + self._piece_records]

    def _read(self, bucket: int, at_once: int) -> Iterator[npt.NDArray[Any]]:
        """The records of a bucket as they came, so many at a time."""
        start, stop = (int(edge) for edge in self._layout.edge_starts[bucket : bucket + 2])
        crc = 0
        for first in range(start, stop, at_once):
            offset_bytes = first * self._dtype.itemsize
            part = np.empty(min(at_once, stop - first), self._dtype)
            content = part.view(np.uint8)
            try:
                with opened(self._path) as descriptor:
                    fill(descriptor, offset_bytes, content.data, self._path)
                    cache_hints.forget(descriptor, offset_bytes, part.nbytes)
            except (ArtifactError, FileNotFoundError) as error:
                raise DamagedScratchError(str(error)) from error
            crc = crc32c(content, crc)
            yield part
        if crc != self._crcs[bucket]:
            raise DamagedScratchError(f"{self._path} is not what was written to bucket {bucket}")


class _Items:
    """The items of a column, as many at a time as are asked for."""

    def __init__(self, column: EdgeColumn, first: int) -> None:
        """From that of edge `first` on."""
        self.kind, self._column, self._chunks = column.kind, column, column.chunks_from(first)
        self._rest: npt.NDArray[Any] = np.empty((0, *column.row_shape), column.dtype)

    def fill(self, out: npt.NDArray[Any]) -> None:
        """The next items [any number, *row_shape]. They are copied at once: a chunk may be a buffer that the next one
        overwrites.

        Raises:
            InputError: there are fewer.
        """
        filled = 0
        while filled < len(out):
            if not len(self._rest):
                self._rest = next(self._chunks, self._rest)
                if not len(self._rest):
                    raise InputError(f"{self._column.name}: found fewer than there are edges; did the file change?")
            part = self._rest[: len(out) - filled]
            out[filled : filled + len(part)] = part
            filled, self._rest = filled + len(part), self._rest[len(part) :]


def record_files(edge_type: EdgeType, columns: tuple[EdgeColumn, ...]) -> list[str]:
    """Names of the files that `RecordFiles` writes."""
    checksums = [_CHECKSUMS[column.kind] for column in columns if column.kind in _CHECKSUMS]
    return [edge_file(kind, edge_type) for kind in (*(column.kind for column in columns), *checksums)]


class RecordFiles:
    """The files of an edge type that have an item per edge, written front to back. A context manager.

    `begun` is what the `done` of a file's name said in a killed run with which this one goes on.
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        edge_type: EdgeType,
        columns: tuple[EdgeColumn, ...],
        num_edges: int,
        begun: Callable[[str], State | None],
    ) -> None:
        self._stack, self._files = ExitStack(), dict[str, ArrayFile]()
        for column in columns:
            checksums, name = _CHECKSUMS.get(column.kind), edge_file(column.kind, edge_type)
            self._files[column.kind] = writer.array_file(
                name, column.dtype, num_edges, column.row_shape,
                checksums=None if checksums is None else edge_file(checksums, edge_type), begun=begun(name),
            )  # fmt: skip

    @property
    def files(self) -> Collection[ArrayFile]:
        """One for each column."""
        return self._files.values()

    def __enter__(self) -> RecordFiles:
        for file in self._files.values():
            self._stack.enter_context(file)
        return self

    def write(self, records: npt.NDArray[Any]) -> None:
        """Append the items of `records`."""
        for kind, file in self._files.items():
            file.write(np.ascontiguousarray(records[kind]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
