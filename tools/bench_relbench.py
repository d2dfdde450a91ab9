"""RelBench's own scripts on real databases, in memory and from disk: the same metrics, and how much memory.

    python datasets/flights_database.py flights
    git clone https://github.com/wobetec/f1-data-until-2022-ergast formula1
    git clone https://github.com/snap-stanford/relbench
    git clone https://github.com/pyg-team/pytorch_geometric
    python tools/bench_relbench.py FOLDER --flights flights --f1 formula1/data \\
        --scripts relbench/examples pytorch_geometric/examples

Runs the script of each task with each seed at each level of docs/from-relbench.md, each time in a process of its own,
which is forked from one that has imported all there is, with an empty cache: so memory is that of a first run, which
encodes all rows. tools/relbench_databases.py says what the databases and tasks are; tools/relbench_scripts.py which
lines of the scripts change, and what stands in for pyg-lib in memory. FOLDER keeps the databases and results.jsonl, a
line for each run; a run that is there is not repeated. In the end a table of each task is printed. Of the seeds of a
level it has:
- the metric of the test, in the epoch that is best in validation: mean ± deviation; and less that in memory, seed by
  seed: mean ± standard error;
- medians of MiB of the process at most (resident, with what it maps of files; anonymous, without), and of those that
  are held at the end of training, when what was freed is given back. The first row is a process that does nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from relbench_scripts import DATABASES, LEVELS, TASKS, Settings, anonymous_bytes, embed, held_bytes, run, set_up, stypes

NOTHING = "imports alone"
_LOOK_SECONDS = 0.02  # from one look at the anonymous memory to the next


def main() -> None:
    """Makes the databases, trains what has no result yet, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flights", type=Path, help="folder with flights.db")
    parser.add_argument("--f1", type=Path, help="folder with the CSV files of the Ergast database")
    parser.add_argument("--scripts", type=Path, nargs="+", required=True, help="folders with RelBench's and PyG's")
    parser.add_argument("--tasks", help=f"of {','.join(TASKS)}; by default those of the databases and scripts")
    parser.add_argument("--levels", default=",".join(LEVELS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="how many (%(default)s)")
    for field in fields(Settings):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help="%(default)s")
    options = parser.parse_args()
    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    sources = {name: getattr(options, name) for name in ("f1", "flights") if getattr(options, name) is not None}
    scripts = {each.name: each.resolve() for folder in options.scripts for each in folder.glob("*.py")}
    found = [name for name, (database, _, script) in TASKS.items() if database in sources and script in scripts]
    tasks = options.tasks.split(",") if options.tasks else found
    levels, folder = options.levels.split(","), options.folder.resolve()
    results = folder / "results.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    results.touch()

    def done(**asked: Any) -> dict[str, Any]:
        asked["settings"] = asdict(settings)
        for line in map(json.loads, results.read_text().splitlines()):
            if asked.items() <= line.items():
                return line
        task, level, seed = (asked[key] for key in ("task", "level", "seed"))
        if task == NOTHING:
            line = asked | forked(lambda: {"held_bytes": held_bytes()})
        else:
            with tempfile.TemporaryDirectory(prefix="cache-", dir=folder) as cache:
                script = scripts[TASKS[task][2]]
                line = asked | forked(run, folder, task, level, seed, settings, Path(cache), script)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps({key: value for key, value in line.items() if key != "settings"}), flush=True)
        return line

    for name in {TASKS[task][0] for task in tasks}:
        if not (folder / name / "relational.yaml").is_file():
            print(json.dumps({"database": name, **forked(set_up, folder, name, sources[name])}), flush=True)
        if "directory" in levels and not (folder / name / "graph").is_dir():
            convert(folder / name)
    nothing = done(task=NOTHING, level="", seed=0)
    for task in tasks:
        runs: dict[str, list[dict[str, Any]]] = {level: [] for level in levels}
        for seed, level in itertools.product(range(options.seeds), levels):
            runs[level].append(done(task=task, level=level, seed=seed))
        print(table(task, runs, nothing), flush=True)


def forked(function: Any, *arguments: Any) -> dict[str, Any]:
    """Calls a function in a process of its own; returns what that returns, beside the memory that it took at most.

    Raises:
        RuntimeError: it failed.
    """
    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(its, function, arguments))
    process.start()
    its.close()
    found: dict[str, Any] = ours.recv()
    process.join()
    if "error" in found:
        raise RuntimeError(f"{function.__name__} of {arguments} failed: {found['error']}")
    return found


def _call(pipe: Any, function: Any, arguments: tuple[Any, ...]) -> None:
    looks, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            looks.append(anonymous_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        found = function(*arguments)
    except Exception:
        found = {"error": traceback.format_exc()}
    ended.set()
    thread.join()
    resident_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    most = max(*looks, anonymous_bytes(), found.get("held_bytes", 0))
    pipe.send({**found, "resident_bytes": resident_bytes, "anonymous_bytes": most})


def convert(place: Path) -> None:
    """Makes a graph directory of the tables, by the command line."""
    given = {
        "keep_columns": "true",
        "kinds": place / "stypes.json",
        "statistics": "all",
        "until": DATABASES[place.name].test_timestamp,
    }
    command = [sys.executable, "-m", "diskgnn", "convert", place / "graph", "--from", "relational", place]
    command += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    for name, columns in stypes(place).items():
        for column, kind in columns.items():
            if kind.value == "text_embedded":
                command += ["--embed-text", f"{name}.{column}={embed.__module__}:embed"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run([str(word) for word in command], check=True, env={**os.environ, "PYTHONPATH": path})


def table(task: str, runs: dict[str, list[dict[str, Any]]], nothing: dict[str, Any]) -> str:
    """Returns a table in Markdown."""
    lines = [f"| {task} | test | less in memory | resident MiB | anonymous MiB | held MiB |", "|---" * 6 + "|"]
    lines.append(f"| {NOTHING} | | | {memory([nothing])} |")
    of_memory = [line["test"] for line in runs.get("memory", [])]
    for level, each in runs.items():
        tests = [line["test"] for line in each]
        less = ""
        if level != "memory" and of_memory:
            pairs = [one - other for one, other in zip(tests, of_memory, strict=True)]
            less = f"{statistics.mean(pairs):+.4f} ± {deviation(pairs) / math.sqrt(len(pairs)):.4f}"
        score = f"{statistics.mean(tests):.4f} ± {deviation(tests):.4f}"
        lines.append(f"| {task}, {LEVELS[level]} | {score} | {less} | {memory(each)} |")
    return "\n".join(lines)


def memory(runs: list[dict[str, Any]]) -> str:
    """Returns the medians, as cells."""
    return " | ".join(
        f"{statistics.median(line[kind] for line in runs) / (1 << 20):.0f}"
        for kind in ("resident_bytes", "anonymous_bytes", "held_bytes")
    )


def deviation(values: list[float]) -> float:
    """Returns the deviation of a sample; 0 of one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
