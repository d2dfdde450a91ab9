"""The files that packing fills with rows, window after window: extents, static rows, and the rows that cpu tiers start
with.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import (
    DIRECT_ALIGNMENT,
    ExtentRows,
    crc32c,
    crc32c_combine,
    crc32c_of_remainder,
    crc32c_part,
    flush_tails,
    pack_window,
    scatter_rows,
    start_extent,
)
from diskgnn.files.checked_files import npy_header_bytes
from diskgnn.files.disk_space import reserve
from diskgnn.formats import artifacts
from diskgnn.formats.feature_scan import Window
from diskgnn.formats.packed_config import RowSetConfig
from diskgnn.packing.pack_folder import PackFolder
from diskgnn.packing.placed import PlacedRows, PlacedSplit
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import State
from diskgnn.work.written_spans import Span, SpanReader, Written

_PIECE_BYTES = 4 << 20


class RowFile(StepFile, ABC):
    """A file that takes its rows from windows of the features, which come in ascending order."""

    @abstractmethod
    def write(self, window: Window) -> None:
        """Takes the rows of `window` that belong to this file."""


@dataclass(frozen=True)
class _Runs:
    """T runs of rows in one file, each sorted by node."""

    nodes: npt.NDArray[Any]
    bounds: npt.NDArray[np.int64]  # [T+1] run t has the rows of nodes[bounds[t]:bounds[t + 1]]
    offsets: npt.NDArray[np.int64]  # [T] where it begins
    padding_bytes: npt.NDArray[np.int64]  # [T] zeros that are written behind it
    tails: npt.NDArray[np.uint8]  # [T * 4096] the last page of each, which is not full yet
    row_bytes: int


class _RowRuns(RowFile):
    """Appends to runs of rows in turn, a page at a time.

    State: `<name>/cursors` [T], where the next row is in the bounds, and `<name>/rows_crc32c` [T].
    """

    def __init__(self, folder: PackFolder, name: str, runs: _Runs, *, is_own: bool) -> None:
        super().__init__(folder.writer, name, begins=is_own, ends=is_own)
        self._pages, self._threads, self._runs = folder.pages, folder.resources.threads, runs

    def first(self) -> State:
        """Returns that no run has rows."""
        runs = self._runs
        return {
            f"{self.name}/cursors": runs.bounds[:-1].copy(),
            f"{self.name}/rows_crc32c": np.zeros(len(runs.offsets), np.uint32),
        }

    def rows_crc32c(self, state: State) -> npt.NDArray[np.uint32]:
        """Returns [T] the CRC-32C of each run so far."""
        found: npt.NDArray[np.uint32] = state[f"{self.name}/rows_crc32c"]
        return found

    def open(self, state: State) -> None:
        """Goes on where `state` says."""
        runs = self._runs
        self._cursors, self._checksums = state[f"{self.name}/cursors"], self.rows_crc32c(state)
        self._rows = ExtentRows(
            path=str(self.path), nodes=runs.nodes, bounds=runs.bounds, offsets=runs.offsets, cursors=self._cursors,
            checksums=self._checksums, tails=runs.tails, padding_bytes=runs.padding_bytes, row_bytes=runs.row_bytes,
        )  # fmt: skip

    def write(self, window: Window) -> None:
        """Appends the rows of `window` to every run that has them."""
        runs = window.run_nodes, window.run_places
        pack_window(self._pages, self._rows, window.data, *runs, window.last, self._threads)

    def hand_over(self) -> None:
        """Writes the page of each run that is not full."""
        flush_tails(self._pages, self._rows)
        self._pages.finish()  # before anybody appends to these pages

    def close(self) -> None:
        """Waits until all is written. Of extents, other row sets follow, and the index needs the checksums of all."""
        self._pages.finish()

    def written(self, state: State) -> Iterator[Span]:
        """Yields the rows of each run, with the zeros behind them if it is complete."""
        runs, cursors, checksums = self._runs, state[f"{self.name}/cursors"], self.rows_crc32c(state)
        num_bytes = (cursors - runs.bounds[:-1]) * runs.row_bytes
        padding_bytes = np.where(cursors == runs.bounds[1:], runs.padding_bytes, 0)
        for run in np.flatnonzero(num_bytes).tolist():
            tail = runs.tails[run * DIRECT_ALIGNMENT :][:DIRECT_ALIGNMENT]
            yield Span(
                int(runs.offsets[run]), int(num_bytes[run]), int(checksums[run]), tail, int(padding_bytes[run])
            )  # fmt: skip


class ExtentRowsFile(_RowRuns):
    """Rows of one row set in an extents file, whose space is reserved: a run in each extent."""

    def __init__(self, folder: PackFolder, split: PlacedSplit, number: int) -> None:
        """Describes the rows of row set `number` in the file of `split`."""
        index, rows, parts = split.index, split.row_sets[number], split.index.parts
        runs = _Runs(
            map_nodes(rows), rows.bounds, parts.offsets[1 + number],
            padding_bytes=parts.padding_bytes[1 + number], tails=split.tails, row_bytes=index.row_bytes[number],
        )  # fmt: skip
        super().__init__(folder, artifacts.extents_file(split.name), runs, is_own=False)
        self.is_streamed = split.is_part


class InitialCpuRowsFile(_RowRuns):
    """The rows that the cpu tier of a sequence starts with: one run behind the header of a .npy file."""

    def __init__(self, folder: PackFolder, split: PlacedSplit, number: int, row_set: RowSetConfig) -> None:
        """Describes the rows of row set `number` that `split` starts with."""
        nodes, rows = split.row_sets[number].initial_cpu_nodes, row_set.rows
        header = npy_header_bytes(rows.storage, (len(nodes), rows.stored_columns))
        self._header, self.num_bytes = np.frombuffer(header, np.uint8), len(header) + len(nodes) * rows.row_bytes
        self._padding_bytes = -self.num_bytes % DIRECT_ALIGNMENT  # whole pages are written
        runs = _Runs(
            nodes, np.array([0, len(nodes)], np.int64), np.array([len(header)], np.int64),
            padding_bytes=np.array([self._padding_bytes]), tails=np.zeros(DIRECT_ALIGNMENT, np.uint8),
            row_bytes=rows.row_bytes,
        )  # fmt: skip
        super().__init__(folder, artifacts.initial_cpu_rows_file(split.name, row_set.name), runs, is_own=True)

    def written(self, state: State) -> Iterator[Span]:
        """Yields the header and the rows."""
        for rows in super().written(state):
            yield Span(0, len(self._header), crc32c(self._header))
            yield replace(rows, padding_bytes=0)  # `close` may have cut it off

    def open(self, state: State) -> None:
        """Writes the header, or goes on where `state` says."""
        # A killed run may have cut it off already.
        reserve(self.path, self.num_bytes + self._padding_bytes, self.writer.disk.claim)
        super().open(state)
        if self._cursors[0] == 0:
            start_extent(self._pages, str(self.path), 0, self._header, 0, self._runs.tails)
            self._pages.finish()

    def close(self) -> None:
        """Cuts off the padding of the last page, and adds the file to the artifact."""
        super().close()
        os.truncate(self.path, self.num_bytes)
        rows_bytes = self.num_bytes - len(self._header)
        self.writer.add(self.name, crc32c=crc32c_combine(crc32c(self._header), int(self._checksums[0]), rows_bytes))


class StaticFile(RowFile):
    """The .npy file of the static rows. They are stored hottest first, so they are written at random.

    State: `<name>` [2], the remainder (`crc32c_of_remainder`) of a file that is zero where no rows are yet, and the
    next node.
    """

    def __init__(self, folder: PackFolder, static_nodes: npt.NDArray[np.int64], row_set: RowSetConfig) -> None:
        super().__init__(folder.writer, artifacts.static_file(row_set.name))
        rows, self._threads = row_set.rows, folder.resources.threads
        self._static_nodes, self._row_bytes = static_nodes, rows.row_bytes
        self._header = npy_header_bytes(rows.storage, (len(static_nodes), rows.stored_columns))
        self.num_bytes = len(self._header) + len(static_nodes) * rows.row_bytes
        self._header_remainder = crc32c_part(self._header, self.num_bytes - len(self._header))

    def first(self) -> State:
        """Returns that no rows are there."""
        return {self.name: np.array([self._header_remainder, 0], np.int64)}

    def written(self, state: State) -> Iterator[Written]:
        """Yields the header, and the rows of nodes before the next one."""
        remainder, next_node = state[self.name].tolist()
        if next_node:
            yield Span(0, len(self._header), crc32c(self._header))
            is_written = self._static_nodes < next_node
            yield _RowsBetween(len(self._header), self._row_bytes, is_written, remainder ^ self._header_remainder)

    def open(self, state: State) -> None:
        """Writes the header, or goes on where `state` says."""
        self._state = state[self.name]
        self._places = np.argsort(self._static_nodes)
        self._nodes = self._static_nodes[self._places]  # ascending
        if self._state[1]:
            return
        reserve(self.path, self.num_bytes, self.writer.disk.claim)
        with self.path.open("r+b") as file:
            file.write(self._header)

    def write(self, window: Window) -> None:
        """Writes the static rows of `window`. The file is not mapped: errors of the disk would be SIGBUS then."""
        self._state[1] = window.last
        begin, end = np.searchsorted(self._nodes, [window.first, window.last])
        if begin == end:
            return
        places, sources = self._places[begin:end], window.places(self._nodes[begin:end])
        order = np.argsort(places)
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            self._state[0] ^= scatter_rows(
                descriptor, len(self._header), len(self._nodes), places[order], sources[order], window.data,
                self._row_bytes, self._threads,
            )  # fmt: skip
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Cuts off what somebody else has put behind the rows, and adds the file to the artifact."""
        os.truncate(self.path, self.num_bytes)
        self.writer.add(self.name, crc32c=crc32c_of_remainder(int(self._state[0]), self.num_bytes))


@dataclass(frozen=True)
class _RowsBetween:
    """Rows at the end of a file, between others that may have been written since."""

    offset: int  # of the first row
    row_bytes: int
    is_written: npt.NDArray[np.bool_]  # [rows]
    remainder: int  # `crc32c_of_remainder` of a file that is zero elsewhere

    def is_whole(self, file: SpanReader) -> bool:
        """Returns True if they are what was written."""
        end, rows_at_once, remainder = self.offset, max(1, _PIECE_BYTES // self.row_bytes), 0
        left_bytes = len(self.is_written) * self.row_bytes
        for first in range(0, len(self.is_written), rows_at_once):
            written = self.is_written[first : first + rows_at_once]
            rows = np.empty((len(written), self.row_bytes), np.uint8)
            file.read(end, rows.reshape(-1).data)
            rows[~written] = 0
            end, left_bytes = end + rows.nbytes, left_bytes - rows.nbytes
            remainder ^= crc32c_part(rows.reshape(-1), left_bytes)
        return remainder == self.remainder

    def load(self, file: SpanReader) -> None:
        """Does nothing: rows of static files are written to their places, page or not."""


def map_nodes(placed: PlacedRows) -> npt.NDArray[Any]:
    """Maps the nodes of a split's rows, without reading ahead.

    Each window needs a short run of each extent, so reading ahead would load the whole file.
    """
    if placed.bounds[-1] == 0:  # nothing to map
        return np.empty(0, placed.nodes.dtype)
    with placed.nodes.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, placed.nodes.dtype, int(placed.bounds[-1]), placed.nodes.header_bytes)
