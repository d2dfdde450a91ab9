"""Columns of vectors as Spark ML writes them: structs of (type, size, indices, values), dense or sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_FIELDS = {"type", "size", "indices", "values"}
_SPARSE = 0  # of `type`; 1 is dense, and has neither size nor indices


def is_vector(kind: pa.DataType) -> bool:
    """Returns whether this is the type of such a column."""
    return pa.types.is_struct(kind) and {kind.field(i).name for i in range(kind.num_fields)} == _FIELDS


def vector_lengths(column: pa.StructArray) -> npt.NDArray[np.int64]:
    """Returns [n] how many numbers each vector stands for; -1 for null."""
    lengths = pc.if_else(
        pc.equal(column.field("type"), _SPARSE), column.field("size"), pc.list_value_length(column.field("values"))
    )
    lengths = np.asarray(lengths.cast(pa.int64()).fill_null(-1))
    return np.where(np.asarray(column.is_valid()), lengths, -1)


def vector_rows(column: pa.StructArray, width: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns [n, width] the vectors, all of which are of this length; what a sparse one leaves out is 0."""
    rows = np.zeros((len(column), width), dtype)
    indices, values = column.field("indices"), column.field("values")
    counts = np.asarray(pc.list_value_length(values))
    row_of = np.repeat(np.arange(len(column)), counts)
    starts = np.cumsum(counts) - counts
    positions = np.arange(len(row_of)) - np.repeat(starts, counts)
    sparse = np.repeat(np.asarray(pc.equal(column.field("type"), _SPARSE)), counts)
    positions[sparse] = np.asarray(indices.flatten())
    with np.errstate(over="ignore"):
        rows[row_of, positions] = np.asarray(values.flatten())
    return rows
