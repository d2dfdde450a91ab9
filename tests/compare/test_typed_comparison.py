"""Comparisons on graphs of several types: who can take them does the same work, the others say why not."""

import json

import pytest
import torch
from click.testing import CliRunner
from graphs import make_graph
from typed_batches import WRITES, TypedGraph, schema
from typed_directories import write_typed_graph

from diskgnn.cli import main
from diskgnn.compare.comparison_record import from_json
from diskgnn.compare.given_seeds import trained_seeds
from diskgnn.compare.limited_graph import make_training_graph
from diskgnn.compare.loader_setup import LoaderInputs
from diskgnn.compare.metric import Metric
from diskgnn.compare.variants import LOADERS, TYPES, find
from diskgnn.errors import ConfigError
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import TARGET_KINDS
from diskgnn.specs.targets import LinkTarget
from diskgnn.training.criterion import Criterion
from diskgnn.training.task import task_of

VARIANTS = [variant for variants in LOADERS.values() for variant in variants]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return write_typed_graph(tmp_path_factory.mktemp("typed") / "graph", TypedGraph(dtype=torch.float32))


def input_rows(variant, graph, folder):
    """The seeds of each minibatch of epoch 0, and the rows that it needs by type; whatever their order."""
    given = LoaderInputs(str(graph.manifest.path), str(folder), SamplingSpec([3, 2], 8), 1 << 10, 1 << 30)
    if variant.prepare is not None:
        variant.prepare(given)
    with variant.open(given) as source:
        return sorted(
            (sorted(batch.seeds.tolist()), {name: sorted(x.tolist()) for name, x in sorted(batch.x.items())})
            for batch in source.epoch(0)
        )


def test_who_takes_typed_graphs_loads_the_same_rows(graph, tmp_path):
    taking = [variant for variant in VARIANTS if TYPES not in variant.lacks and not variant.has_own_model]
    assert {"in-memory", "mmap", "cached-reads", "diskgnn"} <= {variant.loader for variant in taking}
    expected = input_rows(find("in-memory", ""), graph, tmp_path)
    assert len(expected) == 3
    for variant in taking:
        assert input_rows(variant, graph, tmp_path / variant.name) == expected


@pytest.mark.parametrize(
    "variant",
    [one for one in VARIANTS if TYPES in one.lacks and one.loader not in ("pyg", "dgl", "graphbolt")],
    ids=lambda one: one.name,
)
def test_who_says_that_it_cannot_is_right(graph, tmp_path, variant):
    with pytest.raises(ConfigError, match="typed graph"):
        input_rows(variant, graph, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_servers")
def test_links_with_fanouts_by_type_and_coordinated_draws(graph, tmp_path):
    """Who can is scored by MRR and bounded by Belady; who cannot is a row that says why."""
    out, report = tmp_path / "out.json", tmp_path / "report.html"
    arguments = ["compare", graph.manifest.path, "--memory", "1GiB", "--target", "author:writes:paper",
                 "--fanouts", "author:writes:paper=3,2", "--fanouts", "paper:rev_writes:author=2,2",
                 "--negatives", 2, "--eval-negatives", 5, "--draws", "coordinated", "--batch-size", 8,
                 "--loaders", "diskgnn:one,ginex", "--max-batches", 2, "--cpu-cache", "20%", "--hidden", 4,
                 "--size", "1MiB", "--sweep", "cpu-cache=50%", "--out", out, "--report", report]  # fmt: skip
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    comparison = from_json(json.loads(out.read_text()))
    mine, ginex = comparison.results
    assert (mine.status, mine.training.minibatches, mine.metric) == ("ok", 2, Metric("mrr"))
    assert 0 < mine.epochs[0].test_score <= 1
    assert 0 < mine.belady_rows <= mine.loading.disk_rows + mine.loading.filled_rows
    assert comparison.settings["draws"] == "coordinated"
    assert comparison.settings["target"]["edge_type"] == "author:writes:paper"
    assert ginex.status == "unavailable"
    assert ginex.message.startswith("this graph has several types: Ginex caches")
    assert ginex.message in report.read_text()
    assert f"{mine.epochs[0].test_score:.4f}" in result.output
    assert {point.name for point in comparison.sweep} >= {"diskgnn", "static cache, packed"}


@pytest.mark.parametrize(
    ("sampling", "loader", "reason"),
    [
        ({"temporal": "uniform"}, ("pyg", ""), "draws have times: the adapter of PyG's loader draws uniformly"),
        ({"draws": "coordinated"}, ("dgl", "threads"), "draws are coordinated: the adapter of DGL's"),
        ({"draws": "coordinated"}, ("ginex", ""), ""),
        ({"target": LinkTarget(WRITES)}, ("ginex", ""), "seeds are links: its superbatches"),
        ({"weighted": True}, ("diskgnn", "one"), ""),
        ({"without": ["node.age"]}, ("pyg", ""), "columns are left out: the adapter of PyG's loader delivers whole"),
        ({"without": ["node.age"]}, ("static-packed", "segmented"), "columns are left out: segments hold whole rows"),
        ({"without": ["node.age"]}, ("mmap", "random"), ""),
    ],
)
def test_what_one_type_does_not_help_is_refused_too(tmp_path, sampling, loader, reason):
    plain = make_graph(tmp_path / "graph")
    refusal = find(*loader).refusal(plain, SamplingSpec([2], 8, **sampling))
    assert refusal.startswith(reason)
    assert bool(refusal) == bool(reason)


def test_the_metric_is_that_by_which_the_task_chooses_epochs():
    for kind in (*TARGET_KINDS, "link"):
        minibatches = schema(target=WRITES if kind == "link" else "paper", kind=kind)
        criterion = Criterion.of(task_of(minibatches).metrics)
        assert Metric.of(minibatches) == Metric(criterion.name, criterion.higher_is_better)
    with pytest.raises(ConfigError, match=r"best_by: expected one of mrr, hits@1, hits@3, hits@10"):
        Metric.of(minibatches, "roc_auc")


def test_limited_graphs_train_on_seeds_of_the_first_minibatches(graph, tmp_path):
    spec = SamplingSpec([2], 8, target=LinkTarget(WRITES))
    small = make_training_graph(graph, tmp_path / "small", WRITES, trained_seeds(graph, spec, max_batches=3)["seeds"])
    kept = small.edges[WRITES].splits
    assert list(kept) == ["train"]
    assert kept["train"].shape == (24, 2)
    seeds = {tuple(pair) for pair in graph.edges[WRITES].splits["train"].tolist()}
    assert {tuple(pair) for pair in kept["train"].tolist()} <= seeds
    assert list(small.nodes["paper"].splits) == list(graph.nodes["paper"].splits)
