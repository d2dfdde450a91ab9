"""How many feature values are NaN, infinite or extreme, and where the first of them is."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from diskgnn.formats.records import Record

EXTREME = 1e6  # a finite value is extreme if its magnitude is larger: few models train on such without scaling


@dataclass(frozen=True)
class ValueCounts(Record):
    """Holds what a scan of all feature rows of one type of nodes or edges found. Rows and columns are counted from
    0."""

    nan: int = 0
    infinite: int = 0
    extreme: int = 0  # finite, and larger than EXTREME in magnitude
    rows: int = 0  # that have such a value
    first_row: int = 0  # the first of them: a node, or the place of an edge in the graph's own order
    first_column: int = 0

    def __bool__(self) -> bool:
        return self.rows > 0

    def __str__(self) -> str:
        """Says for example '3 NaN values and 1 value beyond 1,000,000'."""
        found = [
            f"{count:,} {word} {'value' if count == 1 else 'values'}"
            for count, word in ((self.nan, "NaN"), (self.infinite, "infinite"))
            if count
        ]
        if self.extreme:
            found.append(f"{self.extreme:,} {'value' if self.extreme == 1 else 'values'} beyond ±{EXTREME:,.0f}")
        return " and ".join(found)

    def check_parsed(self) -> None:
        """Refuses counts of nothing, which are not written, and what is below 0."""
        if self.rows < 1 or min(astuple(self)) < 0:
            raise ValueError(f"values: {self!r}")


NOTHING_UNUSUAL = ValueCounts()
