"""Does training from disk learn what in-memory training learns? Test accuracy over several seeds.

    python tools/compare_accuracy.py data/quickstart/graph --seeds 5 --prepared 1,2,5

Each seed samples, initialises and drops out anew. In memory every epoch is sampled afresh; from disk the prepared
epochs are reused in turn. Test accuracy is that of the best validation epoch. A row is one way of training: mean,
standard deviation, and the difference to in-memory in units of its deviation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from diskgnn import prepare, train
from diskgnn.baselines.in_memory import in_memory_sources
from diskgnn.graph.graph import Graph


def in_memory(graph: Graph, options: argparse.Namespace, seed: int) -> float:
    """Test accuracy of one run with fresh samples every epoch."""
    sources = in_memory_sources(graph, fanouts=options.fanouts, batch_size=options.batch_size, seed=seed)
    accuracy = train(**sources, epochs=options.epochs, seed=seed, model=options.model).test_accuracy
    assert accuracy is not None
    return accuracy


def from_disk(graph: Graph, options: argparse.Namespace, seed: int, prepared: int) -> float:
    """Test accuracy of one run that reuses `prepared` sampled epochs."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        packed = Path(folder) / "packed"
        prepare(
            graph, packed, fanouts=options.fanouts, batch_size=options.batch_size, epochs=prepared, cpu_cache="10%",
            seed=seed,
        )  # fmt: skip
        accuracy = train(packed, epochs=options.epochs, seed=seed, model=options.model).test_accuracy
    assert accuracy is not None
    return accuracy


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--prepared", default="1,2,5", help="numbers of prepared epochs to compare")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--fanouts", type=lambda text: [int(n) for n in text.split(",")], default=[10, 10])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--folder", type=Path, default=Path("data"), help="for packed directories, removed after use")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    graph = Graph.open(options.graph)
    found: dict[str, list[float]] = {"in memory": []}
    found |= {f"{n} prepared": [] for n in map(int, options.prepared.split(","))}
    for seed in range(options.seeds):
        for name, accuracies in found.items():
            if name == "in memory":
                accuracies.append(in_memory(graph, options, seed))
            else:
                accuracies.append(from_disk(graph, options, seed, int(name.split()[0])))
            print(f"seed {seed}, {name}: {accuracies[-1]:.4f}", flush=True)
    base, spread = statistics.mean(found["in memory"]), statistics.stdev(found["in memory"])
    print(f"\n{'':<12}{'mean':>8}{'deviation':>11}{'difference / deviation':>24}")
    for name, accuracies in found.items():
        mean = statistics.mean(accuracies)
        print(f"{name:<12}{mean:>8.4f}{statistics.stdev(accuracies):>11.4f}{(mean - base) / spread:>24.2f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
