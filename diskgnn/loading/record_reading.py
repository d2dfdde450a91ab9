"""Reads records of hop features, compared with their checksums, past the page cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

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
from diskgnn.ordered import Threads

Records = npt.NDArray[np.float32]  # [n, V]
Data = npt.NDArray[np.uint8]
_REQUEST_BYTES = 8 << 20  # that a thread reads at a time
_READERS = 3  # threads: the disk reads for some while another one compares what it read with checksums


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

    def read(self, offsets: Sequence[int], lengths: Sequence[int], places: Sequence[int], data: Data) -> None:
        """Reads ranges of whole chunks to `places` of `data`.

        Raises:
            ArtifactError: they are damaged.
            OSError: the disk failed.
        """
        path = self.hops.manifest.file(records_file(self.split))
        read_ranges_of(path, np.array(offsets), np.array(lengths), np.array(places), data, engine=self.engine)
        for offset, length, place in zip(offsets, lengths, places, strict=True):
            self._check(data[place : place + length], offset // CHECKSUM_CHUNK_BYTES)

    def _check(self, data: Data, first: int) -> None:
        """Compares chunks from number `first` on with their checksums."""
        if self.checksums is None:
            return
        found, _ = crc32c_chunks(data, CHECKSUM_CHUNK_BYTES)
        wrong = np.flatnonzero(found != self.checksums[first : first + len(found)])
        if len(wrong):
            path = self.hops.manifest.path / records_file(self.split)
            offset = (first + int(wrong[0])) * CHECKSUM_CHUNK_BYTES
            raise ArtifactError(f"{path} is damaged at byte {offset}; {made_again(self.hops.manifest)}")


@dataclass(frozen=True)
class PendingRecords:
    """Records of consecutive ones in pieces, which lie where they were read: between the ends of pages."""

    data: Data
    piece_places: npt.NDArray[np.int64]  # [pieces] where the first record of each begins in `data`
    counts: npt.NDArray[np.int64]  # [pieces] how many it has
    row_bytes: int
    read_bytes: int
    requests: int
    reads: Sequence[Future[None]]

    def places(self) -> npt.NDArray[np.int64]:
        """Returns [n] where each record begins in `data`, in the order of reading."""
        first_records = np.cumsum(self.counts) - self.counts
        starts = np.repeat(self.piece_places - self.row_bytes * first_records, self.counts)
        return starts + self.row_bytes * np.arange(len(starts))

    def wait(self) -> None:
        """Returns when they are there.

        Raises:
            ArtifactError, OSError: see `RecordFile.read`.
        """
        for read in self.reads:
            read.result()


class RecordReader:
    """Threads that read records, in the order in which they are asked for. What has not begun at the end never will."""

    def __init__(self, file: RecordFile) -> None:
        self._file, self._threads = file, Threads(_READERS, "diskgnn-records")

    def begin(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> PendingRecords:
        """Begins to read the records [starts[i], ends[i]) of each piece i."""
        file, chunk_bytes = self._file, CHECKSUM_CHUNK_BYTES
        row_bytes = file.hops.config.row_bytes
        file_bytes = file.hops.manifest.files[records_file(file.split)].bytes
        begins, ends_bytes = (file.offset_bytes + row_bytes * each for each in (starts, ends))
        offsets = begins // chunk_bytes * chunk_bytes
        lengths = np.minimum(-(-ends_bytes // chunk_bytes) * chunk_bytes, file_bytes) - offsets
        room = -(-lengths // chunk_bytes) * chunk_bytes
        piece_places = np.cumsum(room) - room
        data = page_memory(int(room.sum()))
        requests = list(_requests(offsets.tolist(), lengths.tolist(), piece_places.tolist()))
        reads = [self._threads.submit(file.read, *request, data) for request in requests]
        return PendingRecords(
            data, piece_places + begins - offsets, ends - starts, row_bytes, int(lengths.sum()),
            sum(len(each) for each, _, _ in requests), reads,
        )  # fmt: skip

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads.__exit__(kind, error, trace)


def _requests(
    offsets: Sequence[int], lengths: Sequence[int], places: Sequence[int]
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Yields offsets, lengths and places of what a thread reads at a time: parts of pieces, or several."""
    ranges, held_bytes = list[tuple[int, int, int]](), 0
    for offset, length, place in zip(offsets, lengths, places, strict=True):
        for first in range(0, length, _REQUEST_BYTES):
            size = min(_REQUEST_BYTES, length - first)
            if ranges and held_bytes + size > _REQUEST_BYTES:
                yield _columns(ranges)
                ranges, held_bytes = [], 0
            ranges.append((offset + first, size, place + first))
            held_bytes += size
    if ranges:
        yield _columns(ranges)


def _columns(ranges: Sequence[tuple[int, int, int]]) -> tuple[list[int], list[int], list[int]]:
    return [each[0] for each in ranges], [each[1] for each in ranges], [each[2] for each in ranges]
