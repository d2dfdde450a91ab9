"""Places where artifacts are made: a path of this machine, and maybe a store that the files go to meanwhile."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from diskgnn.errors import ConfigError
from diskgnn.files.disk_space import DiskBudget
from diskgnn.files.locks import hold_lock
from diskgnn.files.own_files import private_folder, require_own_folder
from diskgnn.paths import PathLike, resolved
from diskgnn.stores.locations import Location, StoredPath


@dataclass(frozen=True)
class Destination:
    """An output, or a folder of outputs. Functions that take the path of an output take one of these, too."""

    path: Path  # absolute
    target: StoredPath | None = None  # where files go as they are complete
    sending_bytes: int = 0  # of memory, that sending takes: budgets of memory count them

    @staticmethod
    def of(out: PathLike) -> Destination:
        """Returns what an argument means: a path of this machine, or the destination that it is."""
        return out if isinstance(out, Destination) else Destination(Path(out).absolute())

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Destination:
        return replace(self, path=self.path / name, target=None if self.target is None else self.target / name)

    @property
    def there(self) -> Location:
        """Returns where it is found when it is complete."""
        return self.target or self.path

    @property
    def staging(self) -> Path:
        """Returns where an `ArtifactWriter` has what it has not published yet."""
        return staging_of(resolved(self.path))

    def budget(self, disk: int | str | None) -> DiskBudget:
        """Returns the budget of disk for making one artifact: bytes, '100GiB', or None for what is free."""
        return DiskBudget(disk, [self.staging])


def staging_of(path: Path) -> Path:
    """Returns where an `ArtifactWriter` of `path` has what it has not published yet.

    Raises:
        ConfigError: `path` is the root of all folders, beside which nothing can be.
    """
    if not path.name:
        raise ConfigError(f"cannot write {path}: choose a folder in it")
    return path.with_name(f".{path.name}.partial")


def lock_of(path: Path) -> Path:
    """Returns the lock of whoever makes `path`, or changes what is there, at a time."""
    return staging_of(path).with_suffix(".lock")


def writing_alone(path: Path) -> AbstractContextManager[None]:
    """Holds the lock of `path` within the block, see `hold_lock`."""
    return hold_lock(lock_of(path), path, f"another process is writing {path} now; wait for it or stop it")


def scratch_of(target: StoredPath) -> Path:
    """Returns the folder of this machine in which what goes to `target` is made: in TMPDIR, the same in every run.

    Raises:
        ConfigError: somebody else made the folder of this user that it lies in, see `require_own_folder`.
    """
    of_user = Path(tempfile.gettempdir()) / f"diskgnn-{os.geteuid()}"
    require_own_folder(of_user)
    named = hashlib.blake2b(target.url.encode(), digest_size=8).hexdigest()
    return of_user / named / (target.name or "root")


def make_scratch(target: StoredPath) -> Path:
    """Makes the folder that `scratch_of` a target lies in, for this user alone.

    Returns:
        What `scratch_of` returns.

    Raises:
        ConfigError: see `private_folder`.
    """
    scratch = scratch_of(target)
    private_folder(scratch.parents[1])
    private_folder(scratch.parent)
    return scratch
