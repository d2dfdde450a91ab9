"""A work folder: where a stage's units leave their files until these are published, with its lock and its journal.

It is a hidden sibling of the output. Whoever is killed leaves it; the next run that makes the same goes on with the
files that its journal names, and that are still what they were.

One word for each thing, in all of this room:

| word | what happens |
|---|---|
| complete | all of a file is written; steps and units are *finished* |
| add | a complete file is registered: its length and checksum are known |
| note | what a step found is put down, for the next commit; the journal keeps it until the next note of the step |
| commit | files are made durable, then the journal says so: what a kill cannot cost any more |
| adopt | a file that a killed run had complete is registered, if it is still what it was |
| consume | nobody needs a file any more: it is removed with the commit of what was made of it |
| forget | a note is true no more |
| restart | a step, or all steps, are made again, since files of theirs are damaged |
| claim | bytes of the disk budget are taken, before they are written |
| send | a file that nobody needs here goes to the store, after its commit |
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import BusyError, DiskGNNError
from diskgnn.files import faults
from diskgnn.files.checked_files import checksum_file, sync
from diskgnn.files.destination import lock_of, staging_of
from diskgnn.files.disk_space import JOURNAL, UNLIMITED, DiskBudget, allocated_bytes
from diskgnn.files.locks import FileLock
from diskgnn.files.own_files import require_own_folder
from diskgnn.files.write_errors import beginning, raise_write_error
from diskgnn.formats.manifest_document import FileEntry
from diskgnn.work.journal import Journal

if TYPE_CHECKING:
    from typing_extensions import Self

State = dict[str, npt.NDArray[Any]]
FINISHED = "finished"  # in the state of a step that is: names of the files that it completed

# Waiting for the disk takes 10 to 30 ms. After so many bytes, and at most this often, nobody notices that. Slow steps
# do not wait for as many bytes.
_COMMIT_BYTES = 512 << 20
_LEAST_SECONDS, _MOST_SECONDS = 2, 10
# Files that wait for a commit to be removed take at most so much disk beside what is in use.
CONSUMED_BYTES = 128 << 20


@dataclass(frozen=True)
class Note:
    """A step notes this for the run after a kill."""

    state: State
    files: Sequence[str] = ()  # files that hold what the state says; they are made durable first
    complete: Sequence[str] = ()  # files that are registered


class WorkFolder:
    """The work folder of an output. Use as a context manager: it holds the lock within the block.

    Leaving it without an output that was published removes it, unless it is `resumable` and something is finished.

    Args:
        final: the output, a file or a directory.
        making: what is made, as JSON; what a killed run left of something else is removed.
        resumable: another run may go on with what this one leaves.
        disk: of which all that is written here is claimed.

    Raises:
        BusyError: another process is making the same output.
        ConfigError: another user made the folder, see `require_own_folder`.
    """

    def __init__(self, final: Path, making: Any, *, resumable: bool = True, disk: DiskBudget = UNLIMITED) -> None:
        self.final, self.staging = final, staging_of(final)
        self.disk = disk
        self._resumable, self._published = resumable, False
        self._lock = FileLock(lock_of(final))
        self._journal = Journal(self.staging / JOURNAL, making, disk)
        self.files: dict[str, FileEntry] = {}  # registered: what this run wrote or adopted, and is there
        # Not committed: what is to be noted, by name; files of units; files to be removed after that, and their bytes.
        self._pending: dict[str, Note] = {}
        self._complete: list[str] = []
        self._consumed: dict[str, int] = {}
        self._kept: list[Path] = []  # artifacts that are made in this folder, and their own work folders
        self._committing, self._is_committing = threading.RLock(), False
        self._handled_bytes, self._committed_seconds = 0, time.monotonic()

    def __enter__(self) -> Self:
        with beginning(self.final):
            self.final.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.acquire():
                raise BusyError(f"another process is writing {self.final} now; wait for it or stop it")
        try:
            require_own_folder(self.staging)
            self._begin()
            if self._resumable and self._journal.read():
                self.disk.look()
            else:
                self.restart()
        except BaseException as error:
            self._end(keeps=True)
            with suppress(OSError):  # if it is empty, as on a disk that has no room for a journal
                self.staging.rmdir()
            self._lock.release()
            raise_write_error(error, self.final, "nothing is left")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop()
        try:
            # Where nothing was worth a commit yet, an error leaves nothing.
            if (self._complete or self._has_something) and isinstance(error, Exception | KeyboardInterrupt):
                with suppress(OSError, DiskGNNError):  # the first error is the one to tell
                    self.commit()  # what is finished is worth keeping
            elif error is None and self._resumable and not self._published:
                self.commit()  # for whoever goes on with it, as packing does with what was placed
        except BaseException as failed:
            error = failed
            raise
        finally:
            keeps = self._resumable and self._has_something
            self._end(keeps=keeps)
            if not self._published and not keeps:
                shutil.rmtree(self.staging, ignore_errors=True)
            self._lock.release()
            kept = "what is complete was kept: the same command goes on with it" if keeps else "nothing is left"
            raise_write_error(error, self.final, kept)

    def _begin(self) -> None:
        """Called with the lock, before anything is read or written."""

    def _stop(self) -> None:
        """Called with the lock, when an error ends the block, before what is finished is committed."""

    def _end(self, *, keeps: bool) -> None:
        """Called with the lock, at the end; `keeps` says if files stay for the next run."""

    @property
    def is_resumable(self) -> bool:
        """Returns True if another run may go on with this one."""
        return self._resumable

    @property
    def _has_something(self) -> bool:
        """Returns True if there is something for another run to go on with."""
        return self._journal.has_files or any(path.exists() for path in self._kept)

    def path(self, name: str) -> Path:
        """Returns where to write file `name`; register it with `add` when it is complete."""
        return self.staging / name

    def restart(self) -> None:
        """Removes all that was written so far, by killed runs, too."""
        for pending in (self.files, self._pending, self._complete, self._consumed):
            pending.clear()
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir()
        self.disk.look()  # before the journal is claimed of what was removed
        if self._resumable:
            self._journal.begin()

    def keep(self, name: str) -> None:
        """Keeps an artifact that is made under this name, or what its stage leaves of it, for another run."""
        self._kept += self.path(name), staging_of(self.path(name))

    def leave_nothing(self) -> None:
        """Keeps nothing for another run: what was read is wrong, and may be corrected."""
        self._resumable = False

    # Files

    def add(self, name: str, *, crc32c: int | None = None) -> None:
        """Registers a complete file. Its checksum is read from disk unless `crc32c` was computed while writing."""
        path = self.path(name)
        self.files[name] = FileEntry(path.stat().st_size, checksum_file(path) if crc32c is None else crc32c)

    def commit_files(self, names: Iterable[str]) -> None:
        """Makes registered files durable, and says so in the journal. Nothing, unless it is resumable."""
        found = {name: (self.files[name].bytes, self.files[name].crc32c) for name in names}
        unknown = {name: each for name, each in found.items() if self._journal.recorded(name) != each}
        if not self._resumable or not unknown:
            return
        for name in unknown:
            sync(self.path(name))
        faults.point("unit.written")
        self._journal.add_all(unknown)

    def adopt(self, name: str) -> bool:
        """Registers file `name` if a killed run had it complete and it is still what that run wrote; or removes it."""
        crc32c = self._journal.checksum(name)
        if crc32c is not None:
            self.add(name, crc32c=crc32c)
            return True
        self.remove(name)
        return False

    def remove(self, name: str) -> None:
        """Removes what is there under a name, if anything: it is made again."""
        self._journal.forget(name)
        self.files.pop(name, None)
        self.disk.remove(self.path(name))

    def checksums(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the CRC-32C of those files that are registered, by name."""
        return {name: self.files[name].crc32c for name in names if name in self.files}

    @property
    def sends(self) -> bool:
        """Returns True if what is complete leaves this disk."""
        return False

    def _send(self, names: Iterable[str]) -> None:
        """Called with files that are durable, and that nobody needs here any more: an artifact may go to a store."""

    def _remove_consumed(self, names: Collection[str]) -> None:
        """Removes files: all that was to be made of them is complete, and noted."""
        if self._resumable and (noted := [name for name in names if not self._journal.is_consumed(name)]):
            self._journal.consume(noted)
        for name in names:
            self.files.pop(name, None)
            self.disk.remove(self.path(name))

    def is_consumed(self, name: str) -> bool:
        """Returns True if a file was consumed, by this run or a killed one."""
        return self._journal.is_consumed(name)

    # Group commit

    def note(self, name: str, note: Note) -> None:
        """Has a note written at the next commit, in place of the one before."""
        with self._committing:
            self._pending[name] = note

    def noted(self, name: str) -> State:
        """Returns the state in the last note of a name, by this run or a killed one; {} if there is none."""
        with self._committing:
            if (pending := self._pending.get(name)) is not None:
                return pending.state
            return (self._journal.last_note(name) or {}) if self._resumable else {}

    def is_noted(self, name: str) -> bool:
        """Returns True if a note of a name is committed."""
        return self._journal.has_note(name)

    def leave_out(self, name: str, file: str) -> None:
        """Says that a file is removed which a note of a name was to be committed with."""
        with self._committing:
            if (note := self._pending.get(name)) is not None:
                self._pending[name] = replace(note, files=[each for each in note.files if each != file])

    def forget(self, name: str) -> None:
        """Removes a note: it is true no more, and nobody may send the files that it says are complete."""
        with self._committing:
            for file in self.noted(name).get(FINISHED, np.empty(0, str)).tolist():
                self._journal.forget(file)
                if file in self._complete:
                    self._complete.remove(file)
            self._pending.pop(name, None)
            self._journal.forget_note(name)

    def restart_step(self, name: str) -> None:
        """Has a step made again whose files are damaged. What is finished of others is committed, and stays."""
        with self._committing:
            self.forget(name)
            self._complete = [name for name in self._complete if self._is_there(name)]
            for name, note in list(self._pending.items()):
                if not all(map(self._is_there, (*note.files, *note.complete))):
                    self.forget(name)
            self.commit()

    def _is_there(self, name: str) -> bool:
        """Returns True if a file lies here, or is complete and was sent."""
        return self.path(name).exists() or self._journal.recorded(name) is not None

    def complete(self, files: Mapping[str, int]) -> None:
        """Registers the files of a unit, by name their CRC-32C, which the next commit makes durable."""
        with self._committing:
            for name, crc32c in files.items():
                self.add(name, crc32c=crc32c)
            self._complete += files

    def send_at_commit(self, names: Iterable[str]) -> None:
        """Says that files that are complete already may be sent with the next commit."""
        with self._committing:
            self._complete += (name for name in names if name in self.files)

    def consume(self, names: Collection[str]) -> None:
        """Has files removed after the next commit: nobody needs them once what was made of them is committed."""
        with self._committing:
            self._consumed |= {name: allocated_bytes(self.path(name)) for name in names}

    def commit(self) -> None:
        """Makes durable what was noted and what units left, the files first; then what was consumed is removed."""
        with self._committing:
            self._is_committing = True
            try:
                for name, note in self._pending.items():
                    self.commit_files(note.complete)
                    if self._resumable:
                        self._journal.note(name, note.state, note.files)
                self.commit_files(self._complete)
                self._send(self._complete)
                self._remove_consumed(self._consumed)
            finally:
                self._is_committing = False
            self._pending.clear()
            self._complete.clear()
            self._consumed.clear()
            self._handled_bytes, self._committed_seconds = 0, time.monotonic()

    def is_due(self, handled_bytes: int) -> bool:
        """Returns True if it is time for a commit, now that so many bytes more were handled."""
        self._handled_bytes += handled_bytes
        with self._committing:
            consumed_bytes = sum(self._consumed.values())
        if consumed_bytes >= CONSUMED_BYTES:
            return True
        if not self._resumable:
            return False
        least_bytes = faults.reading("unit.bytes", _COMMIT_BYTES)
        seconds = (time.monotonic() - self._committed_seconds) * _COMMIT_BYTES / least_bytes
        return seconds >= (_LEAST_SECONDS if self._handled_bytes >= least_bytes else _MOST_SECONDS)

    def give_back(self) -> bool:
        """Commits early, since the disk budget is used up; returns False if nothing waits to be removed or sent."""
        with self._committing:
            waits = any(self._consumed.values()) or (self.sends and bool(self._complete))
            if self._is_committing or not waits:
                return False
            self.commit()
            return True
