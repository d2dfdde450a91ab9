"""The second half of packing: every window of a feature file goes to its places in every extent.

One row set comes after another. Its feature file is read once, front to back, in windows that fit the memory budget.
Rows of an extent are sorted by node, so a window's rows are one contiguous run of it: extents are appended to in turn,
and written a whole page at a time, past the page cache.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from diskgnn._native import DIRECT_ALIGNMENT, PageWriter
from diskgnn.packing.output_files import (
    ExtentRowsFile,
    InitialCpuRowsFile,
    RowFile,
    StaticFile,
    register_extents,
    reserve_extents,
)
from diskgnn.packing.split_placer import Placed
from diskgnn.progress import Advance
from diskgnn.storage import artifacts, faults
from diskgnn.storage.disk_space import require_free_bytes
from diskgnn.storage.feature_scan import WINDOWS_IN_MEMORY, scan_needed_rows
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

MIN_WINDOW_BYTES = 1 << 20  # whatever the budget
# Where the budget allows it, a window adds this much to an extent on average: worth a write of its own. More would
# only take memory that has to be found first, and keep the disk from writing while the first window is read.
MEAN_RUN_BYTES = 2 << 20
ENOUGH_WINDOW_BYTES = 16 << 20


def pack_rows(
    writer: ArtifactWriter,
    pages: PageWriter,
    placed: Placed,
    resources: Resources,
    *,
    window_bytes: int | None = None,
) -> int:
    """Write the rows of all extents, of the static file and of each cpu tier's start; register all files.

    Args:
        window_bytes: read of the features at once; WINDOWS_IN_MEMORY are in memory. By default at most half of the
            budget together: the other half stays for blocks, page cache and the interpreter.

    Returns:
        Bytes read of the features.

    Raises:
        ArtifactError: features are damaged.
        DiskFullError: the files do not fit; names the bytes missing.
    """
    _require_space(writer, placed)
    # Wait for the headers first: where a file system cannot reserve space, the C library writes zeros, and these must
    # not overlap with header writes.
    pages.finish()
    faults.point("pack.rows")
    for split in placed.splits:
        reserve_extents(writer, split)
    needed_bytes = sum(
        int(np.count_nonzero(needed)) * row_set.row_bytes
        for needed, row_set in zip(placed.needed, placed.row_sets, strict=True)
    )
    with resources.reporter.stage("pack", needed_bytes, "B") as advance:
        read_bytes = sum(
            _pack_row_set(writer, pages, placed, number, resources, advance, window_bytes)
            for number in range(len(placed.row_sets))
        )
    for split in placed.splits:
        register_extents(writer, split)
    return read_bytes


def _pack_row_set(
    writer: ArtifactWriter,
    pages: PageWriter,
    placed: Placed,
    number: int,
    resources: Resources,
    advance: Advance,
    window_bytes: int | None,
) -> int:
    """Write the rows of one row set; bytes read of its features."""
    row_set, needed, read_bytes = placed.row_sets[number], placed.needed[number], 0
    files: list[RowFile] = [StaticFile(writer, placed.static_nodes[number], row_set.config)]
    for split in placed.splits:
        files.append(ExtentRowsFile(writer, pages, split, number))
        files.append(InitialCpuRowsFile(writer, pages, split, number, row_set.config))
    window_bytes = window_bytes or _window_bytes(placed, number, resources.memory_bytes)
    with closing(scan_needed_rows(row_set.features, row_set.data.feature_checksums, needed, window_bytes)) as windows:
        for window in windows:
            faults.point("pack.window")
            for file in files:
                file.write(window, resources.threads)
            read_bytes += window.read_bytes
            advance(len(window.nodes) * row_set.row_bytes)
        pages.finish()
    for file in files:
        file.register()
    name = row_set.config.name
    for split in placed.splits:
        slots = split.row_sets[number].next_cycle_slots
        writer.save_array(artifacts.next_cycle_slots_file(split.name, name), slots)
    if (quantisation := row_set.features.quantisation) is not None:
        writer.save_array(artifacts.packed_codes_file(name), quantisation.to_array())
    return read_bytes


def _require_space(writer: ArtifactWriter, placed: Placed) -> None:
    needed_bytes = sum(len(split.index) for split in placed.splits) * DIRECT_ALIGNMENT
    for number, row_set in enumerate(placed.row_sets):
        rows = len(placed.static_nodes[number])
        for split in placed.splits:
            found = split.row_sets[number]
            rows += int(found.bounds[-1]) + len(found.initial_cpu_nodes)
        needed_bytes += rows * row_set.row_bytes
    require_free_bytes(writer.staging, needed_bytes, f"packing {writer.final}")


def _window_bytes(placed: Placed, number: int, memory_bytes: int) -> int:
    row_bytes = placed.row_sets[number].row_bytes
    num_extents = sum(len(split.index) for split in placed.splits)
    num_rows = sum(int(split.row_sets[number].bounds[-1]) for split in placed.splits)
    mean_extent_bytes = 1 + num_rows * row_bytes // max(1, num_extents)
    needed_bytes = int(np.count_nonzero(placed.needed[number])) * row_bytes
    enough_bytes = max(ENOUGH_WINDOW_BYTES, needed_bytes * MEAN_RUN_BYTES // mean_extent_bytes)
    return max(MIN_WINDOW_BYTES, min(memory_bytes // (2 * WINDOWS_IN_MEMORY), enough_bytes))
