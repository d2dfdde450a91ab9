"""Putting a directory in the place of another one, atomically where the file system can."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from diskgnn.files import faults


def exchange(one: Path, other: Path) -> Path:
    """Gives a directory the name of the `other` one. Returns where that one is then, to be removed."""
    try:
        faults.point("artifact.exchange")
        _rename_exchange(one, other)
        return one
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
    aside = aside_of(other)
    other.rename(aside)
    faults.point("artifact.aside")
    one.rename(other)
    return aside


def aside_of(path: Path) -> Path:
    """Returns where a directory is from when it lost its name until the one that replaces it has that, and is durable:
    whoever is killed meanwhile leaves it there."""
    return path.with_name(f".{path.name}.replaced")


def _rename_exchange(one: Path, other: Path) -> None:
    """Makes the system call. Raises OSError: ENOSYS where the C library has none."""
    libc, at_fdcwd, rename_exchange = ctypes.CDLL(None, use_errno=True), -100, 2
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(other))
    if libc.renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
