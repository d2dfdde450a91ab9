"""What the importers read, whatever the container: rows in order and edges in any order, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import InputError
from diskgnn.formats.column_statistics import ColumnStatistics
from diskgnn.formats.record_format import RecordFormat
from diskgnn.graph.edge_buckets import EdgeChunk, EdgesFrom, EdgeSource, edges_from
from diskgnn.graph.type_data import NodeSet
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.system.resources import Resources

CHUNK_BYTES = 1 << 20
CHUNK_EDGES = 1 << 18
_OTHERS = 2  # chunks that are there at once, beside those that threads make: one that waits, and one that is used


@dataclass(frozen=True)
class RowSource:
    """One row per node or edge: features [N, D], labels [N], the ids of a split [any number]."""

    name: str  # for messages
    num_rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of the chunks
    chunks: Callable[[], Iterator[npt.NDArray[Any]]]  # each [some rows, *row_shape]; together num_rows
    path: Path | None = (
        None  # the file that holds exactly these rows, if there is one: a .npy file, or without a header
    )
    stored_bytes: int = 0  # in files, to be read
    headerless: bool = False  # what `path` is
    seek: Callable[[int], Iterator[npt.NDArray[Any]]] | None = None  # `chunks` from a row on, without reading others
    # `seek`, where so many threads make the chunks, and what each of them takes of memory.
    seek_on_threads: Callable[[int, int], Iterator[npt.NDArray[Any]]] | None = None
    thread_bytes: int = 0
    apart: Callable[[int], RowSource] | None = None  # the items of one row as rows of their own; for few long rows
    held: object = None  # what has to be there as long as the rows
    columns: tuple[FeatureColumn, ...] | None = None  # of features: those of a table that they are made from
    origin: object = None  # what exactly these rows are made from, if that can be named: an array, the path of a file
    record: RecordFormat | None = None  # of features that are records, a structured array [N]
    # Of records, what codes stand for, see `record_encoding`; or a type of another graph, whose codes they are.
    categories: pa.Table | NodeSet | None = None
    codes: NodeSet | None = None  # of records: a type of another graph, as whose embeddings these are quantised
    statistics: tuple[ColumnStatistics, ...] | None = None  # of the columns of records
    bfloat16: bool = False  # these are bits of bfloat16 numbers, which NumPy has no type for: the dtype is uint16

    @property
    def shape(self) -> list[int]:
        """Returns the shape as messages have it."""
        return [self.num_rows, *self.row_shape]

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of one row."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def total_bytes(self) -> int:
        """Returns the bytes of all rows."""
        return self.num_rows * self.row_bytes

    def threads(self, resources: Resources) -> int:
        """Returns how many threads may make chunks: as many as pay and have room, and one where it has to be one."""
        if self.seek_on_threads is None:
            return 1
        at_once = resources.memory_bytes // max(1, self.thread_bytes) - _OTHERS
        return max(1, min(resources.threads, at_once))

    def chunks_from(self, first: int, threads: int = 1) -> Iterator[npt.NDArray[Any]]:
        """Yields `chunks`, without the first `first` rows. They are read nevertheless where there is no `seek`.

        Args:
            first: the row.
            threads: that make chunks, see `threads`; one makes each when it is asked for.
        """
        if self.seek_on_threads is not None and threads > 1:
            yield from self.seek_on_threads(first, threads)
            return
        if self.seek is not None:
            yield from self.seek(first)
            return
        position = 0
        for chunk in self.chunks():
            if position + len(chunk) > first:
                yield chunk[max(0, first - position) :]
            position += len(chunk)

    def load(self) -> npt.NDArray[Any]:
        """Returns all rows in memory."""
        loaded, position = np.empty(self.shape, self.dtype), 0
        for chunk in self.chunks():
            loaded[position : position + len(chunk)] = chunk
            position += len(chunk)
        return loaded

    def mapped(
        self,
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    ) -> RowSource:
        """Returns these rows with `change` made to each chunk [some rows, ...], which then has `row_shape` and `dtype`.

        They have no `origin`, which names rows as they were: a killed conversion would go on with those of another
        `change`. Whoever knows that there is only one may give them the origin.
        """

        def read(first: int) -> Iterator[npt.NDArray[Any]]:
            return map(change, self.chunks_from(first))

        return self.read_by(read, row_shape, dtype)

    def as_column(self) -> RowSource:
        """Returns these numbers [N] as rows [N, 1], with their origin: the shape says which they are."""
        column = self.mapped((1,), self.dtype, lambda chunk: chunk[:, None])
        return replace(column, origin=self.origin, bfloat16=self.bfloat16)

    def read_by(
        self,
        read: Callable[[int], Iterator[npt.NDArray[Any]]],
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> RowSource:
        """Returns as many rows, which `read` yields from one on. See `mapped`."""
        return replace(
            self, row_shape=row_shape, dtype=dtype, path=None, apart=None, origin=None, bfloat16=False,
            seek_on_threads=None, chunks=partial(read, 0), seek=read,
        )  # fmt: skip

    def widened(self) -> RowSource:
        """Returns these rows as numbers of a type that NumPy has: bfloat16 as float32, which is exact."""
        if not self.bfloat16:
            return self
        return self.mapped(self.row_shape, np.dtype(np.float32), widen_bfloat16)


def widen_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Returns the numbers from the bits of bfloat16 ones, which are the upper half of float32's."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def of_array(name: str, array: npt.NDArray[Any]) -> RowSource:
    """Returns the rows of an array in memory.

    Raises:
        InputError: it is a single number.
    """
    if array.ndim == 0:
        raise InputError(f"{name}: expected an array, found a single number")
    read = partial(_slices, array)
    return RowSource(
        name, len(array), array.shape[1:], array.dtype.newbyteorder("="), partial(read, 0), seek=read,
        apart=None if array.ndim == 1 else lambda row: of_array(name, array[row]), origin=array,
    )  # fmt: skip


def _slices(array: npt.NDArray[Any], first: int) -> Iterator[npt.NDArray[Any]]:
    step = max(1, CHUNK_BYTES // max(array.itemsize * int(np.prod(array.shape[1:])), 1))
    for start in range(first, len(array), step):
        yield array[start : start + step].astype(array.dtype.newbyteorder("="), order="C", copy=False)


class RowReader:
    """Takes the rows of a source as many at a time as wanted, front to back."""

    def __init__(self, rows: RowSource, first: int = 0) -> None:
        """Begins with row `first`."""
        self._rows, self._chunks = rows, rows.chunks_from(first)
        self._rest = np.empty((0, *rows.row_shape), rows.dtype)

    def take(self, count: int) -> npt.NDArray[Any]:
        """Returns [count, ...] the next rows.

        Raises:
            InputError: the source ends before.
        """
        parts, found = [self._rest[:count]], min(count, len(self._rest))
        self._rest = self._rest[count:]
        if found < count:
            parts[0] = parts[0].copy()  # a chunk may be a buffer that the next one overwrites
        while found < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise InputError(f"{self._rows.name}: found fewer than {self._rows.num_rows}; was the file changed?")
            parts.append(chunk[: count - found].copy())
            self._rest = chunk[count - found :]
            found += len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class EdgeStream:
    """The edges of one type, in any order."""

    name: str  # for messages
    num_edges: int
    chunks: EdgeSource  # yields (sources, destinations), together num_edges, the same ones at each call
    num_nodes: int | None = None  # destinations, where the source says so
    stored_bytes: int = 0  # in files, to be read at each call
    sparse: bool = False  # ids are those of a user, and nodes those that edges mention
    seek: EdgesFrom | None = None  # `chunks` from an edge on, without reading those before it
    origin: object = None  # what they are made from, if that can be named: arrays, the path of a file

    def chunks_from(self, first: int) -> Iterator[EdgeChunk]:
        """Returns `chunks`, without the first `first` edges. They are read nevertheless where there is no `seek`."""
        return edges_from(self.chunks, self.seek, first)


def as_signed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns whole numbers as int32 or int64 in native order; unsigned ones past int64 become its largest, which
    is out of every range."""
    if values.dtype in (np.int32, np.int64):
        return values
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        values = np.minimum(values, np.uint64(2**63 - 1))
    return values.astype(np.int64)


def require_whole(name: str, rows: RowSource) -> None:
    """Refuse numbers that are not of an integer dtype.

    Raises:
        InputError: fractional (any float dtype, whole values too) or boolean.
    """
    if rows.dtype.kind not in "iu":
        fraction = first_fraction(rows)
        found = {"f": "fractional numbers", "b": "truth values"}.get(rows.dtype.kind, "others")
        raise InputError(
            f"{name}: expected whole numbers, found {found} (dtype {rows.dtype}"
            + (
                "); save array.astype(np.int64) if the values are what is meant"
                if fraction is None
                else f", such as {fraction}), which are no ids: is it another array that was meant?"
            )
        )


def first_fraction(rows: RowSource) -> float | None:
    """Returns the first number with a fractional part, or infinite; None if all are whole, or NaN."""
    if rows.dtype.kind == "f":
        for chunk in rows.chunks():
            fractional = chunk[(chunk != np.trunc(chunk)) & ~np.isnan(chunk) | np.isinf(chunk)]
            if len(fractional):
                return float(fractional[0])
    return None
