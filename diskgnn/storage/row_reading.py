"""Reading some rows of a file into memory in as few large requests as pay, past the page cache."""

from __future__ import annotations

import mmap
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import io_uring_refusal, read_ranges
from diskgnn.errors import ConfigError

ALIGNMENT = 4096
# Gaps up to this size are read along: a request of its own would cost more (random 64 KiB reads reach a disk's
# sequential rate).
GAP_BYTES = 64 << 10


@cache
def _warn_once(refusal: str) -> None:
    warnings.warn(f"reading with a pool of threads, not io_uring: {refusal}", stacklevel=4)


def warn_if_no_io_uring(engine: str = "auto") -> None:
    """Warn, once in this process, when `engine` 'auto' means threads because io_uring cannot be used here."""
    if engine == "auto" and (refusal := io_uring_refusal()):
        _warn_once(refusal)


def check_engine(engine: str) -> None:
    """Refuse an engine that there is not, or not here.

    Raises:
        ConfigError: `engine` is none of 'auto', 'io_uring' and 'threads', or io_uring is refused.
    """
    if engine not in ("auto", "io_uring", "threads"):
        raise ConfigError(f"engine: expected auto, io_uring or threads, found {engine!r}")
    if engine == "io_uring" and (refusal := io_uring_refusal()):
        raise ConfigError(f"engine='io_uring' cannot be used here: {refusal}; use engine='auto'")


def row_buffer(num_rows: int, row_bytes: int) -> npt.NDArray[np.uint8]:
    """Page-aligned memory that `read_rows` can read up to `num_rows` neighbouring rows into."""
    memory = mmap.mmap(-1, num_rows * row_bytes + 2 * ALIGNMENT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # huge pages, where the kernel has them: rows are gathered at random
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def read_rows(
    path: Path,
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
    breaks = np.flatnonzero((np.diff(rows) - 1) * row_bytes > GAP_BYTES)
    starts = rows[np.concatenate([[0], breaks + 1])].astype(np.int64)
    ends = rows[np.concatenate([breaks, [len(rows) - 1]])].astype(np.int64) + 1
    lengths = (ends - starts) * row_bytes
    begin = data_offset_bytes + int(rows[0]) * row_bytes
    base = begin // ALIGNMENT * ALIGNMENT
    read_ranges(str(path), engine, data_offset_bytes + starts * row_bytes, lengths, base, buffer)
    total_bytes = (int(rows[-1]) - int(rows[0]) + 1) * row_bytes
    return buffer[begin - base : begin - base + total_bytes], int(lengths.sum())
