"""Edges, features, labels and splits from the columns of a table, streamed a batch at a time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import DataWarning, InputError, callers_level
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.importers.containers.rows import CHUNK_BYTES, CHUNK_EDGES, EdgeStream, RowSource, as_signed, first_fraction
from diskgnn.importers.tables.spark_vectors import is_vector, vector_lengths, vector_rows
from diskgnn.importers.tables.table import Table, TableColumns

_SPLITS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
_FEATURE_TYPES = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64, pa.int8(): np.int8}


def edges(path: str | os.PathLike[str], columns: TableColumns, name: str = "edges") -> EdgeStream:
    """An edge for each row of a table.

    Raises:
        InputError: a column is missing, has no whole numbers, or (while streaming) holds null.
    """
    table = Table(name, path, columns)
    for column in (columns.src, columns.dst):
        if not pa.types.is_integer(table.field(column).type):
            raise no_integers(table, column)

    def read(position: int) -> Iterator[EdgeChunk]:
        for batch in table.batches([columns.src, columns.dst], CHUNK_EDGES, position):
            src, dst = (_ids(batch.column(column), name, column, position) for column in (columns.src, columns.dst))
            yield (src, dst) if src.dtype == dst.dtype else (src.astype(np.int64), dst.astype(np.int64))
            position += batch.num_rows

    return EdgeStream(name, table.num_rows, partial(read, 0), stored_bytes=table.stored_bytes, seek=read)


def no_integers(
    table: Table,
    column: str,
    expected: str = "whole numbers",
    about_fractions: str = "is it another column that was meant?",
) -> InputError:
    """What is wrong with a column that is not of whole numbers, and what mends it: the cast that is advised loses
    nothing, so the column is read for fractions first.
    """
    kind = table.field(column).type
    found = f"{table.name}: expected {expected} in column {column!r}, found {kind}"
    if pa.types.is_floating(kind) and (fraction := first_fraction(numbers(table, column, table.name))) is not None:
        return InputError(f"{found}, such as {fraction}: {about_fractions}")
    return InputError(f"{found}; cast the column to int64 if the values are what is meant")


def _ids(column: pa.Array, table: str, name: str, position: int) -> npt.NDArray[Any]:
    if column.null_count:
        row = position + int(np.asarray(column.is_null()).argmax())
        raise InputError(f"{table}: expected a node id in column {name!r}, found null in edge {row} (counted from 0)")
    return as_signed(np.asarray(column))


def features(table: Table, columns: TableColumns, row_name: str = "features") -> RowSource:
    """Feature rows [N, D] of a node table. Null becomes NaN; other numbers than float16 and int8 become float32.

    Raises:
        InputError: no such column or no numbers, or (while streaming) lists of different lengths or null in int8.
    """
    names = _feature_columns(table, columns)
    kinds = [table.field(name).type for name in names]
    if len(names) == 1 and (is_list(kinds[0]) or is_vector(kinds[0])):
        return _list_features(table, names[0], row_name)
    for name, kind in zip(names, kinds, strict=True):
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise InputError(f"features: expected numbers in column {name!r}, found {kind}")
    dtype = np.dtype(_FEATURE_TYPES.get(kinds[0], np.float32) if len(set(kinds)) == 1 else np.float32)
    if any(kind not in _FEATURE_TYPES or pa.types.is_float64(kind) for kind in kinds):
        dtype = _narrowed(sorted({str(kind) for kind in kinds}))

    def read(batch: pa.RecordBatch, position: int) -> npt.NDArray[Any]:
        rows = np.empty((batch.num_rows, len(names)), dtype)
        for column, name in enumerate(names):
            values = batch.column(name)
            if dtype == np.int8 and values.null_count:
                raise InputError(f"features: column {name!r} of int8 holds null after row {position}; fill it")
            with np.errstate(over="ignore"):
                rows[:, column] = values.to_numpy(zero_copy_only=False)
        return rows

    return _rows(table, row_name, names, (len(names),), dtype, read)


def has_features(table: Table, columns: TableColumns) -> bool:
    """Whether `features` would find any."""
    if columns.features is not None:
        return len(columns.features) > 0
    return "features" in table.schema.names or bool(_number_columns(table, columns))


def _number_columns(table: Table, columns: TableColumns) -> list[str]:
    """Columns of numbers without another role."""
    taken = (columns.id, columns.only_label, columns.split, columns.time, columns.weight)
    return [
        field.name
        for field in table.schema
        if field.name not in taken and (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
    ]


def _feature_columns(table: Table, columns: TableColumns) -> list[str]:
    if isinstance(columns.features, str):
        return [columns.features]
    if columns.features is not None:
        return list(columns.features)
    if "features" in table.schema.names:
        return ["features"]
    names = _number_columns(table, columns)
    if not names:
        raise InputError(f"features: found no column 'features' and no columns of numbers in {table.schema.names}")
    return names


def is_list(kind: pa.DataType) -> bool:
    """Whether this is the type of a column of lists, whatever Arrow calls them."""
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _list_features(table: Table, name: str, row_name: str) -> RowSource:
    kind = table.field(name).type
    value_kind = pa.float64() if is_vector(kind) else kind.value_type
    if value_kind not in _FEATURE_TYPES:
        raise InputError(f"features: expected lists of float32, float16 or int8 in {name!r}, found {kind}")
    dtype = _narrowed([str(kind)]) if pa.types.is_float64(value_kind) else np.dtype(_FEATURE_TYPES[value_kind])
    if pa.types.is_fixed_size_list(kind):
        width = kind.list_size
    else:
        first = next(table.batches([name], 1), None)
        width = 0 if first is None else int(_lengths(first.column(0))[0])
    if width <= 0:
        raise InputError(f"features: expected lists of at least one number in column {name!r}, found none")

    def read(batch: pa.RecordBatch, position: int) -> npt.NDArray[Any]:
        lists = batch.column(0)
        lengths = _lengths(lists)
        if (lengths != width).any():
            row = int((lengths != width).argmax())
            raise InputError(
                f"features: expected {width} numbers in every list of {name!r}, found "
                f"{'null' if lengths[row] < 0 else lengths[row]} in row {position + row}"
            )
        if is_vector(lists.type):
            return vector_rows(lists, width, dtype)
        values = lists.flatten()
        if dtype == np.int8 and values.null_count:
            raise InputError(f"features: lists of int8 in {name!r} hold null after row {position}; fill them")
        with np.errstate(over="ignore"):
            return np.asarray(values.to_numpy(zero_copy_only=False), dtype).reshape(-1, width)

    return _rows(table, row_name, [name], (width,), dtype, read)


def _lengths(lists: pa.Array) -> npt.NDArray[np.int64]:
    """[n] of each list or vector; -1 for null."""
    if is_vector(lists.type):
        return vector_lengths(lists)
    return np.asarray(pc.list_value_length(lists).cast(pa.int64()).fill_null(-1))


def _narrowed(kinds: list[str]) -> np.dtype[Any]:
    warnings.warn(
        f"features are {', '.join(kinds)} and become float32 here; cast them to float32 to do without this",
        DataWarning,
        stacklevel=callers_level(),
    )
    return np.dtype(np.float32)


def _rows(
    table: Table,
    name: str,
    columns: list[str],
    row_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    read: Callable[[pa.RecordBatch, int], npt.NDArray[Any]],
) -> RowSource:
    batch_rows = max(1, CHUNK_BYTES // (int(np.prod(row_shape)) * dtype.itemsize))

    def chunks(position: int) -> Iterator[npt.NDArray[Any]]:
        for batch in table.batches(columns, batch_rows, position):
            yield read(batch, position)
            position += batch.num_rows

    return RowSource(
        name, table.num_rows, row_shape, dtype, partial(chunks, 0), stored_bytes=table.stored_bytes, seek=chunks
    )


def labels(table: Table, columns: TableColumns, name: str = "labels") -> RowSource:
    """Labels [N] of a node table as int64, -1 for null.

    Raises:
        InputError: no such column, or no whole numbers.
    """
    if not pa.types.is_integer(table.field(columns.only_label).type):
        advice = "for regression, give the nodes `task: regression` in a `schema`"
        raise no_integers(table, columns.only_label, about_fractions=advice)

    def read(batch: pa.RecordBatch, position: int) -> npt.NDArray[Any]:
        column = batch.column(0)
        values = as_signed(column.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)
        return np.where(column.is_null().to_numpy(zero_copy_only=False), -1, values)

    return _rows(table, name, [columns.only_label], (), np.dtype(np.int64), read)


def numbers(table: Table, column: str, name: str) -> RowSource:
    """Whatever numbers a column [N], or a column of lists of equal lengths [N, C], holds. Null becomes NaN, and other
    numbers of such a column floats.

    Raises:
        InputError: no such column, no numbers, or (while streaming) lists of different lengths.
    """
    kind = table.field(column).type
    is_list = pa.types.is_fixed_size_list(kind)
    width: tuple[int, ...] = (kind.list_size,) if is_list else ()
    value_kind = kind.value_type if is_list else kind
    if not (pa.types.is_integer(value_kind) or pa.types.is_floating(value_kind) or pa.types.is_boolean(value_kind)):
        raise InputError(f"{name}: expected numbers, or fixed-size lists of them, in column {column!r}, found {kind}")
    dtype = np.dtype(np.float64 if pa.types.is_floating(value_kind) else np.int64)

    def read(batch: pa.RecordBatch, position: int) -> npt.NDArray[Any]:
        values = batch.column(0)
        if values.null_count and width:
            raise InputError(f"{name}: expected a list in each row of {column!r}, found null after row {position}")
        values = values.flatten() if width else values
        if pa.types.is_boolean(value_kind):
            values = values.cast(pa.uint8())
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, *width)

    return _rows(table, name, [column], width, dtype, read)


def splits(table: Table, columns: TableColumns) -> dict[str, npt.NDArray[np.int64]]:
    """Node ids of each split that the split column names.

    Raises:
        InputError: no such column, no text in it, or a split of another name.
    """
    kind = table.field(columns.split).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"splits: expected 'train', 'valid' or 'test' in column {columns.split!r}, found {kind}")
    found: dict[str, list[npt.NDArray[np.int64]]] = {}
    position = 0
    for batch in table.batches([columns.split], CHUNK_EDGES):
        encoded = batch.column(0).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for code, word in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            if not word or not len(rows):
                continue
            if word not in _SPLITS:
                raise InputError(
                    f"splits: expected train, valid, test or null in column {columns.split!r}, found {word!r} in "
                    f"row {position + int(rows[0])}"
                )
            found.setdefault(_SPLITS[word], []).append(rows.astype(np.int64) + position)
        position += batch.num_rows
    return {split: np.concatenate(found[split]) for split in ("train", "valid", "test") if split in found}
