"""Comparisons on graphs of several types: who can take them does the same work, the others say why not."""

import json

import pytest
import torch
from click.testing import CliRunner
from typed_batches import TypedGraph
from typed_directories import write_typed_graph

from diskgnn.cli import main
from diskgnn.compare.loader_setup import LoaderInputs
from diskgnn.compare.registry import LOADERS, find
from diskgnn.errors import ConfigError
from diskgnn.specs import SamplingSpec

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
    taking = [variant for variant in VARIANTS if not variant.one_type]
    assert {"in-memory", "mmap", "cached-reads", "diskgnn"} <= {variant.loader for variant in taking}
    expected = input_rows(find("in-memory", ""), graph, tmp_path)
    assert len(expected) == 3
    for variant in taking:
        assert input_rows(variant, graph, tmp_path / variant.name) == expected


@pytest.mark.parametrize(
    "variant",
    [one for one in VARIANTS if one.one_type and one.loader not in ("pyg", "dgl", "graphbolt")],
    ids=lambda one: one.name,
)
def test_who_says_that_it_cannot_is_right(graph, tmp_path, variant):
    with pytest.raises(ConfigError, match="typed graph"):
        input_rows(variant, graph, tmp_path)


@pytest.mark.slow
def test_a_loader_that_cannot_is_a_row_with_the_reason(graph, tmp_path):
    out, report = tmp_path / "out.json", tmp_path / "report.html"
    arguments = ["compare", graph.manifest.path, "--memory", "1GiB", "--fanouts", "3,2", "--batch-size", 8,
                 "--loaders", "cached-reads:lru,ginex", "--max-batches", 1, "--hidden", 4, "--size", "1MiB",
                 "--no-evaluate", "--out", out, "--report", report]  # fmt: skip
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    cached, ginex = json.loads(out.read_text())["results"]
    assert (cached["status"], cached["training"]["minibatches"]) == ("ok", 1)
    assert ginex["status"] == "unavailable"
    assert ginex["message"].startswith("this graph has several types: Ginex caches")
    assert ginex["message"] in report.read_text()
