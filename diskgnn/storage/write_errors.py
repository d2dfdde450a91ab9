"""Writes that fail: what was being written, whether the disk is full or fails, and what to do."""

from __future__ import annotations

import errno
from pathlib import Path

from diskgnn.errors import DiskFullError, DiskGNNError, WriteError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILING = (errno.EIO, errno.EROFS, errno.ETIMEDOUT, errno.ENXIO, errno.ENODEV, errno.ESTALE)


def write_error(error: BaseException | None, path: Path, kept: str) -> DiskFullError | WriteError | None:
    """What to raise in place of an error that ended the writing of `path`; None where the disk is not its cause.

    Args:
        error: that was raised.
        path: what was to be written.
        kept: what is left of it, as the end of a sentence.
    """
    if not isinstance(error, OSError) or isinstance(error, DiskGNNError):
        return None
    # ndarray.tofile says how many items it wrote, and drops errno.
    if error.errno in _FULL or (error.errno is None and "requested and" in str(error)):
        return DiskFullError(
            f"the disk ran full while {path} was written ({error}); {kept}. Free some space or choose an output on "
            f"another disk."
        )
    if error.errno in _FAILING:
        return WriteError(
            error.errno,
            f"the disk failed while {path} was written ({error}); {kept}. See what the kernel says of it (dmesg), then "
            f"run this again or choose an output on another disk.",
        )
    return None
