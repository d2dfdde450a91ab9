"""Writes that fail: what was being written, whether it is not allowed, or the disk is full or fails, and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diskgnn.errors import ConfigError, DiskFullError, DiskGNNError, WriteError
from diskgnn.files.file_reading import FAILURES_OF_DISKS

_FORBIDDEN = (errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def raise_write_error(error: BaseException | None, path: Path, kept: str) -> None:
    """Raise another error in place of one that ended the writing of `path`, where the disk is its cause.

    Args:
        error: that was raised.
        path: what was to be written.
        kept: what is left of it, as the end of a sentence.

    Raises:
        ConfigError: it is read-only, or this user may not write there.
        DiskFullError: the disk is full.
        WriteError: it failed.
    """
    if not isinstance(error, OSError) or isinstance(error, DiskGNNError):
        return
    if error.errno == errno.EROFS:
        raise ConfigError(
            f"cannot write {path}: {path.parent} is on a read-only file system; {kept}. Choose an output in another "
            f"folder."
        ) from error
    if error.errno in _FORBIDDEN and (folder := _refusing_folder(error, path)) is not None:
        raise ConfigError(
            f"cannot write {path}: you have no permission to write to {folder} ({error.strerror}); {kept}. Have that "
            f"changed (chmod, chown), or choose an output in another folder."
        ) from error
    # ndarray.tofile says how many items it wrote, and drops errno.
    if error.errno in _FULL or (error.errno is None and "requested and" in str(error)):
        raise DiskFullError(
            f"the disk ran full while {path} was written ({error}); {kept}. Free some space or choose an output on "
            f"another disk."
        ) from error
    if error.errno in FAILURES_OF_DISKS:
        raise WriteError(
            error.errno,
            f"the disk failed while {path} was written ({error}); {kept}. See what the kernel says of it (dmesg), then "
            f"run this again or choose an output on another disk.",
        ) from error


def _refusing_folder(error: OSError, path: Path) -> Path | None:
    """Returns the folder in which something of `path` could not be written; None if it was something else."""
    if error.filename is None:
        return None
    refused, path = Path(os.fsdecode(error.filename)).absolute(), path.absolute()
    hidden = str(path.with_name(f".{path.name}."))  # what staging directories and locks begin with
    is_of_path = path.is_relative_to(refused) or refused.is_relative_to(path) or str(refused).startswith(hidden)
    return refused.parent if is_of_path else None


@contextmanager
def beginning(path: Path) -> Iterator[None]:
    """Has whatever the operating system refuses within the block say that the writing of `path` cannot begin.

    Raises:
        DiskFullError, WriteError: see `raise_write_error`.
        ConfigError: anything else: no permission, a file where a folder should be, ...
    """
    try:
        yield
    except DiskGNNError:
        raise
    except OSError as error:
        raise_write_error(error, path, "nothing is left")
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; choose an output in another folder"
        ) from error
