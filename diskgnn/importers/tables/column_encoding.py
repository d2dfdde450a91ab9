"""Columns of a relational table as numbers: one simple, stated encoding for each kind of column.

| encoding | of | columns of the features |
|---|---|---|
| number | whole numbers, fractions, decimals | 1: (value - mean) / standard deviation; null is 0, the mean |
| raw | the same, if asked for | 1: as it is; null is NaN |
| time | timestamps and dates | 1: as a number, in seconds |
| boolean | truth values | 1: 0 or 1; null is 0 |
| category | strings of at most 32 values | 1 for each value, in ascending order: 1 where it is this one, else 0 |
| vector | lists of numbers of equal lengths, vectors of Spark ML | as many as it is long; null is 0 |
| none | all else, such as text | left out |

Means, deviations and values are those of rows that are known when a model is trained: a first pass finds them. Whole
numbers that count the rows, as data frames write their index, are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource
from diskgnn.importers.source_listing import EXCLUDED, SourceListing
from diskgnn.importers.tables.frames import RowTable
from diskgnn.importers.tables.spark_vectors import is_vector, vector_lengths, vector_rows

ENCODINGS = ("number", "raw", "time", "boolean", "category", "vector", "none")
_MOST_VALUES = 32  # of a category
_COUNTS_ROWS = "it counts the rows"
_LARGEST_SCALED = 1e100  # the squares of larger numbers may sum up to infinity
_STATISTICS_ROWS = 1 << 16  # at a time: what is found must not depend on memory


class _Encoder(Protocol):
    """One column: what is found in a first pass, then its numbers."""

    @property
    def width(self) -> int:
        """Columns of the features."""
        ...

    def add(self, values: pa.Array) -> None:
        """`values` are known."""
        ...

    def useless(self) -> str:
        """Why the column is to be left out, once all values are known; "" if it is not."""
        ...

    def encode(self, values: pa.Array, out: npt.NDArray[np.float32]) -> None:
        """`values` [n] as `out` [n, width], which is 0."""
        ...


def natural_encoding(kind: pa.DataType) -> str:
    """How a column of this type is encoded if nobody says it."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "category"
    if _is_list(kind) or is_vector(kind):
        return "vector"
    return "none"


def seconds(values: pa.Array, where: str) -> pa.Array:
    """Times as int64 seconds since 1970: timestamps, dates and text such as 2024-01-31 or 2024-01-31T12:00:00+01:00,
    rounded down. Whole numbers stay as they are. What has no zone is taken as UTC.

    Raises:
        InputError: something else.
    """
    if pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    if pa.types.is_floating(values.type):  # whole numbers, where a data frame had gaps
        try:
            return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{where}: expected timestamps, dates or whole numbers, found fractions ({error})"
            ) from error
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = _parsed_times(values, where)
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s"))
    if not pa.types.is_timestamp(values.type):
        raise InputError(f"{where}: expected timestamps, dates or whole numbers, found {values.type}")
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[values.type.unit]
    counts = values.cast(pa.int64())
    floored = np.asarray(counts.fill_null(0)) // per_second
    return pa.array(floored, mask=np.asarray(counts.is_null()))


def _parsed_times(values: pa.Array, where: str) -> pa.Array:
    values = pc.utf8_trim_whitespace(values)
    values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            continue
    for value in values.drop_null():
        try:
            value.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            hint = "" if _is_zoned(value) else "; write them as 2024-01-31 or 2024-01-31 12:00:00"
            if hint:
                raise InputError(f"{where}: expected dates or times, found {value.as_py()!r}{hint}") from None
    raise InputError(f"{where}: expected times that all name a zone, or none of them; found both")


def _is_zoned(value: pa.Scalar) -> bool:
    try:
        value.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        return False
    return True


def label_numbers(values: pa.Array, task: str, where: str) -> pa.Array:
    """Labels as int64, if `task` is "class", or else as float64. Null stays.

    Raises:
        InputError: no numbers or truth values, or fractional ones for classes.
    """
    kind, what = values.type, f"{'whole ' * (task == 'class')}numbers"
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int64())
    elif not any(
        each(kind) for each in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    ):
        raise InputError(f"{where}: expected {what}, found {kind}")
    try:
        return values.cast(pa.int64() if task == "class" else pa.float64())
    except pa.ArrowInvalid as error:
        raise InputError(f"{where}: expected {what} ({error})") from error


class TableEncoding:
    """The feature columns of a table.

    Args:
        table: its name, for messages.
        kinds: of its columns that may be features.
        asked: encodings by column, where they are not to be the natural ones.
        argument: that says so, for messages.

    Attributes:
        left_out: columns that nobody asked to leave out, and why each is.

    Raises:
        ConfigError: no such column or encoding.
    """

    def __init__(
        self, table: str, kinds: Mapping[str, pa.DataType], asked: Mapping[str, str], argument: str = "columns"
    ) -> None:
        if unknown := [name for name in asked if name not in kinds]:
            raise ConfigError(
                f"{table}: {argument}: expected columns that are no keys and not the time, of "
                f"{', '.join(kinds) or 'none'}; found {unknown[0]!r}"
            )
        self._kinds = kinds
        self._encodings: dict[str, str] = {}
        self._encoders: dict[str, _Encoder] = {}
        self._nulls: dict[str, int] = {}
        self._num_rows = 0
        self.left_out: dict[str, str] = {}
        for name, kind in kinds.items():
            encoding = asked.get(name, natural_encoding(kind))
            if encoding not in ENCODINGS:
                raise ConfigError(f"{table}: {argument}: {name}: expected {', '.join(ENCODINGS)}, found {encoding!r}")
            self._encodings[name] = encoding
            if encoding != "none":
                self._encoders[name], self._nulls[name] = _ENCODERS[encoding](f"{table}.{name}", name in asked), 0
            elif name not in asked:
                self.left_out[name] = f"{kind} is no number, time, truth value, category or vector"

    @property
    def columns(self) -> list[str]:
        """Of the table, that are read."""
        return list(self._encoders)

    @property
    def width(self) -> int:
        """Of a row of features: at least 1, because a table without feature columns gets a column of ones."""
        return max(1, sum(encoder.width for encoder in self._encoders.values()))

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Rows that are known, as `columns`."""
        for (name, encoder), values in zip(self._encoders.items(), columns, strict=True):
            encoder.add(values)
            self._nulls[name] += values.null_count
        self._num_rows += len(columns[0])

    def complete(self) -> None:
        """All known rows were added: drop columns that say nothing, such as text with too many values."""
        found = {name: encoder.useless() for name, encoder in self._encoders.items()}
        self.left_out |= {name: why for name, why in found.items() if why}
        self._encoders = {name: encoder for name, encoder in self._encoders.items() if not found[name]}

    def list_columns(self, of: str, listing: SourceListing) -> None:
        """Note what became of each column of the table of the type `of`."""
        for name, encoding in self._encodings.items():
            if name in self._encoders:
                share = self._nulls[name] / max(1, self._num_rows)
                listing.read(of, name, "features", encoding, self._encoders[name].width, share)
            else:
                reason = self.left_out.get(name, EXCLUDED)
                listing.leave_out(of, name, reason, expected=reason in (EXCLUDED, _COUNTS_ROWS))

    def encode(self, columns: Sequence[pa.Array], num_rows: int) -> npt.NDArray[np.float32]:
        """[num_rows, width] of rows given as `columns`."""
        if not self._encoders:
            return np.ones((num_rows, 1), np.float32)
        out = np.zeros((num_rows, self.width), np.float32)
        start = 0
        for encoder, values in zip(self._encoders.values(), columns, strict=True):
            encoder.encode(values, out[:, start : start + encoder.width])
            start += encoder.width
        return out


def find_statistics(
    encoding: TableEncoding, rows: RowTable, *, time: str | None = None, until: int | None = None
) -> None:
    """Read the columns once, up to `until` by the column `time` if both are given, and complete the encoding."""
    columns, time = encoding.columns, None if until is None else time
    if columns:
        for batch in rows.batches(columns if time is None else [*columns, time], _STATISTICS_ROWS):
            if time is not None:
                times = seconds(batch.column(len(columns)), f"{rows.name}: column {time!r}")
                batch = batch.filter(pc.less_equal(times, until).fill_null(False))
            encoding.add(batch.columns[: len(columns)])
    encoding.complete()


def encoded_rows(name: str, rows: RowTable, encoding: TableEncoding) -> RowSource:
    """The features [N, width] float32 of a table whose statistics were found; `name` is for messages."""
    batch_rows = max(1, CHUNK_BYTES // (4 * encoding.width))
    columns = encoding.columns

    def read(first: int) -> Iterator[npt.NDArray[np.float32]]:
        for batch in rows.batches(columns or rows.schema.names[:1], batch_rows, first):
            yield encoding.encode(batch.columns if columns else [], batch.num_rows)

    return RowSource(
        name, rows.num_rows, (encoding.width,), np.dtype(np.float32), partial(read, 0),
        stored_bytes=rows.stored_bytes, seek=read,
    )  # fmt: skip


class _Number:
    width = 1

    def __init__(self, where: str, asked: bool) -> None:
        self._where, self._is_warned = where, False
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._rows, self._counts_rows = 0, not asked

    def _numbers(self, values: pa.Array) -> npt.NDArray[np.float64]:
        try:
            numbers = values.cast(pa.float64(), safe=False)
        except pa.ArrowException as error:
            raise InputError(f"{self._where}: expected numbers, found {values.type}") from error
        return np.asarray(numbers.to_numpy(zero_copy_only=False))  # null is NaN

    def _known(self, values: pa.Array) -> npt.NDArray[np.float64]:
        """The numbers, NaN where there is none that can be scaled."""
        numbers = self._numbers(values)
        is_extreme = np.abs(numbers) > _LARGEST_SCALED
        if is_extreme.any():
            if not self._is_warned:
                self._is_warned = True
                warnings.warn(
                    f"{self._where}: found {numbers[is_extreme][0]}; infinite values and those beyond "
                    f"±{_LARGEST_SCALED:g} become 0, as null does: replace or clip them",
                    DataWarning,
                    stacklevel=callers_level(),
                )
            numbers = np.where(is_extreme, np.nan, numbers)
        return numbers

    def add(self, values: pa.Array) -> None:
        if self._counts_rows:
            expected = np.arange(self._rows, self._rows + len(values))
            self._counts_rows = (
                pa.types.is_integer(values.type) and not values.null_count and np.array_equal(values, expected)
            )
        self._rows += len(values)
        numbers = self._known(values)
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers):  # Chan, Golub and LeVeque: the moments of two samples make those of both
            mean, total = float(numbers.mean()), self._count + len(numbers)
            shift = mean - self._mean
            self._squares += float(((numbers - mean) ** 2).sum()) + shift**2 * self._count * len(numbers) / total
            self._mean += shift * len(numbers) / total
            self._count = total

    def useless(self) -> str:
        return _COUNTS_ROWS if self._counts_rows and self._rows > 1 else ""

    def encode(self, values: pa.Array, out: npt.NDArray[np.float32]) -> None:
        deviation = float(np.sqrt(self._squares / max(self._count, 1)))
        if deviation > 0:
            scaled = (self._known(values) - self._mean) / deviation
            out[:, 0] = np.where(np.isfinite(scaled), scaled, 0)


class _Time(_Number):
    def _numbers(self, values: pa.Array) -> npt.NDArray[np.float64]:
        return super()._numbers(seconds(values, self._where))


class _Raw(_Number):
    def useless(self) -> str:
        return ""

    def encode(self, values: pa.Array, out: npt.NDArray[np.float32]) -> None:
        with np.errstate(over="ignore"):
            out[:, 0] = self._numbers(values)


class _Boolean:
    width = 1

    def __init__(self, where: str, asked: bool) -> None:
        self._where = where

    def add(self, values: pa.Array) -> None:
        if not pa.types.is_boolean(values.type):
            raise InputError(f"{self._where}: expected truth values, found {values.type}")

    def useless(self) -> str:
        return ""

    def encode(self, values: pa.Array, out: npt.NDArray[np.float32]) -> None:
        out[:, 0] = np.asarray(values.fill_null(False))


class _Category:
    def __init__(self, where: str, asked: bool) -> None:
        self._where, self._asked = where, asked
        self._values: pa.Array | None = None
        self._is_text = False

    @property
    def width(self) -> int:
        return 0 if self._values is None else len(self._values)

    def add(self, values: pa.Array) -> None:
        if self._is_text:
            return
        found = pc.unique(values.drop_null())
        self._values = found if self._values is None else pc.unique(pa.concat_arrays([self._values, found]))
        if len(self._values) > _MOST_VALUES:
            if self._asked:
                raise InputError(
                    f"{self._where}: expected at most {_MOST_VALUES} values of a category, found more; encode it as "
                    f"none, or as a vector beforehand"
                )
            self._is_text = True
        else:
            self._values = self._values.take(pc.array_sort_indices(self._values))

    def useless(self) -> str:
        if self._is_text:
            return f"more than {_MOST_VALUES} values: text or ids; embed text beforehand, as a column of vectors"
        return "" if self.width else "it has no values"

    def encode(self, values: pa.Array, out: npt.NDArray[np.float32]) -> None:
        if self.width:
            places = np.asarray(pc.index_in(values, value_set=self._values).fill_null(-1))
            rows = np.flatnonzero(places >= 0)
            out[rows, places[rows]] = 1


@dataclass
class _Vector:
    where: str
    asked: bool
    width: int = 0

    def add(self, values: pa.Array) -> None:
        lengths = self._lengths(values)
        known = lengths[lengths >= 0]
        self.width = self.width or (int(known[0]) if len(known) else 0)

    def useless(self) -> str:
        return "" if self.width else "it has no values"

    def _lengths(self, values: pa.Array) -> npt.NDArray[np.int64]:
        if is_vector(values.type):
            return vector_lengths(values)
        if not _is_list(values.type):
            raise InputError(f"{self.where}: expected lists of numbers, found {values.type}")
        return np.asarray(pc.list_value_length(values).cast(pa.int64()).fill_null(-1))

    def encode(self, values: pa.Array, out: npt.NDArray[np.float32]) -> None:
        lengths = self._lengths(values)
        there = np.flatnonzero(lengths >= 0)
        if (lengths[there] != self.width).any():
            found = lengths[there][lengths[there] != self.width][0]
            raise InputError(f"{self.where}: expected {self.width} numbers in every list, found {found}")
        kept = values.take(pa.array(there))
        if is_vector(values.type):
            out[there] = vector_rows(kept, self.width, np.dtype(np.float32))
        else:
            out[there] = _numbers_of(kept.flatten()).reshape(-1, self.width)


def _numbers_of(values: pa.Array) -> npt.NDArray[np.float32]:
    return np.nan_to_num(np.asarray(values.cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32))


def _is_list(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))


_ENCODERS: Mapping[str, type[Any]] = {
    "number": _Number, "raw": _Raw, "time": _Time, "boolean": _Boolean, "category": _Category, "vector": _Vector,
}  # fmt: skip
