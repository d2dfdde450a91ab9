"""Where a graph's sources name nodes by ids: columns of tables and arrays, read in pieces as Arrow arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import InputError
from diskgnn.importers.containers import arrays, edge_arrays
from diskgnn.importers.containers.arrays import Source, named
from diskgnn.importers.containers.rows import EdgeStream, RowSource
from diskgnn.importers.graph_input import EdgeInput
from diskgnn.importers.ids.dense_ids import id_kind
from diskgnn.importers.ids.id_streams import IdColumns, checked_keys
from diskgnn.importers.tables.table import Table, TableColumns, is_table


def node_ids(name: str, source: Source | IdColumns, columns: TableColumns) -> IdColumns:
    """The ids that an array [any number], or the id column of a table, holds.

    Raises:
        InputError: neither; no such column; ids of a type that cannot be, and while they are read, null.
    """
    if isinstance(source, IdColumns):
        return source
    if is_table(source):
        return _of_table(name, source, columns, (columns.id,), "row")
    array = _loaded(name, source)
    if array.ndim != 1:
        raise InputError(f"{name}: expected ids of shape [N], found {list(array.shape)}")
    return _of_arrays(name, (array,), "row")


def edge_ends(given: EdgeInput, owner: str) -> IdColumns | None:
    """The ids of both ends of edges that are given as a list; None if they are not."""
    if given.edges is None:
        return None
    return end_ids(named("edges", owner, given.edges), given.edges, given.columns)


def end_ids(name: str, source: Source | EdgeStream | IdColumns, columns: TableColumns) -> IdColumns:
    """The ids of both ends of edges: in an array [2, E] or [E, 2], in two columns of a table, or in a stream.

    Raises:
        InputError: none of these; no such column; ids of a type that cannot be, and while they are read, null.
    """
    if isinstance(source, IdColumns):
        return source
    if is_table(source):
        return _of_table(name, source, columns, (columns.src, columns.dst), "edge")
    if not isinstance(source, (EdgeStream, RowSource)):
        array = _loaded(name, source)
        if array.dtype.kind not in "biuf" or array.dtype == np.uint64:
            if array.ndim != 2 or 2 not in array.shape:
                raise InputError(f"{name}: expected shape [2, E] or [E, 2], found {list(array.shape)}")
            return _of_arrays(name, tuple(array if array.shape[0] == 2 else array.T), "edge")
    stream = source if isinstance(source, EdgeStream) else None
    is_sparse = stream is not None and stream.sparse
    edges = edge_arrays.edge_list(source, name)

    def read(_: int) -> Iterator[tuple[pa.Array, ...]]:
        for pair in edges.chunks():
            yield tuple(pa.array(end).cast(pa.int64()) for end in pair)

    return IdColumns(name, "edge", ("source", "destination"), (pa.int64(),) * 2, edges.num_edges, is_sparse, read)


def _of_table(name: str, source: Any, given: TableColumns, columns: tuple[str, ...], row_name: str) -> IdColumns:
    table = Table(name, source, given)
    kinds = tuple(table.field(column).type for column in columns)
    for column, kind in zip(columns, kinds, strict=True):
        if id_kind(kind) is None:
            fractional = " (fractional)" if pa.types.is_floating(kind) else ""
            raise InputError(
                f"{name}: expected whole numbers, strings, binary or UUID in column {column!r}, found "
                f"{kind}{fractional}; cast the column to int64 if the values are what is meant"
            )
    quoted = tuple(f"column {column!r}" for column in columns)

    def read(chunk_rows: int) -> Iterator[tuple[pa.Array, ...]]:
        for batch in table.batches(columns, chunk_rows):
            yield tuple(batch.columns)

    return IdColumns(
        name, row_name, quoted, kinds, table.num_rows, True, partial(checked_keys, name, row_name, quoted, read)
    )


def _of_arrays(name: str, found: Sequence[npt.NDArray[Any]], row_name: str) -> IdColumns:
    columns = ("source", "destination") if len(found) == 2 else ("ids",)
    kinds = []
    for array in found:
        try:
            kind = pa.array(array[:1000]).type
        except (pa.ArrowException, TypeError) as error:
            raise InputError(f"{name}: expected ids that are all numbers or all strings ({error})") from error
        if id_kind(kind) is None:
            raise InputError(f"{name}: expected ids (whole numbers, strings, binary or UUID), found {kind}")
        kinds.append(kind)

    def read(chunk_rows: int) -> Iterator[tuple[pa.Array, ...]]:
        for start in range(0, len(found[0]), chunk_rows):
            try:
                yield tuple(
                    pa.array(array[start : start + chunk_rows], kind) for array, kind in zip(found, kinds, strict=True)
                )
            except (pa.ArrowException, TypeError) as error:
                raise InputError(
                    f"{name}: expected ids of one type, {kinds[0]}, found others after row {start} ({error})"
                ) from error

    chunks = partial(checked_keys, name, row_name, columns, read)
    return IdColumns(name, row_name, columns, tuple(kinds), len(found[0]), False, chunks)


def _loaded(name: str, source: Source) -> npt.NDArray[Any]:
    if isinstance(source, RowSource):
        raise InputError(f"{name}: expected ids as a path or an array, found rows that can only be read in order")
    if isinstance(source, (str, os.PathLike)):
        if Path(source).suffix != ".npy":
            return arrays.load(name, source)  # or says what it is
        try:
            loaded: npt.NDArray[Any] = np.load(source, mmap_mode="r", allow_pickle=False)
            return loaded
        except (ValueError, EOFError, OSError):
            return arrays.load(name, source)
    return np.asarray(source)


def is_mask(source: Source) -> bool:
    """Whether this is an array of truth values, which needs no ids."""
    if isinstance(source, RowSource):
        return source.dtype.kind == "b"
    return not is_table(source) and _loaded("split", source).dtype.kind == "b"
