"""The journal of a staging directory: what is being made there, and which of its files are finished.

One JSON document a line, appended and made durable. The first says what is made; each other one names a finished
file, its length and its CRC-32C. A run that goes on after a kill believes a file only as far as the journal does.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from diskgnn.storage.checked_files import checksum_file, sync
from diskgnn.storage.manifest import typed


class Journal:
    """The journal at `path`. One that says it is about something else than `making`, or is damaged there, is new."""

    def __init__(self, path: Path, making: Any) -> None:
        self.path = path
        self._finished: dict[str, tuple[int, int]] = {}  # bytes, CRC-32C
        self._lock = threading.Lock()
        self._first_line = json.dumps(making, sort_keys=True)

    def read(self) -> bool:
        """Whether the journal is there and about what is being made; then what it says is known."""
        try:
            first, *lines = self.path.read_text().split("\n")
        except (OSError, ValueError):  # damaged bytes are no text
            return False
        if first != self._first_line:
            return False
        for line in lines:
            try:
                record = typed(json.loads(line), dict)
                self._finish(typed(record["file"], str), typed(record["bytes"], int), typed(record["crc32c"], int))
            except (ValueError, KeyError, RecursionError):  # the end of a line that a kill cut off, or damage
                continue
        self._append("")  # ends a line that was cut off
        return True

    def begin(self) -> None:
        """Start it."""
        self._finished.clear()
        self.path.unlink(missing_ok=True)
        self._append(self._first_line)
        sync(self.path.parent)

    def add(self, name: str, num_bytes: int, crc32c: int) -> None:
        """File `name` of the directory is finished, and durable."""
        with self._lock:
            self._finish(name, num_bytes, crc32c)
            self._append(json.dumps({"file": name, "bytes": num_bytes, "crc32c": crc32c}))

    def recorded(self, name: str) -> tuple[int, int] | None:
        """Bytes and CRC-32C that file `name` had when it was added last; None if it never was."""
        return self._finished.get(name)

    def checksum(self, name: str) -> int | None:
        """CRC-32C of file `name` if it is finished and still what it was then; None if it has to be made again."""
        path = self.path.parent / name
        try:
            found = path.stat().st_size, checksum_file(path)
        except OSError:  # it is not there, or the disk cannot read it any more
            return None
        return found[1] if found == self._finished.get(name) else None

    def newest(self, names: Collection[str]) -> str | None:
        """Which of some files was finished last, of those that are what they were then."""
        known = (name for name in reversed(self._finished) if name in names)
        return next((name for name in known if self.checksum(name) is not None), None)

    @property
    def has_finished(self) -> bool:
        """Whether any file was finished."""
        return bool(self._finished)

    def _finish(self, name: str, num_bytes: int, crc32c: int) -> None:
        self._finished.pop(name, None)  # so that the last one comes last
        self._finished[name] = num_bytes, crc32c

    def _append(self, line: str) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
