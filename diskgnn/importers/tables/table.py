"""Tables of nodes and of edges: Parquet or CSV, one file or a folder of parts, read a batch at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import TypeGuard

import pyarrow as pa

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.containers.compressed_text import COMPRESSED
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.tables import csv_parts, parquet_parts
from diskgnn.importers.tables.dictionaries import decoded
from diskgnn.importers.tables.parts import TablePart, partition_values
from diskgnn.specs.near_names import near_name
from diskgnn.stores.locations import Location, StoredPath, bytes_of, located

_USUAL = {"src", "dst", "id", "features", "label", "split", "time", "weight"}  # names that say what a column is
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"}


@dataclass(frozen=True)
class TableColumns:
    """Says what the columns of tables are called, and how to read those of CSV files."""

    src: str = "src"  # edge table: ids of nodes
    dst: str = "dst"
    # Node table: ids of nodes. None: a column "id", or else the one that edges refer to; without either, nodes are
    # numbered in the order of the rows.
    id: str | None = None
    # Node table: a column of lists, or several columns, of which numbers are taken as they are. None: "features" if
    # there is such a column, otherwise all columns that have no other role, encoded. Edge table: None takes none.
    features: str | Sequence[str] | None = None
    # Classes: whole numbers, text or truth values; null for none. Of seeds: a list of labels, or several columns. None:
    # "label" if there is such a column; the same of "split".
    label: str | Sequence[str] | None = None
    split: str | None = None  # "train", "valid" or "test"; null or "" for none
    time: str | None = None  # of a node or edge table: whole numbers, timestamps, dates, or text such as 2024-01-31
    weight: str | None = None  # of an edge table: numbers, 0 or more
    encode: Mapping[str, str] = field(default_factory=dict)  # of columns that become features: how (`ENCODINGS`)
    exclude: Sequence[str] = ()  # columns to leave out, as if the table did not have them
    names: Sequence[str] | None = None  # of all columns of a CSV file that has no line with their names
    delimiter: str | None = None  # of a CSV file; None: whichever of , ; | tab and space its first line has most of
    types: Mapping[str, str] = field(default_factory=dict)  # of CSV columns, as Arrow calls them: {"id": "string"}

    def __post_init__(self) -> None:
        if isinstance(self.exclude, str):
            object.__setattr__(self, "exclude", (self.exclude,))

    @property
    def only_label(self) -> str:
        """Returns what the column of labels is called, where there is one label for each row.

        Raises:
            ConfigError: several.
        """
        if self.label is not None and not isinstance(self.label, str):
            raise ConfigError(f"columns: expected one column of labels, found {', '.join(self.label)}")
        return self.label or "label"

    def label_in(self, table: Table) -> str | None:
        """Returns the column of labels of a table of nodes, if it has one.

        Raises:
            InputError: the one that was named is not there.
        """
        return _find_name(self.only_label, table, is_named=self.label is not None)

    def split_in(self, table: Table) -> str | None:
        """Returns the column of splits of a table of nodes, if it has one.

        Raises:
            InputError: the one that was named is not there.
        """
        return _find_name(self.split or "split", table, is_named=self.split is not None)

    def id_in(self, table: Table) -> str | None:
        """Returns the column of ids of a table of nodes, if it has one.

        Raises:
            InputError: the one that was named is not there.
        """
        return _find_name(self.id or "id", table, is_named=self.id is not None)


def _find_name(name: str, table: Table, *, is_named: bool) -> str | None:
    return str(table.field(name).name) if is_named or name in table.schema.names else None


def is_table(path: object) -> TypeGuard[str | os.PathLike[str]]:
    """Returns whether this is the path of a Parquet or CSV file, or of a folder (of such files)."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    path = located(path)
    return path.is_dir() or _kind(path) is not None


def _kind(path: Location) -> str | None:
    """Returns whether a file is "parquet" or "csv", by its name or else by its first bytes; None: neither."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]  # of CSV; Parquet is compressed inside
    named = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if named is not None or path.suffix in (".npy", ".npz"):
        return named
    found = kind_of(path)
    return "parquet" if found == "parquet" else "csv" if found in ("csv", "csv.gz") else None


def table_files(path: Location) -> list[Location]:
    """Returns the files of a table in the order of their paths: `path` itself, or the parts in a folder, without hidden
    ones.

    Names that begin with a dot or `_`, as those of Spark's `_SUCCESS` and checksums, are hidden.
    """
    if not path.is_dir():
        return [path]
    if isinstance(path, StoredPath):
        return [file for file in path.files() if not _is_hidden(file.relative_to(path)) and _kind(file) is not None]
    found: list[Location] = []
    for file in sorted(path.rglob("*")):
        if not _is_hidden(file.relative_to(path)) and file.is_file() and _kind(file) is not None:
            found.append(file)
    return found


def _is_hidden(path: PurePath) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


class Table:
    """One Parquet or CSV file, or a folder of them in the order of their paths.

    A folder's parts have the same columns. Where it has folders named `column=value` (as Spark and Hive partition
    tables), each makes a column, too. Dictionary-encoded columns are decoded.

    Args:
        name: for messages.
        path: a file or folder.
        columns: how to read CSV files, and which columns to leave out, if they are there.

    Attributes:
        schema: the columns, without those that are left out.
        excluded: names of those that are left out.

    Raises:
        InputError: nothing there, no table, parts of both kinds, or parts whose columns differ.
    """

    def __init__(self, name: str, path: str | os.PathLike[str], columns: TableColumns | None = None) -> None:
        self.name, self.path = name, located(path)
        if isinstance(self.path, Path) and not self.path.exists():
            raise InputError(f"{name}: expected a table, found no file {path}")
        columns = columns or TableColumns()
        files = table_files(self.path)
        kinds = {_kind(file) for file in files}
        if len(kinds) != 1 or None in kinds:
            found = "both" if len(kinds) > 1 else describe(self.path)
            raise InputError(f"{name}: expected Parquet files or CSV files in {path}, found {found}")
        self._parts: list[TablePart] = [
            parquet_parts.ParquetPart(name, file) if kinds == {"parquet"} else
            csv_parts.CsvPart(name, file, columns.names, columns.delimiter, columns.types)
            for file in files
        ]  # fmt: skip
        self._partitions = partition_values(self.path, files)
        found = self._common_schema()
        self.excluded = [name for name in found.names if name in columns.exclude]
        self.schema = pa.schema([column for column in found if column.name not in self.excluded])
        self.stored_bytes = sum(map(bytes_of, files))
        self._refuse_spaces_around(columns)

    def _common_schema(self) -> pa.Schema:
        first = self._parts[0]
        expected = {found.name: found.type for found in first.schema}
        for part in self._parts[1:]:
            found = {column.name: column.type for column in part.schema}
            if found == expected:
                continue
            different = next(name for name in [*expected, *found] if expected.get(name) != found.get(name))
            raise InputError(
                f"{self.name}: expected the columns of {first.path} in every part, found column {different!r} "
                f"{_type_words(found.get(different))} in {part.path}, which is {_type_words(expected.get(different))} "
                f"in the first part; write the parts with one schema"
            )
        added = [pa.field(name, values.type) for name, values in self._partitions.items() if name not in expected]
        return pa.schema([pa.field(name, kind) for name, kind in expected.items()] + added)

    def _refuse_spaces_around(self, columns: TableColumns) -> None:
        """Refuse ' label' where it would be a feature and no label, because nobody wrote the space on purpose."""
        said = {columns.src, columns.dst, columns.id, columns.split, columns.time, columns.weight}
        for several in (columns.features, columns.label):
            said |= {several} if isinstance(several, str) else {*(several or ())}
        for name in self.schema.names:
            if (bare := name.strip()) != name and bare in _USUAL and bare not in self.schema.names and name not in said:
                raise InputError(
                    f"{self.name}: expected names of columns without spaces around them, found {name!r} in "
                    f"{self.path}; take out the spaces beside delimiters, for example: sed 's/ *, */,/g' OLD > NEW"
                )

    @cached_property
    def num_rows(self) -> int:
        """Returns the rows of all parts. Those of CSV files are counted by reading them."""
        return sum(self._rows_of_parts)

    @cached_property
    def _rows_of_parts(self) -> tuple[int, ...]:
        return tuple(part.count_rows() for part in self._parts)

    def field(self, column: str) -> pa.Field:
        """Returns the column's name and type.

        Raises:
            InputError: there is no such column; names those that there are.
        """
        if self.schema.get_field_index(column) < 0:
            hint = (
                f" (it is excluded, but the graph cannot do without it as it is: leave {column!r} out of `exclude`)"
                if column in self.excluded
                else self._parts[0].missing_column_hint
            )
            raise InputError(
                f"{self.name}: expected a column {column!r} in {self.path}, found {self.schema.names}{hint}"
                f"{near_name(column, self.schema.names)}"
            )
        self._require_one(column)
        return self.schema.field(column)

    @property
    def is_csv(self) -> bool:
        """Returns True of CSV files, False of Parquet."""
        return isinstance(self._parts[0], csv_parts.CsvPart)

    def place(self, row: int) -> str:
        """Names the place of a row, for the end of a message: ", line 5 of FILE" in CSV, "" in Parquet."""
        for part, num_rows in zip(self._parts, self._rows_of_parts, strict=True):
            if row < num_rows:
                return f", {part.line_of(row)} of {part.path}" if isinstance(part, csv_parts.CsvPart) else ""
            row -= num_rows
        return ""

    def leading_zeros(self, column: str) -> str | None:
        """Returns text in a CSV file such as 007, which is read as the number 7; None if none was found in its
        first rows."""
        first = self._parts[0]
        return (
            first.leading_zeros(column)
            if isinstance(first, csv_parts.CsvPart) and column in first.schema.names
            else None
        )

    def thousands(self, column: str) -> tuple[str, str] | None:
        """Returns texts in a CSV file such as 999 and 1.000, see `CsvPart.thousands`; None if there are none such."""
        for part in self._parts:
            if isinstance(part, csv_parts.CsvPart) and part.schema.names.count(column) == 1:
                return part.thousands(column)
        return None

    def _require_one(self, column: str) -> None:
        for part in self._parts:
            if (count := part.schema.names.count(column)) > 1:
                raise InputError(
                    f"{self.name}: expected one column {column!r} in {part.path}, found {count} of that name; rename "
                    f"all but one, or leave them out"
                )

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows from the `first` on in order, these columns only, at most `batch_rows` at a time.

        Raises:
            InputError: a part is damaged, or has one of these columns several times.
        """
        for column in columns:
            self._require_one(column)
        for number, part in enumerate(self._parts):
            skipped = min(first, self._rows_of_parts[number]) if first else 0
            first -= skipped
            if skipped and skipped == self._rows_of_parts[number]:
                continue
            stored = [name for name in columns if name in part.schema.names]
            for batch in part.batches(stored or part.schema.names[:1], batch_rows, skipped):
                for start in range(0, batch.num_rows, batch_rows):
                    yield self._complete(batch.slice(start, batch_rows), columns, number)

    def _complete(self, batch: pa.RecordBatch, columns: Sequence[str], part: int) -> pa.RecordBatch:
        """Returns the columns in the order asked for, with those of partitions, decoded."""
        arrays = []
        for name in columns:
            if name in batch.schema.names:
                arrays.append(decoded(batch.column(name)))
            else:
                value = self._partitions[name][part]
                arrays.append(pa.repeat(value, batch.num_rows))
        return pa.record_batch(arrays, names=list(columns))


def _type_words(kind: pa.DataType | None) -> str:
    return "missing" if kind is None else f"of type {kind}"
