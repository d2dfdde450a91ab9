"""The user's ids of sampled edges, against NumPy, wherever they are kept."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import diskgnn
from diskgnn.errors import ArtifactError, DataWarning
from diskgnn.files import faults
from diskgnn.files.traffic import Traffic
from diskgnn.graph.graph import Graph
from diskgnn.packing.stored_ints import StoredInts

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
    opened, rng, traffic = Graph.open(graph), np.random.default_rng(0), Traffic()
    name = opened.edges["n", "a", "n"].file("edge_ids")
    expected, ids = np.load(graph / name), StoredInts(opened.manifest, name, in_memory=in_memory, traffic=traffic)
    counts = [0, 1, 50, 5_000, 100_000, 0]
    wanted = [rng.integers(0, NUM_EDGES, count).astype(np.int32) for count in counts]
    for positions in (
        wanted, [np.arange(NUM_EDGES)], [np.array([NUM_EDGES - 1])], [np.array([0, 0, NUM_EDGES - 1, 4080])],
        [wanted[0]], [],
    ):  # fmt: skip
        found = ids.at(positions)
        assert len(found) == len(positions)
        for some, at in zip(found, positions, strict=True):
            np.testing.assert_array_equal(some, expected[at])
    # However many arrays and positions: a pass over the file for all of them, and none for no position.
    assert traffic.read_bytes == (graph / name).stat().st_size * (1 if in_memory else 4)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("position", [-1, NUM_EDGES])
def test_positions_outside_are_no_numbers_of_others(graph: Path, in_memory: bool, position: int) -> None:
    opened = Graph.open(graph)
    name = opened.edges["n", "a", "n"].file("edge_ids")
    ids = StoredInts(opened.manifest, name, in_memory=in_memory, traffic=Traffic())
    with pytest.raises(ArtifactError, match=rf"{name} does not have: expected positions in \[0, {NUM_EDGES}\)"):
        ids.at([np.array([3]), np.array([5, position, 7])])


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


def test_ids_that_are_damaged_while_they_are_packed_are_noticed(graph: Path, tmp_path: Path) -> None:
    """They do not fit in memory: each pass over them is compared."""
    diskgnn.sample(graph, tmp_path / "samples", fanouts=[3], batch_size=64, epochs=1, edge_ids=True)
    file = graph / Graph.open(graph).edges["n", "a", "n"].file("edge_ids")
    whole = file.read_bytes()

    def damage() -> None:
        with file.open("r+b") as opened:
            opened.seek(4_000_000)
            opened.write(bytes([whole[4_000_000] ^ 4]))

    try:
        with faults.armed("pack.schedule", damage), pytest.raises(ArtifactError, match=rf"{file.name} is damaged"):
            diskgnn.pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0, memory=1, threads=1)
    finally:
        file.write_bytes(whole)
