"""Reading some rows of a file into memory in as few large requests as pay, past the page cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, page_memory, read_ranges
from diskgnn.stores.locations import Location
from diskgnn.stores.remote_files import RemoteFile

# Gaps up to this size are read along: a request of its own would take the disk longer (docs/PERFORMANCE.md).
GAP_BYTES = 32 << 10


def row_buffer(num_rows: int, row_bytes: int) -> npt.NDArray[np.uint8]:
    """Returns page-aligned memory, of any content, that `read_rows` can read up to `num_rows` neighbouring rows
    into."""
    return page_memory(num_rows * row_bytes + 2 * DIRECT_ALIGNMENT)


def requests(rows: npt.NDArray[Any], row_bytes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns (starts, lengths) in bytes of the ranges that `rows` [n] are read in, ascending, from row 0 at offset
    0."""
    breaks = np.flatnonzero((np.diff(rows) - 1) * row_bytes > GAP_BYTES)
    starts = rows[np.concatenate([[0], breaks + 1])].astype(np.int64)
    ends = rows[np.concatenate([breaks, [len(rows) - 1]])].astype(np.int64) + 1
    return starts * row_bytes, (ends - starts) * row_bytes


def read_rows(
    path: Location,
    data_offset_bytes: int,
    row_bytes: int,
    rows: npt.NDArray[Any],
    buffer: npt.NDArray[np.uint8],
    *,
    engine: str = "auto",
) -> tuple[npt.NDArray[np.uint8], int]:
    """Read rows of a file whose row i starts at data_offset_bytes + i * row_bytes.

    Args:
        path: the file.
        rows: [n] at least one row number, ascending.
        buffer: memory from `row_buffer`, for at least rows[-1] - rows[0] + 1 rows.
        engine: 'auto', 'io_uring' or 'threads'.

    Returns:
        (the rows from rows[0] to rows[-1] as bytes, a view of `buffer` in which those that are not in `rows` may be
        garbage; bytes read).

    Raises:
        OSError: the file cannot be read, or ends early.
    """
    starts, lengths = requests(rows, row_bytes)
    begin = data_offset_bytes + int(rows[0]) * row_bytes
    base = begin // DIRECT_ALIGNMENT * DIRECT_ALIGNMENT
    offsets = data_offset_bytes + starts
    read_ranges_of(path, offsets, lengths, offsets - base, buffer, engine=engine)
    total_bytes = (int(rows[-1]) - int(rows[0]) + 1) * row_bytes
    return buffer[begin - base : begin - base + total_bytes], int(lengths.sum())


def read_ranges_of(
    path: Location,
    offsets: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    buffer: npt.NDArray[np.uint8],
    *,
    engine: str = "auto",
) -> None:
    """Read range i of a file, of lengths[i] bytes, to places[i] of `buffer`, which equals its offset modulo a page.

    Raises:
        OSError: the file cannot be read, or ends early.
    """
    if isinstance(path, Path):
        read_ranges(os.fspath(path), engine, offsets, lengths, places, buffer)
        return
    with RemoteFile(path) as file:
        file.read_ranges(offsets, lengths, places, buffer)


def read_span(path: Location, begin: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    """Returns the bytes [begin, begin + num_bytes) of a file, at least one, in memory of their own.

    Raises:
        OSError: the file cannot be read, or ends early.
    """
    base = begin // DIRECT_ALIGNMENT * DIRECT_ALIGNMENT
    buffer = row_buffer(1, begin - base + num_bytes)
    read_ranges_of(path, np.array([begin]), np.array([num_bytes]), np.array([begin - base]), buffer)
    return buffer[begin - base : begin - base + num_bytes]
