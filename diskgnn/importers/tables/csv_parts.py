"""A CSV file, compressed or not, as a part of a table: read in blocks by pyarrow."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.files.file_reading import raise_if_disk_failed
from diskgnn.importers.containers.compressed_text import COMPRESSED, damage_of_compressed, open_text, text_for_arrow
from diskgnn.importers.containers.file_kinds import COMPRESSED_MAGIC, convert_from, describe, wide_encoding
from diskgnn.importers.containers.text_numbers import text_block_bytes
from diskgnn.importers.tables import csv_damage
from diskgnn.importers.tables.parts import without
from diskgnn.importers.tables.unclosed_quotes import holds_rows, may_hold_rows
from diskgnn.stores.locations import Location

_HEAD_BYTES = 4 << 20  # of text, which decide about the types of columns
_MAGIC_BYTES = 64  # in which files that are no text have zeros
_BEYOND = 1  # a byte, by which Arrow knows that the last row of the head may be cut
_BELOW_THOUSAND, _GROUPED = r"^[+-]?\d{1,3}$", r"^[+-]?[1-9]\d{0,2}\.\d{3}$"
_DELIMITERS = (",", "\t", ";", "|", " ")


class CsvPart:
    """One CSV file, plain or compressed as its name says (.gz, .zst, .bz2).

    An empty field is null. Types of columns are those of the first 4 MiB, unless they are given.

    Args:
        name: of the table, for messages.
        path: of the file.
        names: of the columns, if the file has no line with them.
        delimiter: between columns; None: whichever the first line has most of.
        types: of columns by name, as Arrow calls them.

    Raises:
        ConfigError: no such type.
        InputError: nothing there, or no CSV.
    """

    def __init__(
        self, name: str, path: Location, names: Sequence[str] | None, delimiter: str | None, types: Mapping[str, str]
    ) -> None:
        self._name, self.path, self._names = name, path, list(names) if names else None
        self._said, self._delimiter = {*types}, ","  # until it is found
        self._delimiter = self._found_delimiter() if delimiter is None else delimiter
        self._types: dict[str, pa.DataType] = {}
        for column, kind in types.items():
            try:
                self._types[column] = pa.type_for_alias(kind)
            except ValueError as error:
                raise ConfigError(
                    f"columns: types: expected an Arrow type such as string or int64 for {column!r}, found {kind!r}"
                ) from error
        head = self._head()
        self._block_bytes = text_block_bytes(head.splitlines())
        with self._open(None, pa.BufferReader(head), _HEAD_BYTES) as reader:
            found = reader.schema
        # What is empty in all of the first block may be anything; a string is. Bytes that are no text in UTF-8 are told
        # where they are read.
        self._types |= {
            column.name: pa.string()
            for column in found
            if pa.types.is_null(column.type) or (pa.types.is_binary(column.type) and column.name not in types)
        }
        self.schema = pa.schema(
            [pa.field(column.name, self._types.get(column.name, column.type)) for column in found]
        )  # fmt: skip
        self._types = {column.name: column.type for column in self.schema}
        if not names:
            self._warn_of_numbers_as_names()
        self.missing_column_hint = "" if names else _missing_column_hint(self.schema.names)

    def count_rows(self) -> int:
        """Returns how many rows it has; reads the file. Warns of values that have other rows in them."""
        num_rows, last, has_warned = 0, b"", False
        column, names = self.schema.names[-1], self.schema.names
        is_plain = len({*names}) == len(names)  # Arrow finds columns by their names
        texts = [name for name in names if name == column or (is_plain and _is_text(self._types[name]))]
        types = self._types | dict.fromkeys(texts, pa.binary())  # whatever their values are
        for batch in self._batches([*dict.fromkeys([names[0], *texts])], types):
            if not has_warned and is_plain:
                has_warned = self._warn_of_rows_in_values(batch, num_rows)
            if batch.num_rows:
                num_rows, last = num_rows + batch.num_rows, batch.column(batch.num_columns - 1)[-1].as_py() or b""
        if not has_warned and isinstance(last, bytes) and b"\n" in last and not csv_damage.ends_in_quote(self._stream):
            shown = last[:40].decode("utf-8", "replace")
            warnings.warn(
                f"{self._name}: row {num_rows} of {self.path}, the last one, has all lines up to the end as its "
                f"{column!r}, from {shown!r} on; is a quote opened and never closed?",
                DataWarning,
                stacklevel=callers_level(),
            )
        return num_rows

    def _warn_of_rows_in_values(self, batch: pa.RecordBatch, first: int) -> bool:
        """Warns of the first value that has rows in it; `first` is the number of rows before this batch."""
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if not pa.types.is_binary(values.type) or b"\n" not in values.buffers()[2].to_pybytes():
                continue
            rows = np.flatnonzero(pc.match_substring(values, "\n").fill_null(False))
            counts = np.asarray(pc.count_substring(values.take(rows), self._delimiter))
            for row in rows[may_hold_rows(counts, len(self.schema))].tolist():
                text = values[row].as_py().decode("utf-8", "replace")
                if holds_rows(text, self.schema.names.index(name), self.schema.types, self._delimiter):
                    warnings.warn(
                        f"{self._name}: the row at {self.line_of(first + row)} of {self.path} has other rows in its "
                        f"{name!r}, which are no rows of the graph: {text[:60]!r}; is a quote opened and never closed? "
                        f"Close it, or delete it",
                        DataWarning,
                        stacklevel=callers_level(),
                    )
                    return True
        return False

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows from the `first` on in order, these columns only; as many at a time as a block of text holds.
        Those before it are read, too.

        Raises:
            InputError: a row has too many or too few columns, or a value is not of its column's type.
        """
        with closing(self._batches(columns, self._types)) as found:
            yield from map(_with_nulls, without(found, first))

    def _batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType]
    ) -> Generator[pa.RecordBatch, None, None]:
        try:
            with (
                text_for_arrow(self._name, self.path, self._block_bytes) as (file, checked),
                self._open(list(columns), file, self._block_bytes, types) as reader,
            ):
                yield from checked(reader)
        except (OSError, pa.ArrowException) as error:
            raise self._error_for(error) from error

    def line_of(self, row: int) -> str:
        """Returns the line in which a row begins; the first row is 0."""
        return csv_damage.line_of(self._stream, row + 1 + (self._names is None), self._delimiter)

    def leading_zeros(self, column: str) -> str | None:
        """Returns text of the first rows such as 007, which is read as the number 7; None if there is none."""
        if not pa.types.is_integer(self._types[column]):
            return None
        text = self._first_texts(column)
        found = text.filter(pc.match_substring_regex(text, "^0[0-9]"))
        return str(found[0].as_py()) if len(found) else None

    def thousands(self, column: str) -> tuple[str, str] | None:
        """Returns texts of the first rows such as 999 and 1.000, where all are such: the dots may group thousands, and
        are read as the points of fractions. None of other columns, and where the type was given."""
        if not pa.types.is_floating(self._types[column]) or column in self._said:
            return None
        text = self._first_texts(column)
        text = text.filter(pc.greater(pc.utf8_length(text), 0))
        is_whole, is_grouped = (pc.match_substring_regex(text, pattern) for pattern in (_BELOW_THOUSAND, _GROUPED))
        if not pc.all(pc.or_(is_whole, is_grouped), min_count=0).as_py():
            return None
        whole, grouped = text.filter(is_whole), text.filter(is_grouped)
        return (whole[0].as_py(), grouped[0].as_py()) if len(whole) and len(grouped) else None

    def _first_texts(self, column: str) -> pa.Array:
        """Returns the texts that a column has in the head of the file."""
        head, types = self._head(), self._types | {column: pa.string()}
        with self._open([column], pa.BufferReader(head), _HEAD_BYTES, types) as reader:
            return next(reader).column(0)

    def _warn_of_numbers_as_names(self) -> None:
        """Warns where the line of names is most likely a row: numbers that are not 0, 1, 2, ... or years."""
        numbers = [float(name) for name in self.schema.names if _is_number(name)]
        is_counting = all(number.is_integer() for number in numbers) and numbers == sorted({*numbers})
        if numbers and not is_counting:
            shown = self._delimiter.join(self.schema.names)
            warnings.warn(
                f"{self._name}: took the first line of {self.path} as the names of columns: {shown[:60]!r}; if it is a "
                f"row, say what the columns are called (`columns`, names=id,x,...)",
                DataWarning,
                stacklevel=callers_level(),
            )

    def _stream(self) -> Any:
        """Returns its text, from the start."""
        return open_text(self._name, self.path)

    def _head(self) -> bytes:
        """Returns the first rows. Of those that are more than a head, Arrow takes the whole ones."""
        if not self.path.is_file():
            raise InputError(f"{self._name}: expected a CSV file, found no file {self.path}")
        try:
            with self._stream() as file:
                head = bytes(file.read(_HEAD_BYTES + _BEYOND))
        except (OSError, pa.ArrowException) as error:
            raise self._error_for(error) from error
        if not head.strip():
            raise InputError(f"{self._name}: expected a CSV file with a line for each row, found {self.path} empty")
        is_binary = b"\0" in head[:_MAGIC_BYTES] and wide_encoding(head) is None
        if is_binary or head.startswith(COMPRESSED_MAGIC):
            raise InputError(f"{self._name}: expected a CSV file at {self.path}, found {describe(self.path)}")
        self._require_utf8(head)
        return head

    def _require_utf8(self, head: bytes) -> None:
        """Refuse other encodings of the names of columns; values of columns that nobody reads may be in any."""
        if encoding := wide_encoding(head):
            raise InputError(
                f"{self._name}: expected a CSV file in UTF-8, found {self.path} in {encoding}; {convert_from(encoding)}"
            )
        try:
            (b"" if self._names else head.partition(b"\n")[0]).decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._name}: expected names of columns in UTF-8 in the first line of {self.path}, found byte "
                f"{error.object[error.start]:#04x} at {error.start}; if it is in Windows-1252 or Latin-1, "
                f"{convert_from('WINDOWS-1252')}"
            ) from error

    def _open(
        self,
        columns: list[str] | None,
        file: pa.NativeFile,
        block_bytes: int,
        types: Mapping[str, pa.DataType] | None = None,
    ) -> csv.CSVStreamingReader:
        try:
            return csv.open_csv(
                file,
                csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=self._names),
                csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                csv.ConvertOptions(column_types=self._types if types is None else types, include_columns=columns),
            )
        except (OSError, pa.ArrowException) as error:
            raise self._error_for(error) from error

    def _error_for(self, error: Exception) -> Exception:
        """Returns what to raise for it."""
        raise_if_disk_failed(error, self.path)
        if isinstance(error, PermissionError):
            return InputError(f"{self._name}: you have no permission to read {self.path}")
        if self.path.suffix in COMPRESSED and (what := damage_of_compressed(error, self.path)):
            return InputError(f"{self._name}: {what}")
        told = csv_damage.told(error, self._stream, self.path, self._names, self._delimiter, self._said)
        return InputError(f"{self._name}: {told}")

    def _found_delimiter(self) -> str:
        try:
            with self._stream() as file:
                head = bytes(file.read(1 << 16)).decode("utf-8", "replace")
        except (OSError, pa.ArrowException) as error:
            raise self._error_for(error) from error
        first = next(iter(head.splitlines()), "")
        return max(_DELIMITERS, key=first.count)


def _missing_column_hint(found: Sequence[str]) -> str:
    """Returns what to say where the file has no column of the name asked for: its first line may be a row of
    numbers."""
    if any(map(_is_number, found)):
        return "; if the file has no line with names of columns, pass them as `columns`, such as names=src,dst"
    return (
        "; say with `columns` which ones are meant, such as src=from and dst=to (or names=src,dst, if the first line "
        "has no names)"
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(text: str) -> bool:
    """Returns False of nan and inf, which are names to people."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _with_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Makes empty strings null, as empty fields of all other types are."""
    arrays = [
        pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column) if _is_text(column.type) else column
        for column in batch.columns
    ]
    return pa.record_batch(arrays, names=batch.schema.names)
