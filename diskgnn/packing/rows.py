"""The second half of packing: every partition of the feature file goes to its places in every extent.

The feature file is read once, front to back, in partitions that fit the memory budget. Rows of an extent are sorted by
node, so a partition's rows are one contiguous run of it: extents are appended to in turn, and written a whole page at a
time, past the page cache.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import PageWriter, crc32c, crc32c_combine, pack_partition, scatter_rows, start_extent
from diskgnn.graph.graph import Graph
from diskgnn.progress import Reporter
from diskgnn.storage import artifacts, extents
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.storage.row_format import FEATURE_STORAGE, FeatureFile
from diskgnn.storage.row_reading import ALIGNMENT, read_rows, row_buffer

MIN_PARTITION_BYTES = 1 << 20  # whatever the budget
# Where the budget allows it, a partition adds this much to an extent on average: worth a write of its own. More would
# only take memory that has to be found first, and keep the disk from writing while the first partition is read.
MEAN_RUN_BYTES = 2 << 20
ENOUGH_PARTITION_BYTES = 16 << 20


@dataclass
class SplitPlan:
    """One split after placement: headers are on disk, rows are still to come."""

    split: str
    index: npt.NDArray[Any]  # [T] extents.INDEX_DTYPE, rows_crc32c still 0
    bounds: npt.NDArray[np.int64]  # [T+1] extent t's nodes are disk_nodes[bounds[t]:bounds[t+1]]
    nodes_path: Path  # scratch: disk nodes of all extents
    tails: npt.NDArray[np.uint8]  # [T * 4096] of each extent, the page that is not full yet
    initial_nodes: npt.NDArray[np.int64]  # [C]
    wrap: npt.NDArray[np.int32]  # [C]
    counts: dict[str, int]  # rows per cycle: requested, static, cpu, disk


@dataclass
class RowTarget:
    """A file that takes rows sorted by node in each of its T extents (see native/extent_packer.h)."""

    path: Path
    nodes: npt.NDArray[Any]  # memory map or array
    bounds: npt.NDArray[np.int64]  # [T+1]
    offsets: npt.NDArray[np.int64]  # [T]
    cursors: npt.NDArray[np.int64]  # [T]
    checksums: npt.NDArray[np.uint32]  # [T]
    tails: npt.NDArray[np.uint8]  # [T * 4096]


def pack_rows(
    writer: ArtifactWriter,
    pages: PageWriter,
    graph: Graph,
    plans: list[SplitPlan],
    static_nodes: npt.NDArray[np.int64],
    needed: npt.NDArray[np.bool_],
    memory_bytes: int,
    threads: int,
    reporter: Reporter,
) -> int:
    """Write the rows of all extents, and the initial, static, index and wrap files; register them all.

    Args:
        plans: the splits, placed, their headers written.
        static_nodes: [S] hottest first.
        needed: [N] whether any file needs a node's row.
        memory_bytes: half of it goes to two partitions.

    Returns:
        Bytes read.

    Raises:
        DiskFullError: the files do not fit; names the bytes missing.
    """
    features = graph.feature_file
    storage = np.dtype(FEATURE_STORAGE[features.dtype])
    row_bytes = features.row_bytes
    missing = len(static_nodes) * row_bytes
    for plan in plans:
        missing += (int(plan.bounds[-1]) + len(plan.initial_nodes)) * row_bytes + len(plan.index) * ALIGNMENT
    artifacts.require_free_bytes(writer.staging, missing, f"packing {writer.final}")

    # Where a file system cannot reserve space, the C library writes bytes instead: not beside headers on their way.
    pages.finish()
    targets = {}
    for plan in plans:
        targets[artifacts.extents_file(plan.split)] = _extents_target(writer, plan, graph.indices.dtype, row_bytes)
        targets[artifacts.initial_file(plan.split)] = _initial_target(writer, pages, plan, storage, features.width)

    static_path = writer.path(artifacts.STATIC)
    static_header = artifacts.npy_header_bytes(storage, (len(static_nodes), features.width))
    static_path.write_bytes(static_header)
    _reserve(static_path, len(static_header) + len(static_nodes) * row_bytes)
    by_node = np.argsort(static_nodes)
    sorted_static = static_nodes[by_node]

    read_bytes = 0
    needed_bytes = int(np.count_nonzero(needed)) * row_bytes
    with reporter.stage("pack", needed_bytes, "B") as advance:
        partition_bytes = _partition_bytes(features, plans, memory_bytes)
        for first, last, rows, was_read in _partitions(features, needed, partition_bytes):
            for target in targets.values():
                _pack_partition(pages, target, rows, first, last, row_bytes, threads)
            lo, hi = np.searchsorted(sorted_static, [first, last])
            _write_static(
                static_path, len(static_header), by_node[lo:hi], sorted_static[lo:hi] - first, rows, row_bytes, threads
            )
            read_bytes += was_read
            advance(int(np.count_nonzero(needed[first:last])) * row_bytes)
        pages.finish()
    writer.add(artifacts.STATIC)
    for plan in plans:
        extents_name, initial_name = artifacts.extents_file(plan.split), artifacts.initial_file(plan.split)
        plan.index["rows_crc32c"] = targets[extents_name].checksums
        writer.add(extents_name, crc32c=_file_checksum(plan.index, row_bytes))
        header_bytes = int(targets[initial_name].offsets[0])
        os.truncate(targets[initial_name].path, header_bytes + len(plan.initial_nodes) * row_bytes)  # whole pages
        writer.add(initial_name, crc32c=int(targets[initial_name].checksums[0]))
        writer.save_array(artifacts.index_file(plan.split), plan.index)
        writer.save_array(artifacts.wrap_file(plan.split), plan.wrap)
    return read_bytes


def _extents_target(writer: ArtifactWriter, plan: SplitPlan, node_dtype: np.dtype[Any], row_bytes: int) -> RowTarget:
    path = writer.path(artifacts.extents_file(plan.split))
    _reserve(path, int(plan.index["offset"][-1]) + int(extents.extent_bytes(plan.index, row_bytes)[-1]))
    offsets = plan.index["offset"] + plan.index["rows_offset"]
    return _target(path, _map_nodes(plan, node_dtype), plan.bounds, offsets, 0, plan.tails)


def _initial_target(
    writer: ArtifactWriter, pages: PageWriter, plan: SplitPlan, storage: np.dtype[Any], width: int
) -> RowTarget:
    """One extent whose header is that of a .npy file."""
    path, num_rows = writer.path(artifacts.initial_file(plan.split)), len(plan.initial_nodes)
    header = np.frombuffer(artifacts.npy_header_bytes(storage, (num_rows, width)), np.uint8)
    path.touch()
    tail = np.zeros(ALIGNMENT, np.uint8)
    _reserve(path, extents.align(len(header) + num_rows * width * storage.itemsize, ALIGNMENT))
    crc32c = start_extent(pages, str(path), 0, header, len(header), tail, num_rows == 0)
    bounds, offsets = np.array([0, num_rows], np.int64), np.array([len(header)], np.int64)
    return _target(path, plan.initial_nodes, bounds, offsets, crc32c, tail)


def _map_nodes(plan: SplitPlan, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The nodes of a split's rows. Each partition needs a short run of each extent: read ahead, it would need all."""
    if plan.bounds[-1] == 0:  # nothing to map
        return np.empty(0, dtype)
    with plan.nodes_path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype)


def _reserve(path: Path, num_bytes: int) -> None:
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(file.fileno(), num_bytes)  # a file system without fallocate: the space was checked


def scratch_pages(path: Path, num_pages: int) -> npt.NDArray[np.uint8]:
    """[num_pages * 4096] memory that the kernel may move to the disk: a page for each extent, however many."""
    path.touch()
    _reserve(path, num_pages * ALIGNMENT)
    return np.memmap(path, np.uint8, "r+")


def _target(
    path: Path,
    nodes: npt.NDArray[Any],
    bounds: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    crc32c: int,
    tails: npt.NDArray[np.uint8],
) -> RowTarget:
    checksums = np.full(len(offsets), crc32c, np.uint32)
    return RowTarget(path, nodes, bounds, np.ascontiguousarray(offsets), bounds[:-1].copy(), checksums, tails)


def _pack_partition(
    pages: PageWriter,
    target: RowTarget,
    rows: npt.NDArray[np.uint8],
    first: int,
    last: int,
    row_bytes: int,
    threads: int,
) -> None:
    pack_partition(
        pages,
        str(target.path),
        target.nodes,
        target.bounds,
        target.offsets,
        target.cursors,
        target.checksums,
        target.tails,
        rows,
        first,
        last,
        row_bytes,
        threads,
    )


def _write_static(
    path: Path,
    offset: int,
    places: npt.NDArray[np.int64],
    sources: npt.NDArray[np.int64],
    rows: npt.NDArray[np.uint8],
    row_bytes: int,
    threads: int,
) -> None:
    """Row sources[i] of a partition becomes row places[i] of the static file. Not through a map: no SIGBUS."""
    if len(places) == 0:
        return
    order = np.argsort(places)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        scatter_rows(descriptor, offset, places[order], sources[order], rows, row_bytes, threads)
    finally:
        os.close(descriptor)


def _partition_bytes(features: FeatureFile, plans: list[SplitPlan], memory_bytes: int) -> int:
    """Two partitions are in memory; half of the budget stays for blocks, page cache and the interpreter."""
    num_extents = sum(len(plan.index) for plan in plans)
    mean_extent_bytes = 1 + sum(int(plan.bounds[-1]) for plan in plans) * features.row_bytes // num_extents
    enough_bytes = max(ENOUGH_PARTITION_BYTES, features.num_bytes * MEAN_RUN_BYTES // mean_extent_bytes)
    return max(MIN_PARTITION_BYTES, min(memory_bytes // 4, enough_bytes))


def _partitions(
    features: FeatureFile, needed: npt.NDArray[np.bool_], partition_bytes: int
) -> Iterator[tuple[int, int, npt.NDArray[np.uint8], int]]:
    """(first node, last node, their rows as bytes, bytes read) in ascending order; the next is read meanwhile.

    The rows are valid until the next partition is asked for. Rows that are not `needed` may be absent (garbage).
    """
    rows_per_partition = min(max(1, partition_bytes // features.row_bytes), features.num_rows)
    buffers = [row_buffer(rows_per_partition, features.row_bytes) for _ in range(2)]
    spans = []
    first = 0
    while first < features.num_rows:
        if not needed[first : first + rows_per_partition].any():
            first += rows_per_partition
            continue
        first += int(np.argmax(needed[first:]))
        spans.append((first, min(first + rows_per_partition, features.num_rows)))
        first = spans[-1][1]

    def read(number: int) -> tuple[int, int, npt.NDArray[np.uint8], int]:
        first, last = spans[number]
        wanted = first + np.flatnonzero(needed[first:last])
        rows, read_bytes = read_rows(
            features.path, features.data_offset_bytes, features.row_bytes, wanted, buffers[number % 2]
        )
        return first, int(wanted[-1]) + 1, rows, read_bytes

    with ThreadPoolExecutor(1) as reader:
        upcoming = reader.submit(read, 0) if spans else None
        for number in range(len(spans)):
            assert upcoming is not None
            partition = upcoming.result()
            if number + 1 < len(spans):
                upcoming = reader.submit(read, number + 1)
            yield partition


def _file_checksum(index: npt.NDArray[Any], row_bytes: int) -> int:
    """CRC-32C of an extents file, put together from those of its parts and of the zeros between them."""
    crc = 0
    zeros = bytes(ALIGNMENT)
    for record, total_bytes in zip(index, extents.extent_bytes(index, row_bytes), strict=True):
        rows_bytes = int(record["num_rows"]) * row_bytes
        after_header = int(record["rows_offset"] - record["header_bytes"])
        after_rows = int(total_bytes) - int(record["rows_offset"]) - rows_bytes
        crc = crc32c_combine(crc, int(record["header_crc32c"]), int(record["header_bytes"]))
        crc = crc32c(zeros[:after_header], crc)
        crc = crc32c_combine(crc, int(record["rows_crc32c"]), rows_bytes)
        crc = crc32c(zeros[:after_rows], crc)
    return crc
