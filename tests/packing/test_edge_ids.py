"""The user's ids of sampled edges, against NumPy, wherever they are kept."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import diskgnn
from diskgnn.errors import ArtifactError, DataWarning
from diskgnn.graph.graph import Graph
from diskgnn.packing.edge_ids import EdgeIds

NUM_EDGES = 800_000  # of 6.4 MB: more than is read at once


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("ids") / "graph", np.random.default_rng(3)
    many = {"edges": rng.integers(0, 500, (2, NUM_EDGES)), "keep_ids": True}
    few = {"edges": rng.integers(0, 500, (2, 700))}
    nodes = {"features": np.zeros((500, 1), np.float32), "labels": np.zeros(500, int), "train": np.arange(500)}
    diskgnn.convert(path, schema={"nodes": {"n": nodes}, "edges": {"n:a:n": many, "n:b:n": few}})
    return path


@pytest.mark.parametrize("in_memory", [False, True])
def test_ids_are_those_of_the_positions(graph: Path, in_memory: bool) -> None:
    opened, rng = Graph.open(graph), np.random.default_rng(0)
    expected, ids = np.load(graph / opened.edges["n", "a", "n"].file("edge_ids")), EdgeIds(opened, in_memory=in_memory)
    assert EdgeIds.num_bytes(opened) == 8 * NUM_EDGES
    for count in (0, 1, 50, 5_000, 100_000):
        positions = rng.integers(0, NUM_EDGES, count).astype(np.int32)
        np.testing.assert_array_equal(ids.of(0, positions), expected[positions])
    for positions in (np.arange(NUM_EDGES), np.array([NUM_EDGES - 1]), np.array([0, 0, NUM_EDGES - 1, 4080])):
        np.testing.assert_array_equal(ids.of(0, positions), expected[positions])
    np.testing.assert_array_equal(ids.of(1, np.array([7, 3])), [7, 3])  # the user has none of his own


@pytest.mark.parametrize("by_schema", [False, True])
def test_places_in_the_graph_are_not_taken_for_rows_of_a_list(tmp_path: Path, by_schema: bool) -> None:
    """A graph of an edge list sorts it: without `keep_ids`, nobody knows the rows any more, and that is a warning."""
    edges = np.random.default_rng(1).integers(0, 50, (2, 300))
    nodes = {"features": np.zeros((50, 1), np.float32), "labels": np.arange(50) % 2, "train": np.arange(50)}
    asked = {"fanouts": [-1], "edge_ids": True, "keep_input_nodes": True, "cpu_cache": 0}
    diskgnn.convert(tmp_path / "plain", edges=edges, **nodes)
    with pytest.warns(DataWarning, match="edge_ids: .* did not keep which edge of your list each is of node:to:node"):
        diskgnn.prepare(tmp_path / "plain", tmp_path / "packed", **asked)
    with (
        pytest.warns(DataWarning, match="edge_ids"),
        diskgnn.FreshEpochs(tmp_path / "plain", tmp_path / "fresh", **asked),
    ):
        pass
    if by_schema:
        kept = {"nodes": {"n": nodes}, "edges": {"n:a:n": {"edges": edges, "keep_ids": True}}}
        diskgnn.convert(tmp_path / "kept", schema=kept)
    else:
        diskgnn.convert(tmp_path / "kept", edges=edges, **nodes, keep_ids=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        diskgnn.prepare(tmp_path / "kept", tmp_path / "with", **asked)
    with diskgnn.Loader(tmp_path / "with", "train") as loader:
        (batch,) = loader.epoch(0)
    (block,) = batch.blocks
    drawn = torch.stack([batch.input_nodes[block.indices.long()], batch.input_nodes[block.destinations.long()]])
    np.testing.assert_array_equal(drawn.numpy(), edges[:, block.edge_ids.numpy()])


@pytest.mark.parametrize("memory", ["auto", 1])
def test_damaged_ids_are_packed_nowhere(graph: Path, tmp_path: Path, memory: int | str) -> None:
    diskgnn.sample(graph, tmp_path / "samples", fanouts=[3], batch_size=64, epochs=1, edge_ids=True)
    pack = {"cpu_cache": 0, "memory": memory, "threads": 1}
    diskgnn.pack(graph, tmp_path / "samples", tmp_path / "packed", **pack)
    file = graph / Graph.open(graph).edges["n", "a", "n"].file("edge_ids")
    whole = bytearray(file.read_bytes())
    damaged = whole.copy()
    damaged[4_000_000] ^= 4
    try:
        file.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=rf"{file.name} is damaged"):
            diskgnn.pack(graph, tmp_path / "samples", tmp_path / "again", **pack)
    finally:
        file.write_bytes(whole)
