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
    crc32c_of_remainder,
    crc32c_part,
    pack_window,
    scatter_rows,
    start_extent,
)
from diskgnn.packing.adopting import DamagedScratchError, adopt_parts, opened_scratch
from diskgnn.packing.placed import Arrays, PlacedRows, PlacedSplit
from diskgnn.packing.reserving import reserve
from diskgnn.storage import artifacts
from diskgnn.storage.checked_files import npy_header_bytes
from diskgnn.storage.extents import ExtentIndex, Part, align
from diskgnn.storage.feature_scan import Window
from diskgnn.storage.file_reading import fill
from diskgnn.storage.packed_config import RowSetConfig
from diskgnn.storage.writer import ArtifactWriter

_PIECE_BYTES = 4 << 20


class RowOutput(Protocol):
    """A file that takes its rows from windows of the features."""

    def start(self) -> None:
        """Make the file, and reserve its space."""
        ...

    def write(self, window: Window, threads: int, flush: bool) -> None:
        """Take the rows of `window` that belong here; windows come in ascending order. With `flush`, all that was taken
        is in the file when `PageWriter.finish` returns, which has to be waited for before the next window."""
        ...

    def done(self) -> dict[str, npt.NDArray[Any]]:
        """What is written, for a record."""
        ...

    def adopt(self, done: Arrays, next_node: int) -> None:
        """Go on where a record was made, before the row of `next_node`.

        Raises:
            DamagedScratchError: the file is not what was recorded.
        """
        ...

    def register(self) -> None:
        """Add the file to the artifact, once all that was written has reached it."""
        ...


class ExtentRowsFile:
    """The rows of one row set in <split>.bin: sorted by node in each of T extents."""

    def __init__(self, writer: ArtifactWriter, pages: PageWriter, split: PlacedSplit, number: int) -> None:
        """`number` is that of the row set. The file's space is reserved already, see `reserve_extents`."""
        index, placed, self._number, self._name = split.index, split.row_sets[number], number, split.name
        self._pages, self._index, self._row_bytes = pages, index, index.row_bytes[number]
        self._checksums: npt.NDArray[np.uint32] = np.zeros(len(index), np.uint32)
        self._cursors, self._bounds = placed.bounds[:-1].copy(), placed.bounds
        self._rows = ExtentRows(
            path=str(writer.path(artifacts.extents_file(split.name))),
            nodes=map_nodes(placed),
            bounds=placed.bounds,
            offsets=index.extents["offset"] + index.rows["rows_offset"][:, number],
            cursors=self._cursors,
            checksums=self._checksums,
            tails=split.tails,
            ends=(index.rows["num_rows"][:, number + 1 :].sum(1) == 0).astype(np.uint8),
        )

    def start(self) -> None:
        """The file is there: it has headers, and the rows of other row sets."""

    def write(self, window: Window, threads: int, flush: bool) -> None:
        """Append the rows of `window` to every extent that needs them."""
        _append(self._pages, self._rows, window, threads, flush)

    def done(self) -> dict[str, npt.NDArray[Any]]:
        """How many rows of each extent are written, and their checksums."""
        rows = self._cursors - self._bounds[:-1]
        return {f"{self._name}/num_rows": rows, f"{self._name}/rows_crc32c": self._checksums}

    def adopt(self, done: Arrays, next_node: int) -> None:
        """Go on; `adopt_extents` has compared the rows."""
        self._cursors += done[f"{self._name}/num_rows"]
        self._checksums[:] = done[f"{self._name}/rows_crc32c"]

    def register(self) -> None:
        """Note the rows' checksums in the index."""
        self._index.rows["rows_crc32c"][:, self._number] = self._checksums


def reserve_extents(writer: ArtifactWriter, split: PlacedSplit) -> None:
    """Reserve the space of <split>.bin.

    Raises:
        OSError: the disk has no room for it.
    """
    reserve(writer.path(artifacts.extents_file(split.name)), split.index.num_bytes, writer.disk)


def register_extents(writer: ArtifactWriter, split: PlacedSplit) -> None:
    """Add <split>.bin and its index to the artifact, once the rows of all row sets are there."""
    index, name = split.index, split.name
    writer.add(artifacts.extents_file(name), crc32c=file_checksum(index))
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
        self._path = writer.path(self._name)
        self._header = np.frombuffer(npy_header_bytes(rows.storage, (num_rows, rows.stored_columns)), np.uint8)
        self._num_bytes = len(self._header) + num_rows * rows.row_bytes
        self._tail = np.zeros(DIRECT_ALIGNMENT, np.uint8)
        self._cursors, self._checksums = np.zeros(1, np.int64), np.zeros(1, np.uint32)
        self._rows = ExtentRows(
            path=str(self._path),
            nodes=nodes,
            bounds=np.array([0, num_rows], np.int64),
            offsets=np.array([len(self._header)], np.int64),
            cursors=self._cursors,
            checksums=self._checksums,
            tails=self._tail,
            ends=np.ones(1, np.uint8),
        )

    def start(self) -> None:
        """Make the file, and reserve its space."""
        header_bytes, is_complete = len(self._header), self._num_bytes == len(self._header)
        reserve(self._path, align(self._num_bytes, DIRECT_ALIGNMENT), self._writer.disk)
        self._checksums[0] = start_extent(
            self._pages, str(self._path), 0, self._header, header_bytes, self._tail, is_complete
        )

    def write(self, window: Window, threads: int, flush: bool) -> None:
        """Append the rows of `window` that the sequence starts with."""
        _append(self._pages, self._rows, window, threads, flush)

    def done(self) -> dict[str, npt.NDArray[Any]]:
        """How many rows are written, and their checksum."""
        return {self._name: np.array([self._cursors[0], self._checksums[0]], np.int64)}

    def adopt(self, done: Arrays, next_node: int) -> None:
        """Go on after the rows that were written, if they are what they were."""
        rows, crc = done[self._name].tolist()
        self._cursors[0], self._checksums[0] = rows, crc
        with opened_scratch(self._path) as descriptor:
            part = Part(0, len(self._header) + rows * self._row_bytes, crc)
            adopt_parts(descriptor, self._path, 0, [part], self._tail)
        # It was cut off when it was complete.
        reserve(self._path, align(self._num_bytes, DIRECT_ALIGNMENT), self._writer.disk)

    def register(self) -> None:
        """Cut off what fills the last page, and add the file to the artifact."""
        os.truncate(self._path, self._num_bytes)
        self._writer.add(self._name, crc32c=int(self._checksums[0]))


class StaticFile:
    """The .npy file of the static rows, hottest first: written at random."""

    def __init__(self, writer: ArtifactWriter, static_nodes: npt.NDArray[np.int64], row_set: RowSetConfig) -> None:
        rows = row_set.rows
        self._writer, self._row_bytes, self._name = writer, rows.row_bytes, artifacts.static_file(row_set.name)
        self._path, self._static_nodes = writer.path(self._name), static_nodes
        self._places = np.argsort(static_nodes)
        self._nodes = static_nodes[self._places]  # ascending
        self._header = npy_header_bytes(rows.storage, (len(static_nodes), rows.stored_columns))
        self._num_bytes = len(self._header) + len(static_nodes) * rows.row_bytes
        # Of a file that is zero where no rows are yet: see `crc32c_of_remainder`.
        self._remainder = crc32c_part(self._header, self._num_bytes - len(self._header))

    def start(self) -> None:
        """Make the file, and reserve its space."""
        self._path.write_bytes(self._header)
        reserve(self._path, self._num_bytes, self._writer.disk)

    def write(self, window: Window, threads: int, flush: bool) -> None:
        """Write the static rows of `window`. Not through a map: no SIGBUS."""
        begin, end = np.searchsorted(self._nodes, [window.first, window.last])
        if begin == end:
            return
        places, sources = self._places[begin:end], window.places(self._nodes[begin:end])
        order = np.argsort(places)
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            self._remainder ^= scatter_rows(
                descriptor, len(self._header), len(self._nodes), places[order], sources[order], window.data,
                self._row_bytes, threads,
            )  # fmt: skip
        finally:
            os.close(descriptor)

    def done(self) -> dict[str, npt.NDArray[Any]]:
        """The remainder of what is written."""
        return {self._name: np.array(self._remainder, np.int64)}

    def adopt(self, done: Arrays, next_node: int) -> None:
        """Go on, if the rows of nodes before `next_node` are what was written. Others may have been, after that."""
        remainder, offset = self._remainder, len(self._header)
        rows_at_once = max(1, _PIECE_BYTES // self._row_bytes)
        with opened_scratch(self._path) as descriptor:
            if fill(descriptor, 0, bytearray(offset), self._path) != self._header:
                raise DamagedScratchError(f"{self._path} is not what was written")
            for first in range(0, len(self._static_nodes), rows_at_once):
                nodes = self._static_nodes[first : first + rows_at_once]
                rows = np.empty((len(nodes), self._row_bytes), np.uint8)
                fill(descriptor, offset, rows.reshape(-1).data, self._path)
                rows[nodes >= next_node] = 0
                offset += rows.nbytes
                remainder ^= crc32c_part(rows.reshape(-1), self._num_bytes - offset)
        if remainder != int(done[self._name]):
            raise DamagedScratchError(f"{self._path} is not what was written")
        self._remainder = remainder

    def register(self) -> None:
        """Add the file to the artifact."""
        self._writer.add(self._name, crc32c=crc32c_of_remainder(self._remainder, self._num_bytes))


def _append(pages: PageWriter, rows: ExtentRows, window: Window, threads: int, flush: bool) -> None:
    runs = window.run_nodes, window.run_places
    pack_window(pages, rows, window.data, *runs, window.last, window.row_bytes, threads, flush)


def map_nodes(placed: PlacedRows) -> npt.NDArray[Any]:
    """The nodes of a split's rows. Each window needs a short run of each extent: read ahead, it would need all."""
    if placed.bounds[-1] == 0:  # nothing to map
        return np.empty(0, placed.node_dtype)
    with placed.nodes_path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, placed.node_dtype)


def file_checksum(index: ExtentIndex) -> int:
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
