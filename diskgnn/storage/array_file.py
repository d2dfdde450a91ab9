"""One .npy file of an artifact, written front to back, its checksums computed on the way."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskgnn.storage import faults
from diskgnn.storage.checked_files import ChecksummedFile, ChunkChecksums, checksum_file, npy_header_bytes
from diskgnn.storage.pace import Pace

if TYPE_CHECKING:
    from diskgnn.storage.writer import ArtifactWriter


class ArrayFile:
    """One .npy file of an artifact, written front to back like `ChecksummedFile`.

    Use as a context manager; leaving it without an error registers the file. `rows` None means as many as will
    have been written, which costs one read of the file for its checksum. `checksums` names a .npy file for those of
    its chunks (see `ChunkChecksums`). With `pace`, and a writer that is resumable, a killed run goes on where it was:
    after `rows_written` rows, once it is entered.
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        name: str,
        dtype: npt.DTypeLike,
        rows: int | None,
        row_shape: tuple[int, ...] = (),
        checksums: str | None = None,
        pace: Pace | None = None,
    ) -> None:
        assert checksums is None or rows is not None
        self._writer, self._name, self._rows, self._row_shape = writer, name, rows, row_shape
        self._checksums, self._chunks = checksums, ChunkChecksums()
        self._dtype, self._pace = np.dtype(dtype), pace
        assert pace is None or rows is not None
        self.rows_written = self._num_bytes = 0

    def __enter__(self) -> ArrayFile:
        if self._pace is not None and self._goes_on():
            return self
        self._file = ChecksummedFile(self._writer.path(self._name))
        self._write(npy_header_bytes(self._dtype, (self._rows or 0, *self._row_shape)))
        return self

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Append `rows` [any number, *row_shape] of the file's dtype."""
        assert (rows.shape[1:], rows.dtype) == (self._row_shape, self._dtype), (rows.shape, rows.dtype)
        self.rows_written += len(rows)
        assert self._rows is None or self.rows_written <= self._rows, (self.rows_written, self._rows)
        faults.point("artifact.write")
        self._write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))
        if self._pace is not None and self._pace.done(rows.nbytes):
            done = {"rows": np.array(self.rows_written), "written": np.array([self._num_bytes, self._file.crc32c])}
            self._writer.record(self._name, done | self._chunks.done(), claims=[self._name])

    def _goes_on(self) -> bool:
        """Open the file where a killed run recorded how far it was, if what it wrote is what it was."""
        path, done = self._writer.path(self._name), self._writer.recorded(self._name)
        if done is None:
            return False
        num_bytes, crc32c = done["written"].tolist()
        try:
            os.truncate(path, num_bytes)
            if checksum_file(path) != crc32c:
                return False
        except OSError:  # it is not there, or the disk cannot read it any more
            return False
        self.rows_written, self._num_bytes = int(done["rows"]), num_bytes
        self._chunks = ChunkChecksums.after(done)
        self._file = ChecksummedFile(path, kept_bytes=num_bytes, crc32c=crc32c)
        return True

    def _write(self, data: Any) -> None:
        self._num_bytes += self._file.write(data)
        if self._checksums is not None:
            self._chunks.add(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None:
            return
        assert self._rows in (None, self.rows_written), (self._rows, self.rows_written)
        if self._rows is None:
            with self._writer.path(self._name).open("r+b") as file:
                file.write(npy_header_bytes(self._dtype, (self.rows_written, *self._row_shape)))
        self._writer.add(self._name, crc32c=None if self._rows is None else self._file.crc32c)
        if self._checksums is not None:
            self._writer.save_array(self._checksums, self._chunks.chunks())
