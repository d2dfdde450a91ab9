"""Tables in memory, and several tables as one, read like those in files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from diskgnn.errors import InputError
from diskgnn.importers.tables.dictionaries import decoded, decoded_schema
from diskgnn.specs.near_names import near_name


class RowTable(Protocol):
    """Says what is asked of a table (`tables.Table` is one)."""

    name: str
    schema: pa.Schema
    stored_bytes: int

    @property
    def num_rows(self) -> int:
        """Returns the rows."""
        ...

    def field(self, column: str) -> pa.Field:
        """Returns the column's name and type, or InputError."""
        ...

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Returns all rows from the `first` on in order, these columns only, at most `batch_rows` at a time."""
        ...


def field_of(table: NamedColumns | RowTable, column: str, hint: str = "") -> pa.Field:
    """Returns the column of the schema of a table; `hint` ends the message if there is none.

    Raises:
        InputError: there is none; names those that there are.
    """
    if table.schema.get_field_index(column) < 0:
        near = near_name(column, table.schema.names)
        raise InputError(f"{table.name}: expected a column {column!r}, found {table.schema.names}{hint}{near}")
    return table.schema.field(column)


class NamedColumns:
    """Finds columns by name: what the tables of one source each have in common."""

    name: str
    schema: pa.Schema

    def field(self, column: str) -> pa.Field:
        """Returns the column's name and type.

        Raises:
            InputError: there is no such column.
        """
        return field_of(self, column)


class PartlyNamed(NamedColumns):
    """The rows of a table, some of whose columns are `unnamed`: read by who knows of them, and in no schema."""

    def __init__(self, table: RowTable, unnamed: Collection[str]) -> None:
        self.name, self._table, self.stored_bytes = table.name, table, table.stored_bytes
        self.schema = pa.schema([field for field in table.schema if field.name not in unnamed])

    @property
    def num_rows(self) -> int:
        """Returns the rows."""
        return self._table.num_rows

    def field(self, column: str) -> pa.Field:
        """Returns the column's name and type, of an unnamed one too.

        Raises:
            InputError: there is no such column.
        """
        is_there = column in self._table.schema.names
        return self._table.field(column) if is_there else super().field(column)

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Returns all rows from the `first` on in order, these columns only, at most `batch_rows` at a time."""
        return self._table.batches(columns, batch_rows, first)


class FrameTable(NamedColumns):
    """A data frame of pandas, a pyarrow.Table, or what can become one (`to_arrow`, as of Polars).

    Raises:
        InputError: neither, or a column that Arrow has no type for.
    """

    stored_bytes = 0

    def __init__(self, name: str, frame: Any) -> None:
        self.name, self._frame = name, frame.to_arrow() if hasattr(frame, "to_arrow") else frame
        try:
            schema = (
                self._frame.schema
                if isinstance(self._frame, pa.Table)
                else pa.Schema.from_pandas(self._frame, preserve_index=False)
            )
        except (pa.ArrowException, TypeError, AttributeError) as error:
            raise InputError(
                f"{name}: expected a data frame with columns of one type each{_mixed_column(frame)} ({error})"
            ) from error
        self.num_rows = len(self._frame)
        self.schema = decoded_schema(schema)

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows from the `first` on in order, these columns only, at most `batch_rows` at a time."""
        for start in range(first, self.num_rows, batch_rows):
            yield pa.record_batch([self._part(name, start, batch_rows) for name in columns], names=list(columns))

    def _part(self, name: str, start: int, count: int) -> pa.Array:
        kind = self.schema.field(name).type
        if not isinstance(self._frame, pa.Table):
            found = pa.Array.from_pandas(self._frame[name].iloc[start : start + count], type=kind)
        else:
            found = self._frame.column(name).slice(start, count)
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        return decoded(found)


def _mixed_column(frame: Any) -> str:
    """Returns which column of a data frame of pandas has values of several types, for a message; "" if none has."""
    for name in getattr(frame, "columns", ()):
        kinds = (
            dict.fromkeys(type(value).__name__ for value in frame[name].dropna()) if frame[name].dtype == object else {}
        )
        if len(kinds) > 1:
            return f", found {' and '.join(kinds)} in column {name!r}: make them one, such as by .astype(str)"
    return ""


class JoinedTables:
    """The rows of several tables, one after the other."""

    def __init__(self, name: str, tables: Sequence[RowTable]) -> None:
        self.name, self._tables, self.schema = name, tables, tables[0].schema
        self.num_rows = sum(table.num_rows for table in tables)
        self.stored_bytes = sum(table.stored_bytes for table in tables)

    def field(self, column: str) -> pa.Field:
        """Returns the column's name and type, in the first table that has it.

        Raises:
            InputError: another table has no such column.
        """
        found = [table.field(column) for table in self._tables]
        return found[0]

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows from the `first` on in order, these columns only, at most `batch_rows` at a time."""
        for table in self._tables:
            skipped = min(first, table.num_rows)
            first -= skipped
            if skipped < table.num_rows:
                yield from table.batches(columns, batch_rows, skipped)
