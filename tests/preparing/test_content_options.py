"""Options that change what minibatches contain mean the same to `prepare`, to `sample` and `pack`, to FreshEpochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskgnn
from diskgnn import FreshEpochs, Loader
from diskgnn.batches.minibatch import TypedMiniBatch
from diskgnn.formats.manifest import open_artifact
from diskgnn.specs.sampling import DrawingOptions, SamplingOptions
from diskgnn.specs.targets import LinkTarget

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
PAPERS, AUTHORS = 120, 60
SETTINGS = {"batch_size": 16, "seed": 3, "fanouts": [4, 3], "temporal": "ignore"}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "fanouts": {"fanouts": {WRITES: [2, 2], CITES: [3, 0]}},
    "eval_fanouts": {"eval_fanouts": [-1, 2]},
    "batch_size": {"batch_size": 7},
    "draws": {"draws": "coordinated"},
    "draw_period": {"draws": "coordinated", "draw_period": 4},
    "group_seeds": {"group_seeds": 4},
    "target": {"target": LinkTarget(WRITES, 2, 3)},
    "temporal": {"temporal": "last"},
    "temporal_window": {"temporal": "last", "temporal_window": {CITES: 4}},
    "strict_time": {"temporal": "uniform", "strict_time": True},
    "weighted": {"weighted": True},
    "edge_ids": {"edge_ids": True},
    "keep_times": {"keep_times": True, "temporal": "last", "strict_time": True},
    "seed": {"seed": 4},
    "epochs": {"epochs": 2},
    "expand_once": {"expand_once": True},
    "shuffle": {"shuffle": False},
    "all of it": {"edge_ids": True, "expand_once": True, "weighted": True, "temporal": "uniform", "epochs": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def user_data() -> dict[str, Any]:
    """Edges of two types, with features, weights, times and ids; in an order that is not that of the graph."""
    rng = np.random.default_rng(0)
    writes = np.stack([rng.integers(0, AUTHORS, 500), rng.integers(0, PAPERS, 500)])
    cites = rng.integers(0, PAPERS, (2, 700))
    shuffled = rng.permutation(PAPERS)
    return {
        "nodes": {
            "paper": {
                "features": rng.random((PAPERS, 5), np.float32), "labels": rng.integers(0, 4, PAPERS),
                "times": rng.integers(10, 20, PAPERS), "train": shuffled[:50], "valid": shuffled[50:70],
            },
            "author": {"features": rng.random((AUTHORS, 3), np.float32)},
        },
        "edges": {
            "author:writes:paper": {
                "edges": writes, "keep_ids": True, "weights": rng.random(500, np.float32) + 0.5,
                "train": writes[:, :60].T, "valid": writes[:, 60:90].T,
            },
            "paper:cites:paper": {
                "edges": cites, "keep_ids": True, "times": rng.integers(0, 20, 700),
                "features": rng.random((700, 2), np.float32),
            },
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, user_data: dict[str, Any]) -> Path:
    path = tmp_path_factory.mktemp("content") / "graph"
    diskgnn.convert(path, schema=user_data)
    return path


def test_no_option_is_left_out() -> None:
    """Functions of the user's are tested with what they draw, in `test_user_sampler`, and columns of tables that are
    left out in `test_leaving_columns_out`."""
    tested = {name for each in OPTIONS.values() for name in each} | {"sampler", "without"}
    assert {*SamplingOptions.__annotations__} <= tested


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_preparing_is_sampling_and_packing(
    graph: Path, user_data: dict[str, Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    sampling, packing = {**SETTINGS, **options}, {"cpu_cache": "20%", "keep_input_nodes": True}
    diskgnn.sample(graph, tmp_path / "samples", **sampling)
    diskgnn.pack(graph, tmp_path / "samples", tmp_path / "packed", **packing)
    diskgnn.prepare(graph, tmp_path / "prepared", samples=tmp_path / "kept", **packing, **sampling)
    for made, expected in (("kept", "samples"), ("prepared", "packed")):
        assert open_artifact(tmp_path / made).digest == open_artifact(tmp_path / expected).digest
    with Loader(tmp_path / "prepared", "train") as loader, Loader(tmp_path / "packed", "train") as apart:
        prepared = list(loader.epoch(0))
        for batch, expected in zip(prepared, apart.epoch(0), strict=True):
            assert_same_content(batch, expected)
            assert_edges_are_the_users(batch, user_data, has_ids="edge_ids" in options)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name in {*DrawingOptions.__annotations__, "none"}])
def test_fresh_epochs_are_what_is_prepared(graph: Path, tmp_path: Path, name: str) -> None:
    packing = {"cpu_cache": "20%", "keep_input_nodes": True}
    drawing = SETTINGS | OPTIONS[name]
    diskgnn.prepare(graph, tmp_path / "prepared", epochs=2, **packing, **drawing)
    with (
        Loader(tmp_path / "prepared", "train") as loader,
        FreshEpochs(graph, tmp_path, **packing, **drawing) as fresh,
    ):
        for epoch in (0, 1):
            for batch, expected in zip(fresh.epoch(epoch), loader.epoch(epoch), strict=True):
                assert_same_content(batch, expected)


def assert_same_content(left: TypedMiniBatch, right: TypedMiniBatch) -> None:
    """Every tensor of two minibatches, bit for bit."""
    found, expected = contents_of(left), contents_of(right)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def contents_of(batch: TypedMiniBatch) -> dict[str, torch.Tensor]:
    """Its tensors by name."""
    found = {"seeds": batch.seeds, "y": batch.y, "seed_times": batch.seed_times}
    for name in ("x", "input_nodes", "trees", "times"):
        found |= {f"{name} of {each}": rows for each, rows in (getattr(batch, name) or {}).items()}
    for layer, blocks in enumerate(batch.blocks):
        for edge_type, block in blocks.items():
            for name in ("indptr", "indices", "edge_x", "edge_ids"):
                found[f"{name} of {edge_type} in layer {layer}"] = getattr(block, name)
    if batch.pairs is not None:
        found |= {"src": batch.pairs.src, "dst": batch.pairs.dst, "label": batch.pairs.label}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def assert_edges_are_the_users(batch: TypedMiniBatch, user_data: dict[str, Any], *, has_ids: bool) -> None:
    """Edges have the ids that the user numbered them with, if these were asked for, and then their ends and rows."""
    for blocks in batch.blocks:
        for (source, name, destination), block in blocks.items():
            assert (block.edge_ids is not None) == has_ids
            if has_ids:
                given, ids = user_data["edges"][f"{source}:{name}:{destination}"], block.edge_ids.numpy()
                ends = batch.input_nodes[source][block.indices], batch.input_nodes[destination][block.destinations]
                np.testing.assert_array_equal(torch.stack(ends), given["edges"][:, ids])
                if "features" in given:
                    np.testing.assert_array_equal(block.edge_x, given["features"][ids])
