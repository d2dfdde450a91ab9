"""Folders that a process works in: gone when it is done, or, if it was killed, when the next one begins there."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from diskgnn.errors import ConfigError, DiskFullError
from diskgnn.files.locks import FileLock

_LOCK = ".lock"


class ScratchFolder:
    """A new folder, locked as long as it is used: so those of killed processes can be told and deleted. As a context
    manager, it yields its path and is deleted at the end.

    Attributes:
        path: of the folder.

    Args:
        parent: where it is made; made itself where it is missing.
        prefix: of its name, before that of the machine. Folders with both that nobody uses any more are deleted: locks
            of some shared file systems hold on one machine only.
        argument: of the user, which said `parent`, for the message.

    Raises:
        ConfigError: `parent` cannot be written.
        DiskFullError: it is full.
    """

    def __init__(self, parent: Path, prefix: str, argument: str) -> None:
        prefix = f"{prefix}{socket.gethostname()}-"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _delete_abandoned(parent, prefix)
            while True:
                self.path = parent / (prefix + secrets.token_hex(4))
                self._lock = _lock_of(self.path)
                # Before the folder is there: another process might take it for abandoned, and may look at it just now.
                if self._lock.acquire():
                    break
            self.path.mkdir(mode=0o700)
            self._process = os.getpid()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(
                    f"{argument}: {parent} on {socket.gethostname()} is full ({error.strerror}): free some space "
                    f"there, or choose another folder"
                ) from error
            raise ConfigError(
                f"{argument}: cannot write in {parent} ({error.strerror}); choose another folder"
            ) from error

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.delete()

    def delete(self) -> None:
        """Removes it with all that is in it, unless this is a child by fork of whose it is. Idempotent."""
        if os.getpid() != self._process:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _delete_abandoned(parent: Path, prefix: str) -> None:
    for path in {found.with_name(found.name.removesuffix(_LOCK)) for found in parent.glob(f"{prefix}*")}:
        lock = _lock_of(path)
        with suppress(OSError, ConfigError):  # another user's
            if lock.acquire():
                shutil.rmtree(path, ignore_errors=True)
                lock.release()


def _lock_of(path: Path) -> FileLock:
    return FileLock(path.with_name(path.name + _LOCK))
