"""Reads whose failure is named: which file, where in it, and whether the disk failed or the file is too short.

A file lies on this machine, or on an object store: then what is opened is a `RemoteFile` in place of a descriptor.
Inputs of stages are read, not mapped: a disk that fails below a memory map ends the process without a word (SIGBUS).
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn._native import LEAST_KEPT_BYTES, page_memory
from diskgnn.errors import ArtifactError, ReadError
from diskgnn.files import cache_hints
from diskgnn.stores.locations import Location, StoredPath
from diskgnn.stores.remote_files import RemoteFile
from diskgnn.units import format_size

Opened = int | RemoteFile  # int: a descriptor
Buffer = TypeVar("Buffer", bound="bytearray | memoryview")

_PIECE_BYTES = 1 << 20
READ_ATTEMPTS = 4  # of a read that the disk fails; native reads are made as often
# What drives, links and file servers that fail say; direct reads get the block layer's own errors, not EIO alone:
# ENODATA of a sector that cannot be read, EILSEQ of one whose protection does not fit, EREMOTEIO, ENOLINK and EBADE of
# a target. EUCLEAN and EBADMSG are file systems that find themselves damaged.
_NAMES_OF_FAILURES = (
    "EIO", "ETIMEDOUT", "ENXIO", "ENODEV", "ENOMEDIUM", "ENODATA", "EILSEQ", "EREMOTEIO", "ENOLINK", "EBADE", "EUCLEAN",
    "EBADMSG", "ESTALE", "ENOTCONN", "ECONNABORTED", "ESHUTDOWN",
)  # fmt: skip
FAILURES_OF_DISKS: tuple[int, ...] = tuple(getattr(errno, name) for name in _NAMES_OF_FAILURES if hasattr(errno, name))
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_FAILURES_OF_READS = (*FAILURES_OF_DISKS, errno.EAGAIN, errno.EBUSY)


def raise_if_disk_failed(error: BaseException, path: Location) -> None:
    """Raise what is to be told in place of an error of another library, where a disk or a store is its cause.

    Raises:
        ReadError: it is.
    """
    for each in (error, error.__context__):  # zipfile raises "not a zip file" while it handles a read that failed
        if isinstance(each, ReadError):
            raise each from None
    if isinstance(error, OSError) and error.errno in _FAILURES_OF_READS:
        raise ReadError(error.errno, f"reading {path}: {os.strerror(error.errno)}") from error


def is_file(path: Location) -> bool:
    """Returns True if a file is there.

    Raises:
        ReadError: the disk or the store failed, so that nobody knows.
        OSError: it may not be looked at.
    """
    if isinstance(path, StoredPath):
        return path.is_file()
    try:
        return stat.S_ISREG(path.stat().st_mode)  # Path.is_file calls whatever fails "no" from Python 3.13 on
    except ValueError:  # a zero byte in its name
        return False
    except OSError as error:
        if error.errno in _NO_FILE:
            return False
        raise_if_disk_failed(error, path)
        raise


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yields a descriptor for reading a file of this machine.

    Raises:
        ReadError: the disk failed.
        OSError: it cannot be opened for another reason.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _FAILURES_OF_READS:
            raise ReadError(error.errno, f"cannot open {path}: {os.strerror(error.errno)}") from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def reading(path: Location, *, front_to_back: bool = False) -> AbstractContextManager[Opened]:
    """Returns a file of this machine or of a store, for reading; `front_to_back` asks a store for more before it is
    wanted.

    Raises:
        ReadError: the disk or the store failed.
        OSError: it cannot be opened for another reason.
    """
    return RemoteFile(path, front_to_back=front_to_back) if isinstance(path, StoredPath) else opened(path)


def size_of(file: Opened) -> int:
    """Returns the bytes of what is opened."""
    return file.size if isinstance(file, RemoteFile) else os.fstat(file).st_size


def forget(file: Opened, offset: int, num_bytes: int) -> None:
    """Says that these bytes need not stay in the page cache."""
    if isinstance(file, int):
        cache_hints.forget(file, offset, num_bytes)


def read_into(file: Opened, offset: int, buffer: bytearray | memoryview, path: Location) -> int:
    """Fill `buffer` from byte `offset` on; bytes read, fewer than it holds only at the end of the file.

    Raises:
        ReadError: the disk failed at each of READ_ATTEMPTS attempts, or the store did.
    """
    view = memoryview(buffer).cast("B")
    if isinstance(file, RemoteFile):
        return file.read_into(offset, view)
    filled, attempts = 0, 1
    while filled < len(view):
        try:
            read = os.preadv(file, [view[filled:]], offset + filled)
        except OSError as error:
            if error.errno not in _FAILURES_OF_READS:
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


def fill(file: Opened, offset: int, buffer: Buffer, path: Location) -> Buffer:
    """Returns `buffer`, filled from byte `offset` on.

    Raises:
        ReadError: see `read_into`.
        ArtifactError: the file ends early.
    """
    expected = memoryview(buffer).nbytes
    if (found := read_into(file, offset, buffer, path)) != expected:
        raise ArtifactError(
            f"{path} ends early: expected {expected} bytes at offset {offset}, found {found}; it was truncated"
        )
    return buffer


def pieces_of(file: Opened, path: Location, begin: int = 0) -> Iterator[memoryview]:
    """Yields all bytes from `begin` on, front to back, in pieces of a MiB that are valid until the next one.

    Raises:
        ReadError: see `read_into`.
    """
    offset, view = begin, memoryview(bytearray(_PIECE_BYTES))
    while read := read_into(file, offset, view, path):
        yield view[:read]
        offset += read


def read_array(path: Location, dtype: npt.DTypeLike, count: int, offset_bytes: int) -> npt.NDArray[Any]:
    """Returns [count] numbers that lie in a file.

    Raises:
        ReadError, ArtifactError: see `fill`.
        OSError: it cannot be opened.
    """
    numbers = np.empty(count, dtype)
    with reading(path) as file:
        fill(file, offset_bytes, numbers.view(np.uint8).data, path)
    return numbers


def read_whole(path: Location, most_bytes: int = sys.maxsize) -> bytearray:
    """Returns all bytes of a small file.

    Raises:
        ValueError: it has more than `most_bytes`.
        ReadError, ArtifactError: see `fill`.
        OSError: it cannot be opened.
    """
    with reading(path) as file:
        if (num_bytes := size_of(file)) > most_bytes:
            raise ValueError(f"larger than {format_size(most_bytes)}")
        return fill(file, 0, bytearray(num_bytes), path)


class ReadableFile(io.RawIOBase):
    """A file for libraries that read by themselves, such as Arrow.

    Raises:
        ReadError: the disk failed, while it is opened or read.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Location, *, front_to_back: bool = False) -> None:
        super().__init__()
        self._path, self._position = path, 0
        self.error: ReadError | None = None  # of a read, which some libraries lose
        self._opened = ExitStack()
        self._file = self._opened.enter_context(reading(path, front_to_back=front_to_back))

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Returns where to read next; see `io.IOBase.seek`."""
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: size_of(self._file)}
        self._position = bases[whence] + offset
        return self._position

    def tell(self) -> int:
        """Returns where the next byte is read."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`; see `read_into`."""
        try:
            read = read_into(self._file, self._position, buffer, self._path)
        except ReadError as error:
            self.error = error
            raise
        self._position += read
        return read

    def read_buffer(self, num_bytes: int) -> memoryview:
        """Returns the next `num_bytes`, fewer at the end: what Arrow asks for in place of `read`, which would copy
        them."""
        large = num_bytes >= LEAST_KEPT_BYTES
        buffer = page_memory(num_bytes).data if large else memoryview(bytearray(num_bytes))
        return buffer[: self.readinto(buffer)]

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._opened.close()
        super().close()


@contextmanager
def buffered(path: Location) -> Iterator[io.BufferedReader[ReadableFile]]:
    """Yields a file for libraries such as torch, which raise something else where a read fails.

    Raises:
        ReadError: the disk failed, whatever was raised in the block.
        OSError: it cannot be opened.
    """
    with io.BufferedReader(found := ReadableFile(path)) as file:
        try:
            yield file
        except Exception as error:
            if found.error is not None:
                raise found.error from error
            raise
