"""Where an artifact is made: a path of this machine, and the store that its files go to meanwhile, if there is one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from diskgnn.paths import PathLike
from diskgnn.storage.disk_space import DiskBudget
from diskgnn.storage.object_stores import Location, StoredPath


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
        """Where it is found when it is complete."""
        return self.target or self.path

    @property
    def staging(self) -> Path:
        """Where an `ArtifactWriter` has what it has not published yet."""
        return staging_of(self.path.resolve())

    def budget(self, disk: int | str | None) -> DiskBudget:
        """Returns the budget of disk for making one artifact: bytes, '100GiB', or None for what is free."""
        return DiskBudget(disk, [self.staging])


def staging_of(path: Path) -> Path:
    """Returns where an `ArtifactWriter` of `path` has what it has not published yet."""
    return path.with_name(f".{path.name}.partial")
