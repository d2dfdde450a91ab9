"""The second half of packing: writes every window of a feature file to its places in all extents.

One row set comes after another. Its feature file is read once, front to back, in windows that fit the memory budget.
Rows of an extent are sorted by node, so the rows of a window are one contiguous run in it. Extents are appended to in
turn, a whole page at a time, past the page cache.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import PageWriter
from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.feature_scan import WINDOWS_IN_MEMORY, Window, scan_needed_rows
from diskgnn.packing.adopting import adopt_extents
from diskgnn.packing.file_sizes import require_space
from diskgnn.packing.output_files import (
    ExtentRowsFile,
    InitialCpuRowsFile,
    RowOutput,
    StaticFile,
    extent_state_in,
    register_extents,
    reserve_extents,
)
from diskgnn.packing.placed import Placed, PlacedSplit
from diskgnn.progress.reporter import Advance
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Output, Work
from diskgnn.work.work_folder import State, is_long
from diskgnn.work.writer import ArtifactWriter

MIN_WINDOW_BYTES = 1 << 20  # whatever the budget
# Where the budget allows it, a window adds this much to an extent on average: worth a write of its own. More would
# only take memory that has to be found first, and keep the disk from writing while the first window is read.
MEAN_RUN_BYTES = 2 << 20
_ROW_OVERHEAD_BYTES = 72
ENOUGH_WINDOW_BYTES = 16 << 20


def pack_rows(
    work: Work,
    writer: ArtifactWriter,
    pages: PageWriter,
    placed: Placed,
    resources: Resources,
    *,
    window_bytes: int | None = None,
) -> int:
    """Writes the rows of all extents, of the static file and of each cpu tier's start, and registers all files.

    A run that goes on after a kill first compares what is written with its checksums.

    Args:
        work, writer, pages: of the packed directory.
        placed: the places of all rows.
        resources: what packing may spend.
        window_bytes: bytes of features read at once; WINDOWS_IN_MEMORY of them are in memory. By default at most half
            of the budget together: the other half stays for blocks, page cache and the interpreter.

    Returns:
        Bytes read of the features.

    Raises:
        ArtifactError: features are damaged.
        DiskFullError: the files do not fit; names the bytes missing.
        DamagedStepError: what a killed run left is not what it wrote.
    """
    rows = RowPacking(work, writer, pages, placed, resources, window_bytes)
    needed_bytes = sum(
        int(np.count_nonzero(needed)) * row_set.row_bytes
        for needed, row_set in zip(placed.needed, placed.row_sets, strict=True)
    )
    require_space(writer, placed, is_noted=is_long(needed_bytes))
    rows.go_on()
    wanted = [split for split in placed.splits if placed.wants(artifacts.extents_file(split.name))]
    for split in wanted:
        reserve_extents(writer, split)
    extents = [] if placed.by_reference else wanted
    with resources.reporter.stage("pack", needed_bytes, "B") as advance:
        read_bytes = sum(
            rows.pack(number, extents, needed, advance, is_kept=is_long(needed_bytes))
            for number, needed in enumerate(placed.needed)
        )
    for split in wanted:
        register_extents(writer, split)
    return read_bytes


class RowPacking:
    """Writes rows of one row set after the other: each is a step of `work` that reads its features once.

    Args:
        work, writer, pages, placed, resources, window_bytes: see `pack_rows`.
    """

    def __init__(
        self,
        work: Work,
        writer: ArtifactWriter,
        pages: PageWriter,
        placed: Placed,
        resources: Resources,
        window_bytes: int | None,
    ) -> None:
        # Wait for the headers first: where a file system cannot reserve space, the C library writes zeros, and these
        # must not overlap with header writes.
        pages.finish()
        self._work, self._writer, self._pages = work, writer, pages
        self._placed, self._resources, self._window_bytes = placed, resources, window_bytes

    def go_on(self, *, with_rows: bool = True) -> None:
        """Compares what killed runs have written with its checksums; what does not count any more is forgotten, and
        all rows without `with_rows`.

        Raises:
            DamagedStepError: what is there is not what was written.
        """
        placed, adopted = self._placed, [split for split in self._placed.splits if split.adopted]
        written: list[State] = []
        if with_rows and len(adopted) == len(
            placed.splits
        ):  # or else headers that were written just now have overwritten rows
            states = (self._work.state_of(_step(number)) for number in range(len(placed.row_sets)))
            written += takewhile(bool, states)
        for number in range(len(written), len(placed.row_sets)):
            self._work.forget(_step(number))
        for split in adopted:
            _adopt_extents(self._writer, split, written)
        faults.point("pack.rows")

    def pack(
        self,
        number: int,
        extents: Sequence[PlacedSplit],
        needed: npt.NDArray[np.bool_],
        advance: Advance,
        *,
        with_memory: bool = True,
        is_kept: bool = True,
    ) -> int:
        """Writes rows of one row set that no killed run has written.

        Args:
            number: of the row set.
            extents: splits, or some extents of a split, whose rows are written.
            needed: [N] whether any file needs a node's row.
            advance: told of the bytes of rows.
            with_memory: write the static rows and those that cpu tiers start with, too.
            is_kept: a killed run goes on with it.

        Returns:
            The bytes read of the features.
        """
        placed, row_set = self._placed, self._placed.row_sets[number]
        own = self._memory_files(number) if with_memory else []
        arrays = _arrays(placed, number) if with_memory else {}
        files: list[RowOutput] = [*own, *(ExtentRowsFile(self._writer, self._pages, each, number) for each in extents)]
        threads, total_bytes = self._resources.threads, int(np.count_nonzero(needed)) * row_set.row_bytes
        window_bytes = self._window_bytes or window_bytes_for(placed, number, self._resources.memory_bytes)
        done_bytes = read_bytes = 0

        def write(state: State, output: Output) -> Generator[int, None, None]:
            nonlocal done_bytes, read_bytes
            next_node = int(state["next_node"])
            for file in files:
                if next_node:
                    file.adopt(state)
                else:
                    file.start(state)
            names = [*(file.name for file in own), *arrays]
            output.claim(names, shared=[artifacts.extents_file(split.name) for split in placed.splits])
            window: Window | None = None

            def flush() -> None:
                if window is not None:
                    for file in files:
                        file.flush(window, threads)
                self._pages.finish()

            output.before_commit(flush)
            advance(done_bytes := int(np.count_nonzero(needed[:next_node])) * row_set.row_bytes)
            needed[:next_node] = False
            scan = scan_needed_rows(row_set.features, row_set.data.feature_checksums, needed, window_bytes)
            with closing(scan) as windows:
                for window in windows:
                    faults.point("pack.window")
                    for file in files:
                        file.write(window, threads)
                    state["next_node"][...] = window.last
                    read_bytes += window.read_bytes
                    rows_bytes = len(window.nodes) * row_set.row_bytes
                    advance(rows_bytes)
                    done_bytes += rows_bytes
                    yield rows_bytes
                if is_kept:
                    flush()
            self._pages.finish()
            for file in files:
                file.register()
            for name, array in arrays.items():
                self._writer.save_array(name, array)

        first: State = {"next_node": np.array(0)}
        for file in files:
            first |= file.first()
        self._work.fold(_step(number), write, first, is_kept=is_kept)
        advance(total_bytes - done_bytes)  # all, if a killed run wrote them
        return read_bytes

    def _memory_files(self, number: int) -> list[StaticFile | InitialCpuRowsFile]:
        """Returns the files of rows that are in memory when training begins."""
        placed, config = self._placed, self._placed.row_sets[number].config
        files: list[StaticFile | InitialCpuRowsFile] = [StaticFile(self._writer, placed.static_nodes[number], config)]
        files += [InitialCpuRowsFile(self._writer, self._pages, split, number, config) for split in placed.splits]
        return [file for file in files if placed.wants(file.name)]


def _step(number: int) -> str:
    return f"rows-{number}"


def _adopt_extents(writer: ArtifactWriter, split: PlacedSplit, written: Sequence[State]) -> None:
    """Compares the headers of `split`, and the rows of the first row sets, with their checksums, and sets those of rows
    in its index. `written` are the states of these row sets.
    """
    index = split.index
    so_far = ExtentIndex(index.extents, index.rows[:, : len(written)].copy(), index.row_bytes[: len(written)])
    for number, state in enumerate(written):
        cursors, checksums = extent_state_in(state, split.name)
        so_far.rows["num_rows"][:, number] = cursors - split.row_sets[number].bounds[:-1]
        so_far.rows["rows_crc32c"][:, number] = index.rows["rows_crc32c"][:, number] = checksums
    adopt_extents(writer.path(artifacts.extents_file(split.name)), so_far, split.tails)


def _arrays(placed: Placed, number: int) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays that a row set has beside its rows, by the names of their files."""
    row_set = placed.row_sets[number]
    name, quantisation = row_set.config.name, row_set.features.quantisation
    arrays: dict[str, npt.NDArray[Any]] = {
        artifacts.next_cycle_slots_file(split.name, name): split.row_sets[number].next_cycle_slots
        for split in placed.splits
    }
    if quantisation is not None:
        arrays[artifacts.packed_codes_file(name)] = quantisation.to_array()
    return {file: array for file, array in arrays.items() if placed.wants(file)}


def window_bytes_for(placed: Placed, number: int, memory_bytes: int) -> int:
    """Returns how many bytes of the features of a row set to read at once."""
    row_bytes = placed.row_sets[number].row_bytes
    num_extents = sum(len(split.index) for split in placed.splits)
    num_rows = sum(int(split.row_sets[number].bounds[-1]) for split in placed.splits)
    mean_extent_bytes = 1 + num_rows * row_bytes // max(1, num_extents)
    needed_bytes = int(np.count_nonzero(placed.needed[number])) * row_bytes
    enough_bytes = max(ENOUGH_WINDOW_BYTES, needed_bytes * MEAN_RUN_BYTES // mean_extent_bytes)
    # What is known of each row of a window takes memory, too.
    share_bytes = memory_bytes // (2 * WINDOWS_IN_MEMORY) * row_bytes // (row_bytes + _ROW_OVERHEAD_BYTES)
    return max(MIN_WINDOW_BYTES, min(share_bytes, enough_bytes))
