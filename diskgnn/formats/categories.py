"""The table that says what codes of categories stand for, `categories-T.parquet`: text, and of which type it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# A value in a row, of each column by code. The type is a key of `_TYPES`, or null: the value was text, or is of a type
# that is kept as text.
CATEGORIES = pa.schema([("column", pa.string()), ("value", pa.string()), ("count", pa.int64()), ("type", pa.string())])
_TYPES: Mapping[str, Callable[[str], Any]] = {"bool": "true".__eq__, "int": int, "float": float}


def type_of_values(column: pa.DataType) -> str | None:
    """Returns the type of the values of a column, or of those in its lists."""
    kind = column.value_type if pa.types.is_nested(column) or pa.types.is_dictionary(column) else column
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else None


def value_as_text(value: Any) -> tuple[str, str | None]:
    """Returns a value of Python's as text, and its type."""
    if isinstance(value, bool):
        return str(value).lower(), "bool"
    return str(value), type(value).__name__ if type(value) in (int, float) else None


def counted_values(categories: pa.Table, column: str) -> tuple[list[Any], list[int]]:
    """Returns the values of a column by code, of the types that they had, and how often each came.

    Raises:
        ValueError, KeyError: a value is not of its type.
    """
    found = categories.filter(pc.equal(categories["column"], column))
    typed = zip(found["value"].to_pylist(), found["type"].to_pylist(), strict=True)
    return [text if kind is None else _TYPES[kind](text) for text, kind in typed], found["count"].to_pylist()
