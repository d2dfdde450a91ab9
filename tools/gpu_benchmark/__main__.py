"""tools/gpu_bench: epochs of loading and of training on a GPU against max(disk bytes / raw rate, computing alone).

    tools/gpu_bench --folder data/gpu-bench --json gpu-bench.json

Builds, generates a graph, runs the cuda tests, and measures as much of the list of configurations, most important first,
as fits --seconds; it says what was left out. Needs no network. Without a GPU all of it runs on the CPU, at a size where the
figures say nothing. docs/GPU.md says what each column means.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

import diskgnn  # noqa: E402
from benchmarks.limits import sequential_read  # noqa: E402
from diskgnn.batches.minibatch import MiniBatch  # noqa: E402
from diskgnn.formats import artifacts  # noqa: E402
from diskgnn.formats.packed import Packed  # noqa: E402
from diskgnn.graph.graph import Graph  # noqa: E402
from gpu_benchmark import epochs  # noqa: E402
from gpu_benchmark.epochs import MODELS, Tier  # noqa: E402
from gpu_benchmark.rates import gather_rates  # noqa: E402

ROOT = Path(__file__).parents[2]
FANOUTS = ((10, 15, 20), (10, 10, 10))
GOAL = 1.05
TESTS_SECONDS = 180
# (fanouts, share of rows in the cpu tier, share in the device tier), most important first.
CONFIGURATIONS = [
    *((FANOUTS[0], cpu, device) for cpu, device in ((10, 0), (10, 10), (0, 0))),
    *((FANOUTS[1], cpu, device) for cpu, device in ((10, 0), (10, 10))),
    *((FANOUTS[0], cpu, device) for cpu, device in ((30, 0), (50, 0))),
    *((FANOUTS[1], cpu, device) for cpu, device in ((0, 0), (30, 0), (50, 0))),
    *((fanouts, cpu, 10) for fanouts in FANOUTS for cpu in (0, 30, 50)),
]


@dataclass
class Run:
    """What is measured in, and what was found so far."""

    options: argparse.Namespace
    device: torch.device
    deadline: float  # of time.monotonic()
    lines: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bounds: dict[tuple[tuple[int, ...], str], dict[str, float]] = field(default_factory=dict)

    @property
    def graph(self) -> Path:
        """The generated graph."""
        return Path(self.options.folder) / "graph"

    def left(self) -> float:
        """Seconds until the budget is spent."""
        return self.deadline - time.monotonic()


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def generate(run: Run) -> None:
    """A graph with as many training nodes as minibatches ask for."""
    options = run.options
    report = diskgnn.generate(
        run.graph, num_nodes=options.nodes, avg_degree=15, num_classes=options.classes,
        num_features=options.width, feature_dtype=options.dtype, homophily=0.7, valid_fraction=0, test_fraction=0,
        train_fraction=min(1.0, options.minibatches * options.batch_size / options.nodes),
    )  # fmt: skip
    say(f"generated {options.nodes} nodes in {report.seconds:.1f} s")


def run_tests(run: Run) -> str:
    """The tests marked cuda, in a process of their own."""
    if not ON_GPU or run.options.skip_tests:
        return "not run"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider",
               "--continue-on-collection-errors", "tests"]  # fmt: skip
    try:
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished after {TESTS_SECONDS} s"
    lines = finished.stdout.splitlines()
    for line in lines if finished.returncode else ():
        say(line)
    return lines[-1] if lines else finished.stderr[-500:]


def samples_of(run: Run, fanouts: tuple[int, ...]) -> Path:
    """Sampled once for all tiers."""
    path = Path(run.options.folder) / f"samples-{'-'.join(map(str, fanouts))}"
    if not path.exists():
        report = diskgnn.sample(run.graph, path, fanouts=fanouts, batch_size=run.options.batch_size)
        say(f"sampled fanouts {fanouts} in {report.seconds:.1f} s")
    return path


def measure_bounds(run: Run, fanouts: tuple[int, ...], packed: Path, tier: Tier, num_batches: int) -> None:
    """Computing alone, and with features on the GPU: once for each model and fanouts."""
    missing = [model for model in MODELS if (fanouts, model) not in run.bounds]
    if not missing:
        return
    graph = Graph.open(run.graph)
    # On the device as they are stored: the bound is not charged for widening.
    features = graph.feature_file.rows.as_tensor(graph.features.copy()).to(run.device)
    kept = epochs.kept_minibatches(packed, run.device, tier)
    for model in missing:
        run.bounds[fanouts, model] = epochs.bounds(
            kept, features, model, run.options.classes, num_batches, run.options.hidden
        )


def raw_seconds(extents: Path) -> float:
    """Seconds of reading `extents` front to back, at the rate of its first 4 GiB: a host may cache a shorter part."""
    num_bytes, seconds = sequential_read(extents)
    return extents.stat().st_size * seconds / num_bytes


def measure(run: Run, fanouts: tuple[int, ...], cpu: int, device: int) -> None:
    """Pack, then every line of one configuration, as far as time allows."""
    packed = Path(run.options.folder) / "packed"
    static = f"{device}%"
    report = diskgnn.pack(
        run.graph, samples_of(run, fanouts), packed, cpu_cache=f"{cpu}%", static_cache=static, keep_input_nodes=True
    )
    tiers = [Tier(f"device {device} %", static, True)]
    if device:  # the same rows in the pinned tier
        tiers += [Tier(f"pinned {device} %, zero-copy", 0, True), Tier(f"pinned {device} %, host gathers", 0, False)]
    opened = Packed.open(packed)
    extents, num_batches = opened.file(artifacts.extents_file("train")), opened.sequence("train").batches_per_epoch
    measure_bounds(run, fanouts, packed, tiers[0], num_batches)
    name = f"{','.join(map(str, fanouts))}  cpu {cpu} %"
    say(f"{name}, {tiers[0].name}: packed {extents.stat().st_size / 1e9:.2f} GB in {report.seconds:.1f} s")
    for tier in tiers:
        with epochs.opened(packed, run.device, tier) as loader:
            for model in (None, *(MODELS if tier is tiers[0] else ())):
                what = "load" if model is None else model
                if run.left() < 0:
                    run.left_out.append(f"{name}, {tier.name}, {what}")
                    continue
                compute = {} if model is None else run.bounds[fanouts, model]
                step: Callable[[MiniBatch], object] = epochs.nothing
                if model is not None:
                    largest = loader.sequence.largest_minibatch()
                    step = epochs.step_of(model, largest, run.options.classes, run.options.hidden)
                    step(largest)  # the optimizer's state and the first blocks are allocated
                before = raw_seconds(extents)  # and after the epoch: rates of virtual disks drift
                found = epochs.measured(loader, step)
                disk_seconds = (before + raw_seconds(extents)) / 2
                bound = max(disk_seconds, compute.get("compute_seconds", 0.0))
                run.lines.append({"configuration": name, "tier": tier.name, "what": what, "minibatches": num_batches,
                                  "disk_seconds": disk_seconds, **compute, **found, "bound_seconds": bound,
                                  "distance": found["seconds"] / bound})  # fmt: skip
    shutil.rmtree(packed)


def measure_all(run: Run) -> None:
    """All configurations that fit; what the last one with the same fanouts took says whether the next one fits."""
    took: dict[tuple[int, ...], float] = {}
    for fanouts, cpu, device in CONFIGURATIONS[: run.options.configurations]:
        expected = took.get(fanouts, max(took.values(), default=0.0))
        if run.left() < expected:
            run.left_out.append(f"{','.join(map(str, fanouts))}  cpu {cpu} %, device {device} %")
            continue
        began = time.monotonic()
        measure(run, fanouts, cpu, device)
        took[fanouts] = max(time.monotonic() - began, took.get(fanouts, 0.0) / 2)


def show(run: Run, tests: str, rates: dict[str, float]) -> None:
    """The tables."""
    where = torch.cuda.get_device_name(run.device) if ON_GPU else "CPU, tiny: these figures say nothing"
    print(f"\n{where}; torch {torch.__version__}; cuda tests: {tests}\n")
    for name, rate in rates.items():
        print(f"{name:<52}{rate / 1e9:>9.2f} GB/s of x")
    print(f"\n{'fanouts, cpu tier':<22}{'static rows':<28}{'epoch of':<9}{'disk s':>9}{'compute s':>11}"
          f"{'in-memory s':>13}{'epoch s':>9}{'waited s':>10}{'/ bound':>9}  goal <= {GOAL}")  # fmt: skip
    for line in run.lines:
        names = ("compute_seconds", "in_memory_seconds")
        compute, memory = (f"{line[name]:.3f}" if name in line else "" for name in names)
        verdict = "" if not ON_GPU else "reached" if line["distance"] <= GOAL else "NOT reached"
        print(f"{line['configuration']:<22}{line['tier']:<28}{line['what']:<9}{line['disk_seconds']:>9.3f}{compute:>11}"
              f"{memory:>13}{line['seconds']:>9.3f}{line['wait_seconds']:>10.3f}{line['distance']:>9.3f}"
              f"  {verdict}")  # fmt: skip
    for name in run.left_out:
        print(f"left out for lack of time: {name}")


def arguments() -> argparse.Namespace:
    """The command line; a GPU's defaults are for a run of 8 minutes, a CPU's for one of seconds."""
    parser = argparse.ArgumentParser(prog="tools/gpu_bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--folder", type=Path, required=True, help="for all data; must not exist; removed in the end")
    parser.add_argument("--seconds", type=float, default=450, help="budget, building included")
    parser.add_argument("--spent", type=float, default=0, help="of it, before this started")
    parser.add_argument("--nodes", type=int, default=1_000_000 if ON_GPU else 3000)
    parser.add_argument("--width", type=int, default=128 if ON_GPU else 12)
    parser.add_argument("--dtype", default="float32", help="float32, float16 or bfloat16")
    parser.add_argument("--classes", type=int, default=47 if ON_GPU else 5)
    parser.add_argument("--batch-size", type=int, default=1024 if ON_GPU else 32)
    parser.add_argument("--minibatches", type=int, default=24 if ON_GPU else 4, help="in an epoch")
    parser.add_argument("--hidden", type=int, default=None if ON_GPU else 8, help="instead of SAGE 256, GAT 4 x 32")
    parser.add_argument("--configurations", type=int, default=len(CONFIGURATIONS), help="the first so many")
    parser.add_argument("--skip-tests", action="store_true", help="do not run the cuda tests")
    parser.add_argument("--json", type=Path, help="write everything measured here, too")
    return parser.parse_args()


def main() -> None:
    """Measure, print, clean up."""
    options = arguments()
    device = torch.device("cuda", torch.cuda.current_device()) if ON_GPU else torch.device("cpu")
    run = Run(options, device, time.monotonic() + options.seconds - options.spent)
    options.folder.mkdir(parents=True)
    try:
        tests = run_tests(run)
        say(f"cuda tests: {tests}")
        wanted = options.nodes // 2
        dtype = getattr(torch, options.dtype)
        rates = gather_rates(device, options.nodes, wanted if ON_GPU else 500, options.width, dtype)
        generate(run)
        measure_all(run)
    finally:
        shutil.rmtree(options.folder)
    show(run, tests, rates)
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("folder", "json")}
        record = {"device": str(device), "torch": torch.__version__, "settings": settings, "cuda_tests": tests,
                  "bytes_per_second": rates, "epochs": run.lines, "left_out": run.left_out,
                  "seconds_left": run.left()}  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
