"""Columns of a relational table as numbers: one simple, stated encoding for each kind of column.

| encoding | of | columns of the features |
|---|---|---|
| number | whole numbers, fractions, decimals | 1: (value - mean) / standard deviation; null is 0, the mean |
| raw | the same, if asked for | 1: as it is; null is NaN |
| time | timestamps and dates | 1: as a number, in seconds |
| boolean | truth values | 1: 0 or 1; null is 0 |
| category | strings of at most 32 values | 1 for each value, in ascending order: 1 where it is this one, else 0 |
| vector | lists of numbers of equal lengths, vectors of Spark ML | as many as it is long; null is 0 |
| text | text, by an embedder that is asked for: 'hash:D', 'module:function' | as many as the embedder says |
| none | all else, such as text | left out |

Means, deviations and values are those of rows that are known when a model is trained: a first pass finds them, or they
are those of another graph (`KnownColumns`). Whole numbers that count the rows, as data frames write their index, are
left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource
from diskgnn.importers.source_listing import EXCLUDED, SourceListing
from diskgnn.importers.tables import column_finders, column_values
from diskgnn.importers.tables.frames import RowTable
from diskgnn.importers.tables.odd_text import read_by_people
from diskgnn.importers.tables.text_embedding import is_embedder, is_function, named_embedder, require_same_embedder
from diskgnn.importers.tables.times import counts_numbers, is_date, seconds
from diskgnn.ordered import made_in_order
from diskgnn.specs.feature_columns import ENCODINGS, FeatureColumn
from diskgnn.specs.near_names import near_name
from diskgnn.system.resources import Resources

CHOICES = (*(each for each in ENCODINGS if each != "text"), "hash:256", "module:function", "none")
_STATISTICS_ROWS = 1 << 16  # at a time: what is found must not depend on memory
_READ_BYTES = 8 << 20  # of a table, of which rows are made


def encoding_bytes(num_rows: int, row_bytes: int) -> int:
    """Returns what encoding so many rows at once takes: what is read, what is between, and the rows themselves."""
    return _READ_BYTES + 2 * num_rows * row_bytes


def label_numbers(values: pa.Array, task: str, where: str) -> pa.Array:
    """Returns labels as int64, if `task` is "class", or else as float64. Null stays.

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
        excludable: the type, if its table keeps its columns, so that a model may have been trained without some.
    """

    graph: str
    columns: tuple[FeatureColumn, ...]
    left_out: Mapping[str, str]
    excludable: str | None = field(default=None, kw_only=True)

    @property
    def stored(self) -> tuple[FeatureColumn, ...]:
        """Returns the columns of the table that are read."""
        return self.columns

    def expected(self, column: FeatureColumn, kind: pa.DataType) -> str | None:
        """Returns what a column has to be, where it is of a type that cannot be encoded alike; None if it can."""
        return None if column_values.fits(column.encoding, kind) else column_values.TAKEN[column.encoding]

    def finder(self, table: str, column: FeatureColumn) -> column_finders.Finder:
        """Returns what looks at the values of a column of `table`."""
        return column_finders.UnknownValues(table, column, self.graph)


class TableEncoding:
    """The feature columns of a table.

    Args:
        table: its name, for messages.
        kinds: of its columns that may be features.
        asked: encodings by column, where they are not to be the natural ones.
        argument: that says so, for messages.
        of: what stands before the names of columns where the user names them by table: "users.".
        said: those of `asked` that the user said, if not all.
        known: how to encode them, where that is not to be found in the table itself.

    Attributes:
        features: the columns, in order, and how they are encoded; of none, a feature row is a single 1. Empty until
            the table was read, unless they are known.
        left_out: columns that nobody asked to leave out, and why each is.

    Raises:
        ConfigError: no such column or encoding, or another one than is known.
        InputError: the table lacks a column that is known, or has one of another type.
    """

    _choices: Sequence[str] = CHOICES
    _finder_of: Mapping[str, Callable[[str, str, str, bool], column_finders.Finder]] = column_finders.FINDERS

    def __init__(
        self,
        table: str,
        kinds: Mapping[str, pa.DataType],
        asked: Mapping[str, str],
        argument: str = "encode",
        known: KnownColumns | None = None,
        said: Collection[str] | None = None,
        of: str = "",
    ) -> None:
        if unknown := [name for name in asked if name not in kinds]:
            raise ConfigError(
                f"{argument}: {table}: expected columns that are no keys and not the time, of "
                f"{', '.join(kinds) or 'none'}; found {unknown[0]!r}{near_name(unknown[0], kinds)}"
            )
        for name, encoding in asked.items():
            if not is_embedder(encoding) and encoding not in self._choices:
                raise ConfigError(
                    f"{argument}: {table}.{name}: expected {', '.join(self._choices)}, found {encoding!r}"
                    f"{near_name(encoding, self._choices)}"
                )
        self._table, self._known, self._of = table, known, of
        self._said = {*(asked if said is None else said)}
        self._finders: dict[str, column_finders.Finder] = {}
        self._nulls: dict[str, int] = {}
        self._num_rows = 0
        self._later: dict[str, int] = {}  # values after the time of their row, by columns of times
        self.features: tuple[FeatureColumn, ...] = () if known is None else known.columns
        self.left_out: dict[str, str] = {}
        self._asked_out = [name for name, encoding in asked.items() if encoding == "none"]
        if known is not None:
            self._take_known(known, kinds, asked, argument)
            return
        for name, kind in kinds.items():
            encoding = asked.get(name, self._natural_encoding(kind))
            if encoding != "none":
                of_kind = "text" if is_embedder(encoding) else encoding
                if not self._fits(of_kind, kind):
                    raise InputError(f"{table}.{name}: expected {column_values.TAKEN[of_kind]}, found {kind}")
                self._finders[name] = self._finder_of[of_kind](table, name, encoding, name in asked)
            elif name not in asked:
                self.left_out[name] = f"{kind} is no number, time, truth value, category or vector"

    def _take_known(
        self, known: KnownColumns, kinds: Mapping[str, pa.DataType], asked: Mapping[str, str], argument: str
    ) -> None:
        encodings = {column.name: column.asked_as for column in known.stored}
        for name, encoding in asked.items():
            if is_embedder(encoding):
                encoding = named_embedder(encoding, f"{argument}: {self._table}.{name}")
            if encoding != encodings.get(name, "none"):
                raise ConfigError(
                    f"{argument}: {self._table}.{name}: expected {encodings.get(name, 'none')}, as in {known.graph}, "
                    f"found {encoding}; leave it out, `encoding_of` says how columns are encoded"
                )
        for column in known.stored:
            if column.name not in kinds:
                raise InputError(
                    f"{self._table}: expected a column {column.name!r}, which is a feature of {known.graph} "
                    f"({column.asked_as}), found {', '.join(kinds) or 'none'} without another role"
                    + (f"; for a model that was trained without it (`diskgnn prepare --without`), leave it "
                       f"out (`exclude`, {known.excludable}.{column.name})") * (known.excludable is not None)
                )  # fmt: skip
            if (expected := known.expected(column, kinds[column.name])) is not None:
                raise InputError(
                    f"{self._table}.{column.name}: expected {expected}, as {known.graph} encodes the column as "
                    f"{column.asked_as}, found {kinds[column.name]}"
                )
            if column.embedder is not None:
                require_same_embedder(column.embedder, f"{self._table}.{column.name}")
            self._finders[column.name] = known.finder(self._table, column)
        for name in kinds:
            if name not in encodings and name not in asked:
                reason = known.left_out.get(name)
                no_feature = f"{known.graph} has no such feature"
                self.left_out[name] = no_feature if reason is None else f"{no_feature}: {reason}"

    def _natural_encoding(self, kind: pa.DataType) -> str:
        return column_values.natural_encoding(kind)

    def _fits(self, encoding: str, kind: pa.DataType) -> bool:
        return column_values.fits(encoding, kind)

    @property
    def held_bytes(self) -> int:
        """Returns what is kept in memory of the values of columns; 0 for a few of each."""
        return 0

    @property
    def lookup_bytes(self) -> int:
        """Returns what encoding rows by these values takes beside that."""
        return 0

    @property
    def most_bytes(self) -> int | None:
        """Returns the most that both can be, whatever rows are added; None if nobody knows."""
        return None

    @property
    def columns(self) -> list[str]:
        """Returns the columns of the table that are read."""
        return list(self._finders)

    @property
    def width(self) -> int:
        """Returns the numbers of a row of features: at least 1, because a table without feature columns gets a column
        of ones.
        """
        return max(1, sum(column.width for column in self.features))

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Takes rows that are known, as `columns`."""
        for (name, finder), values in zip(self._finders.items(), columns, strict=True):
            if not pa.types.is_null(values.type):
                finder.add(values)
            self._nulls[name] = self._nulls.get(name, 0) + values.null_count
        self._num_rows += len(columns[0])

    @property
    def unfinished(self) -> list[str]:
        """Returns columns whose known rows have to be read once more, to `add_again`, once it is complete."""
        return []

    def add_again(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        """Takes the same rows as before, as some of their columns."""

    def finish_pass(self, names: Sequence[str]) -> None:
        """Ends a pass: all rows of these columns were added again."""

    def compare_times(self, columns: Sequence[pa.Array], row_times: pa.Array) -> None:
        """Count the values that are later than the time of their row, [n] in seconds."""
        for name, values in zip(self._finders, columns, strict=True):
            if is_date(values.type):
                later = pc.greater(seconds(values, f"{self._table}.{name}"), row_times)
                self._later[name] = self._later.get(name, 0) + (pc.sum(later).as_py() or 0)

    def complete(self) -> None:
        """Drops columns that say nothing, such as text with too many values, once all known rows were added."""
        found = {name: finder.found() for name, finder in self._finders.items()}
        self.left_out |= {name: why for name, why in found.items() if isinstance(why, str)}
        self.features = tuple(column for column in found.values() if isinstance(column, FeatureColumn))
        self._finders = {column.name: self._finders[column.name] for column in self.features}
        for column in self.features:
            told = "" if column.values is None or column.name in self._said else read_by_people(column.values)
            if told and self._known is None:
                warnings.warn(
                    f"{self._table}.{column.name}: taken as a category of {len(column.values or ())} words; most are "
                    f"{told}. If categories are meant, say so (`encode`, {self._of}{column.name}=category)",
                    DataWarning,
                    stacklevel=callers_level(),
                )

    def warn_of_later(self, of: str, time: str) -> None:
        """Warn of columns with what nobody knew at the `time` of their rows: a database has the values of today."""
        for name in (column.name for column in self.features if self._later.get(column.name)):
            warnings.warn(
                f"{of}.{name}: {self._later[name]} values are later than the time of their row ({time!r}). If they "
                "were written after it, a model reads the future from them: leave the column out (`exclude`, "
                f"{of}.{name})",
                DataWarning,
                stacklevel=callers_level(),
            )

    def list_columns(self, of: str, listing: SourceListing) -> None:
        """Note what became of each column of the table of the type `of`."""
        for column in self.features:
            share = self._nulls[column.name] / self._num_rows if self._num_rows else None
            listing.read(of, column.name, "features", column.asked_as, column.width, share)
        for name, finder in self._finders.items():
            if isinstance(finder, column_finders.UnknownValues) and (why := finder.told(self._num_rows)):
                listing.leave_out(of, f"values of {name}", why)
        for name in self._asked_out:
            listing.leave_out(of, name, EXCLUDED, expected=True)
        for name, reason in self.left_out.items():
            is_known = self._known is not None and name in self._known.left_out
            listing.leave_out(of, name, reason, expected=is_known or reason == column_finders.COUNTS_ROWS)

    @property
    def may_use_threads(self) -> bool:
        """Returns False if a function of the user's embeds text: nobody said that it can be called twice at once."""
        return not any(column.embedder is not None and is_function(column.embedder) for column in self.features)

    def encode(self, columns: Sequence[pa.Array], num_rows: int) -> npt.NDArray[np.float32]:
        """Returns [num_rows, width] of rows given as `columns`."""
        if not self.features:
            return np.ones((num_rows, 1), np.float32)
        out = np.zeros((num_rows, self.width), np.float32)
        start = 0
        for column, values in zip(self.features, columns, strict=True):
            part = out[:, start : start + column.width]
            column_values.encode(column, values, part, f"{self._table}.{column.name}")
            start += column.width
        return out

    def rows(self, name: str, table: RowTable) -> RowSource:
        """Returns the features [N, width] float32 of the table, once it was read; `name` is for messages."""
        batch_rows = max(1, CHUNK_BYTES // (4 * self.width))
        columns = self.columns

        def encoded(given: pa.RecordBatch) -> npt.NDArray[np.float32]:
            return self.encode(given.columns if columns else [], given.num_rows)

        def read(first: int, threads: int = 1) -> Iterator[npt.NDArray[np.float32]]:
            batches = table.batches(columns or table.schema.names[:1], batch_rows, first)
            return made_in_order((partial(encoded, batch) for batch in batches), threads)

        return RowSource(
            name, table.num_rows, (self.width,), np.dtype(np.float32), partial(read, 0),
            stored_bytes=table.stored_bytes, seek=read, columns=self.features,
            seek_on_threads=read if self.may_use_threads else None,
            thread_bytes=encoding_bytes(batch_rows, 4 * self.width),
        )  # fmt: skip


def find_statistics(
    encoding: TableEncoding,
    rows: RowTable,
    *,
    time: str | None = None,
    until: int | None = None,
    resources: Resources | None = None,
) -> int | None:
    """Read the columns once, up to `until` by the column `time` if both are given, and complete the encoding.

    Returns:
        The latest time of all rows, where some have one and it decided which are known; None: nobody looked.

    Raises:
        SmallBudgetError: what is found of the columns does not fit in `resources`.
    """
    num_rows, columns, latest = 0, encoding.columns, list[int | None]()
    # Whole numbers may count anything.
    compares = time is not None and not counts_numbers(rows.field(time).type) and any(
        is_date(rows.field(name).type) for name in columns
    )  # fmt: skip
    time = time if compares or until is not None else None
    if columns:
        for batch in rows.batches(columns if time is None else [*columns, time], _STATISTICS_ROWS):
            if time is not None:
                times = seconds(batch.column(len(columns)), f"{rows.name}: column {time!r}")
                if compares:
                    encoding.compare_times(batch.columns[: len(columns)], times)
                if until is not None:
                    latest.append(pc.max(times).as_py())
                    batch = _rows_until(batch, times, until)
            encoding.add(batch.columns[: len(columns)])
            num_rows += batch.num_rows
            if resources is not None:
                needed_bytes = encoding.held_bytes + encoding.lookup_bytes
                resources.require(f"to keep the values of categories of {rows.name}", needed_bytes, encoding.most_bytes)
        if until is not None and time is not None and rows.num_rows and not num_rows:
            warnings.warn(
                f"val_timestamp: no row of {rows.name} is as early, so nothing is known of its columns: numbers become "
                "0, categories are left out",
                DataWarning,
                stacklevel=callers_level(),
            )
    encoding.complete()
    while names := encoding.unfinished:
        for batch in rows.batches(names if time is None or until is None else [*names, time], _STATISTICS_ROWS):
            if time is not None and until is not None:
                batch = _rows_until(batch, seconds(batch.column(len(names)), f"{rows.name}: column {time!r}"), until)
            encoding.add_again(names, batch.columns[: len(names)])
        encoding.finish_pass(names)
    return max((each for each in latest if each is not None), default=None)


def _rows_until(batch: pa.RecordBatch, times: pa.Array, until: int) -> pa.RecordBatch:
    return batch.filter(pc.less_equal(times, until).fill_null(False))


def encoded_rows(name: str, rows: RowTable, encoding: TableEncoding) -> RowSource:
    """Returns the features of a table whose statistics were found; `name` is for messages."""
    return encoding.rows(name, rows)
