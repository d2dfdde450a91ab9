"""Training from packed directories of a graph with several types: as from memory, resumed exactly, by the command."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from training_runs import Interrupting, records
from typed_batches import CITES, WRITES, TypedGraph
from typed_directories import write_typed_graph
from typed_samples import typed_graph, write_samples

from diskgnn.baselines.in_memory import InMemory
from diskgnn.cli import main
from diskgnn.fresh.fresh_epochs import FreshEpochs
from diskgnn.loading.loader import Loader
from diskgnn.packing.pack import pack
from diskgnn.specs.targets import LinkTarget
from diskgnn.training.train import train

ARGUMENTS = {"hidden": 8, "dropout": 0.3, "lr": 0.02, "epochs": 3, "record_every_batches": 2}
METRICS = {"class": "accuracy", "multilabel": "average_precision", "regression": "mae"}


def packed_directory(folder, task, cpu_cache="20%"):
    graph = typed_graph(folder / "graph", task=task)
    write_samples(graph, folder / "samples")
    pack(graph, folder / "samples", folder / "packed", cpu_cache=cpu_cache, static_cache=0)
    return folder / "packed"


class Kept:
    """A source whose minibatches were loaded once and lie in memory."""

    def __init__(self, packed, split):
        with Loader(packed, split) as loader:
            self.schema, self.num_layers, self.num_batches = loader.schema, loader.num_layers, loader.num_batches
            self._batches = [list(loader.epoch(epoch)) for epoch in range(loader.num_epochs)]
            self._stats, self._state = loader.stats(), loader.state_dict()

    def epoch(self, epoch):
        return iter(self._batches[epoch % len(self._batches)])

    def stats(self):
        return self._stats

    def state_dict(self):
        return self._state


@pytest.mark.parametrize(("task", "model"), [("class", "rgcn"), ("multilabel", "rgat"), ("regression", "hgt")])
def test_training_from_disk_is_training_from_memory(tmp_path, task, model):
    """Whatever the tiers are; authors have no features, and edges have some."""
    packed = packed_directory(tmp_path, task)
    expected = train(Kept(packed, "train"), valid_source=Kept(packed, "valid"), model=model, **ARGUMENTS)
    found = train(packed, model=model, metrics=tmp_path / "whole.jsonl", **ARGUMENTS)
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in expected.epochs]
    assert [epoch.scores() for epoch in found.epochs] == [epoch.scores() for epoch in expected.epochs]
    assert f"valid_{METRICS[task]}" in found.scores()
    with Loader(packed, "train") as loader, pytest.raises(KeyboardInterrupt):
        train(Interrupting(loader, 4), valid_source=Kept(packed, "valid"), model=model, checkpoint=tmp_path / "c",
              metrics=tmp_path / "parts.jsonl", **ARGUMENTS)  # fmt: skip
    resumed = train(packed, model=model, checkpoint=tmp_path / "c", resume=True, metrics=tmp_path / "parts.jsonl",
                    **ARGUMENTS)  # fmt: skip
    assert [epoch.loss for epoch in resumed.epochs] == [epoch.loss for epoch in expected.epochs]
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])
    counted = ("read_bytes", "hit_rate_cpu", "hit_rate_pinned", "hit_rate_device")
    parts, whole = ([{key: value for key, value in record.items() if key not in counted} for record in records(path)]
                    for path in (tmp_path / "parts.jsonl", tmp_path / "whole.jsonl"))  # fmt: skip
    assert parts == whole


def test_the_commands_train_and_evaluate(tmp_path):
    packed = packed_directory(tmp_path, "regression")
    arguments = ["train", str(packed), "--hidden", "8", "--epochs", "2", "--loss", "l1", "--checkpoint",
                 str(tmp_path / "checkpoint"), "--json"]  # fmt: skip
    trained = CliRunner().invoke(main, arguments)
    assert trained.exit_code == 0, trained.output
    document = json.loads(trained.stdout)
    assert "valid mae" in trained.stderr
    found = CliRunner().invoke(main, ["evaluate", str(packed), "--checkpoint", str(tmp_path / "checkpoint"), "--split",
                                      "valid", "--json"])  # fmt: skip
    assert json.loads(found.stdout)["mae"] == document["valid_mae"]
    assert json.loads(found.stdout)["loss"] == document["valid_mae"]  # l1
    refused = CliRunner().invoke(main, ["train", str(packed), "--task", "link"])
    assert refused.exit_code != 0
    assert "expected regression, which the minibatches were sampled for" in refused.stderr


@pytest.mark.parametrize(
    "sampling",
    [
        {"target": LinkTarget(WRITES, negatives=2)},
        {"fanouts": {WRITES: [2, 2], CITES: [3, 0]}, "draws": "coordinated", "draw_period": 2},
    ],
)
def test_fresh_epochs_of_typed_graphs_are_learnt_as_in_memory(tmp_path, sampling):
    graph = write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
    options = {"fanouts": [3, 2], "batch_size": 8, "seed": 1, **sampling}
    with InMemory(graph, **options) as online:
        expected = train(online, hidden=8, epochs=3)
    with FreshEpochs(graph, tmp_path, cpu_cache="20%", num_epochs=3, window=2, **options) as fresh:
        found = train(fresh, hidden=8, epochs=3)
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in expected.epochs]
