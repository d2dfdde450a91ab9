"""Locks between processes: a file beside what is locked, gone when nobody holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from diskgnn.errors import BusyError
from diskgnn.storage.write_errors import beginning


class FileLock:
    """An exclusive lock: the file `path`, which a killed process leaves behind unlocked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def acquire(self) -> bool:
        """Take it without waiting; False where another process, or another `FileLock` of this one, has it.

        Raises:
            OSError: the file cannot be written.
        """
        while True:
            file = self.path.open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had the lock may have removed the file between our opening and locking it.
                if self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(file.fileno())):
                    self._file = file
                    return True
            except BlockingIOError:
                file.close()
                return False
            except BaseException:
                file.close()
                raise
            file.close()

    def release(self) -> None:
        """Give it back, if it was taken, and remove the file."""
        if self._file is not None:
            with suppress(OSError):
                self.path.unlink()
            self._file.close()
            self._file = None


@contextmanager
def alone(path: Path, output: Path, busy: str) -> Iterator[None]:
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
