"""Sending of an artifact to an object store: a few files at a time, the manifest last.

Files are put into an outbox as they are complete, while others are made (`ArtifactWriter`), or those of a finished
directory one after the other (`push`). A record on this machine, one for each target, says what was sent there: whoever
goes on after a kill asks the store whether it is still that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError, BusyError, ConfigError
from diskgnn.files import faults
from diskgnn.files.checked_files import checksum_file
from diskgnn.files.destination import make_scratch
from diskgnn.files.disk_space import UNLIMITED, DiskBudget, file_bytes
from diskgnn.files.file_reading import pieces_of, reading
from diskgnn.files.locks import FileLock
from diskgnn.files.write_errors import beginning
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.formats.manifest_document import ExternalFile, FileEntry
from diskgnn.progress.reporter import Advance
from diskgnn.stores.drivers import named_errors
from diskgnn.stores.locations import Location, StoredPath, bytes_of
from diskgnn.stores.remote_files import attempted
from diskgnn.stores.upload_memory import UploadMemory
from diskgnn.stores.uploads import PartedUpload, SentFile, begin_upload, end_uploads_in, write_file
from diskgnn.work.sent_record import Arrived, SentRecord

if TYPE_CHECKING:
    import pyarrow.fs as pafs

FILES_AT_ONCE = 4  # each in parts, of which the driver sends several at a time
_POLL_SECONDS = 0.1


def refuse_headerless(external: Mapping[str, ExternalFile]) -> None:
    """Refuses to send an artifact that refers to files without a header, which would be no .npy files there.

    Raises:
        ConfigError: names them.
    """
    if headerless := [name for name, file in external.items() if file.headerless]:
        raise ConfigError(
            f"files without a header ({', '.join(headerless)}) cannot be sent as a part of what refers to them: make "
            f"it without `reference_features`"
        )


class Outbox:
    """Sends the files of one artifact to a store. For several threads; `begin` it, and `close` it, or leave
    its `with` block.

    Args:
        target: what the artifact is called on the store.
        disk: has the space of what was sent again.
        advance: told of the bytes of each file that has arrived.
    """

    def __init__(self, target: StoredPath, disk: DiskBudget = UNLIMITED, advance: Advance = lambda _: None) -> None:
        self.target, self._disk, self._advance = target, disk, advance
        self._record, self._memory = SentRecord(target), UploadMemory()
        self._lock = FileLock(self._record.path.with_suffix(".lock"))
        self._changing, self._stopping = threading.RLock(), threading.Event()
        self._pool = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="send")
        self._sending: dict[str, Future[None]] = {}  # by name of a file
        self._streams: list[SentFile] = []
        self._there: dict[str, pafs.FileInfo] = {}  # when it was begun, or a file arrived
        self._taken: dict[str, FileEntry | None] = {}  # on their way, or there; None while the checksum is not known

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.stop()
        self.close()

    def begin(self) -> None:
        """Makes ready to send: takes the lock of the target, and reads what earlier runs have sent there.

        Raises:
            BusyError: another process sends there.
            StoreError: the store failed, or refused.
        """
        folder = self._record.path.parent
        with beginning(folder):
            make_scratch(self.target)
            if not self._lock.acquire():
                raise BusyError(f"another process is sending {self.target} now; wait for it or stop it")
            self._record.read(for_more=True)
        filesystem, path = self.target.locate()
        if not self.target.has_buckets() and not self.target.exists():
            with named_errors(f"making {self.target}"):
                filesystem.create_dir(path, recursive=True)
        self._there = self.target.entries()
        self._disk.relieved_by(self._relieve)

    def replace(self, names: Mapping[str, FileEntry]) -> None:
        """Removes the manifest of the artifact that is there, so that nobody opens it any more. In the end its files
        are removed for which no others came."""
        for name in names:
            self._record.begun(name)
        filesystem, path = self.target.locate()
        with named_errors(f"replacing {self.target}"):
            filesystem.delete_file(f"{path}/{MANIFEST}")

    def believe(self, files: Mapping[str, FileEntry]) -> None:
        """Counts as sent those files of a manifest on the store that are what it says.

        What is older than the manifest is; other files are read, unless the record knows them. The rest is sent again.
        """
        published = self._there.get(MANIFEST)
        for name, entry in files.items():
            info = self._there.get(name)
            if published is None or info is None or info.mtime_ns is None or info.size != entry.bytes:
                continue
            if self._is_unchanged(name, info):
                continue
            if info.mtime_ns < published.mtime_ns or checksum_file(self.target / name) == entry.crc32c:
                self._record.files[name] = Arrived(entry, info.mtime_ns)

    def adopt(self, name: str, num_bytes: int, crc32c: int) -> FileEntry | None:
        """Returns file `name` of so many bytes with that checksum, if it was sent and the store has just that, or is
        going to: this run sends it."""
        taken = self._taken.get(name)
        if taken is not None and (taken.bytes, taken.crc32c) == (num_bytes, crc32c):
            return taken
        sent, info = self._record.files.get(name), self._there.get(name)
        if sent is None or (sent.entry.bytes, sent.entry.crc32c) != (num_bytes, crc32c):
            return None
        if info is None or info.mtime_ns is None or not self._is_unchanged(name, info):
            return None
        self._taken[name] = sent.entry
        return sent.entry

    def send(self, name: str, path: Location, entry: FileEntry, *, keep: bool = False) -> bool:
        """Sends file `name`, which lies at `path`, unless it was sent or is on its way. Returns True if it goes.

        Waits while FILES_AT_ONCE are on the way. Unless `keep`, the file is removed here when it has arrived. What goes
        wrong is raised by a later call. Nothing goes after `stop`.
        """
        while not self._stopping.is_set():
            with self._changing:
                waiting = self._unfinished()
                is_there = self.adopt(name, entry.bytes, entry.crc32c) is not None
                if is_there and name not in waiting:
                    self._done(path, entry, keep)
                if is_there:
                    return False
                if name not in waiting and len(waiting) < FILES_AT_ONCE:
                    self._sending[name] = self._pool.submit(self._send, name, path, entry, keep)
                    self._taken[name] = entry
                    return True
            # A signal that another thread got is handled in between.
            wait(waiting.values(), _POLL_SECONDS, FIRST_COMPLETED)
        return False

    def has(self, name: str) -> bool:
        """Returns True if file `name` is on its way, or there."""
        return name in self._taken

    def file(self, name: str, num_bytes: int) -> SentFile:
        """Begins file `name` of the store, of `num_bytes`, that is written at once and never lies here."""
        self._record.begun(name)
        self._taken[name] = None
        self._streams.append(found := SentFile(self.target / name, num_bytes, self._record, self._memory))
        return found

    def arrived(self, name: str, entry: FileEntry) -> None:
        """Notes that file `name` is whole on the store, as `entry` says."""
        self._there[name] = info = (self.target / name).info()
        self._record.arrived(name, entry, info.mtime_ns)
        self._taken[name] = entry

    def drain(self, needs: Callable[[str], bool] = lambda _: True) -> None:
        """Waits until nothing that it `needs` to wait for, by name, is on the way, and takes space here. What went
        wrong is raised."""
        while any(map(needs, self._unfinished())):
            self._relieve()

    def _relieve(self) -> bool:
        """Waits for a file that is on its way to arrive, but not for long; False if none is."""
        if waiting := self._unfinished():
            wait(waiting.values(), _POLL_SECONDS, FIRST_COMPLETED)
        return bool(waiting)

    def publish(self, files: Mapping[str, FileEntry], document: str, digest: str) -> None:
        """Writes the manifest, of that `digest`, once all `files` have arrived, and removes what else was sent.

        Raises:
            ArtifactError: a file is not what had arrived: somebody else writes there, too.
            StoreError: the store failed.
        """
        self.drain()
        found = self.target.entries()
        if wrong := [name for name, entry in files.items() if not self._is_whole(name, entry, found.get(name))]:
            raise ArtifactError(
                f"{self.target} has other files than were sent ({', '.join(wrong[:5])}): somebody else writes there. "
                f"See that nobody does, and run the same command again, which sends them again"
            )
        faults.point("push.files")
        self._record.publishes(digest)
        attempted(f"writing {self.target / MANIFEST}", partial(write_file, self.target / MANIFEST, document.encode()))
        faults.point("push.published")
        self.finish(files)

    def finish(self, files: Mapping[str, FileEntry]) -> None:
        """Removes what is no part of the manifest, which is there, and parts of uploads that were cut."""
        self._delete(self.target.entries().keys() & self._record.files.keys() - files.keys())
        end_uploads_in(self.target, {*files, *self._record.files}, self._record)
        if {each.name for each in self._record.path.parent.iterdir()} <= {self._record.path.name, self._lock.path.name}:
            self._record.forget()  # otherwise whoever has scratch beside it removes both, the record last

    def remove_sent(self) -> None:
        """Removes what was sent: it is made again, in another way, or not at all."""
        self.stop()
        self._settle()
        self._stopping.clear()
        if self._record.files:
            self._delete(self.target.entries().keys() & self._record.files.keys())
            end_uploads_in(self.target, self._record.files.keys(), self._record)
        self._record.forget()
        for known in (self._sending, self._there, self._taken):
            known.clear()

    def stop(self) -> None:
        """Has files that go in parts end at their next piece: an error ends the run, and the next one sends what is
        missing of them. Others arrive, as nobody could go on with them."""
        self._stopping.set()

    def close(self) -> None:
        """Waits for what is on the way, and releases the lock. Idempotent."""
        self._settle()
        self._disk.relieved_by(None)
        self._pool.shutdown()
        self._lock.release()
        with suppress(OSError):  # something is made there, or gone on with
            self._record.path.parent.rmdir()

    def _settle(self) -> None:
        for stream in self._streams:
            stream.abandon()
        wait(self._sending.values())

    def _unfinished(self) -> dict[str, Future[None]]:
        """Returns what is on the way. Raises what went wrong with a file, each time that it is called."""
        with self._changing:
            for name, each in list(self._sending.items()):
                if each.done():
                    if not self._stopping.is_set():
                        each.result()
                    del self._sending[name]
            return dict(self._sending)

    def _send(self, name: str, path: Location, entry: FileEntry, keep: bool) -> None:
        self._record.begun(name)
        crc = attempted(f"writing {self.target / name}", partial(self._copy, name, path))
        if crc != entry.crc32c:
            raise ArtifactError(
                f"{path} is damaged: its CRC-32C is {crc:08x}, expected {entry.crc32c:08x}; make it again: "
                f"`diskgnn verify` says what is damaged"
            )
        self.arrived(name, entry)
        faults.point("push.file")
        self._done(path, entry, keep)

    def _copy(self, name: str, path: Location) -> int:
        """Sends a file. Returns the CRC-32C of what was read of it."""
        crc, num_bytes = 0, bytes_of(path)
        with reading(path) as file:
            upload = begin_upload(self.target / name, num_bytes, self._record, self._memory)
            try:
                for piece in pieces_of(file, path):
                    if isinstance(upload, PartedUpload) and self._stopping.is_set():  # others could not go on
                        raise CancelledError
                    crc = crc32c(piece, crc)
                    upload.write(piece)
                upload.close()
            except BaseException:
                with suppress(OSError):
                    upload.abandon()
                raise
        return crc

    def _is_unchanged(self, name: str, info: pafs.FileInfo | None) -> bool:
        """Returns True if the store says of file `name` what it said when that had arrived."""
        sent = self._record.files.get(name)
        return (
            sent is not None and info is not None and (info.size, info.mtime_ns) == (sent.entry.bytes, sent.written_ns)
        )

    def _is_whole(self, name: str, entry: FileEntry, listed: pafs.FileInfo | None) -> bool:
        """Returns True if file `name` is what had arrived. All of it is read where times do not say so."""
        if self._is_unchanged(name, listed):
            return True
        info = (self.target / name).info()  # some stores list times more precisely
        return self._is_unchanged(name, info) or (
            info.size == entry.bytes and checksum_file(self.target / name) == entry.crc32c
        )

    def _done(self, path: Location, entry: FileEntry, keep: bool) -> None:
        self._advance(entry.bytes)
        if not keep:
            assert isinstance(path, Path)
            if path.exists():
                self._disk.remove(path, file_bytes(entry.bytes))

    def _delete(self, names: Set[str]) -> None:
        filesystem, path = self.target.locate()
        with named_errors(f"removing what was sent to {self.target}"):
            for name in sorted(names):
                filesystem.delete_file(f"{path}/{name}")
