"""How bytes get to an object store: a file at a time, or one that is made there of the parts of a local one.

A file of several parts goes to S3 by way of boto3, if that is here: pyarrow's driver cannot take up an upload that was
cut, and boto3 can. All else is written by the driver.
"""

from __future__ import annotations

import mmap
from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.storage import faults
from diskgnn.storage.disk_space import DiskBudget, punch
from diskgnn.storage.file_reading import fill, opened, read_into, reading
from diskgnn.storage.object_stores import Location, StoredPath, bytes_of
from diskgnn.storage.remote_files import attempted
from diskgnn.storage.s3_parts import MOST_PARTS, PART_BYTES, S3Object
from diskgnn.storage.sending_memory import BESIDE_BYTES, SENDING, SENDING_BYTES
from diskgnn.storage.sent_record import SentPart, SentRecord
from diskgnn.storage.store_drivers import named_errors

_PARTS_AT_ONCE = 4  # of a file, one of which is being filled
_PIECE_BYTES = 1 << 20
_DRIVER_BYTES = 16 << 20  # of a file: pyarrow's parts of 10 MiB, one on the way, and what follows


class Upload(Protocol):
    """A file of a store while it is written, front to back. It is not there before it is closed."""

    def write(self, data: Any) -> object:
        """Append bytes, which may be used for something else afterwards."""
        ...

    def close(self) -> object:
        """Make it appear."""
        ...

    def abandon(self) -> object:
        """Send no more. What of it appears, if anything does, is not whole, and the record does not say that it is."""
        ...


class PartedUpload:
    """A file that goes to S3 in parts, without those that a run before has sent and that are what they were."""

    def __init__(self, s3: S3Object, target: StoredPath, num_bytes: int, record: SentRecord) -> None:
        """Of about `num_bytes`."""
        self._s3, self._target, self._record = s3, target, record
        self._part_bytes = max(PART_BYTES, -(-num_bytes // (MOST_PARTS - 1)))
        self._part: _Part | None = None  # that is being filled
        self._number = 0
        self._etags: dict[int, str] = {}
        self._upload = record.uploads.get(target.name)
        there = None if self._upload is None else self._attempted("looking for the parts of", s3.parts, self._upload.id)
        if self._upload is None or there is None:
            self._upload = record.upload_begun(target.name, self._attempted("writing", s3.begin))
        self._there = there or {}
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="parts")
        self._sending: set[Future[None]] = set()

    def _attempted(self, doing: str, call: Any, *arguments: Any) -> Any:
        return attempted(f"{doing} {self._target}", partial(call, *arguments))

    def write(self, data: Any) -> None:
        """See `Upload`. What goes wrong with a part is raised later."""
        view = memoryview(data).cast("B")
        while len(view):
            part = self._part = self._part or self._next_part()
            taken = view[: part.room]
            part.bytes.write(taken)
            view = view[len(taken) :]
            if not part.room:
                self._send_part(part)

    def _next_part(self) -> _Part:
        """Have memory for it. From here until it is sent, nobody is waited for."""
        while len(self._sending) >= _PARTS_AT_ONCE:
            self._raise_of(wait(self._sending, return_when="FIRST_COMPLETED").done)
        return _Part(self._part_bytes)

    def _send_part(self, part: _Part) -> None:
        self._number, self._part = self._number + 1, None
        sending = self._pool.submit(self._send, self._number, part)
        sending.add_done_callback(lambda _: part.release())  # also if it is never begun
        self._sending.add(sending)

    def _raise_of(self, done: set[Future[None]]) -> None:
        self._sending -= done
        for each in done:
            each.result()

    def _send(self, number: int, made: _Part) -> None:
        assert self._upload is not None
        size, crc = made.end()
        part = self._upload.parts.get(number)
        if part is None or (part.bytes, part.crc32c) != (size, crc) or self._there.get(number) != part.etag:
            etag = self._attempted(f"writing part {number} of", self._s3.send, self._upload.id, number, made.bytes)
            part = SentPart(size, crc, etag)
            self._record.part_arrived(self._target.name, number, part)
            faults.point("upload.part")
        self._etags[number] = part.etag

    def close(self) -> None:
        """See `Upload`."""
        assert self._upload is not None
        if self._part is not None:
            self._send_part(self._part)
        while self._sending:
            self._raise_of(wait(self._sending, return_when="FIRST_COMPLETED").done)
        self._attempted("completing", self._s3.complete, self._upload.id, self._etags)
        self._pool.shutdown()

    def abandon(self) -> None:
        """See `Upload`. What is there waits for the next run."""
        self._pool.shutdown(cancel_futures=True)
        if self._part is not None:
            self._part.release()


class _Part:
    """Bytes that are collected, and then sent, in memory that is claimed. For one thread after another."""

    def __init__(self, num_bytes: int) -> None:
        self._claimed = SENDING.claim(num_bytes)
        self.bytes = mmap.mmap(-1, num_bytes)  # what malloc is given back, it keeps

    @property
    def room(self) -> int:
        return len(self.bytes) - self.bytes.tell()

    def end(self) -> tuple[int, int]:
        """Nothing follows; number of bytes, and their CRC-32C."""
        if self.room:
            self.bytes.resize(self.bytes.tell())
        with memoryview(self.bytes) as view:
            return len(view), crc32c(view, 0)

    def release(self) -> None:
        """Idempotent."""
        self.bytes.close()
        SENDING.release(self._claimed)
        self._claimed = 0


class DriverUpload:
    """A file that a driver writes. It would take all that it is given, and send that in the background."""

    def __init__(self, stream: Any, num_bytes: int) -> None:
        """Of about `num_bytes`."""
        self._stream, self._num_bytes, self._claimed = stream, num_bytes, 0

    def write(self, data: Any) -> None:
        """See `Upload`."""
        self._claimed = self._claimed or SENDING.claim(min(self._num_bytes, _DRIVER_BYTES))
        view = memoryview(data).cast("B")
        for first in range(0, len(view), _PIECE_BYTES):
            self._stream.write(view[first : first + _PIECE_BYTES])
            if self._num_bytes > PART_BYTES:
                self._stream.flush()  # waits for what it sends

    def close(self) -> None:
        """See `Upload`. Idempotent."""
        try:
            self._stream.close()
        finally:
            SENDING.release(self._claimed)
            self._claimed = 0

    abandon = close


def _begin(target: StoredPath, num_bytes: int, record: SentRecord) -> Upload:
    if num_bytes > PART_BYTES and (s3 := S3Object.at(target)) is not None:
        return PartedUpload(s3, target, num_bytes, record)
    end_upload(target, record)
    filesystem, path = target.locate()
    return DriverUpload(filesystem.open_output_stream(path), num_bytes)


def sending_bytes(target: StoredPath) -> int:
    """Returns the memory that sending to `target` takes beside the store's drivers, which are loaded now: what the
    process has counts them.
    """
    target.locate()
    S3Object.at(target)
    return SENDING_BYTES + BESIDE_BYTES


def copy_file(source: Location, target: StoredPath, record: SentRecord) -> int:
    """Send a file; CRC-32C of what was read of it."""
    crc, offset, view = 0, 0, memoryview(bytearray(_PIECE_BYTES))
    with reading(source) as file:
        upload = _begin(target, bytes_of(source), record)
        try:
            while read := read_into(file, offset, view, source):
                crc, offset = crc32c(view[:read], crc), offset + read
                upload.write(view[:read])
            upload.close()
        except BaseException:
            with suppress(OSError):
                upload.abandon()
            raise
    return crc


def write_file(target: StoredPath, data: bytes) -> None:
    """Write a small file of a store."""
    filesystem, path = target.locate()
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


def end_upload(target: StoredPath, record: SentRecord) -> None:
    """Have the store forget the parts of a file that are not to be completed, if there are any."""
    if (upload := record.uploads.get(target.name)) is not None:
        if (s3 := S3Object.at(target)) is not None:
            attempted(f"removing the parts of {target}", partial(s3.end, upload.id))
        del record.uploads[target.name]


def end_uploads_in(folder: StoredPath, names: Set[str]) -> None:
    """Have the store forget the parts of files of a folder that no record knows: of a driver, or of a run that was
    killed when it had begun to send one."""
    if (s3 := S3Object.at(folder)) is None:
        return
    for key, upload_id in attempted(f"looking for cut uploads to {folder}", s3.unfinished):
        if key.removeprefix(f"{s3.key}/") in names:
            attempted(f"removing the parts of {key}", partial(replace(s3, key=key).end, upload_id))


class SentFile:
    """A file of a store that is written here, front to back, and never lies here. For `storage.array_file`."""

    def __init__(self, target: StoredPath, num_bytes: int, record: SentRecord) -> None:
        """Of `num_bytes`, about."""
        self._target = target
        with named_errors(f"writing {target}"):
            self._upload = _begin(target, num_bytes, record)
        self.num_bytes = self.crc32c = 0

    def write(self, data: Any) -> int:
        """Append all of `data`; its bytes.

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
        """Make it appear.

        Raises:
            StoreError: the store failed.
        """
        with named_errors(f"writing {self._target}"):
            self._upload.close()

    def abandon(self) -> None:
        """End it, unless it is closed: what appears, if anything does, is not whole, and the record does not say that
        it is. Idempotent."""
        with suppress(OSError):
            self._upload.abandon()


class ExtentsStream(SentFile):
    """One file of a store, made of the parts of a local file, in order; what was sent of that takes no space here."""

    def __init__(self, target: StoredPath, num_bytes: int, record: SentRecord, disk: DiskBudget) -> None:
        super().__init__(target, num_bytes, record)
        self._disk = disk

    def append(self, path: Path, end: int) -> None:
        """Send the local file up to byte `end`, and give its space back.

        Raises:
            StoreError: the store failed, also when the driver tried again.
        """
        begin, view = self.num_bytes, memoryview(bytearray(_PIECE_BYTES))
        with opened(path) as file:
            while self.num_bytes < end:
                self.write(fill(file, self.num_bytes, view[: end - self.num_bytes], path))
        faults.point("push.part")
        punch(path, begin, end - begin)
        self._disk.look()

    def require(self, expected_crc32c: int) -> None:
        """Refuse to make it appear if it is not what was to be sent.

        Raises:
            ArtifactError: what was sent has another checksum.
        """
        if self.crc32c != expected_crc32c:
            raise ArtifactError(f"what was sent to {self._target} is not what was made: the disk does not keep it")
