"""Labels, times and weights on their way into a graph directory: numbers of any container, checked and in the dtype
that they are stored in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.importers.containers.rows import RowSource
from diskgnn.specs.null_times import MISSING, NULL_TIMES

Check = Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]  # which values of a chunk [n] or [n, C] are wrong


def times(rows: RowSource, null_time: str | None = None) -> RowSource:
    """Returns times [N], or [N, 1], as int64 [N]: whole numbers; datetime64 as seconds since 1970, rounded down. Both
    may be negative.

    Args:
        rows: NaN, NaT and `MISSING` are missing.
        null_time: what a missing one means, one of `NULL_TIMES`; None: there shall be none.

    Raises:
        InputError: another shape, or (while read) fractions or missing times; names the first.
    """
    rows = _vector(rows)
    if rows.dtype.kind not in "iufM":
        raise InputError(f"{rows.name}: expected whole numbers or datetime64, found dtype {rows.dtype}")

    def wrong(chunk: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        if chunk.dtype.kind == "M":
            return np.zeros(len(chunk), bool)
        outside: npt.NDArray[np.bool_] = ~((chunk >= MISSING) & (chunk < 2.0**63))
        return (outside | (chunk != np.floor(chunk))) & ~np.isnan(chunk) if chunk.dtype.kind == "f" else outside

    def whole(chunk: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if chunk.dtype.kind == "M":
            return chunk.astype("datetime64[s]").astype(np.int64)
        if chunk.dtype.kind == "f":
            missing = np.isnan(chunk)
            return np.where(missing, MISSING, np.where(missing, 0, chunk).astype(np.int64))
        return chunk.astype(np.int64, copy=False)

    found = _checked(rows, rows.dtype, wrong, "a whole number").mapped((), np.dtype(np.int64), whole)
    if null_time is None:
        return found.read_by(partial(_none_missing, found), (), found.dtype)
    stored = NULL_TIMES[null_time]
    return found.mapped((), found.dtype, lambda chunk: np.where(chunk == MISSING, stored, chunk))


def _none_missing(rows: RowSource, position: int) -> Iterator[npt.NDArray[Any]]:
    chunks = rows.chunks_from(position)
    for chunk in chunks:
        missing = np.flatnonzero(chunk == MISSING)
        if len(missing):
            more = len(missing) - 1 + sum(int(np.count_nonzero(rest == MISSING)) for rest in chunks)
            raise InputError(
                f"{rows.name}: expected a time for each; found none at {position + missing[0]} (from 0)"
                + (f", nor at {more} after it" if more else "")
                + "; pass null_time='never' if no seed shall see them, or null_time='always' if every seed shall"
            )
        yield chunk
        position += len(chunk)


def weights(rows: RowSource) -> RowSource:
    """Returns weights [E], or [E, 1], as float32 [E], from finite numbers from 0 on.

    Raises:
        InputError: another shape, or (while read) negative, missing or infinite weights; names the first.
    """
    rows = _vector(rows)
    largest = np.finfo(np.float32).max
    return _checked(rows, np.dtype(np.float32), lambda chunk: ~((chunk >= 0) & (chunk <= largest)),
                    "a finite weight for each, 0 or more")  # fmt: skip


def classes(rows: RowSource, about_fractions: str = "") -> RowSource:
    """Returns labels [N] or [N, 1] as int64 [N], from whole numbers in any dtype; NaN becomes -1, for none. What else
    they may be is said `about_fractions`.

    Raises:
        InputError: another shape, or (while read) fractions; names the first.
    """
    if rows.row_shape not in ((), (1,)) or rows.dtype.kind not in "iuf":
        raise InputError(f"{rows.name}: expected a class for each, found {_shape(rows)}, dtype {rows.dtype}")
    rows = rows.mapped((), rows.dtype, lambda chunk: chunk.reshape(-1))
    if rows.dtype.kind != "f":
        return _checked(rows, np.dtype(np.int64), lambda chunk: chunk > np.iinfo(np.int64).max, "a class")

    def wrong(chunk: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        fractions: npt.NDArray[np.bool_] = (chunk != np.floor(chunk)) & ~np.isnan(chunk)
        return fractions

    whole = _checked(rows, rows.dtype, wrong, "a whole number", about_fractions)
    return whole.mapped((), np.dtype(np.int64), lambda chunk: np.where(np.isnan(chunk), -1, chunk).astype(np.int64))


def multilabel(rows: RowSource) -> RowSource:
    """Returns labels [N, C] as uint8 of 0 and 1, from numbers or truth values.

    Raises:
        InputError: another shape, or (while read) other numbers; names the first.
    """
    if len(rows.row_shape) != 1 or rows.row_shape[0] < 1 or rows.dtype.kind not in "iubf":
        raise InputError(
            f"{rows.name}: expected 0 and 1 of shape [N, C] for several labels a node, found {_shape(rows)}, dtype "
            f"{rows.dtype}"
        )
    return _checked(rows, np.dtype(np.uint8), lambda chunk: (chunk != 0) & (chunk != 1), "0 or 1")


def regression(rows: RowSource) -> RowSource:
    """Returns labels [N] or [N, C] as float32, NaN where a node has none.

    Raises:
        InputError: another shape, or (while read) infinite numbers; names the first.
    """
    if len(rows.row_shape) > 1 or 0 in rows.row_shape or rows.dtype.kind not in "iuf":
        raise InputError(
            f"{rows.name}: expected numbers of shape [N] or [N, C] for regression, found {_shape(rows)}, dtype "
            f"{rows.dtype}"
        )
    largest = np.finfo(np.float32).max
    return _checked(
        rows, np.dtype(np.float32), lambda chunk: np.abs(chunk) > largest, "a finite number, or NaN for none"
    )


def _checked(rows: RowSource, dtype: np.dtype[Any], is_wrong: Check, expected: str, remedy: str = "") -> RowSource:
    def read(position: int) -> Iterator[npt.NDArray[Any]]:
        for chunk in rows.chunks_from(position):
            wrong = is_wrong(chunk)
            if wrong.any():
                first = int(wrong.reshape(len(chunk), -1).any(axis=1).argmax())
                value = chunk[first][wrong[first]][0] if chunk.ndim > 1 else chunk[first]
                found = "none" if value != value else str(value)
                where = f"{position + first} (from 0)"
                raise InputError(f"{rows.name}: expected {expected}; found {found} at {where}{remedy}")
            yield chunk.astype(dtype, copy=False)
            position += len(chunk)

    return rows.read_by(read, rows.row_shape, dtype)


def _vector(rows: RowSource) -> RowSource:
    """Returns the rows [N]; of [N, 1] what stands in each."""
    if rows.row_shape == (1,):
        return rows.mapped((), rows.dtype, lambda chunk: chunk.reshape(-1))
    if rows.row_shape:
        raise InputError(f"{rows.name}: expected one number for each, found {_shape(rows)}")
    return rows


def _shape(rows: RowSource) -> str:
    return f"shape {[rows.num_rows, *rows.row_shape]}"
