"""What the page cache is told of a file: hints, which a system without them (macOS) does without."""

from __future__ import annotations

import os


def forget(descriptor: int, offset_bytes: int = 0, num_bytes: int = 0) -> None:
    """Says that these bytes are not needed again; 0 bytes are all up to the end. Writing out starts for those that are
    dirty.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset_bytes, num_bytes, os.POSIX_FADV_DONTNEED)


def read_soon(descriptor: int, offset_bytes: int, num_bytes: int) -> None:
    """Says that these bytes are needed next."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset_bytes, num_bytes, os.POSIX_FADV_WILLNEED)
