"""The way of an artifact to an object store: a few files at a time, the manifest last.

Files are put into an outbox as they are complete, while others are made (`ArtifactWriter`), or those of a finished
directory one after the other (`push`). A record on this machine, one for each target, says what was sent there: whoever
goes on after a kill asks the store whether it is still that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ArtifactError, BusyError, ConfigError
from diskgnn.progress import Advance
from diskgnn.storage import faults
from diskgnn.storage.artifacts import MANIFEST
from diskgnn.storage.checked_files import checksum_file
from diskgnn.storage.disk_space import UNLIMITED, DiskBudget, file_bytes
from diskgnn.storage.locks import FileLock
from diskgnn.storage.manifest_document import ExternalFile, FileEntry, entry_to_json, parse_entry, typed
from diskgnn.storage.object_stores import Location, StoredPath
from diskgnn.storage.remote_files import attempted
from diskgnn.storage.store_drivers import named_errors
from diskgnn.storage.uploads import ExtentsStream, copy_file, write_file
from diskgnn.storage.write_errors import beginning

if TYPE_CHECKING:
    import pyarrow.fs as pafs

FILES_AT_ONCE = 4  # each in parts, of which the driver sends several at a time
_POLL_SECONDS = 0.1

_targets: dict[Path, StoredPath] = {}  # of the outputs that are sent while they are made


@contextmanager
def sent_to(path: Path, target: StoredPath) -> Iterator[None]:
    """What is written as the artifact `path` within the block, or as one in the folder `path`, goes to `target`."""
    _targets[path.resolve()] = target
    try:
        yield
    finally:
        del _targets[path.resolve()]


def target_of(path: Path) -> StoredPath | None:
    """Where the artifact or folder `path` is sent while it is made; None if it stays here."""
    path = path.resolve()
    if path.parent in _targets:
        return _targets[path.parent] / path.name
    return _targets.get(path)


def record_of(target: StoredPath) -> Path:
    """The file of this machine that says what was sent to `target`."""
    return target.scratch.with_name("sent.jsonl")


def names_sent(target: StoredPath) -> set[str]:
    """What this machine has sent to `target`, or began to, or to replace there, and is not done with."""
    return {name for name, _, _ in _recorded(record_of(target))}


def _recorded(record: Path) -> Iterator[tuple[str, FileEntry | None, int | None]]:
    """The lines of a record: files that were begun, or have arrived as that, and when the store says that they had."""
    for line in record.read_text().splitlines() if record.exists() else ():
        with suppress(ValueError, KeyError):  # the end of a line that a kill cut off
            found: dict[str, Any] = typed(json.loads(line), dict)
            entry = parse_entry(found) if "bytes" in found else None
            yield typed(found["file"], str), entry, found.get("mtime_ns")


def refuse_headerless(external: Mapping[str, ExternalFile]) -> None:
    """Refuse to send an artifact that refers to files without a header, which would be no .npy files there.

    Raises:
        ConfigError: names them.
    """
    if headerless := [name for name, file in external.items() if file.headerless]:
        raise ConfigError(
            f"files without a header ({', '.join(headerless)}) cannot be sent as a part of what refers to them: make "
            f"it without `reference_features`"
        )


class Outbox:
    """What of one artifact is on its way to a store, or has arrived. For several threads; `begin` it, and `close` it.

    Args:
        target: what the artifact is called on the store.
        disk: has the space of what was sent again.
        advance: told of the bytes of each file that has arrived.
    """

    def __init__(self, target: StoredPath, disk: DiskBudget = UNLIMITED, advance: Advance = lambda _: None) -> None:
        self.target, self._disk, self._advance = target, disk, advance
        self._record = record_of(target)
        self._lock = FileLock(self._record.with_suffix(".lock"))
        self._changing = threading.RLock()
        self._pool = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="send")
        self._sending: set[Future[None]] = set()
        self._streams: list[ExtentsStream] = []
        self._known: dict[str, FileEntry | None] = {}  # of the record: files that were begun, or have arrived as that
        self._written_ns: dict[str, int | None] = {}  # when the store says that they had
        self._there: dict[str, pafs.FileInfo] = {}  # when it was begun
        self._taken: set[str] = set()  # files of the artifact that are on their way, or there

    def begin(self) -> None:
        """Be ready to send. What lies at the target from now on, the record says.

        Raises:
            BusyError: another process sends there.
            StoreError: the store failed, or refused.
        """
        folder = self._record.parent
        with beginning(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._lock.acquire():
                raise BusyError(f"another process is sending {self.target} now; wait for it or stop it")
            self._read()
        filesystem, path = self.target.locate()
        if not self.target.has_buckets():
            with named_errors(f"making {self.target}"):
                filesystem.create_dir(path, recursive=True)
        self._there = self.target.entries()

    def replace(self, names: Mapping[str, FileEntry]) -> None:
        """From now on nobody opens the artifact that is there, of these files. Those that stay none go in the end."""
        for name in names:
            self._note(name)
        filesystem, path = self.target.locate()
        with named_errors(f"replacing {self.target}"):
            filesystem.delete_file(f"{path}/{MANIFEST}")

    def believe(self, files: Mapping[str, FileEntry]) -> None:
        """These files are there, as the manifest on the store says: what is older than that is what was sent.

        Of what is not older, and not known from the record, all is read. What is something else is to be sent again.
        """
        published = self._there.get(MANIFEST)
        for name, entry in files.items():
            info = self._there.get(name)
            if published is None or info is None or info.mtime_ns is None or info.size != entry.bytes:
                continue
            if info.mtime_ns == self._written_ns.get(name):
                continue
            if info.mtime_ns < published.mtime_ns or checksum_file(self.target / name) == entry.crc32c:
                self._known[name], self._written_ns[name] = entry, info.mtime_ns

    def adopt(self, name: str, num_bytes: int, crc32c: int) -> FileEntry | None:
        """File `name` of so many bytes with that checksum, if it was sent and the store has just that."""
        entry, info = self._known.get(name), self._there.get(name)
        if entry is None or (entry.bytes, entry.crc32c) != (num_bytes, crc32c):
            return None
        if info is None or info.mtime_ns is None or not self._is_unchanged(name, entry, info):
            return None
        self._taken.add(name)
        return entry

    def send(self, name: str, path: Location, entry: FileEntry, *, keep: bool = False) -> bool:
        """Send file `name`, which lies at `path`, unless it was sent; whether it goes.

        Waits while FILES_AT_ONCE are on the way. Unless `keep`, the file is removed here when it has arrived. What goes
        wrong is raised by a later call.
        """
        if self.adopt(name, entry.bytes, entry.crc32c) is not None:
            self._done(path, entry, keep)
            return False
        while True:
            with self._changing:
                if len(waiting := self._unfinished()) < FILES_AT_ONCE:
                    self._sending.add(self._pool.submit(self._send, name, path, entry, keep))
                    self._taken.add(name)
                    return True
            wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)  # a signal that another thread got is handled in between

    def has(self, name: str) -> bool:
        """Whether file `name` is on its way, or there."""
        return name in self._taken

    def stream(self, name: str) -> ExtentsStream:
        """A file of the store that takes the parts of a local one, in order."""
        self._note(name)
        self._taken.add(name)
        self._streams.append(ExtentsStream(self.target / name, self._disk))
        return self._streams[-1]

    def arrived(self, name: str, entry: FileEntry) -> None:
        """File `name` is whole on the store, as `entry` says."""
        self._note(name, entry, (self.target / name).info().mtime_ns)

    def publish(self, files: Mapping[str, FileEntry], document: str) -> None:
        """Write the manifest, once all `files` have arrived, and remove what else the record knows of.

        Raises:
            ArtifactError: a file is not what had arrived: somebody else writes there, too.
            StoreError: the store failed.
        """
        while waiting := self._unfinished():
            wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
        found = self.target.entries()
        if wrong := [name for name, entry in files.items() if not self._is_whole(name, entry, found.get(name))]:
            raise ArtifactError(
                f"{self.target} has other files than were sent ({', '.join(wrong[:5])}): somebody else writes there. "
                f"See that nobody does, and run the same command again, which sends them again"
            )
        faults.point("push.files")
        attempted(f"writing {self.target / MANIFEST}", partial(write_file, self.target / MANIFEST, document.encode()))
        self._delete(found.keys() & self._known.keys() - files.keys())
        self._record.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove what was sent: it is made again, in another way, or not at all."""
        self._settle()
        if self._known:
            self._delete(self.target.entries().keys() & self._known.keys())
        self._record.unlink(missing_ok=True)
        for known in (self._sending, self._known, self._written_ns, self._there, self._taken):
            known.clear()

    def close(self) -> None:
        """Wait for what is on the way. Idempotent."""
        self._settle()
        self._pool.shutdown()
        self._lock.release()
        with suppress(OSError):  # something is made there, or gone on with
            self._record.parent.rmdir()

    def _settle(self) -> None:
        for stream in self._streams:
            stream.abandon()
        wait(self._sending)

    def _unfinished(self) -> set[Future[None]]:
        """What is on the way; raises what went wrong with a file, each time that it is called."""
        with self._changing:
            done = {each for each in self._sending if each.done()}
            for each in done:
                each.result()
            self._sending -= done
            return set(self._sending)

    def _send(self, name: str, path: Location, entry: FileEntry, keep: bool) -> None:
        self._note(name)
        crc = attempted(f"writing {self.target / name}", partial(copy_file, path, self.target / name))
        if crc != entry.crc32c:
            raise ArtifactError(
                f"{path} is damaged: its CRC-32C is {crc:08x}, expected {entry.crc32c:08x}; make it again: "
                f"`diskgnn verify` says what is damaged"
            )
        self.arrived(name, entry)
        faults.point("push.file")
        self._done(path, entry, keep)

    def _is_unchanged(self, name: str, entry: FileEntry, info: pafs.FileInfo | None) -> bool:
        """Whether the store says of file `name` what it said when that had arrived."""
        return info is not None and (info.size, info.mtime_ns) == (entry.bytes, self._written_ns.get(name))

    def _is_whole(self, name: str, entry: FileEntry, listed: pafs.FileInfo | None) -> bool:
        """Whether file `name` is what had arrived. All of it is read where times do not say so."""
        if self._is_unchanged(name, entry, listed):
            return True
        info = (self.target / name).info()  # some stores list times more precisely
        return self._is_unchanged(name, entry, info) or (
            info.size == entry.bytes and checksum_file(self.target / name) == entry.crc32c
        )

    def _done(self, path: Location, entry: FileEntry, keep: bool) -> None:
        self._advance(entry.bytes)
        if not keep:
            assert isinstance(path, Path)
            self._disk.remove(path, file_bytes(entry.bytes))

    def _delete(self, names: set[str]) -> None:
        filesystem, path = self.target.locate()
        with named_errors(f"removing what was sent to {self.target}"):
            for name in sorted(names):
                filesystem.delete_file(f"{path}/{name}")

    def _note(self, name: str, entry: FileEntry | None = None, written_ns: int | None = None) -> None:
        """Write down that file `name` is begun, or has arrived."""
        line = {"file": name} if entry is None else {"file": name, "mtime_ns": written_ns, **entry_to_json(entry)}
        with self._changing, self._record.open("a") as file:
            file.write(f"{json.dumps(line)}\n")
            self._known[name], self._written_ns[name] = entry, written_ns

    def _read(self) -> None:
        for name, entry, written_ns in _recorded(self._record):
            self._known[name], self._written_ns[name] = entry, written_ns
        if self._record.exists():
            with self._record.open("a") as file:
                file.write("\n")  # ends a line that was cut off
