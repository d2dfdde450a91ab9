"""What each stage takes of memory, beside its budget: run it as root, where memory cgroups can be made.

    python tools/measure_budgets.py FOLDER [--nodes 1000000] [--degree 20] [--width 64] [--over 8] [--headroom 24MiB]

Makes a graph in FOLDER, and runs each stage in a memory cgroup of its budget and `--headroom`, without swap. The budget
is an eighth of the graph, or the smallest that the stage names when it is given one byte, if that is more. Prints, for
each, the budget, the smallest, and the largest anonymous memory (RssAnon, looked at every 2 ms) of the process. The
headroom is for what is no anonymous memory: pages of files that are being read or written, page tables.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from diskgnn.graph.graph import Graph
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE
from diskgnn.storage.artifacts import FEATURES, INDICES, INDPTR, LABELS, edge_file, node_file
from diskgnn.system.memory_cgroup import MemoryCgroup
from diskgnn.units import format_size, parse_size


@dataclass(frozen=True)
class Run:
    """A command that has ended in a cgroup."""

    exit_code: int
    kills: int
    peak_bytes: int  # of anonymous memory
    said: str  # on standard error


def anonymous_bytes_of(process: int) -> int:
    """0 once it has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", text)
    return 0 if found is None else int(found[1]) << 10


def run(arguments: list[str], limit_bytes: int) -> Run:
    """Run `diskgnn ARGUMENTS` in a cgroup of its own."""
    peak_bytes = 0
    with MemoryCgroup(limit_bytes) as cgroup:
        command = cgroup.command([sys.executable, "-m", "diskgnn", *arguments, "--json"])
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None:
            peak_bytes = max(peak_bytes, anonymous_bytes_of(process.pid))
            time.sleep(0.002)
        said = "" if process.stderr is None else process.stderr.read()
        return Run(process.returncode, cgroup.oom_kills(), peak_bytes, said)


def least_bytes(arguments: list[str], limit_bytes: int) -> int:
    """What the refusal of one byte names.

    Raises:
        RuntimeError: there was no refusal, or another error.
    """
    refused = run([*arguments, "--memory", "1"], limit_bytes)
    found = re.search(r"expected at least (\d+) bytes", refused.said)
    if refused.exit_code != 2 or found is None:
        raise RuntimeError(f"{arguments[0]} with one byte: {refused.said}")
    return int(found[1])


def stages(folder: Path, nodes: int, degree: float, width: int) -> dict[str, list[str]]:
    """Arguments of each stage, without --memory, in an order that works."""
    graph, fanouts = folder / "graph", ["--fanouts", "10,10", "--batch-size", "512", "--overwrite"]
    sizes = ["--num-nodes", str(nodes), "--avg-degree", str(degree), "--num-features", str(width), "--overwrite"]
    files = {"indptr": edge_file(INDPTR, ONE_EDGE_TYPE), "indices": edge_file(INDICES, ONE_EDGE_TYPE)}
    files |= {kind: node_file(kind, ONE_NODE_TYPE) for kind in (FEATURES, LABELS, "train")}
    sources = [each for kind, name in files.items() for each in (f"--{kind}", str(graph / name))]
    return {
        "generate": ["generate", str(graph), *sizes],
        "convert": ["convert", str(folder / "converted"), *sources, "--overwrite"],
        "sample": ["sample", str(graph), str(folder / "samples"), *fanouts],
        "pack": ["pack", str(graph), str(folder / "samples"), str(folder / "packed"), "--cpu-cache", "5%",
                 "--overwrite"],
        "prepare": ["prepare", str(graph), str(folder / "prepared"), *fanouts, "--cpu-cache", "5%"],
    }  # fmt: skip


def measure(
    folder: Path, *, nodes: int, degree: float, width: int, over: int, headroom_bytes: int
) -> dict[str, dict[str, int]]:
    """Of each stage, in bytes: `budget`, `least`, `peak`; and `exit_code` and `kills`."""
    folder.mkdir(parents=True, exist_ok=True)
    plenty = 2 << 30
    given = stages(folder, nodes, degree, width)
    made = run(given["generate"], plenty)
    if made.exit_code != 0:
        raise RuntimeError(made.said)
    graph_bytes = Graph.open(folder / "graph").manifest.total_bytes
    found = {}
    for name, arguments in given.items():
        least = least_bytes(arguments, plenty)
        budget = max(least, graph_bytes // over)
        done = run([*arguments, "--memory", str(budget)], budget + headroom_bytes)
        if done.exit_code != 0:
            print(f"{name}: {done.said[-500:]}", file=sys.stderr)
        found[name] = {
            "budget": budget, "least": least, "peak": done.peak_bytes, "exit_code": done.exit_code, "kills": done.kills,
        }  # fmt: skip
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
    options = parser.parse_args()
    found = measure(
        options.folder, nodes=options.nodes, degree=options.degree, width=options.width, over=options.over,
        headroom_bytes=parse_size(options.headroom),
    )  # fmt: skip
    print("| stage | budget | smallest | peak | exit code | killed |\n|---|---|---|---|---|---|")
    for name, row in found.items():
        sizes = " | ".join(format_size(row[key]) for key in ("budget", "least", "peak"))
        print(f"| {name} | {sizes} | {row['exit_code']} | {row['kills']} |")


if __name__ == "__main__":
    main()
