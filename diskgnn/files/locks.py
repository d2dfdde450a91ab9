"""Locks between processes: a file beside what is locked, gone when nobody holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diskgnn.errors import BusyError
from diskgnn.files.own_files import open_lock_file
from diskgnn.files.write_errors import beginning


class FileLock:
    """An exclusive lock: the file `path`, which a killed process leaves behind unlocked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take it without waiting; False where another process, or another `FileLock` of this one, has it.

        Raises:
            OSError: the file cannot be written.
            ConfigError: see `open_lock_file`.
        """
        while True:
            descriptor = open_lock_file(self.path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had the lock may have removed the file between our opening and locking it.
                with suppress(FileNotFoundError):
                    if os.path.samestat(self.path.lstat(), os.fstat(descriptor)):
                        self._descriptor = descriptor
                        return True
            except BlockingIOError:
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def release(self) -> None:
        """Give it back, if it was taken, and remove the file."""
        if self._descriptor is not None:
            with suppress(OSError):
                self.path.unlink()
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __del__(self) -> None:
        # Ctrl-C between taking a lock and the block that gives it back ends no notebook and no worker of Ray.
        if self._descriptor is not None:
            os.close(self._descriptor)


@contextmanager
def hold_lock(path: Path, output: Path, busy: str) -> Iterator[None]:
    """Hold the lock `path` within the block.

    Args:
        path: of the lock.
        output: what is written within the block: it is named where the lock cannot be.
        busy: what to say where somebody else has it.

    Raises:
        BusyError: another process has it, or another lock of this one.
        ConfigError, DiskFullError, WriteError: the file cannot be written, see `beginning`.
    """
    lock = FileLock(path)
    with beginning(output):
        acquired = lock.acquire()
    if not acquired:
        raise BusyError(busy)
    try:
        yield
    finally:
        lock.release()
