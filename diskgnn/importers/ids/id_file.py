"""The file of the user's ids of one type of nodes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

ROW_GROUP_IDS = 1 << 17  # of the file, whose bytes must not depend on how the source was read


class IdFile(StepFile):
    """The Parquet file of the ids of all nodes of a type: one column `id`, row i is node i.

    Its footer is written last, so nobody goes on within it.

    Args:
        kind: of the column.
        is_kept: leave it there if ids are the numbers of their rows, too.
    """

    def __init__(self, writer: ArtifactWriter, name: str, kind: pa.DataType, *, is_kept: bool) -> None:
        super().__init__(writer, name)
        self._kind, self._is_kept = kind, is_kept

    def open(self, state: State) -> None:
        """Begins the file."""
        del state
        self._file = ChecksummedFile(self.path, disk=self.writer.disk)
        schema = pa.schema([("id", self._kind)])
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd", use_dictionary=False)
        self._waiting, self._count = list[pa.Array](), 0
        self._counts_rows = not self._is_kept and pa.types.is_integer(self._kind)  # so far

    def add(self, ids: pa.Array) -> None:
        """Adds `ids` after those that were added before."""
        if self._counts_rows:
            self._counts_rows = not ids.null_count and bool(
                (np.asarray(ids) == np.arange(self._count, self._count + len(ids))).all()
            )
        self._waiting.append(ids)
        self._count += len(ids)
        if sum(map(len, self._waiting)) >= 4 * ROW_GROUP_IDS:
            self._write(ROW_GROUP_IDS)

    def _write(self, multiple: int) -> None:
        waiting = pa.concat_arrays(self._waiting or [pa.array([], self._kind)])
        whole = len(waiting) // multiple * multiple
        for start in range(0, whole, ROW_GROUP_IDS):
            group = waiting.slice(start, min(ROW_GROUP_IDS, whole - start))
            self._writer.write_table(pa.table({"id": group.cast(self._kind)}))
        self._waiting = [waiting.slice(whole)] if whole < len(waiting) else []

    def close(self) -> None:
        """Completes the file, or removes one that says no more than its rows do."""
        self._write(1)
        self._writer.close()
        self._file.close()
        if self._counts_rows:
            self.writer.remove(self.name)
        else:
            self.writer.add(self.name, crc32c=self._file.crc32c)
