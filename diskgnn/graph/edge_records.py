"""What edges carry (ids, weights, times, features), brought into the order of the edges in CSC.

Edges and what they carry come in the same order. Each edge's items make one record, and each record goes to the bucket
of its edge, into a scratch file, in the order of arrival. When a bucket's edges have been sorted, its records are read
in their order and divided into the files again. Memory holds a piece of the input and the records of one bucket, or a
memory map of them if the in-edges of a few nodes carry more than that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.graph.edge_buckets import BucketLayout, EdgeChunk, EdgeSource, directions, write_at
from diskgnn.schema import EdgeType
from diskgnn.storage import artifacts, faults
from diskgnn.storage.array_file import ArrayFile
from diskgnn.storage.artifacts import edge_file
from diskgnn.storage.file_reading import read_array
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
    chunks: Callable[[], Iterator[npt.NDArray[Any]]]  # together one item per edge; may be called more than once


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


def in_pieces(edges: EdgeSource, max_edges: int) -> EdgeSource:
    """The same edges, at most `max_edges` at a time."""

    def stream() -> Iterator[EdgeChunk]:
        for src, dst in edges():
            for start in range(0, len(src), max_edges):
                yield src[start : start + max_edges], dst[start : start + max_edges]

    return stream


class EdgeRecords:
    """The records of all edges, bucket by bucket, in the scratch file `path`. Whoever made this object removes it."""

    def __init__(self, layout: BucketLayout, columns: tuple[EdgeColumn, ...], path: Path, memory_bytes: int) -> None:
        self._layout, self._columns, self._path = layout, columns, path
        self._dtype = record_dtype(columns)
        record_bytes = max(self._dtype.itemsize, 1)
        self._piece_records = max(1, piece_bytes(memory_bytes) // record_bytes)
        self._loaded_records = memory_bytes // 4 // record_bytes  # of a bucket; more are mapped
        self._next = layout.edge_starts[:-1].copy()  # where the next record of each bucket goes

    def following(self, edges: EdgeSource, symmetric: bool) -> EdgeSource:
        """The same edges; their records are brought to their buckets when they are asked for, in the order in which
        `EdgeBuckets.fill` gets them."""
        if not self._columns:
            return edges

        def stream() -> Iterator[EdgeChunk]:
            items = [_Items(column) for column in self._columns]
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                for src, dst in in_pieces(edges, self._piece_records)():
                    records = np.empty(len(src), self._dtype)
                    for column in items:
                        column.fill(records[column.kind])
                    for _, head in directions(src, dst, symmetric):
                        self._scatter(descriptor, head, records)
                    yield src, dst
            finally:
                os.close(descriptor)

        return stream

    def _scatter(self, descriptor: int, dst: npt.NDArray[Any], records: npt.NDArray[Any]) -> None:
        layout = self._layout
        buckets = layout.bucket_of_bin[dst >> layout.shift]
        # Few enough for 16 bits are sorted without comparisons.
        keys = buckets.astype(np.uint16) if layout.num_buckets <= 1 << 16 else buckets
        records = records[np.argsort(keys, kind="stable")]
        counts = np.bincount(buckets, minlength=layout.num_buckets)
        ends = np.cumsum(counts)
        faults.point("csc.scatter")
        for bucket in np.flatnonzero(counts).tolist():
            part = records[ends[bucket] - counts[bucket] : ends[bucket]]
            write_at(descriptor, part.reshape(-1).view(np.uint8), int(self._next[bucket]) * self._dtype.itemsize)
            self._next[bucket] += len(part)

    def of_bucket(self, bucket: int, order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        """The records of a bucket, `order` of them, in pieces."""
        start, stop = (int(edge) for edge in self._layout.edge_starts[bucket : bucket + 2])
        offset_bytes, count = start * self._dtype.itemsize, stop - start
        if not count:
            return
        if count <= self._loaded_records:
            stored = read_array(self._path, self._dtype, count, offset_bytes)
        else:
            stored = np.memmap(self._path, self._dtype, "r", offset_bytes, (count,))
        for first in range(0, count, self._piece_records):
            yield stored[order[first : first + self._piece_records]]


class _Items:
    """The items of a column, as many at a time as are asked for."""

    def __init__(self, column: EdgeColumn) -> None:
        self.kind, self._column, self._chunks = column.kind, column, column.chunks()
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
    """The files of an edge type that have an item per edge, written front to back. A context manager."""

    def __init__(
        self, writer: ArtifactWriter, edge_type: EdgeType, columns: tuple[EdgeColumn, ...], num_edges: int
    ) -> None:
        self._stack, self._files = ExitStack(), dict[str, ArrayFile]()
        for column in columns:
            checksums = _CHECKSUMS.get(column.kind)
            self._files[column.kind] = writer.array_file(
                edge_file(column.kind, edge_type), column.dtype, num_edges, column.row_shape,
                checksums=None if checksums is None else edge_file(checksums, edge_type),
            )  # fmt: skip

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
