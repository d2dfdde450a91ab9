"""An epoch of training without reuse: `FreshEpochs` beside Ginex's design and beside an epoch that was prepared before.

    python tools/bench_fresh.py GRAPH --folder data/fresh --cpu-cache 2% --memory 2GiB --turns 3

Each turn is a process of its own, with the graph out of the page cache, and the sources take turns. `diskgnn compare`
does more; this takes less time, and tells seconds of CPU, which depend less on what else the machine does. A third of
the memory is for preparing, as `compare` has it. docs/COMPARISON.md has results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

SOURCES = ("fresh", "ginex", "reused")


def measure(options: argparse.Namespace, name: str) -> dict[str, float]:
    """Open the source, train an epoch, close it. What an epoch to reuse takes to prepare is told beside it."""
    import torch

    import diskgnn
    import diskgnn.fresh.fresh_epochs  # imported before the clock starts, as all others are
    from diskgnn.baselines.ginex import Ginex
    from diskgnn.compare import page_cache
    from diskgnn.graph.graph import Graph
    from diskgnn.nn.models import make_model
    from diskgnn.units import parse_size

    graph, packed = Graph.open(options.graph), options.folder / "packed"
    sampling: dict[str, Any] = {"fanouts": options.fanouts, "batch_size": options.batch_size}
    memory = parse_size(options.memory) // 3
    prepare_seconds = 0.0
    if name == "reused":
        page_cache.drop(page_cache.files_read(graph.manifest, options.folder))
        began = time.perf_counter()
        diskgnn.prepare(graph, packed, **sampling, cpu_cache=options.cpu_cache, static_cache=0, memory=memory,
                        overwrite=True)  # fmt: skip
        prepare_seconds = time.perf_counter() - began
    page_cache.drop(page_cache.files_read(graph.manifest, options.folder))
    torch.manual_seed(0)
    began, began_cpu = time.perf_counter(), time.process_time()
    if name == "fresh":
        source: Any = diskgnn.FreshEpochs(graph, options.folder, **sampling, cpu_cache=options.cpu_cache, num_epochs=1,
                                          memory=memory)  # fmt: skip
    elif name == "ginex":
        source = Ginex(graph, cpu_cache=options.cpu_cache, scratch=options.folder, **sampling)
    else:
        source = diskgnn.Loader(packed)
    with source:
        if options.load:
            assert sum(1 for _ in source.epoch(0)) == source.num_batches
        else:
            layers = len(options.fanouts)
            model = make_model("sage", source.num_features, options.hidden, source.num_classes, layers)
            diskgnn.train(source, model=model, epochs=1)
        stats = source.stats()
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - began_cpu,
        "wait_seconds": stats.wait_seconds,
        "read_gb": (stats.read_bytes + stats.prepare_read_bytes) / 1e9,
        "prepare_seconds": prepare_seconds,
    }


def limited_graph(options: argparse.Namespace) -> Path:
    """The graph with a train split of so many minibatches and no other: its other files are referred to."""
    import numpy as np

    from diskgnn.compare.limited_graph import make_training_graph
    from diskgnn.graph.graph import Graph
    from diskgnn.sampling.plan import SamplingPlan
    from diskgnn.specs.sampling import SamplingSpec

    graph = Graph.open(options.graph)
    plan = SamplingPlan(graph, SamplingSpec(options.fanouts, options.batch_size, splits=("train",)))
    seeds = np.concatenate([each.seeds for each in plan.minibatches("train", 0)[: options.minibatches]])
    return make_training_graph(graph, options.folder / "graph", graph.only_nodes("this").name, seeds).manifest.path


def main() -> None:
    """Measure in turns, print medians; or, in a process of its own, one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="of one type, with a train split")
    parser.add_argument("--folder", type=Path, required=True, help="for all data; must not exist; removed in the end")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--cpu-cache", default="5%", help="a size, or a share of all rows")
    parser.add_argument("--memory", default="2GiB", help="a third of it is for preparing")
    parser.add_argument("--fanouts", default="10,10,10", type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--minibatches", type=int, help="of the epoch; all by default")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--load", action="store_true", help="load minibatches and do not train")
    parser.add_argument("--measure", choices=SOURCES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options, options.measure)))
        return
    options.folder.mkdir(parents=True)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in options.sources}
    try:
        graph = limited_graph(options)
        passed = [each for each in sys.argv[1:] if each != str(options.graph)]
        for _ in range(options.turns):
            for name in options.sources:
                command = [sys.executable, __file__, str(graph), *passed, "--measure", name]
                ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[name].append(json.loads(ended.stdout.splitlines()[-1]))
                print(name, {key: round(value, 2) for key, value in found[name][-1].items()}, flush=True)
    finally:
        shutil.rmtree(options.folder)
    for name, turns in found.items():
        medians = {key: round(median(each[key] for each in turns), 2) for key in turns[0]}
        print(f"{name}, median of {len(turns)}: {medians}")


if __name__ == "__main__":
    main()
