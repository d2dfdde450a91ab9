"""Seconds of a training step's vectors on disk, with and without read-ahead, beside what the disk can do.

    python tools/bench_embeddings.py FOLDER --rows 20000000 --width 64 --limit 2GiB

The table lies in FOLDER (of --rows x 3 x --width float32) and everything runs in a memory cgroup of --limit, page cache
included (root; 'none' for no cgroup). A step has --touched rows, drawn uniformly, so that hardly any of them is in
memory; computing is a pause of --compute seconds. The disk's own time for a step: one page read for each page that has
a part of a row, many at once and past the page cache, then the same pages written.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn._native import RowReader
from diskgnn.compare.measurement import Measurement, run
from diskgnn.embeddings.embedding_table import PARTS, EmbeddingTable, FetchedRows
from diskgnn.units import parse_size

PAGE = 4096
Ids = npt.NDArray[np.int64]
T = TypeVar("T")


def measure(options: argparse.Namespace) -> dict[str, float]:
    """All figures, in this process."""
    path, rows, width = options.folder / "table", options.rows, options.width
    random = np.random.default_rng(0)

    def drawn() -> list[Ids]:
        return [np.unique(random.integers(0, rows, options.touched)) for _ in range(options.steps)]

    seconds, table = timed(lambda: EmbeddingTable.create(path, rows, width, lambda _, count: ones(count, width)))
    table.make_durable()
    found = {"table_bytes": float(path.stat().st_size), "create_seconds": seconds}
    table.begin(1)
    for ahead, name in enumerate(("alone", "read_ahead")):
        found[f"step_seconds_{name}"] = train(table, drawn(), ahead, options.compute)
        found[f"durable_seconds_{name}"] = timed(table.make_durable)[0]
    table.close()
    pages = [np.unique(np.concatenate([ids * PARTS * width * 4 // PAGE, ((ids + 1) * PARTS * width * 4 - 1) // PAGE]))
             for ids in drawn()]  # fmt: skip
    reading, writing = disk_seconds(path, pages)
    return found | {"touched": float(options.touched), "pages": float(np.mean([len(each) for each in pages])),
                    "disk_read_seconds": reading, "disk_write_seconds": writing,
                    "compute_seconds": options.compute}  # fmt: skip


def train(table: EmbeddingTable, steps: list[Ids], ahead: int, compute: float) -> float:
    """Mean seconds of a step; the writes of the last one count, that they are made durable does not."""
    gradients, fetched = ones(max(map(len, steps)), table.width), list[FetchedRows]()

    def loop() -> None:
        for number, ids in enumerate(steps):
            wanted = steps[len(fetched) + number : number + 1 + ahead]
            fetched.extend(table.fetch(each) for each in wanted)
            rows = fetched.pop(0)
            rows.rows()
            time.sleep(compute)
            table.step(rows, gradients[: len(ids)], 0.01, number + 1)
        table.read(steps[-1])  # behind the last write

    return timed(loop)[0] / len(steps)


def disk_seconds(path: Path, steps: list[Ids]) -> tuple[float, float]:
    """Mean seconds of reading these pages of each step, and of writing them."""
    reader = RowReader(str(path), 0, PAGE, path.stat().st_size // PAGE)
    most = max(map(len, steps))
    x, nothing = np.empty(most * PAGE, np.uint8), np.empty(0, np.int32)
    misses = np.full(most, -1, np.int32)
    reading = timed(lambda: [
        reader.gather(pages, misses[: len(pages)], nothing, np.empty(0, np.uint8), x[: len(pages) * PAGE])
        for pages in steps
    ])[0]  # fmt: skip
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, PAGE)
    with ThreadPoolExecutor(32) as threads:

        def write(pages: Ids) -> None:
            for number in pages.tolist():
                os.pwrite(descriptor, page, number * PAGE)

        def write_all() -> None:
            for pages in steps:
                list(threads.map(write, np.array_split(pages, 32)))
            os.fdatasync(descriptor)

        writing = timed(write_all)[0]
    os.close(descriptor)
    return reading / len(steps), writing / len(steps)


def ones(count: int, width: int) -> npt.NDArray[np.float32]:
    """[count, width]."""
    return np.ones((count, width), np.float32)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds, and what it gives."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def main() -> None:
    """Run in the cgroup, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--touched", type=int, default=20_000, help="rows of a step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compute", type=float, default=0.5, help="seconds of computing in a step")
    parser.add_argument("--limit", default="2GiB")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *sys.argv, "--inside"]
    try:
        limit = None if options.limit == "none" else parse_size(options.limit)
        found = run(Measurement("steps", command, limit))
        print(json.dumps({**found.figures, "peak_bytes": found.peak_bytes}))
    finally:
        for file in options.folder.glob("table*"):
            file.unlink()


if __name__ == "__main__":
    main()
