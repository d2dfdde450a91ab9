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
from diskgnn.packing.header_writer import PlacedRows, PlacedSplit
from diskgnn.packing.reserving import reserve
from diskgnn.storage import artifacts
from diskgnn.storage.checked_files import npy_header_bytes
from diskgnn.storage.extents import ExtentIndex, align
from diskgnn.storage.feature_scan import Window
from diskgnn.storage.packed_config import RowSetConfig
from diskgnn.storage.writer import ArtifactWriter


class RowFile(Protocol):
    """A file that takes its rows from windows of the features. Its space is reserved when it is made."""

    def write(self, window: Window, threads: int) -> None:
        """Take the rows of `window` that belong here; windows come in ascending order."""
        ...

    def register(self) -> None:
        """Add the file to the artifact, once all that was written has reached it."""
        ...


class ExtentRowsFile:
    """The rows of one row set in <split>.bin: sorted by node in each of T extents."""

    def __init__(self, writer: ArtifactWriter, pages: PageWriter, split: PlacedSplit, number: int) -> None:
        """`number` is that of the row set. The file's space is reserved already, see `reserve_extents`."""
        index, placed, self._number = split.index, split.row_sets[number], number
        self._pages, self._index, self._row_bytes = pages, index, index.row_bytes[number]
        self._checksums: npt.NDArray[np.uint32] = np.zeros(len(index), np.uint32)
        self._rows = ExtentRows(
            path=str(writer.path(artifacts.extents_file(split.name))),
            nodes=_map_nodes(placed),
            bounds=placed.bounds,
            offsets=index.extents["offset"] + index.rows["rows_offset"][:, number],
            cursors=placed.bounds[:-1].copy(),
            checksums=self._checksums,
            tails=split.tails,
            ends=(index.rows["num_rows"][:, number + 1 :].sum(1) == 0).astype(np.uint8),
        )

    def write(self, window: Window, threads: int) -> None:
        """Append the rows of `window` to every extent that needs them."""
        _append(self._pages, self._rows, window, threads)

    def register(self) -> None:
        """Note the rows' checksums in the index."""
        self._index.rows["rows_crc32c"][:, self._number] = self._checksums


def reserve_extents(writer: ArtifactWriter, split: PlacedSplit) -> None:
    """Reserve the space of <split>.bin.

    Raises:
        OSError: the disk has no room for it.
    """
    reserve(writer.path(artifacts.extents_file(split.name)), split.index.num_bytes)


def register_extents(writer: ArtifactWriter, split: PlacedSplit) -> None:
    """Add <split>.bin and its index to the artifact, once the rows of all row sets are there."""
    index, name = split.index, split.name
    writer.add(artifacts.extents_file(name), crc32c=_file_checksum(index))
    writer.save_array(artifacts.index_file(name), index.extents)
    writer.save_array(artifacts.rows_file(name), index.rows)


class InitialCpuRowsFile:
    """The rows that a sequence starts with in its cpu tier: as one extent, whose header is that of a .npy file."""

    def __init__(
        self, writer: ArtifactWriter, pages: PageWriter, split: PlacedSplit, number: int, row_set: RowSetConfig
    ) -> None:
        """`number` is that of the row set."""
        rows, nodes = row_set.rows, split.row_sets[number].initial_cpu_nodes
        self._writer, self._pages, self._row_bytes = writer, pages, rows.row_bytes
        self._name, num_rows = artifacts.initial_cpu_rows_file(split.name, row_set.name), len(nodes)
        header = np.frombuffer(npy_header_bytes(rows.storage, (num_rows, rows.stored_columns)), np.uint8)
        self._num_bytes = len(header) + num_rows * rows.row_bytes
        path, tail = writer.path(self._name), np.zeros(DIRECT_ALIGNMENT, np.uint8)
        reserve(path, align(self._num_bytes, DIRECT_ALIGNMENT))
        checksum = start_extent(pages, str(path), 0, header, len(header), tail, num_rows == 0)
        self._checksums = np.array([checksum], np.uint32)
        self._rows = ExtentRows(
            path=str(path),
            nodes=nodes,
            bounds=np.array([0, num_rows], np.int64),
            offsets=np.array([len(header)], np.int64),
            cursors=np.zeros(1, np.int64),
            checksums=self._checksums,
            tails=tail,
            ends=np.ones(1, np.uint8),
        )

    def write(self, window: Window, threads: int) -> None:
        """Append the rows of `window` that the sequence starts with."""
        _append(self._pages, self._rows, window, threads)

    def register(self) -> None:
        """Cut off what fills the last page, and add the file to the artifact."""
        os.truncate(self._writer.path(self._name), self._num_bytes)
        self._writer.add(self._name, crc32c=int(self._checksums[0]))


class StaticFile:
    """The .npy file of the static rows, hottest first: written at random."""

    def __init__(self, writer: ArtifactWriter, static_nodes: npt.NDArray[np.int64], row_set: RowSetConfig) -> None:
        rows = row_set.rows
        self._writer, self._row_bytes, self._name = writer, rows.row_bytes, artifacts.static_file(row_set.name)
        self._path = writer.path(self._name)
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
        places, sources = self._places[begin:end], window.places(self._nodes[begin:end])
        order = np.argsort(places)
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            scatter_rows(descriptor, self._offset, places[order], sources[order], window.data, self._row_bytes, threads)
        finally:
            os.close(descriptor)

    def register(self) -> None:
        """Add the file to the artifact; its checksum takes a read of it."""
        self._writer.add(self._name)


def _append(pages: PageWriter, rows: ExtentRows, window: Window, threads: int) -> None:
    pack_window(pages, rows, window.data, window.run_nodes, window.run_places, window.last, window.row_bytes, threads)


def _map_nodes(placed: PlacedRows) -> npt.NDArray[Any]:
    """The nodes of a split's rows. Each window needs a short run of each extent: read ahead, it would need all."""
    if placed.bounds[-1] == 0:  # nothing to map
        return np.empty(0, placed.node_dtype)
    with placed.nodes_path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, placed.node_dtype)


def _file_checksum(index: ExtentIndex) -> int:
    """CRC-32C of an extents file, put together from those of its parts and of the zeros between them."""
    crc = 0
    zeros = bytes(DIRECT_ALIGNMENT)
    for number, extent_bytes in enumerate(index.extent_bytes.tolist()):
        end = 0
        for part in index.parts(number):
            crc = crc32c(zeros[: part.offset - end], crc)
            crc = crc32c_combine(crc, part.crc32c, part.num_bytes)
            end = part.offset + part.num_bytes
        crc = crc32c(zeros[: extent_bytes - end], crc)
    return crc
