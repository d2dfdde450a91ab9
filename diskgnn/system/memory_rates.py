"""Measures how fast this machine copies feature rows."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

_SOURCE_BYTES, _COPIED_BYTES = 64 << 20, 16 << 20  # more than the caches of a core hold
_REPEATS = 3


@cache
def row_copy_bytes_per_second(row_bytes: int) -> float:
    """Measures one thread that gathers rows of this size from all over memory into one piece; the best of three.

    Once a process and row size: that takes a third of a second.
    """
    num_rows, num_copied = max(1, _SOURCE_BYTES // row_bytes), max(1, _COPIED_BYTES // row_bytes)
    source = np.ones((num_rows, row_bytes), np.uint8)
    chosen = np.random.default_rng(0).integers(0, num_rows, num_copied)
    copied, best = np.zeros((num_copied, row_bytes), np.uint8), float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        np.take(source, chosen, axis=0, out=copied, mode="clip")  # 'raise' would buffer
        best = min(best, time.perf_counter() - started)
    return copied.nbytes / best
