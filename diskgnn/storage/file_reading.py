"""Reads whose failure is named: which file, where in it, and whether the disk failed or the file is too short.

Inputs of stages are read, not mapped: a disk that fails below a memory map ends the process without a word (SIGBUS).
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ReadError

Buffer = TypeVar("Buffer", bound="bytearray | memoryview")

READ_ATTEMPTS = 4  # of a read that the disk fails; native reads are made as often
_FAILURES_OF_DISKS = (errno.EIO, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for reading a file.

    Raises:
        ReadError: the disk failed.
        OSError: it cannot be opened for another reason.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _FAILURES_OF_DISKS:
            raise ReadError(error.errno, f"cannot open {path}: {os.strerror(error.errno)}") from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_into(descriptor: int, offset: int, buffer: bytearray | memoryview, path: Path) -> int:
    """Fill `buffer` from byte `offset` on; bytes read, fewer than it holds only at the end of the file.

    Raises:
        ReadError: the disk failed at each of READ_ATTEMPTS attempts.
    """
    view = memoryview(buffer).cast("B")
    filled, attempts = 0, 1
    while filled < len(view):
        try:
            read = os.preadv(descriptor, [view[filled:]], offset + filled)
        except OSError as error:
            if error.errno not in _FAILURES_OF_DISKS:
                raise
            if attempts == READ_ATTEMPTS:
                where = f"reading {len(view) - filled} bytes at offset {offset + filled} of {path}"
                raise ReadError(error.errno, f"{where}: {os.strerror(error.errno)}") from error
            attempts += 1
            continue
        if not read:
            break
        filled += read
    return filled


def fill(descriptor: int, offset: int, buffer: Buffer, path: Path) -> Buffer:
    """`buffer`, filled from byte `offset` on.

    Raises:
        ReadError: see `read_into`.
        ArtifactError: the file ends early.
    """
    expected = memoryview(buffer).nbytes
    if (found := read_into(descriptor, offset, buffer, path)) != expected:
        raise ArtifactError(
            f"{path} ends early: expected {expected} bytes at offset {offset}, found {found}; it was truncated"
        )
    return buffer


def read_array(path: Path, dtype: npt.DTypeLike, count: int, offset_bytes: int) -> npt.NDArray[Any]:
    """[count] numbers that lie in a file.

    Raises:
        ReadError, ArtifactError: see `fill`.
        OSError: it cannot be opened.
    """
    numbers = np.empty(count, dtype)
    with opened(path) as descriptor:
        fill(descriptor, offset_bytes, numbers.view(np.uint8).data, path)
    return numbers


def read_whole(path: Path) -> bytearray:
    """All bytes of a small file.

    Raises:
        ReadError, ArtifactError: see `fill`.
        OSError: it cannot be opened.
    """
    with opened(path) as descriptor:
        return fill(descriptor, 0, bytearray(os.fstat(descriptor).st_size), path)


class ReadableFile(io.RawIOBase):
    """A file for libraries that read by themselves, such as Arrow.

    Raises:
        ReadError: the disk failed, while it is opened or read.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._position = path, 0
        self._opened = ExitStack()
        self._descriptor = self._opened.enter_context(opened(path))

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Where to read next; see `io.IOBase.seek`."""
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: os.fstat(self._descriptor).st_size}
        self._position = bases[whence] + offset
        return self._position

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`; see `read_into`."""
        read = read_into(self._descriptor, self._position, buffer, self._path)
        self._position += read
        return read

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._opened.close()
        super().close()
