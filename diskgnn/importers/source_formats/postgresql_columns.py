"""Reads each type of PostgreSQL: by some SQL, as an Arrow type, counting the values that cannot be kept.

| type | read as |
|---|---|
| boolean, smallint, integer, bigint, real, double precision | as it is |
| text | as it is, but for what comes after 8,192 letters |
| numeric, money | double precision; as a key, a whole number of 64 bits |
| date, timestamp, with a time zone or without | date or microseconds, in UTC; infinite ones are null |
| time, interval | seconds |
| enum | text, as a category whatever the number of its values |
| uuid | as a key, its 16 bytes |
| arrays of numbers or texts, of one dimension | lists |
| a domain | what it is made of |
| all else | as a key, or where an encoding is asked for, its text; otherwise not at all |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import InputError

LONGEST_TEXT = 8192  # letters; of longer ones the rest is not read
_MONTH_SECONDS = 2_629_800  # 30.4375 days
_LAST = {
    "date": "date '294000-01-01'",
    "timestamp": "timestamp '294000-01-01'",
    "timestamptz": "timestamptz '294000-01-01 00:00:00+00'",
}  # beyond it, microseconds since 1970 have no room
_LAST_DAY = int(np.datetime64("294000-01-01", "D").astype(np.int64))
_AS_THEY_ARE = {"bool", "int2", "int4", "int8", "float4", "float8"}
_NUMBERS = {*_AS_THEY_ARE, "oid", "numeric", "money"} - {"bool"}
_TEXTS = {"text", "varchar", "bpchar", "name", "char", "citext"}


@dataclass(frozen=True)
class PostgresType:
    """A type of the catalogue, domains resolved."""

    name: str  # as pg_type has it
    shown: str  # as people write it
    kind: str  # pg_type.typtype
    element: PostgresType | None = None  # of an array
    precision: int | None = None  # of numeric(p, s)

    @property
    def compared_as(self) -> str:
        """Returns the same word for types whose values can be compared with each other."""
        if self.name in _NUMBERS:
            return "numbers"
        return "texts" if self.name in _TEXTS else "moments" if self.name in _LAST else self.name

    @property
    def is_compared_across_types(self) -> bool:
        """Returns True if keys may be equal to those of another type that is read as another text: dates to timestamps,
        and what blanks fill up to those without."""
        return self.name in {*_LAST, "bpchar"}

    @property
    def is_compared_otherwise(self) -> bool:
        """Returns True if equal keys may be read as different texts, as without regard to capital letters."""
        exact = _NUMBERS | _TEXTS | {*_LAST, "bool", "uuid", "bytea"}
        return (self.name not in exact or self.name == "citext") and self.kind != "e"


@dataclass(frozen=True)
class Check:
    """Something that rows of a column may have, which are counted while they are read.

    Attributes:
        what: of the column these values are, for a listing.
        told: the reason, with the count.
        sql: true of such a row, of a table called t. It costs the server as much as a few columns.
        taken: in place of `sql`, of a column as it is read: what is taken of it, and how many such rows there are.
        is_refused: the column cannot be read with it.
    """

    what: str
    told: str
    sql: str = ""
    taken: Callable[[pa.Array], tuple[pa.Array, int]] | None = None
    is_refused: bool = False

    def found(self, where: str, column: str, count: int) -> tuple[str, str]:
        """Returns what to list of `count` such rows.

        Raises:
            InputError: they are refused.
        """
        if self.is_refused:
            raise InputError(f"{where}: column {column!r}: {count:,} {self.told}; leave it out (`exclude`), or cast it")
        return self.what, f"{count:,} {self.told}"


@dataclass(frozen=True)
class ReadColumn:
    """Says by which SQL a column is read.

    Attributes:
        sql: its values, of a table called t.
        checks: what is counted on the way.
        encoding: if the type says it.
        asked: the key that is looked up for these values, as text; None: they are those of the column.
        named: among what it is looked up.
    """

    sql: str
    checks: tuple[Check, ...] = ()
    encoding: str | None = None
    asked: str | None = None
    named: str = ""


def read_column(column: str, of: PostgresType, *, is_key: bool, value: str) -> ReadColumn | str:
    """Returns how a column is read, or why it is not.

    Args:
        column: its name, for what is told.
        of: its type.
        is_key: it names rows; its values are not changed then.
        value: its SQL.
    """
    name = of.name
    if name in _AS_THEY_ARE and not (is_key and name == "bool"):
        return ReadColumn(value)
    if name == "oid":
        return ReadColumn(f"{value}::int8")
    if of.kind == "e":
        return ReadColumn(f"{value}::text", encoding=None if is_key else "category")
    if name == "uuid":
        return ReadColumn(f"uuid_send({value})") if is_key else "a uuid that is no key says nothing of its row"
    if name in ("numeric", "money"):
        return _numeric(column, of, value if name == "numeric" else f"{value}::numeric", is_key)
    if is_key:
        return ReadColumn(f"{value}::text")
    if name in _TEXTS:
        return read_text(column, value)
    if name in _LAST:
        return _moment(column, name, value)
    if name in ("time", "timetz"):
        return ReadColumn(f"extract(epoch FROM {value})::float8")
    if name == "interval":
        return _interval(column, value)
    if of.element is not None:
        return _array(column, of.element, value)
    return f"{of.shown} is no number, time, truth value, category or vector"


def read_text(column: str, value: str) -> ReadColumn:
    """Returns how a column is read as text."""
    # The length in bytes is known without unpacking the text. One letter more shows that there are more.
    is_long = f"octet_length({value}::text) > {LONGEST_TEXT}"
    told = f"rows have more than {LONGEST_TEXT:,} letters, of which the first {LONGEST_TEXT:,} are read"
    check = Check(f"the rest of texts in {column}", told, taken=_first_letters)
    sql = f"CASE WHEN {is_long} THEN left({value}::text, {LONGEST_TEXT + 1}) ELSE {value}::text END"
    return ReadColumn(sql, (check,))


def _first_letters(texts: pa.Array) -> tuple[pa.Array, int]:
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= LONGEST_TEXT:
        return texts, 0
    num_long = pc.sum(pc.greater(pc.utf8_length(texts), LONGEST_TEXT)).as_py() or 0
    return pc.utf8_slice_codeunits(texts, 0, LONGEST_TEXT) if num_long else texts, num_long


def _numeric(column: str, of: PostgresType, value: str, is_key: bool) -> ReadColumn:
    if is_key:
        is_whole = f"{value} = trunc({value}) AND {value} BETWEEN -9223372036854775808 AND 9223372036854775807"
        told = "rows have keys that are no whole numbers of 64 bits"
        check = Check(column, told, f"NOT ({is_whole})", is_refused=True)
        return ReadColumn(f"CASE WHEN {is_whole} THEN {value}::int8 END", (check,))
    if of.precision is not None and of.precision <= 15:
        return ReadColumn(f"{value}::float8")
    # A cast from float8 has 15 digits.
    check = Check(
        f"digits of {column}", "rows have more than 15, of which the first are kept",
        f"{value} <> {value}::float8::numeric",
    )  # fmt: skip
    return ReadColumn(f"{value}::float8", (check,))


def _moment(column: str, name: str, value: str) -> ReadColumn:
    told = "rows have one, or one later than the year 294000: null now"
    check = Check(f"infinite values of {column}", told, taken=_without_last)
    last = _LAST[name]  # stands for all that have no room
    is_kept = f"isfinite({value}) AND {value} < {last} OR {value} IS NULL"
    return ReadColumn(f"CASE WHEN {is_kept} THEN {value} ELSE {last} END", (check,))


def _without_last(moments: pa.Array) -> tuple[pa.Array, int]:
    last = pa.scalar(_LAST_DAY, pa.date32()).cast(moments.type)
    is_last = pc.equal(moments, last)
    if not (num_last := pc.sum(is_last).as_py() or 0):
        return moments, 0
    return pc.if_else(is_last, pa.scalar(None, moments.type), moments), num_last


def _interval(column: str, value: str) -> ReadColumn:
    months = f"(extract(year FROM {value}) * 12 + extract(month FROM {value}))"
    rest = (
        f"extract(day FROM {value}) * 86400 + extract(hour FROM {value}) * 3600 + "
        f"extract(minute FROM {value}) * 60 + extract(second FROM {value})"
    )
    has_months = Check(
        f"months of {column}", "rows have some, taken as 30.4375 days each", f"isfinite({value}) AND {months} <> 0"
    )
    infinite = Check(f"infinite values of {column}", "rows have one: null now", f"NOT isfinite({value})")
    seconds = f"({months} * {_MONTH_SECONDS} + {rest})::float8"
    return ReadColumn(f"CASE WHEN isfinite({value}) THEN {seconds} END", (has_months, infinite))


def _array(column: str, element: PostgresType, value: str) -> ReadColumn | str:
    check = Check(
        column, "rows have arrays of several dimensions, expected one", f"array_ndims({value}) > 1", is_refused=True,
    )  # fmt: skip
    if element.name in _AS_THEY_ARE - {"bool"}:
        return ReadColumn(value, (check,))
    if element.name == "numeric":
        return ReadColumn(f"{value}::float8[]", (check,))
    if element.name in _TEXTS or element.kind == "e":
        return ReadColumn(f"{value}::text[]", (check,))
    return f"arrays of {element.shown} are no vectors"


def encodings_of(columns: Mapping[str, ReadColumn]) -> dict[str, str]:
    """Returns the encodings that types say, by column."""
    return {name: column.encoding for name, column in columns.items() if column.encoding is not None}
