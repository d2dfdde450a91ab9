"""The feature file read once, front to back, in windows, without the rows that nobody needs.

It is read in chunks that have a checksum each, so that whatever is used was compared with what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from diskgnn._native import first_damaged_chunk
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.files.row_reading import GAP_BYTES, read_ranges_of, read_span, row_buffer
from diskgnn.formats.row_format import FeatureFile
from diskgnn.ordered import Threads, in_order
from diskgnn.stores import remote_files
from diskgnn.stores.locations import StoredPath

_PIECE_NODES = 1 << 15  # whose chunks are found at a time
_READERS = 2  # windows under way: the disk reads one while what was read of the other is compared with checksums
WINDOWS_IN_MEMORY = _READERS + 1  # and one in use


@dataclass(frozen=True)
class Window:
    """The rows of some nodes, in runs of neighbouring ones; rows between them may be there, too."""

    nodes: npt.NDArray[np.int64]  # [n] whose rows were asked for, ascending
    data: npt.NDArray[np.uint8]  # the runs, valid until the next window is asked for
    run_nodes: npt.NDArray[np.int64]  # [R] the first node of each run
    run_places: npt.NDArray[np.int64]  # [R] where its row begins in `data`
    row_bytes: int
    read_bytes: int

    @property
    def first(self) -> int:
        """Returns the first node."""
        return int(self.nodes[0])

    @property
    def last(self) -> int:
        """Returns the node after the last one."""
        return int(self.nodes[-1]) + 1

    def places(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns [any number] where the rows of some of `nodes`, in any order, begin in `data`."""
        runs = np.searchsorted(self.run_nodes, nodes, "right") - 1
        return self.run_places[runs] + (nodes - self.run_nodes[runs]) * self.row_bytes


def scan_needed_rows(
    features: FeatureFile, checksums: npt.NDArray[np.uint32], needed: npt.NDArray[np.bool_], window_bytes: int
) -> Generator[Window, None, None]:
    """Yields the rows of `needed` [N] nodes, ascending, in windows that read at most `window_bytes`, or one row.

    The next two are read meanwhile: this takes memory for WINDOWS_IN_MEMORY. `checksums` are those of the chunks of the
    file, see `ChunkChecksums.chunks`. Where columns are cut out, windows read half as much: what is cut is a copy.

    Raises:
        ArtifactError: a chunk that was read is damaged.
        OSError: the file cannot be read, or ends early.
    """
    most_bytes = window_bytes if features.projection is None else window_bytes // 2
    most_chunks = max(most_bytes // CHECKSUM_CHUNK_BYTES, 2 + features.file_row_bytes // CHECKSUM_CHUNK_BYTES)
    buffers: list[npt.NDArray[np.uint8]] = []

    def reads() -> Iterator[Callable[[], Window]]:
        for number, nodes in enumerate(_window_nodes(features, needed, most_chunks)):
            if number < WINDOWS_IN_MEMORY:
                buffers.append(row_buffer(most_chunks, CHECKSUM_CHUNK_BYTES))
            yield partial(_read_checked, features, checksums, nodes, buffers[number % WINDOWS_IN_MEMORY])

    with Threads(_READERS) as readers:
        yield from in_order(readers, reads(), ahead=_READERS)


class _RowChunks:
    """The chunks of the file that rows lie in, and how they are read: small gaps are read along."""

    def __init__(self, features: FeatureFile, nodes: npt.NDArray[np.int64], last_before: int | None) -> None:
        """`last_before` is the last chunk of the row before these; None where nothing was read before."""
        begins = features.data_offset_bytes + nodes * features.file_row_bytes
        self.first = begins // CHECKSUM_CHUNK_BYTES  # [n] chunk of each row
        self.last = (begins + features.file_row_bytes - 1) // CHECKSUM_CHUNK_BYTES  # [n]
        gap_chunks = _gap_chunks(features)
        none_before = -gap_chunks - 2
        self._before = np.concatenate([[none_before if last_before is None else last_before], self.last[:-1]])
        self.starts_request = self.first - self._before > gap_chunks + 1  # [n] or else it continues the one before

    def added(self) -> npt.NDArray[np.int64]:
        """Returns [n] chunks that each row adds to what is read."""
        return self.last - np.where(self.starts_request, self.first - 1, self._before)


def _window_nodes(
    features: FeatureFile, needed: npt.NDArray[np.bool_], most_chunks: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the nodes of each window."""
    parts: list[npt.NDArray[np.int64]] = []  # nodes of the next one
    held, last_chunk = 0, None  # chunks that they take
    for start in range(0, len(needed), _PIECE_NODES):
        nodes = start + np.flatnonzero(needed[start : start + _PIECE_NODES])
        if len(nodes) == 0:
            continue
        chunks = _RowChunks(features, nodes, last_chunk)
        total = held + np.cumsum(chunks.added())  # chunks of the window, if it began before these nodes
        begin = 0
        while begin < len(nodes):
            end = int(np.searchsorted(total, most_chunks, "right"))
            parts.append(nodes[begin:end])
            if end < len(nodes):
                yield np.concatenate(parts)
                parts = []
                total += chunks.last[end] - chunks.first[end] + 1 - total[end]
            begin = end
        held, last_chunk = int(total[-1]), int(chunks.last[-1])
    if parts:
        yield np.concatenate(parts)


def read_checked_span(
    features: FeatureFile, checksums: npt.NDArray[np.uint32], first: int, last: int
) -> tuple[npt.NDArray[np.uint8], int]:
    """Returns the rows [first, last), at least one, as bytes in memory of their own, and how many bytes were read for
    them.

    Raises:
        ArtifactError: a chunk that was read is damaged.
        OSError: the file cannot be read, or ends early.
    """
    row_bytes, chunk_bytes = features.file_row_bytes, CHECKSUM_CHUNK_BYTES
    begin, end = (features.data_offset_bytes + node * row_bytes for node in (first, last))
    chunks = np.arange(begin // chunk_bytes, -(-end // chunk_bytes))
    base = int(chunks[0]) * chunk_bytes
    num_bytes = min(base + len(chunks) * chunk_bytes, features.file_bytes) - base
    data = read_span(features.path, base, num_bytes)
    if (damaged := first_damaged_chunk(data, chunk_bytes, chunks - chunks[0], checksums[chunks])) >= 0:
        raise _damage_error(features, int(chunks[damaged]))
    return features.kept(data[begin - base : end - base]), num_bytes


def _read_checked(
    features: FeatureFile,
    checksums: npt.NDArray[np.uint32],
    nodes: npt.NDArray[np.int64],
    buffer: npt.NDArray[np.uint8],
) -> Window:
    row_bytes, chunk_bytes = features.file_row_bytes, CHECKSUM_CHUNK_BYTES
    chunks = _RowChunks(features, nodes, None)
    begins = np.flatnonzero(chunks.starts_request)
    first_chunks, last_chunks = chunks.first[begins], chunks.last[np.append(begins[1:], len(nodes)) - 1]
    lengths = last_chunks + 1 - first_chunks
    places = np.cumsum(lengths) - lengths  # in chunks of the buffer
    offsets = first_chunks * chunk_bytes
    num_bytes = np.minimum((last_chunks + 1) * chunk_bytes, features.file_bytes) - offsets
    read_ranges_of(features.path, offsets, num_bytes, places * chunk_bytes, buffer)
    data = buffer[: int(places[-1]) * chunk_bytes + int(num_bytes[-1])]

    shifts = np.repeat(places - first_chunks, np.diff(np.append(begins, len(nodes))))
    read = _covered(chunks.first + shifts, chunks.last + shifts)
    requests = np.searchsorted(places, read, "right") - 1
    in_file = read - places[requests] + first_chunks[requests]
    if (damaged := first_damaged_chunk(data, chunk_bytes, read, checksums[in_file])) >= 0:
        raise _damage_error(features, int(in_file[damaged]))
    run_nodes = nodes[begins]
    run_places = features.data_offset_bytes + run_nodes * row_bytes - offsets + places * chunk_bytes
    if features.projection is not None:  # of the rows between them, too, as runs have them
        counts = nodes[np.append(begins[1:], len(nodes)) - 1] + 1 - run_nodes
        firsts = np.cumsum(counts) - counts
        numbers = np.arange(int(counts.sum())) - np.repeat(firsts, counts)
        data = features.projection.cut(data, np.repeat(run_places, counts) + numbers * row_bytes).reshape(-1)
        row_bytes = features.row_bytes
        run_places = firsts * row_bytes
    return Window(nodes, data, run_nodes, run_places, row_bytes, int(num_bytes.sum()))


def _gap_chunks(features: FeatureFile) -> int:
    gap_bytes = remote_files.GAP_BYTES if isinstance(features.path, StoredPath) else GAP_BYTES
    return gap_bytes // CHECKSUM_CHUNK_BYTES


def _damage_error(features: FeatureFile, chunk: int) -> ArtifactError:
    begin, end = chunk * CHECKSUM_CHUNK_BYTES, (chunk + 1) * CHECKSUM_CHUNK_BYTES
    return ArtifactError(
        f"{features.path} is damaged: between its bytes {begin} and {end} it is not what was written; restore it, or "
        f"make the graph again"
    )


def _covered(firsts: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns [any number] ascending: all numbers that are in [firsts[i], lasts[i]] for some i."""
    covered = np.zeros(int(lasts[-1]) + 1, np.bool_)
    for step in range(int((lasts - firsts).max()) + 1):
        covered[np.minimum(firsts + step, lasts)] = True
    return np.flatnonzero(covered)
