"""The files that packing fills with rows, window after window: extents, static rows, and the rows that cpu tiers start
with.

Each keeps what it has written in named arrays of its step's state, which it adds when it is opened. What these arrays
say is written already, by a run that was killed, it compares with its checksums; at the beginning that is nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
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
from diskgnn.files import faults
from diskgnn.files.checked_files import npy_header_bytes
from diskgnn.files.disk_space import UNLIMITED, DiskBudget, allocated_bytes, file_bytes
from diskgnn.files.file_reading import fill
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ExtentIndex, align
from diskgnn.formats.feature_scan import Window
from diskgnn.formats.packed_config import RowSetConfig
from diskgnn.packing.placed import PlacedRows, PlacedSplit
from diskgnn.packing.written_bytes import comparing
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

_PIECE_BYTES = 4 << 20


class RowFile(Protocol):
    """A file that takes its rows from windows of the features, which come in ascending order."""

    def write(self, window: Window, threads: int) -> None:
        """Takes the rows of `window` that belong to this file."""
        ...

    def flush(self, window: Window, threads: int) -> None:
        """Hands over all that was taken up to `window`, the last one, including pages that are not full.

        The next window has to wait for `PageWriter.finish`.
        """
        ...

    def close(self) -> None:
        """Adds the file to the artifact if it is complete now that all that was written has reached it."""
        ...


class ExtentRowsFile:
    """Rows of one row set in an extents file, whose space is reserved: T runs, one in each extent, sorted by node.

    State: `<split>/cursors` [T], where the next row is in `PlacedRows.bounds`, and `<split>/rows_crc32c` [T].
    """

    def __init__(self, path: Path, pages: PageWriter, split: PlacedSplit, number: int, state: State, step: str) -> None:
        """Opens the rows of row set `number` in the file of `split` at `path`, for a step.

        Raises:
            DamagedStepError: the rows are not what a killed run wrote.
        """
        index, rows = split.index, split.row_sets[number]
        header_bytes, rows_offset = index.extents["header_bytes"], index.rows["rows_offset"][:, number]
        before = index.rows[:, :number]
        ends = before["rows_offset"] + before["num_rows"] * np.array(index.row_bytes[:number], np.int64)
        gaps = rows_offset - np.maximum(header_bytes, np.where(before["num_rows"] > 0, ends, 0).max(1, initial=0))
        self._runs = _Runs(
            path, pages, state, split.name, step, nodes=map_nodes(rows), bounds=rows.bounds,
            offsets=index.extents["offset"] + rows_offset, gaps=gaps, tails=split.tails,
            ends=(index.rows["num_rows"][:, number + 1 :].sum(1) == 0).astype(np.uint8),
            row_bytes=index.row_bytes[number],
        )  # fmt: skip

    def write(self, window: Window, threads: int) -> None:
        """Appends the rows of `window` to every extent that needs them."""
        self._runs.append(window, threads)

    def flush(self, window: Window, threads: int) -> None:
        """Writes the page of each extent that is not full."""
        self._runs.append(window, threads, flush=True)

    def close(self) -> None:
        """Does nothing: other row sets follow, and the index needs the checksums of all."""


class InitialCpuRowsFile:
    """The rows that the cpu tier of a sequence starts with: one run behind the header of a .npy file.

    State: `<name>/cursors` [1], the next row, and `<name>/rows_crc32c` [1].
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        pages: PageWriter,
        split: PlacedSplit,
        number: int,
        row_set: RowSetConfig,
        state: State,
        step: str,
    ) -> None:
        """Opens the file of row set `number`, for a step.

        Raises:
            DamagedStepError: the rows are not what a killed run wrote.
        """
        nodes, rows = split.row_sets[number].initial_cpu_nodes, row_set.rows
        self._writer, self._name = writer, artifacts.initial_cpu_rows_file(split.name, row_set.name)
        self._path = writer.path(self._name)
        header = np.frombuffer(npy_header_bytes(rows.storage, (len(nodes), rows.stored_columns)), np.uint8)
        self._rows_bytes = len(nodes) * rows.row_bytes
        self._num_bytes = len(header) + self._rows_bytes
        # Whole pages are written; a killed run may have cut it off already.
        reserve(self._path, align(self._num_bytes, DIRECT_ALIGNMENT), writer.disk)
        tail: npt.NDArray[np.uint8] = np.zeros(DIRECT_ALIGNMENT, np.uint8)
        if (written := state.get(f"{self._name}/cursors")) is not None and written[0]:
            with comparing(self._path, step) as found:  # the page that has it may not be written again
                found.require(0, len(header), crc32c(header))
        self._header_crc32c = start_extent(pages, str(self._path), 0, header, len(header), tail, len(nodes) == 0)
        self._runs = _Runs(
            self._path, pages, state, self._name, step, nodes=nodes, bounds=np.array([0, len(nodes)], np.int64),
            offsets=np.array([len(header)], np.int64), gaps=np.zeros(1, np.int64), tails=tail,
            ends=np.ones(1, np.uint8), row_bytes=rows.row_bytes,
        )  # fmt: skip

    def write(self, window: Window, threads: int) -> None:
        """Appends the rows of `window` that the sequence starts with."""
        self._runs.append(window, threads)

    def flush(self, window: Window, threads: int) -> None:
        """Writes the page that is not full."""
        self._runs.append(window, threads, flush=True)

    def close(self) -> None:
        """Cuts off the padding of the last page, and adds the file to the artifact."""
        os.truncate(self._path, self._num_bytes)
        crc = crc32c_combine(self._header_crc32c, int(self._runs.checksums[0]), self._rows_bytes)
        self._writer.add(self._name, crc32c=crc)


class StaticFile:
    """The .npy file of the static rows. They are stored hottest first, so they are written at random.

    State: `<name>` [2], the remainder (`crc32c_of_remainder`) of a file that is zero where no rows are yet, and the
    next node.
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        static_nodes: npt.NDArray[np.int64],
        row_set: RowSetConfig,
        state: State,
        step: str,
    ) -> None:
        """Opens the file, for a step.

        Raises:
            DamagedStepError: the rows are not what a killed run wrote.
        """
        rows = row_set.rows
        self._writer, self._row_bytes, self._name = writer, rows.row_bytes, artifacts.static_file(row_set.name)
        self._path, self._static_nodes = writer.path(self._name), static_nodes
        self._places = np.argsort(static_nodes)
        self._nodes = static_nodes[self._places]  # ascending
        self._header = npy_header_bytes(rows.storage, (len(static_nodes), rows.stored_columns))
        self._num_bytes = len(self._header) + len(static_nodes) * rows.row_bytes
        remainder = crc32c_part(self._header, self._num_bytes - len(self._header))
        self._state = state.setdefault(self._name, np.array([remainder, 0], np.int64))
        if self._state[1]:
            self._compare(remainder, step)
            return
        reserve(self._path, self._num_bytes, writer.disk)
        with self._path.open("r+b") as file:
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

    def close(self) -> None:
        """Adds the file to the artifact."""
        self._writer.add(self._name, crc32c=crc32c_of_remainder(int(self._state[0]), self._num_bytes))

    def _compare(self, remainder: int, step: str) -> None:
        """Compares the rows of nodes before the next one. Later rows may have been written, too."""
        expected, next_node = self._state.tolist()
        offset, rows_at_once = len(self._header), max(1, _PIECE_BYTES // self._row_bytes)
        with comparing(self._path, step) as found:
            found.require(0, offset, crc32c(self._header))
            for first in range(0, len(self._static_nodes), rows_at_once):
                nodes = self._static_nodes[first : first + rows_at_once]
                rows = np.empty((len(nodes), self._row_bytes), np.uint8)
                fill(found.descriptor, offset, rows.reshape(-1).data, self._path)
                rows[nodes >= next_node] = 0
                offset += rows.nbytes
                remainder ^= crc32c_part(rows.reshape(-1), self._num_bytes - offset)
            if remainder != expected:
                raise found.damaged(0, self._num_bytes)


class _Runs:
    """Runs of rows in one file, each sorted by node, which are appended to in turn, a page at a time."""

    def __init__(
        self,
        path: Path,
        pages: PageWriter,
        state: State,
        name: str,
        step: str,
        *,
        nodes: npt.NDArray[Any],
        bounds: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        gaps: npt.NDArray[np.int64],
        tails: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.uint8],
        row_bytes: int,
    ) -> None:
        """Opens T runs, whose arrays in `state` begin with `name`. `nodes[bounds[t]:bounds[t + 1]]` are those of run t,
        which begins at `offsets[t]`, behind a gap of `gaps[t]` bytes; nothing follows it on its last page if `ends[t]`.
        """
        self._path, self._pages, self._row_bytes = path, pages, row_bytes
        self._bounds, self._offsets, self._gaps, self._tails, self._ends = bounds, offsets, gaps, tails, ends
        self._cursors = state.setdefault(f"{name}/cursors", bounds[:-1].copy())
        self.checksums = state.setdefault(f"{name}/rows_crc32c", np.zeros(len(offsets), np.uint32))
        if (written := np.flatnonzero(self._cursors > bounds[:-1])).size:
            self._compare(written, step)
        self._rows = ExtentRows(
            path=str(path), nodes=nodes, bounds=bounds, offsets=offsets, cursors=self._cursors,
            checksums=self.checksums, tails=tails, ends=ends,
        )  # fmt: skip

    def append(self, window: Window, threads: int, *, flush: bool = False) -> None:
        """Appends the rows of `window`; with `flush` also writes the pages that are not full."""
        runs = window.run_nodes, window.run_places
        pack_window(self._pages, self._rows, window.data, *runs, window.last, window.row_bytes, threads, flush)

    def _compare(self, written: npt.NDArray[np.intp], step: str) -> None:
        """Compares the rows in `written` runs, and reads the last page of each."""
        with comparing(self._path, step) as found:
            for run in written.tolist():
                begin, num_rows = int(self._offsets[run]), int(self._cursors[run] - self._bounds[run])
                end = begin + num_rows * self._row_bytes
                found.require_zeros(begin - int(self._gaps[run]), begin)
                found.require(begin, end - begin, int(self.checksums[run]))
                found.read_tail(end, self._tails[run * DIRECT_ALIGNMENT :][:DIRECT_ALIGNMENT])
                if self._ends[run] and self._cursors[run] == self._bounds[run + 1]:
                    found.require_zeros(end, align(end, DIRECT_ALIGNMENT))


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


def reserve(path: Path, num_bytes: int, disk: DiskBudget = UNLIMITED) -> None:
    """Creates the file `path` if it is missing, and has it be `num_bytes` long, with disk space reserved for them.

    Raises:
        DiskFullError: that is more than what is left of `disk`.
        OSError: the disk has no room for it.
    """
    disk.claim(max(0, file_bytes(num_bytes) - allocated_bytes(path)))
    path.touch()
    with path.open("r+b") as file:
        if path.stat().st_size > num_bytes:
            file.truncate(num_bytes)
        try:
            faults.point("disk.reserve")
            if not hasattr(os, "posix_fallocate"):  # macOS
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(file.fileno(), num_bytes)  # a file system without fallocate: the space was checked
