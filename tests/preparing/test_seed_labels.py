"""Labels of seeds that are given: a node asked at several times has another label each time, as in RelBench's tasks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from typed_graphs import citations

from diskgnn import Loader, SamplingSpec, prepare
from diskgnn.baselines.in_memory import in_memory_sources
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.formats.packed import Packed
from diskgnn.importers.convert import convert
from diskgnn.preparing.repair import repair
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.resources import Resources
from diskgnn.training.evaluate import evaluate
from diskgnn.training.train import train

COMMON = {"fanouts": [3, 2], "batch_size": 8, "seed": 5, "temporal": "uniform"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return citations(tmp_path_factory.mktemp("labels") / "graph")


def asked(kind, *, seed=3):
    """Authors, who have no labels of their own, again and again, at times of their own."""
    random = np.random.default_rng(seed)
    sizes = {"train": 60, "valid": 21}
    shapes = {"class": lambda n: random.integers(0, 4, n), "regression": lambda n: random.random(n),
              "multilabel": lambda n: random.integers(0, 2, (n, 3)),
              "several numbers": lambda n: random.random((n, 2))}  # fmt: skip
    seeds = {split: random.integers(0, 10, size) for split, size in sizes.items()}
    times = {split: np.arange(size) % 19 for split, size in sizes.items()}
    return NodeTarget("author", seeds, times, {split: shapes[kind](size) for split, size in sizes.items()})


def test_an_account_by_hand(tmp_path):
    """Account 0 is asked at times 1 and 5, account 1 at time 5. One payment comes at time 3."""
    schema = {
        "nodes": {"account": {"num_nodes": 2}, "payment": {"features": np.ones((1, 1), np.float32), "times": [3]}},
        "edges": {"payment:to:account": {"edges": np.array([[0], [0]])}},
    }
    convert(tmp_path / "graph", schema=schema)
    target = NodeTarget("account", {"train": [0, 0, 1]}, {"train": [1, 5, 5]}, {"train": [0, 1, 0]})
    options = {"fanouts": [1], "batch_size": 3, "temporal": "uniform", "shuffle": False, "cpu_cache": 0}
    prepare(tmp_path / "graph", tmp_path / "packed", target=target, **options)
    with Loader(tmp_path / "packed") as loader:
        (batch,) = loader
    assert batch.seeds.tolist() == [0, 0, 1]
    assert batch.y.tolist() == [0, 1, 0]
    (block,) = (layer["payment", "to", "account"] for layer in batch.blocks)
    assert np.diff(block.indptr).tolist() == [0, 1, 0]  # the payment is seen at time 5 alone


@pytest.mark.parametrize("kind", ["class", "multilabel", "regression", "several numbers"])
def test_each_seed_has_its_own_label(graph, tmp_path, kind):
    target = asked(kind)
    prepare(graph, tmp_path / "packed", target=target, epochs=2, cpu_cache="10%", **COMMON)
    config = Packed.open(tmp_path / "packed").config.target
    assert (config.kind, config.num_outputs) == {
        "class": ("class", 4), "multilabel": ("multilabel", 3), "regression": ("regression", 1),
        "several numbers": ("regression", 2),
    }[kind]  # fmt: skip
    known = {}  # by node and time, of which there are several
    for split in target.seeds:
        for node, time, label in zip(target.seeds[split], target.times[split], target.labels[split], strict=True):
            known.setdefault((split, node, time), []).append(np.ravel(label).tolist())
    plan = SamplingPlan(graph, SamplingSpec(target=target, epochs=2, **COMMON))
    sources = in_memory_sources(graph, target=target, **COMMON)
    for split, epochs in (("train", 2), ("valid", 1)):
        with Loader(tmp_path / "packed", split) as loader:
            for epoch in range(epochs):
                batches = list(loader.epoch(epoch))
                for batch, planned in zip(batches, plan.minibatches(split, epoch), strict=True):
                    assert batch.seeds.tolist() == planned.seeds.tolist()
                    rows = batch.y.reshape(len(batch.seeds), -1).tolist()
                    for node, time, label in zip(planned.seeds.tolist(), planned.times.tolist(), rows, strict=True):
                        assert label in known[split, node, time]
                    assert torch.equal(batch.to_pyg()["author"].y, batch.y)
                taken = np.concatenate([planned.places for planned in plan.minibatches(split, epoch)])
                assert sorted(taken.tolist()) == list(range(len(target.seeds[split])))
                expected = target.labels[split][taken]
                assert np.array_equal(torch.cat([batch.y for batch in batches]).reshape(expected.shape), expected)
                online = list(sources[f"{split}_source"].epoch(epoch))
                for batch, same in zip(batches, online, strict=True):
                    assert torch.equal(batch.y, same.y)
    for source in sources.values():
        source.close()


@pytest.mark.parametrize("kind", ["class", "regression"])
def test_training_from_disk_is_that_in_memory(graph, tmp_path, kind):
    target = asked(kind)
    prepare(graph, tmp_path / "packed", target=target, epochs=2, cpu_cache="10%", **COMMON)
    options = {"epochs": 2, "hidden": 8, "seed": 1}
    on_disk = train(tmp_path / "packed", **options)
    sources = in_memory_sources(graph, target=target, **COMMON)
    in_memory = train(**sources, **options)
    assert [epoch.loss for epoch in on_disk.epochs] == [epoch.loss for epoch in in_memory.epochs]
    found = evaluate(on_disk.model, tmp_path / "packed", split="valid")
    assert found.num_seeds == 21
    online = evaluate(in_memory.model, sources["valid_source"])
    assert (found.loss, found.scores) == (online.loss, online.scores)


def test_damage_is_repaired_with_the_labels_that_are_kept(graph, tmp_path):
    prepare(graph, tmp_path / "packed", target=asked("class"), cpu_cache="10%", samples=tmp_path / "samples", **COMMON)
    path = tmp_path / "packed" / "train.bin"
    content = path.read_bytes()
    path.write_bytes(content[:300] + bytes([content[300] ^ 1]) + content[301:])
    (found,) = repair(tmp_path / "packed", graph=graph, resources=Resources(1 << 30, threads=1))
    assert (found.file, path.read_bytes() == content) == ("train.bin", True)
    np.save(tmp_path / "samples" / "labels-train.npy", asked("class", seed=4).labels["train"])
    with pytest.raises(ArtifactError, match=r"labels-train\.npy"):
        prepare(graph, tmp_path / "other", target=asked("class"), cpu_cache="10%", samples=tmp_path / "samples",
                **COMMON)  # fmt: skip


ONE = {"train": [1, 2]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NodeTarget("author", labels=ONE), "labels: expected the seeds that they are of"),
        (lambda: NodeTarget("author", ONE, labels={"train": [1]}), r"labels: expected one for each seed"),
        (lambda: NodeTarget("author", ONE, labels={"test": [1, 1]}), r"labels: expected one for each seed"),
        (lambda: NodeTarget("author", ONE, labels={"train": [0, -1]}), "expected classes of 0 or more, found -1"),
        (lambda: NodeTarget("author", ONE, labels={"train": ["a", "b"]}), r"expected numbers \[n\] or \[n, C\]"),
        (lambda: NodeTarget("author", ONE, labels={"train": [[0, 2], [1, 1]]}), "expected 0 and 1 for each of 2"),
        (lambda: NodeTarget("author", ONE, labels={"train": [0.5, np.inf]}), "expected finite numbers"),
        (lambda: NodeTarget("author", {"train": [1], "test": [1]}, labels={"train": [1], "test": [0.5]}), "same kind"),
        (lambda: NodeTarget("author", ONE, labels={"train": [0, 5]}, num_classes=3), "classes below 3"),
        (lambda: NodeTarget("author", ONE, num_classes=3), "num_classes: expected the `labels`"),
        (lambda: NodeTarget("author", {"train": [4, 4]}, labels=ONE), r"expected each node once in seeds\['train'\]"),
    ],
)  # fmt: skip
def test_labels_that_are_none_are_refused(graph, tmp_path, make, message):
    with pytest.raises(ConfigError, match=message):
        prepare(graph, tmp_path / "out", target=make(), fanouts=[2], batch_size=2, cpu_cache="10%")
    assert list(tmp_path.iterdir()) == []
