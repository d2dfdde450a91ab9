"""The feature file read once, front to back, in windows, without the rows that nobody needs.

It is read in chunks that have a checksum each, so that whatever is used was compared with what was written.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, first_damaged_chunk, read_ranges
from diskgnn.errors import ArtifactError
from diskgnn.ordered import in_order
from diskgnn.storage.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.storage.row_format import FeatureFile
from diskgnn.storage.row_reading import GAP_BYTES, row_buffer


@dataclass(frozen=True)
class Window:
    """Rows of neighbouring nodes, as bytes; those that were not needed may be garbage."""

    first: int  # node of row 0
    last: int  # node after the last row
    rows: npt.NDArray[np.uint8]  # [(last - first) * row_bytes], valid until the next window is asked for
    read_bytes: int


def scan_needed_rows(
    features: FeatureFile, checksums: npt.NDArray[np.uint32], needed: npt.NDArray[np.bool_], window_bytes: int
) -> Generator[Window, None, None]:
    """The rows of `needed` [N] nodes, ascending, in windows of at most `window_bytes`; the next is read meanwhile.

    Takes memory for two windows. `checksums` are those of the chunks of the file, see `ChunkChecksums.chunks`.

    Raises:
        ArtifactError: a chunk that was read is damaged.
        OSError: the file cannot be read, or ends early.
    """
    window_rows = min(max(1, window_bytes // features.row_bytes), features.num_rows)
    bounds = list(_bounds(needed, window_rows))
    spare_rows = -(-2 * CHECKSUM_CHUNK_BYTES // features.row_bytes)  # what is read beside the first and the last row
    buffers = [row_buffer(window_rows + spare_rows, features.row_bytes) for _ in range(min(2, len(bounds)))]

    def read(first: int, last: int, buffer: npt.NDArray[np.uint8]) -> Window:
        nodes: npt.NDArray[Any] = first + np.flatnonzero(needed[first:last])
        rows, read_bytes = _read_checked(features, checksums, nodes, buffer)
        return Window(first, int(nodes[-1]) + 1, rows, read_bytes)

    with ThreadPoolExecutor(1) as reader:
        reads = (partial(read, *bound, buffers[number % 2]) for number, bound in enumerate(bounds))
        yield from in_order(reader, reads, ahead=1)


def _read_checked(
    features: FeatureFile, checksums: npt.NDArray[np.uint32], nodes: npt.NDArray[Any], buffer: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint8], int]:
    """(rows from nodes[0] to nodes[-1] as bytes, a view of `buffer`; bytes read)."""
    row_bytes, chunk_bytes = features.row_bytes, CHECKSUM_CHUNK_BYTES
    begins = features.data_offset_bytes + nodes * row_bytes
    first = int(begins[0]) // chunk_bytes
    base, file_bytes = first * chunk_bytes, features.data_offset_bytes + features.num_bytes
    assert base % DIRECT_ALIGNMENT == 0
    chunks = _chunks_of(begins // chunk_bytes - first, (begins + row_bytes - 1) // chunk_bytes - first)
    breaks = np.flatnonzero(np.diff(chunks) > 1 + GAP_BYTES // chunk_bytes)
    starts = chunks[np.concatenate([[0], breaks + 1])] * chunk_bytes + base
    ends = np.minimum((chunks[np.concatenate([breaks, [len(chunks) - 1]])] + 1) * chunk_bytes + base, file_bytes)
    read_ranges(str(features.path), "auto", starts, ends - starts, base, buffer)
    damaged = first_damaged_chunk(buffer[: file_bytes - base], chunk_bytes, chunks, checksums[first:])
    if damaged >= 0:
        offset = base + int(chunks[damaged]) * chunk_bytes
        raise ArtifactError(
            f"{features.path} is damaged: between its bytes {offset} and {offset + chunk_bytes} it is not what was "
            f"written; restore it, or make the graph again"
        )
    start = int(begins[0]) - base
    return buffer[start : start + int(begins[-1] - begins[0]) + row_bytes], int((ends - starts).sum())


def _chunks_of(firsts: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """[any number] ascending: all numbers that are in [firsts[i], lasts[i]] for some i."""
    covered = np.zeros(int(lasts[-1]) + 1, np.bool_)
    for step in range(int((lasts - firsts).max()) + 1):
        covered[np.minimum(firsts + step, lasts)] = True
    return np.flatnonzero(covered)


def _bounds(needed: npt.NDArray[np.bool_], window_rows: int) -> Iterator[tuple[int, int]]:
    """[first, last) of each window; the first node of each is needed."""
    first, num_rows = 0, len(needed)
    while first < num_rows:
        if not needed[first : first + window_rows].any():
            first += window_rows
            continue
        first += int(np.argmax(needed[first:]))
        last = min(first + window_rows, num_rows)
        yield first, last
        first = last
