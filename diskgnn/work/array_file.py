"""One .npy file of an artifact, written front to back, its checksums computed on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c, crc32c_combine
from diskgnn.files import faults
from diskgnn.files.checked_files import (
    CHECKSUM_CHUNK_BYTES,
    ChecksummedFile,
    ChunkChecksums,
    npy_header_bytes,
)
from diskgnn.files.disk_space import free_bytes
from diskgnn.formats.manifest_document import FileEntry
from diskgnn.stores.uploads import SentFile
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter
from diskgnn.work.written_spans import Span

# What other files have to have room for beside one that stays here: checksums of its chunks, and what is small.
_SMALL_PART, _SMALL_BYTES = 256, 1 << 20
_HELD_CHUNKS = 1 << 16  # whose checksums are in memory before they are written


class ArrayFile(StepFile):
    """One .npy file of an artifact, written front to back like `ChecksummedFile`: by a fold, or as a context manager.

    With `ends` False, steps read it that come after, and it is no file of the artifact.
    `rows` None means as many as will have been written. `checksums` names a .npy file for those of its chunks (see
    `ChunkChecksums`).

    With `may_stream`, where the artifact goes to a store and the file has no room here, it is written there at once. A
    killed run makes it again.

    State: `<name>` [5], the rows that are written, the CRC-32C of the file so far, and `ChunkChecksums.state`.
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
        ends: bool = True,
    ) -> None:
        super().__init__(writer, name, ends=ends)
        assert checksums is None or rows is not None
        assert ends or rows is None  # whoever goes on with it says how many there are
        self._rows, self._row_shape, self.dtype, self._may_stream = rows, row_shape, np.dtype(dtype), may_stream
        self._header = npy_header_bytes(self.dtype, (rows or 0, *row_shape))
        self.is_sent = ends
        self.num_bytes = self._bytes_of(rows or 0)
        self.rows_written = 0  # those of the last commit, when it is opened
        self._checksums: ArrayFile | None = None  # of the chunks: written as they are known
        if checksums is not None:
            self._checksums = ArrayFile(writer, checksums, np.uint32, -(-self.num_bytes // CHECKSUM_CHUNK_BYTES))

    @property
    def parts(self) -> Sequence[StepFile]:
        """Returns itself, behind the file with its checksums."""
        return [*([] if self._checksums is None else self._checksums.parts), self]

    @property
    def header_bytes(self) -> int:
        """Returns where the rows begin."""
        return len(self._header)

    def first(self) -> State:
        """Returns that no rows are written."""
        return {self.name: np.zeros(5, np.int64)}

    def written(self, state: State) -> Iterator[Span]:
        """Yields the rows, behind the header; but that of as many rows as will have been written is written last."""
        rows, crc, *_ = state[self.name].tolist()
        begin = len(self._header) if self._rows is None else 0
        yield Span(begin, self._bytes_of(rows) - begin, crc, crc32c_before=crc32c(self._header[:begin]))

    def open(self, state: State) -> None:
        """Writes the header, or goes on behind the rows that `state` says."""
        self._state = state[self.name]
        self.rows_written, crc, *_ = self._state.tolist()
        self._chunks = ChunkChecksums.after(self._state[2:])
        if self._state.any():
            kept_bytes, disk = self._bytes_of(self.rows_written), self.writer.disk
            self._file: ChecksummedFile | SentFile = ChecksummedFile(
                self.path, kept_bytes=kept_bytes, crc32c=crc, disk=disk, keeps_pages=not self.ends
            )
        else:
            self._file = self._begun()
            self._write(self._header)

    def _begun(self) -> ChecksummedFile | SentFile:
        writer, outbox = self.writer, self.writer.outbox
        if self._may_stream and outbox is not None and self._rows is not None:
            outbox.drain()
            self.path.unlink(missing_ok=True)
            writer.disk.look()
            if self.num_bytes + self.num_bytes // _SMALL_PART + _SMALL_BYTES > free_bytes(writer.staging, writer.disk):
                self.is_streamed = True
                return outbox.file(self.name, self.num_bytes)
        return ChecksummedFile(self.path, disk=writer.disk, keeps_pages=not self.ends)

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Append `rows` [any number, *row_shape] of the file's dtype."""
        assert (rows.shape[1:], rows.dtype) == (self._row_shape, self.dtype), (rows.shape, rows.dtype)
        self.rows_written += len(rows)
        assert self._rows is None or self.rows_written <= self._rows, (self.rows_written, self._rows)
        faults.point("artifact.write")
        self._write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))

    def _write(self, data: Any) -> None:
        self._file.write(data)
        if self._checksums is not None:
            self._chunks.add(data)
            if self._chunks.num_finished >= _HELD_CHUNKS:
                self._checksums.write(self._chunks.take())

    def _bytes_of(self, rows: int) -> int:
        return len(self._header) + rows * math.prod(self._row_shape) * self.dtype.itemsize

    def hand_over(self) -> None:
        """Writes the checksums of the chunks that are full."""
        if self._checksums is not None:
            self._checksums.write(self._chunks.take())
        self._state[:] = [self.rows_written, self._file.crc32c, *self._chunks.state()]

    def close(self) -> None:
        """Completes the file and the one with its checksums."""
        if self._checksums is not None:
            self._checksums.write(self._chunks.chunks())
        self._file.close()
        assert self._rows in (None, self.rows_written), (self._rows, self.rows_written)
        shape = (self.rows_written, *self._row_shape)
        if isinstance(self._file, SentFile):
            entry = FileEntry(self._bytes_of(self.rows_written), self._file.crc32c, self.dtype.str, shape)
            self.writer.add_sent(self.name, entry)
        elif self._rows is not None:
            self.writer.add(self.name, crc32c=self._file.crc32c)
        else:
            header = npy_header_bytes(self.dtype, shape)
            with self.path.open("r+b") as file:
                file.write(header)
            if not self.ends:
                return
            # Not read again: a disk that has changed the rows since would be believed.
            rows_bytes = self._bytes_of(self.rows_written) - len(header)
            other_header = crc32c(self._header) ^ crc32c(header)
            self.writer.add(self.name, crc32c=self._file.crc32c ^ crc32c_combine(other_header, 0, rows_bytes))

    def abandon(self) -> None:
        """Leaves it incomplete."""
        if isinstance(self._file, SentFile):
            self._file.abandon()
        else:
            self._file.close()
