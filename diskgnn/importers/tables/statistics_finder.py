"""Finds what torch_frame wants to know of columns: means, deviations, quantiles, times, counts of truth values."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.formats.column_statistics import QUANTILES, ColumnStatistics
from diskgnn.importers.tables import column_values
from diskgnn.importers.tables.column_finders import Moments
from diskgnn.importers.tables.order_statistics import Selection, quantile_ranks, quantiles
from diskgnn.importers.tables.times import microseconds


class StatisticsFinder:
    """Finds the statistics of a column of records. Add all known values, finish the pass, and again until it is done.

    Args:
        name, kind, dtype: of the column in the record.
        where: it stands, for messages.
        kept: numbers that are in memory at a time for each quantile, about.
    """

    def __init__(self, name: str, kind: str, dtype: str, where: str, kept: int) -> None:
        self._name, self._kind, self._dtype, self._where = name, kind, dtype, where
        self._selection = Selection(kept) if kind in ("numerical", "timestamp") else None
        self._moments, self._count, self._is_first = Moments(), 0, True
        self._truths = np.zeros(2, np.int64)

    @property
    def is_done(self) -> bool:
        """Returns True if no further pass is needed."""
        return self._selection is None or self._selection.is_done

    def add(self, values: pa.Array) -> None:
        """Takes `values`, which are known."""
        if pa.types.is_null(values.type):
            return
        if self._kind == "boolean":
            found = np.asarray(column_values.truths(values, self._where).drop_null())
            self._truths += np.bincount(found, minlength=2)
        if self._selection is None:
            return
        numbers = self._numbers(values)
        self._selection.add(numbers)
        if self._is_first:
            self._count += len(numbers)
            if self._kind == "numerical":
                with np.errstate(over="ignore"):
                    self._moments.add(numbers.astype(np.float64))

    def _numbers(self, values: pa.Array) -> npt.NDArray[Any]:
        """Returns numbers that are there, and finite."""
        if self._kind == "timestamp":
            return np.asarray(microseconds(values, self._where).drop_null(), np.int64)
        if self._dtype == "int64":
            return np.asarray(column_values.whole_numbers(values, self._where).drop_null(), np.int64)
        numbers = column_values.numbers(values, "number", self._where)
        return numbers[np.isfinite(numbers)]

    def finish_pass(self) -> None:
        """Ends a pass: all known values were added."""
        if self._selection is None:
            return
        ranks = []
        if self._is_first and self._count:
            ranks = self._ranks
        self._is_first = False
        self._selection.finish_pass(ranks)

    @property
    def _ranks(self) -> list[int]:
        if self._kind == "timestamp":
            return sorted({0, self._count // 2, self._count - 1})
        return quantile_ranks(self._count, QUANTILES)

    def found(self) -> ColumnStatistics:
        """Returns the statistics, once it is done."""
        name = self._name
        if self._kind == "boolean":
            return ColumnStatistics(name, truths=(int(self._truths[0]), int(self._truths[1])))
        if self._selection is None or not self._count:
            return ColumnStatistics(name)
        found = self._selection.found
        if self._kind == "timestamp":
            return ColumnStatistics(
                name, times=tuple(int(found[rank]) for rank in (0, self._count // 2, self._count - 1))
            )
        mean, deviation = (each if isfinite(each) else None for each in (self._moments.mean, self._moments.deviation))
        return ColumnStatistics(name, mean, deviation, quantiles(found, self._count, QUANTILES))
