#!/usr/bin/env python3
"""Memory and time of replacing string ids, for docs/guide/tables.md: run it as root, where cgroups of version 1 are.

    tools/measure_ids.py FOLDER [--nodes 20000000] [--edges 100000000] [--memory 512MiB] [--limit 800000000]

Writes two Parquet tables into FOLDER (about 1 GB), then converts them in a memory cgroup of LIMIT bytes, which counts
the page cache, too, and prints the largest anonymous memory of the process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

CHUNK = 1 << 20
CGROUPS = Path("/sys/fs/cgroup/memory")
CONVERT = """
import sys, time, diskgnn
folder, memory = sys.argv[1:]
nodes, edges = (f"{folder}/{name}.parquet" for name in ("nodes", "edges"))
schema = {"nodes": {"n": {"table": nodes}}, "edges": {"n:to:n": {"edges": edges}}}
started = time.perf_counter()
report = diskgnn.convert(folder + "/graph", schema=schema, memory=memory, overwrite=True)
print(dict(report.details), f"{time.perf_counter() - started:.0f} s, {time.process_time():.0f} s of CPU")
"""


def names(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """8 hexadecimal digits for each, in no order."""
    scrambled = (numbers.astype(np.uint32) * np.uint32(2654435761)).astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, 8 * len(numbers) + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(scrambled))


def write_tables(folder: Path, num_nodes: int, num_edges: int) -> None:
    """nodes.parquet and edges.parquet."""
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(folder / "nodes.parquet", pa.schema({"id": pa.string()}.items()), compression="zstd") as file:
        for first in range(0, num_nodes, CHUNK):
            file.write_batch(pa.record_batch({"id": names(np.arange(first, min(num_nodes, first + CHUNK)))}))
    kind = pa.schema({"src": pa.string(), "dst": pa.string()}.items())
    with pq.ParquetWriter(folder / "edges.parquet", kind, compression="zstd", use_dictionary=False) as file:
        for first in range(0, num_edges, CHUNK):
            count = min(num_edges - first, CHUNK)
            ends = {end: names(rng.integers(0, num_nodes, count)) for end in ("src", "dst")}
            file.write_batch(pa.record_batch(ends))


def main() -> None:
    """Parse arguments, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--limit", type=int, default=800_000_000)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    write_tables(given.folder, given.nodes, given.edges)
    group = CGROUPS / f"measure-ids-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(given.limit))
        process = subprocess.Popen(
            [sys.executable, "-c", CONVERT, str(given.folder), given.memory],
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        largest = 0
        while process.poll() is None:
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            largest = max(largest, int(stat["total_rss"]))
            time.sleep(0.2)
        print(f"anonymous memory {largest >> 20} MiB at most, in a cgroup of {given.limit >> 20} MiB")
    finally:
        time.sleep(0.5)
        group.rmdir()


if __name__ == "__main__":
    main()
