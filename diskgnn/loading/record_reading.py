"""Reads records of hop features, compared with their checksums, past the page cache."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c_chunks, page_memory
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.files.row_reading import read_ranges_of
from diskgnn.formats.artifacts import record_checksums_file, records_file
from diskgnn.formats.hops import Hops
from diskgnn.formats.hops_config import VALUE_BYTES
from diskgnn.formats.manifest import made_again
from diskgnn.loading.hop_order import Pool
from diskgnn.ordered import Threads, in_order

Records = npt.NDArray[np.float32]  # [n, V]
_PIECES_AT_ONCE = 16  # that a request reads; one more is read meanwhile


def record_buffer(num_records: int, num_values: int) -> Records:
    """Returns memory for records, [num_records, num_values] of any content."""
    return page_memory(num_records * num_values * VALUE_BYTES).view(np.float32).reshape(-1, num_values)


@dataclass(frozen=True)
class RecordFile:
    """The records of a split of a hops directory."""

    hops: Hops
    split: str
    offset_bytes: int  # of the first record
    checksums: npt.NDArray[np.uint32] | None  # of each CHECKSUM_CHUNK_BYTES; None: nothing is compared
    engine: str

    @staticmethod
    def open(hops: Hops, split: str, *, verify: bool, engine: str) -> RecordFile:
        """Opens the records of `split`.

        Raises:
            ArtifactError: there are none, or their checksums are damaged.
        """
        if split not in hops.config.num_rows:
            again = "`diskgnn convert` with that split, and `diskgnn propagate` again"
            if hops.config.nodes is not None:
                again = "without nodes, `diskgnn propagate` takes the seeds of all splits, with their labels"
            raise ArtifactError(
                f"{hops.manifest.path} has no records of {split}, only of {', '.join(hops.config.num_rows)}: {again}"
            )
        checksums = hops.manifest.checked_array(record_checksums_file(split)) if verify else None
        offset_bytes = hops.manifest.data_offset_bytes(records_file(split))
        return RecordFile(hops, split, offset_bytes, checksums, engine)

    @property
    def num_values(self) -> int:
        """Returns V, the numbers of a record."""
        return self.hops.config.num_values

    def fill(self, pool: Pool, into: Records) -> tuple[int, int]:
        """Reads the records of a pool into `into` [n, V], in the order of reading.

        Returns:
            (bytes read, requests).

        Raises:
            ArtifactError: they are damaged.
            OSError: the disk failed.
        """
        read_bytes = filled = 0
        calls = (partial(self._read, pool, first) for first in range(0, len(pool.starts), _PIECES_AT_ONCE))
        with Threads(1, "diskgnn-records") as threads, closing(in_order(threads, calls, 1)) as parts:
            for pieces, num_bytes in parts:
                for rows in pieces:
                    into[filled : filled + len(rows)] = rows
                    filled += len(rows)
                read_bytes += num_bytes
        return read_bytes, len(pool.starts)

    def _read(self, pool: Pool, first: int) -> tuple[list[Records], int]:
        """Returns the records of some pieces of a pool, [n, V] each, and the bytes read."""
        part, chunk_bytes = slice(first, first + _PIECES_AT_ONCE), CHECKSUM_CHUNK_BYTES
        path = self.hops.manifest.file(records_file(self.split))
        file_bytes = self.hops.manifest.files[records_file(self.split)].bytes
        starts = self.offset_bytes + self.hops.config.row_bytes * pool.starts[part]
        ends = self.offset_bytes + self.hops.config.row_bytes * pool.ends[part]
        first_chunks, num_chunks = starts // chunk_bytes, -(-ends // chunk_bytes) - starts // chunk_bytes
        offsets = first_chunks * chunk_bytes
        lengths = np.minimum(num_chunks * chunk_bytes, file_bytes - offsets)
        places = (np.cumsum(num_chunks) - num_chunks) * chunk_bytes
        buffer = page_memory(int(num_chunks.sum()) * chunk_bytes)
        read_ranges_of(path, offsets, lengths, places, buffer, engine=self.engine)
        pieces = []
        for chunk, begin, length, skipped, num_bytes in zip(
            first_chunks.tolist(), places.tolist(), lengths.tolist(), (starts - offsets).tolist(),
            (ends - starts).tolist(), strict=True,
        ):  # fmt: skip
            self._check(buffer[begin : begin + length], chunk)
            records = buffer[begin + skipped : begin + skipped + num_bytes].view(np.float32)
            pieces.append(records.reshape(-1, self.num_values))
        return pieces, int(lengths.sum())

    def _check(self, data: npt.NDArray[np.uint8], first: int) -> None:
        """Compares chunks from number `first` on with their checksums."""
        if self.checksums is None:
            return
        found, _ = crc32c_chunks(data, CHECKSUM_CHUNK_BYTES)
        wrong = np.flatnonzero(found != self.checksums[first : first + len(found)])
        if len(wrong):
            path = self.hops.manifest.path / records_file(self.split)
            offset = (first + int(wrong[0])) * CHECKSUM_CHUNK_BYTES
            raise ArtifactError(f"{path} is damaged at byte {offset}; {made_again(self.hops.manifest)}")
