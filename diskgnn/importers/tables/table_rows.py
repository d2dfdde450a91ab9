"""Edges, features, labels and splits from the columns of a table, streamed a batch at a time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.importers.class_labels import ClassLabels, KnownClasses, LabelColumn, class_labels, is_value
from diskgnn.importers.containers.rows import CHUNK_BYTES, CHUNK_EDGES, EdgeStream, RowSource, as_signed, first_fraction
from diskgnn.importers.source_listing import SourceListing
from diskgnn.importers.tables.column_encoding import (
    KnownColumns,
    TableEncoding,
    encoded_rows,
    find_statistics,
)
from diskgnn.importers.tables.column_values import natural_encoding
from diskgnn.importers.tables.frames import RowTable
from diskgnn.importers.tables.spark_vectors import is_vector, vector_lengths, vector_rows
from diskgnn.importers.tables.table import Table, TableColumns
from diskgnn.importers.tables.times import seconds
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.null_times import MISSING
from diskgnn.specs.schema import ClassValue

_SPLITS = {"train": "train", "training": "train", "valid": "valid", "val": "valid", "validation": "valid",
           "dev": "valid", "test": "test", "testing": "test"}  # fmt: skip
_FEATURE_TYPES = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64, pa.int8(): np.int8}


def edges(path: str | os.PathLike[str], columns: TableColumns, name: str = "edges") -> EdgeStream:
    """Returns an edge for each row of a table.

    Raises:
        InputError: a column is missing, has no whole numbers, or (while streaming) holds null.
    """
    table = Table(name, path, columns)
    for column in (columns.src, columns.dst):
        if not pa.types.is_integer(table.field(column).type):
            raise no_integers(table, column)

    def read(position: int) -> Iterator[EdgeChunk]:
        for batch in table.batches([columns.src, columns.dst], CHUNK_EDGES, position):
            src, dst = (_ids(batch.column(column), table, column, position) for column in (columns.src, columns.dst))
            yield (src, dst) if src.dtype == dst.dtype else (src.astype(np.int64), dst.astype(np.int64))
            position += batch.num_rows

    return EdgeStream(name, table.num_rows, partial(read, 0), stored_bytes=table.stored_bytes, seek=read)


def no_integers(table: Table, column: str, expected: str = "whole numbers") -> InputError:
    """Returns what is wrong with a column that is not of whole numbers, and what mends it: the cast that is advised
    loses nothing, so the column is read for fractions first.
    """
    kind = table.field(column).type
    found = f"{table.name}: expected {expected} in column {column!r}, found {kind}"
    if pa.types.is_floating(kind) and (fraction := first_fraction(numbers(table, column, table.name))) is not None:
        return InputError(f"{found}, such as {fraction}: is it another column that was meant?")
    if pa.types.is_floating(kind) and table.is_csv:
        return InputError(
            f"{found}: numbers with a point; write whole numbers without one (pandas: "
            f"table[{column!r}].astype('Int64')), or say that they are text (`columns`, types={column}:string)"
        )
    return InputError(f"{found}; cast the column to int64 if the values are what is meant")


def _ids(column: pa.Array, table: Table, name: str, position: int) -> npt.NDArray[Any]:
    if column.null_count:
        row = position + int(np.asarray(column.is_null()).argmax())
        raise InputError(
            f"{table.name}: expected a node id in column {name!r}, found null in edge {row} (counted from 0)"
            f"{table.place(row)}; fill it in, or delete the row"
        )
    return as_signed(np.asarray(column))


def features(
    table: Table,
    columns: TableColumns,
    row_name: str,
    taken: Collection[str],
    of: str,
    listing: SourceListing,
    known: KnownColumns | None = None,
) -> RowSource | None:
    """Returns the feature rows [N, D] of a table; None if it has no column that can be one.

    A column of vectors alone, and columns of numbers that were named, keep their values: null becomes NaN, other
    numbers than float16 and int8 become float32. All other columns are encoded as `column_encoding` says.

    Args:
        table: of nodes or edges.
        columns: which columns, and their encodings.
        row_name: of the rows, for messages.
        taken: columns that have another role.
        of: the type of the nodes or edges, for `listing`.
        listing: is told what becomes of each column without another role.
        known: which columns, and their encodings, in place of those of `columns`.

    Raises:
        InputError: no such column, or (while streaming) lists of different lengths or null in int8.
        ConfigError: an encoding that is none, or of a column that is no feature.
    """
    free = [name for name in table.schema.names if name not in taken]
    named = [columns.features] if isinstance(columns.features, str) else columns.features
    if named is not None and len({*named}) < len(named):
        raise ConfigError(f"{row_name}: features: expected different columns, found {', '.join(named)}")
    if known is not None:
        return _known_features(table, columns.encode, named or (), row_name, free, of, listing, known)
    names = list(named) if named is not None else ["features"] if "features" in free else free
    reason = "not among the columns of features that were named" if named else "the column 'features' is taken alone"
    for name in free:
        if name not in names:
            listing.leave_out(of, name, reason, expected=named is not None)
    kinds = {name: table.field(name).type for name in names}
    as_they_are = named is not None or names == ["features"]
    asked = {name: "raw" for name, kind in kinds.items() if as_they_are and _is_number(kind)}
    if named is not None:  # what cannot be encoded is an error then, and not left out
        asked = {name: natural_encoding(kind) for name, kind in kinds.items()} | asked
        if unusable := [name for name, encoding in asked.items() if encoding == "none" and name not in columns.encode]:
            raise InputError(
                f"{row_name}: expected numbers, times, truth values, text or vectors in column {unusable[0]!r}, found "
                f"{kinds[unusable[0]]}"
            )
    asked |= columns.encode
    encoding = TableEncoding(table.name, kinds, asked, said=columns.encode)
    for name in encoding.columns:
        _warn_of_thousands(table, name)
    if as_they_are and len(names) == 1 and names[0] not in columns.encode and _is_vectors(kinds[names[0]]):
        rows = _list_features(table, names[0], row_name)
        listing.read(of, names[0], "features", "vector", rows.row_shape[0])
        return rows
    if names and all(asked.get(name) == "raw" and _is_number(kind) for name, kind in kinds.items()):
        for name in names:
            listing.read(of, name, "features", "raw", 1)
        return _raw_features(table, names, row_name)
    find_statistics(encoding, table)
    encoding.list_columns(of, listing)
    return encoded_rows(row_name, table, encoding) if encoding.columns else None


def _known_features(
    table: Table,
    encode: Mapping[str, str],
    named: Sequence[str],
    row_name: str,
    free: Sequence[str],
    of: str,
    listing: SourceListing,
    known: KnownColumns,
) -> RowSource:
    """Returns features as another graph has them, matched by the names of columns."""
    names = [column.name for column in known.columns]
    for name in {*names} & {*free}:
        _warn_of_thousands(table, name)
    if unknown := [name for name in named if name not in names]:
        raise ConfigError(
            f"{row_name}: features: {known.graph} has no feature {unknown[0]!r}; leave it out, `encoding_of` says "
            f"which columns are features"
        )
    encoding = TableEncoding(table.name, {name: table.field(name).type for name in free}, encode, known=known)
    kinds = [table.field(name).type for name in names]
    rows: RowSource | None = None
    if len(names) == 1 and names[0] not in encode and _is_vectors(kinds[0]):
        rows = _list_features(table, names[0], row_name)
        if rows.row_shape[0] != known.columns[0].width:
            raise InputError(
                f"{row_name}: expected {known.columns[0].width} numbers in every list of {names[0]!r}, as in "
                f"{known.graph}, found {rows.row_shape[0]}"
            )
    elif names and all(
        column.encoding == "raw" and _is_number(kind) for column, kind in zip(known.columns, kinds, strict=True)
    ):
        rows = _raw_features(table, names, row_name)
    else:
        find_statistics(encoding, table)
    encoding.list_columns(of, listing)
    return rows or encoded_rows(row_name, table, encoding)


def _warn_of_thousands(table: Table, column: str) -> None:
    if (found := table.thousands(column)) is not None:
        whole, grouped = found
        warnings.warn(
            f"{table.name}: column {column!r} has numbers such as {whole} and {grouped}, which is read as "
            f"{float(grouped):g}: if the dot groups thousands, take it out; if not, say types={column}:double in "
            f"`columns`",
            DataWarning,
            stacklevel=callers_level(),
        )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_vectors(kind: pa.DataType) -> bool:
    return is_list(kind) or is_vector(kind)


def _raw_features(table: Table, names: list[str], row_name: str) -> RowSource:
    kinds = [table.field(name).type for name in names]
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

    rows = _rows(table, row_name, names, (len(names),), dtype, read)
    return replace(rows, columns=tuple(FeatureColumn(name, "raw") for name in names))


def is_list(kind: pa.DataType) -> bool:
    """Returns whether this is the type of a column of lists, whatever Arrow calls them."""
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

    rows = _rows(table, row_name, [name], (width,), dtype, read)
    return replace(rows, columns=(FeatureColumn(name, "vector", width),))


def _lengths(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Returns [n] the length of each list or vector; -1 for null."""
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
    table: RowTable,
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


def labels(
    table: Table,
    column: str,
    name: str,
    num_classes: int | None,
    classes: tuple[ClassValue, ...] | None = None,
    known: KnownClasses | None = None,
) -> ClassLabels:
    """Returns the classes of the nodes of a table.

    Raises:
        InputError: no such column, or no whole numbers, text or truth values.
    """
    kind = table.field(column).type
    if not is_value(kind):
        raise InputError(f"{name}: expected whole numbers, text or truth values in column {column!r}, found {kind}")

    def read(first: int) -> Iterator[pa.Array]:
        return (batch.column(0) for batch in table.batches([column], CHUNK_EDGES, first))

    column_of_labels = LabelColumn(name, table.num_rows, kind, read, table.stored_bytes)
    return class_labels(column_of_labels, num_classes, classes, known)


def times(table: RowTable, column: str, name: str) -> RowSource:
    """Returns times [N] int64 of nodes or edges, in seconds since 1970 unless they are whole numbers; `MISSING` where
    there is none.

    Raises:
        InputError: no such column, or (while streaming) something else than times.
    """
    table.field(column)
    name = f"{name}, column {column!r}"

    def read(batch: pa.RecordBatch, position: int) -> npt.NDArray[Any]:
        return np.asarray(seconds(batch.column(0), name).fill_null(MISSING))

    return _rows(table, name, [column], (), np.dtype(np.int64), read)


def numbers(table: Table, column: str, name: str) -> RowSource:
    """Returns whatever numbers a column [N], or a column of lists of equal lengths [N, C], holds. Null becomes NaN, and
    other numbers of such a column floats.

    Raises:
        InputError: no such column, no numbers, or (while streaming) lists of different lengths.
    """
    kind = table.field(column).type
    has_lists = pa.types.is_fixed_size_list(kind)
    width: tuple[int, ...] = (kind.list_size,) if has_lists else ()
    value_kind = kind.value_type if has_lists else kind
    _warn_of_thousands(table, column)
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


def splits(table: Table, column: str) -> dict[str, npt.NDArray[np.int64]]:
    """Returns the node ids of each split that the words of a column name.

    Raises:
        InputError: no such column, no text in it, or a split of another name.
    """
    kind = table.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"splits: expected 'train', 'valid' or 'test' in column {column!r}, found {kind}")
    found: dict[str, list[npt.NDArray[np.int64]]] = {}
    position = 0
    for batch in table.batches([column], CHUNK_EDGES):
        encoded = batch.column(0).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for code, word in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            if not word or not len(rows):
                continue
            split = _SPLITS.get(word.strip().lower())
            if split is None:
                raise InputError(
                    f"splits: expected train, valid (or val), test or null in column {column!r}, found {word!r} in "
                    f"row {position + int(rows[0])}"
                )
            found.setdefault(split, []).append(rows.astype(np.int64) + position)
        position += batch.num_rows
    return {split: np.concatenate(found[split]) for split in ("train", "valid", "test") if split in found}
