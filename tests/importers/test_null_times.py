"""Missing times mean what `null_time` says, whichever door they come through."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import run
from torch_geometric.data import Data

import diskgnn
from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.pyg import NeighborLoader

NEVER, ALWAYS = 2**63 - 1, -(2**63)
# Node 4 is the seed, at time 10; nodes 0 to 3 point at it. 0 is early, 1 late, 2 and 3 have no time.
BORN = [5, 20, None, None, 10]
SOURCES = np.array([0, 1, 2, 3])
EDGES = np.stack([SOURCES, np.full(4, 4)])


def datetimes() -> np.ndarray[Any, Any]:
    return np.array([np.datetime64("NaT") if each is None else np.datetime64(each, "s") for each in BORN])


def floats() -> np.ndarray[Any, Any]:
    return np.array([np.nan if each is None else each for each in BORN], np.float64)


def schema_of(folder: Path, times: Any) -> dict[str, Any]:
    """A graph whose nodes have `times`: an array, or the name of a kind of table."""
    nodes: dict[str, Any] = {"features": np.eye(5, dtype=np.float32), "labels": np.zeros(5, np.int64), "train": [4]}
    if isinstance(times, str):
        path = folder / f"nodes.{times}"
        table = pa.table({"x": np.arange(5.0), "born": pa.array(BORN, pa.timestamp("s"))})
        if times == "parquet":
            pq.write_table(table, path)
        else:
            path.write_text(
                "x,born\n" + "".join(f"{i},{'' if each is None else each}\n" for i, each in enumerate(BORN))
            )
        nodes = {"table": path, "columns": {"time": "born"}, "labels": np.zeros(5, np.int64), "train": np.array([4])}
    else:
        nodes |= {"times": times, "train": np.array([4])}
    return {"nodes": {"n": nodes}, "edges": {"n:to:n": {"edges": EDGES}}}


@pytest.mark.parametrize("times", ["parquet", "csv", datetimes(), floats()], ids=["parquet", "csv", "NaT", "NaN"])
@pytest.mark.parametrize(("null_time", "stored", "seen"), [("never", NEVER, {0}), ("always", ALWAYS, {0, 2, 3})])
def test_seeds_see_what_it_says(tmp_path: Path, times: Any, null_time: str, stored: int, seen: set[int]) -> None:
    diskgnn.convert(tmp_path / "graph", schema=schema_of(tmp_path, times), null_time=null_time)
    assert np.array(Graph.open(tmp_path / "graph").nodes["n"].times).tolist() == [5, 20, stored, stored, 10]
    for temporal in ("uniform", "last"):
        diskgnn.prepare(
            tmp_path / "graph",
            tmp_path / temporal,
            fanouts=[-1],
            batch_size=1,
            epochs=1,
            temporal=temporal,
            keep_input_nodes=True,
        )
        with diskgnn.Loader(tmp_path / temporal) as loader:
            (batch,) = loader
        assert batch.input_nodes is not None
        assert {*batch.input_nodes.tolist()} == {4, *seen}


@pytest.mark.parametrize("times", ["parquet", "csv", datetimes(), floats()], ids=["parquet", "csv", "NaT", "NaN"])
def test_they_are_refused_unless_it_is_said(tmp_path: Path, times: Any) -> None:
    with pytest.raises(
        InputError, match=r"times.*found none at 2 \(from 0\), nor at 1 after it; pass null_time='never'"
    ):
        diskgnn.convert(tmp_path / "graph", schema=schema_of(tmp_path, times))
    assert not (tmp_path / "graph").exists()


def test_a_type_may_say_its_own(tmp_path: Path) -> None:
    schema = schema_of(tmp_path, floats())
    schema["nodes"]["n"]["null_time"] = "never"
    schema["edges"]["n:to:n"]["times"] = np.array([np.nan, 1, 2, 3])
    diskgnn.convert(tmp_path / "graph", schema=schema, null_time="always")
    graph = Graph.open(tmp_path / "graph")
    assert np.array(graph.nodes["n"].times)[2] == NEVER
    assert sorted(np.array(graph.edges["n", "to", "n"].times).tolist()) == [ALWAYS, 1, 2, 3]


def test_seeds_need_a_time(tmp_path: Path) -> None:
    schema = schema_of(tmp_path, floats())
    schema["nodes"]["n"]["train"] = np.array([4, 3, 2])
    diskgnn.convert(tmp_path / "graph", schema=schema, null_time="never")
    with pytest.raises(ConfigError, match=r"seed of train, found none for 2 of 3, the first of which is node 3"):
        diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[2], temporal="last")
    target = diskgnn.NodeTarget("n", seeds={"train": [3, 4]}, times={"train": [7, 30]})
    diskgnn.prepare(
        tmp_path / "graph",
        tmp_path / "packed",
        target=target,
        fanouts=[-1],
        batch_size=2,
        epochs=1,
        temporal="last",
    )


def test_seed_edges_need_the_time_of_an_end(tmp_path: Path) -> None:
    schema = schema_of(tmp_path, floats())
    schema["edges"]["n:to:n"]["train"] = np.array([[0, 2], [1, 3]])
    diskgnn.convert(tmp_path / "graph", schema=schema, null_time="always")
    target = diskgnn.LinkTarget("n:to:n", negatives=1)
    with pytest.raises(ConfigError, match=r"none for 1 of 2, the first of which is the edge 2 -> 3"):
        diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", target=target, fanouts=[2], temporal="last")


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    schema = schema_of(tmp_path, floats())
    with pytest.raises(ConfigError, match="null_time: expected one of never, always, or None, found 'sometimes'"):
        diskgnn.convert(tmp_path / "graph", schema=schema, null_time="sometimes")
    del schema["nodes"]["n"]["times"]
    with pytest.raises(ConfigError, match="null_time: found 'never', while no type of nodes or edges has times"):
        diskgnn.convert(tmp_path / "graph", schema=schema, null_time="never")


def test_the_command_says_it_too(tmp_path: Path) -> None:
    schema_of(tmp_path, "csv")
    (tmp_path / "graph.yaml").write_text(
        "nodes: {n: {table: nodes.csv, columns: {time: born}}}\nedges: {'n:to:n': {edges: edges.npy}}\n"
    )
    np.save(tmp_path / "edges.npy", EDGES)
    refused = run("convert", tmp_path / "graph", "--schema", tmp_path / "graph.yaml", exit_code=3)
    assert "--null-time" in refused.output
    run("convert", tmp_path / "graph", "--schema", tmp_path / "graph.yaml", "--null-time", "never")
    assert np.array(Graph.open(tmp_path / "graph").nodes["n"].times)[3] == NEVER


def test_rows_of_databases_too(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, born TIMESTAMP, up INTEGER REFERENCES a)")
        connection.executemany("INSERT INTO a VALUES (?, ?, 0)", [(0, "2020-01-01"), (1, None)])
    connection.close()
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "shop.db", options={"times": "a.born"}, null_time="always")
    assert np.array(Graph.open(tmp_path / "graph").nodes["a"].times).tolist() == [1577836800, ALWAYS]


def test_seeds_of_tasks_need_a_time(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b"]}), tmp_path / "users.parquet")
    task = pa.table({"user": ["a", "b"], "day": [10, None], "left": [True, False]})
    pq.write_table(task, tmp_path / "churn-train.parquet")
    (tmp_path / "relational.yaml").write_text(
        "tables: {users: {file: users.parquet, pkey: id}}\n"
        "tasks: {churn: {entity: {user: users}, time: day, label: left, train: churn-train.parquet}}\n"
    )
    with pytest.raises(InputError, match=r"times of task churn.*found none at 1"):
        diskgnn.convert(tmp_path / "graph", source=tmp_path, format="relational")
    diskgnn.convert(tmp_path / "graph", source=tmp_path, format="relational", null_time="never")
    with pytest.raises(ConfigError, match="none for 1 of 2"):
        diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[2], temporal="last")


def test_loaders_of_pyg_show_them_to_every_seed_as_pyg_does(tmp_path: Path) -> None:
    times = torch.tensor([5, 20, ALWAYS, ALWAYS, 10])
    data = Data(x=torch.eye(5), edge_index=torch.from_numpy(EDGES), time=times)
    loader = NeighborLoader(
        data, [-1], input_nodes=torch.tensor([4]), time_attr="time", batch_size=1, cache=tmp_path, progress=False
    )
    (batch,) = loader
    assert {*batch.n_id.tolist()} == {4, 0, 2, 3}
    assert dict(zip(batch.n_id.tolist(), batch.time.tolist(), strict=True))[2] == ALWAYS
