"""Columns of a relational table as numbers: one simple, stated encoding for each kind of column.

| encoding | of | columns of the features |
|---|---|---|
| number | whole numbers, fractions, decimals | 1: (value - mean) / standard deviation; null is 0, the mean |
| time | timestamps and dates | 1: as a number, in seconds |
| boolean | truth values | 1: 0 or 1; null is 0 |
| category | strings of at most 32 values | 1 for each value, in ascending order: 1 where it is this one, else 0 |
| vector | lists of numbers of equal lengths, vectors of Spark ML | as many as it is long; null is 0 |
| none | all else, such as text | left out |

Means, deviations and values are those of rows that are known when a model is trained: a first pass finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.tables.spark_vectors import is_vector, vector_lengths, vector_rows

ENCODINGS = ("number", "time", "boolean", "category", "vector", "none")
_MOST_VALUES = 32  # of a category


class _Encoder(Protocol):
    """One column: what is found in a first pass, then its numbers."""

    @property
    def width(self) -> int:
        """Columns of the features."""
        ...

    def add(self, values: pa.Array) -> None:
        """`values` are known."""
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
    """Times as int64 seconds since 1970: timestamps and dates, rounded down; whole numbers stay as they are.

    Raises:
        InputError: neither.
    """
    if pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s"))
    if not pa.types.is_timestamp(values.type):
        raise InputError(f"{where}: expected timestamps, dates or whole numbers, found {values.type}")
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[values.type.unit]
    counts = values.cast(pa.int64())
    floored = np.asarray(counts.fill_null(0)) // per_second
    return pa.array(floored, mask=np.asarray(counts.is_null()))


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

    Raises:
        ConfigError: no such column or encoding.
    """

    def __init__(self, table: str, kinds: Mapping[str, pa.DataType], asked: Mapping[str, str]) -> None:
        if unknown := [name for name in asked if name not in kinds]:
            raise ConfigError(
                f"{table}: columns: expected columns that are no keys and not the time, of {', '.join(kinds) or 'none'}"
                f"; found {unknown[0]!r}"
            )
        self._encoders: dict[str, _Encoder] = {}
        self.left_out: list[str] = []  # that nobody asked to leave out
        for name, kind in kinds.items():
            encoding = asked.get(name, natural_encoding(kind))
            if encoding not in ENCODINGS:
                raise ConfigError(f"{table}: columns: {name}: expected {', '.join(ENCODINGS)}, found {encoding!r}")
            if encoding == "none":
                self.left_out += [] if name in asked else [name]
            else:
                self._encoders[name] = _ENCODERS[encoding](f"{table}.{name}", name in asked)

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
        for encoder, values in zip(self._encoders.values(), columns, strict=True):
            encoder.add(values)

    def complete(self) -> None:
        """All known rows were added: drop the columns of text, which have too many values to be categories."""
        texts = [
            name for name, encoder in self._encoders.items() if isinstance(encoder, _Category) and encoder.is_text
        ]  # fmt: skip
        self.left_out += texts
        self._encoders = {name: encoder for name, encoder in self._encoders.items() if name not in texts}

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


class _Number:
    width = 1

    def __init__(self, where: str, asked: bool) -> None:
        self._where = where
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def _numbers(self, values: pa.Array) -> npt.NDArray[np.float64]:
        try:
            numbers = values.cast(pa.float64(), safe=False)
        except pa.ArrowException as error:
            raise InputError(f"{self._where}: expected numbers, found {values.type}") from error
        return np.asarray(numbers.to_numpy(zero_copy_only=False))  # null is NaN

    def add(self, values: pa.Array) -> None:
        numbers = self._numbers(values)
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers):  # Chan, Golub and LeVeque: the moments of two samples make those of both
            mean, total = float(numbers.mean()), self._count + len(numbers)
            shift = mean - self._mean
            self._squares += float(((numbers - mean) ** 2).sum()) + shift**2 * self._count * len(numbers) / total
            self._mean += shift * len(numbers) / total
            self._count = total

    def encode(self, values: pa.Array, out: npt.NDArray[np.float32]) -> None:
        deviation = float(np.sqrt(self._squares / max(self._count, 1)))
        if deviation > 0:
            scaled = (self._numbers(values) - self._mean) / deviation
            out[:, 0] = np.where(np.isfinite(scaled), scaled, 0)


class _Time(_Number):
    def _numbers(self, values: pa.Array) -> npt.NDArray[np.float64]:
        return super()._numbers(seconds(values, self._where))


class _Boolean:
    width = 1

    def __init__(self, where: str, asked: bool) -> None:
        self._where = where

    def add(self, values: pa.Array) -> None:
        if not pa.types.is_boolean(values.type):
            raise InputError(f"{self._where}: expected truth values, found {values.type}")

    def encode(self, values: pa.Array, out: npt.NDArray[np.float32]) -> None:
        out[:, 0] = np.asarray(values.fill_null(False))


class _Category:
    def __init__(self, where: str, asked: bool) -> None:
        self._where, self._asked = where, asked
        self._values: pa.Array | None = None
        self.is_text = False

    @property
    def width(self) -> int:
        return 0 if self._values is None else len(self._values)

    def add(self, values: pa.Array) -> None:
        if self.is_text:
            return
        found = pc.unique(values.drop_null())
        self._values = found if self._values is None else pc.unique(pa.concat_arrays([self._values, found]))
        if len(self._values) > _MOST_VALUES:
            if self._asked:
                raise InputError(
                    f"{self._where}: expected at most {_MOST_VALUES} values of a category, found more; encode it as "
                    f"none, or as a vector beforehand"
                )
            self.is_text = True
        else:
            self._values = self._values.take(pc.array_sort_indices(self._values))

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
    "number": _Number, "time": _Time, "boolean": _Boolean, "category": _Category, "vector": _Vector,
}  # fmt: skip
