"""The second half of packing: every window of the feature file goes to its places in every extent.

The feature file is read once, front to back, in windows that fit the memory budget. Rows of an extent are sorted by
node, so a window's rows are one contiguous run of it: extents are appended to in turn, and written a whole page at a
time, past the page cache.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import (
    DIRECT_ALIGNMENT,
    PageWriter,
    crc32c,
    crc32c_combine,
    pack_partition,
    scatter_rows,
    start_extent,
)
from diskgnn.graph.graph import Graph
from diskgnn.packing.headers import Placed, PlacedSplit
from diskgnn.packing.reserving import reserve
from diskgnn.storage import artifacts, extents, faults
from diskgnn.storage.checked_files import npy_header_bytes
from diskgnn.storage.disk_space import require_free_bytes
from diskgnn.storage.feature_scan import Window, scan_needed_rows
from diskgnn.storage.row_format import FeatureFile, RowFormat
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

MIN_WINDOW_BYTES = 1 << 20  # whatever the budget
# Where the budget allows it, a window adds this much to an extent on average: worth a write of its own. More would
# only take memory that has to be found first, and keep the disk from writing while the first window is read.
MEAN_RUN_BYTES = 2 << 20
ENOUGH_WINDOW_BYTES = 16 << 20


def pack_rows(writer: ArtifactWriter, pages: PageWriter, graph: Graph, placed: Placed, resources: Resources) -> int:
    """Write the rows of all extents, and the initial, static, index and wrap files; register them all.

    Two windows take half of the memory budget; the other half stays for blocks, page cache and the interpreter.

    Returns:
        Bytes read of the features.

    Raises:
        DiskFullError: the files do not fit; names the bytes missing.
    """
    features = graph.feature_file
    _require_space(writer, placed, features.row_bytes)
    # Where a file system cannot reserve space, the C library writes bytes instead: not beside headers on their way.
    pages.finish()
    extents_files = [_extents_file(writer, split, graph.indices.dtype, features.row_bytes) for split in placed.splits]
    initial_files = [_initial_file(writer, pages, split, features.rows) for split in placed.splits]
    read_bytes = 0
    needed_bytes = int(np.count_nonzero(placed.needed)) * features.row_bytes
    with (
        resources.reporter.stage("pack", needed_bytes, "B") as advance,
        _StaticFile(writer.path(artifacts.STATIC), placed.static_nodes, features.rows) as static,
    ):
        window_bytes = _window_bytes(features, placed, resources.memory_bytes)
        for window in scan_needed_rows(features, placed.needed, window_bytes):
            faults.point("pack.window")
            for file in (*extents_files, *initial_files):
                file.append(pages, window, features.row_bytes, resources.threads)
            static.write(window, resources.threads)
            read_bytes += window.read_bytes
            advance(int(np.count_nonzero(placed.needed[window.first : window.last])) * features.row_bytes)
        pages.finish()
    writer.add(artifacts.STATIC)
    for split, file, initial in zip(placed.splits, extents_files, initial_files, strict=True):
        split.index["rows_crc32c"] = file.checksums
        writer.add(artifacts.extents_file(split.split), crc32c=_file_checksum(split.index, features.row_bytes))
        os.truncate(
            initial.path, int(initial.offsets[0]) + len(split.initial_nodes) * features.row_bytes
        )  # whole pages
        writer.add(artifacts.initial_cpu_rows_file(split.split), crc32c=int(initial.checksums[0]))
        writer.save_array(artifacts.index_file(split.split), split.index)
        writer.save_array(artifacts.next_cycle_slots_file(split.split), split.next_cycle_slots)
    return read_bytes


def _require_space(writer: ArtifactWriter, placed: Placed, row_bytes: int) -> None:
    missing_bytes = len(placed.static_nodes) * row_bytes
    for split in placed.splits:
        missing_bytes += (int(split.bounds[-1]) + len(split.initial_nodes)) * row_bytes + len(
            split.index
        ) * DIRECT_ALIGNMENT
    require_free_bytes(writer.staging, missing_bytes, f"packing {writer.final}")


def _window_bytes(features: FeatureFile, placed: Placed, memory_bytes: int) -> int:
    num_extents = sum(len(split.index) for split in placed.splits)
    mean_extent_bytes = 1 + sum(int(split.bounds[-1]) for split in placed.splits) * features.row_bytes // num_extents
    enough_bytes = max(ENOUGH_WINDOW_BYTES, features.num_bytes * MEAN_RUN_BYTES // mean_extent_bytes)
    return max(MIN_WINDOW_BYTES, min(memory_bytes // 4, enough_bytes))


@dataclass(frozen=True)
class _ExtentsFile:
    """A file that takes rows sorted by node in each of its T extents (see native/packing/extent_packer.h)."""

    path: Path
    nodes: npt.NDArray[Any]  # memory map or array
    bounds: npt.NDArray[np.int64]  # [T+1]
    offsets: npt.NDArray[np.int64]  # [T]
    cursors: npt.NDArray[np.int64]  # [T]
    checksums: npt.NDArray[np.uint32]  # [T]
    tails: npt.NDArray[np.uint8]  # [T * 4096]

    def append(self, pages: PageWriter, window: Window, row_bytes: int, threads: int) -> None:
        """Append the rows of `window` to every extent that needs them."""
        pack_partition(
            pages, str(self.path), self.nodes, self.bounds, self.offsets, self.cursors, self.checksums, self.tails,
            window.rows, window.first, window.last, row_bytes, threads,
        )  # fmt: skip


def _extents_file(
    writer: ArtifactWriter, split: PlacedSplit, node_dtype: np.dtype[Any], row_bytes: int
) -> _ExtentsFile:
    path, index = writer.path(artifacts.extents_file(split.split)), split.index
    reserve(path, int(index["offset"][-1]) + int(extents.extent_bytes(index, row_bytes)[-1]))
    return _ExtentsFile(
        path,
        _map_nodes(split, node_dtype),
        split.bounds,
        np.ascontiguousarray(index["offset"] + index["rows_offset"]),
        split.bounds[:-1].copy(),
        np.zeros(len(index), np.uint32),
        split.tails,
    )


def _initial_file(writer: ArtifactWriter, pages: PageWriter, split: PlacedSplit, rows: RowFormat) -> _ExtentsFile:
    """One extent whose header is that of a .npy file."""
    path, num_rows = writer.path(artifacts.initial_cpu_rows_file(split.split)), len(split.initial_nodes)
    header = np.frombuffer(npy_header_bytes(rows.storage, (num_rows, rows.num_features)), np.uint8)
    reserve(path, extents.align(len(header) + num_rows * rows.row_bytes, DIRECT_ALIGNMENT))
    tail = np.zeros(DIRECT_ALIGNMENT, np.uint8)
    checksum = start_extent(pages, str(path), 0, header, len(header), tail, num_rows == 0)
    return _ExtentsFile(
        path,
        split.initial_nodes,
        np.array([0, num_rows], np.int64),
        np.array([len(header)], np.int64),
        np.zeros(1, np.int64),
        np.array([checksum], np.uint32),
        tail,
    )


def _map_nodes(split: PlacedSplit, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The nodes of a split's rows. Each window needs a short run of each extent: read ahead, it would need all."""
    if split.bounds[-1] == 0:  # nothing to map
        return np.empty(0, dtype)
    with split.nodes_path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype)


class _StaticFile:
    """The .npy file of the static rows, hottest first; written at random. A context manager."""

    def __init__(self, path: Path, static_nodes: npt.NDArray[np.int64], rows: RowFormat) -> None:
        self._row_bytes = rows.row_bytes
        self._places = np.argsort(static_nodes)
        self._nodes = static_nodes[self._places]  # ascending
        header = npy_header_bytes(rows.storage, (len(static_nodes), rows.num_features))
        path.write_bytes(header)
        self._path, self._offset = path, len(header)
        reserve(path, len(header) + len(static_nodes) * rows.row_bytes)

    def __enter__(self) -> _StaticFile:
        self._descriptor = os.open(self._path, os.O_WRONLY)  # not through a map: no SIGBUS
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, window: Window, threads: int) -> None:
        """Write the static rows of `window`."""
        begin, end = np.searchsorted(self._nodes, [window.first, window.last])
        if begin == end:
            return
        places, sources = self._places[begin:end], self._nodes[begin:end] - window.first
        order = np.argsort(places)
        scatter_rows(
            self._descriptor, self._offset, places[order], sources[order], window.rows, self._row_bytes, threads
        )


def _file_checksum(index: npt.NDArray[Any], row_bytes: int) -> int:
    """CRC-32C of an extents file, put together from those of its parts and of the zeros between them."""
    crc = 0
    zeros = bytes(DIRECT_ALIGNMENT)
    for record, total_bytes in zip(index, extents.extent_bytes(index, row_bytes), strict=True):
        rows_bytes = int(record["num_rows"]) * row_bytes
        after_header = int(record["rows_offset"] - record["header_bytes"])
        after_rows = int(total_bytes) - int(record["rows_offset"]) - rows_bytes
        crc = crc32c_combine(crc, int(record["header_crc32c"]), int(record["header_bytes"]))
        crc = crc32c(zeros[:after_header], crc)
        crc = crc32c_combine(crc, int(record["rows_crc32c"]), rows_bytes)
        crc = crc32c(zeros[:after_rows], crc)
    return crc
