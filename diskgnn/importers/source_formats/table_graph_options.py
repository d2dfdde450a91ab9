"""Says which graph the tables of a database become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from diskgnn.errors import ConfigError
from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.tables.times import Moment, moment

_VALIDATION, _ALL = "validation", "all"  # rows of validation, and later ones, are left out of statistics, or not


class TableGraphKeywords(TypedDict, total=False):
    """Holds the fields of `TableGraphOptions` but `until`, as keywords."""

    val_timestamp: Moment | None
    reverse: bool
    skip_unknown: bool
    keep_columns: bool | None
    kinds: str | None
    statistics: str
    exclude: Sequence[str]
    encode: Mapping[str, str]
    encoding: GivenEncoding | None
    quantise: str | None


@dataclass(frozen=True)
class TableGraphOptions:
    """Says what graph the tables of a database become.

    Attributes:
        val_timestamp: features are scaled by rows up to this time, a date, timestamp or seconds since 1970; None: all.
        reverse: edges lead both ways.
        skip_unknown: keys that no row has make no edge, as in RelBench, and a warning; False: they are an error.
        keep_columns: rows are records, which keep their columns, see `record_encoding`; False: vectors of numbers;
            None: as those of the graph of `encoding`, records without one.
        kinds: a JSON file with the kinds of all columns that are kept, see `given_kinds`.
        statistics: "validation": `val_timestamp` counts; "all": categories, means and the like are of all rows, as in
            RelBench.
        exclude: columns to leave out, TABLE.COLUMN, or COLUMN of every table that has it.
        encode: how columns become features, by such names.
        encoding: of another graph, for tables that are to be encoded alike; `val_timestamp` then means nothing.
        quantise: how the features will be stored, to be refused in time.
        until: rows after this time, and those without one, are left out of tables that have times; None: none.

    Raises:
        ConfigError: `statistics` are none of these.
    """

    val_timestamp: Moment | None = None
    reverse: bool = True
    skip_unknown: bool = True
    keep_columns: bool | None = None
    kinds: str | None = None
    statistics: str = _VALIDATION
    exclude: Sequence[str] = ()
    encode: Mapping[str, str] = field(default_factory=dict)
    encoding: GivenEncoding | None = None
    quantise: str | None = None
    until: Moment | None = None

    def __post_init__(self) -> None:
        if self.statistics not in (_VALIDATION, _ALL):
            raise ConfigError(f"statistics: expected {_VALIDATION} or {_ALL}, found {self.statistics!r}")

    @property
    def keeps_columns(self) -> bool:
        """Returns True if rows are records."""
        if self.keep_columns is not None:
            return self.keep_columns
        return self.encoding is None or self.encoding.keeps_columns

    @property
    def statistics_until(self) -> int | None:
        """Returns the last time of the rows that statistics are of; None: they are of all."""
        if self.val_timestamp is None or self.statistics == _ALL:
            return None
        return moment("val_timestamp", self.val_timestamp)
