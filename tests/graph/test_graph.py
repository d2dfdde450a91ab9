"""Opening a graph directory: what its files and its manifest say must fit each other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from graphs import FEATURE_CHECKSUMS, FEATURES, INDICES, INDPTR, LABELS, TRAIN, chunk_checksums, write_graph

from diskgnn.errors import ArtifactError
from diskgnn.files import checked_files
from diskgnn.formats import artifacts
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.graph import Graph
from diskgnn.work.writer import ArtifactWriter

CONFIG = GraphConfig.of_one_type(2, 3, 1, RowFormat("float32", 3))
FITTING: dict[str, np.ndarray] = {
    INDPTR: np.array([0, 2, 3]), INDICES: np.array([0, 1, 1], np.int32),
    FEATURES: np.zeros((2, 3), np.float32), LABELS: np.array([0, -1]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "array"),
    [
        (INDPTR, np.array([0, 2, 4])), (INDPTR, np.array([1, 2, 3])),
        (INDPTR, np.array([0, 1, 2, 3])), (INDPTR, np.array([0, 2, 3], np.int32)),
        (INDPTR, np.zeros(0, np.int64)), (INDICES, np.array([0.0, 1, 1])),
        (INDICES, np.zeros((3, 1), np.int32)), (FEATURES, np.zeros((3, 3), np.float32)),
        (FEATURES, np.zeros((2, 3), np.float16)), (FEATURES, np.zeros(2, np.float32)),
        (FEATURES, np.zeros((2, 4), np.float32)),
        (FEATURES, None), (LABELS, np.array([0])),
    ],
)  # fmt: skip
def test_files_of_different_graphs(tmp_path: Path, name: str, array: np.ndarray | None) -> None:
    """Files that are whole, but do not fit each other."""

    def write_graph(path: Path, files: dict[str, np.ndarray | None]) -> None:
        config = CONFIG.to_json({})
        with ArtifactWriter(path, artifacts.GRAPH, config=config) as writer:
            for name, content in files.items():
                if content is not None:
                    writer.save_array(name, content)
                    if name == FEATURES:
                        writer.save_array(FEATURE_CHECKSUMS, chunk_checksums(writer.path(name)))
            writer.publish()

    write_graph(tmp_path / "good", {**FITTING})
    assert Graph.open(tmp_path / "good").num_edges == 3
    write_graph(tmp_path / "bad", {**FITTING, name: array})
    with pytest.raises(ArtifactError, match="diskgnn convert` again"):
        Graph.open(tmp_path / "bad")


def changed(kind: str, change: dict[str, object]) -> dict[str, object]:
    config = CONFIG.to_json({})
    return config | {kind: [config[kind][0] | change]}


TARGET = {"kind": "class", "num_outputs": 1}
RAW = {"name": "a", "encoding": "raw"}
NUMBER = RAW | {"encoding": "number", "mean": 1.0, "deviation": 2.0}
CATEGORY = {"name": "b", "encoding": "category", "values": ["x", "y"]}


def test_columns_of_features() -> None:
    columns = [RAW, CATEGORY]
    (nodes,) = GraphConfig.parse(changed("node_types", {"columns": columns})).node_types
    assert nodes.to_json()["columns"] == columns


@pytest.mark.parametrize(
    "config",
    [
        *(changed("node_types", change) for change in (
            {"num_nodes": 3}, {"num_nodes": "2"}, {"feature_dtype": "float64"}, {"feature_width": 0},
            {"feature_width": 4}, {"feature_width": True}, {"name": "a.b"}, {"name": "other"}, {"has_times": 0},
            {"has_times": True}, {"target": 3}, {"target": None}, {"target": TARGET | {"kind": "link"}},
            {"target": TARGET | {"num_outputs": 0}}, {"target": TARGET | {"kind": "multilabel"}},
            *({"columns": columns} for columns in (
                {}, [], [3], [RAW], [RAW, CATEGORY, NUMBER], [RAW | {"name": 3}, CATEGORY], [RAW, CATEGORY | RAW],
                [RAW, CATEGORY | {"name": "a"}], [RAW | {"encoding": "hash"}, CATEGORY],
                [RAW | {"encoding": "number"}, CATEGORY], [NUMBER | {"mean": 1}, CATEGORY], [RAW | {"width": 3}],
                [NUMBER | {"mean": math.nan}, CATEGORY], [NUMBER | {"deviation": -1.0}, CATEGORY],
                [CATEGORY | {"values": ["x", "x", "y"]}], [CATEGORY | {"values": ["x", 1, "y"]}],
                [RAW | {"encoding": "vector", "width": 4}], [RAW, CATEGORY, RAW | {"encoding": "vector", "width": 0}],
            )),
        )),
        *(changed("edge_types", change) for change in (
            {"num_edges": 2}, {"type": "node:to"}, {"type": "node:to:other"}, {"has_weights": True},
            {"has_ids": True}, {"has_times": True}, {"feature_dtype": "int8", "feature_width": 2},
            {"link_splits": ["train", "train"]}, {"link_splits": ["all"]}, {"link_splits": "train"},
        )),
        CONFIG.to_json({}) | {"node_types": []}, CONFIG.to_json({}) | {"edge_types": []},
        CONFIG.to_json({}) | {"edge_types": 2 * CONFIG.to_json({})["edge_types"]},
    ],
)  # fmt: skip
def test_a_config_that_is_none(tmp_path: Path, config: dict[str, object]) -> None:
    with ArtifactWriter(tmp_path / "graph", artifacts.GRAPH, config=config) as writer:
        for name, content in FITTING.items():
            writer.save_array(name, content)
        writer.save_array(TRAIN, np.array([0]))
        writer.save_array(FEATURE_CHECKSUMS, chunk_checksums(writer.path(FEATURES)))
        writer.publish()
    with pytest.raises(ArtifactError, match=r"diskgnn convert` (it )?again"):
        Graph.open(tmp_path / "graph")


@pytest.mark.parametrize("hub", range(18))
def test_the_node_of_most_in_neighbours_is_found_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: int
) -> None:
    """At the ends of the parts that offsets are read in, too; where these do not ascend, the graph is damaged."""
    monkeypatch.setattr(checked_files, "_READ_BYTES", 64)  # 8 offsets
    degrees = np.where(np.arange(18) == hub, 7, np.arange(18) % 3)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    zeros, splits = np.zeros(indptr[-1], np.int32), {"train": np.arange(3)}
    graph = write_graph(tmp_path / "graph", indptr, zeros, np.zeros((18, 2), np.float32), splits)
    (edges,) = graph.edges.values()
    assert edges.most_in_neighbours == 7
    indptr[max(hub, 1)] = indptr[max(hub, 1) + 1] + 1
    damaged = write_graph(tmp_path / "damaged", indptr, zeros, np.zeros((18, 2), np.float32), splits)
    (edges,) = damaged.edges.values()
    with pytest.raises(ArtifactError, match="offsets that ascend"):
        _ = edges.most_in_neighbours
