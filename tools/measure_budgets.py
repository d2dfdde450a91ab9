"""What each stage takes of memory, beside its budget: run it as root, where memory cgroups can be made.

    python tools/measure_budgets.py FOLDER [--nodes 1000000] [--degree 20] [--width 64] [--over 8] [--headroom 24MiB]
        [--stages convert,infer]

Makes a graph in FOLDER, unless there is one, and runs each stage in a memory cgroup of its budget and `--headroom`,
without swap. The budget is an eighth of the graph, or the smallest that the stage names when it is given one byte, if
that is more. Prints, for each, the budget, the smallest, and the largest anonymous memory (RssAnon, looked at every
2 ms) of the process. The headroom is for what is no anonymous memory: pages of files that are being read or written,
page tables. What no later stage needs is removed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.compare import measurement
from diskgnn.compare.measurement import Finding, Measurement
from diskgnn.formats.artifacts import FEATURES, INDICES, INDPTR, LABELS, edge_file, extents_file, node_file
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE
from diskgnn.units import format_size, parse_size

_PLENTY, _ROWS = 2 << 30, 1 << 20  # memory of what is not measured; rows written at once


def command(arguments: list[str]) -> list[str]:
    """Of a process that runs `diskgnn ARGUMENTS`."""
    return [sys.executable, "-m", "diskgnn", *arguments, "--json"]


def run(arguments: list[str], limit_bytes: int) -> Finding:
    """Run `diskgnn ARGUMENTS` in a cgroup of its own."""
    return measurement.run(Measurement(arguments[0], command(arguments), limit_bytes, watched=True))


def least_bytes(arguments: list[str]) -> int:
    """What the refusal of one byte names; 0 if one byte is not refused.

    Raises:
        RuntimeError: another error.
    """
    refused = subprocess.run(command([*arguments, "--memory", "1"]), capture_output=True, text=True, check=False)
    if refused.returncode == 0:
        return 0
    found = re.search(r"expected at least (\d+) bytes", refused.stderr)
    if refused.returncode != 2 or found is None:
        raise RuntimeError(f"{arguments[0]} with one byte: {refused.stderr}")
    return int(found[1])


def write_tables(graph: Graph, folder: Path) -> None:
    """The same graph with ids that are strings, and weights: users.parquet, and edges.parquet in pieces."""
    indptr, indices = (graph.manifest.array(edge_file(kind, ONE_EDGE_TYPE)) for kind in (INDPTR, INDICES))
    folder.mkdir(exist_ok=True)
    names = pa.array([f"user-{n * 7919:016x}" for n in range(graph.num_nodes)])
    features = pa.array(np.zeros(graph.num_nodes, np.float32))
    pq.write_table(pa.table({"id": names, "x": features, "label": np.zeros(graph.num_nodes, np.int64)}),
                   folder / "users.parquet", row_group_size=_ROWS)  # fmt: skip
    schema = pa.schema([("src", pa.string()), ("dst", pa.string()), ("weight", pa.float32())])
    with pq.ParquetWriter(folder / "edges.parquet", schema) as file:
        for first in range(0, len(indices), _ROWS):
            src = indices[first : first + _ROWS]
            dst = np.searchsorted(indptr, np.arange(first, first + len(src)), side="right") - 1
            weights = np.ones(len(src), np.float32)
            columns = [names.take(pa.array(src)), names.take(pa.array(dst)), pa.array(weights)]
            file.write_table(pa.table(columns, schema=schema))
    (folder / "graph.yaml").write_text(
        "nodes: {user: {table: users.parquet}}\n"
        "edges: {'user:knows:user': {edges: edges.parquet, columns: {weight: weight}}}\n"
    )


@dataclass(frozen=True)
class Stage:
    """A command, and what it needs."""

    arguments: list[str]  # without --memory
    before: Callable[[], object] = lambda: None
    left: tuple[str, ...] = ()  # what no later stage needs, in the folder


def stages(folder: Path, nodes: int, degree: float, width: int) -> dict[str, Stage]:
    """All that is measured, in an order that works."""
    graph, packed, tables = folder / "graph", folder / "packed", folder / "tables"
    fanouts = ["--fanouts", "10,10", "--batch-size", "512", "--overwrite"]
    sizes = ["--num-nodes", str(nodes), "--avg-degree", str(degree), "--num-features", str(width), "--overwrite"]
    files = {"indptr": edge_file(INDPTR, ONE_EDGE_TYPE), "indices": edge_file(INDICES, ONE_EDGE_TYPE)}
    files |= {kind: node_file(kind, ONE_NODE_TYPE) for kind in (FEATURES, LABELS, "train")}
    sources = [each for kind, name in files.items() for each in (f"--{kind}", str(graph / name))]
    scored = ["--checkpoint", str(folder / "run"), "--overwrite"]

    def train() -> None:
        if not (folder / "run").exists():
            require(run(["train", str(packed), "--hidden", "16", "--epochs", "1", "--checkpoint", str(folder / "run")],
                        _PLENTY))  # fmt: skip

    def damage() -> None:
        with (packed / extents_file("train")).open("r+b") as file:
            file.seek(-5000, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    return {
        "generate": Stage(["generate", str(graph), *sizes]),
        "convert": Stage(["convert", str(folder / "converted"), *sources, "--overwrite"], left=("converted",)),
        "convert ids": Stage(["convert", str(folder / "by_id"), "--schema", str(tables), "--overwrite"],
                             lambda: write_tables(Graph.open(graph), tables), left=("tables", "by_id")),
        "sample": Stage(["sample", str(graph), str(folder / "samples"), *fanouts]),
        "pack": Stage(["pack", str(graph), str(folder / "samples"), str(packed), "--cpu-cache", "5%", "--overwrite"]),
        "prepare": Stage(["prepare", str(graph), str(folder / "prepared"), *fanouts, "--cpu-cache", "5%"],
                         left=("prepared",)),
        "infer": Stage(["infer", str(graph), "--out", str(folder / "all.npy"), *scored], train),
        "predict": Stage(["predict", str(graph), "--out", str(folder / "some.npy"), "--fanouts", "10,10", "--nodes",
                          str(graph / node_file("train", ONE_NODE_TYPE)), "--batch-size", "32", *scored], train),
        "repair": Stage(["verify", str(packed), "--repair", "--graph", str(graph)], damage),
    }  # fmt: skip


def require(done: Finding) -> None:
    """Raise a RuntimeError if a command failed."""
    if done.exit_code != 0:
        raise RuntimeError(done.errors)


def measure(
    folder: Path,
    *,
    nodes: int,
    degree: float,
    width: int,
    over: int,
    headroom_bytes: int,
    only: Collection[str] | None = None,
) -> dict[str, dict[str, int]]:
    """Of each stage, or only of some, in bytes: `budget`, `least`, `peak`; and `exit_code` and `kills`."""
    folder.mkdir(parents=True, exist_ok=True)
    given = stages(folder, nodes, degree, width)
    if not (folder / "graph").exists():
        require(run(given["generate"].arguments, _PLENTY))
    graph_bytes = Graph.open(folder / "graph").manifest.total_bytes
    found = {}
    for name, stage in given.items():
        if only is not None and name not in only:
            continue
        stage.before()
        least = least_bytes(stage.arguments)
        budget = max(least, graph_bytes // over)
        stage.before()
        done = run([*stage.arguments, "--memory", str(budget)], budget + headroom_bytes)
        if done.exit_code != 0:
            print(f"{name}: {done.errors[-500:]}", file=sys.stderr)
        found[name] = {
            "budget": budget, "least": least, "peak": done.anonymous_bytes, "exit_code": done.exit_code,
            "kills": done.oom_kills,
        }  # fmt: skip
        for left in stage.left:
            shutil.rmtree(folder / left, ignore_errors=True)
    return found


def main() -> None:
    """Parse arguments, measure, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=float, default=20)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--over", type=int, default=8, help="how many times its budget the graph is")
    parser.add_argument("--headroom", default="24MiB")
    parser.add_argument("--stages", help="names, with commas; the later ones need what the former left")
    options = parser.parse_args()
    found = measure(
        options.folder, nodes=options.nodes, degree=options.degree, width=options.width, over=options.over,
        headroom_bytes=parse_size(options.headroom), only=options.stages and options.stages.split(","),
    )  # fmt: skip
    print("| stage | budget | smallest | peak | exit code | killed |\n|---|---|---|---|---|---|")
    for name, row in found.items():
        sizes = " | ".join(format_size(row[key]) for key in ("budget", "least", "peak"))
        print(f"| {name} | {sizes} | {row['exit_code']} | {row['kills']} |")


if __name__ == "__main__":
    main()
