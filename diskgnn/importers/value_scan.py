"""Counts feature values that training fails on, while features are read for something else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.value_counts import EXTREME, ValueCounts

_SCAN_VALUES = 1 << 18  # at a time, so that temporary arrays stay in the processor's cache


class ValueScan:
    """Counts NaN, infinite and extreme values of rows that come front to back.

    One comparison of a value's bits without the sign finds all of them: extreme numbers are above EXTREME, infinity is
    above all numbers, NaN above infinity. Whole numbers are not looked at.
    """

    def __init__(self, rows: RowFormat, num_rows: int = 0, found: npt.NDArray[np.int64] | None = None) -> None:
        """Goes on after `num_rows` with what was `found` [6] in them, the fields of `ValueCounts`; it changes that."""
        self._infinity, self.num_rows = rows.exponent_bits, num_rows
        self.found = np.zeros(len(fields(ValueCounts)), np.int64) if found is None else found
        if rows.dtype == "bfloat16":
            self._extreme = int(np.float32(EXTREME).view(np.uint32)) >> 16
        elif rows.dtype == "float32":
            self._extreme = int(np.float32(EXTREME).view(np.uint32))
        else:  # float16 ends below EXTREME
            self._extreme = (self._infinity or 0) - 1

    @property
    def counts(self) -> ValueCounts:
        """Returns what was found so far."""
        return ValueCounts(*self.found.tolist())

    def add(self, chunk: npt.NDArray[Any]) -> None:
        """Takes `chunk` [some rows, D], which follows what was added before."""
        if self._infinity is not None:  # neither whole numbers nor records
            step = max(1, _SCAN_VALUES // chunk.shape[1])
            for start in range(0, len(chunk), step):
                self._add_part(chunk[start : start + step], self.num_rows + start)
        self.num_rows += len(chunk)

    def _add_part(self, part: npt.NDArray[Any], first_row: int) -> None:
        bits = np.ascontiguousarray(part).view(f"u{part.itemsize}")
        number = bits.dtype.type
        magnitudes = bits & number(2 ** (8 * part.itemsize - 1) - 1)
        unusual = magnitudes > number(self._extreme)
        if not unusual.any():
            return
        rows, columns = np.nonzero(unusual)
        found, infinity, before = magnitudes[rows, columns], number(self._infinity), self.counts
        nan, infinite = int((found > infinity).sum()), int((found == infinity).sum())
        first = (before.first_row, before.first_column) if before else (first_row + int(rows[0]), int(columns[0]))
        self.found[:] = (
            before.nan + nan, before.infinite + infinite, before.extreme + len(found) - nan - infinite,
            before.rows + len(np.unique(rows)), *first,
        )  # fmt: skip

    def following(
        self, chunks_from: Callable[[int], Iterator[npt.NDArray[Any]]]
    ) -> Callable[[int], Iterator[npt.NDArray[Any]]]:
        """Returns `chunks_from`, scanned on the way, each row once. Rows that a killed run went past are read for
        it."""

        def read(first: int) -> Iterator[npt.NDArray[Any]]:
            if self.num_rows < first:
                self.finish(chunks_from, first)
            position = first
            for chunk in chunks_from(first):
                self.add(chunk[max(0, self.num_rows - position) :])
                position += len(chunk)
                yield chunk

        return read

    def finish(self, chunks_from: Callable[[int], Iterator[npt.NDArray[Any]]], num_rows: int) -> None:
        """Scan what is left of the first `num_rows` rows."""
        if self.num_rows < num_rows:
            for chunk in chunks_from(self.num_rows):
                self.add(chunk[: num_rows - self.num_rows])
                if self.num_rows == num_rows:
                    return

    def warn(self, name: str, kind: str) -> None:
        """Issue a DataWarning if anything was found in features `name` of each `kind`: of nodes or edges."""
        counts = self.counts
        if not counts:
            return
        owners = kind if counts.rows == 1 else f"{kind}s"
        where = f"in {counts.rows:,} {owners}, the first at {kind} {counts.first_row}, column {counts.first_column}"
        if counts.nan or counts.infinite:
            fails = (
                "training on them yields a loss that is not finite: replace them, e.g. with "
                "np.nan_to_num(features, nan=0, posinf=0, neginf=0)"
            )
            fails += ", and scale or clip the others" * bool(counts.extreme)
        else:
            fails = "few models train on such numbers: scale or clip them, e.g. with (features - mean) / deviation"
        warnings.warn(f"{name} hold {counts} {where}; {fails}", DataWarning, stacklevel=callers_level())
