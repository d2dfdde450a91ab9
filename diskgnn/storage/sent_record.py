"""What this machine has sent to a place on a store: a file here, which whoever goes on after a kill begins with.

A JSON document a line, behind its checksum, appended: that a file is begun; the upload that takes its parts, and each
part that is there; that it has arrived, and when the store says that it had; the digest of the manifest that is about
to make all of it appear. The store is asked whether it is still so.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from diskgnn.storage import faults
from diskgnn.storage.checked_lines import checked_line, whole_lines
from diskgnn.storage.destination import scratch_of
from diskgnn.storage.manifest_document import FileEntry, entry_to_json, parse_entry, typed
from diskgnn.stores.locations import StoredPath
from diskgnn.stores.uploads import BegunUpload, SentPart


def record_of(target: StoredPath) -> Path:
    """The file of this machine that says what was sent to `target`."""
    return scratch_of(target).with_name("sent.jsonl")


def names_sent(target: StoredPath) -> set[str]:
    """What this machine has sent to `target`, or began to, or to replace there, and is not done with."""
    record = SentRecord(target)
    record.read()
    return set(record.files)


class SentRecord:
    """The record of one target. For several threads."""

    def __init__(self, target: StoredPath) -> None:
        self.path = record_of(target)
        self.files: dict[str, FileEntry | None] = {}  # that were begun, or have arrived as that
        self.written_ns: dict[str, int | None] = {}  # when the store says that they had
        self.uploads: dict[str, BegunUpload] = {}  # of files that were begun
        self.publishing: str | None = None  # digest of the manifest that was written last, or about to be
        self._read_bytes = 0  # of the lines that are whole
        self._appending = threading.Lock()

    def read(self) -> None:
        """Know what earlier runs wrote down."""
        lines, self._read_bytes = whole_lines(self.path.read_bytes()) if self.path.exists() else ([], 0)
        for line in lines:
            with suppress(ValueError, KeyError):  # of another version
                self._take(typed(json.loads(line), dict))

    def go_on(self) -> None:
        """Know that, and append to it."""
        self.read()
        if self.path.exists():
            os.truncate(self.path, self._read_bytes)

    def _take(self, found: dict[str, Any]) -> None:
        if "publishing" in found:
            self.publishing = typed(found["publishing"], str)
            return
        name = typed(found["file"], str)
        if "upload" in found:
            upload = BegunUpload(typed(found["upload"], str))
            if name not in self.uploads or self.uploads[name].id != upload.id:
                self.uploads[name] = upload
            if "part" in found:
                sent = parse_entry(found)
                part = SentPart(sent.bytes, sent.crc32c, typed(found["etag"], str))
                self.uploads[name].parts[typed(found["part"], int)] = part
            return
        entry = parse_entry(found) if "bytes" in found else None
        self._keep(name, entry, found.get("mtime_ns"))

    def _keep(self, name: str, entry: FileEntry | None, written_ns: int | None) -> None:
        self.files[name], self.written_ns[name] = entry, written_ns
        if entry is not None:
            self.uploads.pop(name, None)

    def begun(self, name: str) -> None:
        """File `name` is on its way: what is there is not what was there."""
        self._keep(name, None, None)
        self._append(json.dumps({"file": name}))

    def arrived(self, name: str, entry: FileEntry, written_ns: int | None) -> None:
        """It is there."""
        self._keep(name, entry, written_ns)
        self._append(json.dumps({"file": name, "mtime_ns": written_ns, **entry_to_json(entry)}))

    def publishes(self, digest: str) -> None:
        """All files are there, and the manifest of this digest is about to be."""
        self.publishing = digest
        self._append(json.dumps({"publishing": digest}))

    def upload_begun(self, name: str, upload_id: str) -> BegunUpload:
        """It goes in parts, to an upload that the store knows by its id."""
        self.uploads[name] = BegunUpload(upload_id)
        self._append(json.dumps({"file": name, "upload": upload_id}))
        return self.uploads[name]

    def part_arrived(self, name: str, number: int, part: SentPart) -> None:
        """A part of it is there."""
        upload = self.uploads[name]
        upload.parts[number] = part
        entry = entry_to_json(FileEntry(part.bytes, part.crc32c))
        self._append(json.dumps({"file": name, "upload": upload.id, "part": number, "etag": part.etag, **entry}))
        faults.point("upload.part")

    def forget(self) -> None:
        """Nothing of it counts any more."""
        for known in (self.files, self.written_ns, self.uploads):
            known.clear()
        self.publishing = None
        self.path.unlink(missing_ok=True)

    def _append(self, line: str) -> None:
        with self._appending, self.path.open("ab") as file:
            file.write(checked_line(line))
