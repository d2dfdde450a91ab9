"""Reserves disk space before it is written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.files import faults
from diskgnn.files.disk_space import UNLIMITED, DiskBudget, allocated_bytes, file_bytes


def reserve(path: Path, num_bytes: int, disk: DiskBudget = UNLIMITED) -> None:
    """Creates the file `path` if it is missing, and has it be `num_bytes` long, with disk space reserved for them.

    Raises:
        DiskFullError: that is more than what is left of `disk`.
        OSError: the disk has no room for it.
    """
    disk.claim(max(0, file_bytes(num_bytes) - allocated_bytes(path)))
    path.touch()
    with path.open("r+b") as file:
        if path.stat().st_size > num_bytes:
            file.truncate(num_bytes)
        try:
            faults.point("disk.reserve")
            if not hasattr(os, "posix_fallocate"):  # macOS
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(file.fileno(), num_bytes)  # a file system without fallocate: the space was checked


def scratch_pages(path: Path, num_pages: int, disk: DiskBudget = UNLIMITED) -> npt.NDArray[np.uint8]:
    """Maps a scratch file of one 4 KiB page for each extent, as [num_pages * 4096] bytes.

    The kernel may write these pages to disk, so their number is not limited by memory.
    """
    reserve(path, num_pages * DIRECT_ALIGNMENT, disk)
    return np.memmap(path, np.uint8, "r+")
