"""Synthetic graphs with types: what was asked for, the same bytes whatever the machine, and edges within classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from diskgnn.errors import ConfigError
from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.artifact_description import describe
from diskgnn.graph.graph import Graph
from diskgnn.importers.generating import generate_typed
from diskgnn.importers.generating_spec import read_spec

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def schema() -> dict[str, Any]:
    return {
        "classes": 6,
        "nodes": {
            "paper": {"num_nodes": 3001, "features": 9, "dtype": "float16", "labels": "class", "train": 0.2,
                      "valid": 0.1, "times": [1990, 2020]},
            "author": {"num_nodes": 20_000, "labels": "multilabel", "test": 0.5},
            "venue": {"num_nodes": 12, "features": 3, "dtype": "int8", "labels": "regression", "train": 1},
        },
        "edges": {
            "author:writes:paper": {"num_edges": 20_000, "reverse": True, "homophily": 0.8, "weights": True,
                                    "times": [5, 9], "features": 2},
            "paper:cites:paper": {"num_edges": 30_000, "homophily": 0.3},
            "paper:in:venue": {"num_edges": 3000},
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("typed") / "graph"
    generate_typed(path, schema(), seed=3)
    verify_artifact(path)
    return Graph.open(path)


def test_all_is_there(graph: Graph) -> None:
    paper, author, venue = graph.nodes.values()
    assert (paper.num_nodes, author.num_nodes, venue.num_nodes) == (3001, 20_000, 12)
    assert [nodes.config.target for nodes in graph.nodes.values()] == [
        TargetConfig("class", 6), TargetConfig("multilabel", 6), TargetConfig("regression", 1)]  # fmt: skip
    assert (paper.features.dtype, paper.features.shape, venue.features.dtype) == (np.float16, (3001, 9), np.int8)
    assert author.feature_file is None
    assert (paper.times.min(), paper.times.max()) == (1990, 2020)
    assert {split: len(nodes) for split, nodes in paper.splits.items()} == {"train": 600, "valid": 300}
    assert not {*paper.splits["train"]} & {*paper.splits["valid"]}
    assert author.labels.sum(axis=1).mean() == pytest.approx(1 + 5 * 0.05, abs=0.02)
    np.testing.assert_array_equal(np.bincount(paper.labels).max() - np.bincount(paper.labels).min(), 1)
    writes = graph.edges[WRITES]
    assert (writes.weights.min() >= 0.5, writes.weights.max() <= 1.5) == (True, True)
    assert {*np.unique(writes.times)} == {5, 6, 7, 8, 9}
    assert writes.features.std() == pytest.approx(1, abs=0.02)


def test_edges_stay_within_classes_as_often_as_asked(graph: Graph) -> None:
    """Drawn with the share, and by chance a sixth of the rest would; others lead to other classes."""
    paper, cites = graph.nodes["paper"], graph.edges[CITES]
    ends = np.repeat(np.arange(paper.num_nodes), np.diff(cites.indptr))
    assert (paper.labels[cites.indices] == paper.labels[ends]).mean() == pytest.approx(0.3, abs=0.02)
    assert (cites.indices != ends).all()
    # Authors' classes are among their labels.
    writes, author = graph.edges[WRITES], graph.nodes["author"]
    ends = np.repeat(np.arange(paper.num_nodes), np.diff(writes.indptr))
    shares = author.labels[writes.indices, paper.labels[ends]].mean()
    assert shares == pytest.approx(0.8 + 0.2 * 0.05, abs=0.02)
    degrees = np.diff(cites.indptr)
    assert degrees.max() > 10 * degrees.mean()


def test_the_reverse_type_has_the_same_edges(graph: Graph) -> None:
    forward, backward = graph.edges[WRITES], graph.edges[("paper", "rev_writes", "author")]

    def sorted_edges(edges: Any, turned: bool) -> list[Any]:
        ends = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        pair = (ends, edges.indices) if turned else (edges.indices, ends)
        return sorted(zip(*(part.tolist() for part in (*pair, edges.weights, edges.times)), strict=True))

    assert sorted_edges(forward, False) == sorted_edges(backward, True)


def test_bytes_depend_on_the_seed_alone(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema(), sort_keys=False))
    generate_typed(tmp_path / "small", tmp_path / "schema.yaml", seed=3, memory="2MiB", threads=1)
    generate_typed(tmp_path / "other", schema(), seed=4, threads=3)
    assert Graph.open(tmp_path / "small").manifest.digest == graph.manifest.digest
    assert Graph.open(tmp_path / "other").manifest.digest != graph.manifest.digest


def test_inspect_says_what_types_have(graph: Graph) -> None:
    facts = describe(graph.manifest.path).facts
    assert (facts["nodes"], facts["edges"]) == (23_013, 73_000)
    paper, author, _ = facts["node_types"]
    assert (paper["type"], paper["features"], paper["labels"], paper["times"], paper["train"]) == (
        "paper", "9 x float16", "class (6)", True, 600)  # fmt: skip
    assert (author["features"], author["feature_bytes"], author["test"]) == ("", 0, 10_000)
    writes = facts["edge_types"][0]
    assert (writes["type"], writes["edges"], writes["features"]) == ("author:writes:paper", 20_000, "2 x float32")
    assert (writes["weights"], writes["times"], writes["ids"], writes["train_links"]) == (True, True, False, 0)


def test_mag240m_has_its_proportions() -> None:
    spec = read_spec(Path(__file__).parents[2] / "datasets" / "mag240m.yaml")
    assert spec.nodes["paper"].num_nodes == round(0.04 * 121_751_666)
    assert (spec.nodes["paper"].features, spec.nodes["paper"].dtype) == (768, "float16")
    assert sum(2 if edges.reverse else 1 for edges in spec.edges.values()) == 5


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, True, "a"])
def test_seeds_have_64_bits(tmp_path: Path, seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"seed: expected a number from 0 to 2\^64 - 1, found "):
        generate_typed(tmp_path / "graph", schema(), seed=seed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("part", "name", "keys", "message"),
    [
        ("nodes", "paper", {"num_nodes": 11}, "node type paper: expected at least 2 nodes for each of 6 classes"),
        ("nodes", "paper", {"size": 11}, "node type paper: expected the keys .*; found 'size'"),
        ("nodes", "paper", {"labels": "link"}, "node type paper: labels: expected one of class"),
        ("nodes", "paper", {"train": 0.95}, "node type paper: expected shares"),
        ("nodes", "paper", {"dtype": "int4"}, "node type paper: expected a dtype of float32"),
        ("nodes", "paper", {"times": [3, 1]}, r"node type paper: times: expected \[first, last\]"),
        ("nodes", "paper", {"times": 3}, "node type paper: times: expected tuple"),
        ("edges", "paper:in:shop", {"num_edges": 3}, "edge type paper:in:shop: .* found 'shop'"),
        ("edges", "paper:in:venue", {"num_edges": -1}, "edge type paper:in:venue: expected 0 edges or more"),
        ("edges", "paper:rev_writes:author", {"num_edges": 1}, "reverse would add a type that is there already"),
        ("edges", "venue:of:paper", {}, "edge type venue:of:paper: expected num_edges"),
    ],
)
def test_what_cannot_be_made(tmp_path: Path, part: str, name: str, keys: dict[str, Any], message: str) -> None:
    described = schema()
    described[part].setdefault(name, {}).update(keys)
    with pytest.raises(ConfigError, match=message):
        generate_typed(tmp_path / "graph", described)
    assert list(tmp_path.iterdir()) == []
