"""Columns of features in manifests: those of a table, where features were made from one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

from diskgnn.formats.record_format import RecordFormat
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
        if isinstance(rows, RecordFormat):
            raise ValueError("records whose columns nobody knows")
        return
    width = max(1, sum(column.width for column in columns))
    if len({column.name for column in columns}) < len(columns):
        raise ValueError("columns: a name twice")
    if isinstance(rows, RecordFormat):
        _check_fields(columns, rows)
    if rows is None or rows.num_features != width:
        raise ValueError(f"columns of {width} features, whose rows are {rows}")


# The kinds of columns of a record that features of an encoding are made from.
_MADE_FROM = {
    "number": ("numerical",), "raw": ("numerical",), "time": ("timestamp", "numerical"), "boolean": ("boolean",),
    "category": ("categorical",), "vector": ("embedding",), "text": ("embedding",),
}  # fmt: skip


def _check_fields(columns: Columns, rows: RecordFormat) -> None:
    """Raises ValueError for columns of features that records like these do not have."""
    fields = {each.name: each for each in rows.fields}
    for column in columns:
        found = fields.get(column.name)
        if found is None or found.kind not in _MADE_FROM[column.encoding]:
            raise ValueError(f"column {column.name!r:.80} of features, which no column of the records can be")
        if (column.encoding in ("vector", "text") and column.width != found.width) or (
            column.encoding == "category" and column.width != found.num_values
        ):
            raise ValueError(f"column {column.name!r:.80} of {column.width} features, made from {found!r:.200}")
