"""The stages, each measured in a process of its own: `python -m benchmarks.stages NAME SETTINGS.json` prints JSON.

A stage and its limit take turns; what is compared is the pair of one turn, and the median over the turns is reported.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import diskgnn
from benchmarks import limits
from benchmarks.random_reads import measure_epoch
from diskgnn._native import READ_AHEAD_BYTES
from diskgnn.graph.graph import Graph
from diskgnn.minibatch import MiniBatch
from diskgnn.specs import cache_rows
from diskgnn.packing.placement import hottest_nodes
from diskgnn.storage.samples import Samples
from diskgnn.storage import artifacts
from diskgnn.training.models import make_model

MAX_KEPT_BYTES = 3 << 30  # of minibatches materialised for the training peer


@dataclass(frozen=True)
class Settings:
    """The options of `tools/bench` that the stages need."""

    folder: str
    nodes: int
    degree: float
    width: int
    dtype: str
    classes: int
    train_fraction: float
    fanouts: list[int]
    batch_size: int
    cpu_cache: str
    memory: int
    repeat: int
    seed: int
    hidden: int
    train_minibatches: int
    peer_seconds: float

    @property
    def graph(self) -> Path:
        """The generated graph."""
        return Path(self.folder) / "graph"

    @property
    def samples(self) -> Path:
        """What was sampled from it."""
        return Path(self.folder) / "samples"

    @property
    def packed(self) -> Path:
        """What training reads."""
        return Path(self.folder) / "packed"


def generate(settings: Settings, graph: Path | None = None) -> dict[str, Any]:
    """The graph that all others work on."""
    report = diskgnn.generate(
        graph or settings.graph,
        num_nodes=settings.nodes,
        avg_degree=settings.degree,
        num_classes=settings.classes,
        num_features=settings.width,
        feature_dtype=settings.dtype,
        train_fraction=settings.train_fraction,
        valid_fraction=0,
        test_fraction=0,
        homophily=0.7,
        seed=settings.seed,
        memory=settings.memory,
    )
    return {"seconds": report.seconds, "written_bytes": report.written_bytes, **report.details}


def _prepare(settings: Settings, graph: Path, samples: Path, packed: Path) -> dict[str, float]:
    """Seconds of each step, publishing (fsync) included, and the bytes of source rows that packing needed.

    `seconds` is all that the user waits for, also before and between the steps. Placing writes the headers meanwhile.
    """
    clock = limits.StageClock()
    for old in (samples, packed):
        shutil.rmtree(old, ignore_errors=True)
    started = perf_counter()
    sampled, packing = diskgnn.prepare(
        graph,
        packed,
        fanouts=settings.fanouts,
        batch_size=settings.batch_size,
        cpu_cache=settings.cpu_cache,
        static_cache=0,
        seed=settings.seed,
        memory=settings.memory,
        samples=samples,
        reporter=clock,
    )
    seconds = perf_counter() - started
    place_seconds = clock.seconds["place train"]
    return {
        "seconds": seconds,
        "sample_seconds": sampled.seconds,
        "place_seconds": place_seconds,
        "pack_seconds": packing.seconds - place_seconds,
        "pack_loop_seconds": clock.seconds["pack"],  # without fsync
        "needed_bytes": clock.totals["pack"],
    }


def prepare(settings: Settings) -> dict[str, Any]:
    """Sampling, placement and packing; raw rates of the same disk before and after each packing."""
    features = Graph.open(settings.graph).feature_file
    turns = []
    for _ in range(settings.repeat):
        limits.drop_page_cache(Path(settings.folder))
        found = _prepare(settings, settings.graph, settings.samples, settings.packed)
        headers_bytes = int(np.load(settings.packed / artifacts.index_file("train"))["rows_offset"].sum())
        written_bytes = sum(file.stat().st_size for file in settings.packed.iterdir()) - headers_bytes
        read_rate = limits.read_rate(features.path)
        mixed = limits.mixed_rate(features.path, int(found["needed_bytes"]), written_bytes)
        turns.append(
            found
            | {
                "written_bytes": written_bytes,
                "read_rate": read_rate,
                "mixed_rate": mixed,
                "rate": (found["needed_bytes"] + written_bytes) / found["pack_seconds"],
            }
        )
    rows = artifacts.open_artifact(settings.packed).config["splits"]["train"]["rows"]
    return {
        "turns": turns,
        "place_share": median(turn["place_seconds"] / turn["seconds"] for turn in turns),
        "of_mixed_rate": median(turn["rate"] / turn["mixed_rate"] for turn in turns),
        "of_read_rate": median(turn["rate"] / turn["read_rate"] for turn in turns),
        "seconds": median(turn["seconds"] for turn in turns),
        "rows": rows,
        "peak_bytes": limits.peak_bytes(),
        "budget_bytes": settings.memory,
    }


def _seconds_in(stats: Mapping[str, int | float], names: tuple[str, ...]) -> float:
    return float(sum(stats[name] for name in names))


def loader(settings: Settings) -> dict[str, Any]:
    """An epoch with a consumer that does nothing, and the same file read front to back; what assembly takes of it."""
    threads = len(os.sched_getaffinity(0))
    config = artifacts.open_artifact(settings.packed).config
    train, row_bytes = config["splits"]["train"], config["row_bytes"]
    path = settings.packed / artifacts.extents_file("train")
    index = np.load(settings.packed / artifacts.index_file("train"))
    turns: list[dict[str, Any]] = []
    copies: list[tuple[float, float]] = []
    with diskgnn.Loader(settings.packed) as source:
        budget_bytes = train["cpu_rows"] * row_bytes + READ_AHEAD_BYTES
        budget_bytes += 2 * (train["max_inputs"] * row_bytes + train["max_header_bytes"])  # prefetch 1, and the user's
        restore_seconds = limits.timed(lambda: next(source.epoch(0)))  # the tier is filled, the first minibatch is here
        for turn in range(settings.repeat):
            raw_before = limits.read_rate(path)
            before = dict(source.stats())
            restored = source.stats()["restored_bytes"]
            # The first epoch seeks back to the start, which refills the tier; the others go on.
            batches = source.epoch(turn)
            restore = float(source.stats()["restored_bytes"]) - float(restored)
            seconds = limits.timed(lambda batches=batches: _drain(batches))
            # On both sides of the epoch: a host that caches its disks makes whoever reads last the fastest.
            raw_rate = (raw_before + limits.read_rate(path)) / 2
            stats = {name: value - before.get(name, 0) for name, value in source.stats().items()}
            x_bytes = (stats["requested_rows"] - stats["device_rows"]) * row_bytes
            moving = _seconds_in(stats, ("gather_seconds", "scatter_seconds"))
            turns.append(
                {
                    "seconds": seconds,
                    "rate": path.stat().st_size / seconds,
                    "raw_rate": raw_rate,
                    "x_bytes": x_bytes,
                    "x_rate": x_bytes / moving,
                    "restored_bytes": restore,
                }
                | {name: value for name, value in stats.items() if name.endswith(("_seconds", "_rows"))}
            )
        peak_bytes = limits.peak_bytes()
        beside_copying = median(limits.read_rate_beside_copying(path) for _ in range(settings.repeat))
        copies = [(limits.copy_rate(1), limits.copy_rate(threads)) for _ in range(settings.repeat)]
    copy_one, copy_all = (median(rates) for rates in zip(*copies, strict=True))
    x_rate = median(turn["x_rate"] for turn in turns)
    raw_rate = median(turn["raw_rate"] for turn in turns)
    x_bytes = turns[0]["x_bytes"]
    return {
        "turns": turns,
        "threads": threads,
        "of_raw_rate": median(turn["rate"] / turn["raw_rate"] for turn in turns),
        "rate": median(turn["rate"] for turn in turns),
        "raw_rate": raw_rate,
        "of_rate_beside_copying": median(turn["rate"] for turn in turns) / beside_copying,
        "rate_beside_copying": beside_copying,
        "x_rate": x_rate,
        "copy_rate_one_thread": copy_one,
        "copy_rate_all_threads": copy_all,
        "seconds": median(turn["seconds"] for turn in turns),
        # docs/PERFORMANCE.md: whichever is slower, the assembling thread or the disk beside it.
        "predicted_seconds": max(path.stat().st_size / beside_copying, x_bytes / x_rate),
        "restore_seconds": restore_seconds,
        "extent_bytes": path.stat().st_size,
        "header_bytes": int(index["header_bytes"].sum()),
        "minibatches": len(index),
        "peak_bytes": peak_bytes,
        "budget_bytes": budget_bytes,
    }


def _drain(batches: Iterator[MiniBatch]) -> None:
    for _ in batches:
        pass


def rows(settings: Settings) -> dict[str, Any]:
    """Rows from disk: the planner's count against a static cache of the same bytes, and against brute force."""
    config = artifacts.open_artifact(settings.packed).config
    counted = config["splits"]["train"]["rows"]
    counts = np.zeros(settings.nodes, np.int32)
    for minibatch in Samples.open(settings.samples).read("train"):
        counts[minibatch.input_nodes] += 1
    capacity = cache_rows(settings.cpu_cache, config["row_bytes"], settings.nodes)
    static_rows = counted["requested"] - int(counts[hottest_nodes(counts, capacity)].sum())

    small = replace(
        settings,
        nodes=min(settings.nodes, 20_000),
        width=1,
        classes=min(settings.classes, 16),
        train_fraction=0.1,
        batch_size=64,
        memory=256 << 20,
        repeat=1,
    )
    folder = Path(settings.folder) / "small"
    generate(small, folder / "graph")
    _prepare(small, folder / "graph", folder / "samples", folder / "packed")
    config = artifacts.open_artifact(folder / "packed").config
    batches = [minibatch.input_nodes for minibatch in Samples.open(folder / "samples").read("train")]
    shutil.rmtree(folder)
    bound = belady_rows(batches, cache_rows(small.cpu_cache, config["row_bytes"], small.nodes), small.nodes)
    planned = config["splits"]["train"]["rows"]["disk"]
    return {
        "accesses": counted["requested"],
        "planned_rows": counted["disk"],
        "static_cache_rows": static_rows,
        "of_static_cache": counted["disk"] / max(static_rows, 1),
        "small_accesses": sum(map(len, batches)),
        "small_planned_rows": planned,
        "small_bound_rows": bound,
        "of_bound": planned / max(bound, 1),
    }


def belady_rows(batches: list[np.ndarray], capacity: int, num_nodes: int, rounds: int = 8) -> float:
    """Rows that the best possible cache of `capacity` rows misses per round of an endlessly repeated sequence.

    Brute force, from the definition: after every minibatch the rows kept are those, of all that are at hand, whose next
    use is nearest. The first half of the rounds warms up, the second is averaged: in short sequences the best rounds
    may differ in turn, which a schedule that is the same in every round cannot copy.
    """
    after = [np.empty(0, np.int64)] * ((rounds + 1) * len(batches))  # per minibatch, the next use of each of its nodes
    next_use = np.full(num_nodes, np.iinfo(np.int64).max)
    for time in reversed(range(len(after))):
        nodes = batches[time % len(batches)]
        after[time] = next_use[nodes]
        next_use[nodes] = time
    kept, misses = np.empty(0, np.int64), [0] * rounds
    for time in range(rounds * len(batches)):  # one round less: its next uses are all known
        nodes = batches[time % len(batches)]
        misses[time // len(batches)] += len(np.setdiff1d(nodes, kept, assume_unique=True))
        next_use[nodes] = after[time]
        at_hand = np.union1d(kept, nodes)
        kept = at_hand[np.argsort(next_use[at_hand], kind="stable")[:capacity]]
    return sum(misses[rounds // 2 :]) / (rounds - rounds // 2)


def sampling(settings: Settings) -> dict[str, Any]:
    """Edges per second of the native sampler and of DGL's, same minibatches, fanouts and cores."""
    from benchmarks.samplers import samplers

    runners = samplers(Graph.open(settings.graph), settings)
    # First ours, then each peer, in turns; the first turn, which warms all of them up, does not count.
    runs: dict[str, list[tuple[float, float]]] = {}
    for turn in range(settings.repeat + 1):
        for name, run in runners:
            rates = run()
            if turn:
                runs.setdefault(name, []).append(rates)
    ours = runs.pop("diskgnn")
    return {
        "edges_per_second": median(rate for rate, _ in ours),
        "edges_per_cpu_second": median(rate for _, rate in ours),  # tells more while others use the cores
        "peers": {
            name: {
                "edges_per_second": median(rate for rate, _ in theirs),
                "edges_per_cpu_second": median(rate for _, rate in theirs),
                "ratio": median(a / b for (a, _), (b, _) in zip(ours, theirs, strict=True)),
                "cpu_ratio": median(a / b for (_, a), (_, b) in zip(ours, theirs, strict=True)),
            }
            for name, theirs in runs.items()
        },
    }


def training(settings: Settings) -> dict[str, Any]:
    """Seconds per minibatch of the same model on the same minibatches: from the loader, and from a list in memory."""
    import torch

    config = artifacts.open_artifact(settings.packed).config
    train = config["splits"]["train"]
    bytes_each = train["max_inputs"] * config["row_bytes"] + train["max_header_bytes"]
    count = max(2, min(settings.train_minibatches, train["batches_per_epoch"], MAX_KEPT_BYTES // bytes_each))
    torch.manual_seed(settings.seed)
    model = make_model("sage", settings.width, settings.hidden, settings.classes, len(settings.fanouts))
    optimizer = torch.optim.Adam(model.parameters())

    def seconds_per_minibatch(batches: Iterator[MiniBatch]) -> float:
        step = _steps(model, optimizer)
        step(next(batches))  # the cpu tier has been filled, threads have been started
        done = 0

        def rest() -> None:
            nonlocal done
            for batch in batches:
                step(batch)
                done += 1

        seconds = limits.timed(rest)
        return seconds / max(done, 1)

    turns = []
    with diskgnn.Loader(settings.packed) as source:
        kept = list(islice(source.epoch(0), count))
        for _ in range(settings.repeat):
            # Fresh blocks: what a block computes from itself and keeps is computed in both.
            fresh = (replace(batch, blocks=tuple(replace(block) for block in batch.blocks)) for batch in kept)
            from_memory = seconds_per_minibatch(fresh)
            from_disk = seconds_per_minibatch(islice(source.epoch(0), count))
            turns.append({"from_memory_seconds": from_memory, "from_disk_seconds": from_disk})
    return {
        "minibatches": count,
        "turns": turns,
        "from_memory_seconds": median(turn["from_memory_seconds"] for turn in turns),
        "from_disk_seconds": median(turn["from_disk_seconds"] for turn in turns),
        "of_memory": median(turn["from_disk_seconds"] / turn["from_memory_seconds"] for turn in turns),
        "peak_bytes": limits.peak_bytes(),
    }


def _steps(model: Any, optimizer: Any) -> Callable[[MiniBatch], None]:
    from torch.nn import functional

    from diskgnn.training.evaluate import parameter_dtype

    def step(batch: MiniBatch) -> None:
        loss = functional.cross_entropy(model(batch.blocks, batch.x.to(parameter_dtype(model))), batch.y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def random_reads(settings: Settings) -> dict[str, Any]:
    """An epoch of reads row by row with an LRU cache of the same bytes, feeding a consumer that does nothing."""
    graph = Graph.open(settings.graph)
    features = graph.feature_file
    batches = [minibatch.input_nodes.astype(np.int64) for minibatch in Samples.open(settings.samples).read("train")]
    capacity = cache_rows(settings.cpu_cache, features.row_bytes, settings.nodes)
    reads_per_second = limits.random_page_reads_per_second(features.path)
    epoch = measure_epoch(features, batches, capacity, settings.peer_seconds)
    return {
        "seconds": epoch.seconds,
        "requested_rows": epoch.requested_rows,
        "missed_rows": epoch.missed_rows,
        "read_share": epoch.read_rows / max(epoch.missed_rows, 1),
        "pages_per_missed_row": epoch.read_pages / max(epoch.read_rows, 1),
        "pages_per_request": epoch.read_pages / max(epoch.requests, 1),
        "read_bytes_per_second": epoch.read_pages * limits.PAGE_BYTES / max(epoch.read_seconds, 1e-9),
        "requests_per_second": epoch.requests / max(epoch.read_seconds, 1e-9),
        "random_page_reads_per_second": reads_per_second,
        "cache_seconds": epoch.cache_seconds,
    }


STAGES = {
    stage.__name__: stage for stage in (generate, prepare, loader, rows, sampling, training, random_reads)
}  # in the order in which they run


if __name__ == "__main__":
    found = Settings(**json.loads(Path(sys.argv[2]).read_text()))
    print(json.dumps(STAGES[sys.argv[1]](found)))
