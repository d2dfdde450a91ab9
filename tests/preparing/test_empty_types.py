"""Types and splits that are empty, or that no minibatch reaches, from conversion to inference; or refused at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskgnn
from diskgnn import FreshEpochs, Loader
from diskgnn.errors import InputError
from diskgnn.formats.verification import verify_artifact
from diskgnn.specs.targets import LinkTarget

PAPERS, AUTHORS = 60, 30
READS = ("author", "reads", "paper")
SAMPLING = {"temporal": "ignore", "fanouts": [3, 3], "batch_size": 8}
Graph = dict[str, dict[str, dict[str, Any]]]


def described() -> Graph:
    """Authors write papers, which cite papers."""
    rng = np.random.default_rng(0)
    paper = {
        "features": rng.random((PAPERS, 4), np.float32), "labels": rng.integers(0, 3, PAPERS),
        "train": np.arange(30), "valid": np.arange(30, 40), "test": np.arange(40, 50),
    }  # fmt: skip
    writes = np.stack([rng.integers(0, AUTHORS, 100), rng.integers(0, PAPERS, 100)])
    return {
        "nodes": {"paper": paper, "author": {"features": rng.random((AUTHORS, 3), np.float32)}},
        "edges": {
            "author:writes:paper": {"edges": writes},
            "paper:cites:paper": {"edges": rng.integers(0, PAPERS, (2, 150))},
        },
    }


def no_edges(dtype: str = "float32") -> dict[str, Any]:
    return {"edges": np.empty((2, 0), np.int64), "features": np.empty((0, 2), dtype)}


def of_a_type(graph: Graph) -> None:
    graph["edges"]["author:reads:paper"] = no_edges()


def of_narrow_features(graph: Graph) -> None:
    graph["edges"]["author:reads:paper"] = no_edges("int8")


def of_all_that_edges_carry(graph: Graph) -> None:
    more = {"weights": np.empty(0, np.float32), "times": np.empty(0, np.int64), "keep_ids": True, "reverse": True}
    graph["edges"]["author:reads:paper"] = no_edges() | more


def of_every_type(graph: Graph) -> None:
    graph["edges"] = {name: no_edges() for name in graph["edges"]}


def and_no_other_features(graph: Graph) -> None:
    of_a_type(graph)
    del graph["nodes"]["paper"]["features"]
    graph["nodes"]["author"] = {"num_nodes": AUTHORS}


def unreached_rows(graph: Graph) -> None:
    """Edges and nodes with features, of which no minibatch ever has any."""
    graph["nodes"]["venue"] = {"features": np.ones((4, 5), np.float32)}
    published = {"edges": np.array([[1, 2], [0, 3]]), "features": np.ones((2, 2), np.float32)}
    graph["edges"]["paper:at:venue"] = published


def one_seed_each(graph: Graph) -> None:
    graph["nodes"]["paper"] |= {"train": np.array([3]), "valid": np.array([4]), "test": np.array([5])}


@pytest.mark.parametrize(
    "empty",
    [
        of_a_type, of_narrow_features, of_all_that_edges_carry, of_every_type, and_no_other_features, unreached_rows,
        one_seed_each,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*(no edges|times)")
def test_from_conversion_to_inference(tmp_path: Path, empty: Callable[[Graph], None]) -> None:
    schema, graph, packed = described(), tmp_path / "graph", tmp_path / "packed"
    empty(schema)
    diskgnn.convert(graph, schema=schema)
    diskgnn.estimate(graph, packed, cpu_cache="10%", max_seconds=0, **SAMPLING)
    diskgnn.prepare(graph, packed, epochs=2, cpu_cache="10%", static_cache="3%", edge_ids=True, **SAMPLING)
    for artifact in (graph, packed):
        verify_artifact(artifact)
    for split in ("train", "valid", "test"):
        with Loader(packed, split) as loader:
            for batch in loader:
                for block in (blocks[READS] for blocks in batch.blocks if READS in blocks):
                    assert (block.num_edges, tuple(block.edge_x.shape)) == (0, (0, 2))
    with FreshEpochs(graph, tmp_path, cpu_cache="10%", **SAMPLING) as fresh:
        assert len(list(fresh.epoch(0))) == fresh.num_batches
    diskgnn.train(packed, epochs=1, hidden=4, model="rgcn", checkpoint=tmp_path / "run")
    diskgnn.infer(graph, tmp_path / "all.npy", tmp_path / "run")
    diskgnn.predict(graph, tmp_path / "some.npy", tmp_path / "run", nodes=[1, 59])
    every, some = np.load(tmp_path / "all.npy"), np.load(tmp_path / "some.npy")
    assert every.shape == (PAPERS, 3)
    np.testing.assert_allclose(some, every[[1, 59]], rtol=1e-4, atol=1e-5)


def test_pairs_of_a_type_without_edges(tmp_path: Path) -> None:
    """Seeds of link prediction need not be edges of the graph."""
    schema = described()
    of_a_type(schema)
    schema["edges"]["author:reads:paper"]["train"] = np.array([[1, 2], [3, 4]])
    diskgnn.convert(tmp_path / "graph", schema=schema)
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", cpu_cache="10%", target=LinkTarget(READS, 2), **SAMPLING)
    with Loader(tmp_path / "packed", "train") as loader:
        (batch,) = loader
    assert batch.pairs.label.tolist() == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("venue", {"features": np.empty((0, 5), np.float32)}, "venue: expected at least one node, found none"),
        ("venue", {"num_nodes": 0}, "node type venue: expected at least one node, found none"),
        ("paper", {"train": np.empty(0, int)}, "train of node type paper: expected node ids, found none"),
        ("paper", {"valid": np.empty(0, int)}, "valid of node type paper: expected node ids, found none; leave it out"),
        ("author", {"features": np.empty((AUTHORS, 0), np.float32)}, "expected shape [N, D] with D of at least 1"),
    ],
)  # fmt: skip
def test_what_is_refused_at_once(tmp_path: Path, name: str, change: dict[str, Any], message: str) -> None:
    schema = described()
    schema["nodes"][name] = schema["nodes"].get(name, {}) | change
    with pytest.raises(InputError) as refused:
        diskgnn.convert(tmp_path / "graph", schema=schema)
    assert message in str(refused.value)
    assert not list(tmp_path.iterdir())
