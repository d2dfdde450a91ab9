"""What a first pass over a column finds: means and deviations, the values of categories, the lengths of lists."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import DataWarning, InputError, callers_level
from diskgnn.importers.tables import column_values, text_embedding
from diskgnn.importers.tables.odd_text import SAMPLE, read_by_people
from diskgnn.specs.feature_columns import FeatureColumn

MOST_VALUES = 32  # of a category
COUNTS_ROWS = "it counts the rows"


class Finder(Protocol):
    """Finds what is known of one column after a first pass."""

    def add(self, values: pa.Array) -> None:
        """Takes `values`, which are known."""
        ...

    def found(self) -> FeatureColumn | str:
        """Returns how the column is encoded, once all values are known; or why it is to be left out."""
        ...


class _ScalableNumbers:
    """Numbers of a column, or times; warns once of those that cannot be scaled."""

    def __init__(self, encoding: str, where: str) -> None:
        self._encoding, self._where, self._is_warned = encoding, where, False

    def of(self, values: pa.Array) -> npt.NDArray[np.float64]:
        """Returns [n] numbers, NaN where there is none that can be scaled."""
        numbers = column_values.numbers(values, self._encoding, self._where)
        is_extreme = np.abs(numbers) > column_values.LARGEST_SCALED
        if is_extreme.any() and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"{self._where}: found {numbers[is_extreme][0]}; infinite values and those beyond "
                f"±{column_values.LARGEST_SCALED:g} become 0, as null does: replace or clip them",
                DataWarning,
                stacklevel=callers_level(),
            )
        return column_values.scalable(numbers)


class Moments:
    """Count, mean and deviation of numbers."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, numbers: npt.NDArray[np.float64]) -> None:
        """Takes some of the numbers, all finite."""
        if len(numbers):  # Chan, Golub and LeVeque: the moments of two samples make those of both
            with np.errstate(over="ignore"):  # numbers beyond 1e154 have an infinite deviation
                mean, total = float(numbers.mean()), self.count + len(numbers)
                shift = mean - self.mean
                self._squares += (
                    float(((numbers - mean) ** 2).sum()) + shift * shift * self.count * len(numbers) / total
                )
            self.mean += shift * len(numbers) / total
            self.count = total

    @property
    def deviation(self) -> float:
        """Returns that of a population."""
        return float(np.sqrt(self._squares / max(self.count, 1)))


class _Scaled:
    """Mean and deviation of numbers, or of times."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._name, self._encoding, self._numbers = name, encoding, _ScalableNumbers(encoding, f"{table}.{name}")
        self._moments = Moments()
        self._rows, self._counts_rows = 0, not asked

    def add(self, values: pa.Array) -> None:
        if self._counts_rows:
            expected = np.arange(self._rows, self._rows + len(values))
            self._counts_rows = (
                pa.types.is_integer(values.type) and not values.null_count and np.array_equal(values, expected)
            )
        self._rows += len(values)
        numbers = self._numbers.of(values)
        self._moments.add(numbers[np.isfinite(numbers)])

    def found(self) -> FeatureColumn | str:
        if self._counts_rows and self._rows > 1:
            return COUNTS_ROWS
        found = self._moments
        return FeatureColumn(self._name, self._encoding, mean=found.mean, deviation=found.deviation)


class _AsTheyAre:
    """Nothing has to be found: the column becomes one number as it is."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._column, self._where = FeatureColumn(name, encoding), f"{table}.{name}"

    def add(self, values: pa.Array) -> None:
        if self._column.encoding == "boolean":
            column_values.truths(values, self._where)

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
        found = pc.unique(column_values.distinguished(values).drop_null())
        self._values = found if self._values is None else pc.unique(pa.concat_arrays([self._values, found]))
        if len(self._values) > MOST_VALUES:
            if self._asked:
                raise InputError(
                    f"{self._where}: expected at most {MOST_VALUES} values of a category, found more; encode it as "
                    f"none, or as a vector beforehand"
                )
            self._is_text = True
        else:
            self._values = self._values.take(pc.array_sort_indices(self._values))

    def found(self) -> FeatureColumn | str:
        if self._values is None or not len(self._values):
            return "it has no values"
        if self._is_text:
            sample = column_values.words(self._values[:SAMPLE], self._where).to_pylist()
            if told := read_by_people(sample):
                return f"more than {MOST_VALUES} values, most of them {told}"
            return f"more than {MOST_VALUES} values: text or ids; encoded as hash:256, text becomes vectors"
        words = tuple(column_values.words(self._values, self._where).to_pylist())
        return FeatureColumn(self._name, "category", len(words), values=words)


class _Length:
    """The length of lists and vectors."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._name, self._where, self._width = name, f"{table}.{name}", 0

    def add(self, values: pa.Array) -> None:
        lengths = column_values.lengths(values, self._where)
        known = lengths[lengths >= 0]
        self._width = self._width or (int(known[0]) if len(known) else 0)

    def found(self) -> FeatureColumn | str:
        return FeatureColumn(self._name, "vector", self._width) if self._width else "it has no values"


class _Texts:
    """The width of the vectors that an embedder makes."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._name, self._where = name, f"{table}.{name}"
        self._embedder = text_embedding.named_embedder(encoding, self._where)
        self._width = text_embedding.hash_width(self._embedder, self._where) or 0  # of a function, by its first rows

    def add(self, values: pa.Array) -> None:
        if len(values) and not self._width:
            self._width = text_embedding.embedded_width(self._embedder, values, self._where)

    def found(self) -> FeatureColumn | str:
        if not self._width:
            return "it has no values"
        return FeatureColumn(self._name, "text", self._width, embedder=self._embedder)


class UnknownValues:
    """A column whose encoding is known. Counts values of a category that have no feature."""

    def __init__(self, table: str, column: FeatureColumn, graph: str) -> None:
        self._where, self._column, self._graph = f"{table}.{column.name}", column, graph
        self._numbers = _ScalableNumbers(column.encoding, self._where)
        self._num_unknown, self._first_unknown = 0, ""

    def add(self, values: pa.Array) -> None:
        """Takes `values`, which are known."""
        if self._column.encoding == "boolean":
            column_values.truths(values, self._where)
        if self._column.mean is not None:
            self._numbers.of(values)
        if self._column.values is None:
            return
        words = column_values.words(values, self._where).drop_null()
        unknown = words.filter(pc.invert(pc.is_in(words, pa.array(self._column.values, pa.string()))))
        if len(unknown) and not self._num_unknown:
            self._first_unknown = unknown[0].as_py()
        self._num_unknown += len(unknown)

    def found(self) -> FeatureColumn | str:
        """Returns the column, as it is known."""
        return self._column

    def told(self, num_rows: int) -> str:
        """Says which of `num_rows` have a value that has no feature; "" if none has."""
        if not self._num_unknown:
            return ""
        found = f"in {self._num_unknown} of {num_rows} rows, first {self._first_unknown!r}"
        return f"{self._graph} has no feature for them: {found}"


FINDERS: Mapping[str, Callable[[str, str, str, bool], Finder]] = {
    "number": _Scaled, "raw": _AsTheyAre, "time": _Scaled, "boolean": _AsTheyAre, "category": _Values,
    "vector": _Length, "text": _Texts,
}  # fmt: skip
