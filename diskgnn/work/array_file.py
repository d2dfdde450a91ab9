"""One .npy file of an artifact, written front to back, its checksums computed on the way."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.files import faults
from diskgnn.files.checked_files import (
    CHECKSUM_CHUNK_BYTES,
    ChecksummedFile,
    ChunkChecksums,
    checksum_file,
    npy_header_bytes,
)
from diskgnn.files.disk_space import allocated_bytes, free_bytes
from diskgnn.formats.manifest_document import FileEntry
from diskgnn.stores.uploads import SentFile
from diskgnn.work.writer import ArtifactWriter

# What other files have to have room for beside one that stays here: checksums of its chunks, and what is small.
_SMALL_PART, _SMALL_BYTES = 256, 1 << 20
_HELD_CHUNKS = 1 << 16  # whose checksums are in memory before they are written


class ArrayFile:
    """One .npy file of an artifact, written front to back like `ChecksummedFile`.

    Use as a context manager; leaving it without an error registers the file. `rows` None means as many as will
    have been written, which costs one read of the file for its checksum. `checksums` names a .npy file for those of
    its chunks (see `ChunkChecksums`). What a killed run wrote is written over, unless it is to `go_on`.

    With `may_stream`, where the artifact goes to a store and the file has no room here, it is written there at once. A
    killed run makes it again.
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        name: str,
        dtype: npt.DTypeLike,
        rows: int | None,
        row_shape: tuple[int, ...] = (),
        checksums: str | None = None,
        *,
        may_stream: bool = False,
    ) -> None:
        assert checksums is None or rows is not None
        self._writer, self.name, self._rows, self._row_shape = writer, name, rows, row_shape
        self._dtype, self._may_stream = np.dtype(dtype), may_stream
        self._header = npy_header_bytes(self._dtype, (self._rows or 0, *self._row_shape))
        num_bytes = len(self._header) + (rows or 0) * math.prod(row_shape) * self._dtype.itemsize
        self._whole_bytes = None if rows is None else num_bytes
        self._chunks = ChunkChecksums()
        self._checksums: ArrayFile | None = None  # of the chunks: written as they are known
        if checksums is not None:
            self._checksums = ArrayFile(writer, checksums, np.uint32, -(-num_bytes // CHECKSUM_CHUNK_BYTES))
        self.rows_written = self._num_bytes = 0
        self._goes_on = False

    @property
    def names(self) -> list[str]:
        """Names of the file and of the one with its checksums."""
        return [self.name, *([] if self._checksums is None else self._checksums.names)]

    def __enter__(self) -> ArrayFile:
        if self._goes_on:
            return self
        if self._checksums is not None:
            self._checksums.__enter__()
        self._file = self._opened()
        self._write(self._header)
        return self

    def _opened(self) -> ChecksummedFile | SentFile:
        path, outbox, num_bytes = self._writer.path(self.name), self._writer.outbox, self._whole_bytes
        if self._may_stream and outbox is not None and num_bytes is not None:
            outbox.drain()
            path.unlink(missing_ok=True)
            self._writer.disk.look()
            if num_bytes + num_bytes // _SMALL_PART + _SMALL_BYTES > free_bytes(path.parent, self._writer.disk):
                return outbox.file(self.name, num_bytes)
        return ChecksummedFile(path, disk=self._writer.disk)

    @property
    def is_streamed(self) -> bool:
        """True if it is written to a store at once."""
        return isinstance(self._file, SentFile)

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Append `rows` [any number, *row_shape] of the file's dtype."""
        assert (rows.shape[1:], rows.dtype) == (self._row_shape, self._dtype), (rows.shape, rows.dtype)
        self.rows_written += len(rows)
        assert self._rows is None or self.rows_written <= self._rows, (self.rows_written, self._rows)
        faults.point("artifact.write")
        self._write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))

    def done(self) -> dict[str, npt.NDArray[Any]]:
        """Returns what `go_on` needs to know of what is written so far."""
        written = {"rows": np.array(self.rows_written), "written": np.array([self._num_bytes, self._file.crc32c])}
        if self._checksums is None:
            return written
        self._checksums.write(self._chunks.take())
        written |= {f"checksums/{name}": array for name, array in self._checksums.done().items()}
        return written | {"chunk": self._chunks.state()}

    def go_on(self, done: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Opens the file after what a killed run had written when it was `done`, before it is entered; `rows_written`
        says how many rows those are. Or returns False: what was written is not what it was."""
        path, (num_bytes, crc32c), disk = self._writer.path(self.name), done["written"].tolist(), self._writer.disk
        there = allocated_bytes(path)
        try:
            os.truncate(path, num_bytes)
            disk.release(there - allocated_bytes(path))
            if self._rows is None:
                self._write_length(0)  # it has the right one if the run was killed after it was complete
            if checksum_file(path) != crc32c:
                return False
        except OSError:  # it is not there, or the disk cannot read it any more
            return False
        self.rows_written, self._num_bytes = int(done["rows"]), num_bytes
        if self._checksums is not None:
            prefix = "checksums/"
            before = {name.removeprefix(prefix): array for name, array in done.items() if name.startswith(prefix)}
            if not before or not self._checksums.go_on(before):  # of an older version
                return False
            self._chunks = ChunkChecksums.after(done["chunk"])
        self._file = ChecksummedFile(path, kept_bytes=num_bytes, crc32c=crc32c, disk=disk)
        self._goes_on = True
        return True

    def _write(self, data: Any) -> None:
        self._num_bytes += self._file.write(data)
        if self._checksums is not None:
            self._chunks.add(data)
            if self._chunks.num_finished >= _HELD_CHUNKS:
                self._checksums.write(self._chunks.take())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._checksums is not None:
            if kind is None:
                self._checksums.write(self._chunks.chunks())
            self._checksums.__exit__(kind, error, trace)
        if kind is not None and isinstance(self._file, SentFile):
            self._file.abandon()
            return
        self._file.close()
        if kind is not None:
            return
        assert self._rows in (None, self.rows_written), (self._rows, self.rows_written)
        if self._rows is None:
            self._write_length(self.rows_written)
        if isinstance(self._file, SentFile):
            dtype, shape = self._dtype.str, (self.rows_written, *self._row_shape)
            self._writer.add_sent(self.name, FileEntry(self._num_bytes, self._file.crc32c, dtype, shape))
        else:
            self._writer.add(self.name, crc32c=None if self._rows is None else self._file.crc32c)

    def _write_length(self, rows: int) -> None:
        with self._writer.path(self.name).open("r+b") as file:
            file.write(npy_header_bytes(self._dtype, (rows, *self._row_shape)))
