"""What rows were at the latest checkpoint, of those that were written since: what makes a stopped run go back to it."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.storage.own_files import open_to_append
from diskgnn.storage.write_errors import raise_write_error

_HEADER = struct.Struct("<QI")  # of a record: how many rows, and the checksum of what follows

KEPT = "the last checkpoint is whole: go on from it with resume=True"

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class UndoJournal:
    """Rows as they were at the checkpoint of one generation, in a file beside the table's.

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
        """The checkpoint of `generation` is durable: nothing is kept of the one before."""
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
        try:
            with open_to_append(self._file) as file:
                file.write(_HEADER.pack(len(ids), zlib.crc32(content)) + content)
                file.flush()
                os.fdatasync(file.fileno())
        except OSError as error:
            raise_write_error(error, self._file, KEPT)
            raise

    def records(self) -> Iterator[tuple[Ids, Rows]]:
        """What was kept. A record that is cut short was being written: its rows are as they were.

        Raises:
            ArtifactError: another one is damaged.
        """
        if not self._file.exists():
            return
        parts, width = self._row_shape
        with self._file.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                count, checksum = _HEADER.unpack(header)
                content = file.read(min(count * (8 + parts * width * 4), size))
                if zlib.crc32(content) != checksum:
                    if file.read(1):
                        raise ArtifactError(f"{self._file} is damaged; train again")
                    return
                ids = np.frombuffer(content, np.int64, count)
                yield ids, np.frombuffer(content, np.float32, offset=8 * count).reshape(count, parts, width)
