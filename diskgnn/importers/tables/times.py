"""The one place that reads dates and times: of columns, of options and of arguments.

Times are whole numbers: what the user's numbers are, or seconds since 1970 in UTC. What names no zone is of UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, InputError
from diskgnn.specs.time_windows import unit_of_dates

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
Moment = int | str | date | np.integer[Any] | np.datetime64
_TIMESTAMP, _IN_UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
_ZONE = r"[T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)$"
_FORMS = "2024-01-31, 2024-01-31 12:00:00 or 2024-01-31T12:00:00+01:00"
_BY_DAY = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?!\d)")  # or by month, which nobody can know
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?$")


def seconds(values: pa.Array, where: str, unit: str = "s") -> pa.Array:
    """Returns times as int64 seconds since 1970: timestamps, dates, and text such as 2024-01-31 or
    2024-01-31T12:00:00+01:00, rounded down. Whole numbers stay as they are.

    Args:
        values: of a column. Null and empty text stay null.
        where: it stands, for messages.
        unit: what is counted in place of seconds: ms, us or ns.

    Raises:
        InputError: something else; names the first text that is no time, and says how to convert it.
    """
    if pa.types.is_integer(values.type):
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid:
            raise InputError(
                f"{where}: expected times below 2^63, found {pc.max(values).as_py()}; is it what was meant?"
            ) from None
    if pa.types.is_floating(values.type):  # whole numbers, where a data frame had gaps
        try:
            return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{where}: expected timestamps, dates or whole numbers, found fractions ({error})"
            ) from error
    values = _as_timestamps(values, where)
    given, asked = _PER_SECOND[values.type.unit], _PER_SECOND[unit]
    if asked > given:
        return _scaled(values, asked // given, where, unit)
    return _floored(values, given // asked)


def counted(values: pa.Array, where: str, unit: str | None) -> pa.Array:
    """Returns times of a column as those of a graph are counted: whole numbers as they are, others in its unit.

    Raises:
        InputError: see `seconds`.
        ConfigError: dates and timestamps, where the graph's times are in a unit that has none.
    """
    return seconds(values, where, "s" if counts_numbers(values.type) else unit_of_dates(where, unit))


def microseconds(values: pa.Array, where: str) -> pa.Array:
    """Returns timestamps, dates, and text as `seconds` reads it, as int64 microseconds since 1970, rounded down. Null
    stays.

    Raises:
        InputError: something else, or a time that is too far off.
    """
    return seconds(_as_timestamps(values, where), where, "us")


def _as_timestamps(values: pa.Array, where: str) -> pa.Array:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = _of_text(values, where)
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s"))
    if not pa.types.is_timestamp(values.type):
        raise InputError(f"{where}: expected timestamps, dates or whole numbers, found {values.type}")
    return values


def _scaled(values: pa.Array, factor: int, where: str, unit: str) -> pa.Array:
    try:
        return pc.multiply_checked(values.cast(pa.int64()), factor)
    except pa.ArrowInvalid as error:
        years = f"{(1 << 63) // _PER_SECOND[unit] // 31_556_952:,}"
        raise InputError(f"{where}: expected times within {years} years of 1970 ({error})") from error


def _floored(values: pa.Array, divisor: int) -> pa.Array:
    counts = values.cast(pa.int64())
    floored = np.asarray(counts.fill_null(0)) // divisor
    return pa.array(floored, mask=np.asarray(counts.is_null()))


def moment(argument: str, given: Moment, unit: str = "s") -> int:
    """Returns one time, as `seconds` reads those of a column; text of digits is a whole number.

    Raises:
        ConfigError: none; names the argument.
    """
    if isinstance(given, str) and is_number(given):
        return int(given)
    try:
        if isinstance(given, float | bool):
            raise TypeError(given)
        found = seconds(column_of([given]), argument, unit)[0].as_py()
    except (InputError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(_no_moment(argument, given)) from error
    if found is None:
        raise ConfigError(_no_moment(argument, given))
    return int(found)


def column_of(given: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
    """Returns moments of Python, NumPy and pandas, whole numbers or text as a column. What has a zone is of UTC in it.

    Raises:
        pa.ArrowException, TypeError, ValueError: they are no column.
    """
    if not isinstance(given, np.ndarray) or given.dtype.kind == "O":
        # Days beside moments are moments, which Arrow would cut down to their days.
        values = _of_numpy(given)
        if any(isinstance(each, np.datetime64) for each in values):
            values = [np.datetime64(each) if type(each) is date else each for each in values]
        if len({isinstance(each, date) for each in values if each is not None}) > 1:
            raise TypeError("dates beside others")  # of which Arrow would make dates, too
        if any(isinstance(each, datetime) for each in values):
            values = [datetime.combine(each, time()) if type(each) is date else each for each in values]
        if not all(isinstance(each, np.datetime64) for each in values):
            return pa.array(values)
        given = np.array(values)
    if given.dtype.kind == "M" and np.datetime_data(given.dtype)[0] not in ("D", *_PER_SECOND):
        given = given.astype("datetime64[s]")  # Arrow has no hours and no months
    return pa.array(given)


def as_told(given: date | np.datetime64) -> str:
    """Returns a moment as text that `moment` takes for the same one, down to the second."""
    if isinstance(given, np.datetime64):
        return str(given.astype("datetime64[s]"))
    return given.isoformat(timespec="seconds") if isinstance(given, datetime) else given.isoformat()


def is_number(given: Moment) -> bool:
    """Returns True for a time that is a whole number, or its text."""
    if isinstance(given, str):
        return given.strip().lstrip("+-").isdecimal()
    return isinstance(given, int | np.integer)


def is_date(kind: pa.DataType) -> bool:
    """Returns True for a column of dates or timestamps."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def as_text(values: pa.Array) -> pa.Array:
    """Returns dates and timestamps as text, in UTC: equal moments have one text, whatever their types and units. It is
    2024-01-31 at midnight, as of a date, and otherwise 2024-01-31 12:00:00 or 2024-01-31 12:00:00.5. Null stays."""
    if pa.types.is_timestamp(values.type):  # what it has of a zone only says how it would be shown
        values = values.cast(pa.int64()).cast(pa.timestamp(values.type.unit))
    texts = values.cast(pa.string())
    for pattern, shorter in ((r"(\.\d*?)0+$", r"\1"), (r"\.$", ""), (r" 00:00:00$", "")):
        texts = pc.replace_substring_regex(texts, pattern, shorter)
    return texts


def moment_texts(moments: Iterable[date]) -> list[str | None]:
    """Returns days and moments of Python and pandas as `as_text` does; None for NaT."""
    texts = list[str | None]()
    # What follows a day, Arrow would cut down to its day.
    for _, alike in groupby(_of_numpy(moments), lambda each: getattr(each, "dtype", type(each))):
        texts += as_text(pa.array([*alike])).to_pylist()
    return texts


def _of_numpy(moments: Iterable[Any]) -> list[Any]:
    """Returns moments of pandas as NumPy has them, since Arrow would cut nanoseconds off; others as they are."""
    return [each.to_datetime64() if hasattr(each, "to_datetime64") else each for each in moments]


def counts_numbers(kind: pa.DataType) -> bool:
    """Returns True for a column of times that are whole numbers, and False for dates, timestamps and text."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _no_moment(argument: str, given: object) -> str:
    return (
        f"{argument}: expected a whole number as the graph's times are, or a date or time ({_FORMS}), found {given!r}"
    )


def timestamps(texts: pa.Array) -> pa.Array:
    """Returns text as timestamps of microseconds in UTC, without a zone. Null stays.

    Raises:
        pa.ArrowInvalid: one is no date or time.
    """
    for kind in (_TIMESTAMP, _IN_UTC):  # all without a zone, or all with one
        try:
            return texts.cast(kind).cast(_TIMESTAMP)
        except pa.ArrowInvalid:
            continue
    has_zone = pc.match_substring_regex(texts, _ZONE).fill_null(False)
    without = pc.if_else(has_zone, pa.scalar(None, texts.type), texts).cast(_TIMESTAMP)
    return pc.replace_with_mask(without, has_zone, texts.filter(has_zone).cast(_IN_UTC).cast(_TIMESTAMP))


def looks_like_date(text: str) -> bool:
    """Returns True for text such as 31/12/2020, which is no date here."""
    return _BY_DAY.match(text.strip()) is not None


def conversion_of(text: str) -> str:
    """Returns the advice for a column of times that has `text`, which is no time."""
    if _TIME_OF_DAY.match(text.strip()):  # of which pandas would make a moment of today
        return "a time of day is no moment without its date: put both into one column, or leave this one out"
    found = _BY_DAY.match(text.strip())
    if found is None:
        return "convert the column first, for example by pandas.to_datetime"
    first, separator, second = int(found[1]), found[2], int(found[3])
    formats = ["%d{0}%m{0}%Y"] * (second <= 12) + ["%m{0}%d{0}%Y"] * (first <= 12)
    shown = " or ".join(repr(each.format(separator)) for each in formats) or "that it has"
    whichever = ", whichever is meant" if len(formats) > 1 else ""
    return f"convert the column first, for example by pandas.to_datetime with the format {shown}{whichever}"


def _of_text(values: pa.Array, where: str) -> pa.Array:
    values = pc.utf8_trim_whitespace(values)
    values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
    try:
        return timestamps(values)
    except pa.ArrowInvalid:
        wrong = next(value for value in values.drop_null() if not is_time(value.as_py()))
        raise InputError(
            f"{where}: expected dates or times in ISO 8601 ({_FORMS}), or whole numbers; found {wrong.as_py()!r}; "
            f"{conversion_of(wrong.as_py())}"
        ) from None


def is_time(text: str) -> bool:
    """Returns True for a date or time in ISO 8601."""
    try:
        timestamps(pa.array([text], pa.string()))
    except pa.ArrowInvalid:
        return False
    return True
