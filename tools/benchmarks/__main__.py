"""tools/bench: every stage against a physical limit or a peer, page cache dropped or bypassed, in one table.

    tools/bench --nodes 1000000 --folder data/bench
    tools/bench --nodes 16000000 --folder data/bench --limit 2GiB --repeat 1 --json bench.json

A graph is generated in --folder, which is removed in the end. Each stage runs in a process of its own, in turns with
what it is compared with; figures are medians, and ratios have the least and the most of the turns beside them. With
--limit, what users run (generate, prepare, the loader) runs in a memory cgroup, page cache included (needs root).
docs/PERFORMANCE.md says what each line means.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.settings import Settings
from benchmarks.stages import STAGES
from diskgnn.compare.measurement import Measurement, median_and_spread, run
from diskgnn.importers.quantising import QUANTISED
from diskgnn.specs.sampling import DRAWS
from diskgnn.units import format_size, parse_size

ROOT = Path(__file__).parents[2]
IN_CGROUP = ("generate", "prepare", "loader", "propagate")
INTERPRETER_BYTES = 400_000_000


def run_stage(name: str, settings: Settings, limit: int | None) -> dict[str, Any]:
    """Measure one stage in a process of its own."""
    settings_path = Path(settings.folder) / "settings.json"
    settings_path.write_text(json.dumps(asdict(settings)))
    command = [sys.executable, "-m", "benchmarks.stages", name, str(settings_path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tools'}:{ROOT}"}
    found = run(Measurement(name, command, limit if name in IN_CGROUP else None, environment=environment))
    print(f"{name}: {found.seconds:.1f} s", file=sys.stderr)
    return found.figures


def line(stage: str, figure: str, limit: str, ratios: float | list[float], aim: str) -> dict[str, Any]:
    """One line of the table, with a ratio or those of all turns; `aim` is '>= 0.95' or the like, empty without one."""
    turns = ratios if isinstance(ratios, list) else [ratios]
    ratio, reached = median(turns), None
    if aim:
        relation, value = aim.split()
        reached = ratio >= float(value) if relation == ">=" else ratio <= float(value)
    return {"stage": stage, "figure": figure, "limit": limit, "ratio": ratio, "spread": median_and_spread(turns),
            "aim": aim, "reached": reached}  # fmt: skip


def rate(bytes_per_second: float) -> str:
    """Bytes per second for people; decimal, as disks are sold."""
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def table(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of the table, from what the stages reported; those of stages that were left out are left out."""
    lines = [made for needed, make in LINES if needed <= results.keys() for made in make(results)]
    for stage in ("prepare", "loader", "propagate"):
        if stage in results:
            budget = results[stage]["budget_bytes"] + INTERPRETER_BYTES
            peak = results[stage]["peak_bytes"]
            lines.append(line(f"peak memory, {stage}", format_size(peak), f"{format_size(budget)}: budget + 400 MB",
                              peak / budget, "<= 1"))  # fmt: skip
    return lines


def _loader_lines(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    loader = results["loader"]
    return [
        line("loader, idle consumer", rate(loader["rate"]), f"{rate(loader['raw_rate'])} O_DIRECT, same file",
             loader["of_raw_rate"], ">= 0.95"),
        line("loader, idle consumer", rate(loader["rate"]),
             f"{rate(loader['rate_beside_copying'])} the same beside memcpy", loader["of_rate_beside_copying"], ""),
        line("assembly into x", rate(loader["x_rate"]), f"{rate(loader['copy_rate_one_thread'])} memcpy, 1 thread",
             loader["x_rate"] / loader["copy_rate_one_thread"], ">= 0.70"),
        line("assembly into x", rate(loader["x_rate"]),
             f"{rate(loader['copy_rate_all_threads'])} memcpy, {loader['threads']} threads",
             loader["x_rate"] / loader["copy_rate_all_threads"], ">= 0.70"),
        line("assembly into x", rate(loader["x_rate"]),
             f"{rate(loader['copy_rate_beside_reading'])} memcpy beside reads, 1 thread",
             loader["x_rate"] / loader["copy_rate_beside_reading"], ""),
        line("checksum", rate(loader["checksum_rate"]), f"{rate(loader['copy_rate_one_thread'])} memcpy, 1 thread",
             loader["checksum_rate"] / loader["copy_rate_one_thread"], ""),
        line("epoch predicted", f"{loader['predicted_seconds']:.2f} s", f"{loader['seconds']:.2f} s measured",
             loader["predicted_seconds"] / loader["seconds"], ""),
    ]  # fmt: skip


def _rows_lines(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    rows = results["rows"]
    return [
        line("rows read, small graph", f"{rows['small_planned_rows']:,}",
             f"{rows['small_bound_rows']:,.0f} Belady, brute force", rows["of_bound"], "<= 1.00"),
        line("rows read", f"{rows['planned_rows']:,} of {rows['accesses']:,}",
             f"{rows['static_cache_rows']:,} static cache", rows["of_static_cache"], "<= 0.80"),
    ]  # fmt: skip


def _sampling_lines(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    sampling = results["sampling"]
    return [
        line(f"sampling{per}", f"{sampling[f'edges_{unit}'] / 1e6:.1f} M edges/s",
             f"{theirs[f'edges_{unit}'] / 1e6:.1f} {name}", theirs[ratio], aim)
        for name, theirs in sampling["peers"].items()
        for per, unit, ratio, aim in (("", "per_second", "ratio", ">= 3"),
                                      (", per CPU second", "per_cpu_second", "cpu_ratio", ""))
    ]  # fmt: skip


def _prepare_lines(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    prepare = results["prepare"]
    packs = {name: median(turn[name] for turn in prepare["turns"]) for name in prepare["turns"][0]}
    return [
        line("planning", f"{packs['place_seconds']:.1f} s", f"{packs['seconds']:.1f} s prepare", prepare["place_share"],
             "<= 0.15"),
        line("packing", rate(packs["rate"]), f"{rate(packs['mixed_rate'])} read and write mixed",
             prepare["of_mixed_rate"], ">= 0.85"),
        line("packing", rate(packs["rate"]), f"{rate(packs['read_rate'])} read alone", prepare["of_read_rate"], ""),
    ]  # fmt: skip


def _training_lines(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    training = results["training"]
    return [
        line("training on CPU",
             f"{training['from_disk_seconds']:.3f} s/minibatch ({training['from_disk_cpu_seconds']:.3f} of CPU)",
             f"{training['from_memory_seconds']:.3f} ({training['from_memory_cpu_seconds']:.3f}) from a list in memory",
             training["of_memory"], "<= 1.05"),
    ]  # fmt: skip


def _peer_lines(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    planned_rows, peer = results["prepare"]["rows"]["disk"], results["random_reads"]
    total = results["prepare"]["seconds"] + results["loader"]["restore_seconds"] + results["loader"]["seconds"]
    return [
        line("rows read", f"{planned_rows:,}", f"{peer['missed_rows']:,} LRU cache",
             planned_rows / max(peer["missed_rows"], 1), ""),
        line("prepare + 1 epoch", f"{total:.1f} s", f"{peer['seconds']:.1f} s random reads, LRU",
             total / peer["seconds"], "<= 0.5"),
    ]  # fmt: skip


def _propagate_lines(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    turns = results["propagate"]["turns"]
    moved_bytes = median(turn["read_bytes"] + turn["written_bytes"] for turn in turns)
    raw_rate = median(turn["raw_rate"] for turn in turns)
    return [
        line("propagate", f"{median(turn['seconds'] for turn in turns):.1f} s, {moved_bytes / 1e9:.1f} GB",
             "bytes predicted", [turn["of_predicted"] for turn in turns], "<= 1.02"),
        line("propagate", rate(median(turn["rate"] for turn in turns)), f"{rate(raw_rate)} O_DIRECT, features",
             [turn["rate"] / turn["raw_rate"] for turn in turns], ""),
    ]  # fmt: skip


def _hops_lines(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found = results["hops"]
    rates = {name: median(turn[name] for turn in found["turns"]) for name in ("rate", "raw_rate", "kept_seconds")}
    kept_rate = found["record_bytes"] / rates["kept_seconds"]
    lines = [
        line("epoch of hops, idle consumer", rate(rates["rate"]), f"{rate(rates['raw_rate'])} O_DIRECT, same file",
             found["of_raw_rate"], ">= 0.91"),
        line("the same in memory", rate(kept_rate), f"{rate(rates['raw_rate'])} O_DIRECT",
             kept_rate / rates["raw_rate"], ""),
    ]  # fmt: skip
    if found["packed_epoch_bytes"] is not None:
        lines.append(
            line("bytes of an epoch", format_size(found["record_bytes"]),
                 f"{format_size(found['packed_epoch_bytes'])} packed minibatches",
                 found["record_bytes"] / found["packed_epoch_bytes"], "<= 0.04")
        )  # fmt: skip
    return lines


# In the order of the table: the stages that some of its lines need, and what makes these.
LINES: list[tuple[set[str], Callable[[dict[str, dict[str, Any]]], list[dict[str, Any]]]]] = [
    ({"rows"}, _rows_lines),
    ({"loader"}, _loader_lines),
    ({"sampling"}, _sampling_lines),
    ({"prepare"}, _prepare_lines),
    ({"training"}, _training_lines),
    ({"prepare", "loader", "random_reads"}, _peer_lines),
    ({"propagate"}, _propagate_lines),
    ({"hops"}, _hops_lines),
]


def growth(results: dict[str, dict[str, Any]], nodes: int) -> list[dict[str, Any]]:
    """What each stage takes per access and per node: flat where it scales."""
    if "prepare" not in results:
        return []
    accesses = results["prepare"]["rows"]["requested"]
    turns = results["prepare"]["turns"]
    seconds = {"generate": results["generate"]["seconds"]}
    seconds |= {name: median(turn[f"{name}_seconds"] for turn in turns) for name in ("sample", "place", "pack")}
    if "loader" in results:
        seconds["loader epoch"] = results["loader"]["seconds"]
    return [
        {"stage": name, "seconds": value, "ns_per_access": value / accesses * 1e9, "ns_per_node": value / nodes * 1e9}
        for name, value in seconds.items()
    ]


def show(lines: list[dict[str, Any]], grown: list[dict[str, Any]], loader: dict[str, Any] | None) -> None:
    """Print the tables."""
    print(f"\n{'stage':<26}{'figure':>26}   {'limit or peer':<38}{'ratio, its spread':>24}  {'aim':<8}")
    for each in lines:
        limit, spread, aim = each["limit"], each["spread"], each["aim"]
        verdict = {True: "reached", False: "NOT reached", None: ""}[each["reached"]]
        print(f"{each['stage']:<26}{each['figure']:>26}   {limit:<38}{spread:>24}  {aim:<8}{verdict}")
    print(f"\n{'how it grows':<24}{'seconds':>10}{'ns/access':>12}{'ns/node':>12}")
    for each in grown:
        print(f"{each['stage']:<24}{each['seconds']:>10.2f}{each['ns_per_access']:>12.1f}{each['ns_per_node']:>12.1f}")
    if loader is None:
        return
    turn = loader["turns"][-1]
    parts = {name: turn[f"{name}_seconds"] for name in ("read_wait", "header", "gather", "scatter", "buffer_wait")}
    each = 1000 / loader["minibatches"]
    print("\nassembling thread, ms per minibatch: " + ", ".join(f"{name} {s * each:.1f}" for name, s in parts.items()))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--folder", type=Path, required=True, help="for all data; must not exist; removed in the end")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=float, default=12.5)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--dtype", default="float32", help="float32, float16, bfloat16 or int8")
    parser.add_argument("--quantise", choices=QUANTISED, help="the graph that was generated, as `convert` does")
    parser.add_argument("--classes", type=int, default=47)
    parser.add_argument("--train-fraction", type=float, default=0.02)
    parser.add_argument("--fanouts", default="10,10,10", help="from the seeds outwards")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--draws", choices=DRAWS, default="independent", help="as `prepare` takes it")
    parser.add_argument("--draw-period", type=int, default=1, help="with --draws coordinated")
    parser.add_argument("--group-seeds", type=int, default=1, help="seeds that stay together")
    parser.add_argument("--cpu-cache", default="10%", help="a size, or a share of all rows")
    parser.add_argument("--limit", help="memory cgroup for what users run, page cache included; needs root")
    parser.add_argument("--memory", help="budget given to generate and prepare; half of --limit, or 1GiB")
    parser.add_argument("--repeat", type=int, default=3, help="turns of each measurement")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--train-minibatches", type=int, default=12, help="trained on, from disk and from memory")
    parser.add_argument("--peer-seconds", type=float, default=60, help="about how long the random reads may take")
    parser.add_argument("--num-hops", type=int, default=3, help="that `propagate` computes")
    parser.add_argument("--operators", default="mean,symmetric", help="of `propagate`")
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES), metavar="STAGE",
                        help=f"measure only these: {', '.join(STAGES)}; each builds on those before it")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write everything measured here, too")
    return parser.parse_args()


def main() -> None:
    """Measure, print, clean up."""
    options = arguments()
    stages = [name for name in STAGES if name in options.stages]
    limit = None if options.limit is None else parse_size(options.limit)
    settings = Settings(
        folder=str(options.folder.absolute()),
        fanouts=[int(fanout) for fanout in options.fanouts.split(",")],
        memory=parse_size(options.memory or "1GiB") if options.memory or limit is None else limit // 2,
        **{name: getattr(options, name) for name in (
            "nodes", "degree", "width", "dtype", "quantise", "classes", "train_fraction", "batch_size", "draws",
            "draw_period", "group_seeds", "cpu_cache", "repeat", "hidden", "train_minibatches", "peer_seconds",
            "num_hops", "operators")},
    )  # fmt: skip
    options.folder.mkdir(parents=True)
    load_before = os.getloadavg()
    try:
        results = {name: run_stage(name, settings, limit) for name in stages}
    finally:
        shutil.rmtree(options.folder)
    lines, grown = table(results), growth(results, settings.nodes)
    machine = {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "load_average_before": load_before,
               "load_average_after": os.getloadavg()}  # fmt: skip
    if options.json:
        record = {"command": sys.argv[1:], "machine": machine, "table": lines, "growth": grown, "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    show(lines, grown, results.get("loader"))
    print(f"load average {load_before[0]:.1f} before, {os.getloadavg()[0]:.1f} after, on {machine['cores']} cores")


if __name__ == "__main__":
    main()
