"""Columns of features in manifests: those of a table, where features were made from one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

from diskgnn.formats.records import LEFT_OUT, Codec, record_codec
from diskgnn.formats.row_format import RowFormat
from diskgnn.specs.feature_columns import ENCODINGS, SCALED, FeatureColumn

Columns = tuple[FeatureColumn, ...]  # of feature rows, in order; of none, a row is a single 1

_FIELDS = record_codec(
    FeatureColumn, ("name", "encoding", "mean", "deviation", "values", "embedder", "width"),
    mean=Annotated[float | None, LEFT_OUT], deviation=Annotated[float | None, LEFT_OUT],
    values=Annotated[tuple[str, ...] | None, LEFT_OUT], embedder=Annotated[str | None, LEFT_OUT],
    width=Annotated[int, LEFT_OUT],
)  # fmt: skip


def _write(column: FeatureColumn) -> Any:
    return _FIELDS.write(column if column.values is None else replace(column, width=1))  # as many as there are values


def _read(record: Any) -> FeatureColumn:
    column = _FIELDS.read(record)
    mean, deviation, values = column.mean, column.deviation, column.values
    if column.encoding not in ENCODINGS:
        raise ValueError(f"column {column.name!r:.80} of encoding {column.encoding!r:.80}")
    is_category, is_scaled = column.encoding == "category", mean is not None and deviation is not None
    is_text = column.encoding == "text"
    if (is_scaled, values is not None, column.embedder is not None) != (
        column.encoding in SCALED, is_category, is_text
    ):  # fmt: skip
        raise ValueError(f"column {column.name!r:.80}: found {column!r:.200}")
    if mean is not None and deviation is not None and not (math.isfinite(mean) and 0 <= deviation < math.inf):
        raise ValueError(f"column {column.name!r:.80} of mean {mean} and deviation {deviation}")
    width = column.width if values is None else len(values)
    is_one = column.encoding not in ("category", "vector", "text")
    if width < 1 or (is_one and width > 1) or len({*(values or ())}) < len(values or ()):
        raise ValueError(f"column {column.name!r:.80} of {width} features, for values {values!r:.80}")
    return replace(column, width=width)


ColumnsMember = Annotated[tuple[Annotated[FeatureColumn, Codec(_write, _read)], ...] | None, LEFT_OUT]


def check_columns(columns: Columns | None, rows: RowFormat | None) -> None:
    """Raises ValueError for columns that rows like these are not made from."""
    if columns is None:
        return
    width = max(1, sum(column.width for column in columns))
    if len({column.name for column in columns}) < len(columns):
        raise ValueError("columns: a name twice")
    if rows is None or rows.num_features != width:
        raise ValueError(f"columns of {width} features, whose rows are {rows}")
