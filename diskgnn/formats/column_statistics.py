"""Statistics of the values of columns that a table kept, the same that torch_frame has in `col_stats`.

Manifests have them of the rows by which features are scaled. How often the values of categories came is in a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from diskgnn.errors import UnavailableError
from diskgnn.formats.record_format import RecordField, RecordFormat
from diskgnn.formats.records import LEFT_OUT, MOST_64_BITS, Record, whole
from diskgnn.formats.row_format import RowFormat

if TYPE_CHECKING:
    from torch_frame.data.stats import StatType

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of numbers
DESCRIBED = ("numerical", "timestamp", "boolean")  # kinds; of others, `categories` and the width tell all
_Microseconds = Annotated[int, whole(-MOST_64_BITS, MOST_64_BITS)]


@dataclass(frozen=True)
class ColumnStatistics(Record):
    """Describes the values of a column that are known, neither null nor infinite.

    Attributes:
        name: of the column.
        mean, deviation: of numbers; the deviation is that of a population.
        quantiles: of numbers, as `numpy.quantile` interpolates between them: QUANTILES.
        times: the first, the middle (of n in their order, number n // 2) and the last of timestamps, microseconds.
        truths: how many truth values are false, and true.
    """

    name: str
    mean: Annotated[float | None, LEFT_OUT] = None
    deviation: Annotated[float | None, LEFT_OUT] = None
    quantiles: Annotated[tuple[float, ...] | None, LEFT_OUT] = None
    times: Annotated[tuple[_Microseconds, ...] | None, LEFT_OUT] = None
    truths: Annotated[tuple[Annotated[int, whole(most=MOST_64_BITS)], ...] | None, LEFT_OUT] = None

    def check_parsed(self) -> None:
        """Refuses numbers that are no statistics."""
        for found, expected in ((self.quantiles, len(QUANTILES)), (self.times, 3), (self.truths, 2)):
            if found is not None and len(found) != expected:
                raise ValueError(f"{len(found)} numbers in the statistics of {self.name!r:.80}, expected {expected}")
        if not all(map(math.isfinite, (self.mean or 0.0, self.deviation or 0.0, *(self.quantiles or ())))):
            raise ValueError(f"statistics of {self.name!r:.80} that are not finite")


def check_statistics(statistics: Sequence[ColumnStatistics] | None, rows: RowFormat | None) -> None:
    """Raises ValueError for statistics of other columns than rows like these have."""
    if statistics is None:
        return
    expected = [each.name for each in rows.fields if each.kind in DESCRIBED] if isinstance(rows, RecordFormat) else []
    if (found := [each.name for each in statistics]) != expected:
        raise ValueError(f"statistics of {found!r:.200}, expected of {expected!r:.200}")


def col_stats(
    rows: RecordFormat, statistics: Sequence[ColumnStatistics], counts: Mapping[str, tuple[list[Any], list[int]]]
) -> dict[str, dict[StatType, Any]]:
    """Returns the statistics of columns as torch_frame has them, by which it makes encoders.

    Args:
        rows: the columns.
        statistics: of numbers, timestamps and truth values.
        counts: of categories, their values and how often each came, in the order of their codes.

    Raises:
        UnavailableError: torch_frame cannot be imported.
    """
    try:
        from torch_frame.data.stats import StatType
    except ImportError as error:
        raise UnavailableError(f"col_stats needs torch_frame, found {error}; pip install pytorch-frame") from error
    by_name = {each.name: each for each in statistics}
    return {
        field.name: {
            StatType(key): value
            for key, value in _of(field, by_name.get(field.name, ColumnStatistics(field.name)), counts)
        }
        for field in rows.fields
    }


def constant_stats(num_rows: int) -> dict[str, dict[StatType, Any]]:
    """Returns the same of a table without columns, whose TensorFrame has a column of ones."""
    from diskgnn.batches.tensor_frames import CONSTANT

    ones = (1.0, 0.0, (1.0,) * len(QUANTILES)) if num_rows else (None, None, None)
    return col_stats(
        RecordFormat.of([RecordField(CONSTANT, "numerical", "float32")], 1), [ColumnStatistics(CONSTANT, *ones)], {}
    )


def _of(
    field: RecordField, found: ColumnStatistics, counts: Mapping[str, tuple[list[Any], list[int]]]
) -> list[tuple[str, Any]]:
    import torch

    from diskgnn.batches.tensor_frames import calendar

    if field.kind == "numerical":
        nothing = (math.nan,) * len(QUANTILES)
        return [
            ("MEAN", math.nan if found.mean is None else found.mean),
            ("STD", math.nan if found.deviation is None else found.deviation),
            ("QUANTILES", list(found.quantiles or nothing)),
        ]
    if field.kind == "timestamp":
        times = torch.full((3, 7), -1) if found.times is None else calendar(torch.tensor(found.times))
        oldest, median, newest = times
        years = [int(oldest[0]), int(newest[0])]
        return [("YEAR_RANGE", years), ("NEWEST_TIME", newest), ("OLDEST_TIME", oldest), ("MEDIAN_TIME", median)]
    if field.kind == "embedding":
        return [("EMB_DIM", field.width)]
    if field.kind == "boolean":
        return [("COUNT", ([False, True], list(found.truths or (0, 0))))]
    return [("COUNT" if field.kind == "categorical" else "MULTI_COUNT", counts.get(field.name, ([], [])))]
