"""Scores of models with each normalisation between layers, with a skip connection and without: what defaults rest on.

    python datasets/debian_packages.py data/packages
    python datasets/genes.py data/genes
    python datasets/debian_files.py data/files --width 64 --dtype float16
    python datasets/flights.py data/flights
    python datasets/genes.py data/genes-typed --typed
    python tools/choose_between.py data --results results.jsonl
    python tools/choose_between.py data --results results.jsonl --tasks packages,genes --seeds 0,1

A seed changes what is sampled and how training begins. All settings of a task are trained on the same minibatches of a
seed. The table has the score on the test split in the epoch that is the best on the valid split: the mean over the
seeds, and their standard deviation.

RESULTS has a line for each run that is done. A run that it has is not repeated, so what was stopped goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import diskgnn
from diskgnn.graph.graph import Graph
from diskgnn.nn.model_spec import NORMS
from diskgnn.specs.schema import ONE_NODE_TYPE
from typed_accuracy import EXPERIMENTS, Experiment

SETTINGS: dict[str, dict[str, Any]] = {
    f"--norm {norm}{' --skip' if skip else ''}": {"norm": norm, "skip": skip}
    for skip in (False, True)
    for norm in NORMS
}
Run = tuple[str, str, int]  # task, setting, seed

_SAMPLING: dict[str, Any] = {"fanouts": [10, 10], "batch_size": 512}
_PLAIN = {
    "packages": Experiment("packages", "packages", ONE_NODE_TYPE, "accuracy", 15, 4, _SAMPLING),
    "genes": Experiment("genes", "genes", ONE_NODE_TYPE, "accuracy", 10, 4, _SAMPLING),
    "files": Experiment("files", "files", ONE_NODE_TYPE, "accuracy", 10, 4, _SAMPLING),
}
TASKS = {
    name if model == "sage" else f"{name}-{model}": replace(task, title=f"{name}, {model}", training={"model": model})
    for model in ("sage", "gat", "gcn")
    for name, task in _PLAIN.items()
} | {
    "flights": replace(EXPERIMENTS["flights"], title="flights, rgcn", epochs=10, prepared=4),
    "genes-typed": replace(
        EXPERIMENTS["gene-type"], title="typed genes, rgcn", graph="genes-typed", epochs=10, prepared=4
    ),
}


def scores(graph: Graph, task: Experiment, seed: int, settings: list[str]) -> Iterator[tuple[str, float]]:
    """Prepare once, train with each setting; the score of the best epoch."""
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "packed"
        diskgnn.prepare(graph, packed, **task.spec(graph), epochs=task.prepared or task.epochs, seed=seed,
                        cpu_cache="10%", static_cache=0, progress=False)  # fmt: skip
        for setting in settings:
            found = diskgnn.train(packed, **task.training, **SETTINGS[setting], epochs=task.epochs, seed=seed,
                                  progress=False)  # fmt: skip
            yield setting, found.scores()[f"test_{task.score}"]


def table(results: Mapping[Run, float], names: list[str], settings: list[str]) -> str:
    """As Markdown: percent of what is right, and errors as they are."""
    lines = ["| | " + " | ".join(f"{TASKS[name].title}, {TASKS[name].score}" for name in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for setting in settings:
        cells = [_cell([value for run, value in results.items() if run[:2] == (name, setting)],
                       100 if TASKS[name].score == "accuracy" else 1) for name in names]  # fmt: skip
        lines.append(f"| `{setting}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float], scale: int) -> str:
    if not values:
        return ""
    digits = 2 if scale > 1 else 4
    deviation = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * statistics.fmean(values):.{digits}f}{deviation}"


def _results(file: Path) -> dict[Run, float]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {(each["task"], each["setting"], each["seed"]): each["score"] for each in map(json.loads, lines)}


def main() -> None:
    """Train what has no result yet; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the graphs")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, read first and added to")
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="default: %(default)s")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, help="in place of each task's own, to try it; with a RESULTS of its own")
    options = parser.parse_args()
    names, settings = options.tasks.split(","), options.settings.split(",")
    for option, given, known in (("tasks", names, TASKS), ("settings", settings, SETTINGS)):
        if unknown := {*given} - {*known}:
            parser.error(f"--{option}: expected some of {', '.join(known)}, found {', '.join(sorted(unknown))}")
    seeds = [int(each) for each in options.seeds.split(",")]
    for seed, name in itertools.product(seeds, names):
        done = _results(options.results)
        if missing := [setting for setting in settings if (name, setting, seed) not in done]:
            graph = Graph.open(options.data / TASKS[name].graph)
            task = TASKS[name] if options.epochs is None else replace(TASKS[name], epochs=options.epochs, prepared=None)
            for setting, score in scores(graph, task, seed, missing):
                line = json.dumps({"task": name, "setting": setting, "seed": seed, "score": score})
                print(line, flush=True)
                with options.results.open("a") as file:
                    file.write(line + "\n")
    print(table({run: score for run, score in _results(options.results).items() if run[2] in seeds}, names, settings))


if __name__ == "__main__":
    main()
