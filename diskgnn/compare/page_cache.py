"""What the page cache holds of some files, and making it forget them: no privilege needed, other files left alone."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from diskgnn.formats.manifest import Manifest
from diskgnn.stores.locations import local


def files_read(graph: Manifest, folder: Path) -> Iterator[Path]:
    """Yields what a loader may read: the graph's files, wherever they lie, and all that was prepared in `folder`."""
    yield from (local(graph.file(name), "comparing") for name in graph.files)
    yield from (file for file in folder.rglob("*") if file.is_file())


def drop(files: Iterable[Path]) -> bool:
    """Write back and forget `files`; whether nothing of them is left. What somebody has mapped and uses stays."""
    forgotten = True
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            forgotten &= _cached_pages(descriptor) == 0
        finally:
            os.close(descriptor)
    return forgotten


def cached_bytes(file: Path) -> int:
    """Returns the bytes of `file` in the page cache, in whole pages.

    Raises:
        OSError: the kernel does not say: the file belongs to somebody else, or is not there.
    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return _cached_pages(descriptor) * mmap.PAGESIZE
    finally:
        os.close(descriptor)


def _cached_pages(descriptor: int) -> int:
    num_bytes = os.fstat(descriptor).st_size
    if num_bytes == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    resident = np.zeros(-(-num_bytes // mmap.PAGESIZE), np.uint8)
    with mmap.mmap(descriptor, num_bytes, prot=mmap.PROT_READ) as mapped:
        # A view only to learn the address: mincore looks, it touches nothing.
        view = np.frombuffer(mapped, np.uint8)
        error = libc.mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(num_bytes), ctypes.c_void_p(resident.ctypes.data)
        )
        del view
    if error != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(np.count_nonzero(resident & 1))
