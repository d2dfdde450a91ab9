"""Rows of a TensorFrame in memory as records, which keep its columns.

| stype | column of the record |
|---|---|
| numerical | numerical, float32; null is NaN |
| categorical | categorical, int32: codes; null is -1 |
| multicategorical | multicategorical, int32: codes, then -1 |
| timestamp | timestamp, int64: microseconds since 1970; null is the smallest number |
| embedding | embedding, float32 |

Every value comes back as it was. What torch_frame has besides (tokens of text, sequences of numbers) stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn.errors import InputError
from diskgnn.formats.record_format import NULLS, RecordField, RecordFormat
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource

_MOST_LISTED = 256  # codes of a cell: each row has room for as many as the longest one
_MOST_CODE = np.iinfo(np.int32).max - 1  # so that there are as many values as int32 counts
_CODED = ("categorical", "multicategorical")
_DTYPES = {"numerical": torch.float32, "categorical": torch.int64, "multicategorical": torch.int64,
           "timestamp": torch.int64, "embedding": torch.float32}  # fmt: skip
_NULL_TIME = np.iinfo(np.int64).min
Nulls = npt.NDArray[np.bool_]  # [n] which rows of a chunk have no value
_MICROSECONDS = np.dtype("datetime64[us]")
_DAY = 86400 * 10**6


def why_in_memory(frame: Any) -> str | None:
    """Returns why the rows of a TensorFrame cannot be records; None if they can."""
    if not frame.num_rows or not frame.feat_dict:
        return "it has no values"
    if frame.y is not None:
        return "it has y, which is for an attribute of the data"
    names = [name for listed in frame.col_names_dict.values() for name in listed]
    if len({*names}) < len(names):
        return "two of its columns have one name"
    for stype, values in frame.feat_dict.items():
        expected = _DTYPES.get(stype.value)
        if expected is None or isinstance(values, Mapping):
            return f"columns of {stype.value} have no fixed width"
        if values.dtype is not expected:
            return f"columns of {stype.value} are {values.dtype}, expected {expected}"
        if stype.value in _CODED and _largest(values) > _MOST_CODE:
            return f"columns of {stype.value} have codes above {_MOST_CODE}"
        if stype.value == "multicategorical" and _longest(values) > _MOST_LISTED:
            return f"a cell of {stype.value} has more than {_MOST_LISTED} values"
    return None


def frame_rows(name: str, frame: Any) -> RowSource:
    """Returns the rows of a TensorFrame as records [N]; `name` is for messages.

    Raises (while streaming):
        InputError: numbers of a timestamp that are no moment.
    """
    record = RecordFormat.of([_field(*each) for each in _columns_of(frame)], 1)
    step, num_rows = max(1, CHUNK_BYTES // record.row_bytes), frame.num_rows

    def read(first: int) -> Iterator[npt.NDArray[Any]]:
        for start in range(first, num_rows, step):
            yield packed_rows(name, frame, record, start, min(start + step, num_rows))

    return RowSource(name, num_rows, (), record.file_dtype, partial(read, 0), seek=read, columns=(), record=record)


def packed_rows(name: str, frame: Any, record: RecordFormat, start: int, stop: int) -> npt.NDArray[Any]:
    """Returns rows `start` to `stop` of a TensorFrame as records; `name` is for messages.

    Raises:
        InputError: numbers of a timestamp that are no moment; or a cell has more values than the record has room for.
    """
    given = {column: (values, number) for _, column, values, number in _columns_of(frame)}
    rows = np.zeros(stop - start, record.file_dtype)
    for field, stored in zip(record.fields, record.file_dtype.names or (), strict=False):
        nulls = _FILL[field.kind](rows[stored], *given[field.name], start, f"{name}: {field.name!r}")
        if field.null_bit is not None:
            bits = nulls.astype(np.uint8) << np.uint8(field.null_bit % 8)
            rows[NULLS][:, field.null_bit // 8] |= bits
    return rows


def longest_list(frame: Any) -> int:
    """Returns the values of the longest cell of several categories."""
    return max((_longest(values) for kind, _, values, _ in _columns_of(frame) if kind == "multicategorical"), default=0)


def widths(frame: Any) -> dict[str, int]:
    """Returns the numbers of each column of vectors."""
    return {
        name: int(values.offset[number + 1] - values.offset[number])
        for kind, name, values, number in _columns_of(frame) if kind == "embedding"
    }  # fmt: skip


def microseconds(parts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns moments [n] in microseconds since 1970 of what torch_frame has of each, [n, 7]."""
    years, months, days, _, hours, minutes, seconds = parts.T
    months = ((years - 1970) * 12 + months).astype("datetime64[M]").astype("datetime64[D]")
    moments = (months + days).astype(_MICROSECONDS) + (3600 * hours + 60 * minutes + seconds).astype("timedelta64[s]")
    return np.asarray(moments.astype(np.int64))


def _columns_of(frame: Any) -> list[tuple[str, str, Any, int]]:
    """Returns (kind, name, values of all columns of this kind, number among them) of each column."""
    return [
        (stype.value, column, values, number)
        for stype, values in frame.feat_dict.items()
        for number, column in enumerate(frame.col_names_dict[stype])
    ]


def parts_of(frame: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields all tensors that a TensorFrame consists of, each with what names it."""
    for stype, values in frame.feat_dict.items():
        name = f"{stype.value} {frame.col_names_dict[stype]}"
        if isinstance(values, Tensor):
            yield name, values
        else:
            yield f"{name} offsets", values.offset
            yield f"{name} values", values.values


def _field(kind: str, name: str, values: Any, number: int) -> RecordField:
    if kind == "numerical":
        return RecordField(name, kind, "float32")
    if kind == "timestamp":
        return RecordField(name, kind, "int64", null_bit=0)
    if kind == "embedding":
        return RecordField(name, kind, "float32", width=int(values.offset[number + 1] - values.offset[number]))
    codes = values[:, number] if kind == "categorical" else values[:, number].values
    num_values = max(0, int(codes.max()) + 1) if codes.numel() else 0
    width = max(1, _longest(values)) if kind == "multicategorical" else 1
    return RecordField(name, kind, "int32", width=width, num_values=num_values, null_bit=0)


def _longest(values: Any) -> int:
    return int(values.offset.diff().max()) if len(values.offset) > 1 else 0


def _largest(values: Any) -> int:
    codes = values if isinstance(values, Tensor) else values.values
    return int(codes.max()) if codes.numel() else 0


def _fill_numbers(out: npt.NDArray[Any], values: Tensor, number: int, start: int, where: str) -> Nulls:
    out[:] = values[start : start + len(out), number].numpy()
    return cast(Nulls, np.isnan(out))


def _fill_codes(out: npt.NDArray[Any], values: Tensor, number: int, start: int, where: str) -> Nulls:
    out[:] = values[start : start + len(out), number].numpy()
    return out < 0


def _fill_lists(out: npt.NDArray[Any], values: Any, number: int, start: int, where: str) -> Nulls:
    cells = values.num_cols * np.arange(start, start + len(out)) + number
    offsets, codes = values.offset.numpy(), values.values.numpy()
    lengths = offsets[cells + 1] - offsets[cells]
    places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    lists = out.reshape(len(out), -1)
    if len(lengths) and lengths.max() > lists.shape[1]:
        raise InputError(f"{where}: expected at most {lists.shape[1]} values in a cell, found {lengths.max()}")
    lists[:] = -1
    lists[np.repeat(np.arange(len(out)), lengths), places] = codes[np.repeat(offsets[cells], lengths) + places]
    return cast(Nulls, (lengths > 0) & (lists[:, 0] < 0))  # null is a list of -1


def _fill_vectors(out: npt.NDArray[Any], values: Any, number: int, start: int, where: str) -> Nulls:
    first, last = values.offset[number : number + 2].tolist()
    out.reshape(len(out), -1)[:] = values.values[start : start + len(out), first:last].numpy()
    return np.zeros(len(out), bool)


def _fill_times(out: npt.NDArray[Any], values: Tensor, number: int, start: int, where: str) -> Nulls:
    parts = values[start : start + len(out), number].numpy()
    _, _, days, weekdays, hours, minutes, seconds = parts.T
    null, moments = (parts == -1).all(axis=1), microseconds(parts)
    is_one = (days >= 0) & (days < 31) & (weekdays == (moments // _DAY + 3) % 7)  # 1970 began on a Thursday
    for part, most in ((hours, 24), (minutes, 60), (seconds, 60)):
        is_one &= (part >= 0) & (part < most)
    if not (is_one | null).all():
        row = int((is_one | null).argmin())
        raise InputError(f"{where}: expected a moment as torch_frame has it, found {parts[row].tolist()} in row "
                         f"{start + row}")  # fmt: skip
    out[:] = np.where(null, _NULL_TIME, moments)
    return cast(Nulls, null)


_FILL = {"numerical": _fill_numbers, "categorical": _fill_codes, "multicategorical": _fill_lists,
         "timestamp": _fill_times, "embedding": _fill_vectors}  # fmt: skip
