"""The disk space that a stage still needs, compared with what is free before anything is written.

What a killed run left of the same files has its space already. A stage says how many bytes it needs: in all, or by
file. Claims and releases of what is written then are those of `files.disk_space.DiskBudget`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from diskgnn.files.disk_space import JOURNAL, allocated_bytes, file_bytes, free_bytes, require_free_bytes
from diskgnn.work.work_folder import WorkFolder
from diskgnn.work.writer import ArtifactWriter

WHOLE_FOLDER = ("",)  # names of all files begin so


def require_space(
    folder: WorkFolder,
    needed: int | Mapping[str, int],
    what: str,
    *,
    of: Sequence[str] = WHOLE_FOLDER,
    but: Sequence[str] = (),
    exact: bool = False,
) -> None:
    """Refuses to write `what` if the disk cannot hold it. Nothing is refused to an artifact that goes to a store: its
    files go one after another. Some of its files are, once what is complete has gone and made room.

    Args:
        folder: where it is written.
        needed, of, but: see `missing_bytes`.
        what: "sorting the edges", for the message.
        exact: `needed` is what it takes, not a bound.

    Raises:
        DiskFullError: names the bytes missing.
    """
    if isinstance(folder, ArtifactWriter) and folder.outbox is not None:
        if of == WHOLE_FOLDER and not isinstance(needed, Mapping):
            return
        folder.outbox.drain()
    still_bytes = missing_bytes(folder.staging, needed, of=of, but=but)
    require_free_bytes(folder.final.parent, still_bytes, what, exact=exact, disk=folder.disk)


def spare_bytes(folder: WorkFolder, needed: int | Mapping[str, int]) -> int:
    """Returns the bytes that stay free when all that is `needed` is written; negative if it does not fit."""
    return free_bytes(folder.staging, folder.disk) - missing_bytes(folder.staging, needed)


def missing_bytes(
    folder: Path, needed: int | Mapping[str, int], *, of: Sequence[str] = WHOLE_FOLDER, but: Sequence[str] = ()
) -> int:
    """Returns the bytes that files in `folder`, which may not be there yet, still need of the disk.

    Args:
        folder: the folder.
        needed: bytes of all of them at a time; then it is negative if more than that is there. Or bytes by the
            beginning of a name, such as the name of a file: of all files that begin so.
        of: beginnings of the names of those that `needed` bytes in all are of.
        but: beginnings of the names of those among them that stay there beside them.
    """
    there = _Folder(folder, of_files=isinstance(needed, Mapping))
    if not isinstance(needed, Mapping):
        return needed - sum(map(there.taken_bytes, of)) + sum(map(there.taken_bytes, but))
    return sum(max(0, file_bytes(size) - there.taken_bytes(name)) for name, size in needed.items())


class _Folder:
    """The names of what is in a folder now, or `of_files` in it."""

    def __init__(self, path: Path, *, of_files: bool) -> None:
        self._path, self._names = path, list[str]()
        with suppress(FileNotFoundError):
            found = (each for each in path.iterdir() if not of_files or each.is_file())
            self._names = sorted(each.name for each in found if each.name != JOURNAL)  # it stays beside them

    def taken_bytes(self, beginning: str) -> int:
        """Returns the bytes that files take whose names begin so."""
        total = 0
        for name in self._names[bisect_left(self._names, beginning) :]:
            if not name.startswith(beginning):
                break
            total += allocated_bytes(self._path / name)
        return total
