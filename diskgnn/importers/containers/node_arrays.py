"""What nodes have, from arrays and streams of numbers: features, labels that are classes, splits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.formats.row_format import FEATURE_STORAGE, dtype_stored_as
from diskgnn.importers.class_labels import ClassLabels, KnownClasses, array_column, class_labels
from diskgnn.importers.containers.arrays import Source, items, load, stored_numbers
from diskgnn.importers.containers.rows import RowSource, as_signed, first_fraction, of_array, require_whole
from diskgnn.specs.schema import ClassValue


def features(source: Source, *, bfloat16: bool, name: str = "features") -> RowSource:
    """Returns the rows of a feature matrix [N, D], in the dtype that they are stored in.

    Records stay what they are; float64 and values in another byte order become float32, or native, on the way (a
    DataWarning for float64).

    Raises:
        InputError: no matrix, or a dtype that features cannot have.
        ConfigError: uint16 that nothing says to be bfloat16, or `bfloat16` with something else.
    """
    if isinstance(source, RowSource) and source.record is not None:
        return source
    rows = stored_numbers(name, source)
    if len(rows.row_shape) != 1 or rows.row_shape[0] == 0:
        raise InputError(f"{name}: expected shape [N, D] with D of at least 1, found {rows.shape}")
    dtype = rows.dtype
    if (bfloat16 or rows.bfloat16) != (dtype_stored_as(dtype) == "bfloat16"):
        stored = np.dtype(FEATURE_STORAGE["bfloat16"])
        raise ConfigError(
            f"{name}: bfloat16 is stored as {stored}, found {dtype}; leave out bfloat16=True"
            if bfloat16
            else f"{name}: found {stored}; pass bfloat16=True if these are bfloat16 bits, otherwise save "
            "features.astype(np.float32)"
        )
    if dtype == np.float64:
        warnings.warn(
            f"{name} are float64 and become float32 here; save features.astype(np.float32) to do without this",
            DataWarning,
            stacklevel=callers_level(),
        )
        return rows.mapped(rows.row_shape, np.dtype(np.float32), _narrowed)
    if dtype_stored_as(dtype) is None:
        raise InputError(
            f"{name}: expected float32, float16, int8 or bfloat16 (as uint16), found {dtype}; "
            f"save features.astype(np.float32)"
        )
    return rows


def _narrowed(chunk: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what becomes infinite is counted with what was
        return chunk.astype(np.float32)


def labels(
    source: Source,
    name: str = "labels",
    classes: tuple[ClassValue, ...] | None = None,
    known: KnownClasses | None = None,
    num_classes: int | None = None,
) -> ClassLabels:
    """Returns labels [N], or [N, 1], as classes. Whole numbers are classes already, -1 for none; text and truth values
    become some, `num_classes` of them if the user says it, as are `classes`, what these are called; `known` are those
    of another graph.

    Raises:
        InputError: another shape, or labels of other kinds.
    """
    rows = items(name, source)
    if rows.row_shape not in ((), (1,)):
        raise InputError(f"{name}: expected shape [N], found {rows.shape}; a class for each node, or another `task`")
    if rows.dtype.kind in "bUSO" or (known is not None and known.values is not None):
        return class_labels(array_column(name, rows), num_classes, classes, known)
    if rows.dtype.kind == "f":
        fraction = first_fraction(rows)
        raise InputError(
            f"{name}: expected whole numbers with -1 for none, found dtype {rows.dtype}"
            + (
                "; save np.where(np.isnan(labels), -1, labels).astype(np.int64)"
                if fraction is None
                else f" and {fraction}; for regression, give the nodes `task: regression` in a `schema`"
            )
        )
    require_whole(name, rows)

    def whole(chunk: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return as_signed(chunk.reshape(-1)).astype(np.int64, copy=False)

    return ClassLabels(rows.mapped((), np.dtype(np.int64), whole), classes, None)


def split_ids(split: str, source: Source, num_nodes: int) -> npt.NDArray[np.int64]:
    """Returns the node ids of a split given as ids [any number] or as a mask [N] of truth values.

    Raises:
        InputError: another shape, fractional ids, or a mask of another length than N.
    """
    if isinstance(source, RowSource):
        return _streamed_ids(split, source, num_nodes)
    array = load(split, source)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{split}: expected node ids or a mask, one-dimensional, found shape {list(array.shape)}")
    if array.dtype.kind == "b":
        if len(array) != num_nodes:
            raise InputError(f"{split}: expected a mask of {num_nodes} nodes, found one of {len(array)}")
        return np.flatnonzero(array).astype(np.int64)
    if len(array) == 0:  # np.asarray([]) is float64
        return np.empty(0, np.int64)
    require_whole(split, of_array(split, array))
    return np.array(as_signed(array), np.int64)


def _streamed_ids(split: str, rows: RowSource, num_nodes: int) -> npt.NDArray[np.int64]:
    found, position = [np.empty(0, np.int64)], 0
    for chunk in rows.chunks():
        is_mask = rows.dtype.kind == "b"
        found.append(split_ids(split, np.flatnonzero(chunk) + position if is_mask else chunk, num_nodes))
        position += len(chunk)
    if rows.dtype.kind == "b" and position != num_nodes:
        raise InputError(f"{split}: expected a mask of {num_nodes} nodes, found one of {position}")
    return np.concatenate(found)
