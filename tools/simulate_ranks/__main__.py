"""Predict what an epoch of W ranks takes: real draws of a graph, a real schedule of each rank, and measured rates.

    python tools/simulate_ranks GRAPH --fanouts 10,10,10 --batch-size 1024 --cpu-cache 10% --folder data/simulation \
        --ranks 1,2,4,8,16,32,64 --rates PACKED
    python tools/simulate_ranks GRAPH ... --read-rate 3e9 --assembly-rate 4.4e9 --edge-ns 5 --gradient-bytes 2e6

The minibatches of the train split are drawn once: rank r of W has those with numbers r, r + W, ... For each W, the
sequence of every rank is placed as `prepare --ranks W` places it, with a cpu tier of its own. So rows and bytes are
those of packed directories, to less than a page a minibatch. Then the steps are replayed: loading ahead, computing,
and a ring all-reduce that all ranks wait for. No feature is read: `--row-bytes` says how long rows are to be.

`--rates` measures a packed directory of this machine: its disk, its assembling thread, steps of SAGE on its CPU. The
other options replace what was measured, for the machines that are asked about. Network rate and latency are never
measured. All rates are those of a rank beside the others of its machine: `--ranks-per-machine` measures so many at
once, with `--threads` threads each, and what a step costs them beside computing: DDP and gloo on the loopback.
docs/SCALE.md has results.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from counting import Draws, RankWork, total, work_of_ranks
from measuring import measure_at_once
from replay import Epoch, Rates, replay

from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import cache_rows
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources

_RATES = {  # option: (field, unit)
    "read-rate": ("read_bytes", 1.0),
    "assembly-rate": ("assembled_bytes", 1.0),
    "edge-ns": ("edge_seconds", 1e-9),
    "gradient-bytes": ("gradient_bytes", 1.0),
    "network-rate": ("network_bytes", 1.0),
    "latency-us": ("latency_seconds", 1e-6),
    "step-ms": ("step_seconds", 1e-3),
    "cores": ("cores", 1.0),
}


def main(command_line: list[str] | None = None) -> None:
    """Draw, place, replay, print."""
    options = _options(command_line)
    graph, resources = Graph.open(options.graph), Resources.of(options.memory, options.threads)
    fanouts = [int(each) for each in options.fanouts.split(",")]
    spec = SamplingSpec(fanouts, options.batch_size, options.epochs, seed=options.seed, splits=["train"])
    row_bytes = options.row_bytes or graph.feature_file.row_bytes
    cpu_rows = cache_rows(options.cpu_cache, row_bytes, graph.num_nodes)
    rates = _rates(options)
    options.folder.mkdir(parents=True)
    try:
        draws = Draws(SamplingPlan(graph, spec), options.folder, resources)
        found = []
        for world_size in map(int, options.ranks.split(",")):
            ranks = work_of_ranks(draws, world_size, row_bytes=row_bytes, cpu_rows=cpu_rows, folder=options.folder,
                                  threads=resources.threads)  # fmt: skip
            epoch = replay(ranks, rates, num_epochs=draws.num_epochs, prefetch=options.prefetch)
            found.append(_record(world_size, ranks, epoch, rates, draws.num_epochs))
    finally:
        shutil.rmtree(options.folder)
    print(_table(found))
    if options.json is not None:
        options.json.write_text(json.dumps({"rates": asdict(rates), "ranks": found}, indent=1) + "\n")


def _record(world_size: int, ranks: list[RankWork], epoch: Epoch, rates: Rates, num_epochs: int) -> dict[str, Any]:
    return {
        "ranks": world_size,
        "steps": epoch.steps,
        "disk_rows": total(ranks, "disk_rows"),
        "disk_row_share": total(ranks, "disk_rows") / total(ranks, "requested_rows"),
        "read_bytes_per_epoch": total(ranks, "read_bytes") // num_epochs,
        "packed_bytes": total(ranks, "packed_bytes"),
        "fill_seconds": max(rank.initial_bytes for rank in ranks) / rates.read_bytes,
        "epoch_seconds": epoch.seconds,
        "bound_by": epoch.bound_by,
        **{name: value for name, value in asdict(epoch).items() if name.endswith("_seconds")},
    }


def _table(found: list[dict[str, Any]]) -> str:
    heads = ("W", "steps", "rows from disk", "read an epoch", "packed", "fill", "epoch", "speed-up", "bound by")
    lines = [" | ".join(heads), " | ".join(["---"] * len(heads))]
    for each in found:
        speedup = found[0]["epoch_seconds"] / each["epoch_seconds"]
        lines.append(
            f"{each['ranks']} | {each['steps']:,} | {each['disk_row_share']:.3f} | "
            f"{each['read_bytes_per_epoch'] / 1e9:.2f} GB | {each['packed_bytes'] / 1e9:.2f} GB | "
            f"{each['fill_seconds']:.2f} s | {each['epoch_seconds']:.2f} s | {speedup:.2f} | {each['bound_by']}"
        )
    return "\n".join(f"| {line} |" for line in lines)


def _rates(options: argparse.Namespace) -> Rates:
    given = {
        field: int(value) if field == "gradient_bytes" else value * unit
        for name, (field, unit) in _RATES.items()
        if (value := getattr(options, name.replace("-", "_"))) is not None
    }
    if options.rates is None:
        return Rates(**given)
    measured = measure_at_once(
        options.ranks_per_machine, options.rates, hidden=options.hidden, minibatches=options.measured_minibatches,
        threads=Resources.of("auto", options.threads).threads,
    )  # fmt: skip
    print(json.dumps(asdict(measured)))
    return replace(measured, **given)


def _options(command_line: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="for scratch files; must not exist; removed")
    parser.add_argument("--ranks", default="1,2,4,8,16,32,64")
    parser.add_argument("--ranks-per-machine", type=int, default=1, help="that rates are measured for")
    parser.add_argument("--fanouts", default="10,10,10")
    parser.add_argument("--batch-size", type=int, default=1024, help="of each rank")
    parser.add_argument("--epochs", type=int, default=1, help="that are prepared")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu-cache", default="10%", help="of each rank")
    parser.add_argument("--row-bytes", type=int, help="in place of the graph's own")
    parser.add_argument("--prefetch", type=int, default=1, help="minibatches that a rank assembles ahead")
    parser.add_argument("--memory", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write all figures there, too")
    parser.add_argument("--rates", type=Path, metavar="PACKED", help="packed directory on which rates are measured")
    parser.add_argument("--measured-minibatches", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256, help="of the model that is measured")
    for name, (field, _) in _RATES.items():
        parser.add_argument(f"--{name}", type=float, help=f"replaces {field} of Rates")
    options = parser.parse_args(command_line)
    needed = ("read_rate", "assembly_rate", "edge_ns", "gradient_bytes")
    if options.rates is None and (missing := [name for name in needed if getattr(options, name) is None]):
        parser.error(f"give --rates, or {', '.join('--' + name.replace('_', '-') for name in missing)}")
    return options


if __name__ == "__main__":
    main()
