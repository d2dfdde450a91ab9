"""Sample a generated graph in memory, by sweeping within a part of the topology's size, and from a memory map.

    python tools/bench_sampling.py --folder data/bench-sampling --nodes 16000000 --ratio 4

`sweep` has a budget of topology / RATIO and runs in a memory cgroup (v1 or v2; only as root) that is limited to that
budget plus 400 MB for interpreter and libraries, page cache included. `memory` has no limit. `map` is what one
would do without either, random reads of a memory map, in the same cgroup; its time is that of a few minibatches,
scaled. `--draws independent coordinated` does all of them with both kinds of draws. Each run is a process of its own
and starts with nothing of the graph in the page cache. Runs alternate; medians are shown, and the most that was read
and resident. `draw` draws the first minibatches from the topology in memory, on one thread, and writes nothing: its
seconds are those of the processor, the best of some turns, and compared with those of the first kind of draws.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import diskgnn
from benchmarks.limits import drop_page_cache, peak_bytes
from diskgnn._native import NeighborSampler
from diskgnn.compare.measurement import Measurement, median_and_spread, run_in_turns
from diskgnn.files import faults
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.specs.sampling import DRAWS, SamplingSpec
from diskgnn.system.memory import available_cores
from diskgnn.system.memory_cgroup import refusal
from diskgnn.units import format_size

FANOUTS = (10, 10, 10)
DRAW_TURNS = 8
HEADROOM_BYTES = 400_000_000  # for interpreter and libraries


def sample_epoch(options: argparse.Namespace, graph: Graph, memory_bytes: int) -> dict[str, Any]:
    """Sample one epoch within a budget of topology and minibatches; what the program itself takes is not counted."""
    out = options.folder / "samples"
    with faults.pretending("memory.held", 0), faults.pretending("memory.overhead", 0):
        report = diskgnn.sample(graph, out, fanouts=FANOUTS, batch_size=options.batch_size, splits=["train"],
                                draws=options.draws[0], memory=memory_bytes, overwrite=True)  # fmt: skip
    record = {"seconds": report.seconds, "read_bytes": report.read_bytes, "digest": Samples.open(out).manifest.digest}
    shutil.rmtree(out)
    return record | report.details


def sample_map(options: argparse.Namespace, graph: Graph) -> dict[str, Any]:
    """Sample a few minibatches through a memory map without read-ahead; the seconds are those of an epoch."""
    sampler = NeighborSampler(*graph.topology_at_random())
    plan = SamplingPlan(graph, SamplingSpec(FANOUTS, options.batch_size, splits=["train"], draws=options.draws[0]))
    minibatches = plan.minibatches("train", 0)
    few = minibatches[: options.map_minibatches]

    def draw(each: PlannedMinibatch) -> None:
        each.draw(sampler)

    started = time.perf_counter()
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(draw, few))
    return {"seconds": (time.perf_counter() - started) * len(minibatches) / len(few), "minibatches": len(few)}


def draw_only(options: argparse.Namespace, graph: Graph) -> dict[str, Any]:
    """Draw a few minibatches again and again, with all of the topology in memory."""
    plan = SamplingPlan(graph, SamplingSpec(FANOUTS, options.batch_size, splits=["train"], draws=options.draws[0]))
    sampler, few = plan.load_sampler(), list(plan.minibatches("train", 0)[: options.draw_minibatches])
    seconds, num_edges = [], 0
    for _ in range(DRAW_TURNS):
        started = time.thread_time()
        num_edges = sum(each.draw(sampler).num_edges for each in few)
        seconds.append(time.thread_time() - started)
    return {"seconds": min(seconds), "edges": num_edges}


def measurement(method: str, draws: str, limit_bytes: int | None) -> Measurement:
    """This script for one `method` and kind of draws, under the limit where it has one."""
    command = [sys.executable, __file__, *sys.argv[1:], "--method", method, "--draws", draws]
    return Measurement(f"{method:<8}{draws}", command, None if method in ("memory", "draw") else limit_bytes)


def main() -> None:
    """Parse arguments, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where everything is written; deleted in the end")
    parser.add_argument("--nodes", type=int, default=16_000_000)
    parser.add_argument("--degree", type=float, default=12.5)
    parser.add_argument("--train-fraction", type=float, default=0.02)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--ratio", type=int, default=4, help="topology over budget")
    parser.add_argument("--map-minibatches", type=int, default=6, help="0: leave the memory map out")
    parser.add_argument("--draw-minibatches", type=int, default=12, help="0: leave `draw` out")
    parser.add_argument("--draws", nargs="+", choices=DRAWS, default=["independent"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the records here, too")
    parser.add_argument("--method", choices=("memory", "sweep", "map", "draw"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.method:
        graph = Graph.open(options.folder / "graph")
        topology_bytes = graph.topology_bytes
        if options.method == "map":
            record = sample_map(options, graph)
        elif options.method == "draw":
            record = draw_only(options, graph)
        else:
            budget_bytes = topology_bytes if options.method == "memory" else topology_bytes // options.ratio
            record = sample_epoch(options, graph, budget_bytes)
        print(json.dumps(record | {"peak_bytes": peak_bytes()}))
        return
    options.folder.mkdir(parents=True)
    try:
        diskgnn.generate(options.folder / "graph", num_nodes=options.nodes, avg_degree=options.degree, num_classes=16,
                         num_features=1, feature_dtype="int8", train_fraction=options.train_fraction, valid_fraction=0,
                         test_fraction=0, homophily=0.6)  # fmt: skip
        graph = Graph.open(options.folder / "graph")
        topology_bytes = graph.topology_bytes
        methods = ["memory", "sweep"]
        methods += ["map"] * bool(options.map_minibatches) + ["draw"] * bool(options.draw_minibatches)
        limit_bytes = topology_bytes // options.ratio + HEADROOM_BYTES
        if reason := refusal():
            print(f"nothing is limited: no memory cgroup can be made ({reason})", file=sys.stderr)
            limit_bytes = None
        found = run_in_turns(
            [measurement(method, draws, limit_bytes) for method in methods for draws in options.draws],
            options.repeat, before=lambda: drop_page_cache(options.folder / "graph"),
        )  # fmt: skip
        records = {name: [turn.figures for turn in turns] for name, turns in found.items()}
    finally:
        shutil.rmtree(options.folder)
    digests = {record["digest"] for turns in records.values() for record in turns if "digest" in record}
    if len(digests) != len(options.draws):
        sys.exit("the samples differ")
    budget_bytes = topology_bytes // options.ratio
    print(f"topology {format_size(topology_bytes)}, budget {format_size(budget_bytes)}; the same samples each time")
    print(f"{'':<20}{'seconds':>24}{'of memory':>11}{'read':>12}{'resident':>12}")
    references: dict[bool, float] = {}  # whether it is of `draw`
    for name, turns in records.items():
        taken = [record["seconds"] for record in turns]
        ratio = statistics.median(taken) / references.setdefault(name.startswith("draw"), statistics.median(taken))
        read, peak = (
            format_size(max(record[key] for record in turns)) if key in turns[0] else "-"
            for key in ("read_bytes", "peak_bytes")
        )
        print(f"{name:<20}{median_and_spread(taken):>24}{ratio:>10.2f}x{read:>12}{peak:>12}")
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
