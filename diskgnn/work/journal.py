"""The journal of a staging directory: what is being made there, and which of its files are complete.

One JSON document a line, behind its checksum, appended and made durable. The first says what is made. Each other one
names a complete file, its length and its CRC-32C; or files that were consumed since all that was made of them is
complete; the last one what is scratch in a directory that is about to be published. A run that goes on after a kill
believes a file only as far as the journal does, and the journal up to its first damaged line.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c as checksum_of
from diskgnn.files import faults
from diskgnn.files.checked_files import checksum_file, npy_file_bytes, sync
from diskgnn.files.checked_lines import CheckedLog, checked_lines
from diskgnn.files.disk_space import NOTES, UNLIMITED, DiskBudget, allocated_bytes, file_bytes
from diskgnn.formats.manifest_document import file_name
from diskgnn.formats.records import typed

_CONSUMED, _SCRATCH = "dropped", "leaving"  # lines of files that are consumed, or scratch
_MEMBER_BYTES, _ARCHIVE_BYTES = 104, 22  # of a .npz file: beside each array and its name, twice; at the end


class Journal:
    """The journal at `path`. One that says it is about something else than `making`, or is damaged there, is new.

    What it writes is claimed of `disk`.
    """

    def __init__(self, path: Path, making: Any, disk: DiskBudget = UNLIMITED) -> None:
        self.path, self._disk, self._log = path, disk, CheckedLog(path, disk)
        self._complete: dict[str, tuple[int, int]] = {}  # bytes, CRC-32C
        self._consumed: set[str] = set()
        self._lock = threading.RLock()  # claiming may have more committed
        self._first_line = json.dumps(making, sort_keys=True)

    def read(self) -> bool:
        """Returns True if the journal is there and about what is being made; then what it says is known."""
        try:
            lines = self._log.read(for_more=True)
        except OSError:
            return False
        if not lines or lines[0] != self._first_line:
            return False
        for line in lines[1:]:
            try:
                record = typed(json.loads(line), dict)
                if _CONSUMED in record:
                    self._consume(typed(each, str) for each in typed(record[_CONSUMED], list))
                else:
                    self._add(typed(record["file"], str), typed(record["bytes"], int), typed(record["crc32c"], int))
            except (ValueError, KeyError, RecursionError):  # of another version
                continue
        return True

    def begin(self) -> None:
        """Begins the file anew, with its first line."""
        self._complete.clear()
        self._consumed.clear()
        self.path.unlink(missing_ok=True)
        self._log.append(self._first_line)
        sync(self.path.parent)

    def add(self, name: str, num_bytes: int, crc32c: int) -> None:
        """Says that file `name` of the directory is complete, and durable."""
        self.add_all({name: (num_bytes, crc32c)})

    def add_all(self, files: Mapping[str, tuple[int, int]]) -> None:
        """Says that files, by name their bytes and CRC-32C, are complete and durable."""
        with self._lock:
            self.append(*(
                {"file": name, "bytes": num_bytes, "crc32c": crc32c} for name, (num_bytes, crc32c) in files.items()
            ))  # fmt: skip
            for name, (num_bytes, crc32c) in files.items():
                self._add(name, num_bytes, crc32c)

    def consume(self, names: Collection[str]) -> None:
        """Notes that nobody needs some files any more; they may be removed after that."""
        with self._lock:
            self.append({_CONSUMED: list(names)})
            self._consume(names)

    def forget(self, name: str) -> None:
        """Believes no more that file `name` is complete: it was removed, and is made again."""
        with self._lock:
            self._complete.pop(name, None)

    def is_consumed(self, name: str) -> bool:
        """Returns True if file `name` was consumed, and not made again since."""
        return name in self._consumed

    def append_scratch(self, names: Collection[str]) -> None:
        """Notes what in the directory is scratch, now that it is about to be published."""
        self.append({_SCRATCH: list(names)})

    def append(self, *lines: Mapping[str, Any]) -> None:
        """Appends lines."""
        self._log.append(*map(json.dumps, lines))

    def recorded(self, name: str) -> tuple[int, int] | None:
        """Returns the bytes and CRC-32C that file `name` had when it was added last; None if it never was."""
        return self._complete.get(name)

    def checksum(self, name: str) -> int | None:
        """Returns the CRC-32C of file `name` if it is complete and still what it was then; None if it has to be
        made again."""
        if name not in self._complete:
            return None
        path = self.path.parent / name
        try:
            found = path.stat().st_size, checksum_file(path)
        except OSError:  # it is not there, or the disk cannot read it any more
            return None
        return found[1] if found == self._complete.get(name) else None

    @property
    def has_files(self) -> bool:
        """Returns True if any file was complete."""
        return bool(self._complete or self._consumed)

    def note(self, name: str, done: Mapping[str, npt.NDArray[Any]], files: Iterable[str]) -> None:
        """Notes durably how far a stage is, in two files that take turns: one is whole whenever a kill comes.

        Args:
            name: of the step. Its note before is believed until this one is durable.
            done: arrays that say what is done, with the checksums that whoever goes on compares.
            files: those that hold what is done; they are made durable first.
        """
        folder = self.path.parent
        for each in files:
            sync(folder / each)
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **done)
        even, odd = _notes_of(name)
        file = odd if self._newest((even, odd)) == even else even
        more_bytes = file_bytes(content.getbuffer().nbytes) - allocated_bytes(folder / file)
        self._disk.claim(more_bytes, is_journal=True)
        (folder / file).write_bytes(content.getbuffer())
        sync(folder / file)
        faults.point("unit.written")
        self.add(file, len(content.getbuffer()), checksum_of(content.getbuffer()))

    def last_note(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        """Returns what the last undamaged `note` of a stage said, or None if there is none."""
        newest = self._newest(_notes_of(name))
        if newest is None:
            return None
        with np.load(self.path.parent / newest, allow_pickle=False) as found:
            return dict(found)

    def has_note(self, name: str) -> bool:
        """Returns True if `last_note` has something to return, unless that is damaged."""
        return any(file in self._complete for file in _notes_of(name))

    def forget_note(self, name: str) -> None:
        """Removes the notes of a stage."""
        for file in _notes_of(name):
            self.forget(file)
            self._disk.release(allocated_bytes(path := self.path.parent / file), is_journal=True)
            path.unlink(missing_ok=True)

    def _newest(self, names: Collection[str]) -> str | None:
        """Returns which of some files was added last, of those that are what they were then."""
        known = (name for name in reversed(self._complete) if name in names)
        return next((name for name in known if self.checksum(name) is not None), None)

    def _add(self, name: str, num_bytes: int, crc32c: int) -> None:
        self._complete.pop(name, None)  # so that the last one comes last
        self._complete[name] = num_bytes, crc32c
        self._consumed.discard(name)

    def _consume(self, names: Iterable[str]) -> None:
        for name in names:
            self._complete.pop(name, None)
            self._consumed.add(name)


def appended_scratch(path: Path) -> list[str]:
    """Returns what the journal at `path`, of a directory that was published, says is scratch in that. Only its names of
    files are believed."""
    found: list[Any] = []
    for line in filter(None, checked_lines(path.read_bytes())):
        with suppress(ValueError, KeyError, RecursionError):  # lines about other things
            found = typed(typed(json.loads(line), dict)[_SCRATCH], list)
    return [name for name in found if _names_file(name)]


def _names_file(name: Any) -> bool:
    with suppress(ValueError):
        return bool(file_name(typed(name, str)))
    return False


def note_bytes(done: Mapping[str, npt.NDArray[Any]]) -> int:
    """Returns what notes of such arrays take of the disk: there are two of them, see `Journal.note`."""
    member_bytes = (npy_file_bytes(array.dtype, array.shape) + 2 * len(name) for name, array in done.items())
    return 2 * file_bytes(sum(member_bytes) + len(done) * _MEMBER_BYTES + _ARCHIVE_BYTES)


def _notes_of(name: str) -> tuple[str, str]:
    """Returns the files that take a stage's notes in turn."""
    even, odd = NOTES
    return f"{name}{even}", f"{name}{odd}"
