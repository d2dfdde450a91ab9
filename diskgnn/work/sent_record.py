"""A record of what this machine has sent to a place on a store, by which the next run goes on after a kill.

It is a file on this machine. Each line is a JSON document behind its checksum: a file is begun; an upload takes its
parts; a part is there; the file has arrived, at a time that the store names; a manifest is about to make all of it
appear. The journal of a work folder cannot say that: it is believed as far as files here have its checksums, and this
record as far as the store still lists the same sizes, times and ETags.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskgnn.files import faults
from diskgnn.files.checked_lines import CheckedLog
from diskgnn.files.destination import scratch_of
from diskgnn.formats.manifest_document import FileEntry
from diskgnn.formats.records import typed
from diskgnn.stores.locations import StoredPath
from diskgnn.stores.uploads import BegunUpload, SentPart


@dataclass(frozen=True)
class Arrived:
    """A file that is on the store."""

    entry: FileEntry
    written_ns: int | None  # when, as the store says; None of a store that does not


def record_of(target: StoredPath) -> Path:
    """Returns the file of this machine that says what was sent to `target`."""
    return scratch_of(target).with_name("sent.jsonl")


def names_sent(target: StoredPath) -> set[str]:
    """Returns the names of files that this machine has sent to `target`, began to send or to replace there, until all
    of the artifact is there."""
    record = SentRecord(target)
    record.read()
    return set(record.files)


class SentRecord:
    """The record of one target. For several threads."""

    def __init__(self, target: StoredPath) -> None:
        self.path = record_of(target)
        self.files: dict[str, Arrived | None] = {}  # by name; None if it was begun only
        self.uploads: dict[str, BegunUpload] = {}  # of files that were begun
        self.publishing: str | None = None  # digest of the manifest that was written last, or is about to be
        self._log = CheckedLog(self.path)
        self._noting = threading.Lock()

    def read(self, *, for_more: bool = False) -> None:
        """Reads what earlier runs noted; `for_more`, new notes follow."""
        for line in self._log.read(for_more=for_more):
            with suppress(ValueError, KeyError):  # of another version
                self._take(typed(json.loads(line), dict))

    def begun(self, name: str) -> None:
        """Notes that file `name` is on its way: what is there is not what was there."""
        self._note(file=name)

    def arrived(self, name: str, entry: FileEntry, written_ns: int | None) -> None:
        """Notes that it is there."""
        self._note(file=name, mtime_ns=written_ns, **entry.to_json())

    def publishes(self, digest: str) -> None:
        """Notes that all files are there, and the manifest of this digest is about to be."""
        self._note(publishing=digest)

    def upload_begun(self, name: str, upload_id: str) -> BegunUpload:
        """See `UploadRecord`."""
        self._note(file=name, upload=upload_id)
        return self.uploads[name]

    def part_arrived(self, name: str, number: int, part: SentPart) -> None:
        """See `UploadRecord`."""
        entry = FileEntry(part.bytes, part.crc32c).to_json()
        self._note(file=name, upload=self.uploads[name].id, part=number, etag=part.etag, **entry)
        faults.point("upload.part")

    def forget(self) -> None:
        """Removes it: nothing of it counts any more."""
        self.files.clear()
        self.uploads.clear()
        self.publishing = None
        self.path.unlink(missing_ok=True)

    def _note(self, **found: Any) -> None:
        with self._noting:
            self._take(found)
            self._log.append(json.dumps(found), durable=False)

    def _take(self, found: dict[str, Any]) -> None:
        if "publishing" in found:
            self.publishing = typed(found["publishing"], str)
            return
        name = typed(found["file"], str)
        if "upload" in found:
            upload_id = typed(found["upload"], str)
            if name not in self.uploads or self.uploads[name].id != upload_id:
                self.uploads[name] = BegunUpload(upload_id)
            if "part" in found:
                sent = FileEntry.parse(found)
                part = SentPart(sent.bytes, sent.crc32c, typed(found["etag"], str))
                self.uploads[name].parts[typed(found["part"], int)] = part
        elif "bytes" in found:
            self.files[name] = Arrived(FileEntry.parse(found), found.get("mtime_ns"))
            self.uploads.pop(name, None)
        else:
            self.files[name] = None
