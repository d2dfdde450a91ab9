"""Opening a graph directory: what its files and its manifest say must fit each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import chunk_checksums

from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.storage import artifacts
from diskgnn.storage.graph_config import GraphConfig
from diskgnn.storage.row_format import RowFormat
from diskgnn.storage.writer import ArtifactWriter

FITTING: dict[str, np.ndarray] = {
    artifacts.INDPTR: np.array([0, 2, 3]), artifacts.INDICES: np.array([0, 1, 1], np.int32),
    artifacts.FEATURES: np.zeros((2, 3), np.float32), artifacts.LABELS: np.array([0, -1]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "array"),
    [
        (artifacts.INDPTR, np.array([0, 2, 4])), (artifacts.INDPTR, np.array([1, 2, 3])),
        (artifacts.INDPTR, np.array([0, 1, 2, 3])), (artifacts.INDPTR, np.array([0, 2, 3], np.int32)),
        (artifacts.INDPTR, np.zeros(0, np.int64)), (artifacts.INDICES, np.array([0.0, 1, 1])),
        (artifacts.INDICES, np.zeros((3, 1), np.int32)), (artifacts.FEATURES, np.zeros((3, 3), np.float32)),
        (artifacts.FEATURES, np.zeros((2, 3), np.float16)), (artifacts.FEATURES, np.zeros(2, np.float32)),
        (artifacts.FEATURES, np.zeros((2, 4), np.float32)),
        (artifacts.FEATURES, None), (artifacts.LABELS, np.array([0])),
    ],
)  # fmt: skip
def test_files_of_different_graphs(tmp_path: Path, name: str, array: np.ndarray | None) -> None:
    """Files that are whole, but do not fit each other."""

    def write_graph(path: Path, files: dict[str, np.ndarray | None]) -> None:
        config = GraphConfig(2, 3, 1, RowFormat("float32", 3)).to_json({})
        with ArtifactWriter(path, artifacts.GRAPH, config=config) as writer:
            for name, content in files.items():
                if content is not None:
                    writer.save_array(name, content)
                    if name == artifacts.FEATURES:
                        writer.save_array(artifacts.FEATURE_CHECKSUMS, chunk_checksums(writer.path(name)))
            writer.publish()

    write_graph(tmp_path / "good", {**FITTING})
    assert Graph.open(tmp_path / "good").num_edges == 3
    write_graph(tmp_path / "bad", {**FITTING, name: array})
    with pytest.raises(ArtifactError, match="diskgnn convert` again"):
        Graph.open(tmp_path / "bad")


@pytest.mark.parametrize(
    "change",
    [
        {"num_nodes": 3}, {"num_nodes": "2"}, {"num_classes": None}, {"feature_dtype": "float64"},
        {"feature_width": 0}, {"feature_width": 4}, {"feature_width": True},
    ],
)  # fmt: skip
def test_a_config_that_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    config = GraphConfig(2, 3, 1, RowFormat("float32", 3)).to_json({})
    with ArtifactWriter(tmp_path / "graph", artifacts.GRAPH, config=config | change) as writer:
        for name, content in FITTING.items():
            writer.save_array(name, content)
        writer.save_array(artifacts.FEATURE_CHECKSUMS, chunk_checksums(writer.path(artifacts.FEATURES)))
        writer.publish()
    with pytest.raises(ArtifactError, match=r"diskgnn convert` (it )?again"):
        Graph.open(tmp_path / "graph")
