"""Where a graph's sources name nodes by ids: columns of tables and arrays, read in pieces as Arrow arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import DataWarning, InputError, callers_level
from diskgnn.importers.containers import arrays, edge_arrays
from diskgnn.importers.containers.arrays import Source, named
from diskgnn.importers.containers.rows import EdgeStream, RowReader, RowSource
from diskgnn.importers.graph_input import EdgeInput
from diskgnn.importers.ids.id_streams import IdColumns, checked_keys
from diskgnn.importers.ids.id_types import id_kind
from diskgnn.importers.tables.table import Table, TableColumns, is_table
from diskgnn.importers.tables.table_rows import no_integers


def node_ids(name: str, source: Source | IdColumns, columns: TableColumns) -> IdColumns:
    """Returns the ids that an array [any number], or the id column of a table, holds.

    Raises:
        InputError: neither; no such column; ids of a type that cannot be, and while they are read, null.
    """
    if isinstance(source, IdColumns):
        return source
    if is_table(source):
        return _of_table(name, source, columns, (_id_column(name, source, columns),), "row")
    rows = _items(name, source)
    if rows.row_shape == (1,):
        rows = rows.mapped((), rows.dtype, lambda chunk: chunk.reshape(-1))
    if rows.row_shape:
        raise InputError(f"{name}: expected ids of shape [N], found {rows.shape}")
    return _of_rows(name, "row", ("ids",), rows.num_rows, lambda first: partial(_at_once, RowReader(rows, first)))


def _id_column(name: str, source: Any, columns: TableColumns) -> str:
    """Returns the column that was named; or "id", where that was said of the table of nodes, and this is one of
    splits."""
    found = Table(name, source, columns).schema.names
    return "id" if columns.id is None or (columns.id not in found and "id" in found) else columns.id


def edge_ends(given: EdgeInput, owner: str) -> IdColumns | None:
    """Returns the ids of both ends of edges that are given as a list; None if they are not."""
    if given.edges is None:
        return None
    return end_ids(named("edges", owner, given.edges), given.edges, given.columns)


def end_ids(name: str, source: Source | EdgeStream | IdColumns, columns: TableColumns) -> IdColumns:
    """Returns the ids of both ends of edges: in an array [2, E] or [E, 2], in two columns of a table, or in a stream.

    Raises:
        InputError: none of these; no such column; ids of a type that cannot be, and while they are read, null.
    """
    if isinstance(source, IdColumns):
        return source
    if is_table(source):
        return _of_table(name, source, columns, (columns.src, columns.dst), "edge")
    if not isinstance(source, (EdgeStream, RowSource)):
        rows = _items(name, source)
        if rows.dtype.kind not in "biuf" or rows.dtype == np.uint64:
            return _of_ends(name, rows)
        source = rows
    edges = edge_arrays.edge_list(source, name)

    def read(_: int, first: int) -> Iterator[tuple[pa.Array, ...]]:
        for pair in edges.chunks_from(first):
            yield tuple(pa.array(end).cast(pa.int64()) for end in pair)

    return IdColumns(
        name, "edge", ("source", "destination"), (pa.int64(),) * 2, edges.num_edges, edges.sparse, read
    )  # fmt: skip


def _of_table(name: str, source: Any, given: TableColumns, columns: tuple[str, ...], row_name: str) -> IdColumns:
    table = Table(name, source, given)
    kinds = tuple(table.field(column).type for column in columns)
    for column, kind in zip(columns, kinds, strict=True):
        if id_kind(kind) is None:
            raise no_integers(table, column, "whole numbers, strings, binary or UUID")
    quoted = tuple(f"column {column!r}" for column in columns)
    for column in columns:
        if column not in given.types and (text := table.leading_zeros(column)) is not None:
            warnings.warn(
                f"{name}: column {column!r} is read as numbers, so {text} is {int(text)}; to keep the zeros, say "
                f"types={column}:string in `columns`",
                DataWarning,
                stacklevel=callers_level(),
            )

    def read(chunk_rows: int, first: int) -> Iterator[tuple[pa.Array, ...]]:
        for batch in table.batches(columns, chunk_rows, first):
            yield tuple(batch.columns)

    return IdColumns(
        name,
        row_name,
        quoted,
        kinds,
        table.num_rows,
        True,
        partial(checked_keys, name, row_name, quoted, read, line=table.place),
        path=str(table.path),
        line=table.place,
    )


Read = Callable[[int], tuple[npt.NDArray[Any], ...]]  # so many rows that follow, of each column


def _at_once(reader: RowReader, count: int) -> tuple[npt.NDArray[Any], ...]:
    return (reader.take(count),)


def _of_ends(name: str, rows: RowSource) -> IdColumns:
    if len(rows.row_shape) != 1 or 2 not in rows.shape:
        raise InputError(f"{name}: expected shape [2, E] or [E, 2], found {rows.shape}")
    columns = ("source", "destination")
    if rows.num_rows != 2:

        def in_pairs(first: int) -> Read:
            reader = RowReader(rows, first)
            return lambda count: tuple(reader.take(count).T)

        return _of_rows(name, "edge", columns, rows.num_rows, in_pairs)
    assert rows.apart is not None  # arrays and .npy files have it
    ends = rows.apart(0), rows.apart(1)

    def apart(first: int) -> Read:
        readers = [RowReader(each, first) for each in ends]
        return lambda count: tuple(reader.take(count) for reader in readers)

    return _of_rows(name, "edge", columns, ends[0].num_rows, apart)


def _of_rows(
    name: str, row_name: str, columns: tuple[str, ...], num_rows: int, open_at: Callable[[int], Read]
) -> IdColumns:
    """Columns of arrays, which what `open_at` returns for a row yields from there on."""
    kinds = []
    for array in open_at(0)(min(num_rows, 1000)):
        try:
            kind = pa.array(array).type
        except (pa.ArrowException, TypeError) as error:
            raise InputError(f"{name}: expected ids that are all numbers or all strings ({error})") from error
        if id_kind(kind) is None:
            raise InputError(f"{name}: expected ids (whole numbers, strings, binary or UUID), found {kind}")
        kinds.append(kind)

    def read(chunk_rows: int, first: int) -> Iterator[tuple[pa.Array, ...]]:
        take = open_at(first)
        for start in range(first, num_rows, chunk_rows):
            found = take(min(chunk_rows, num_rows - start))
            try:  # of copies: the next rows may come in the same memory
                yield tuple(pa.array(array.copy(), kind) for array, kind in zip(found, kinds, strict=True))
            except (pa.ArrowException, TypeError) as error:
                raise InputError(
                    f"{name}: expected ids of one type, {kinds[0]}, found others after row {start} ({error})"
                ) from error

    chunks = partial(checked_keys, name, row_name, columns, read)
    return IdColumns(name, row_name, columns, tuple(kinds), num_rows, False, chunks)


def _items(name: str, source: Source) -> RowSource:
    if isinstance(source, RowSource):
        raise InputError(f"{name}: expected ids as a path or an array, found rows that can only be read in order")
    return arrays.items(name, source)


def is_mask(source: Source) -> bool:
    """Returns whether this is an array of truth values, which needs no ids."""
    if isinstance(source, RowSource):
        return source.dtype.kind == "b"
    return not is_table(source) and _items("split", source).dtype.kind == "b"
