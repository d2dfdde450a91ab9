"""Graphs with types, from a description: what the directory holds is what was given, in CSC order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from neighbor_order import order_hash

from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import EdgeInput, GraphInput, NodeInput, convert

PAPERS, AUTHORS, FIELDS = 30, 11, 5
WRITES, CITES, REV_WRITES = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "rev_writes", "author"),
)
COVERS = ("field", "covers", "paper")


def typed_data() -> dict[str, Any]:
    """A description in memory: every kind of data in some type."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, PAPERS)
    labels[20:] = -1
    return {
        "nodes": {
            "paper": {
                "features": rng.random((PAPERS, 7), np.float32).astype(np.float16), "labels": labels,
                "train": np.arange(12), "valid": np.arange(12, 20), "times": rng.integers(0, 9, PAPERS),
            },
            "author": {"num_nodes": AUTHORS, "labels": rng.random((AUTHORS, 2)), "task": "regression",
                       "train": np.arange(AUTHORS) % 2 == 0},
            "field": {"features": rng.integers(-9, 9, (FIELDS, 3)).astype(np.int8),
                      "labels": rng.integers(0, 2, (FIELDS, 4)), "task": "multilabel", "test": [4, 0]},
        },
        "edges": {
            "author:writes:paper": {
                "edges": np.stack([rng.integers(0, AUTHORS, 200), rng.integers(0, PAPERS, 200)]), "reverse": True,
                "keep_ids": True, "weights": rng.random(200) + 0.5, "times": rng.integers(0, 99, 200),
                "features": rng.random((200, 2), np.float32),
            },
            "paper:cites:paper": {"edges": rng.integers(0, PAPERS, (60, 2)), "symmetric": True, "keep_ids": True,
                                  "train": rng.integers(0, PAPERS, (2, 9)), "test": rng.integers(0, PAPERS, (4, 2))},
            "field:covers:paper": {"indptr": np.arange(PAPERS + 1), "indices": np.arange(PAPERS) % FIELDS},
        },
    }  # fmt: skip


def save(folder: Path, data: dict[str, Any]) -> Path:
    """The same as a folder of a graph.yaml and .npy files; the path of the folder."""
    description: dict[str, Any] = {}
    for part, types in data.items():
        for number, (name, keys) in enumerate(types.items()):
            for key, value in keys.items():
                if isinstance(value, np.ndarray):
                    np.save(folder / f"{part}-{number}-{key}.npy", value)
                    value = f"{part}-{number}-{key}.npy"
                description.setdefault(part, {}).setdefault(name, {})[key] = value
    (folder / "graph.yaml").write_text(yaml.safe_dump(description, sort_keys=False))
    return folder


def test_what_is_there_is_what_was_given(tmp_path: Path) -> None:
    data = typed_data()
    report = convert(tmp_path / "graph", schema=data, memory="1MiB")
    graph = Graph.open(tmp_path / "graph")
    verify_artifact(tmp_path / "graph")
    assert list(graph.nodes) == ["paper", "author", "field"]
    assert list(graph.edges) == [WRITES, REV_WRITES, CITES, COVERS]
    assert [nodes.number for nodes in graph.nodes.values()] == [0, 1, 2]
    paper, author, field = (graph.nodes[name] for name in ("paper", "author", "field"))
    assert (paper.num_nodes, author.num_nodes, field.num_nodes) == (PAPERS, AUTHORS, FIELDS)
    assert (paper.config.rows, author.feature_file, field.config.rows) == (
        RowFormat("float16", 7), None, RowFormat("int8", 3))  # fmt: skip
    assert [nodes.config.target for nodes in graph.nodes.values()] == [
        TargetConfig("class", 3), TargetConfig("regression", 2), TargetConfig("multilabel", 4)]  # fmt: skip
    for name, nodes in graph.nodes.items():
        given = data["nodes"][name]
        np.testing.assert_array_equal(nodes.labels, given["labels"].astype(nodes.labels.dtype))
        np.testing.assert_array_equal(nodes.labels_of(np.array([1, 3])), nodes.labels[[1, 3]])
        if "features" in given:
            np.testing.assert_array_equal(nodes.features, given["features"])
    assert (paper.labels.dtype, author.labels.dtype, field.labels.dtype) == (np.int64, np.float32, np.uint8)
    np.testing.assert_array_equal(paper.times, data["nodes"]["paper"]["times"])
    assert (author.times, field.times) == (None, None)
    assert {split: nodes.tolist() for split, nodes in author.splits.items()} == {"train": [0, 2, 4, 6, 8, 10]}
    assert {split: nodes.tolist() for split, nodes in field.splits.items()} == {"test": [4, 0]}
    assert report.details["num_edges of author:writes:paper"] == 200
    assert report.details["num_edges of paper:cites:paper"] == 120
    assert report.details["train of paper"] == 12


def test_what_edges_carry_is_in_their_order(tmp_path: Path) -> None:
    data = typed_data()
    convert(tmp_path / "graph", schema=data, memory="1MiB")
    graph = Graph.open(tmp_path / "graph")
    given = data["edges"]["author:writes:paper"]
    for edge_type, (src, dst) in ((WRITES, given["edges"]), (REV_WRITES, given["edges"][::-1])):
        edges = graph.edges[edge_type]
        order = np.lexsort((np.arange(200), order_hash(src), dst))
        np.testing.assert_array_equal(edges.edge_ids, order)
        np.testing.assert_array_equal(edges.indices, src[order])
        np.testing.assert_array_equal(np.diff(edges.indptr), np.bincount(dst, minlength=len(edges.indptr) - 1))
        np.testing.assert_array_equal(edges.weights, given["weights"].astype(np.float32)[order])
        np.testing.assert_array_equal(edges.times, given["times"][order])
        np.testing.assert_array_equal(edges.features, given["features"][order])
        assert edges.feature_file.num_rows == 200
    cites = graph.edges[CITES]
    assert sorted(cites.edge_ids) == sorted([*range(60), *range(60)])
    assert {split: pairs.tolist() for split, pairs in cites.splits.items()} == {
        "train": data["edges"]["paper:cites:paper"]["train"].T.tolist(),
        "test": data["edges"]["paper:cites:paper"]["test"].tolist(),
    }
    np.testing.assert_array_equal(graph.edges[COVERS].indices, np.arange(PAPERS) % FIELDS)


def test_a_folder_and_dataclasses_say_the_same(tmp_path: Path) -> None:
    data = typed_data()
    convert(tmp_path / "mapping", schema=data)
    (tmp_path / "data").mkdir()
    folder = save(tmp_path / "data", data)
    convert(tmp_path / "folder", schema=folder, memory="256KiB")
    convert(tmp_path / "file", schema=folder / "graph.yaml")
    described = GraphInput(
        {name: NodeInput(**keys) for name, keys in data["nodes"].items()},
        {tuple(name.split(":")): EdgeInput(**keys) for name, keys in data["edges"].items()},
    )
    convert(tmp_path / "classes", schema=described)
    digests = {Graph.open(tmp_path / name).manifest.digest for name in ("mapping", "folder", "file", "classes")}
    assert len(digests) == 1


def test_parquet_tables(tmp_path: Path) -> None:
    """The same graph from tables: ids count, numbers are features, scaled; named columns are times, weights, labels."""
    rng = np.random.default_rng(6)
    src, dst, when = rng.integers(0, 4, 50), rng.integers(0, 6, 50), rng.integers(0, 9, 50)
    pq.write_table(pa.table({"a": src, "p": dst, "w": np.full(50, 0.5), "when": when}), tmp_path / "writes.parquet")
    scores = [0.5, None, 1.5, 2.5, 0.0, 1.0]
    pq.write_table(
        pa.table({"id": np.arange(6), "x": np.arange(6, dtype=np.float32), "year": np.arange(6) + 1990,
                  "score": scores, "split": ["train", None, "train", "valid", "test", None]}),
        tmp_path / "papers.parquet",
    )  # fmt: skip
    (tmp_path / "graph.yaml").write_text("""
        nodes:
          author: {num_nodes: 4}
          paper: {table: papers.parquet, task: regression, columns: {label: score, time: year}}
        edges:
          author:writes:paper:
            edges: writes.parquet
            columns: {src: a, dst: p, weight: w, time: when}
    """)
    convert(tmp_path / "graph", schema=tmp_path)
    graph = Graph.open(tmp_path / "graph")
    paper, writes = graph.nodes["paper"], graph.edges[WRITES]
    np.testing.assert_array_equal(paper.labels, np.array(scores, np.float32))
    np.testing.assert_array_equal(paper.times, np.arange(6) + 1990)
    np.testing.assert_allclose(paper.features[:, 0], (np.arange(6) - 2.5) / np.arange(6).std(), rtol=1e-6)
    assert {split: nodes.tolist() for split, nodes in paper.splits.items()} == {
        "train": [0, 2], "valid": [3], "test": [4]}  # fmt: skip
    np.testing.assert_array_equal(writes.times, when[np.lexsort((np.arange(50), order_hash(src), dst))])
    assert (writes.weights == 0.5).all()


def test_one_type_may_use_all_of_it_and_typed_graphs_have_no_one_view(tmp_path: Path) -> None:
    data = typed_data()
    convert(tmp_path / "one", schema={"nodes": {"paper": data["nodes"]["paper"]},
                                      "edges": {"paper:cites:paper": data["edges"]["paper:cites:paper"]}})  # fmt: skip
    one = Graph.open(tmp_path / "one")
    assert (one.num_nodes, one.num_edges, one.num_classes, one.is_typed) == (PAPERS, 120, 3, False)
    np.testing.assert_array_equal(one.features, data["nodes"]["paper"]["features"])
    convert(tmp_path / "graph", schema=data)
    graph = Graph.open(tmp_path / "graph")
    for name in ("indptr", "indices", "labels", "splits", "num_nodes", "num_edges", "num_classes", "feature_file",
                 "feature_checksums", "features"):  # fmt: skip
        with pytest.raises(ConfigError, match=r"is a typed graph \(paper, author, field\): .* needs one type of node"):
            getattr(graph, name)
    for call in (graph.topology, graph.topology_at_random, lambda: graph.labels_of(np.array([0]))):
        with pytest.raises(ConfigError, match="is a typed graph"):
            call()


def change(part: str, name: str, **keys: Any) -> tuple[str, str, dict[str, Any]]:
    return part, name, keys


def writes(**keys: Any) -> tuple[str, str, dict[str, Any]]:
    return change("edges", "author:writes:paper", **keys)


BAD = [
    (change("edges", "author:likes:venue", edges=[[0], [0]]), ConfigError,
     "edge type author:likes:venue: expected node types of paper, author, field, found 'venue'"),
    (change("edges", "author:writes", edges=[[0], [0]]), ConfigError, "expected 'source:name:destination'"),
    (change("nodes", "a b", num_nodes=3), ConfigError, "1 to 64 letters"),
    (change("nodes", "venue"), ConfigError, "node type venue: expected num_nodes, or something with a row per node"),
    (change("nodes", "venue", num_nodes=0), InputError, "node type venue: expected at least one node"),
    (change("nodes", "paper", size=3), ConfigError, "node type paper: expected the keys .*; found 'size'"),
    (change("nodes", "paper", num_nodes="3"), ConfigError, "paper: num_nodes: expected int . None, found '3'"),
    (change("nodes", "paper", task="link"), ConfigError, "node type paper: task: expected one of class"),
    (change("nodes", "author", num_classes=3), ConfigError, "node type author: num_classes: expected none for task"),
    (change("nodes", "paper", num_nodes=31), InputError, "indptr of edge type field:covers:paper: expected 31 rows"),
    (change("nodes", "field", features=np.ones((6, 2), np.int8)), InputError,
     "labels of node type field: expected 6 rows .*as features of node type field says.* found 5"),
    (change("nodes", "paper", times=np.arange(29)), InputError, "times of node type paper: .* found 29"),
    (change("nodes", "paper", times=np.arange(PAPERS) + np.iinfo(np.int64).min), InputError,
     "times of node type paper: expected a time for each; found none at 0 "),
    (change("nodes", "paper", times=np.where(np.arange(PAPERS) == 4, np.nan, 1)), InputError, "found none at 4"),
    (change("nodes", "paper", times=np.arange(PAPERS) + 0.5), InputError, "whole number; found 0.5 at 0"),
    (change("nodes", "paper", train=[29]), InputError, "train of node type paper: .* no label"),
    (change("nodes", "paper", train=[30]), InputError, "train of node type paper: .* from 0 to 29, found 30"),
    (change("nodes", "author", labels=np.full(AUTHORS, np.nan)), InputError, r"train of node type author: .*\(NaN\)"),
    (change("nodes", "author", labels=np.full(AUTHORS, np.inf)), InputError, "of node type author: .* found inf"),
    (change("nodes", "author", labels=None), ConfigError, "node type author: expected labels for the nodes of train"),
    (change("nodes", "field", labels=np.full((FIELDS, 4), 2)), InputError, "of node type field: .* found 2 at 0"),
    (change("nodes", "field", labels=np.zeros(FIELDS, int)), InputError, r"expected 0 and 1 of shape \[N, C\]"),
    (change("nodes", "author", quantise="int8"), ConfigError, "node type author: expected features"),
    (writes(edges=[[0, 11], [1, 2]]), InputError, "expected 2, one for each of edges of edge type author:writes:paper"),
    (writes(edges=np.full((2, 200), 11)), InputError,
     "edges of edge type author:writes:paper: expected node ids from 0 to 10, found source 11 in edge 0"),
    (writes(features=np.ones((199, 2), np.float32)), InputError, "of edge type .*: expected 200, .* found 199"),
    (writes(weights=np.full(200, -1.0)), InputError, "weights of edge type .*: expected a finite weight .* found -1"),
    (writes(weights=np.full(200, np.nan)), InputError, "weights of edge type author:writes:paper: .* found none at 0"),
    (writes(weights=np.zeros(200)), InputError, "expected a weight above 0 among the .* in-edges of node 0"),
    (writes(weights=np.ones((200, 2))), InputError, r"expected one number for each, found shape \[200, 2\]"),
    (writes(times=np.full(200, np.inf)), InputError, "times of edge type author:writes:paper: .* found inf at 0"),
    (writes(drop_duplicates=True), ConfigError, "drop_duplicates: expected edges without data of their own"),
    (writes(symmetric=True), ConfigError, "edge type author:writes:paper: symmetric needs edges within one node type"),
    (change("edges", "paper:rev_writes:author", edges=[[0], [0]]), ConfigError, "reverse would add paper:rev_writes"),
    (change("edges", "paper:cites:paper", train=[[0, 30], [1, 2]]), InputError,
     "train of edge type paper:cites:paper: .* from 0 to 29, found source 30 in edge 1"),
    (change("edges", "paper:cites:paper", test=np.empty((2, 0), int)), InputError, "expected seed edges, found none"),
    (change("edges", "paper:cites:paper", edges=None), ConfigError, "paper:cites:paper: expected either `edges`"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_what_is_no_graph(tmp_path: Path, changed: Any, error: type[Exception], message: str) -> None:
    data, (part, name, keys) = typed_data(), changed
    data[part].setdefault(name, {}).update(keys)
    with pytest.raises(error, match=message):
        convert(tmp_path / "graph", schema=data)
    assert list(tmp_path.iterdir()) == []  # nothing written


def test_files_are_named(tmp_path: Path) -> None:
    data = typed_data()
    data["edges"]["author:writes:paper"]["times"][7] = np.iinfo(np.int64).min  # no time has these bits: NaT has
    folder = save(tmp_path, data)
    with pytest.raises(InputError, match=r"of edge type author:writes:paper \(.*edges-0-times\.npy\): .* none at 7"):
        convert(tmp_path / "graph", schema=folder)
    (tmp_path / "nodes-0-times.npy").unlink()
    with pytest.raises(InputError, match=r"times of node type paper .*found no file .*nodes-0-times\.npy"):
        convert(tmp_path / "graph", schema=folder)


def test_descriptions_that_are_none(tmp_path: Path) -> None:
    for text, message in (("a: [", "is no YAML"), ("- 1", "expected a mapping"), ("nodes: 3", "expected a mapping"),
                          ("edges: {}", "found no nodes"), ("nodes: {a: {num_nodes: 3}}", "one type of edges"),
                          ("types: {}", "expected the keys nodes, edges")):  # fmt: skip
        (tmp_path / "graph.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            convert(tmp_path / "graph", schema=tmp_path)
    with pytest.raises(ConfigError, match="expected a YAML file, found none"):
        convert(tmp_path / "graph", schema=tmp_path / "other.yaml")
    with pytest.raises(ConfigError, match="leave out `edges` and `reverse`"):
        convert(tmp_path / "graph", schema=tmp_path, edges=[[0], [0]], reverse=True)


def test_no_edges_is_said(tmp_path: Path) -> None:
    data = typed_data()
    data["edges"]["paper:cites:paper"] = {"edges": np.empty((2, 0), np.int64)}
    with pytest.warns(DataWarning, match="edge type paper:cites:paper has no edges"):
        convert(tmp_path / "graph", schema=data)
    assert Graph.open(tmp_path / "graph").edges[CITES].num_edges == 0
