"""The files that packing fills with rows, window after window: extents, static rows, and the rows that cpu tiers start
with.
"""

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
from diskgnn.files.checked_files import npy_header_bytes
from diskgnn.files.file_reading import fill
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ExtentIndex, Part, align
from diskgnn.formats.feature_scan import Window
from diskgnn.formats.packed_config import RowSetConfig
from diskgnn.packing.adopting import adopt_parts, damaged, opened_scratch
from diskgnn.packing.placed import PlacedRows, PlacedSplit
from diskgnn.packing.reserving import reserve
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

_PIECE_BYTES = 4 << 20


class RowOutput(Protocol):
    """A file that takes its rows from windows of the features."""

    def first(self) -> State:
        """Returns the state that describes the written rows, before any is written."""
        ...

    def start(self, state: State) -> None:
        """Creates the file and reserves its space. `state` is what `first` returned, and is kept up to date."""
        ...

    def adopt(self, state: State) -> None:
        """Goes on where a killed run was when it had this `state`, which is kept up to date.

        Raises:
            DamagedStepError: the file is not what it was then.
        """
        ...

    def write(self, window: Window, threads: int) -> None:
        """Takes the rows of `window` that belong to this file. Windows come in ascending order."""
        ...

    def flush(self, window: Window, threads: int) -> None:
        """Hands over all that was taken up to `window`, the last one, including pages that are not full.

        The next window has to wait for `PageWriter.finish`.
        """
        ...

    def register(self) -> None:
        """Adds the file to the artifact, once all that was written has reached it."""
        ...


class ExtentRowsFile:
    """Writes the rows of one row set to <split>.bin, sorted by node in each of T extents."""

    def __init__(self, writer: ArtifactWriter, pages: PageWriter, split: PlacedSplit, number: int) -> None:
        """Prepares the rows of row set `number`. The file's space was reserved by `reserve_extents`."""
        self._pages, self._split, self._number = pages, split, number
        self._path = str(writer.path(artifacts.extents_file(split.name)))

    def first(self) -> State:
        """Returns the next row of each extent, and the checksums of those before."""
        num_extents, bounds = len(self._split.index), self._split.row_sets[self._number].bounds
        return extent_state(self._split.name, bounds[:-1].copy(), np.zeros(num_extents, np.uint32))

    def start(self, state: State) -> None:
        """Begins with the first rows. The file exists already, with headers and the rows of other row sets."""
        index, number = self._split.index, self._number
        cursors, self._checksums = extent_state_in(state, self._split.name)
        self._rows = ExtentRows(
            path=self._path,
            nodes=map_nodes(self._split.row_sets[number]),
            bounds=self._split.row_sets[number].bounds,
            offsets=index.extents["offset"] + index.rows["rows_offset"][:, number],
            cursors=cursors,
            checksums=self._checksums,
            tails=self._split.tails,
            ends=(index.rows["num_rows"][:, number + 1 :].sum(1) == 0).astype(np.uint8),
        )

    def adopt(self, state: State) -> None:
        """Goes on; `adopt_extents` has compared the rows."""
        self.start(state)

    def write(self, window: Window, threads: int) -> None:
        """Appends the rows of `window` to every extent that needs them."""
        _append(self._pages, self._rows, window, threads, flush=False)

    def flush(self, window: Window, threads: int) -> None:
        """Writes the page of each extent that is not full."""
        _append(self._pages, self._rows, window, threads, flush=True)

    def register(self) -> None:
        """Sets the rows' checksums in the index."""
        self._split.index.rows["rows_crc32c"][:, self._number] = self._checksums


def extent_state(split: str, cursors: npt.NDArray[np.int64], checksums: npt.NDArray[np.uint32]) -> State:
    """Returns the state of one row set's rows in the extents of a split: where the next one is, and checksums."""
    return {f"{split}/cursors": cursors, f"{split}/rows_crc32c": checksums}


def extent_state_in(state: State, split: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Returns the cursors and checksums that `extent_state` put there."""
    return state[f"{split}/cursors"], state[f"{split}/rows_crc32c"]


def reserve_extents(writer: ArtifactWriter, split: PlacedSplit) -> None:
    """Reserves the space of <split>.bin.

    Raises:
        OSError: the disk has no room for it.
    """
    reserve(writer.path(artifacts.extents_file(split.name)), split.index.num_bytes, writer.disk)


def register_extents(writer: ArtifactWriter, split: PlacedSplit) -> None:
    """Adds <split>.bin and its index to the artifact, once the rows of all row sets are there."""
    index, name = split.index, split.name
    writer.add(artifacts.extents_file(name), crc32c=file_checksum(index))
    writer.save_array(artifacts.index_file(name), index.extents)
    writer.save_array(artifacts.rows_file(name), index.rows)


class InitialCpuRowsFile:
    """Writes the rows that the cpu tier of a sequence starts with.

    It is written as one extent whose header is that of a .npy file.
    """

    def __init__(
        self, writer: ArtifactWriter, pages: PageWriter, split: PlacedSplit, number: int, row_set: RowSetConfig
    ) -> None:
        """Prepares the file of row set `number`."""
        rows, nodes = row_set.rows, split.row_sets[number].initial_cpu_nodes
        self._writer, self._pages, self._row_bytes = writer, pages, rows.row_bytes
        self.name, num_rows = artifacts.initial_cpu_rows_file(split.name, row_set.name), len(nodes)
        self._path = writer.path(self.name)
        self._header = np.frombuffer(npy_header_bytes(rows.storage, (num_rows, rows.stored_columns)), np.uint8)
        self._num_bytes = len(self._header) + num_rows * rows.row_bytes
        self._tail, self._nodes = np.zeros(DIRECT_ALIGNMENT, np.uint8), nodes

    def first(self) -> State:
        """Returns the next row, and the checksum of what is before it."""
        return extent_state(self.name, np.zeros(1, np.int64), np.zeros(1, np.uint32))

    def start(self, state: State) -> None:
        """Creates the file and reserves its space."""
        self._attach(state)
        header_bytes, is_complete = len(self._header), self._num_bytes == len(self._header)
        reserve(self._path, align(self._num_bytes, DIRECT_ALIGNMENT), self._writer.disk)
        self._checksums[0] = start_extent(
            self._pages, str(self._path), 0, self._header, header_bytes, self._tail, is_complete
        )

    def write(self, window: Window, threads: int) -> None:
        """Appends the rows of `window` that the sequence starts with."""
        _append(self._pages, self._rows, window, threads, flush=False)

    def flush(self, window: Window, threads: int) -> None:
        """Writes the page that is not full."""
        _append(self._pages, self._rows, window, threads, flush=True)

    def adopt(self, state: State) -> None:
        """Goes on after the rows that are written, if they have the recorded checksum."""
        self._attach(state)
        (rows,), (crc,) = (each.tolist() for each in extent_state_in(state, self.name))
        with opened_scratch(self._path) as descriptor:
            part = Part(0, len(self._header) + rows * self._row_bytes, crc)
            adopt_parts(descriptor, self._path, 0, [part], self._tail)
        # It was cut off when it was complete.
        reserve(self._path, align(self._num_bytes, DIRECT_ALIGNMENT), self._writer.disk)

    def _attach(self, state: State) -> None:
        cursors, self._checksums = extent_state_in(state, self.name)
        self._rows = ExtentRows(
            path=str(self._path),
            nodes=self._nodes,
            bounds=np.array([0, len(self._nodes)], np.int64),
            offsets=np.array([len(self._header)], np.int64),
            cursors=cursors,
            checksums=self._checksums,
            tails=self._tail,
            ends=np.ones(1, np.uint8),
        )

    def register(self) -> None:
        """Cuts off the padding of the last page, and adds the file to the artifact."""
        os.truncate(self._path, self._num_bytes)
        self._writer.add(self.name, crc32c=int(self._checksums[0]))


class StaticFile:
    """Writes the .npy file of the static rows. Rows are stored hottest first, so they are written at random."""

    def __init__(self, writer: ArtifactWriter, static_nodes: npt.NDArray[np.int64], row_set: RowSetConfig) -> None:
        rows = row_set.rows
        self._writer, self._row_bytes, self.name = writer, rows.row_bytes, artifacts.static_file(row_set.name)
        self._path, self._static_nodes = writer.path(self.name), static_nodes
        self._places = np.argsort(static_nodes)
        self._nodes = static_nodes[self._places]  # ascending
        self._header = npy_header_bytes(rows.storage, (len(static_nodes), rows.stored_columns))
        self._num_bytes = len(self._header) + len(static_nodes) * rows.row_bytes

    def first(self) -> State:
        """Returns the remainder (`crc32c_of_remainder`) of a file that is zero where no rows are yet, and the next
        node.
        """
        remainder = crc32c_part(self._header, self._num_bytes - len(self._header))
        return {self.name: np.array([remainder, 0], np.int64)}

    def start(self, state: State) -> None:
        """Creates the file and reserves its space."""
        self._state = state[self.name]
        reserve(self._path, self._num_bytes, self._writer.disk)
        with self._path.open("r+b") as file:  # in place: what a killed run left of it has its space
            file.write(self._header)

    def write(self, window: Window, threads: int) -> None:
        """Writes the static rows of `window`. The file is not mapped: errors of the disk would be SIGBUS then."""
        self._state[1] = window.last
        begin, end = np.searchsorted(self._nodes, [window.first, window.last])
        if begin == end:
            return
        places, sources = self._places[begin:end], window.places(self._nodes[begin:end])
        order = np.argsort(places)
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            self._state[0] ^= scatter_rows(
                descriptor, len(self._header), len(self._nodes), places[order], sources[order], window.data,
                self._row_bytes, threads,
            )  # fmt: skip
        finally:
            os.close(descriptor)

    def flush(self, window: Window, threads: int) -> None:
        """Does nothing: rows are written at once."""

    def adopt(self, state: State) -> None:
        """Goes on if the rows of nodes before the next one are as recorded. Later rows may have been written, too."""
        self._state = state[self.name]
        expected, next_node = self._state.tolist()
        remainder, offset = crc32c_part(self._header, self._num_bytes - len(self._header)), len(self._header)
        rows_at_once = max(1, _PIECE_BYTES // self._row_bytes)
        with opened_scratch(self._path) as descriptor:
            if fill(descriptor, 0, bytearray(offset), self._path) != self._header:
                raise damaged(f"{self._path} is not what was written")
            for first in range(0, len(self._static_nodes), rows_at_once):
                nodes = self._static_nodes[first : first + rows_at_once]
                rows = np.empty((len(nodes), self._row_bytes), np.uint8)
                fill(descriptor, offset, rows.reshape(-1).data, self._path)
                rows[nodes >= next_node] = 0
                offset += rows.nbytes
                remainder ^= crc32c_part(rows.reshape(-1), self._num_bytes - offset)
        if remainder != expected:
            raise damaged(f"{self._path} is not what was written")

    def register(self) -> None:
        """Adds the file to the artifact."""
        self._writer.add(self.name, crc32c=crc32c_of_remainder(int(self._state[0]), self._num_bytes))


def _append(pages: PageWriter, rows: ExtentRows, window: Window, threads: int, *, flush: bool) -> None:
    runs = window.run_nodes, window.run_places
    pack_window(pages, rows, window.data, *runs, window.last, window.row_bytes, threads, flush)


def map_nodes(placed: PlacedRows) -> npt.NDArray[Any]:
    """Maps the nodes of a split's rows, without reading ahead.

    Each window needs a short run of each extent, so reading ahead would load the whole file.
    """
    if placed.bounds[-1] == 0:  # nothing to map
        return np.empty(0, placed.node_dtype)
    with placed.nodes_path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, placed.node_dtype, int(placed.bounds[-1]))


def file_checksum(index: ExtentIndex) -> int:
    """Returns the CRC-32C of an extents file, combined from those of its parts and of the zeros between them."""
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
