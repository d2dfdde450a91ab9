"""Swapping two directories, atomically where the file system can."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

from diskgnn.files import faults


def exchange(one: Path, other: Path) -> None:
    """Swaps two directories of one file system."""
    try:
        faults.point("artifact.exchange")
        _rename_exchange(one, other)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        aside = other.with_name(f".{other.name}.old")
        shutil.rmtree(aside, ignore_errors=True)
        other.rename(aside)
        one.rename(other)
        aside.rename(one)


def _rename_exchange(one: Path, other: Path) -> None:
    """The system call. Raises OSError: ENOSYS where the C library has none."""
    libc, at_fdcwd, rename_exchange = ctypes.CDLL(None, use_errno=True), -100, 2
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(other))
    if libc.renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
