"""A comparison on a quantised graph trains on what its codes mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from diskgnn.compare.given_seeds import trained_seeds
from diskgnn.compare.limited_graph import make_training_graph
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.specs.sampling import SamplingSpec


def test_the_graph_of_a_comparison_keeps_what_codes_mean(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    convert(
        tmp_path / "graph", edges=rng.integers(0, 50, (2, 200)), labels=rng.integers(0, 3, 50), train=np.arange(20),
        features=rng.normal(size=(50, 5)).astype(np.float32), quantise="int4",
    )  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    train = trained_seeds(graph, SamplingSpec([2, 2], 4), 2)["seeds"]
    small = make_training_graph(graph, tmp_path / "small", graph.only_nodes("this").name, train)
    assert len(small.splits["train"]) == 8
    stored = graph.feature_file.rows.as_tensor(graph.features.copy())
    assert graph.feature_file.quantisation is not None
    np.testing.assert_array_equal(small.feature_file.x(stored), graph.feature_file.x(stored))
