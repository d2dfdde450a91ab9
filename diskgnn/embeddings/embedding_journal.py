"""Keeps what rows were at the latest checkpoint, of those that were written since: a stopped run goes back to it."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.files.own_files import open_to_append
from diskgnn.files.write_errors import raise_write_error

# Of a record: how many rows, and the checksum of what follows; then the checksum of these two. Without it, a count that
# has a bit flipped upwards would make all that follows look like one record that was cut short.
_HEADER, _HEADER_CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")

KEPT = "the last checkpoint is whole: go on from it with resume=True"

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@contextmanager
def writing_vectors(path: Path) -> Iterator[None]:
    """Says of a write that fails in the block which file it was.

    Raises:
        DiskFullError, WriteError: the disk is full, or failed.
    """
    try:
        yield
    except OSError as error:
        raise_write_error(error, path, KEPT)
        raise


class UndoJournal:
    """Keeps rows as they were at the checkpoint of one generation, in a file beside the table's.

    It grows to what was written since that checkpoint, at most to the size of the table.

    Args:
        table: file of the rows.
        row_shape: (parts, width).
        generation: of the checkpoint; at 0 there is none to go back to, and nothing is kept.
    """

    def __init__(self, table: Path, row_shape: tuple[int, int], generation: int) -> None:
        self._table, self._row_shape, self.generation = table, row_shape, generation

    @property
    def _file(self) -> Path:
        return self._table.with_name(f"{self._table.name}.undo-{self.generation}")

    def begin(self, generation: int) -> None:
        """Begins `generation`, whose checkpoint is durable: nothing is kept of the one before."""
        before, self.generation = self._file, generation
        before.unlink(missing_ok=True)

    def remove_others(self) -> None:
        """Remove journals of other generations."""
        for file in self._table.parent.glob(f"{self._table.name}.undo-*"):
            if file != self._file:
                file.unlink()

    def keep(self, ids: Ids, rows: Rows) -> None:
        """Keep rows [n, parts, width] as they are before they are written; durable when this returns.

        Raises:
            DiskFullError, WriteError: the disk is full, or failed.
        """
        if self.generation == 0 or not len(ids):
            return
        content = ids.tobytes() + rows.tobytes()
        with writing_vectors(self._file), open_to_append(self._file) as file:
            header = _HEADER.pack(len(ids), zlib.crc32(content))
            file.write(header + _HEADER_CHECKSUM.pack(zlib.crc32(header)) + content)
            file.flush()
            os.fdatasync(file.fileno())

    def records(self) -> Iterator[tuple[Ids, Rows]]:
        """Yields what was kept. A last record that is not whole was being written: its rows are as they were.

        Raises:
            ArtifactError: another one is damaged, or a header.
        """
        if not self._file.exists():
            return
        parts, width = self._row_shape
        with self._file.open("rb") as file:
            header_bytes = _HEADER.size + _HEADER_CHECKSUM.size
            while len(header := file.read(header_bytes)) == header_bytes:
                if _HEADER_CHECKSUM.pack(zlib.crc32(header[: _HEADER.size])) != header[_HEADER.size :]:
                    if any(header):  # zeros are a file that grew before a power cut, and was not written
                        raise self._damage_error()
                    return
                count, checksum = _HEADER.unpack(header[: _HEADER.size])
                content = file.read(count * (8 + parts * width * 4))
                if zlib.crc32(content) != checksum:
                    if file.read(1):
                        raise self._damage_error()
                    return
                ids = np.frombuffer(content, np.int64, count)
                yield ids, np.frombuffer(content, np.float32, offset=8 * count).reshape(count, parts, width)

    def _damage_error(self) -> ArtifactError:
        return ArtifactError(f"{self._file} is damaged; train again")
