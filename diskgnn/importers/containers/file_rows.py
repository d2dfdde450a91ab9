"""Rows that lie in a file as an array's bytes, with or without a header before them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource
from diskgnn.storage import cache_hints


def file_rows(
    name: str, path: Path, num_rows: int, row_shape: tuple[int, ...], dtype: npt.DTypeLike, offset_bytes: int = 0
) -> RowSource:
    """`num_rows` rows from byte `offset_bytes` of a file on, in native byte order.

    They are read front to back without filling the page cache.
    """
    empty = RowSource(name, num_rows, row_shape, np.dtype(dtype), lambda: iter(()), path, path.stat().st_size)
    return replace(empty, chunks=partial(_read, empty, path, offset_bytes))


def headerless(name: str, path: Path, row_shape: tuple[int, ...], dtype: npt.DTypeLike) -> RowSource:
    """The rows of a file that holds nothing else, as np.memmap and ndarray.tofile leave it.

    Raises:
        InputError: there is no such file, or it ends within a row.
    """
    dtype = np.dtype(dtype)
    row_bytes = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
    if not path.is_file():
        raise InputError(f"{name}: expected a file of {dtype} numbers, found none at {path}")
    num_rows, rest = divmod(path.stat().st_size, row_bytes)
    if rest:
        raise InputError(
            f"{name}: expected rows of {row_bytes} bytes ({dtype} {list(row_shape)}) in {path}, found "
            f"{path.stat().st_size} bytes, which is no multiple; is it the right width, and was the download complete?"
        )
    return replace(file_rows(name, path, num_rows, row_shape, dtype), headerless=True)


def _read(rows: RowSource, path: Path, offset_bytes: int) -> Iterator[npt.NDArray[Any]]:
    chunk_rows = max(1, CHUNK_BYTES // rows.row_bytes)
    buffer = np.empty((chunk_rows, *rows.row_shape), rows.dtype)
    with path.open("rb", buffering=0) as file:
        file.seek(offset_bytes)
        for start in range(0, rows.num_rows, chunk_rows):
            chunk = buffer[: min(chunk_rows, rows.num_rows - start)]
            view = chunk.reshape(-1).view(np.uint8).data
            while view:
                read = file.readinto(view)
                if not read:
                    raise InputError(f"{rows.name}: {path} ends before its last row; was the download complete?")
                cache_hints.forget(file.fileno(), offset_bytes, read)
                offset_bytes, view = offset_bytes + read, view[read:]
            yield chunk
