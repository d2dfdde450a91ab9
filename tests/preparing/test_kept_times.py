"""Times that minibatches keep: those that the user gave, against NumPy and PyG's `HeteroData`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from least_budgets import with_least
from torch_geometric.data import HeteroData

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.batches.minibatch import TypedMiniBatch
from diskgnn.errors import ArtifactError
from diskgnn.specs.targets import LinkTarget, NodeTarget

USERS, ORDERS, SHOPS = 90, 30_000, 7
LONG_AGO = -(10**10)


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    """Users and orders have times, before 1970, too; shops have none. Orders are more than a page of times."""
    random = np.random.default_rng(0)
    edges = np.stack([np.arange(ORDERS), random.integers(0, USERS, ORDERS)])
    sold = np.stack([np.arange(ORDERS), random.integers(0, SHOPS, ORDERS)])
    return {
        "nodes": {
            "user": {
                "features": random.random((USERS, 4), np.float32), "labels": random.integers(0, 2, USERS),
                "times": LONG_AGO + random.integers(0, 50, USERS), "train": random.permutation(USERS)[:60],
            },
            "order": {
                "features": random.random((ORDERS, 3), np.float32), "times": LONG_AGO + random.integers(0, 99, ORDERS)
            },
            "shop": {"num_nodes": SHOPS},
        },
        "edges": {
            "order:by:user": {"edges": edges, "reverse": True, "train": edges[:, :40].T},
            "order:at:shop": {"edges": sold, "reverse": True},
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, given: dict[str, Any]) -> Path:
    path = tmp_path_factory.mktemp("times") / "graph"
    diskgnn.convert(path, schema=given)
    return path


ASKED = NodeTarget("user", seeds={"train": np.array([3, 3, 8, 80])}, times={"train": np.array([40, 90, 60, 30])})
FOR_A_TIME = NodeTarget("user", seeds=ASKED.seeds, times={"train": LONG_AGO + ASKED.times["train"]})


@pytest.mark.parametrize(
    ("temporal", "target", "strict"),
    [("ignore", NodeTarget("user"), None), ("uniform", NodeTarget("user"), True), ("last", FOR_A_TIME, None),
     ("last", FOR_A_TIME, True), ("uniform", LinkTarget("order:by:user", 1, 1), None)],
)  # fmt: skip
@pytest.mark.parametrize("memory", ["auto", "least"])
def test_minibatches_have_the_times_of_the_user(
    graph: Path, given: dict[str, Any], tmp_path: Path, temporal: str, target: Any, strict: bool | None, memory: str
) -> None:
    """Also where they do not fit in memory while headers are written."""
    options = {
        "fanouts": [4, 3, 3], "batch_size": 16, "temporal": temporal, "target": target, "strict_time": strict,
        "keep_input_nodes": True, "keep_times": True, "cpu_cache": "10%",
    }  # fmt: skip
    if memory == "least":
        diskgnn.sample(graph, tmp_path / "samples", **{
            name: value for name, value in options.items() if name not in ("keep_input_nodes", "cpu_cache")
        })  # fmt: skip
        pack = {"keep_input_nodes": True, "cpu_cache": "10%"}
        with_least(partial(diskgnn.pack, graph, tmp_path / "samples", tmp_path / "packed", **pack))
    else:
        diskgnn.prepare(graph, tmp_path / "packed", **options)
    times = {name: nodes["times"] for name, nodes in given["nodes"].items() if "times" in nodes}
    with diskgnn.Loader(tmp_path / "packed", "train") as loader:
        batches = list(loader.epoch(0))
    for batch in batches:
        assert batch.times.keys() == times.keys()
        for name, of_inputs in batch.times.items():
            np.testing.assert_array_equal(of_inputs, times[name][batch.input_nodes[name]])
        if temporal == "ignore":
            assert batch.seed_times is None
            continue
        assert_nothing_is_later(batch, strict=strict is not False and (strict or isinstance(target, LinkTarget)))
    if target is FOR_A_TIME:
        asked = sorted(zip(target.seeds["train"].tolist(), target.times["train"].tolist(), strict=True))
        found = [
            pair for batch in batches for pair in zip(batch.seeds.tolist(), batch.seed_times.tolist(), strict=True)
        ]
        assert sorted(found) == asked
    elif temporal != "ignore" and isinstance(target, NodeTarget):
        for batch in batches:
            np.testing.assert_array_equal(batch.seed_times, times["user"][batch.seeds])


def assert_nothing_is_later(batch: TypedMiniBatch, *, strict: bool) -> None:
    """Of what was drawn; seeds themselves may be of any time."""
    num_seeds = batch.node_counts[-1]
    for name, times in batch.times.items():
        drawn, of_seed = times[num_seeds[name] :], batch.seed_times[batch.trees[name][num_seeds[name] :]]
        assert len(drawn) == 0 or (drawn < of_seed if strict else drawn <= of_seed).all()


def test_pyg_has_them_under_its_own_names(graph: Path, given: dict[str, Any], tmp_path: Path) -> None:
    """`time` of a subgraph of PyG's, taken by n_id; `seed_time` beside it."""
    diskgnn.prepare(
        graph, tmp_path / "packed", fanouts=[4, 3], batch_size=2, temporal="last", target=FOR_A_TIME,
        keep_input_nodes=True, keep_times=True, cpu_cache=0,
    )  # fmt: skip
    whole = HeteroData()
    for name, nodes in given["nodes"].items():
        whole[name].num_nodes = nodes.get("num_nodes", len(nodes.get("times", ())))
        if "times" in nodes:
            whole[name].time = torch.from_numpy(nodes["times"])
    with diskgnn.Loader(tmp_path / "packed", "train") as loader:
        for batch in loader.epoch(0):
            data = batch.to_pyg()
            of_pyg = {name: whole[name].time[data[name].n_id] for name in whole.node_types if "time" in whole[name]}
            assert data.time_dict.keys() == of_pyg.keys()
            assert all(torch.equal(data[name].time, times) for name, times in of_pyg.items())
            assert torch.equal(data["user"].seed_time, batch.seed_times)


def test_pyg_has_the_times_of_pairs_under_its_own_name(graph: Path, given: dict[str, Any], tmp_path: Path) -> None:
    """A pair is as late as its later end, and so are its negatives, as in PyG."""
    edge_type = ("order", "by", "user")
    diskgnn.prepare(
        graph, tmp_path / "packed", fanouts=[2], batch_size=16, temporal="uniform", target=LinkTarget(edge_type, 2, 1),
        keep_input_nodes=True, keep_times=True, cpu_cache=0,
    )  # fmt: skip
    nodes, num_pairs = given["nodes"], 0
    with diskgnn.Loader(tmp_path / "packed", "train") as loader:
        for batch in loader.epoch(0):
            data = batch.to_pyg()
            store = data[edge_type]
            assert "seed_time" not in store
            orders, users = (
                data[name].n_id[ends] for name, ends in zip(edge_type[::2], store.edge_label_index, strict=True)
            )
            later = np.maximum(nodes["order"]["times"][orders], nodes["user"]["times"][users])
            count = int(store.edge_label.sum())
            np.testing.assert_array_equal(store.edge_label_time[:count], later[:count])
            np.testing.assert_array_equal(store.edge_label_time[count:], np.repeat(later[:count], 2))
            num_pairs += count
    assert num_pairs == 40


def test_sampling_while_training_has_the_same(graph: Path, tmp_path: Path) -> None:
    drawing = {
        "fanouts": [4, 3], "batch_size": 16, "temporal": "last", "target": NodeTarget("user"), "keep_times": True,
    }  # fmt: skip
    diskgnn.prepare(graph, tmp_path / "packed", cpu_cache=0, **drawing)
    with diskgnn.Loader(tmp_path / "packed", "train") as loader, InMemory(graph, **drawing) as source:
        for batch, expected in zip(loader.epoch(0), source.epoch(0), strict=True):
            assert torch.equal(batch.seed_times, expected.seed_times)
            for name, times in batch.times.items():
                assert torch.equal(times, expected.times[name])


def test_a_graph_of_one_type(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    times = random.integers(0, 50, 100)
    node = {"features": random.random((100, 2), np.float32), "labels": np.arange(100) % 3, "times": times,
            "train": np.arange(100)}  # fmt: skip
    diskgnn.convert(tmp_path / "graph", schema={
        "nodes": {"node": node}, "edges": {"node:to:node": {"edges": random.integers(0, 100, (2, 900))}}
    })  # fmt: skip
    options = {"fanouts": [3, 3], "temporal": "uniform", "keep_times": True, "keep_input_nodes": True, "cpu_cache": 0}
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", **options)
    with diskgnn.Loader(tmp_path / "packed", "train") as loader:
        batches: Iterator[Any] = loader.epoch(0)
        for batch in batches:
            np.testing.assert_array_equal(batch.times, times[batch.input_nodes])
            np.testing.assert_array_equal(batch.seed_times, times[batch.seeds])
            assert torch.equal(batch.to_pyg().time, batch.times)
            assert torch.equal(batch.by_type().times["node"], batch.times)
            assert "times: int64" in repr(batch)


def test_damaged_times_are_packed_nowhere(graph: Path, tmp_path: Path) -> None:
    options = {"fanouts": [3], "batch_size": 64, "temporal": "ignore", "target": NodeTarget("user"), "keep_times": True}
    diskgnn.sample(graph, tmp_path / "samples", **options)
    file = graph / "times-order.npy"
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[:-5] + b"x" + whole[-4:])
        pack = partial(diskgnn.pack, graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0)
        with pytest.raises(ArtifactError, match=r"times-order.npy is damaged"):
            pack()
        with pytest.raises(ArtifactError, match=r"times-order.npy is damaged"):
            with_least(pack)
    finally:
        file.write_bytes(whole)
