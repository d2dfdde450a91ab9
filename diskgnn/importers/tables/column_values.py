"""Values of one column as numbers of feature rows, by the encoding that is known for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import InputError
from diskgnn.importers.tables import text_embedding
from diskgnn.importers.tables.spark_vectors import is_vector, vector_lengths, vector_rows
from diskgnn.importers.tables.times import is_date, seconds
from diskgnn.specs.feature_columns import FeatureColumn

LARGEST_SCALED = 1e100  # the squares of larger numbers may sum up to infinity


def natural_encoding(kind: pa.DataType) -> str:
    """Returns how a column of this type is encoded if nobody says it."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if is_date(kind):
        return "time"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "category"
    if _is_list(kind) or is_vector(kind):
        return "vector"
    return "none"


def fits(encoding: str, kind: pa.DataType) -> bool:
    """Returns True if values of a type can be encoded so; text may hold numbers and times."""
    if encoding == "category":
        return not pa.types.is_nested(kind)
    by_nature = "null" if pa.types.is_null(kind) else natural_encoding(kind)
    return by_nature in _NATURES[encoding]


def numbers(values: pa.Array, encoding: str, where: str) -> npt.NDArray[np.float64]:
    """Returns numbers, or times in seconds; null is NaN."""
    values = seconds(values, where) if encoding == "time" else values
    try:
        found = values.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise InputError(f"{where}: expected numbers, found {values.type}") from error
    return np.asarray(found.to_numpy(zero_copy_only=False))


def whole_numbers(values: pa.Array, where: str) -> pa.Array:
    """Returns whole numbers as int64. Null stays, and floats of a data frame with gaps are whole."""
    try:
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        return values.cast(pa.int64())
    except pa.ArrowException as error:
        raise InputError(f"{where}: expected whole numbers of 64 bits ({error})") from error


def scalable(found: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the numbers, NaN where there is none that can be scaled."""
    return np.where(np.abs(found) <= LARGEST_SCALED, found, np.nan)


def truths(values: pa.Array, where: str) -> pa.Array:
    """Returns truth values; text is a column of a CSV file in which no row has a value."""
    if pa.types.is_boolean(values.type):
        return values
    if values.null_count < len(values):
        raise InputError(f"{where}: expected truth values, found {values.type}")
    return pa.nulls(len(values), pa.bool_())


def words(values: pa.Array, where: str) -> pa.Array:
    """Returns the values of a category as text: those of 1 and 1.0 are the same."""
    try:
        return distinguished(values).cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(f"{where}: expected values of a category, found {values.type}") from error


def distinguished(values: pa.Array) -> pa.Array:
    """Returns values of which equal ones are one value of a category: -0 is 0, and NaN is null."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), pc.add(values, pa.scalar(0, values.type)))


def lengths(values: pa.Array, where: str) -> npt.NDArray[np.int64]:
    """Returns [n] the length of each list or vector; -1 for null."""
    if is_vector(values.type):
        return vector_lengths(values)
    if not _is_list(values.type):
        raise InputError(f"{where}: expected lists of numbers, found {values.type}")
    return np.asarray(pc.list_value_length(values).cast(pa.int64()).fill_null(-1))


def encode(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    """Write `values` [n] of a column to `out` [n, width], which is 0. `where` it is, for messages.

    Raises:
        InputError: they are not what the encoding takes.
    """
    if pa.types.is_null(values.type):  # in which no row has a value
        values = values.cast(_OF_NULLS[column.encoding])
    _ENCODERS[column.encoding](column, values, out, where)


def _encode_scaled(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    assert column.mean is not None
    if column.deviation:
        scaled = (scalable(numbers(values, column.encoding, where)) - column.mean) / column.deviation
        out[:, 0] = np.where(np.isfinite(scaled), scaled, 0)


def _encode_raw(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    with np.errstate(over="ignore"):
        out[:, 0] = numbers(values, column.encoding, where)


def _encode_boolean(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    out[:, 0] = np.asarray(truths(values, where).fill_null(False))


def _encode_category(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    known = pa.array(column.values, pa.string())
    places = np.asarray(pc.index_in(words(values, where), value_set=known).fill_null(-1))
    rows = np.flatnonzero(places >= 0)
    out[rows, places[rows]] = 1


def _encode_vectors(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    found_lengths = lengths(values, where)
    there = np.flatnonzero(found_lengths >= 0)
    if (wrong := found_lengths[there] != column.width).any():
        found = found_lengths[there][wrong][0]
        raise InputError(f"{where}: expected {column.width} numbers in every list, found {found}")
    kept = values.take(pa.array(there))
    if is_vector(values.type):
        out[there] = vector_rows(kept, column.width, np.dtype(np.float32))
    else:
        out[there] = _numbers_of(kept.flatten()).reshape(-1, column.width)


def _encode_text(column: FeatureColumn, values: pa.Array, out: npt.NDArray[np.float32], where: str) -> None:
    assert column.embedder is not None
    if len(values):
        out[...] = text_embedding.vectors(column.embedder, values, column.width, where)


def _numbers_of(values: pa.Array) -> npt.NDArray[np.float32]:
    found = np.asarray(values.cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32)
    return np.nan_to_num(found, posinf=np.inf, neginf=-np.inf)  # which is told of as what it is


def _is_list(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))


# By encoding: the natural encodings of the types that it takes (category: of text, which may hold numbers and times),
# and how messages call these.
_NATURES = {
    "number": ("number", "boolean", "category", "null"), "raw": ("number", "boolean", "category", "null"),
    "time": ("time", "number", "category", "null"), "boolean": ("boolean", "category", "null"),
    "vector": ("vector", "null"), "text": ("category", "null"),
}  # fmt: skip
TAKEN = {
    "number": "numbers", "raw": "numbers", "time": "timestamps, dates or whole numbers", "boolean": "truth values",
    "category": "values of a category", "categories": "lists of values of a category", "vector": "lists of numbers",
    "text": "text",
}  # fmt: skip
_OF_NULLS = {
    "number": pa.float64(), "raw": pa.float64(), "time": pa.int64(), "boolean": pa.bool_(), "category": pa.string(),
    "vector": pa.list_(pa.float32()), "text": pa.string(),
}  # fmt: skip
_ENCODERS: Mapping[str, Callable[[FeatureColumn, pa.Array, npt.NDArray[np.float32], str], None]] = {
    "number": _encode_scaled, "raw": _encode_raw, "time": _encode_scaled, "boolean": _encode_boolean,
    "category": _encode_category, "vector": _encode_vectors, "text": _encode_text,
}  # fmt: skip
