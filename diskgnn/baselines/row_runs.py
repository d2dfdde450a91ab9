"""Feature rows copied to other places in another file, out of core: what the layouts of baselines are made with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import scatter_rows
from diskgnn.progress import Advance
from diskgnn.storage.row_format import FeatureFile
from diskgnn.storage.row_reading import read_rows, row_buffer


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


def copy_runs(
    features: FeatureFile,
    files: Sequence[RunFile],
    *,
    memory_bytes: int,
    threads: int,
    advance: Advance,
) -> int:
    """Write the runs of all `files`; bytes read.

    The features are read once, front to back, in windows of a quarter of `memory_bytes`, the next one while this one is
    written; gaps that no run needs are skipped. `advance` is told of rows written.
    """
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
        for first, last, rows, was_read in _windows(features, needed, memory_bytes):
            read_bytes += was_read
            for descriptor, run in outputs:
                advance(_copy_part(descriptor, run, first, last, rows, features.row_bytes, threads))
    return read_bytes


def _copy_part(
    descriptor: int, run: RowRun, first: int, last: int, rows: npt.NDArray[np.uint8], row_bytes: int, threads: int
) -> int:
    """Write the rows of nodes [first, last) that `run` has; how many they are."""
    begin, end = np.searchsorted(run.nodes, [first, last])
    if begin < end:
        places = np.arange(begin, end) if run.places is None else run.places[begin:end]
        sources = run.nodes[begin:end].astype(np.int64) - first
        if run.places is not None:
            order = np.argsort(places)
            places, sources = places[order], sources[order]
        scatter_rows(descriptor, run.offset, places, sources, rows, row_bytes, threads)
    return int(end - begin)


def _windows(
    features: FeatureFile, needed: npt.NDArray[np.bool_], memory_bytes: int
) -> Iterator[tuple[int, int, npt.NDArray[np.uint8], int]]:
    """(first node, node after the last, their rows as bytes, bytes read), ascending."""
    window_rows = max(1, min(memory_bytes // 4 // features.row_bytes, features.num_rows))
    starts = [s for s in range(0, features.num_rows, window_rows) if needed[s : s + window_rows].any()]
    buffers = [row_buffer(window_rows, features.row_bytes) for _ in range(min(2, len(starts)))]

    def read(number: int) -> tuple[int, int, npt.NDArray[np.uint8], int]:
        start = starts[number]
        wanted = start + np.flatnonzero(needed[start : start + window_rows])
        rows, read_bytes = read_rows(
            features.path, features.data_offset_bytes, features.row_bytes, wanted, buffers[number % 2]
        )
        return int(wanted[0]), int(wanted[-1]) + 1, rows, read_bytes

    with ThreadPoolExecutor(1) as reader:
        upcoming = [reader.submit(read, 0)] if starts else []
        for number in range(len(starts)):
            window = upcoming.pop().result()
            if number + 1 < len(starts):
                upcoming.append(reader.submit(read, number + 1))
            yield window
