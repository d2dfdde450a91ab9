"""Tables of a DuckDB file, read as Arrow batches by DuckDB itself, in the order of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from diskgnn.errors import InputError, UnavailableError
from diskgnn.importers.tables.dictionaries import decoded, decoded_schema
from diskgnn.importers.tables.frames import NamedColumns
from diskgnn.importers.tables.looked_up import UnknownKeys
from diskgnn.importers.tables.times import is_date

# DuckDB keeps blocks of what it reads, up to a limit, and went up to 30 MiB beyond it (2.0.0, 12 million rows of texts
# and numbers). Each column that is read at once has a block of 256 KiB, and long texts take what 2,048 of them are.
_LIMIT_BYTES, _BEYOND_BYTES = 192 << 20, 40 << 20
HELD_BYTES = _LIMIT_BYTES + _BEYOND_BYTES
_BATCH_ROWS = 2048  # as many as DuckDB has at a time


_TYPES = """
    SELECT column_name, data_type FROM duckdb_columns()
    WHERE database_name = current_database() AND schema_name = ? AND table_name = ?
    """


class DuckdbFile:
    """A DuckDB file, opened for reading until `close`. Nobody can write to it meanwhile: DuckDB locks it.

    Raises:
        UnavailableError: the package duckdb is not there.
        InputError: no DuckDB file, or one that cannot be read, such as one that somebody writes to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            import duckdb
        except ImportError as error:
            raise UnavailableError(
                f"{path} is a DuckDB file, which only DuckDB reads: pip install 'diskgnn[duckdb]' ({error})"
            ) from error
        self._error: type[Exception] = duckdb.Error
        settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": 1, "memory_limit": f"{_LIMIT_BYTES >> 20}MiB", "preserve_insertion_order": True,
            "enable_external_access": False, "autoload_known_extensions": False,
        }  # fmt: skip
        with self._errors_named():
            self._connection = duckdb.connect(str(path), read_only=True, config=settings)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Returns all rows of a query that has few."""
        with self._errors_named():
            found: list[tuple[Any, ...]] = self._connection.cursor().execute(query, values).fetchall()
            return found

    def schema(self, query: str) -> pa.Schema:
        """Returns the columns of a query."""
        with self._errors_named():
            return self._connection.cursor().sql(query).limit(0).to_arrow_table().schema

    def batches(self, query: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a query, at most so many at a time."""
        with self._errors_named():
            yield from self._connection.cursor().sql(query).to_arrow_reader(min(batch_rows, _BATCH_ROWS))

    def close(self) -> None:
        """Closes the file: others may write to it again."""
        self._connection.close()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            told = str(error).strip().partition("\n")[0]
            if type(error).__name__ == "OutOfMemoryException":
                told += (
                    f"; its rows do not fit into {_LIMIT_BYTES >> 20} MiB, so run EXPORT DATABASE 'FOLDER' (FORMAT "
                    "parquet) in DuckDB, and give the folder with a relational.yaml"
                )
            raise InputError(f"{self.path}: expected a database that DuckDB can read, found: {told}") from error


def quoted(name: str) -> str:
    """Returns a name in SQL."""
    return '"' + name.replace('"', '""') + '"'


class DuckdbTable(NamedColumns):
    """A table of a DuckDB file, in the order in which it has its rows. Messages name its columns as `called`."""

    stored_bytes = 0

    def __init__(self, file: DuckdbFile, schema: str, table: str, called: str) -> None:
        self.name, self.called, self._file = f"table {table} ({file.path})", called, file
        self._table = f"{quoted(schema)}.{quoted(table)}"
        self.schema = decoded_schema(file.schema(f"SELECT * FROM {self._table}"))
        self._texts = {column for column, kind in file.rows(_TYPES, schema, table) if kind == "VARCHAR"}
        self._looked_up: dict[str, tuple[str, str]] = {}  # SQL of what is found, and of the key as text
        self._infinite: dict[str, int] = {}
        self._unknown = UnknownKeys()

    def look_up(self, name: str, column: str, other: DuckdbTable, referred: str, ids: str, named: str) -> None:
        """Adds a column `name`: the `ids` of the rows of another table whose unique column `referred` has the values of
        `column`. `named` is what they are looked up in, for messages."""
        equal = f"{other._bare('r', referred)} = {self._bare('t', column)}"
        found = f"(SELECT r.{quoted(ids)} FROM {other._table} r WHERE {equal}) AS {quoted(name)}"
        self._looked_up[name] = found, f"t.{quoted(column)}::VARCHAR"
        self._unknown.expect(name, named)
        self.schema = self.schema.append(pa.field(name, other.schema.field(ids).type))

    def _bare(self, alias: str, column: str) -> str:
        """Returns SQL of a column without a collation: DuckDB's own constraints do not look at them, so two rows may be
        equal by one."""
        return f"{alias}.{quoted(column)}{' COLLATE C' if column in self._texts else ''}"

    @cached_property
    def num_rows(self) -> int:
        """Returns the rows."""
        return int(self._file.rows(f"SELECT count(*) FROM {self._table}")[0][0])

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows from the `first` on in order, these columns only, at most `batch_rows` at a time."""
        times = [name for name in columns
                 if name not in self._looked_up and is_date(self.schema.field(name).type)]  # fmt: skip
        self._infinite = dict.fromkeys(times, 0)
        asked = [name for name in columns if name in self._looked_up]
        listed = [self._looked_up[name][0] if name in asked else self._value(name, name in times) for name in columns]
        listed += [f"NOT {self._is_finite(name)}" for name in times]
        listed += [self._looked_up[name][1] for name in asked]
        self._unknown.clear()
        query = f"SELECT {', '.join(listed)} FROM {self._table} t OFFSET {first}"
        for batch in self._file.batches(query, batch_rows):
            for name, is_infinite in zip(times, batch.columns[len(columns) :], strict=False):
                self._infinite[name] += is_infinite.true_count
            arrays = [*map(decoded, batch.columns[: len(columns)])]
            for name, keys in zip(asked, batch.columns[len(columns) + len(times) :], strict=True):
                self._unknown.add(name, keys, arrays[columns.index(name)])
            yield pa.record_batch(arrays, names=list(columns))

    def noticed(self) -> dict[str, str]:
        """Returns what of the values that were read last is not as it was in the database, and why."""
        return {
            f"infinite values of {name}": f"{count:,} rows have one: null now"
            for name, count in self._infinite.items()
            if count
        }

    def unknown(self) -> dict[str, str]:
        """Returns the foreign keys with values that name no row, and what is told of them."""
        return self._unknown.told()

    def _value(self, column: str, is_time: bool) -> str:
        value = quoted(column)
        return f"CASE WHEN {self._is_finite(column)} THEN {value} END AS {value}" if is_time else value

    def _is_finite(self, column: str) -> str:
        """Returns SQL of it: Arrow has no infinite times, and DuckDB makes very late ones of them."""
        kind, value = self.schema.field(column).type, quoted(column)
        needs_cast = pa.types.is_timestamp(kind) and (kind.unit != "us")
        return f"isfinite({value}::TIMESTAMP)" if needs_cast else f"isfinite({value})"
