"""What a comparison runs on: the machine and the graph in words, and the limits of disk and memory, measured."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diskgnn.compare.comparison_record import EpochCost, disk_bytes
from diskgnn.compare.limited_graph import seeds_of_type
from diskgnn.compare.variants import MEMORY, SEQUENTIAL
from diskgnn.graph.feature_files import feature_files
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import SPLITS, EdgeType
from diskgnn.system.disk_rates import RANDOM_READ_BYTES, ReadRates
from diskgnn.system.memory import available_cores

COPY_BYTES = 64 << 20


@dataclass(frozen=True)
class Rates:
    """The limits of this machine, measured in the same run."""

    sequential_bytes_per_second: float  # of the disk
    random_reads_per_second: float  # of 4 KiB
    memory_bytes_per_second: float  # a copy by all cores

    def bound_seconds(self, bound: str, cost: EpochCost, row_bytes: int) -> float:
        """Returns the least that an epoch of `cost` can take where `bound` is the limit."""
        if bound == MEMORY:
            return cost.requested_rows * row_bytes / self.memory_bytes_per_second
        read_bytes = disk_bytes(cost)
        # Bytes written, too: no disk is faster at both than at reading alone.
        seconds = (read_bytes + (cost.device_write_bytes or 0)) / self.sequential_bytes_per_second
        if bound == SEQUENTIAL:
            return seconds
        # Where the kernel sent the requests (page faults), they were of a page each at least.
        requests = read_bytes / RANDOM_READ_BYTES if cost.read_requests is None else cost.read_requests
        return max(seconds, requests / self.random_reads_per_second)


def memory_bytes_per_second() -> float:
    """Returns how fast all cores together copy memory that no cache of the processor holds: the best of five."""
    cores, best = available_cores(), float("inf")
    pairs = [(np.zeros(COPY_BYTES, np.uint8), np.ones(COPY_BYTES, np.uint8)) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(5):
            started = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(*pair), pairs))  # without Python's lock
            best = min(best, time.perf_counter() - started)
    return cores * COPY_BYTES / best


def describe_machine(folder: Path, disk: ReadRates) -> dict[str, Any]:
    """Returns what the figures depend on beside the graph."""
    from diskgnn.system.doctor import diagnose

    found = diagnose(folder, measure=False)
    machine = found.machine
    known = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    cpu = next((line.split(":", 1)[1].strip() for line in known if line.startswith("model name")), "")
    return {
        "cores": machine.usable_cores, "memory_bytes": machine.memory_bytes, "cpu": cpu,
        "gpu": ", ".join(gpu.name for gpu in machine.gpus), "kernel": machine.kernel, "python": machine.python,
        "torch": machine.torch, "disk": f"{found.folder.filesystem} on {found.folder.device}", "engine": disk.engine,
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def describe_graph(
    graph: Graph, target: str | EdgeType, num_train: int, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns what is trained on: `num_train` nodes, or seed edges, of type `target`, of those of the graph or of
    `given`."""
    files, path = feature_files(graph), graph.manifest.folder.absolute()
    widths = {file.rows.num_features for file in files.values()}
    labels = graph.nodes[target].config.target if isinstance(target, str) else None
    seeds = seeds_of_type(graph, target) if given is None else given
    return {
        "name": f"{path.parent.name}/{path.name}",
        "num_nodes": sum(nodes.num_nodes for nodes in graph.nodes.values()),
        "num_edges": sum(edges.num_edges for edges in graph.edges.values()),
        "num_features": widths.pop() if len(widths) == 1 else sorted(widths),
        "feature_dtype": ", ".join(dict.fromkeys(file.rows.dtype for file in files.values())),
        "feature_bytes": sum(file.num_bytes for file in files.values()), "topology_bytes": graph.topology_bytes,
        "num_classes": None if labels is None else labels.num_outputs,
        "num_train": num_train, "num_train_in_all": len(seeds["train"]),
    } | {f"num_{split}": len(seeds.get(split, ())) for split in SPLITS[1:]}  # fmt: skip
