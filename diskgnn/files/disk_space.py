"""Disk space: what is free, and what a command may take of it. Asked for before anything is written."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from diskgnn.errors import DiskFullError
from diskgnn.files import faults
from diskgnn.units import format_size, parse_size

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of Linux's fallocate
_PAGE_BYTES = 4096  # files take whole pages
JOURNAL = "journal.jsonl"  # in a work folder: what is being made, and what of it is finished
NOTES = (".even.npz", ".odd.npz")  # beside it: how far a step is, in files that take turns; their names end so
OWN_BYTES = 64 << 10  # of a budget, for journals and locks; half of it stays for a journal that takes more than half
_claiming = threading.Lock()  # of all budgets, so that these can be pickled


def _no_relief() -> bool:
    return False


class DiskBudget:
    """Limits what the files of a command take together at any time, scratch included.

    Whoever writes claims the bytes first, so that the budget is never exceeded, not even for a moment.

    Example:
        >>> disk = DiskBudget("1GiB", [Path("packed")])
        >>> disk.claim(4096)
    """

    def __init__(self, size: int | str | None, folders: Iterable[Path]) -> None:
        """Allows at most `size`, such as '100GiB' (None is no bound), for all that is in `folders`.

        Raises:
            ConfigError: no size.
        """
        self.num_bytes = None if size is None else parse_size(size)
        self._folders, self._file_bytes, self._journal_bytes = tuple(folders), 0, 0
        self._relieve: Callable[[], bool] = _no_relief
        self._whole_bytes: int | None = None  # of the budget that this is a part of
        self.look()

    def divided(self, folders: Sequence[Iterable[Path]]) -> list[DiskBudget]:
        """Returns budgets for several that write at once, maybe on several machines, each to its own `folders`.

        Each may have what is there and an equal part of what is left. So all together keep to this one, and none has to
        ask another.
        """
        if self.num_bytes is None:
            return [self] * len(folders)
        self.look()
        parts = [DiskBudget(0, each) for each in folders]
        for part in parts:
            part.num_bytes = part._file_bytes + part._journal_bytes + (self.left_bytes or 0) // len(parts)
            part._whole_bytes = self.num_bytes
        return parts

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_relieve": _no_relief}  # another process waits for nothing of this one

    def relieved_by(self, relieve: Callable[[], bool] | None) -> None:
        """Has claims of more than is left wait, from now on, as long as `relieve` gives something back and says so."""
        if self.num_bytes is not None:
            self._relieve = relieve or _no_relief

    @contextmanager
    def relieved(self, relieve: Callable[[], bool]) -> Iterator[None]:
        """Asks `relieve` before what `relieved_by` names, within the block."""
        if self.num_bytes is None:
            yield
            return
        before = self._relieve
        self._relieve = lambda: relieve() or before()
        try:
            yield
        finally:
            self._relieve = before

    def look(self) -> None:
        """Ask the disk what is taken. For moments at which nobody writes; what is removed meanwhile counts once."""
        if self.num_bytes is not None:
            with _claiming:
                self._journal_bytes = sum(folder_bytes(folder, (JOURNAL, *NOTES)) for folder in self._folders)
                self._file_bytes = sum(allocated_bytes(folder) for folder in self._folders) - self._journal_bytes

    def count(self, folder: Path) -> None:
        """Counts what is in one more folder, from now on."""
        if self.num_bytes is not None and folder not in self._folders:
            with _claiming:
                self._folders += (folder,)
                self._file_bytes += allocated_bytes(folder)

    def claim(self, num_bytes: int, what: str = "the next piece", *, is_journal: bool = False) -> None:
        """Say that so many bytes, of `what`, are about to be written. A journal, or a note beside it, may take what is
        set aside for journals: it grows when everything else waits for that, and then gives something back.

        Raises:
            DiskFullError: that would be more than may be taken.
        """
        if self.num_bytes is None:
            return
        while not self._take(num_bytes, is_journal=is_journal):
            if not self._relieve():  # unless another thread has given something back since
                self.require(num_bytes, what, exact=True)

    def _take(self, num_bytes: int, *, is_journal: bool) -> bool:
        """Returns True if there was room, which is taken."""
        with _claiming:
            own_bytes = self._journal_bytes if is_journal else self._own_bytes
            if self.num_bytes is not None and self._file_bytes + own_bytes + num_bytes > self.num_bytes:
                return False
            if is_journal:
                self._journal_bytes += num_bytes
            else:
                self._file_bytes += num_bytes
            return True

    def release(self, num_bytes: int, *, is_journal: bool = False) -> None:
        """Say that so many bytes that were claimed are removed."""
        with _claiming:
            if is_journal:
                self._journal_bytes -= num_bytes
            else:
                self._file_bytes -= num_bytes

    def remove(self, path: Path, num_bytes: int | None = None) -> None:
        """Remove a file or folder that may be there, and was claimed: of so many bytes, or as many as it has."""
        with _claiming:
            self._file_bytes -= allocated_bytes(path) if num_bytes is None else num_bytes
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @property
    def left_bytes(self) -> int | None:
        """Returns what may still be taken; None without a bound."""
        return None if self.num_bytes is None else max(0, self.num_bytes - self._file_bytes - self._own_bytes)

    @property
    def _own_bytes(self) -> int:
        """Returns what journals and locks take, or may."""
        return max(OWN_BYTES, self._journal_bytes + OWN_BYTES // 2)

    def require(self, needed_bytes: int, what: str, *, exact: bool = False) -> None:
        """Refuse to write `what`, which needs exactly or at least so many bytes more.

        Raises:
            DiskFullError: that is more than may be taken; names the bytes missing.
        """
        needed_in_all_bytes = self._file_bytes + self._own_bytes + needed_bytes
        if self.num_bytes is None or needed_in_all_bytes <= self.num_bytes:
            return
        raise DiskFullError(
            f"disk: {what} needs {_figure(needed_bytes, exact)} beside what is taken by files of this command "
            f"({self._file_bytes} bytes) and set aside for journals and locks ({self._own_bytes} bytes), "
            f"{needed_in_all_bytes} bytes in all; {self.num_bytes} bytes are allowed"
            f"{f', a part of {self._whole_bytes}' if self._whole_bytes else ''}: "
            f"{needed_in_all_bytes - self.num_bytes} bytes are missing. "
            f"Allow more with `disk`; the same command then goes on with what is complete."
        )


UNLIMITED = DiskBudget(None, ())


def free_bytes(folder: Path, disk: DiskBudget = UNLIMITED) -> int:
    """Returns the bytes that a file written under `folder` (or its nearest existing parent) may take."""
    while not folder.exists():
        folder = folder.parent
    free = faults.reading("disk.free", shutil.disk_usage(folder).free)
    return free if disk.left_bytes is None else min(free, disk.left_bytes)


def require_free_bytes(
    folder: Path, needed_bytes: int, what: str, *, exact: bool = False, disk: DiskBudget = UNLIMITED
) -> None:
    """Refuse to start writing `what`, which needs exactly or at least so many bytes, when the disk cannot hold it.

    Raises:
        DiskFullError: fewer than `needed_bytes` are free, or may be taken; names the bytes missing.
    """
    disk.require(needed_bytes, what, exact=exact)
    free = free_bytes(folder)
    if free < needed_bytes:
        raise DiskFullError(
            f"{what} needs {_figure(needed_bytes, exact)} under {folder}, but only {format_size(free)} are free: "
            f"{needed_bytes - free} bytes are missing. Free some space or choose an output on another disk."
        )


def allocated_bytes(path: Path) -> int:
    """Returns the bytes that a file has on the disk already; 0 if it is not there. Of a folder, those of its files."""
    if path.is_dir():
        return folder_bytes(path)
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def folder_bytes(folder: Path, endings: tuple[str, ...] = ("",)) -> int:
    """Returns the bytes of disk that the files in `folder`, which may come and go, take; or those whose names end
    so."""
    total = 0
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    total += folder_bytes(Path(entry), endings)
                elif entry.name.endswith(endings):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def reserve(path: Path, num_bytes: int, claim: Callable[[int], None]) -> None:
    """Creates the file `path` if it is missing, and has it be `num_bytes` long, with disk space reserved for them.

    Raises:
        DiskFullError: that is more than may be claimed.
        OSError: the disk has no room for it.
    """
    claim(max(0, file_bytes(num_bytes) - allocated_bytes(path)))
    path.touch()
    with path.open("r+b") as file:
        if path.stat().st_size > num_bytes:
            file.truncate(num_bytes)
        try:
            faults.point("disk.reserve")
            if not hasattr(os, "posix_fallocate"):  # macOS
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(file.fileno(), num_bytes)  # a file system without fallocate: the space was checked


def punch(path: Path, offset: int, num_bytes: int) -> None:
    """Give the space of a part of a file back; it reads as zeros then. Nothing where systems cannot do that."""
    if (fallocate := getattr(ctypes.CDLL(None), "fallocate", None)) is None:
        return
    with path.open("r+b") as file:
        fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(num_bytes))


def file_bytes(num_bytes: int) -> int:
    """Returns what a file of so many bytes takes of the disk, in whole pages."""
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _figure(num_bytes: int, exact: bool) -> str:
    return f"{'exactly' if exact else 'at least'} {format_size(num_bytes)} ({num_bytes} bytes)"
