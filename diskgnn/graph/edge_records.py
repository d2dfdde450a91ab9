"""Brings what edges carry (ids, weights, times, features) into the order of the edges in CSC.

Edges and what they carry come in the same order. The items of an edge make one record, which goes to the bucket of its
edge, in the order of arrival. After a bucket's edges are sorted, its records are read in their order and divided into
the files again. Memory holds a piece of the input and the records of one bucket. If the in-edges of a few nodes carry
more than that, their bucket is read several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file
from diskgnn.graph.bucket_layout import BucketLayout
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.schema import EdgeType
from diskgnn.system.resources import Resources
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.fold import Output
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.writer import ArtifactWriter

_MAX_PIECE_BYTES = 64 << 20
_ORDER_BYTES = 28  # beside each record that is brought to its bucket: what says which, and in which order
_CHECKSUMS = {artifacts.EDGE_FEATURES: artifacts.EDGE_FEATURE_CHECKSUMS}  # kinds of files that have a file of them


@dataclass(frozen=True)
class EdgeColumn:
    """One item per edge, in the order of the edges."""

    kind: str  # of file: artifacts.EDGE_IDS, WEIGHTS, TIMES or EDGE_FEATURES
    name: str  # for messages
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    chunks_from: Callable[[int], Iterator[npt.NDArray[Any]]]  # the items from that of an edge on, to the last
    columns: tuple[FeatureColumn, ...] | None = None  # of features: those of a table that they are made from


def record_dtype(columns: tuple[EdgeColumn, ...]) -> np.dtype[Any]:
    """Returns the dtype of a record: all that one edge carries."""
    return np.dtype([(column.kind, column.dtype, column.row_shape) for column in columns])


def require_weights(
    records: Iterator[npt.NDArray[Any]], degrees: npt.NDArray[np.int64], first_node: int, name: str
) -> Iterator[npt.NDArray[Any]]:
    """Yields the same `records`, of nodes from `first_node` on with `degrees` in-edges each, and checks their weights.

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


def in_pieces(edges: Iterator[EdgeChunk], max_edges: int) -> Iterator[EdgeChunk]:
    """Yields the same edges, at most `max_edges` at a time."""
    for src, dst in edges:
        for start in range(0, len(src), max_edges):
            yield src[start : start + max_edges], dst[start : start + max_edges]


@dataclass(frozen=True)
class EdgeRecords:
    """The records of all edges on their way through a shuffle, bucket by bucket."""

    layout: BucketLayout
    columns: tuple[EdgeColumn, ...]
    shuffle: Shuffle
    resources: Resources  # a quarter of its memory is for records of one bucket

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the dtype of a record."""
        return record_dtype(self.columns)

    @property
    def _piece_bytes(self) -> int:
        return self.resources.divided(1, part=16, most_bytes=_MAX_PIECE_BYTES)

    @property
    def _piece_records(self) -> int:
        return max(1, self._piece_bytes // max(self.dtype.itemsize, 1))

    def following(self, edges: Iterator[EdgeChunk], first: int, symmetric: bool, output: Output) -> Iterator[EdgeChunk]:
        """Yields `edges`, which begin with number `first`, in pieces whose records are held here or in the shuffle.

        All records are in the shuffle before `output` is committed. So pieces of the shuffle are long, however short
        the chunks of edges are. With `symmetric`, each record is there for the edge and for its reverse, in this order.
        """
        items, each = [_Items(column, first) for column in self.columns], 1 + symmetric
        most_edges = max(1, self._piece_bytes // (each * (self.dtype.itemsize + _ORDER_BYTES)))
        most_edges = min(most_edges, max(1, self.layout.num_edges // each))
        records = np.empty(most_edges, self.dtype)
        heads = np.empty((most_edges, each), self.layout.dtype)
        held = 0

        def hand_over() -> None:
            nonlocal held
            self._add(heads[:held], records[:held])
            held = 0

        output.before_commit(hand_over)
        for src, dst in in_pieces(edges, most_edges):
            if held + len(src) > most_edges:
                hand_over()
            part, held = slice(held, held + len(src)), held + len(src)
            for column in items:
                column.fill(records[part][column.kind])
            heads[part, 0] = dst
            if symmetric:
                heads[part, 1] = src
            yield src, dst

    def _add(self, heads: npt.NDArray[Any], records: npt.NDArray[Any]) -> None:
        """Brings each of `records` [n] to the buckets of its `heads` [n, 1 or 2]."""
        layout, each = self.layout, heads.shape[1]
        buckets = layout.bucket_of_bin[heads.reshape(-1) >> layout.shift]
        # Few enough for 16 bits are sorted without comparisons.
        keys = buckets.astype(np.uint16) if layout.num_buckets <= 1 << 16 else buckets
        order = np.argsort(keys, kind="stable")
        records = records[order // each if each > 1 else order]
        counts = np.bincount(buckets, minlength=layout.num_buckets)
        ends = np.cumsum(counts)
        for bucket in np.flatnonzero(counts).tolist():
            self.shuffle.add(bucket, records[ends[bucket] - counts[bucket] : ends[bucket]])

    def times_of_bucket(self, bucket: int) -> npt.NDArray[np.int64]:
        """Returns the times [edges] of a bucket, in the order in which its edges came.

        Raises:
            DamagedStepError: they are not what was written.
        """
        times = [piece.view(self.dtype)[artifacts.TIMES].copy() for piece in self.shuffle.pieces(bucket)]
        return np.concatenate([np.empty(0, np.int64), *times])

    def of_bucket(self, bucket: int, order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        """Yields the records of a bucket in the given `order`, in pieces.

        Raises:
            DamagedStepError: they are not what was written.
        """
        held_records = self.resources.divided(1, part=4) // max(self.dtype.itemsize, 1)
        if len(order) <= held_records:
            stored = self.shuffle.content(bucket, self.dtype)
            for first in range(0, len(order), self._piece_records):
                yield stored[order[first : first + self._piece_records]]
            return
        # As many at a time as fit with their numbers, in another pass over the bucket.
        at_once = max(1, held_records * self.dtype.itemsize // (self.dtype.itemsize + 16))
        for first in range(0, len(order), at_once):
            places = np.argsort(order[first : first + at_once])
            numbers = order[first : first + at_once][places]
            found, position = np.empty(len(numbers), self.dtype), 0
            for piece in self.shuffle.pieces(bucket):
                part = piece.view(self.dtype)
                start, stop = np.searchsorted(numbers, [position, position + len(part)])
                found[places[start:stop]] = part[numbers[start:stop] - position]
                position += len(part)
            for start in range(0, len(found), self._piece_records):
                yield found[start : start + self._piece_records]


class _Items:
    """The items of a column, read in any number at a time."""

    def __init__(self, column: EdgeColumn, first: int) -> None:
        self.kind, self._column, self._chunks = column.kind, column, column.chunks_from(first)
        self._rest: npt.NDArray[Any] = np.empty((0, *column.row_shape), column.dtype)

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Fills `out` [any number, *row_shape] with the next items.

        They are copied at once: a chunk may be a buffer that the next one overwrites.

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


def record_files(
    writer: ArtifactWriter, edge_type: EdgeType, columns: tuple[EdgeColumn, ...], num_edges: int
) -> list[ArrayFile]:
    """Returns the file of each column, with an item per edge."""
    files = []
    for column in columns:
        name, kind = edge_file(column.kind, edge_type), _CHECKSUMS.get(column.kind)
        checksums = None if kind is None else edge_file(kind, edge_type)
        files.append(ArrayFile(writer, name, column.dtype, num_edges, column.row_shape, checksums))
    return files
