"""The machines of a Ray cluster, and what a worker may spend there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.progress.reporter import Reporter
from diskgnn.system.memory import thread_count
from diskgnn.system.resources import Resources
from diskgnn.units import format_size, parse_size

PROCESS_BYTES = 256 << 20  # of a worker beside its budget: Python and libraries take 70 to 100 MB (tools/measure_ray)


@dataclass(frozen=True)
class Node:
    """One machine."""

    cores: int
    memory_bytes: int

    def workers(self, cores: int, memory_bytes: int) -> int:
        """Returns how many of so many cores and so large a budget it has room for."""
        return min(self.cores // cores, self.memory_bytes // (memory_bytes + PROCESS_BYTES))


def alive_nodes(ray: Any) -> list[Node]:
    """Returns the machines that tasks may run on now."""
    return [
        Node(int(node["Resources"].get("CPU", 0)), int(node["Resources"].get("memory", 0)))
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    ]


def worker_resources(nodes: Sequence[Node], memory: int | str, threads: int | None, reporter: Reporter) -> Resources:
    """Returns those of one worker. By default it has half of the smallest of `nodes`, and all of its cores.

    Raises:
        ConfigError: no node has as much.
    """
    if not nodes:
        raise ConfigError("engine: expected a Ray with nodes that have cores, found none; start some")
    cores = max(1, min(node.cores for node in nodes)) if threads is None else thread_count(threads)
    if memory == "auto":
        num_bytes = min(node.memory_bytes // (2 * max(1, node.cores // cores)) for node in nodes) - PROCESS_BYTES
    else:
        num_bytes = parse_size(memory)
    if num_bytes < 0 or not any(node.workers(cores, num_bytes) for node in nodes):
        largest = max(nodes, key=lambda node: (node.cores, node.memory_bytes))
        raise ConfigError(
            f"memory: no node of Ray has room for a worker of {cores} cores and {format_size(max(0, num_bytes))} "
            f"(and {format_size(PROCESS_BYTES)} for its process); the largest has {largest.cores} cores and "
            f"{format_size(largest.memory_bytes)}. Pass less `memory` or `threads`, or start a larger node"
        )
    return Resources(num_bytes, cores, reporter)
