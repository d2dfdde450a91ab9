"""The files that packed rows go to, window after window: the extents, and the rows that memory starts with."""

from __future__ import annotations

import mmap
import os
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskgnn._native import (
    DIRECT_ALIGNMENT,
    ExtentRows,
    PageWriter,
    crc32c,
    crc32c_combine,
    pack_window,
    scatter_rows,
    start_extent,
)
from diskgnn.packing.reserving import reserve
from diskgnn.packing.split_placer import PlacedSplit
from diskgnn.storage import artifacts, extents
from diskgnn.storage.checked_files import npy_header_bytes
from diskgnn.storage.feature_scan import Window
from diskgnn.storage.row_format import RowFormat
from diskgnn.storage.writer import ArtifactWriter


class RowFile(Protocol):
    """A file that takes its rows from windows of the features. Its space is reserved when it is made."""

    def write(self, window: Window, threads: int) -> None:
        """Take the rows of `window` that belong here; windows come in ascending order."""
        ...

    def register(self) -> None:
        """Add the file to the artifact, once all that was written has reached it."""
        ...


class ExtentsFile:
    """<split>.bin, and its index: rows sorted by node in each of T extents."""

    def __init__(self, writer: ArtifactWriter, pages: PageWriter, split: PlacedSplit, rows: RowFormat) -> None:
        self._writer, self._pages, self._split, self._row_bytes = writer, pages, split, rows.row_bytes
        path, index = writer.path(artifacts.extents_file(split.name)), split.index
        reserve(path, int(index["offset"][-1]) + int(extents.extent_bytes(index, rows.row_bytes)[-1]))
        self._checksums: npt.NDArray[np.uint32] = np.zeros(len(index), np.uint32)
        self._rows = ExtentRows(
            path=str(path),
            nodes=_map_nodes(split),
            bounds=split.bounds,
            offsets=np.ascontiguousarray(index["offset"] + index["rows_offset"]),
            cursors=split.bounds[:-1].copy(),
            checksums=self._checksums,
            tails=split.tails,
        )

    def write(self, window: Window, threads: int) -> None:
        """Append the rows of `window` to every extent that needs them."""
        pack_window(self._pages, self._rows, window.rows, window.first, self._row_bytes, threads)

    def register(self) -> None:
        """Add the file and its index to the artifact."""
        index, name = self._split.index, self._split.name
        index["rows_crc32c"] = self._checksums
        self._writer.add(artifacts.extents_file(name), crc32c=_file_checksum(index, self._row_bytes))
        self._writer.save_array(artifacts.index_file(name), index)


class InitialCpuRowsFile:
    """The rows that a sequence starts with in its cpu tier: as one extent, whose header is that of a .npy file."""

    def __init__(self, writer: ArtifactWriter, pages: PageWriter, split: PlacedSplit, rows: RowFormat) -> None:
        self._writer, self._pages, self._row_bytes = writer, pages, rows.row_bytes
        self._name, num_rows = artifacts.initial_cpu_rows_file(split.name), len(split.initial_cpu_nodes)
        header = np.frombuffer(npy_header_bytes(rows.storage, (num_rows, rows.stored_columns)), np.uint8)
        self._num_bytes = len(header) + num_rows * rows.row_bytes
        path, tail = writer.path(self._name), np.zeros(DIRECT_ALIGNMENT, np.uint8)
        reserve(path, extents.align(self._num_bytes, DIRECT_ALIGNMENT))
        checksum = start_extent(pages, str(path), 0, header, len(header), tail, num_rows == 0)
        self._checksums = np.array([checksum], np.uint32)
        self._rows = ExtentRows(
            path=str(path),
            nodes=split.initial_cpu_nodes,
            bounds=np.array([0, num_rows], np.int64),
            offsets=np.array([len(header)], np.int64),
            cursors=np.zeros(1, np.int64),
            checksums=self._checksums,
            tails=tail,
        )

    def write(self, window: Window, threads: int) -> None:
        """Append the rows of `window` that the sequence starts with."""
        pack_window(self._pages, self._rows, window.rows, window.first, self._row_bytes, threads)

    def register(self) -> None:
        """Cut off what fills the last page, and add the file to the artifact."""
        os.truncate(self._writer.path(self._name), self._num_bytes)
        self._writer.add(self._name, crc32c=int(self._checksums[0]))


class StaticFile:
    """The .npy file of the static rows, hottest first: written at random."""

    def __init__(self, writer: ArtifactWriter, static_nodes: npt.NDArray[np.int64], rows: RowFormat) -> None:
        self._writer, self._row_bytes = writer, rows.row_bytes
        self._path = writer.path(artifacts.STATIC)
        self._places = np.argsort(static_nodes)
        self._nodes = static_nodes[self._places]  # ascending
        header = npy_header_bytes(rows.storage, (len(static_nodes), rows.stored_columns))
        self._path.write_bytes(header)
        self._offset = len(header)
        reserve(self._path, len(header) + len(static_nodes) * rows.row_bytes)

    def write(self, window: Window, threads: int) -> None:
        """Write the static rows of `window`. Not through a map: no SIGBUS."""
        begin, end = np.searchsorted(self._nodes, [window.first, window.last])
        if begin == end:
            return
        places, sources = self._places[begin:end], self._nodes[begin:end] - window.first
        order = np.argsort(places)
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            scatter_rows(descriptor, self._offset, places[order], sources[order], window.rows, self._row_bytes, threads)
        finally:
            os.close(descriptor)

    def register(self) -> None:
        """Add the file to the artifact; its checksum takes a read of it."""
        self._writer.add(artifacts.STATIC)


def _map_nodes(split: PlacedSplit) -> npt.NDArray[Any]:
    """The nodes of a split's rows. Each window needs a short run of each extent: read ahead, it would need all."""
    if split.bounds[-1] == 0:  # nothing to map
        return np.empty(0, split.node_dtype)
    with split.nodes_path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, split.node_dtype)


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
