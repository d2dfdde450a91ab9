"""The second half of packing: every window of the feature file goes to its places in every extent.

The feature file is read once, front to back, in windows that fit the memory budget. Rows of an extent are sorted by
node, so a window's rows are one contiguous run of it: extents are appended to in turn, and written a whole page at a
time, past the page cache.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from diskgnn._native import DIRECT_ALIGNMENT, PageWriter
from diskgnn.graph.graph import Graph
from diskgnn.packing.output_files import ExtentsFile, InitialCpuRowsFile, RowFile, StaticFile
from diskgnn.packing.split_placer import Placed
from diskgnn.storage import artifacts, faults
from diskgnn.storage.disk_space import require_free_bytes
from diskgnn.storage.feature_scan import scan_needed_rows
from diskgnn.storage.row_format import FeatureFile
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
    graph: Graph,
    placed: Placed,
    resources: Resources,
    *,
    window_bytes: int | None = None,
) -> int:
    """Write the rows of all extents, of the static file and of each cpu tier's start; register all files.

    Args:
        window_bytes: of the features, two at a time in memory. By default at most a quarter of the budget each: the
            other half stays for blocks, page cache and the interpreter.

    Returns:
        Bytes read of the features.

    Raises:
        ArtifactError: features are damaged.
        DiskFullError: the files do not fit; names the bytes missing.
    """
    features = graph.feature_file
    _require_space(writer, placed, features.row_bytes)
    # Wait for the headers first: where a file system cannot reserve space, the C library writes zeros, and these must
    # not overlap with header writes.
    pages.finish()
    faults.point("pack.rows")
    files: list[RowFile] = [StaticFile(writer, placed.static_nodes, features.rows)]
    for split in placed.splits:
        files.append(ExtentsFile(writer, pages, split, features.rows))
        files.append(InitialCpuRowsFile(writer, pages, split, features.rows))
    read_bytes = 0
    needed_bytes = int(np.count_nonzero(placed.needed)) * features.row_bytes
    window_bytes = window_bytes or _window_bytes(features, placed, resources.memory_bytes)
    with (
        resources.reporter.stage("pack", needed_bytes, "B") as advance,
        closing(scan_needed_rows(features, graph.feature_checksums, placed.needed, window_bytes)) as windows,
    ):
        for window in windows:
            faults.point("pack.window")
            for file in files:
                file.write(window, resources.threads)
            read_bytes += window.read_bytes
            advance(int(np.count_nonzero(placed.needed[window.first : window.last])) * features.row_bytes)
        pages.finish()
    for file in files:
        file.register()
    for split in placed.splits:
        writer.save_array(artifacts.next_cycle_slots_file(split.name), split.next_cycle_slots)
    return read_bytes


def _require_space(writer: ArtifactWriter, placed: Placed, row_bytes: int) -> None:
    rows, num_extents = len(placed.static_nodes), 0
    for split in placed.splits:
        rows += int(split.bounds[-1]) + len(split.initial_cpu_nodes)
        num_extents += len(split.index)
    needed_bytes = rows * row_bytes + num_extents * DIRECT_ALIGNMENT
    require_free_bytes(writer.staging, needed_bytes, f"packing {writer.final}")


def _window_bytes(features: FeatureFile, placed: Placed, memory_bytes: int) -> int:
    num_extents = sum(len(split.index) for split in placed.splits)
    mean_extent_bytes = 1 + sum(int(split.bounds[-1]) for split in placed.splits) * features.row_bytes // num_extents
    enough_bytes = max(ENOUGH_WINDOW_BYTES, features.num_bytes * MEAN_RUN_BYTES // mean_extent_bytes)
    return max(MIN_WINDOW_BYTES, min(memory_bytes // 4, enough_bytes))
