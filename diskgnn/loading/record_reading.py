"""Reads records of hop features to where they belong, compared with their checksums, past the page cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType

import numpy as np
import numpy.typing as npt

from diskgnn._native import copy_rows_to, first_damaged_chunk, page_memory
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.files.row_reading import read_ranges_of
from diskgnn.formats.artifacts import record_checksums_file, records_file
from diskgnn.formats.hops import Hops
from diskgnn.formats.manifest import made_again
from diskgnn.loading.batch_memory import Data, Target
from diskgnn.loading.hop_order import HopOrder, Pool
from diskgnn.ordered import Threads

Numbers = npt.NDArray[np.int64]
_REQUEST_BYTES = (4 << 20) + (32 << 10)  # that a thread reads at a time: four blocks, widened to whole chunks
_READERS = 4  # threads: the disk reads for some while another one compares what it read with checksums, and copies it
_POOLS = 2  # that are in memory: one is handed on, one is read


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
    def row_bytes(self) -> int:
        """Returns the bytes of a record."""
        return self.hops.config.row_bytes

    def chunks(self, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
        """Returns offsets and lengths of whole chunks with the records [starts[i], ends[i]) of each piece i."""
        file_bytes = self.hops.manifest.files[records_file(self.split)].bytes
        begins, ends_bytes = (self.offset_bytes + self.row_bytes * each for each in (starts, ends))
        offsets = begins // CHECKSUM_CHUNK_BYTES * CHECKSUM_CHUNK_BYTES
        return offsets, np.minimum(_whole_chunks(ends_bytes), file_bytes) - offsets

    def read(self, starts: Numbers, ends: Numbers, places: Numbers, target: Target, buffer: Data) -> None:
        """Reads the records of pieces by way of `buffer` to `places` of `target`.

        Raises:
            ArtifactError: they are damaged.
            OSError: the disk failed.
        """
        offsets, lengths = self.chunks(starts, ends)
        room = _whole_chunks(lengths)
        read_at = np.cumsum(room) - room
        path = self.hops.manifest.file(records_file(self.split))
        read_ranges_of(path, offsets, lengths, read_at, buffer, engine=self.engine)
        first = read_at + self.offset_bytes + self.row_bytes * starts - offsets
        counts = ends - starts
        before = np.cumsum(counts) - counts
        columns = (each.tolist() for each in (offsets, lengths, read_at, first, counts, before))
        for offset, length, at, record, count, done in zip(*columns, strict=True):  # a piece is in the cache meanwhile
            self._check(buffer[at : at + length], offset // CHECKSUM_CHUNK_BYTES)
            copy_rows_to(
                buffer[record : record + count * self.row_bytes], self.row_bytes, places[done : done + count],
                target.segments, target.segment_bytes,
            )  # fmt: skip

    def _check(self, data: Data, first: int) -> None:
        """Compares chunks from number `first` on with their checksums."""
        if self.checksums is None:
            return
        chunks = np.arange(-(-len(data) // CHECKSUM_CHUNK_BYTES))
        expected = self.checksums[first : first + len(chunks)]
        if (wrong := first_damaged_chunk(data, CHECKSUM_CHUNK_BYTES, chunks, expected)) >= 0:
            path = self.hops.manifest.path / records_file(self.split)
            offset = (first + wrong) * CHECKSUM_CHUNK_BYTES
            raise ArtifactError(f"{path} is damaged at byte {offset}; {made_again(self.hops.manifest)}")


@dataclass(frozen=True)
class Reading:
    """Records of a pool that are being read."""

    pool: Pool
    read_bytes: int
    requests: int
    reads: Sequence[Future[None]]

    def wait(self) -> None:
        """Returns when they are where they belong.

        Raises:
            ArtifactError, OSError: see `RecordFile.read`.
        """
        for read in self.reads:
            read.result()


class RecordReader:
    """Threads that read records, in the order in which they are asked for. What has not begun at the end never will."""

    def __init__(self, file: RecordFile, order: HopOrder) -> None:
        """Start none yet. Pools are those of `order`."""
        self._file, self._threads = file, Threads(_READERS, "diskgnn-records")
        self._buffer_bytes = _buffer_bytes(order)
        self._buffers = SimpleQueue[Data]()
        for _ in range(_READERS):
            self._buffers.put(page_memory(self._buffer_bytes))

    def begin(self, pool: Pool, target: Target) -> Reading:
        """Begins to read the records of a pool to where they belong."""
        _, lengths = self._file.chunks(pool.starts, pool.ends)
        ends = np.cumsum(pool.ends - pool.starts)
        reads = []
        for pieces in _requests(_whole_chunks(lengths).tolist(), self._buffer_bytes):
            starts, counted = pool.starts[pieces], ends[pieces]
            first = int(counted[0]) - int(pool.ends[pieces.start] - starts[0])
            places = target.places[first : int(counted[-1])]
            reads.append(self._threads.submit(self._read, starts, pool.ends[pieces], places, target))
        return Reading(pool, int(lengths.sum()), len(lengths), reads)

    def _read(self, starts: Numbers, ends: Numbers, places: Numbers, target: Target) -> None:
        buffer = self._buffers.get()
        try:
            self._file.read(starts, ends, places, target, buffer)
        finally:
            self._buffers.put(buffer)

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads.__exit__(kind, error, trace)


def reading_bytes(order: HopOrder) -> int:
    """Returns the memory that an epoch's records take while they are read, at most, without minibatches in use."""
    records = _POOLS * order.most_pool_rows + 2 * order.batch_size  # and the rest of minibatches at the pools' ends
    return min(records, order.num_records) * order.row_bytes + _READERS * _buffer_bytes(order)


def _buffer_bytes(order: HopOrder) -> int:
    """Returns what a thread reads at a time: a block, or several."""
    most_bytes = order.num_records * order.row_bytes
    block_bytes = min(order.block_rows * order.row_bytes, most_bytes)
    return min(max(block_bytes, _REQUEST_BYTES), most_bytes) + 2 * CHECKSUM_CHUNK_BYTES  # widened to whole ones


def _whole_chunks(num_bytes: Numbers) -> Numbers:
    return -(-num_bytes // CHECKSUM_CHUNK_BYTES) * CHECKSUM_CHUNK_BYTES


def _requests(room: Sequence[int], most_bytes: int) -> Iterator[slice]:
    """Yields the pieces that a thread reads at a time."""
    first = held_bytes = 0
    for number, num_bytes in enumerate(room):
        if held_bytes + num_bytes > most_bytes:
            yield slice(first, number)
            first, held_bytes = number, 0
        held_bytes += num_bytes
    if first < len(room):
        yield slice(first, len(room))
