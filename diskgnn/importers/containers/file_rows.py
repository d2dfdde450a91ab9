"""Rows that lie in a file as an array's bytes, with or without a header before them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.files import cache_hints
from diskgnn.files.file_reading import opened, read_into
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource

_MOST_SPAN_BYTES = (
    32 << 20
)  # of a row in a file, with what lies between its numbers; and from a first row to a last one


def file_rows(
    name: str, path: Path, num_rows: int, row_shape: tuple[int, ...], dtype: npt.DTypeLike, offset_bytes: int = 0
) -> RowSource:
    """Returns `num_rows` rows from byte `offset_bytes` of a file on, which become native in byte order.

    They are read front to back without filling the page cache.
    """
    stored = np.dtype(dtype)
    rows = RowSource(name, num_rows, row_shape, stored, lambda: iter(()), path, path.stat().st_size)
    read = partial(_read, rows, path, offset_bytes)

    def apart(row: int) -> RowSource:
        return file_rows(name, path, row_shape[0], row_shape[1:], dtype, offset_bytes + row * rows.row_bytes)

    rows = replace(rows, chunks=partial(read, 0), seek=read, apart=apart if row_shape else None)
    native = stored.newbyteorder("=")
    if native == stored:
        return rows
    return replace(rows.mapped(row_shape, native, lambda chunk: chunk.astype(native)), apart=rows.apart)


def file_columns(
    name: str, path: Path, num_rows: int, row_shape: tuple[int, ...], dtype: npt.DTypeLike, offset_bytes: int
) -> RowSource:
    """Opens, as `file_rows` does, an array that is stored column by column (Fortran order)."""
    stored, num_columns = np.dtype(dtype), math.prod(row_shape)
    native = stored.newbyteorder("=")

    def read(first: int) -> Iterator[npt.NDArray[Any]]:
        step = max(1, CHUNK_BYTES // (stored.itemsize * num_columns))
        with opened(path) as descriptor:
            for start in range(first, num_rows, step):
                count = min(step, num_rows - start)
                columns = np.empty((num_columns, count), stored)
                for number, column in enumerate(columns):
                    place = offset_bytes + (number * num_rows + start) * stored.itemsize
                    _fill(name, descriptor, place, column.view(np.uint8).data, path)
                yield np.ascontiguousarray(columns.reshape(*row_shape[::-1], count).T, native)

    def apart(row: int) -> RowSource:
        pairs = file_rows(name, path, num_columns, (num_rows,), dtype, offset_bytes)
        return pairs.mapped((), native, lambda chunk: np.ascontiguousarray(chunk[:, row]))

    return RowSource(
        name, num_rows, row_shape, native, partial(read, 0), None, path.stat().st_size, seek=read,
        apart=apart if len(row_shape) == 1 else None,
    )  # fmt: skip


def file_view(
    name: str, path: Path, shape: tuple[int, ...], strides: tuple[int, ...], dtype: npt.DTypeLike, offset_bytes: int
) -> RowSource | None:
    """Opens, as `file_rows` does, numbers with others between them: those of a view, `strides` bytes apart.

    None where the numbers of a row lie further apart than may be in memory.
    """
    stored, num_rows = np.dtype(dtype), shape[0]
    native = stored.newbyteorder("=")
    of_row = span_bytes(shape[1:], strides[1:], stored)
    if of_row > _MOST_SPAN_BYTES:
        return None
    # Numbers of a row may lie further apart than rows do (a transposed array): then a piece has many rows, or what lies
    # between would be read again for each.
    row_bytes = stored.itemsize * math.prod(shape[1:])
    step = max(1, min(max(CHUNK_BYTES, of_row // 4) // max(1, row_bytes), _MOST_SPAN_BYTES // max(1, strides[0])))

    def read(first: int) -> Iterator[npt.NDArray[Any]]:
        with opened(path) as descriptor:
            for start in range(first, num_rows, step):
                part = (min(step, num_rows - start), *shape[1:])
                span = np.empty(span_bytes(part, strides, stored), np.uint8)
                place = offset_bytes + start * strides[0]
                _fill(name, descriptor, place, span.data, path)
                cache_hints.forget(descriptor, place, span.nbytes)
                yield np.ndarray(part, stored, span, strides=strides).astype(native, order="C")

    def apart(row: int) -> RowSource:
        found = file_view(name, path, shape[1:], strides[1:], dtype, offset_bytes + row * strides[0])
        assert found is not None
        return found

    return RowSource(
        name, num_rows, shape[1:], native, partial(read, 0), None, path.stat().st_size, seek=read,
        apart=apart if len(shape) > 1 else None,
    )  # fmt: skip


def span_bytes(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Returns the bytes from the first number of a view to the end of its last one."""
    return dtype.itemsize + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))


def headerless(name: str, path: Path, row_shape: tuple[int, ...], dtype: npt.DTypeLike) -> RowSource:
    """Returns the rows of a file that holds nothing else, as np.memmap and ndarray.tofile leave it.

    Raises:
        InputError: there is no such file, or it ends within a row.
    """
    dtype = np.dtype(dtype)
    row_bytes = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
    if not path.is_file():
        raise InputError(f"{name}: expected a file of {dtype} numbers, found none at {path}")
    with opened(path):  # now, if it may not be read
        num_rows, rest = divmod(path.stat().st_size, row_bytes)
    if rest:
        raise InputError(
            f"{name}: expected rows of {row_bytes} bytes ({dtype} {list(row_shape)}) in {path}, found "
            f"{path.stat().st_size} bytes, which is no multiple; is it the right width, and was the download complete?"
        )
    return replace(file_rows(name, path, num_rows, row_shape, dtype), headerless=True)


def _read(rows: RowSource, path: Path, offset_bytes: int, first: int) -> Iterator[npt.NDArray[Any]]:
    row_bytes = max(1, rows.row_bytes)
    chunk_rows = max(1, CHUNK_BYTES // row_bytes)
    buffer = np.empty((min(chunk_rows, rows.num_rows), *rows.row_shape), rows.dtype)
    with opened(path) as descriptor:
        for start in range(first, rows.num_rows, chunk_rows):
            chunk = buffer[: rows.num_rows - start]
            place = offset_bytes + start * rows.row_bytes
            _fill(rows.name, descriptor, place, chunk.reshape(-1).view(np.uint8).data, path)
            cache_hints.forget(descriptor, place, chunk.nbytes)
            yield chunk


def _fill(name: str, descriptor: int, offset_bytes: int, view: memoryview, path: Path) -> None:
    if read_into(descriptor, offset_bytes, view, path) != len(view):
        raise InputError(f"{name}: {path} ends before its last row; was the download complete?")
