"""Writes that fail: what was being written, whether the disk is full or fails, and what to do."""

from __future__ import annotations

import errno
from pathlib import Path

from diskgnn.errors import ConfigError, DiskFullError, DiskGNNError, WriteError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILING = (errno.EIO, errno.ETIMEDOUT, errno.ENXIO, errno.ENODEV, errno.ESTALE)


def raise_write_error(error: BaseException | None, path: Path, kept: str) -> None:
    """Raise another error in place of one that ended the writing of `path`, where the disk is its cause.

    Args:
        error: that was raised.
        path: what was to be written.
        kept: what is left of it, as the end of a sentence.

    Raises:
        ConfigError: it is read-only.
        DiskFullError: the disk is full.
        WriteError: it failed.
    """
    if not isinstance(error, OSError) or isinstance(error, DiskGNNError):
        return
    if error.errno == errno.EROFS:
        raise ConfigError(
            f"cannot write {path}: {path.parent} is read-only ({error.strerror}); {kept}. Choose an output in another "
            f"folder."
        ) from error
    # ndarray.tofile says how many items it wrote, and drops errno.
    if error.errno in _FULL or (error.errno is None and "requested and" in str(error)):
        raise DiskFullError(
            f"the disk ran full while {path} was written ({error}); {kept}. Free some space or choose an output on "
            f"another disk."
        ) from error
    if error.errno in _FAILING:
        raise WriteError(
            error.errno,
            f"the disk failed while {path} was written ({error}); {kept}. See what the kernel says of it (dmesg), then "
            f"run this again or choose an output on another disk.",
        ) from error
