"""Types of ids: how ids of each are compared, and kept."""

from __future__ import annotations

import pyarrow as pa

from diskgnn.importers.tables.times import as_text, is_date

_KINDS = {
    "int64": pa.types.is_signed_integer,
    "uint64": pa.types.is_unsigned_integer,
    "large_string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "large_binary": lambda kind: (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ),
}


def id_kind(kind: pa.DataType) -> pa.DataType | None:
    """Returns how ids of an Arrow type are compared: as int64, uint64, large_string or large_binary. None: they cannot
    be. Dates and timestamps are text, see `times.as_text`."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_date(kind):
        return pa.large_string()
    if pa.types.is_unsigned_integer(kind) and kind.bit_width < 64:
        return pa.int64()
    return next((pa.type_for_alias(name) for name, holds in _KINDS.items() if holds(kind)), None)


def id_keys(ids: pa.Array) -> pa.Array:
    """Returns `ids` in the type that `id_kind` says."""
    if isinstance(ids, pa.ExtensionArray):
        ids = ids.storage
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if is_date(ids.type):
        ids = as_text(ids)
    if pa.types.is_fixed_size_binary(ids.type):  # pyarrow before 16 has no direct cast
        ids = ids.cast(pa.binary())
    return ids.cast(id_kind(ids.type))


def readable_kind(kind: pa.DataType) -> str:
    """Returns an id type's name in messages."""
    return str(kind).removeprefix("large_")


def id_file_kind(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the column in an `IdFile`: a plain one, which every reader of Parquet knows."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_fixed_size_binary(kind):
        return kind
    return {"large_string": pa.string(), "large_binary": pa.binary()}.get(str(id_kind(kind)), id_kind(kind))
