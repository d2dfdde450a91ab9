"""Graphs whose in-neighbours are in the order of time: as NumPy sorts them, with the least memory as with plenty."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from least_budgets import with_least
from neighbor_order import order_hash

import diskgnn
from diskgnn.errors import ConfigError
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph

BUYS, BOUGHT, KNOWS = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")


def described(seed: int, users: int = 60, items: int = 30, edges: int = 4000, **said: Any) -> dict[str, Any]:
    """Users with times buy items without, at no time of its own; users know one another since some time, both ways."""
    random = np.random.default_rng(seed)
    return {
        "nodes": {"user": {"times": random.integers(-5, 9, users)}, "item": {"num_nodes": items}},
        "edges": {
            "user:buys:item": {
                "edges": np.stack([random.integers(0, users, edges), random.integers(0, items, edges)]),
                "reverse": True, "weights": random.random(edges) + 0.5,
            },
            "user:knows:user": {
                "edges": random.integers(0, users, (2, edges)), "symmetric": True, "keep_ids": True,
                "times": random.integers(-5, 9, edges), "features": random.random((edges, 2), np.float32),
            },
        },
        **said,
    }  # fmt: skip


def sorted_by_numpy(edges: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(indptr, the numbers of edges [2, E] in their order)."""
    numbers = np.lexsort((np.arange(edges.shape[1]), order_hash(edges[0]), times, edges[1]))
    return np.concatenate([[0], np.cumsum(np.bincount(edges[1]))]), numbers


@settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), edges=st.sampled_from([1, 40, 4000]))
def test_in_neighbours_are_sorted_by_time_and_then_as_ever(tmp_path_factory: Any, seed: int, edges: int) -> None:
    folder, schema = tmp_path_factory.mktemp("order"), described(seed, edges=edges, order="time")
    diskgnn.convert(folder / "graph", schema=schema)
    graph = Graph.open(folder / "graph")
    assert {each: found.config.by_time for each, found in graph.edges.items()} == {
        BUYS: True, BOUGHT: False, KNOWS: True  # items have no times
    }  # fmt: skip
    users = schema["nodes"]["user"]["times"]
    buys, knows = (schema["edges"][":".join(each)] for each in (BUYS, KNOWS))
    pairs = buys["edges"]
    indptr, numbers = sorted_by_numpy(pairs, users[pairs[0]])
    found = graph.edges[BUYS]
    np.testing.assert_array_equal(found.indptr[: len(indptr)], indptr)
    np.testing.assert_array_equal(found.indices, pairs[0, numbers])
    np.testing.assert_array_equal(found.weights, buys["weights"][numbers].astype(np.float32))
    both = np.stack([knows["edges"], knows["edges"][::-1]], 2).reshape(2, -1)  # each before its reverse
    indptr, numbers = sorted_by_numpy(both, np.repeat(knows["times"], 2))
    found = graph.edges[KNOWS]
    np.testing.assert_array_equal(found.indptr[: len(indptr)], indptr)
    np.testing.assert_array_equal(found.indices, both[0, numbers])
    np.testing.assert_array_equal(found.times, knows["times"][numbers // 2])
    np.testing.assert_array_equal(np.load(graph.manifest.file(edge_file(artifacts.EDGE_IDS, KNOWS))), numbers // 2)


def test_memory_and_threads_change_no_byte(tmp_path: Path) -> None:
    schema = described(3, users=5000, edges=60_000, order="time")
    with_least(lambda memory, threads: diskgnn.convert(tmp_path / "least", schema=schema, memory=memory), 64 << 10)
    diskgnn.convert(tmp_path / "plenty", schema=schema, memory="2GiB")
    assert open_artifact(tmp_path / "least").digest == open_artifact(tmp_path / "plenty").digest


def test_draws_whose_times_do_not_count_are_of_the_same_kind(tmp_path: Path) -> None:
    """Coordinated ones, which are slices of lists in the order of hashes, have the same sources from either."""
    sources = {}
    for order in ("hash", "time"):
        schema = described(4, order=order)
        schema["nodes"]["item"] |= {"features": np.ones((30, 1), np.float32), "labels": np.arange(30) % 2,
                                    "train": np.arange(30)}  # fmt: skip
        diskgnn.convert(tmp_path / order, schema=schema)
        diskgnn.sample(tmp_path / order, tmp_path / f"{order}-samples", fanouts={BUYS: [9, 0], KNOWS: [0, 3]}, seed=2,
                       batch_size=8, temporal="ignore", draws="coordinated", shuffle=False)  # fmt: skip
        found = Samples.open(tmp_path / f"{order}-samples").read("train")
        sources[order] = [[sorted(np.unique(nodes).tolist()) for nodes in each.input_nodes] for each in found]
    assert sources["hash"] == sources["time"]


@pytest.mark.parametrize("order", ["hash", "time"])
@pytest.mark.parametrize("memory", ["1GiB", 0])
def test_the_latest_of_equal_times_are_those_of_the_smallest_hashes(tmp_path: Path, order: str, memory: Any) -> None:
    """With the topology in memory as in sweeps, from lists of either order, and sorted by NumPy."""
    schema = described(5, users=300, edges=9000, order=order)  # 300 buyers of each item, at 14 times
    schema["nodes"]["item"] |= {"features": np.ones((30, 1), np.float32), "labels": np.arange(30) % 2,
                                "train": np.arange(30)}  # fmt: skip
    diskgnn.convert(tmp_path / "graph", schema=schema)
    target = diskgnn.NodeTarget("item", {"train": np.arange(30)}, {"train": np.arange(30) % 9})
    diskgnn.sample(tmp_path / "graph", tmp_path / "samples", fanouts={BUYS: [20], KNOWS: [0]}, batch_size=30,
                   temporal="last", target=target, shuffle=False, memory=memory)  # fmt: skip
    (found,) = Samples.open(tmp_path / "samples").read("train")
    block, drawn = found.blocks[0][0], found.input_nodes[0]
    users, pairs = schema["nodes"]["user"]["times"], schema["edges"][":".join(BUYS)]["edges"]
    for item in range(30):
        buyers = pairs[0, (pairs[1] == item) & (users[pairs[0]] <= item % 9)]
        expected = buyers[np.lexsort((order_hash(buyers), -users[buyers]))][:20]
        of_item = drawn[block.indices[block.indptr[item] : block.indptr[item + 1]]]
        assert sorted(of_item.tolist()) == sorted(expected.tolist())


def test_who_asks_for_it_gets_it(tmp_path: Path) -> None:
    schema = described(1, edges=50)

    def orders(name: str) -> list[bool]:
        return [edges.config.by_time for edges in Graph.open(tmp_path / name).edges.values()]

    diskgnn.convert(tmp_path / "usual", schema=schema)
    diskgnn.convert(tmp_path / "said", schema=schema, order="time")
    diskgnn.convert(tmp_path / "unsaid", schema={**schema, "order": "time"}, order="hash")
    assert (orders("usual"), orders("said"), orders("unsaid")) == ([False] * 3, [True, False, True], [False] * 3)
    plain = {"nodes": {"user": {"num_nodes": 60}, "item": {"num_nodes": 30}},
             "edges": {"user:buys:item": {"edges": schema["edges"]["user:buys:item"]["edges"]}}}  # fmt: skip
    with pytest.raises(ConfigError, match="order: found 'time', while no type of nodes or edges has times"):
        diskgnn.convert(tmp_path / "none", schema=plain, order="time")
    with pytest.raises(ConfigError, match="order: expected one of hash, time, found 'age'"):
        diskgnn.convert(tmp_path / "none", schema=schema, order="age")
    plain["nodes"]["user"]["times"] = np.arange(60)
    plain["edges"]["user:buys:item"]["drop_duplicates"] = True
    diskgnn.convert(tmp_path / "dropped", schema=plain, order="time")
    assert orders("dropped") == [False]


def test_tables_with_keys_are_in_it(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE orders (at TIMESTAMP, by INTEGER REFERENCES users)")
        connection.executemany("INSERT INTO users VALUES (?)", [(0,), (1,)])
        days = [f"2020-01-{day:02}" for day in (9, 3, 7, 1, 5)]
        connection.executemany("INSERT INTO orders VALUES (?, 0)", [(day,) for day in days])
    connection.close()
    at = ["--from", "sqlite", tmp_path / "shop.db", "--set", "times=orders.at"]
    run("convert", tmp_path / "graph", *at)
    run("convert", tmp_path / "hashed", *at, "--order", "hash")
    edge_type = ("orders", "f2p_by", "users")
    assert Graph.open(tmp_path / "graph").edges[edge_type].indices.tolist() == [3, 1, 4, 2, 0]
    hashed = Graph.open(tmp_path / "hashed").edges[edge_type].indices
    assert hashed.tolist() == np.arange(5)[np.argsort(order_hash(np.arange(5)))].tolist()
    assert "by_time" in run("inspect", tmp_path / "graph").stdout.replace(" ", "_")
