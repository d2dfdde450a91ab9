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

Means, deviations and values are those of rows that are known when a model is trained: a first pass finds them, or they
are those of another graph (`KnownColumns`). Whole numbers that count the rows, as data frames write their index, are
left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.feature_columns import ENCODINGS, FeatureColumn
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource
from diskgnn.importers.source_listing import EXCLUDED, SourceListing
from diskgnn.importers.tables.frames import RowTable
from diskgnn.importers.tables.spark_vectors import is_vector, vector_lengths, vector_rows
from diskgnn.importers.tables.times import seconds

_CHOICES = (*ENCODINGS, "none")
_MOST_VALUES = 32  # of a category
_COUNTS_ROWS = "it counts the rows"
_LARGEST_SCALED = 1e100  # the squares of larger numbers may sum up to infinity
_STATISTICS_ROWS = 1 << 16  # at a time: what is found must not depend on memory


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


@dataclass(frozen=True)
class KnownColumns:
    """The columns that the features of a type of another graph were made from, for a table that is to be encoded alike.

    Args:
        graph: its path, for messages.
        columns: of its features, in order.
        left_out: the other columns of its table, and why they are no features.
    """

    graph: str
    columns: tuple[FeatureColumn, ...]
    left_out: Mapping[str, str]


class _Finder(Protocol):
    """What is found of one column in a first pass."""

    def add(self, values: pa.Array) -> None:
        """`values` are known."""
        ...

    def found(self) -> FeatureColumn | str:
        """How the column is encoded, once all values are known; or why it is to be left out."""
        ...


class TableEncoding:
    """The feature columns of a table.

    Args:
        table: its name, for messages.
        kinds: of its columns that may be features.
        asked: encodings by column, where they are not to be the natural ones.
        argument: that says so, for messages.
        known: how to encode them, where that is not to be found in the table itself.

    Attributes:
        features: the columns, in order, and how they are encoded; of none, a feature row is a single 1. Empty until
            the table was read, unless they are known.
        left_out: columns that nobody asked to leave out, and why each is.

    Raises:
        ConfigError: no such column or encoding, or another one than is known.
        InputError: the table lacks a column that is known, or has one of another type.
    """

    def __init__(
        self,
        table: str,
        kinds: Mapping[str, pa.DataType],
        asked: Mapping[str, str],
        argument: str = "columns",
        known: KnownColumns | None = None,
    ) -> None:
        if unknown := [name for name in asked if name not in kinds]:
            raise ConfigError(
                f"{table}: {argument}: expected columns that are no keys and not the time, of "
                f"{', '.join(kinds) or 'none'}; found {unknown[0]!r}"
            )
        for name, encoding in asked.items():
            if encoding not in _CHOICES:
                raise ConfigError(f"{table}: {argument}: {name}: expected {', '.join(_CHOICES)}, found {encoding!r}")
        self._table, self._known = table, known
        self._finders: dict[str, _Finder] = {}
        self._nulls: dict[str, int] = {}
        self._num_rows = 0
        self.features: tuple[FeatureColumn, ...] = () if known is None else known.columns
        self.left_out: dict[str, str] = {}
        self._asked_out = [name for name, encoding in asked.items() if encoding == "none"]
        if known is not None:
            self._take_known(known, kinds, asked, argument)
            return
        for name, kind in kinds.items():
            encoding = asked.get(name, natural_encoding(kind))
            if encoding != "none":
                if not _fits(encoding, kind):
                    raise InputError(f"{table}.{name}: expected {_TAKEN[encoding]}, found {kind}")
                self._finders[name] = _FINDERS[encoding](table, name, encoding, name in asked)
            elif name not in asked:
                self.left_out[name] = f"{kind} is no number, time, truth value, category or vector"

    def _take_known(
        self, known: KnownColumns, kinds: Mapping[str, pa.DataType], asked: Mapping[str, str], argument: str
    ) -> None:
        encodings = {column.name: column.encoding for column in known.columns}
        for name, encoding in asked.items():
            if encoding != encodings.get(name, "none"):
                raise ConfigError(
                    f"{self._table}: {argument}: {name}: expected {encodings.get(name, 'none')}, as in {known.graph}, "
                    f"found {encoding}; leave it out, `encoding_of` says how columns are encoded"
                )
        for column in known.columns:
            if column.name not in kinds:
                raise InputError(
                    f"{self._table}: expected a column {column.name!r}, which is a feature of {known.graph} "
                    f"({column.encoding}), found {', '.join(kinds) or 'none'} without another role"
                )
            if not _fits(column.encoding, kinds[column.name]):
                raise InputError(
                    f"{self._table}.{column.name}: expected {_TAKEN[column.encoding]}, as {known.graph} encodes the "
                    f"column as {column.encoding}, found {kinds[column.name]}"
                )
            self._finders[column.name] = _KnownColumn(self._table, column)
        for name in kinds:
            if name not in encodings and name not in asked:
                reason = known.left_out.get(name)
                no_feature = f"{known.graph} has no such feature"
                self.left_out[name] = no_feature if reason is None else f"{no_feature}: {reason}"

    @property
    def columns(self) -> list[str]:
        """Of the table, that are read."""
        return list(self._finders)

    @property
    def width(self) -> int:
        """Of a row of features: at least 1, because a table without feature columns gets a column of ones."""
        return max(1, sum(column.width for column in self.features))

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Rows that are known, as `columns`."""
        for (name, finder), values in zip(self._finders.items(), columns, strict=True):
            if not pa.types.is_null(values.type):
                finder.add(values)
            self._nulls[name] = self._nulls.get(name, 0) + values.null_count
        self._num_rows += len(columns[0])

    def complete(self) -> None:
        """All known rows were added: drop columns that say nothing, such as text with too many values."""
        found = {name: finder.found() for name, finder in self._finders.items()}
        self.left_out |= {name: why for name, why in found.items() if isinstance(why, str)}
        self.features = tuple(column for column in found.values() if isinstance(column, FeatureColumn))
        self._finders = {column.name: self._finders[column.name] for column in self.features}
        if self._known is not None:
            for finder in self._finders.values():
                if isinstance(finder, _KnownColumn):
                    finder.warn_of_unknown(self._known.graph, self._num_rows)

    def list_columns(self, of: str, listing: SourceListing) -> None:
        """Note what became of each column of the table of the type `of`."""
        for column in self.features:
            share = self._nulls[column.name] / self._num_rows if self._num_rows else None
            listing.read(of, column.name, "features", column.encoding, column.width, share)
        for name in self._asked_out:
            listing.leave_out(of, name, EXCLUDED, expected=True)
        for name, reason in self.left_out.items():
            is_known = self._known is not None and name in self._known.left_out
            listing.leave_out(of, name, reason, expected=is_known or reason == _COUNTS_ROWS)

    def encode(self, columns: Sequence[pa.Array], num_rows: int) -> npt.NDArray[np.float32]:
        """[num_rows, width] of rows given as `columns`."""
        if not self.features:
            return np.ones((num_rows, 1), np.float32)
        out = np.zeros((num_rows, self.width), np.float32)
        start = 0
        for column, values in zip(self.features, columns, strict=True):
            if pa.types.is_null(values.type):  # a column of a CSV file in which no row has a value
                values = values.cast(_OF_NULLS[column.encoding])
            part = out[:, start : start + column.width]
            _ENCODERS[column.encoding](column, values, part, f"{self._table}.{column.name}")
            start += column.width
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
        stored_bytes=rows.stored_bytes, seek=read, columns=encoding.features,
    )  # fmt: skip


def _fits(encoding: str, kind: pa.DataType) -> bool:
    """Whether values of a type can be encoded so; text may hold numbers and times."""
    if encoding == "category":
        return not pa.types.is_nested(kind)
    by_nature = "null" if pa.types.is_null(kind) else natural_encoding(kind)
    return by_nature in _NATURES[encoding]


def _numbers(values: pa.Array, encoding: str, where: str) -> npt.NDArray[np.float64]:
    """Numbers, or times in seconds; null is NaN."""
    values = seconds(values, where) if encoding == "time" else values
    try:
        numbers = values.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise InputError(f"{where}: expected numbers, found {values.type}") from error
    return np.asarray(numbers.to_numpy(zero_copy_only=False))


def _scalable(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The numbers, NaN where there is none that can be scaled."""
    return np.where(np.abs(numbers) <= _LARGEST_SCALED, numbers, np.nan)


def _truths(values: pa.Array, where: str) -> pa.Array:
    """Truth values; text is a column of a CSV file in which no row has a value."""
    if pa.types.is_boolean(values.type):
        return values
    if values.null_count < len(values):
        raise InputError(f"{where}: expected truth values, found {values.type}")
    return pa.nulls(len(values), pa.bool_())


def _words(values: pa.Array, where: str) -> pa.Array:
    """The values of a category as text: those of 1 and 1.0 are the same."""
    try:
        return values.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(f"{where}: expected values of a category, found {values.type}") from error


def _lengths(values: pa.Array, where: str) -> npt.NDArray[np.int64]:
    """[n] of each list or vector; -1 for null."""
    if is_vector(values.type):
        return vector_lengths(values)
    if not _is_list(values.type):
        raise InputError(f"{where}: expected lists of numbers, found {values.type}")
    return np.asarray(pc.list_value_length(values).cast(pa.int64()).fill_null(-1))


class _ScalableNumbers:
    """Numbers of a column, or times; warns once of those that cannot be scaled."""

    def __init__(self, encoding: str, where: str) -> None:
        self._encoding, self._where, self._is_warned = encoding, where, False

    def of(self, values: pa.Array) -> npt.NDArray[np.float64]:
        """[n] numbers, NaN where there is none that can be scaled."""
        numbers = _numbers(values, self._encoding, self._where)
        is_extreme = np.abs(numbers) > _LARGEST_SCALED
        if is_extreme.any() and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"{self._where}: found {numbers[is_extreme][0]}; infinite values and those beyond "
                f"±{_LARGEST_SCALED:g} become 0, as null does: replace or clip them",
                DataWarning,
                stacklevel=callers_level(),
            )
        return _scalable(numbers)


class _Moments:
    """Mean and deviation of numbers, or of times."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._name, self._encoding, self._numbers = name, encoding, _ScalableNumbers(encoding, f"{table}.{name}")
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._rows, self._counts_rows = 0, not asked

    def add(self, values: pa.Array) -> None:
        if self._counts_rows:
            expected = np.arange(self._rows, self._rows + len(values))
            self._counts_rows = (
                pa.types.is_integer(values.type) and not values.null_count and np.array_equal(values, expected)
            )
        self._rows += len(values)
        numbers = self._numbers.of(values)
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers):  # Chan, Golub and LeVeque: the moments of two samples make those of both
            mean, total = float(numbers.mean()), self._count + len(numbers)
            shift = mean - self._mean
            self._squares += float(((numbers - mean) ** 2).sum()) + shift**2 * self._count * len(numbers) / total
            self._mean += shift * len(numbers) / total
            self._count = total

    def found(self) -> FeatureColumn | str:
        if self._counts_rows and self._rows > 1:
            return _COUNTS_ROWS
        deviation = float(np.sqrt(self._squares / max(self._count, 1)))
        return FeatureColumn(self._name, self._encoding, mean=self._mean, deviation=deviation)


class _AsTheyAre:
    """Nothing has to be found: the column becomes one number as it is."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._column, self._where = FeatureColumn(name, encoding), f"{table}.{name}"

    def add(self, values: pa.Array) -> None:
        if self._column.encoding == "boolean":
            _truths(values, self._where)

    def found(self) -> FeatureColumn | str:
        return self._column


class _Values:
    """The values of a category, in ascending order."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._name, self._where, self._asked = name, f"{table}.{name}", asked
        self._values: pa.Array | None = None
        self._is_text = False

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

    def found(self) -> FeatureColumn | str:
        if self._is_text:
            return f"more than {_MOST_VALUES} values: text or ids; embed text beforehand, as a column of vectors"
        if self._values is None or not len(self._values):
            return "it has no values"
        words = tuple(_words(self._values, self._where).to_pylist())
        return FeatureColumn(self._name, "category", len(words), values=words)


class _Length:
    """The length of lists and vectors."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._name, self._where, self._width = name, f"{table}.{name}", 0

    def add(self, values: pa.Array) -> None:
        lengths = _lengths(values, self._where)
        known = lengths[lengths >= 0]
        self._width = self._width or (int(known[0]) if len(known) else 0)

    def found(self) -> FeatureColumn | str:
        return FeatureColumn(self._name, "vector", self._width) if self._width else "it has no values"


class _KnownColumn:
    """A column whose encoding is known. Counts values of a category that have no feature."""

    def __init__(self, table: str, column: FeatureColumn) -> None:
        self._where, self._column = f"{table}.{column.name}", column
        self._numbers = _ScalableNumbers(column.encoding, self._where)
        self._num_unknown, self._first_unknown = 0, ""

    def add(self, values: pa.Array) -> None:
        if self._column.encoding == "boolean":
            _truths(values, self._where)
        if self._column.mean is not None:
            self._numbers.of(values)
        if self._column.values is None:
            return
        words = _words(values, self._where).drop_null()
        unknown = words.filter(pc.invert(pc.is_in(words, pa.array(self._column.values, pa.string()))))
        if len(unknown) and not self._num_unknown:
            self._first_unknown = unknown[0].as_py()
        self._num_unknown += len(unknown)

    def found(self) -> FeatureColumn | str:
        return self._column

    def warn_of_unknown(self, graph: str, num_rows: int) -> None:
        """Warn of values that no feature stands for."""
        if self._num_unknown:
            warnings.warn(
                f"{self._where}: {self._num_unknown} of {num_rows} rows have a value that {graph} has not, the first "
                f"of them {self._first_unknown!r}: all features of the column are 0 there",
                DataWarning,
                stacklevel=callers_level(),
            )


def _encode_scaled(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    assert column.mean is not None
    if column.deviation:
        scaled = (_scalable(_numbers(values, column.encoding, where)) - column.mean) / column.deviation
        out[:, 0] = np.where(np.isfinite(scaled), scaled, 0)


def _encode_raw(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    with np.errstate(over="ignore"):
        out[:, 0] = _numbers(values, column.encoding, where)


def _encode_boolean(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    out[:, 0] = np.asarray(_truths(values, where).fill_null(False))


def _encode_category(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    known = pa.array(column.values, pa.string())
    places = np.asarray(pc.index_in(_words(values, where), value_set=known).fill_null(-1))
    rows = np.flatnonzero(places >= 0)
    out[rows, places[rows]] = 1


def _encode_vectors(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    lengths = _lengths(values, where)
    there = np.flatnonzero(lengths >= 0)
    if (lengths[there] != column.width).any():
        found = lengths[there][lengths[there] != column.width][0]
        raise InputError(f"{where}: expected {column.width} numbers in every list, found {found}")
    kept = values.take(pa.array(there))
    if is_vector(values.type):
        out[there] = vector_rows(kept, column.width, np.dtype(np.float32))
    else:
        out[there] = _numbers_of(kept.flatten()).reshape(-1, column.width)


def _numbers_of(values: pa.Array) -> npt.NDArray[np.float32]:
    return np.nan_to_num(np.asarray(values.cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32))


def _is_list(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))


# By encoding: the natural encodings of the types that it takes (category: of text, which may hold numbers and times),
# and how messages call these.
_NATURES = {
    "number": ("number", "boolean", "category", "null"), "raw": ("number", "boolean", "category", "null"),
    "time": ("time", "number", "category", "null"), "boolean": ("boolean", "category", "null"),
    "vector": ("vector", "null"),
}  # fmt: skip
_TAKEN = {
    "number": "numbers", "raw": "numbers", "time": "timestamps, dates or whole numbers", "boolean": "truth values",
    "category": "values of a category", "vector": "lists of numbers",
}  # fmt: skip
_OF_NULLS = {
    "number": pa.float64(), "raw": pa.float64(), "time": pa.int64(), "boolean": pa.bool_(), "category": pa.string(),
    "vector": pa.list_(pa.float32()),
}  # fmt: skip
_FINDERS: Mapping[str, Callable[[str, str, str, bool], _Finder]] = {
    "number": _Moments, "raw": _AsTheyAre, "time": _Moments, "boolean": _AsTheyAre, "category": _Values,
    "vector": _Length,
}  # fmt: skip
_ENCODERS: Mapping[str, Callable[[FeatureColumn, pa.Array, npt.NDArray[np.float32], str], None]] = {
    "number": _encode_scaled, "raw": _encode_raw, "time": _encode_scaled, "boolean": _encode_boolean,
    "category": _encode_category, "vector": _encode_vectors,
}  # fmt: skip
