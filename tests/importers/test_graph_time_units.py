"""A graph says what its times count, where somebody knows it; and which edges lead to what is referred to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run

import diskgnn
from diskgnn.errors import ConfigError
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph

DATES = np.array(["2020-01-01", "2020-01-02", "2020-01-09"], "datetime64[D]")
EDGES = np.array([[0, 1, 2], [1, 2, 0]])
DAYS = np.array([3, 5, 9])


def made(path: Path, of_nodes: Any = None, of_edges: Any = None, **said: Any) -> str | None:
    """The unit of a graph of three nodes with these times."""
    node = {"features": np.eye(3, dtype=np.float32), "labels": np.arange(3) % 2, "train": np.arange(3)}
    node |= {} if of_nodes is None else {"times": of_nodes}
    edges = {"edges": EDGES} | ({} if of_edges is None else {"times": of_edges})
    schema = {"nodes": {"node": node}, "edges": {"node:to:node": edges}, **said.pop("schema", {})}
    diskgnn.convert(path / "graph", schema=schema, overwrite=True, **said)
    return Graph.open(path / "graph").config.time_unit


def test_it_is_said_or_follows_from_timestamps(tmp_path: Path) -> None:
    assert made(tmp_path, DAYS) is None
    assert made(tmp_path, DAYS, time_unit="d") == "d"
    assert made(tmp_path, DAYS, DAYS, schema={"time_unit": "y"}) == "y"
    assert made(tmp_path, DAYS, schema={"time_unit": "y"}, time_unit="y") == "y"
    assert made(tmp_path, DATES) == made(tmp_path, DATES, DATES) == made(tmp_path, DATES, time_unit="s") == "s"
    assert made(tmp_path, DATES, DAYS) is None  # whatever the numbers count
    assert made(tmp_path) is None


def test_columns_of_tables_follow_too(tmp_path: Path) -> None:
    for kind, values in {"numbers": DAYS, "dates": DATES, "text": DATES.astype(str)}.items():
        table = pa.table({"src": EDGES[0], "dst": EDGES[1], "when": pa.array(values)})
        pq.write_table(table, tmp_path / f"{kind}.parquet")
        edges = {"edges": tmp_path / f"{kind}.parquet", "columns": {"time": "when"}}
        diskgnn.convert(tmp_path / kind, schema={"nodes": {"n": {"num_nodes": 3}}, "edges": {"n:to:n": edges}})
        assert Graph.open(tmp_path / kind).config.time_unit == (None if kind == "numbers" else "s")


@pytest.mark.parametrize(
    ("given", "said", "message"),
    [
        (DAYS, {"time_unit": "days"}, "time_unit: expected one of ns, us, ms, s, min, h, d, w, y, found 'days'"),
        (DAYS, {"schema": {"time_unit": 3}}, "time_unit: expected one of ns, us"),
        (DAYS, {"schema": {"time_unit": "d"}, "time_unit": "s"}, "time_unit: expected d, as what is read says itself"),
        (DATES, {"time_unit": "d"}, "time_unit: expected s, as times of nodes of type node are dates or timestamps"),
        (None, {"time_unit": "d"}, "time_unit: found 'd', while no type of nodes or edges has times; leave it out"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, given: Any, said: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(tmp_path, given, **said)


def shop(folder: Path, at: pa.Array) -> Path:
    """Users who placed an order on each day, in tables with keys."""
    folder.mkdir()
    since = pa.array(np.full(2, "2019-01-01", "datetime64[D]"))
    pq.write_table(pa.table({"id": ["ann", "bob"], "since": since}), folder / "users.parquet")
    pq.write_table(pa.table({"id": range(20), "user": ["ann"] * 20, "at": at}), folder / "orders.parquet")
    (folder / "relational.yaml").write_text(
        "tables:\n  users: {file: users.parquet, pkey: id, time: since}\n"
        "  orders: {file: orders.parquet, pkey: id, fkeys: {user: users}, time: at}\n"
    )
    return folder


def test_tables_with_keys_know_both(tmp_path: Path) -> None:
    """Orders of a user are in the window of a command; the user of an order, who came a year before, is looked up."""
    days = np.datetime64("2020-01-01") + np.arange(20)
    seeds = pa.table({"id": ["ann"], "time": np.array(["2020-01-15"], "datetime64[D]")})
    pq.write_table(seeds, tmp_path / "seeds.parquet")
    run("convert", tmp_path / "graph", "--from", "relational", shop(tmp_path / "dates", pa.array(days)))
    graph = Graph.open(tmp_path / "graph")
    orders, users = ("orders", "f2p_user", "users"), ("users", "rev_f2p_user", "orders")
    assert graph.config.time_unit == "s"
    assert {each: edges.config.foreign_key for each, edges in graph.edges.items()} == {orders: True, users: False}
    flags = ["--fanouts", "-1,-1", "--target", "users", "--target-seeds", f"train={tmp_path / 'seeds.parquet'}",
             "--temporal", "uniform", "--edge-ids"]  # fmt: skip

    def drawn(name: str, *windows: str) -> tuple[list[int], int]:
        """Days of January of the orders drawn, and how many looked their user up."""
        run("sample", tmp_path / "graph", tmp_path / name, *flags, *(f"--temporal-window={each}" for each in windows))
        (found,) = Samples.open(tmp_path / name).read("train")
        (outer, inner), number = found.blocks, {each: at for at, each in enumerate(graph.edges)}
        nodes = found.input_nodes[graph.nodes["orders"].number][inner[number[orders]].indices]
        return sorted((nodes + 1).tolist()), len(outer[number[users]].indices)

    assert drawn("week", "7d") == ([*range(9, 16)], 7)
    assert drawn("listed", "orders:f2p_user:users=3d", "users:rev_f2p_user:orders=30d") == ([13, 14, 15], 0)
    assert drawn("all") == ([*range(1, 16)], 15)
    assert "window orders:f2p_user:users=604800s" in "".join(
        run("inspect", prepared(tmp_path, flags, "--temporal-window", "7d")).stdout.split("\n")
    )
    told = run("sample", tmp_path / "graph", tmp_path / "out", *flags, "--temporal-window", "7d",
               "--temporal-window", "orders:f2p_user:users=3d", exit_code=2)  # fmt: skip
    assert "expected one window for all edge types, or each as SOURCE:NAME:DESTINATION=WINDOW; found both" in " ".join(
        told.output.split()
    )
    numbers = shop(tmp_path / "numbers", pa.array(range(20)))
    diskgnn.convert(tmp_path / "counted", source=numbers, format="relational")
    assert Graph.open(tmp_path / "counted").config.time_unit is None


def prepared(folder: Path, flags: list[Any], *more: str) -> Path:
    run("prepare", folder / "graph", folder / "packed", *flags, *more, "--cpu-cache", 0)
    return folder / "packed"
