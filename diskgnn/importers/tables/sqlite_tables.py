"""Tables of an SQLite file, read a batch at a time from one snapshot.

SQLite keeps values of any type in any column. A column is read as the type that it is declared as. Where that says
nothing, it is read as the one type that its values have.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import InputError
from diskgnn.importers.tables.frames import field_of
from diskgnn.importers.tables.looked_up import UnknownKeys
from diskgnn.importers.tables.times import timestamps

_MOST_ROWS, _FIRST_ROWS = 1 << 14, 1 << 6  # at a time, as Python objects, which take some 100 bytes each
_TEXT_BYTES = 4 << 20  # of text in them: beyond it, fewer rows are read at a time
_HERE = "t"  # the table that is read, in SQL: with it, and r, no name of a table is there to be taken for another one
_TIMESTAMP, _CLOCK = pa.timestamp("us"), pa.time64("us")
_TIME_OF_DAY = re.compile(r"\s*TIME\b", re.IGNORECASE)  # and not TIMESTAMP
_EXACT = 1 << 53  # whole numbers up to it are floats
_TAKES: dict[pa.DataType, tuple[type, ...]] = {
    pa.int64(): (int,), pa.float64(): (float, int), pa.string(): (str,), pa.binary(): (bytes,), pa.bool_(): (int,),
    _TIMESTAMP: (str,), _CLOCK: (str,),
}  # fmt: skip
_DECLARED = {  # the first that is part of a declared type decides
    "BOOL": pa.bool_(), "INT": pa.int64(), "CHAR": pa.string(), "CLOB": pa.string(), "TEXT": pa.string(),
    "REAL": pa.float64(), "FLOA": pa.float64(), "DOUB": pa.float64(), "NUMERIC": pa.float64(), "DECIMAL": pa.float64(),
}  # fmt: skip
_STORED = {
    frozenset({"integer"}): pa.int64(), frozenset({"real"}): pa.float64(),
    frozenset({"integer", "real"}): pa.float64(), frozenset({"text"}): pa.string(), frozenset({"blob"}): pa.binary(),
}  # fmt: skip


class SqliteFile:
    """An SQLite file in one transaction, until `close`. Nothing is written to it.

    Raises:
        InputError: no SQLite file, or one that cannot be read as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors_named():
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.resolve()))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on, one state

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Returns all rows of a query that has few."""
        with self._errors_named():
            return self._connection.execute(query).fetchall()

    def pieces(self, query: str, most_rows: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yields the rows of a query, at most so many at a time, and fewer of long ones."""
        with self._errors_named():
            cursor, piece_rows = self._connection.execute(query), _FIRST_ROWS
            while found := cursor.fetchmany(min(piece_rows, most_rows, _MOST_ROWS)):
                yield found
                text_bytes = sum(len(value) for row in found for value in row if isinstance(value, (str, bytes)))
                piece_rows = (
                    min(2 * piece_rows, _MOST_ROWS) if 2 * text_bytes < _TEXT_BYTES else max(1, piece_rows // 2)
                )

    def close(self) -> None:
        """Ends the transaction: others may write again."""
        self._connection.close()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error):  # the codes of errors have names from Python 3.11 on
                raise InputError(
                    f"{self.path}: expected an SQLite database that can be read, found one that somebody writes to "
                    f"({error}): wait until that is done, or have its writers use the WAL mode (PRAGMA journal_mode)"
                ) from error
            raise InputError(
                f"{self.path}: expected an SQLite database, found one that SQLite cannot read: {error}"
            ) from error


def quoted(name: str) -> str:
    """Returns a name in SQL."""
    return '"' + name.replace('"', '""') + '"'


class SqliteTable:
    """A table of an SQLite file, in the order of its rowids, or of its primary key where it has none.

    Attributes:
        left_out: columns that have no type, and why.
    """

    stored_bytes = 0

    def __init__(
        self,
        file: SqliteFile,
        table: str,
        columns: Sequence[tuple[str, str]],
        order: Sequence[str],
        keys: Collection[str],
    ) -> None:
        self.name, self._file, self._table = f"table {table} ({file.path})", file, table
        self._order, self._keys = ", ".join(order), keys
        self._declared = dict(columns)
        self.left_out: dict[str, str] = {}
        self._as_text = set[str]()  # of JSON: SQLite keeps documents that are numbers as such
        found = {name: self._kind(name, declared) for name, declared in columns}
        self._kinds = {name: kind for name, kind in found.items() if kind is not None}
        self.schema = pa.schema([(name, pa.float64() if kind == _CLOCK else kind)
                                 for name, kind in self._kinds.items()])  # fmt: skip
        self._inexact: dict[str, int] = {}
        self._looked_up: dict[str, tuple[str, str]] = {}  # SQL of what is found, and of the key as text
        self._unknown = UnknownKeys()

    def look_up(
        self, name: str, column: str, kind: pa.DataType, table: str, referred: str, ids: str, named: str
    ) -> None:
        """Adds a column `name`: the `ids`, of type `kind`, of the rows of a table that have the values of `column` in
        their unique column `referred`. `named` is what they are looked up in, for messages."""
        found = (
            f"(SELECT r.{quoted(ids)} FROM {quoted(table)} AS r WHERE r.{quoted(referred)} = {_HERE}.{quoted(column)})"
        )
        self._looked_up[name] = found, f"CAST({_HERE}.{quoted(column)} AS TEXT)"
        self._kinds[name], self._declared[name] = kind, f"as {table}.{ids}"
        self._unknown.expect(name, named)
        self.schema = self.schema.append(pa.field(name, pa.float64() if kind == _CLOCK else kind))

    def noticed(self) -> dict[str, str]:
        """Returns what of the values that were read last is not as it was in the file, and why."""
        return {
            f"digits of {name}": f"{count:,} rows have more than 15, of which the first are kept"
            for name, count in self._inexact.items()
        }

    def unknown(self) -> dict[str, str]:
        """Returns the foreign keys with values that name no row, and what is told of them."""
        return self._unknown.told()

    @cached_property
    def num_rows(self) -> int:
        """Returns the rows."""
        return int(self._file.rows(f"SELECT count(*) FROM {quoted(self._table)}")[0][0])

    def field(self, column: str) -> pa.Field:
        """Returns the column's name and type.

        Raises:
            InputError: there is no such column.
        """
        return field_of(self, column, f" ({column!r}: {self.left_out[column]})" if column in self.left_out else "")

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows from the `first` on in order, these columns only, at most `batch_rows` at a time.

        Raises:
            InputError: a value that is not of the type of its column.
        """
        asked = [name for name in columns if name in self._looked_up]
        values_of = [self._looked_up[name][0] if name in asked else self._value(name) for name in columns]
        listed = ", ".join([*values_of, *(self._looked_up[name][1] for name in asked)])
        position = first
        self._unknown.clear()
        self._inexact.clear()
        query = f"SELECT {listed} FROM {quoted(self._table)} AS {_HERE} ORDER BY {self._order} LIMIT -1 OFFSET {first}"
        for rows in self._file.pieces(query, batch_rows):
            values = [*zip(*rows, strict=True)]
            arrays = [self._array(name, found, position) for name, found in zip(columns, values, strict=False)]
            for name, keys in zip(asked, values[len(columns) :], strict=True):
                self._unknown.add(name, pa.array(keys, pa.string()), arrays[columns.index(name)])
            yield pa.record_batch(arrays, names=list(columns))
            position += len(rows)

    def _value(self, column: str) -> str:
        return f"CAST({quoted(column)} AS TEXT)" if column in self._as_text else quoted(column)

    def _kind(self, column: str, declared: str) -> pa.DataType | None:
        is_time = any(word in declared.upper() for word in ("DATE", "TIME"))
        if not is_time:
            kind = next((kind for word, kind in _DECLARED.items() if word in declared.upper()), None)
            # Numbers of 15 digits are enough for features, but not for keys.
            if kind is not None and not (kind == pa.float64() and column in self._keys):
                return kind
        query = f"SELECT DISTINCT typeof({quoted(column)}) FROM {quoted(self._table)}"
        stored = frozenset(kind for (kind,) in self._file.rows(query)) - {"null"}
        if "JSON" in declared.upper() and "text" in stored and stored <= {"text", "integer", "real"}:
            self._as_text.add(column)
            return pa.string()
        if is_time and stored <= {"text"}:
            return _CLOCK if _TIME_OF_DAY.match(declared) else _TIMESTAMP
        if stored not in _STORED:
            values = f"values of several types ({', '.join(sorted(stored))})" if stored else "no values"
            self.left_out[column] = f"declared as {declared or 'nothing'}, it has {values}"
        return _STORED.get(stored)

    def _array(self, column: str, values: Sequence[Any], position: int) -> pa.Array:
        kind = self._kinds[column]
        try:
            if not {*map(type, values)} <= {*_TAKES[kind], type(None)}:
                raise pa.ArrowInvalid("another type")
            found = _converted(values, kind)
            if kind == pa.float64() and (inexact := sum(map(_is_inexact, values))):
                self._inexact[column] = self._inexact.get(column, 0) + inexact
            return found
        except (pa.ArrowInvalid, OverflowError):
            row = next(row for row, value in enumerate(values) if not _fits(value, kind))
            raise InputError(
                f"{self.name}: expected {_WORDS[kind]} in column {column!r}, declared {self._declared[column]!r}; "
                f"found {values[row]!r:.80} in row {position + row} (from 0)"
            ) from None


_WORDS = {
    pa.int64(): "whole numbers", pa.float64(): "numbers", pa.string(): "text", pa.binary(): "bytes",
    pa.bool_(): "0 or 1", _CLOCK: "times of day, such as 12:00 or 12:00:00.5",
    _TIMESTAMP: "times in ISO 8601, such as 2024-01-31 or 2024-01-31 12:00:00",
}  # fmt: skip


def _converted(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.bool_():
        if not {*values} <= {0, 1, None}:
            raise pa.ArrowInvalid("neither 0 nor 1")
        return pa.array([None if value is None else bool(value) for value in values], kind)
    if kind == pa.float64():
        return pa.array([None if value is None else float(value) for value in values], kind)
    if kind == _CLOCK:
        on_a_day = pc.binary_join_element_wise("1970-01-01", pa.array(values, pa.string()), " ")
        return pc.divide(timestamps(on_a_day).cast(pa.int64()).cast(pa.float64()), 1e6)
    if kind != _TIMESTAMP:
        return pa.array(values, kind)
    return timestamps(pa.array(values, pa.string()))


def _is_inexact(value: Any) -> bool:
    """Returns True for a whole number that has more digits than floats have."""
    return type(value) is int and abs(value) > _EXACT and int(float(value)) != value


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    try:
        return type(value) in _TAKES[kind] and len(_converted([value], kind)) == 1
    except (pa.ArrowInvalid, OverflowError):
        return False
