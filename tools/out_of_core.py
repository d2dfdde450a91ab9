"""Run the whole job inside a memory cgroup, page cache included: generate, prepare, train and evaluate.

    python tools/out_of_core.py --folder data/out-of-core --nodes 16000000 --width 128 --limit 2GiB
    python tools/out_of_core.py --folder data/out-of-core --schema datasets/mag240m.yaml --limit 2GiB

Prints, for each command, seconds, the cgroup's peak usage, and whether the kernel killed anything. Needs root for the
cgroup (v1 or v2); with --limit none the commands run without one. With --schema, the graph has the types that it
describes, vectors of nodes without features are trained on disk, and the rows that the train sequence reads from disk
are printed beside those of a static cache and of Belady's MIN with the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from diskgnn.compare.counting import InputRows, belady_rows, diskgnn_rows, static_rows
from diskgnn.compare.measurement import Measurement, run
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.row_sets import row_sets_of
from diskgnn.units import format_size, parse_size


def measure(name: str, arguments: list[str], limit: int | None) -> dict[str, Any]:
    """Run `diskgnn ARGUMENTS` and say what it took."""
    print("$ diskgnn", " ".join(arguments), flush=True)
    found = run(Measurement(name, [sys.executable, "-m", "diskgnn", *arguments], limit))
    record = {"stage": name, **found.costs}
    print(json.dumps(record), flush=True)
    return {**record, "result": found.figures}


def rows_read(graph: Path, packed: Path, samples: Path, folder: Path) -> dict[str, int]:
    """Rows of the train sequence from disk: as packed, and as other caches of the same bytes read them.

    "fewest" is Belady's MIN from an empty cache, and "static" and "planned" include what fills their caches at first.
    """
    config = Packed.open(packed).config
    sequence = config.splits["train"]
    sets = row_sets_of(Graph.open(graph), config.samples)
    opened = Samples.open(samples)
    inputs = [
        InputRows(
            lambda each=each: (each.needed(minibatch) for minibatch in opened.read("train")),  # type: ignore[misc]
            each.num_rows, each.row_bytes, folder / f"inputs-{number}",
        )
        for number, each in enumerate(sets)
    ]  # fmt: skip
    slots = [rows.cpu_rows for rows in sequence.row_sets]
    return {
        "needed": sum(each.requested_rows for each in inputs),
        "different": sum(each.reuse.num_rows for each in inputs),
        "slots": sum(slots),
        "planned": sum(map(diskgnn_rows, inputs, slots)),
        "planned in a cycle": sequence.rows.disk,
        "static": sum(map(static_rows, inputs, slots)),
        "fewest": sum(map(belady_rows, inputs, slots)),
    }


def main() -> None:
    """Parse arguments, run the stages, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where everything is written; deleted in the end")
    parser.add_argument("--nodes", type=int, default=16_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--schema", type=Path, help="sizes of a graph with types, as `generate --schema` takes them")
    parser.add_argument("--hidden", default="64", help="with --schema: width of the model")
    parser.add_argument("--cpu-cache", default="10%")
    parser.add_argument("--limit", default="2GiB")
    parser.add_argument("--json", type=Path, help="write the records here, too")
    options = parser.parse_args()
    limit = None if options.limit == "none" else parse_size(options.limit)
    graph, packed, samples, checkpoint = (
        str(options.folder / name) for name in ("graph", "packed", "samples", "checkpoint")
    )
    options.folder.mkdir(parents=True)
    typed = options.schema is not None
    generate = ["--schema", str(options.schema)] if typed else [
        "--num-nodes", str(options.nodes), "--avg-degree", "12.5", "--num-features", str(options.width),
        "--train-fraction", "0.02", "--valid-fraction", "0.001", "--test-fraction", "0.001",
    ]  # fmt: skip
    sizes = (
        ["--fanouts", "10,10", "--batch-size", "512"] if typed else ["--fanouts", "10,10,10", "--batch-size", "1024"]
    )
    model = ["--hidden", options.hidden, "--embeddings", "disk"] if typed else []
    stages = [
        ("generate", ["generate", graph, *generate]),
        ("prepare", ["prepare", graph, packed, *sizes, "--cpu-cache", options.cpu_cache, "--static-cache", "0",
                     "--samples", samples]),
        ("train", ["train", packed, "--epochs", "1", "--checkpoint", checkpoint, *model]),
        ("evaluate", ["evaluate", packed, "--checkpoint", checkpoint]),
    ]  # fmt: skip
    try:
        records = [measure(name, [*arguments, "--json"], limit) for name, arguments in stages]
        rows = rows_read(Path(graph), Path(packed), Path(samples), options.folder)
    finally:
        shutil.rmtree(options.folder)
    print(f"\n|          | seconds | peak memory, page cache included (limit {options.limit}) |\n|---|---|---|")
    for record in records:
        peak = record.get("peak_bytes")
        shown = format_size(peak) if peak is not None else "-"
        print(f"| {record['stage']:<8} | {record['seconds']:>7.1f} | {shown} |")
    print("\nrows of the train sequence:", ", ".join(f"{name} {count:,}" for name, count in rows.items()))
    if options.json:
        options.json.write_text(json.dumps([*records, {"stage": "rows", "result": rows}], indent=1) + "\n")


if __name__ == "__main__":
    main()
