"""Columns of features in manifests: those of a table, where features were made from one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from diskgnn.formats.manifest_document import typed
from diskgnn.formats.row_format import RowFormat
from diskgnn.specs.feature_columns import ENCODINGS, SCALED, FeatureColumn

Columns = tuple[FeatureColumn, ...]  # of feature rows, in order; of none, a row is a single 1


def columns_to_json(columns: Columns | None) -> dict[str, Any]:
    """As they stand in manifests: nothing where features are not made from columns."""
    return {} if columns is None else {"columns": [_record(column) for column in columns]}


def parse_columns(config: Mapping[str, Any], rows: RowFormat | None) -> Columns | None:
    """Raises ValueError or KeyError for what `columns_to_json` would not have written of such rows."""
    if "columns" not in config:
        return None
    columns = tuple(_parsed(typed(record, dict)) for record in typed(config["columns"], list))
    width = max(1, sum(column.width for column in columns))
    if len({column.name for column in columns}) < len(columns):
        raise ValueError("columns: a name twice")
    if rows is None or rows.num_features != width:
        raise ValueError(f"columns of {width} features, whose rows are {rows}")
    return columns


def _record(column: FeatureColumn) -> dict[str, Any]:
    found: dict[str, Any] = {"name": column.name, "encoding": column.encoding}
    if column.mean is not None:
        found |= {"mean": column.mean, "deviation": column.deviation}
    if column.values is not None:
        return found | {"values": list(column.values)}
    return found if column.width == 1 else found | {"width": column.width}


def _parsed(record: Mapping[str, Any]) -> FeatureColumn:
    name, encoding = typed(record["name"], str), typed(record["encoding"], str)
    mean, deviation, values = None, None, None
    width = typed(record.get("width", 1), int)
    if encoding not in ENCODINGS:
        raise ValueError(f"column {name!r:.80} of encoding {encoding!r:.80}")
    if encoding in SCALED:
        mean, deviation = typed(record["mean"], float), typed(record["deviation"], float)
        if not math.isfinite(mean) or not 0 <= deviation < math.inf:
            raise ValueError(f"column {name!r:.80} of mean {mean} and deviation {deviation}")
    if encoding == "category":
        values = tuple(typed(value, str) for value in typed(record["values"], list))
        width = len(values)
    is_one = encoding not in ("category", "vector")
    if width < 1 or (is_one and width > 1) or len({*(values or ())}) < len(values or ()):
        raise ValueError(f"column {name!r:.80} of {width} features, for values {values!r:.80}")
    return FeatureColumn(name, encoding, width, mean, deviation, values)
