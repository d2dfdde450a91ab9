"""Outputs that a store takes while they are made: each file is sent when it is complete, and its local copy goes.

So what is here at a time are the files that are being made, and FILES_AT_ONCE that are on the way. The manifest is sent
last. A run that goes on after a kill knows from its record what was sent, and asks the store whether it is still that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.storage import faults
from diskgnn.storage.artifacts import MANIFEST
from diskgnn.storage.disk_space import DiskBudget, file_bytes, punch
from diskgnn.storage.file_reading import fill, opened, read_into, reading
from diskgnn.storage.manifest_document import FileEntry, entry_to_json
from diskgnn.storage.object_stores import Location, StoredPath, named_errors
from diskgnn.storage.remote_files import attempted

if TYPE_CHECKING:
    import pyarrow.fs as pafs

FILES_AT_ONCE = 4  # each in parts, of which the driver sends several at a time
_PIECE_BYTES = 8 << 20

_targets: dict[Path, StoredPath] = {}  # of the outputs that are sent while they are made


@contextmanager
def sent_to(path: Path, target: StoredPath) -> Iterator[None]:
    """What is written as the artifact `path` within the block goes to `target` instead."""
    _targets[path.resolve()] = target
    try:
        yield
    finally:
        del _targets[path.resolve()]


def target_of(path: Path) -> StoredPath | None:
    """Where the artifact `path` is sent while it is made; None if it stays here."""
    return _targets.get(path.resolve())


def record_of(staging: Path) -> Path:
    """The file that says what was sent."""
    return staging / "sent.jsonl"


class Outbox:
    """What of one artifact is on its way, or has arrived. For several threads.

    Args:
        target: what the artifact is called on the store.
        record: a file that keeps what was sent.
        disk: has the space of what was sent again.
    """

    def __init__(self, target: StoredPath, record: Path, disk: DiskBudget) -> None:
        self.target, self._record, self._disk = target, record, disk
        self._adding, self._room = threading.Lock(), threading.Semaphore(FILES_AT_ONCE)
        self._pool = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="send")
        self._sending: list[Future[None]] = []
        self._streams: list[ExtentsStream] = []
        self._there: dict[str, pafs.FileInfo] | None = None
        self._sent: set[str] = set()

    def begin(self) -> None:
        """Be ready to send. What lies at the target from now on, the record says."""
        self._record.touch()
        filesystem, path = self.target.locate()
        if not self.target.has_buckets():
            with named_errors(f"making {self.target}"):
                filesystem.create_dir(path, recursive=True)

    def send(self, name: str, path: Path, entry: FileEntry, *, keep: bool = False) -> None:
        """Send file `name`, which lies at `path`, and unless `keep` remove it from there when it has arrived.

        Waits while FILES_AT_ONCE are on the way. What goes wrong is raised by a later call.
        """
        self._room.acquire()
        try:
            self._raise()
        except BaseException:
            self._room.release()
            raise
        with self._adding:
            self._sending.append(self._pool.submit(self._send, name, path, entry, keep))
            self._sent.add(name)

    def has(self, name: str) -> bool:
        """Whether file `name` is on its way, or was sent."""
        return name in self._sent

    def stream(self, name: str) -> ExtentsStream:
        """A file of the store that takes the parts of a local one, in order."""
        self._note({"file": name})
        self._sent.add(name)
        self._streams.append(ExtentsStream(self.target / name, self._disk))
        return self._streams[-1]

    def adopt(self, name: str) -> FileEntry | None:
        """File `name`, if it was sent and the store has just that."""
        found = self._recorded().get(name, {})
        if self._there is None:
            self._there = self.target.entries()
        info = self._there.get(name)
        if "bytes" not in found or info is None or (info.size, info.mtime_ns) != (found["bytes"], found["mtime_ns"]):
            return None
        self._sent.add(name)
        shape = None if found.get("shape") is None else tuple(found["shape"])
        return FileEntry(found["bytes"], int(found["crc32c"], 16), found.get("dtype"), shape)

    def publish(self, files: Mapping[str, FileEntry], document: str) -> None:
        """Write the manifest, once all `files` have arrived.

        Raises:
            ArtifactError: somebody else writes there, too.
        """
        self._finish()
        found = self.target.entries()
        sizes = {name: found[name].size if name in found else None for name in files}
        if wrong := [name for name, entry in files.items() if sizes[name] != entry.bytes]:
            raise ArtifactError(
                f"{self.target} has other files than were sent ({', '.join(wrong[:5])}): who writes there?"
            )
        faults.point("push.files")
        attempted(f"writing {self.target / MANIFEST}", partial(write_file, self.target / MANIFEST, document.encode()))

    def discard(self) -> None:
        """Remove what was sent: it is made again, in another way, or not at all."""
        self._wait()
        filesystem, path = self.target.locate()
        there = self.target.entries() if self._record.exists() else {}
        with named_errors(f"removing what was sent to {self.target}"):
            for name in self._recorded().keys() & there.keys():
                filesystem.delete_file(f"{path}/{name}")
        self._record.unlink(missing_ok=True)
        self._sending.clear()  # what failed, too
        self._there = None
        self._sent.clear()

    def close(self) -> None:
        """Wait for what is on the way. Idempotent."""
        self._wait()
        self._pool.shutdown()

    def _wait(self) -> None:
        for stream in self._streams:
            stream.abandon()
        for each in self._sending:
            each.exception()

    def _finish(self) -> None:
        for each in self._sending:
            each.result()
        self._sending.clear()

    def _raise(self) -> None:
        with self._adding:
            failed = [each for each in self._sending if each.done() and each.exception() is not None]
            self._sending = [each for each in self._sending if not each.done()] + failed
        for each in failed:
            each.result()

    def _send(self, name: str, path: Path, entry: FileEntry, keep: bool) -> None:
        try:
            self._note({"file": name})
            crc = attempted(f"writing {self.target / name}", partial(copy_file, path, self.target / name))
            if crc != entry.crc32c:
                raise ArtifactError(f"{path} was changed before it was sent: its CRC-32C is {crc:08x}")
            info = (self.target / name).info()
            self._note({"file": name, "mtime_ns": info.mtime_ns, **entry_to_json(entry)})
            faults.point("push.file")
            if not keep:
                self._disk.remove(path, file_bytes(entry.bytes))
        finally:
            self._room.release()

    def _note(self, line: Mapping[str, Any]) -> None:
        with self._adding, self._record.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _recorded(self) -> dict[str, dict[str, Any]]:
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        whole = (json.loads(line) for line in lines if line.endswith("}"))
        return {line["file"]: line for line in whole}


def copy_file(source: Location, target: StoredPath) -> int:
    """Send a file; CRC-32C of what was read of it."""
    filesystem, path = target.locate()
    crc, offset, view = 0, 0, memoryview(bytearray(_PIECE_BYTES))
    with reading(source) as file, filesystem.open_output_stream(path) as stream:
        while read := read_into(file, offset, view, source):
            crc, offset = crc32c(view[:read], crc), offset + read
            stream.write(view[:read])
    return crc


def write_file(target: StoredPath, data: bytes) -> None:
    """Write a small file of a store."""
    filesystem, path = target.locate()
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


class ExtentsStream:
    """One file of a store, made of the parts of a local file, in order; what was sent of that takes no space any more.

    The driver sends it in parts (S3's multipart upload), and shows it when it is closed.
    """

    def __init__(self, target: StoredPath, disk: DiskBudget) -> None:
        self._target, self._disk = target, disk
        filesystem, path = target.locate()
        with named_errors(f"writing {target}"):
            self._stream = filesystem.open_output_stream(path)
        self.num_bytes = self.crc32c = 0

    def append(self, path: Path, end: int) -> None:
        """Send the local file up to byte `end`, and give its space back.

        Raises:
            StoreError: the store failed, also when the driver tried again.
        """
        begin, view = self.num_bytes, memoryview(bytearray(_PIECE_BYTES))
        with opened(path) as file, named_errors(f"writing {self._target}"):
            while self.num_bytes < end:
                piece = fill(file, self.num_bytes, view[: end - self.num_bytes], path)
                self.crc32c = crc32c(piece, self.crc32c)
                self._stream.write(piece)
                self.num_bytes += len(piece)
        faults.point("push.part")
        punch(path, begin, end - begin)
        self._disk.look()

    def close(self, expected_crc32c: int) -> None:
        """Make it appear.

        Raises:
            ArtifactError: what was sent has another checksum.
        """
        if self.crc32c != expected_crc32c:
            raise ArtifactError(f"what was sent to {self._target} is not what was made: the disk does not keep it")
        with named_errors(f"writing {self._target}"):
            self._stream.close()

    def abandon(self) -> None:
        """End it: what appears is not whole, and the record does not say that it is. Idempotent."""
        with suppress(OSError):
            self._stream.close()
