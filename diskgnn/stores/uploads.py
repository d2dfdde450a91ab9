"""Uploads to an object store: a file that is written front to back, in bounded memory, and goes on after a kill.

A file of several parts goes to S3 by way of boto3, if that is here: pyarrow's driver cannot take up an upload that was
cut, and boto3 can. All else is written by the driver.
"""

from __future__ import annotations

import mmap
from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from diskgnn._native import crc32c
from diskgnn.stores.drivers import named_errors
from diskgnn.stores.locations import StoredPath
from diskgnn.stores.remote_files import attempted
from diskgnn.stores.s3_parts import MOST_PARTS, PART_BYTES, S3Object
from diskgnn.stores.upload_memory import BESIDE_BYTES, UPLOAD_BYTES, UploadMemory

_PARTS_AT_ONCE = 4  # of a file, one of which is being filled
_PIECE_BYTES = 1 << 20
_DRIVER_BYTES = 16 << 20  # of a file: pyarrow's parts of 10 MiB, one on the way, and what follows


@dataclass(frozen=True)
class SentPart:
    """A part of a file that a store has taken."""

    bytes: int
    crc32c: int
    etag: str  # what the store calls it: it has the same as long as that is there


@dataclass
class BegunUpload:
    """A file that is on its way to a store in parts, which the store shows when it is complete."""

    id: str
    parts: dict[int, SentPart] = field(default_factory=dict)  # by number, from 1


class UploadRecord(Protocol):
    """Keeps what is there of files that go in parts, for whoever goes on after a kill. For several threads."""

    uploads: dict[str, BegunUpload]  # by the name of the file

    def upload_begun(self, name: str, upload_id: str) -> BegunUpload:
        """Notes that file `name` goes to an upload that the store knows by its id. Returns it, without parts."""
        ...

    def part_arrived(self, name: str, number: int, part: SentPart) -> None:
        """Notes that a part of it is there."""
        ...


class PartedUpload:
    """A file that goes to S3 in parts, without those that a run before has sent and that are what they were."""

    def __init__(
        self, s3: S3Object, target: StoredPath, num_bytes: int, record: UploadRecord, memory: UploadMemory
    ) -> None:
        """Begins a file of about `num_bytes`."""
        self._s3, self._target, self._record, self._memory = s3, target, record, memory
        self._part_bytes = max(PART_BYTES, -(-num_bytes // (MOST_PARTS - 1)))
        self._part: _Part | None = None  # that is being filled
        self._number = 0
        self._etags: dict[int, str] = {}
        upload = record.uploads.get(target.name)
        there = None if upload is None else self._attempted("looking for the parts of", s3.parts, upload.id)
        if upload is None or there is None:
            upload = record.upload_begun(target.name, self._attempted("writing", s3.begin))
        self._upload, self._there = upload, there or {}
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="parts")
        self._sending: set[Future[None]] = set()

    def _attempted(self, doing: str, call: Any, *arguments: Any) -> Any:
        return attempted(f"{doing} {self._target}", partial(call, *arguments))

    def write(self, data: Any) -> None:
        """Appends bytes. What goes wrong with a part is raised later."""
        view = memoryview(data).cast("B")
        while len(view):
            part = self._part = self._part or self._next_part()
            taken = view[: part.room]
            part.bytes.write(taken)
            view = view[len(taken) :]
            if not part.room:
                self._send_part(part)

    def _next_part(self) -> _Part:
        """Waits for memory. From here until the part is sent, nobody is waited for."""
        self._wait(_PARTS_AT_ONCE - 1)
        return _Part(self._part_bytes, self._memory)

    def _send_part(self, part: _Part) -> None:
        self._number, self._part = self._number + 1, None
        sending = self._pool.submit(self._send, self._number, part)
        sending.add_done_callback(lambda _: part.release())  # also if it is never begun
        self._sending.add(sending)

    def _wait(self, most_parts: int) -> None:
        """Waits until no more parts than that are on the way. Raises what went wrong with one."""
        while len(self._sending) > most_parts:
            done = wait(self._sending, return_when="FIRST_COMPLETED").done
            self._sending -= done
            for each in done:
                each.result()

    def _send(self, number: int, made: _Part) -> None:
        size, crc = made.end()
        part = self._upload.parts.get(number)
        if part is None or (part.bytes, part.crc32c) != (size, crc) or self._there.get(number) != part.etag:
            etag = self._attempted(f"writing part {number} of", self._s3.send, self._upload.id, number, made.bytes)
            part = SentPart(size, crc, etag)
            self._record.part_arrived(self._target.name, number, part)
        self._etags[number] = part.etag

    def close(self) -> None:
        """Has the store put the parts together."""
        if self._part is not None:
            self._send_part(self._part)
        self._wait(0)
        self._attempted("completing", self._s3.complete, self._upload.id, self._etags)
        self._pool.shutdown()

    def abandon(self) -> None:
        """Sends no more parts. Those that are there wait for the next run."""
        self._pool.shutdown(cancel_futures=True)
        if self._part is not None:
            self._part.release()


class _Part:
    """Bytes that are collected, and then sent, in memory that is claimed. For one thread after another."""

    def __init__(self, num_bytes: int, memory: UploadMemory) -> None:
        self._memory, self._claimed = memory, memory.claim(num_bytes)
        self.bytes = mmap.mmap(-1, num_bytes)  # what malloc is given back, it keeps

    @property
    def room(self) -> int:
        return len(self.bytes) - self.bytes.tell()

    def end(self) -> tuple[int, int]:
        """Ends it. Returns the number of bytes, and their CRC-32C."""
        if self.room:
            self.bytes.resize(self.bytes.tell())
        with memoryview(self.bytes) as view:
            return len(view), crc32c(view, 0)

    def release(self) -> None:
        """Gives the memory back. Idempotent."""
        self.bytes.close()
        self._memory.release(self._claimed)
        self._claimed = 0


class DriverUpload:
    """A file that a driver writes. It would take all that it is given, and send that in the background."""

    def __init__(self, stream: Any, num_bytes: int, memory: UploadMemory) -> None:
        """Begins a file of about `num_bytes`."""
        self._stream, self._num_bytes, self._memory, self._claimed = stream, num_bytes, memory, 0

    def write(self, data: Any) -> None:
        """Appends bytes."""
        self._claimed = self._claimed or self._memory.claim(min(self._num_bytes, _DRIVER_BYTES))
        view = memoryview(data).cast("B")
        for first in range(0, len(view), _PIECE_BYTES):
            self._stream.write(view[first : first + _PIECE_BYTES])
            if self._num_bytes > PART_BYTES:
                self._stream.flush()  # waits for what it sends

    def close(self) -> None:
        """Makes what was written appear, whole or not. Idempotent."""
        try:
            self._stream.close()
        finally:
            self._memory.release(self._claimed)
            self._claimed = 0

    # It may make a cut object appear, which no record and no manifest names, and which the next run writes over or
    # removes. Streams of pyarrow cannot be given up: they have no abort, and those that are dropped are closed, too.
    abandon = close


def begin_upload(
    target: StoredPath, num_bytes: int, record: UploadRecord, memory: UploadMemory
) -> PartedUpload | DriverUpload:
    """Begins to write a file of about `num_bytes`, or goes on with the parts that a killed run has sent of it."""
    if num_bytes > PART_BYTES and (s3 := S3Object.at(target)) is not None:
        return PartedUpload(s3, target, num_bytes, record, memory)
    _end(target, record)
    filesystem, path = target.locate()
    return DriverUpload(filesystem.open_output_stream(path), num_bytes, memory)


def sending_bytes(target: StoredPath) -> int:
    """Returns the memory that sending to `target` takes beside the store's drivers, which are loaded now: what the
    process has counts them.
    """
    target.locate()
    S3Object.at(target)
    return UPLOAD_BYTES + BESIDE_BYTES


def write_file(target: StoredPath, data: bytes) -> None:
    """Writes a small file of a store."""
    filesystem, path = target.locate()
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


def end_uploads_in(folder: StoredPath, names: Set[str], record: UploadRecord) -> None:
    """Has the store forget the parts of files of a folder that are not to be completed: those of `record`, and those
    that no record knows, of a driver, or of a run that was killed when it had begun to send one."""
    for name in list(record.uploads):
        _end(folder / name, record)
    if (s3 := S3Object.at(folder)) is None:
        return
    for key, upload_id in attempted(f"looking for cut uploads to {folder}", s3.unfinished):
        if key.removeprefix(f"{s3.key}/") in names:
            attempted(f"removing the parts of {key}", partial(replace(s3, key=key).end, upload_id))


def _end(target: StoredPath, record: UploadRecord) -> None:
    """Has the store forget the parts of a file, if it goes in parts."""
    if (upload := record.uploads.get(target.name)) is not None:
        if (s3 := S3Object.at(target)) is not None:
            attempted(f"removing the parts of {target}", partial(s3.end, upload.id))
        del record.uploads[target.name]


class SentFile:
    """A file of a store that is written here, front to back, and never lies here. For `work.array_file`."""

    def __init__(self, target: StoredPath, num_bytes: int, record: UploadRecord, memory: UploadMemory) -> None:
        """Begins a file of about `num_bytes`."""
        self._target = target
        with named_errors(f"writing {target}"):
            self._upload = begin_upload(target, num_bytes, record, memory)
        self.num_bytes = self.crc32c = 0

    def write(self, data: Any) -> int:
        """Appends all of `data`. Returns its bytes.

        Raises:
            StoreError: the store failed, also when the driver tried again.
        """
        view = memoryview(data).cast("B")
        with named_errors(f"writing {self._target}"):
            self._upload.write(view)
        self.crc32c = crc32c(view, self.crc32c)
        self.num_bytes += len(view)
        return len(view)

    def close(self) -> None:
        """Makes it appear.

        Raises:
            StoreError: the store failed.
        """
        with named_errors(f"writing {self._target}"):
            self._upload.close()

    def abandon(self) -> None:
        """Ends it, unless it is closed: what appears, if anything does, is not whole, and the record does not say that
        it is. Idempotent."""
        with suppress(OSError):
            self._upload.abandon()
