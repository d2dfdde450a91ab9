"""What the numbers of a feature row mean: the columns of a table that they were made from, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

ENCODINGS = ("number", "raw", "time", "boolean", "category", "vector", "text")  # see `importers.tables.column_encoding`
HASH_STEPS = 127  # numbers of hashed text are multiples of 1/127 from -1 to 1: int8 holds these multiples
SCALED = ("number", "time")  # by mean and deviation
_SAME = 1e-6  # of a deviation, or of the ratio of two: float32 features are the same then
_SHOWN = 4  # values of a category


@dataclass(frozen=True)
class FeatureColumn:
    """A column of a table, and how it became numbers of a feature row."""

    name: str
    encoding: str  # of ENCODINGS
    width: int = 1  # numbers of a feature row
    mean: float | None = None  # of SCALED, by these
    deviation: float | None = None
    values: tuple[str, ...] | None = None  # [width] of "category": the value that each number stands for, as text
    embedder: str | None = None  # of "text": what made vectors of it, 'hash:256' or 'module:function'

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> FeatureColumn:
        """Returns the column that `dataclasses.asdict` made this of."""
        values = record["values"]
        return FeatureColumn(**{**record, "values": None if values is None else tuple(values)})

    @property
    def asked_as(self) -> str:
        """Returns how this encoding is asked for."""
        return self.encoding if self.embedder is None else self.embedder

    def is_like(self, other: FeatureColumn) -> bool:
        """Returns True if the same values become the same numbers, to the precision of float32."""
        if (self.name, self.encoding, self.width, self.values, self.embedder) != (
            other.name, other.encoding, other.width, other.values, other.embedder
        ):  # fmt: skip
            return False
        if self.mean is None or self.deviation is None or other.mean is None or other.deviation is None:
            return (self.mean, self.deviation) == (other.mean, other.deviation)
        if not self.deviation or not other.deviation:  # a constant column is all 0, whatever the constant
            return self.deviation == other.deviation
        return (
            math.isclose(self.deviation, other.deviation, rel_tol=_SAME)
            and abs(self.mean - other.mean) <= _SAME * self.deviation
        )  # fmt: skip

    def told(self, digits: int = 6, first_value: int = 0) -> str:
        """Returns for messages its name, and its encoding with the values from number `first_value` on."""
        how = self.encoding
        if self.mean is not None and self.deviation is not None:
            how = f"{how}, mean {self.mean:.{digits}g}, deviation {self.deviation:.{digits}g}"
        elif self.values is not None:
            shown = ", ".join(self.values[first_value : first_value + _SHOWN])
            before, after = "... " * (first_value > 0), ", ..." * (len(self.values) > first_value + _SHOWN)
            how = f"{how} of {self.width} values: {before}{shown}{after}"
        elif self.embedder is not None:
            how = f"{how} by {self.embedder}"
        elif self.width > 1:
            how = f"{how} of {self.width}"
        return f"{self.name!r} ({how})"


def difference(trained: Sequence[FeatureColumn], found: Sequence[FeatureColumn], source: str) -> str | None:
    """Says in words the first thing in which two lists of columns differ; None if the features mean the same.

    Args:
        trained: what a model was trained on.
        found: what it is to be applied to.
        source: where that is.
    """
    first = 0
    for old, new in zip_longest(trained, found):
        if old is None or new is None or not old.is_like(new):
            was, now = _told_apart(old, new)
            return f"feature {first} (counted from 0): the model was trained on {was}, {source} has {now}"
        first += old.width
    return None


def _told_apart(old: FeatureColumn | None, new: FeatureColumn | None) -> tuple[str, str]:
    if old is None or new is None:
        was, now = ("no more columns" if column is None else column.told() for column in (old, new))
        return was, now
    first_value = 0
    if old.values is not None and new.values is not None:
        pairs = zip_longest(old.values, new.values)
        first_value = next((number for number, (one, other) in enumerate(pairs) if one != other), 0)
    was, now = old.told(first_value=first_value), new.told(first_value=first_value)
    return (was, now) if was != now else (old.told(17, first_value), new.told(17, first_value))
