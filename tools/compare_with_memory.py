"""Train once more with everything in memory and fresh samples every epoch, and compare with a run from disk.

    python tools/compare_with_memory.py GRAPH PACKED METRICS

METRICS is what `diskgnn train PACKED --metrics METRICS` wrote; model, seed and epochs are taken from there, fanouts and
minibatch size from PACKED.
"""

import json
import statistics
import sys
from pathlib import Path

from diskgnn.baselines.in_memory import in_memory_sources
from diskgnn.cli.online import show_epoch
from diskgnn.cli.rendering import BarReporter, Output
from diskgnn.storage.artifacts import PACKED, open_artifact
from diskgnn.training.train import train

TIERS = ("device", "pinned", "cpu")


def train_in_memory(graph, packed, settings, callback, reporter):
    """The run that `settings`, a metrics file's start record, describes, on in-memory sources."""
    prepared = open_artifact(packed, PACKED).config
    same = ("fanouts", "eval_fanouts", "batch_size", "seed")
    sources = in_memory_sources(graph, **{name: prepared[name] for name in same})
    names = ("model", "hidden", "num_layers", "heads", "dropout", "lr", "weight_decay", "epochs", "seed")
    return train(**sources, **{name: settings[name] for name in names}, callback=callback, reporter=reporter)


def row(name, records):
    """One line of the table from the records of one run."""
    epochs = [record for record in records if record["event"] == "epoch"]

    def mean(key):
        return sum(epoch[key] for epoch in epochs) / len(epochs)

    hits = [mean(f"hit_rate_{tier}") for tier in TIERS]
    accuracy = records[-1]["test_accuracy"]
    shares = [f"{share:.1%}" for share in (accuracy, *hits, 1 - sum(hits))]
    seconds = statistics.median(epoch["train_seconds"] for epoch in epochs)  # less moved by what else runs
    return [name, shares[0], seconds, mean("read_bytes"), *shares[1:]]


def main(graph, packed, metrics):
    """Train and print the table."""
    output = Output(as_json=False)
    from_disk = [json.loads(line) for line in Path(metrics).read_text().splitlines()]
    in_memory = []

    def record(each):
        in_memory.append(each)
        show_epoch(output, each)

    train_in_memory(graph, packed, from_disk[0], record, BarReporter(output.messages, transient=True))
    output.table(
        "from disk and in memory: test accuracy of the best epoch; median seconds, mean bytes and rows of an epoch",
        ["", "test accuracy", "epoch_seconds", "read_bytes", *(f"{tier} hits" for tier in TIERS), "rows from disk"],
        [row("from disk", from_disk), row("in memory", in_memory)],
    )


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
