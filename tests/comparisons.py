"""Comparisons made by hand, in the proportions of a real one, and what comparisons that are run need."""

from __future__ import annotations

import math
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked_python import Python

from diskgnn.compare import compare, step_runner
from diskgnn.compare.comparison_record import Comparison, EpochCost, EpochPoint, LoaderResult, SweepPoint
from diskgnn.graph.generation import generate
from diskgnn.loading.tracing import TraceEvent

REQUESTED, ROW_BYTES, MINIBATCHES, BELADY = 9_400_000, 512, 94, 3_050_000

# name: (loader alone, wait in training, rows read, bytes per row read, preparation, disk bytes, bound, its seconds)
LOADERS = {
    "in-memory": (4.1, 0.3, 0, 0, 0.0, 0, "memory", 1.4),
    "diskgnn, one epoch reused": (1.9, 0.4, 3_120_000, 520, 21.0, 2_100_000_000, "sequential reads", 1.1),
    "diskgnn, four epochs": (2.0, 0.5, 3_180_000, 520, 79.0, 8_300_000_000, "sequential reads", 1.1),
    "diskgnn, fresh every epoch": (2.1, 0.5, 3_120_000, 520, 84.0, 2_100_000_000, "sequential reads", 1.1),
    "mmap": (402.0, 371.0, 9_400_000, 4096, 0.0, 0, "random reads", 310.0),
    "mmap, random advice": (167.0, 152.0, 9_400_000, 4096, 0.0, 0, "random reads", 118.0),
    "cached-reads, LRU": (88.0, 71.0, 4_600_000, 4096, 0.0, 0, "random reads", 61.0),
    "cached-reads, SIEVE": (69.0, 55.0, 3_900_000, 4096, 0.0, 0, "random reads", 52.0),
    "ginex": (61.0, 44.0, 3_200_000, 4096, 3.0, 90_000_000, "random reads", 43.0),
    "partition-buffer": (9.4, 2.1, 16_000_000, 512, 31.0, 8_600_000_000, "sequential reads", 6.2),
    "static-packed": (2.8, 0.9, 4_050_000, 530, 24.0, 2_900_000_000, "sequential reads", 1.6),
    "pyg": (14.0, 9.0, 0, 0, 0.0, 0, "memory", 1.4),
}
COMPUTE_SECONDS = 28.4
MISSING = {
    "dgl": ("unavailable", "dgl is not installed: pip install dgl==1.1.3"),
    "graphbolt": ("unavailable", "dgl.graphbolt needs dgl 2, found 1.1.3"),
    "static-packed, disk cache": ("out of memory", "killed at 2.0 GiB while preparing"),
}


def cost(seconds: float, wait: float, rows: int = 0, bytes_per_row: int = ROW_BYTES) -> EpochCost:
    """One epoch's cost, `rows` of its requested rows read from disk."""
    return EpochCost(
        minibatches=MINIBATCHES, seconds=seconds, wait_seconds=wait, requested_rows=REQUESTED, device_rows=0,
        pinned_rows=0, cpu_rows=max(0, REQUESTED - rows), disk_rows=rows, read_bytes=rows * bytes_per_row,
        device_read_bytes=rows * bytes_per_row, read_requests=None if bytes_per_row == 4096 else rows // 300 + 1,
    )  # fmt: skip


def result(name: str, seed: int = 0, epochs: int = 8) -> LoaderResult:
    """The run of one of `LOADERS`; accuracy rises and levels off, lower for partition-buffer."""
    loading, wait, rows, bytes_per_row, prepare, prepared_bytes, bound, bound_seconds = LOADERS[name]
    loader, _, variant = name.partition(", ")
    noise = random.Random(f"{name} {seed}")
    training = COMPUTE_SECONDS + wait + noise.uniform(0, 0.4)
    level = 0.581 if loader == "partition-buffer" else 0.634
    return LoaderResult(
        name=name, loader=loader, variant=variant, status="ok", seed=seed, prepare_seconds=prepare,
        prepared_bytes=prepared_bytes, peak_disk_bytes=prepared_bytes * 3 // 2,
        loading=cost(loading, loading, rows, bytes_per_row) if seed == 0 else None,
        training=cost(training, wait, rows, bytes_per_row), row_bytes=ROW_BYTES,
        belady_rows=BELADY if bound != "memory" else None, bound=bound, bound_seconds=bound_seconds,
        peak_process_bytes=1_400 << 20, peak_cgroup_bytes=2_000 << 20, prepare_peak_bytes=1_700 << 20,
        open_seconds=5.2 if bound == "memory" else 0.2, capped=bound != "memory",
        epochs=tuple(
            EpochPoint(epoch, prepare + 0.2 + (epoch + 1) * training, math.exp(-epoch), None,
                       level * (1 - 0.45 * math.exp(-0.8 * (epoch + 1))) + noise.gauss(0, 0.003))
            for epoch in range(epochs)
        ),
        trace=tuple(trace(wait / MINIBATCHES, loader)) if seed == 0 else (),
    )  # fmt: skip


def trace(wait_seconds: float, loader: str, minibatches: int = 6) -> list[TraceEvent]:
    """A pipeline of disk, assembly and training, some ms a stage."""
    events, clock = [], 7_000_000_000
    unit = 1_000_000
    for index in range(minibatches):
        wait = int(wait_seconds * 1e9)
        events += [
            TraceEvent("disk", "read", index, clock, clock + max(11 * unit, wait)),
            TraceEvent("disk", "read", index, clock + 3 * unit, clock + 14 * unit),
            TraceEvent("train", "wait for loader", index, clock, clock + wait),
            TraceEvent("train", "forward", index, clock + wait, clock + wait + 130 * unit),
            TraceEvent("train", "backward", index, clock + wait + 130 * unit, clock + wait + 290 * unit),
            TraceEvent("train", "step", index, clock + wait + 290 * unit, clock + wait + 302 * unit),
        ]
        if loader in ("diskgnn", "static-packed"):
            events += [
                TraceEvent("assemble", "wait for disk", index, clock, clock + 12 * unit),
                TraceEvent("assemble", "header", index, clock + 12 * unit, clock + 14 * unit),
                TraceEvent("assemble", "gather", index, clock + 14 * unit, clock + 41 * unit),
                TraceEvent("assemble", "scatter", index, clock + 41 * unit, clock + 77 * unit),
            ]
        else:
            events.append(TraceEvent("sample", "sample", index, clock, clock + 40 * unit))
        clock += wait + 303 * unit
    return events


def sweep() -> list[SweepPoint]:
    """Rows read by four loaders at four cache sizes."""
    points = []
    for share in (5, 10, 30, 50):
        belady = int(REQUESTED * 0.62 * math.exp(-share / 28))
        for name, factor in (("diskgnn", 1.0), ("ginex", 1.06), ("static-packed", 1.35), ("cached-reads, SIEVE", 1.31)):
            points.append(SweepPoint(name, f"{share}%", share * 160_000, REQUESTED, int(belady * factor), belady))
    return points


def comparison(seeds: int = 3, **changes: object) -> Comparison:
    """All loaders, three of them without a result."""
    results = [result(name, seed) for name in LOADERS for seed in range(seeds)]
    results += [
        LoaderResult(name, *(name.partition(", ")[::2]), status=status, message=message)
        for name, (status, message) in MISSING.items()
    ]
    fields = {
        "command": "diskgnn compare graph --memory 2GiB --loaders all --fanouts 10,10,10 --batch-size 1024 --epochs 8 "
        "--seeds 3 --sweep cpu-cache=5%,10%,30%,50% --report report.html",
        "started": "2026-11-21T14:29:53+00:00",
        "diskgnn_version": "0.1.0",
        "machine": {"cores": 2, "memory_bytes": 24 << 30, "cpu": "AMD EPYC 9575F", "gpu": None, "kernel": "6.1.0",
                    "python": "3.11.2", "torch": "2.13.0", "disk": {"device": "vda", "file_system": "ext4"}},
        "graph": {"name": "papers-like", "num_nodes": 16_000_000, "num_edges": 198_000_000, "num_features": 128,
                  "feature_dtype": "float32", "feature_bytes": 8_192_000_000, "num_classes": 64},
        "settings": {"memory_bytes": 2 << 30, "fanouts": [10, 10, 10], "batch_size": 1024, "epochs": 8,
                     "max_batches": None, "model": "sage", "hidden": 256, "cpu_cache": "10%",
                     "seeds": list(range(seeds))},
        "memory_capped": True,
        "cache_dropped": True,
        "sequential_bytes_per_second": 1.4e9,
        "random_reads_per_second": 74_000.0,
        "memory_bytes_per_second": 14.6e9,
        "results": tuple(results),
        "sweep": tuple(sweep()),
    }  # fmt: skip
    return Comparison(**{**fields, **changes})


def write_learnable_graph(path: Path) -> None:
    """A graph of 3000 nodes for comparisons that are really run: 160 bytes a row, all three splits."""
    generate(path, num_nodes=3000, avg_degree=8.0, homophily=0.7, num_classes=4, num_features=40, train_fraction=0.2,
             valid_fraction=0.1, test_fraction=0.1)  # fmt: skip


# Epochs of a few milliseconds are measured a few times, and not for a second. Nor does each step get a copy of all that
# is imported, for which its cgroup would be charged.
_SERVER = """
import sys
from diskgnn.compare import repeating, step_server
repeating.ENOUGH_SECONDS = 0.0
step_server._own_pages = lambda: True
step_server.main(*sys.argv[1:])
"""


@contextmanager
def steps_forked() -> Iterator[None]:
    """Comparisons of this process find torch imported, which takes each of their servers up to 5 seconds of a core.
    What is short they measure again once, and not twice.

    Not for tests of what a step is charged for: the servers have more imported than steps need.
    """

    def start(command: Sequence[str], **keywords: Any) -> Python:
        assert "diskgnn.compare.step_server" in command
        return Python("-c", _SERVER, *command[command.index("-m") + 2 :], **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "ROUNDS", 1)
        patch.setattr(step_runner, "subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
        yield


def cgroups_of(process: int) -> list[Path]:
    """Memory cgroups that a process has made and not removed."""
    return [path for path in Path("/sys/fs/cgroup").rglob(f"diskgnn-{process}-*") if path.is_dir()]
