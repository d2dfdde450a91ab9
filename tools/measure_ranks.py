#!/usr/bin/env python3
"""What docs/guide/ranks.md says of training on many ranks, measured on this machine's processor.

    tools/measure_ranks.py kills FOLDER [--ranks 2] [--kills 10]
    tools/measure_ranks.py accuracy FOLDER --graph GRAPH [--ranks 2 4] [--seeds 5] [--epochs 6] [--periods 4 16]
    tools/measure_ranks.py memory FOLDER [--ranks 2 4] [--static 5%]

`kills` ends a rank with SIGKILL at a random moment of each run, lets torchrun start the group again, and compares
losses and weights with those of a run that nobody disturbed. `accuracy` trains each seed on one rank, on several with
the same global batch, and on several that average their parameters every few steps. `memory` adds up what ranks have in
memory (PSS: a shared page counts in parts), with static rows that they share and with as many of their own; and what
they read from disk, if each has a part of the same memory by itself, and if they share all of it. Everything is written
in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

import diskgnn
from diskgnn import train
from diskgnn.formats.packed import Packed
from diskgnn.training.checkpoints import load_checkpoint

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PREPARED = {"fanouts": [10, 10], "cpu_cache": "10%", "static_cache": 0}
# What a resumed run does anew: its seconds, and fetching what was fetched but not trained on.
NOT_RESUMED = ("time", "seconds", "train_seconds", "wait_seconds", "requested_rows", "read_bytes", "hit_rate_cpu")


def launch(ranks: int, *arguments: object, max_restarts: int = 0) -> subprocess.Popen[bytes]:
    """Start `diskgnn train` on so many ranks."""
    command = ["torchrun", "--standalone", "--monitor-interval", "0.1", "--max-restarts", str(max_restarts)]
    command += ["--nproc-per-node", str(ranks), "-m", "diskgnn", "train", *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for it; say why if it failed."""
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(errors.decode())


def pid_of_rank(rank: int, launcher: int) -> int | None:
    """The process of a rank that torchrun has started."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and f"\0RANK={rank}\0".encode() in b"\0" + (folder / "environ").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    return None


def records(path: Path) -> list[dict[str, Any]]:
    """Of the last run in a metrics file, without resumptions and what they may change."""
    lines = list(map(json.loads, path.read_text().splitlines()))
    starts = [number for number, line in enumerate(lines) if line["event"] == "start"]
    return [
        {key: value for key, value in line.items() if key not in NOT_RESUMED}
        for line in lines[starts[-1] :]
        if line["event"] != "resume"
    ]


def tensors(value: Any) -> list[torch.Tensor]:
    """All of a checkpoint, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [each for key in sorted(value, key=str) for each in tensors(value[key])]
    return [each for item in value for each in tensors(item)] if isinstance(value, list | tuple) else []


def same_run(one: Path, other: Path) -> bool:
    """Whether two runs came to the same losses, scores, weights, optimizer states and random numbers, bit for bit."""
    mine, theirs = (load_checkpoint(path / "checkpoint") for path in (one, other))
    parts = ("model", "optimizer", "best", "rng", "other_ranks")
    equal = all(
        len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in ((tensors(mine[part]), tensors(theirs[part])) for part in parts)
    )
    return equal and records(one / "metrics.jsonl") == records(other / "metrics.jsonl")


def kills(options: argparse.Namespace) -> None:
    """Kill a rank at random moments; print how many runs ended as the undisturbed one."""
    folder, ranks = options.folder, options.ranks
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "graph").exists():
        diskgnn.generate(folder / "graph", num_nodes=20_000, avg_degree=12.5, num_classes=8, num_features=32,
                         train_fraction=0.1, valid_fraction=0.02, test_fraction=0.02, homophily=0.7)  # fmt: skip
    packed = folder / f"packed-{ranks}"
    if not packed.exists():
        diskgnn.prepare(folder / "graph", packed, batch_size=128 // ranks, epochs=2, seed=1, ranks=ranks, **PREPARED)

    def arguments(run: Path) -> list[object]:
        return [packed, "--epochs", options.epochs, "--hidden", 32, "--checkpoint", run / "checkpoint",
                "--checkpoint-every", 3, "--metrics", run / "metrics.jsonl"]  # fmt: skip

    undisturbed = folder / f"undisturbed-{ranks}"
    if not undisturbed.exists():
        finish(launch(ranks, *arguments(undisturbed)))
    lines = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    took = sum(line.get("train_seconds", 0) for line in lines)
    choose, equal, resumed = random.Random(options.seed), 0, 0
    for number in range(options.kills):
        run, victim, wait = folder / f"killed-{ranks}-{options.seed}-{number}", choose.randrange(ranks), choose.random()
        process = launch(ranks, *arguments(run), max_restarts=3)
        while not (run / "metrics.jsonl").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(wait * took)
        pid = pid_of_rank(victim, process.pid)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        finish(process)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        points = [(line["epoch"], line["batch"]) for line in lines if line["event"] == "resume"]
        same, where = same_run(undisturbed, run), f"resumed at {points}" if points else "not resumed"
        equal, resumed = equal + same, resumed + bool(points)
        found = "killed" if pid else "had ended"
        print(
            f"rank {victim} {found} after {wait * took:.2f} s: {where}, {'equal' if same else 'NOT EQUAL'}", flush=True
        )
    print(f"{equal} of {options.kills} runs of {ranks} ranks ended equal to the undisturbed one, bit for bit; "
          f"{resumed} resumed from a checkpoint")  # fmt: skip


def scores(rank: int, world_size: int, folder: Path, runs: list[dict[str, Any]]) -> None:
    """Test scores of some runs, written by the first of the ranks that train them."""
    torch.set_num_threads(1)
    if world_size > 1:
        store = f"file://{(folder / 'store').absolute()}"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    found = [train(folder / f"packed-{world_size}", **run).scores() for run in runs]
    if rank == 0:
        (folder / f"scores-{world_size}.json").write_text(json.dumps(found))
    if world_size > 1:
        distributed.destroy_process_group()


def accuracy(options: argparse.Namespace) -> None:
    """Print the test accuracy of each way: mean and deviation over seeds."""
    folder, seeds = options.folder, range(options.seeds)
    folder.mkdir(parents=True, exist_ok=True)
    world_sizes = (1, *options.ranks)
    for number in world_sizes:
        if not (folder / f"packed-{number}").exists():
            diskgnn.prepare(options.graph, folder / f"packed-{number}", batch_size=options.batch_size // number,
                            epochs=4, seed=1, ranks=number, **PREPARED)  # fmt: skip
    ways: list[tuple[str, int, dict[str, Any]]] = [("1 rank", 1, {})]
    for number in options.ranks:
        ways.append((f"{number} ranks, gradients averaged in every step", number, {}))
        for period in options.periods:
            name = f"{number} ranks, parameters averaged every {period} steps"
            ways.append((name, number, {"averaging_period": period}))
    common = {"epochs": options.epochs, "hidden": 64, "lr": 0.005}
    for world_size in world_sizes:
        of_size = [(name, chosen) for name, number, chosen in ways if number == world_size]
        runs = [{**common, **chosen, "seed": seed} for _, chosen in of_size for seed in seeds]
        (folder / "store").unlink(missing_ok=True)
        multiprocessing.spawn(scores, (world_size, folder, runs), nprocs=world_size)
        found = json.loads((folder / f"scores-{world_size}.json").read_text())
        for number, (name, _) in enumerate(of_size):
            of_way = [each["test_accuracy"] for each in found[number * len(seeds) :][: len(seeds)]]
            print(f"{name}: {statistics.mean(of_way):.4f} +- {statistics.stdev(of_way):.4f}", flush=True)


def resident(rank: int, world_size: int, packed: Path, shares: bool) -> None:
    """Write how much more memory this process has (PSS) with an epoch loaded, beside others that do the same."""
    distributed.init_process_group("gloo", init_method=f"file://{packed}.store", rank=rank, world_size=world_size)
    before = pss_bytes()
    with diskgnn.Loader(packed, rank=rank if shares else 0, world_size=world_size if shares else 1) as loader:
        for _ in loader.epoch(0):
            pass
        distributed.barrier()
        found = [0] * world_size
        distributed.all_gather_object(found, pss_bytes() - before)
        distributed.barrier()
    if rank == 0:
        Path(f"{packed}.pss").write_text(json.dumps(found))
    distributed.destroy_process_group()


def pss_bytes() -> int:
    """Of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def memory(options: argparse.Namespace) -> None:
    """Print what static rows take, shared and not, and what they save."""
    folder, share = options.folder, float(options.static.rstrip("%"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "graph").exists():
        diskgnn.generate(folder / "graph", num_nodes=400_000, avg_degree=12.5, num_classes=8, num_features=128,
                         train_fraction=0.1, valid_fraction=0, test_fraction=0, homophily=0.7)  # fmt: skip
    print(f"static rows of {share}% of {400_000 * 512 / 1e6:.0f} MB for each rank")
    for ranks in options.ranks:
        packed = {"own": (1, share * ranks), "alone": (ranks, share), "shared": (ranks, share * ranks)}
        for name, (number, percent) in packed.items():
            if not (out := folder / f"{name}-{ranks}").exists():
                diskgnn.prepare(folder / "graph", out, fanouts=[10, 10], batch_size=256 // ranks, ranks=number, seed=1,
                                cpu_cache="1%", static_cache=f"{percent}%")  # fmt: skip
        total = {}
        for name in ("own", "shared"):
            Path(f"{folder / name}-{ranks}.store").unlink(missing_ok=True)
            multiprocessing.spawn(resident, (ranks, folder / f"{name}-{ranks}", name == "shared"), nprocs=ranks)
            total[name] = sum(json.loads(Path(f"{folder / name}-{ranks}.pss").read_text()))
        read = {name: sum(disk_rows(folder / f"{name}-{ranks}", ranks)) for name in ("alone", "shared")}
        print(
            f"| {ranks} ranks, {share * ranks:g} % static | {total['own'] / 1e6:.0f} MB | "
            f"{total['shared'] / 1e6:.0f} MB | {read['alone']:,} | {read['shared']:,} "
            f"({read['shared'] / read['alone']:.2f}) |",
            flush=True,
        )


def disk_rows(packed: Path, ranks: int) -> list[int]:
    """Of each rank, in an epoch."""
    directories = [packed / f"rank-{rank}-of-{ranks}" for rank in range(ranks)]
    return [Packed.open(each).sequence("train").rows.disk for each in directories]


def main() -> None:
    """Parse arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    killing = commands.add_parser("kills")
    killing.set_defaults(call=kills)
    killing.add_argument("folder", type=Path)
    killing.add_argument("--ranks", type=int, default=2)
    killing.add_argument("--kills", type=int, default=10)
    killing.add_argument("--epochs", type=int, default=12)
    killing.add_argument("--seed", type=int, default=0)
    comparing = commands.add_parser("accuracy")
    comparing.set_defaults(call=accuracy)
    comparing.add_argument("folder", type=Path)
    comparing.add_argument("--graph", type=Path, required=True)
    comparing.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    comparing.add_argument("--seeds", type=int, default=5)
    comparing.add_argument("--epochs", type=int, default=6)
    comparing.add_argument("--batch-size", type=int, default=512, help="of all ranks together")
    comparing.add_argument("--periods", type=int, nargs="*", default=[4, 16])
    sharing = commands.add_parser("memory")
    sharing.set_defaults(call=memory)
    sharing.add_argument("folder", type=Path)
    sharing.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    sharing.add_argument("--static", default="10%", help="of each rank, in percent of all rows")
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
