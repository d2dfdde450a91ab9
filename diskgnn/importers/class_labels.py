"""Labels that are values of any kind (text, truth values, whole numbers with gaps) as classes 0, 1, 2, ...

Classes are the distinct values in ascending order, as scikit-learn's LabelEncoder has them. A value that is missing is
-1, no class. Whole numbers that are 0, 1, 2, ... already stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import DataWarning, InputError, callers_level
from diskgnn.importers.containers.rows import RowSource
from diskgnn.specs.schema import ClassValue

_FEW = 32  # rows may have a class each
_NO_VALUE = frozenset({"na", "n/a", "nan", "null", "none"})  # what other programs write into empty cells
_MOST_VALUES = 10_000  # that stand in a manifest
_LARGEST = 2**63 - 1
_WHOLE = 2.0**53  # up to here a float64 is exactly the whole number that was written


@dataclass(frozen=True)
class LabelColumn:
    """A value for each row: of a column of a table, or of an array.

    Args:
        name: for messages.
        num_rows: N.
        kind: of the values.
        chunks: yields the values from a row on, as arrays of this kind.
        stored_bytes: in files.
    """

    name: str
    num_rows: int
    kind: pa.DataType
    chunks: Callable[[int], Iterator[pa.Array]]
    stored_bytes: int = 0


@dataclass(frozen=True)
class KnownClasses:
    """The classes of another graph, for labels that are to be numbered alike.

    Args:
        graph: its path, for messages.
        num_classes: of its labels.
        values: that its classes stand for; None where they are the numbers themselves.
    """

    graph: str
    num_classes: int
    values: tuple[ClassValue, ...] | None


@dataclass(frozen=True)
class ClassLabels:
    """Labels as classes.

    Args:
        rows: [N] int64, -1 for none.
        values: that the classes stand for; None where they are the numbers themselves.
        null_share: of the rows, those without a value; None if nobody counted.
    """

    rows: RowSource
    values: tuple[ClassValue, ...] | None
    null_share: float | None


def is_value(kind: pa.DataType) -> bool:
    """Returns whether values of this type can be classes."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    )  # fmt: skip


def class_labels(
    column: LabelColumn,
    num_classes: int | None,
    classes: tuple[ClassValue, ...] | None = None,
    known: KnownClasses | None = None,
) -> ClassLabels:
    """Returns the classes of a column, which is read once to find them.

    Args:
        column: the values.
        num_classes: given by the user: whole numbers are then classes as they are.
        classes: what they are called, given by the user: text and truth values are taken in this order.
        known: what they are in another graph, in place of `num_classes` and `classes`.

    Raises:
        InputError: fractions, too many values of text, a value that `classes` lack, or -1 and 1, of which one would be
            no class; or no value at all, unless `classes` says what there may be.
    """
    values, num_nulls = _distinct(column)
    if known is not None:
        return ClassLabels(*_as_known(column, values, known), num_nulls / max(1, column.num_rows))
    if num_nulls == column.num_rows > 0 and classes is None:
        raise InputError(
            f"{column.name}: expected the class of some rows, found none in {column.num_rows}: name the column that "
            "has them, or leave the labels out"
        )
    is_number = pa.types.is_integer(column.kind) or pa.types.is_floating(column.kind)
    if classes is not None and not is_number:
        if unknown := [value for value in values or () if value not in classes]:
            raise InputError(f"{column.name}: expected values of `classes`, found {unknown[0]!r}")
        values = classes
    if is_number and values is not None:
        values = _with_gaps(column.name, values) if num_classes is None else None
    if values is None and not is_number:
        raise InputError(
            f"{column.name}: expected at most {_MOST_VALUES} values as classes, found more: is it another column that "
            f"was meant? More classes than that need numbers: 0, 1, 2, ..."
        )
    values = values or None
    if values is not None and classes is None and num_classes not in (None, len(values)):
        raise InputError(
            f"{column.name}: expected {num_classes} classes, as their number given says, found {len(values)} values "
            f"({values_text(values)}): correct the labels or leave the number of classes out"
        )
    if values is not None:
        _warn_of_values(column.name, values, column.num_rows - num_nulls, are_given=classes is not None)
    rows = _numbered(column, values)
    return ClassLabels(rows, values if classes is None else classes, num_nulls / max(1, column.num_rows))


def _warn_of_values(name: str, values: tuple[ClassValue, ...], num_labels: int, *, are_given: bool) -> None:
    """Warns of values that are hardly classes, of so many labels; of some only if they are not given by the user."""
    if len(values) == num_labels > _FEW:
        warnings.warn(
            f"{name}: each of {len(values)} rows has a class of its own ({values_text(values)}); is it another "
            f"column that was meant?",
            DataWarning,
            stacklevel=callers_level(),
        )
    nothing = tuple(value for value in values if isinstance(value, str) and value.strip().lower() in _NO_VALUE)
    if nothing and not are_given:
        warnings.warn(
            f"{name}: {values_text(nothing)} is taken as a class; where it means that a row has no label, empty "
            "these cells",
            DataWarning,
            stacklevel=callers_level(),
        )
    if not are_given and (alike := _alike(values)):
        warnings.warn(
            f"{name}: {' and '.join(map(repr, alike))} are classes of their own; where they mean the same, "
            "write them alike, with the same case and no blanks around",
            DataWarning,
            stacklevel=callers_level(),
        )


def _alike(values: tuple[ClassValue, ...]) -> list[str]:
    """Returns the first texts that differ in nothing but case and blanks around, if there are some."""
    found: dict[str, list[str]] = {}
    for value in values:
        if isinstance(value, str):
            found.setdefault(value.strip().casefold(), []).append(value)
    return next((texts for texts in found.values() if len(texts) > 1), [])


def _as_known(
    column: LabelColumn, found: tuple[ClassValue, ...] | None, known: KnownClasses
) -> tuple[RowSource, tuple[ClassValue, ...] | None]:
    """Returns the classes of a column whose distinct values were `found`, numbered as in another graph; and their
    values."""
    is_number = pa.types.is_integer(column.kind) or pa.types.is_floating(column.kind)
    expected = "whole numbers" if known.values is None else f"the classes {values_text(known.values)}"
    if known.values is None and is_number:
        return _numbered(column, None), None
    values = tuple(value for value in found or () if not (is_number and value == -1))
    kinds = {type(value) for value in known.values or ()}
    unknown = [value for value in values if type(value) not in kinds or value not in (known.values or ())]
    if unknown or found is None:
        shown = f"more than {_MOST_VALUES}" if found is None else repr(unknown[0])
        raise InputError(f"{column.name}: expected {expected}, as in {known.graph}, found {shown}")
    return _numbered(column, known.values if values else ()), known.values


def _numbered(column: LabelColumn, values: tuple[ClassValue, ...] | None) -> RowSource:
    """Returns [N] the number of each value among `values`; None: they are numbers."""
    value_set = None if values is None else pa.array(values)

    def read(first: int) -> Iterator[npt.NDArray[np.int64]]:
        for chunk in column.chunks(first):
            chunk = _comparable(chunk, column.name)
            if value_set is not None:
                chunk = pc.index_in(chunk, value_set=value_set.cast(chunk.type)).cast(pa.int64())
            yield np.asarray(chunk.fill_null(-1)).astype(np.int64, copy=False)

    return RowSource(
        column.name, column.num_rows, (), np.dtype(np.int64), partial(read, 0), stored_bytes=column.stored_bytes,
        seek=read,
    )  # fmt: skip


def _distinct(column: LabelColumn) -> tuple[tuple[ClassValue, ...] | None, int]:
    """Returns the distinct values in ascending order, or None if there are too many; and how many rows have none."""
    found: pa.Array | None = None
    too_many, num_nulls = False, 0
    for chunk in column.chunks(0):
        chunk = _comparable(chunk, column.name)
        num_nulls += chunk.null_count
        if not too_many:
            distinct = pc.unique(chunk.drop_null())
            found = distinct if found is None else pc.unique(pa.concat_arrays([found, distinct]))
            too_many = len(found) > _MOST_VALUES
    return None if too_many else tuple(sorted([] if found is None else found.to_pylist())), num_nulls


def _comparable(chunk: pa.Array, name: str) -> pa.Array:
    """Returns whole numbers as int64; NaN is null."""
    if pa.types.is_floating(chunk.type):
        numbers = np.asarray(chunk.cast(pa.float64()).to_numpy(zero_copy_only=False))
        known = ~np.isnan(numbers)
        wrong = known & ((numbers != np.floor(numbers)) | (np.abs(numbers) > _WHOLE))
        if wrong.any():
            raise InputError(
                f"{name}: expected classes: whole numbers, text or truth values; found {numbers[wrong][0]}; for "
                f"regression, give the nodes `task: regression` in a `schema`"
            )
        return pa.array(np.where(known, numbers, 0).astype(np.int64), mask=~known)
    if pa.types.is_uint64(chunk.type):  # beyond int64 it is no class
        largest = pa.scalar(_LARGEST, pa.uint64())
        return pc.if_else(pc.greater(chunk, largest), largest, chunk).cast(pa.int64())
    return chunk.cast(pa.int64()) if pa.types.is_integer(chunk.type) else chunk


def _with_gaps(name: str, values: tuple[Any, ...]) -> tuple[ClassValue, ...] | None:
    """Returns those of whole numbers that are not 0, 1, 2, ... already; -1 is none. None: they are."""
    classes = tuple(value for value in values if value != -1)
    if classes == (1,) and len(values) == 2:
        raise InputError(
            f"{name}: found -1 and 1, but -1 means a node without a label: call the classes 0 and 1, or no and yes"
        )
    if classes == tuple(range(len(classes))) or any(not 0 <= value < _LARGEST for value in classes):
        return None  # what is negative or too large is refused where labels are written
    return classes


def array_column(name: str, rows: RowSource) -> LabelColumn:
    """Returns the values of an array [N], or [N, 1], of text or truth values.

    Raises:
        InputError: they are of several kinds.
    """

    def read(first: int) -> Iterator[pa.Array]:
        for chunk in rows.chunks_from(first):
            try:
                yield pa.array(chunk.reshape(-1))
            except (pa.ArrowException, TypeError) as error:
                raise InputError(f"{name}: expected labels that are all text or all truth values ({error})") from error

    kind = next((chunk.type for chunk in read(0)), pa.string())
    if not is_value(kind):
        raise InputError(f"{name}: expected labels that are whole numbers, text or truth values, found {kind}")
    return LabelColumn(name, rows.num_rows, kind, read, rows.stored_bytes)


def values_text(values: tuple[ClassValue, ...]) -> str:
    """Returns how a message shows the values of classes."""
    shown = ", ".join(map(str, values[:8]))
    return f"{shown}, ..." if len(values) > 8 else shown
