"""Dictionary-encoded columns of tables, which are read as what they encode."""

from __future__ import annotations

import pyarrow as pa


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns with the types of their values."""
    kinds = [column.type.value_type if pa.types.is_dictionary(column.type) else column.type for column in schema]
    return pa.schema([
        pa.field(column.name, kind, column.nullable) for column, kind in zip(schema, kinds, strict=True)
    ])  # fmt: skip


def decoded(values: pa.Array) -> pa.Array:
    """Returns the values of a column."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
