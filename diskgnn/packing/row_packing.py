"""The second half of packing: writes every window of a feature file to its places in all extents.

One row set comes after another. Its feature file is read once, front to back, in windows that fit the memory budget.
Rows of an extent are sorted by node, so the rows of a window are one contiguous run in it. Extents are appended to in
turn, a whole page at a time, past the page cache.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import numpy as np

from diskgnn._native import PageWriter
from diskgnn.packing.adopting import adopt_extents
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
from diskgnn.progress import Advance
from diskgnn.storage import artifacts, faults
from diskgnn.storage.disk_space import allocated_bytes, file_bytes, free_bytes, require_free_bytes
from diskgnn.storage.extents import ExtentIndex
from diskgnn.storage.feature_scan import WINDOWS_IN_MEMORY, Window, scan_needed_rows
from diskgnn.storage.work import Output, State, Work, is_long
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

_NPY_HEADER_BYTES = 128
_MANIFEST_BYTES, _MANIFEST_ENTRY_BYTES = 8 << 10, 512  # at most, about: of the config, and of each file

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

    Each row set is a step of `work`. A run that goes on after a kill first compares what is written with its checksums.

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
        DamagedScratchError: what a killed run left is not what it wrote.
    """
    # Wait for the headers first: where a file system cannot reserve space, the C library writes zeros, and these must
    # not overlap with header writes.
    pages.finish()
    rows = _RowPacking(work, writer, pages, placed, resources, window_bytes)
    _require_space(writer, placed, is_noted=is_long(rows.needed_bytes))
    if not all(split.adopted for split in placed.splits):
        forget_rows(work, placed)  # headers that were written just now have overwritten them
    for split in placed.splits:
        if split.adopted:
            adopt_written(work, writer, split)
    faults.point("pack.rows")
    for split in placed.splits:
        if placed.wants(artifacts.extents_file(split.name)):
            reserve_extents(writer, split)
    with resources.reporter.stage("pack", rows.needed_bytes, "B") as advance:
        read_bytes = sum(rows.pack(number, advance) for number in range(len(placed.row_sets)))
    for split in placed.splits:
        if placed.wants(artifacts.extents_file(split.name)):
            register_extents(writer, split)
    return read_bytes


def adopt_written(work: Work, writer: ArtifactWriter, split: PlacedSplit) -> None:
    """Compares the headers and written rows of `split` with their checksums, and sets those of rows in the index."""
    index, written = split.index, list[State]()
    for number in range(len(index.row_bytes)):
        if not (state := work.state_of(_step(number))):
            break
        written.append(state)
    so_far = ExtentIndex(index.extents, index.rows[:, : len(written)].copy(), index.row_bytes[: len(written)])
    for number, state in enumerate(written):
        cursors, checksums = extent_state_in(state, split.name)
        so_far.rows["num_rows"][:, number] = cursors - split.row_sets[number].bounds[:-1]
        so_far.rows["rows_crc32c"][:, number] = index.rows["rows_crc32c"][:, number] = checksums
    adopt_extents(writer.path(artifacts.extents_file(split.name)), so_far, split.tails)


def _step(number: int) -> str:
    return f"rows-{number}"


class _RowPacking:
    def __init__(
        self,
        work: Work,
        writer: ArtifactWriter,
        pages: PageWriter,
        placed: Placed,
        resources: Resources,
        window_bytes: int | None,
    ) -> None:
        self._work, self._writer, self._pages = work, writer, pages
        self._placed, self._resources, self._window_bytes = placed, resources, window_bytes
        self.needed_bytes = sum(
            int(np.count_nonzero(needed)) * row_set.row_bytes
            for needed, row_set in zip(placed.needed, placed.row_sets, strict=True)
        )

    def pack(self, number: int, advance: Advance) -> int:
        """Writes the rows of one row set that no killed run has written. Returns the bytes read of its features."""
        files, row_set, needed = self._files(number), self._placed.row_sets[number], self._placed.needed[number]
        total_bytes, done_bytes, read_bytes = int(np.count_nonzero(needed)) * row_set.row_bytes, 0, 0
        window_bytes = self._window_bytes or window_bytes_for(self._placed, number, self._resources.memory_bytes)
        extents = [artifacts.extents_file(split.name) for split in self._placed.splits]

        def write(state: State, output: Output) -> Generator[int, None, None]:
            nonlocal done_bytes, read_bytes
            next_node = int(state["next_node"])
            for file in files:
                if next_node:
                    file.adopt(state)
                else:
                    file.start(state)
            output.claim(self._file_names(number), shared=extents)
            window: Window | None = None

            def flush() -> None:
                if window is not None:
                    for file in files:
                        file.flush(window, self._resources.threads)
                self._pages.finish()

            output.before_commit(flush)
            advance(done_bytes := int(np.count_nonzero(needed[:next_node])) * row_set.row_bytes)
            needed[:next_node] = False
            scan = scan_needed_rows(row_set.features, row_set.data.feature_checksums, needed, window_bytes)
            with closing(scan) as windows:
                for window in windows:
                    faults.point("pack.window")
                    for file in files:
                        file.write(window, self._resources.threads)
                    state["next_node"][...] = window.last
                    read_bytes += window.read_bytes
                    rows_bytes = len(window.nodes) * row_set.row_bytes
                    advance(rows_bytes)
                    done_bytes += rows_bytes
                    yield rows_bytes
                if is_long(self.needed_bytes):  # or nobody goes on from here
                    flush()
            self._pages.finish()
            for file in files:
                file.register()
            save_arrays(self._writer, self._placed, number)

        first: State = {"next_node": np.array(0)}
        for file in files:
            first |= file.first()
        self._work.fold(_step(number), write, first)
        advance(total_bytes - done_bytes)  # all, if a killed run wrote them
        return read_bytes

    def _files(self, number: int) -> list[RowOutput]:
        placed, config = self._placed, self._placed.row_sets[number].config
        files: list[RowOutput] = []
        if placed.wants(artifacts.static_file(config.name)):
            files.append(StaticFile(self._writer, placed.static_nodes[number], config))
        for split in placed.splits:
            if not placed.by_reference and placed.wants(artifacts.extents_file(split.name)):
                files.append(ExtentRowsFile(self._writer, self._pages, split, number))
            if placed.wants(artifacts.initial_cpu_rows_file(split.name, config.name)):
                files.append(InitialCpuRowsFile(self._writer, self._pages, split, number, config))
        return files

    def _file_names(self, number: int) -> list[str]:
        """Returns the files that belong to this row set alone."""
        row_set, splits = self._placed.row_sets[number], [split.name for split in self._placed.splits]
        name = row_set.config.name
        names = [artifacts.static_file(name)]
        names += [file(split, name) for split in splits
                  for file in (artifacts.initial_cpu_rows_file, artifacts.next_cycle_slots_file)]  # fmt: skip
        names += [] if row_set.features.quantisation is None else [artifacts.packed_codes_file(name)]
        return list(filter(self._placed.wants, names))


def save_arrays(writer: ArtifactWriter, placed: Placed, number: int) -> None:
    """Writes the arrays that a row set has beside its rows."""
    row_set = placed.row_sets[number]
    name = row_set.config.name
    for split in placed.splits:
        if placed.wants(slots_file := artifacts.next_cycle_slots_file(split.name, name)):
            writer.save_array(slots_file, split.row_sets[number].next_cycle_slots)
    quantisation, codes_file = row_set.features.quantisation, artifacts.packed_codes_file(name)
    if quantisation is not None and placed.wants(codes_file):
        writer.save_array(codes_file, quantisation.to_array())


def forget_rows(work: Work, placed: Placed) -> None:
    """Forgets what was noted of written rows, which is no longer true."""
    for number in range(len(placed.row_sets)):
        work.forget(_step(number))


def _require_space(writer: ArtifactWriter, placed: Placed, *, is_noted: bool) -> None:
    """Refuses what does not fit, now that all sizes are known. Files that a killed run wrote have their space already.

    Raises:
        DiskFullError: names the bytes missing.
    """
    needed_bytes = _missing_bytes(writer, placed)
    if is_noted:
        needed_bytes += 2 * sum(_record_bytes(split) for split in placed.splits)
    writer.disk.look()
    require_free_bytes(writer.staging, needed_bytes, f"packing {writer.final}", exact=True, disk=writer.disk)


def _missing_bytes(writer: ArtifactWriter, placed: Placed) -> int:
    """Returns the bytes that the files of the directory still need."""
    sizes = file_sizes(placed)
    return sum(max(0, file_bytes(size) - allocated_bytes(writer.path(name))) for name, size in sizes.items())


def fits_disk(writer: ArtifactWriter, placed: Placed) -> bool:
    """Returns True if the whole directory has room here at once."""
    writer.disk.look()
    needed_bytes = _missing_bytes(writer, placed) + 2 * sum(_record_bytes(split) for split in placed.splits)
    return needed_bytes <= free_bytes(writer.staging, writer.disk)


def file_sizes(placed: Placed) -> dict[str, int]:
    """Returns the bytes of each file of the directory; an upper bound for the manifest."""
    sizes = {}
    for split in placed.splits:
        index = split.index
        sizes[artifacts.extents_file(split.name)] = index.num_bytes
        sizes[artifacts.index_file(split.name)] = _NPY_HEADER_BYTES + index.extents.nbytes
        sizes[artifacts.rows_file(split.name)] = _NPY_HEADER_BYTES + index.rows.nbytes
    for number, row_set in enumerate(placed.row_sets):
        name = row_set.config.name
        sizes[artifacts.static_file(name)] = _NPY_HEADER_BYTES + len(placed.static_nodes[number]) * row_set.row_bytes
        for split in placed.splits:
            rows = split.row_sets[number]
            initial_bytes = len(rows.initial_cpu_nodes) * row_set.row_bytes
            sizes[artifacts.initial_cpu_rows_file(split.name, name)] = _NPY_HEADER_BYTES + initial_bytes
            sizes[artifacts.next_cycle_slots_file(split.name, name)] = _NPY_HEADER_BYTES + rows.next_cycle_slots.nbytes
        if (quantisation := row_set.features.quantisation) is not None:
            sizes[artifacts.packed_codes_file(name)] = _NPY_HEADER_BYTES + quantisation.to_array().nbytes
    sizes = {name: size for name, size in sizes.items() if placed.wants(name)}
    sizes[artifacts.MANIFEST] = _MANIFEST_BYTES + len(sizes) * _MANIFEST_ENTRY_BYTES
    return sizes


def _record_bytes(split: PlacedSplit) -> int:
    """Returns the most that records take for the split: where it is placed, and which rows are written."""
    index = split.index
    tiers_bytes = sum(rows.initial_cpu_nodes.nbytes + rows.next_cycle_slots.nbytes for rows in split.row_sets)
    return 2 * (index.extents.nbytes + index.rows.nbytes) + tiers_bytes


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
