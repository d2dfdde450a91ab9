"""How many feature values are NaN, infinite or extreme, and where the first of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from diskgnn.formats.manifest_document import typed

EXTREME = 1e6  # a finite value is extreme if its magnitude is larger: few models train on such without scaling


@dataclass(frozen=True)
class ValueCounts:
    """What a scan of all feature rows of one type of nodes or edges found. Rows and columns are counted from 0."""

    nan: int = 0
    infinite: int = 0
    extreme: int = 0  # finite, and larger than EXTREME in magnitude
    rows: int = 0  # that have such a value
    first_row: int = 0  # the first of them: a node, or the place of an edge in the graph's own order
    first_column: int = 0

    def __bool__(self) -> bool:
        return self.rows > 0

    def __str__(self) -> str:
        """Such as '3 NaN values and 1 value beyond 1,000,000'."""
        found = [
            f"{count:,} {word} {'value' if count == 1 else 'values'}"
            for count, word in ((self.nan, "NaN"), (self.infinite, "infinite"))
            if count
        ]
        if self.extreme:
            found.append(f"{self.extreme:,} {'value' if self.extreme == 1 else 'values'} beyond ±{EXTREME:,.0f}")
        return " and ".join(found)

    def to_json(self) -> dict[str, Any]:
        """As it stands in manifests: nothing where nothing was found."""
        return {"values": asdict(self)} if self else {}

    @staticmethod
    def parse(config: Mapping[str, Any]) -> ValueCounts:
        """Raises ValueError or KeyError for what `to_json` would not have written."""
        if "values" not in config:
            return NOTHING_UNUSUAL
        found = typed(config["values"], dict)
        counts = ValueCounts(**{field.name: typed(found[field.name], int) for field in fields(ValueCounts)})
        if counts.rows < 1 or min(asdict(counts).values()) < 0:
            raise ValueError(f"values: {found}")
        return counts


NOTHING_UNUSUAL = ValueCounts()
