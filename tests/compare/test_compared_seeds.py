"""Comparisons on seeds in tables: their own nodes, times and labels, in place of those of the graph."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from comparisons import write_learnable_graph
from pyarrow import parquet

from diskgnn.cli import main
from diskgnn.compare.compare import compare
from diskgnn.compare.comparison_record import from_json
from diskgnn.compare.given_seeds import trained_seeds, training_target
from diskgnn.compare.loader_setup import LoaderInputs
from diskgnn.compare.settings import ComparisonSettings
from diskgnn.compare.variants import GIVEN, LOADERS
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import NodeTarget

VARIANTS = [one for variants in LOADERS.values() for one in variants]
OTHERS = {"pyg", "graphbolt"}  # whose samplers are not there


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("given") / "graph"
    write_learnable_graph(path)
    return Graph.open(path)


@pytest.fixture(scope="module")
def seeds():
    """Nodes by split: of no split of the graph."""
    nodes = np.random.default_rng(5).permutation(3000)
    return {"train": nodes[:600], "valid": nodes[600:800], "test": nodes[800:1000]}


def labels_of(graph, nodes):
    """Two classes, which those of the graph tell."""
    return (np.asarray(graph.labels)[nodes] % 2).astype(np.int64)


def inputs(graph, seeds, folder):
    """As a step's process has them, with two minibatches' seeds."""
    labels = {split: labels_of(graph, nodes) for split, nodes in seeds.items()}
    target = NodeTarget("node", seeds=seeds, labels=labels, num_classes=5)
    trained = trained_seeds(graph, SamplingSpec([3], 32, target=target), 2)
    target = training_target(target, trained)
    given = LoaderInputs(str(graph.manifest.path), str(folder), SamplingSpec([3], 32, target=target), 1 << 14, 1 << 30)
    return pickle.loads(pickle.dumps(given))


@pytest.mark.parametrize("variant", [one for one in VARIANTS if one.loader not in OTHERS], ids=lambda one: one.name)
def test_who_takes_given_seeds_has_their_labels(graph, seeds, tmp_path, variant):
    if variant.loader == "dgl":
        pytest.importorskip("dgl")
    given = inputs(graph, seeds, tmp_path / "own")
    (tmp_path / "own").mkdir()
    if refusal := variant.refusal(graph, given.sampling):
        assert GIVEN in variant.lacks
        assert refusal == f"seeds are given: {variant.lacks[GIVEN]}"
        return
    if variant.prepare is not None:
        variant.prepare(given)
    with variant.open(given) as source:
        batches = list(source.epoch(0))
        assert source.schema.num_outputs == 5
    nodes = np.concatenate([batch.seeds.numpy() for batch in batches])
    assert len(batches) == 2
    assert len(set(nodes.tolist())) == 64
    assert set(nodes.tolist()) <= set(seeds["train"].tolist())
    np.testing.assert_array_equal(np.concatenate([batch.y.numpy() for batch in batches]), labels_of(graph, nodes))


def test_a_partition_buffer_does_not_take_the_splits_of_the_graph_instead(graph, seeds, tmp_path):
    given = inputs(graph, seeds, tmp_path / "own")
    for variant in LOADERS["partition-buffer"]:
        variant.prepare(given)
        with pytest.raises(ConfigError, match="seeds: partition-buffer takes those of the graph's splits"):
            variant.open(given)
        break


def test_the_same_node_at_several_times_keeps_its_labels(graph):
    target = NodeTarget(
        "node", seeds={"train": [7, 7, 8, 9]}, times={"train": [1, 2, 3, 4]}, labels={"train": [0, 1, 2, 3]}
    )
    spec = SamplingSpec([2], 3, target=target, temporal="last")
    with pytest.raises(ConfigError, match="times"):
        trained_seeds(graph, SamplingSpec([2], 3, target=target), 1)
    found = trained_seeds(graph, spec, 1)
    rows = set(zip(*(found[name].tolist() for name in ("seeds", "times", "labels")), strict=True))
    assert len(rows) == 3
    assert rows < {(7, 1, 0), (7, 2, 1), (8, 3, 2), (9, 4, 3)}


@pytest.mark.usefixtures("forked_servers")
def test_a_score_that_cannot_be_measured_is_refused_before_anything_is(graph, seeds):
    """Labels of the valid seeds are all 1; or nothing is evaluated; or there is no such split."""
    ones = {split: np.ones(len(nodes), np.int64) for split, nodes in seeds.items()}

    def settings(*splits, **arguments):
        given = ({split: each[split] for split in splits} for each in (seeds, ones))
        target = NodeTarget("node", **dict(zip(("seeds", "labels"), given, strict=True)))
        return ComparisonSettings("1GiB", SamplingSpec([3], 32, target=target), best_by="roc_auc", **arguments)

    with pytest.raises(ConfigError, match=r"best_by: roc_auc needs seeds of both classes .* found only \[1\]"):
        compare(graph.manifest.path, settings("train", "valid"))
    with pytest.raises(ConfigError, match="best_by: expected a validation split"):
        compare(graph.manifest.path, settings("train", "test"))
    with pytest.raises(ConfigError, match=r"best_by: .* found evaluate=False"):
        settings("train", "valid", evaluate=False)
    arguments = ["compare", str(graph.manifest.path), "--memory", "1GiB", "--fanouts", "3", "--best-by", "accuracy"]
    assert "--best-by: expected scores" in (told := CliRunner().invoke(main, [*arguments, "--no-evaluate"]).stderr)
    assert "found --no-evaluate" in told


@pytest.mark.slow
@pytest.mark.usefixtures("forked_servers")
def test_a_table_of_seeds_is_compared(graph, seeds, tmp_path):
    path, out, report = tmp_path / "seeds.parquet", tmp_path / "out.json", tmp_path / "page.html"
    split = np.repeat(list(seeds), [len(nodes) for nodes in seeds.values()])
    nodes = np.concatenate(list(seeds.values()))
    parquet.write_table(pa.table({"id": nodes, "of": split, "odd": labels_of(graph, nodes)}), path)
    arguments = ["compare", graph.manifest.path, "--memory", "1GiB", "--fanouts", "3", "--batch-size", 32,
                 "--target-seeds", path, "--target-column", "split=of", "--target-column", "label=odd",
                 "--loaders", "in-memory,diskgnn:one,partition-buffer:comet", "--max-batches", 4, "--hidden", 8,
                 "--size", "1MiB", "--out", out, "--report", report]  # fmt: skip
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    comparison = from_json(json.loads(out.read_text()))
    mine, buffer, memory = comparison.results
    assert (mine.status, memory.status, buffer.status) == ("ok", "ok", "unavailable")
    assert buffer.message.startswith("seeds are given: its seeds are those of the partitions")
    assert comparison.graph["num_train"] == 128
    assert (comparison.graph["num_train_in_all"], comparison.graph["num_test"]) == (600, 200)
    (point,), (same,) = mine.epochs, memory.epochs
    assert point.scores == pytest.approx(same.scores)
    assert set(point.scores) == {f"{split}_{name}" for split in ("valid", "test")
                                 for name in ("accuracy", "average_precision", "roc_auc")}  # fmt: skip
    assert f"{point.scores['test_roc_auc']:.4f}" in result.output
    assert f"{point.scores['test_average_precision']:.4f}" in report.read_text()
