"""The file of the user's ids of one type of nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.files.disk_space import DiskBudget

ROW_GROUP_IDS = 1 << 17  # of the file, whose bytes must not depend on how the source was read


class IdFile:
    """The Parquet file of the ids of all nodes of a type: one column `id`, row i is node i."""

    def __init__(self, path: Path, kind: pa.DataType, disk: DiskBudget) -> None:
        self._kind, self.count = kind, 0
        self._file = ChecksummedFile(path, disk=disk)
        self._writer = pq.ParquetWriter(self._file, pa.schema([("id", kind)]), compression="zstd", use_dictionary=False)
        self._waiting: list[pa.Array] = []
        self.counts_rows = pa.types.is_integer(kind)  # so far; then these ids are the dense ones already

    def add(self, ids: pa.Array) -> None:
        """Adds `ids` after those that were added before."""
        if self.counts_rows:
            self.counts_rows = not ids.null_count and bool(
                (np.asarray(ids) == np.arange(self.count, self.count + len(ids))).all()
            )
        self._waiting.append(ids)
        self.count += len(ids)
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
        """Completes the file."""
        self._write(1)
        self._writer.close()
        self._file.close()

    @property
    def crc32c(self) -> int:
        """Returns the CRC-32C of the complete file."""
        return self._file.crc32c
