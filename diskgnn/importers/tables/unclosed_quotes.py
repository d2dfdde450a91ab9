"""Tells the value of a CSV file that has rows of the file in it, because nothing closes its quote but a later one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def may_hold_rows(delimiters: npt.NDArray[np.integer], num_columns: int) -> npt.NDArray[np.bool_]:
    """Returns [n] False for values whose number of delimiters [n] rules out that `holds_rows`; most of people's own
    lines."""
    if num_columns == 1:
        return np.zeros(len(delimiters), np.bool_)
    remainders = np.remainder(delimiters, num_columns - 1)
    return np.asarray((delimiters > 0) & (remainders == 0), np.bool_)


def holds_rows(text: str, place: int, kinds: Sequence[pa.DataType], delimiter: str) -> bool:
    """Returns whether a value of several lines is most likely the rest of a row, further rows, and the start of one.

    Its lines then have as many delimiters as such parts of rows have. In half of the places at least they have numbers,
    dates and the like where their columns do: people write NA, too. Where all columns are text, people's own lines may
    look so by chance: then two lines have to, or the value has to end in the quote that was to close another one.

    Args:
        text: of the value, without the quotes around it.
        place: of its column, counted from 0.
        kinds: of all columns.
        delimiter: between columns.
    """
    first, *between, last = [line.rstrip("\r").split(delimiter) for line in text.split("\n")]
    whole = [row for row in between if row != [""]]
    if len(first) != len(kinds) - place or len(last) != place + 1 or any(len(row) != len(kinds) for row in whole):
        return False
    typed = [*_typed_fields(first[1:], kinds[place + 1 :]), *_typed_fields(last[:-1], kinds)]
    typed += [each for row in whole for each in _typed_fields(row, kinds)]
    if 2 * sum(_is_of(kind, field) for field, kind in typed) < len(typed):
        return False
    return bool(typed or whole) or (text.endswith('"') and text.count('"') % 2 == 1)


def _typed_fields(fields: Sequence[str], kinds: Sequence[pa.DataType]) -> Iterator[tuple[str, pa.DataType]]:
    """Yields the fields that are not empty, of columns that are not text, without quotes."""
    for field, kind in zip(fields, kinds, strict=False):
        bare = field.strip().strip('"')
        if bare and not pa.types.is_string(kind):
            yield bare, kind


def _is_of(kind: pa.DataType, field: str) -> bool:
    try:
        pa.scalar(field).cast(kind)
    except pa.ArrowException:
        return False
    return True
