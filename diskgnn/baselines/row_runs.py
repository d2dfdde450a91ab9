"""Feature rows copied to other places in another file, out of core: what the layouts of baselines are made with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import scatter_rows
from diskgnn.formats.feature_scan import WINDOWS_IN_MEMORY, Window, scan_needed_rows
from diskgnn.graph.graph import Graph
from diskgnn.progress.reporter import Advance
from diskgnn.system.resources import Resources


@dataclass(frozen=True)
class RowRun:
    """Rows that lie together in the output: row nodes[i] of the features becomes row places[i] of the run."""

    offset: int  # of the run's row 0 in the output, bytes
    nodes: npt.NDArray[Any]  # [n] ascending
    places: npt.NDArray[np.int64] | None = None  # [n]; None puts them in the order of `nodes`


@dataclass(frozen=True)
class RunFile:
    """A file that consists of runs, and of zeros or what it held before elsewhere."""

    path: Path
    total_bytes: int
    runs: Sequence[RowRun]


def copy_runs(graph: Graph, files: Sequence[RunFile], resources: Resources, advance: Advance) -> int:
    """Write the runs of all `files`; bytes read.

    The features are read once, front to back, in windows of a quarter of the memory, the next one while this one is
    written; gaps that no run needs are skipped. `advance` is told of rows written.

    Raises:
        ArtifactError: the features are damaged.
        OSError: the features cannot be read, or the files not be written.
    """
    features = graph.feature_file
    needed = np.zeros(features.num_rows, np.bool_)
    for file in files:
        for run in file.runs:
            needed[run.nodes] = True
    read_bytes = 0
    with ExitStack() as stack:
        outputs = []
        for file in files:
            descriptor = os.open(file.path, os.O_WRONLY | os.O_CREAT, 0o644)
            stack.callback(os.close, descriptor)
            os.ftruncate(descriptor, file.total_bytes)
            outputs += [(descriptor, run) for run in file.runs]
        window_bytes = resources.divided(WINDOWS_IN_MEMORY, part=2)
        for window in scan_needed_rows(features, graph.feature_checksums, needed, window_bytes):
            read_bytes += window.read_bytes
            for descriptor, run in outputs:
                advance(_copy_part(descriptor, run, window, features.row_bytes, resources.threads))
    return read_bytes


def _copy_part(descriptor: int, run: RowRun, window: Window, row_bytes: int, threads: int) -> int:
    """Write the rows of `window` that `run` has; how many they are."""
    begin, end = np.searchsorted(run.nodes, [window.first, window.last])
    if begin < end:
        places = np.arange(begin, end) if run.places is None else run.places[begin:end]
        sources = window.places(run.nodes[begin:end].astype(np.int64))
        if run.places is not None:
            order = np.argsort(places)
            places, sources = places[order], sources[order]
        num_rows = int(places[-1]) + 1
        scatter_rows(descriptor, run.offset, num_rows, places, sources, window.data, row_bytes, threads)
    return int(end - begin)
