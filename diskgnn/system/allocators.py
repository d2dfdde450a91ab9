"""Memory that was freed goes back to the system, where a budget counts what the process has and not what it uses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import LEAST_KEPT_BYTES, KeptPages, page_memory

# glibc serves what is larger from pages of its own, and gives these back at once; by itself it raises the limit to
# 32 MiB as such pieces are freed, and then keeps up to 64 MiB in each thread's arena.
_OWN_PAGES_BYTES, _KEPT_BYTES = 256 << 10, 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_GLIBC_MOST = 32 << 20  # where glibc's own adjusting ends

_lock = threading.Lock()
_blocks = 0  # that are entered


@contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Has the C library and Arrow keep, within the block or the decorated function, hardly anything that was freed.

    Afterwards they keep what they would keep by themselves in a process that has had large arrays.
    """
    _enter(1)
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())  # others keep what they once had
    try:
        yield
    finally:
        pa.set_memory_pool(pool)
        _enter(-1)
        return_freed_memory()


@contextmanager
def pages_kept(most_bytes: int) -> Iterator[None]:
    """Within the block, large arrays of the native core that are given back serve the next ones, up to so many bytes.

    For work on one minibatch after another: with `freed_memory_returned` alone, half of it would be clearing fresh
    pages. The system takes what it lacks.
    """
    kept = KeptPages(most_bytes)
    try:
        yield
    finally:
        del kept


def kept_memory(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Returns memory of any content, which `pages_kept` keeps for the next one when it is given back."""
    return page_memory(num_bytes) if num_bytes >= LEAST_KEPT_BYTES else np.empty(num_bytes, np.uint8)


def _enter(step: int) -> None:
    global _blocks
    with _lock:
        _blocks += step
        if _blocks == max(0, step):  # the first one in, or the last one out
            _keep(_OWN_PAGES_BYTES, _KEPT_BYTES) if _blocks else _keep(_GLIBC_MOST, 2 * _GLIBC_MOST)


def _keep(own_pages_bytes: int, kept_bytes: int) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # not musl's
        libc.mallopt(_M_MMAP_THRESHOLD, own_pages_bytes)
        libc.mallopt(_M_TRIM_THRESHOLD, kept_bytes)


def return_freed_memory() -> None:
    """Give back what is free already, between two stages."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
