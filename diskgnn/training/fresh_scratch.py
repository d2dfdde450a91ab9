"""The folder that windows of fresh minibatches lie in: gone when the source is closed, or when the next one opens."""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from diskgnn.errors import ConfigError
from diskgnn.storage.locks import FileLock

_PREFIX = "diskgnn-fresh-"
_LOCK = ".lock"


class ScratchFolder:
    """A new folder under `parent`, locked as long as it is used: so those of killed processes can be told and deleted.

    Attributes:
        path: of the folder.

    Raises:
        ConfigError: `parent` cannot be written.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            delete_abandoned(parent)
            self.path = parent / (_PREFIX + secrets.token_hex(4))
            self._lock = _lock_of(self.path)
            self._lock.acquire()  # before the folder is there, or another process might take it for abandoned
            self.path.mkdir(mode=0o700)
        except OSError as error:
            raise ConfigError(f"cannot write under {parent}: {error.strerror}; choose another") from error

    def delete(self) -> None:
        """Remove it with all that is in it. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def delete_abandoned(parent: Path) -> None:
    """Remove the folders under `parent` that killed processes left behind."""
    for path in {found.with_name(found.name.removesuffix(_LOCK)) for found in parent.glob(f"{_PREFIX}*")}:
        lock = _lock_of(path)
        with suppress(OSError, ConfigError):  # another user's
            if lock.acquire():
                shutil.rmtree(path, ignore_errors=True)
                lock.release()


def _lock_of(path: Path) -> FileLock:
    return FileLock(path.with_name(path.name + _LOCK))
