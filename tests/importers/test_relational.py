"""Tables with keys become the graph that RelBench makes of them, or one that is small enough to check by hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from table_features import x_of

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.source_formats.relational_source import RelationalSource

DAY = 86_400


def tables() -> dict[str, pa.Table]:
    """A shop: users, what they bought, and whether they came back."""
    days = pa.array(["2020-01-01", "2020-01-02", "2020-01-09"]).cast(pa.timestamp("ns"))
    return {
        "users": pa.table({
            "name": ["zoe", "ann", "bob"],
            "since": days,
            "age": pa.array([20.0, 40.0, 600.0]),
            "plan": pa.array(["pro", None, "new"]).dictionary_encode(),
            "about": pa.array([f"text {i}" for i in range(3)]),
            "paid": pa.array([True, False, None]),
            "face": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32())),
        }),
        "orders": pa.table({
            "user": ["ann", "zoe", None, "ann", "eve"],
            "at": pa.array([3, 4, 5, 6, 7], pa.int64()),
            "refers_to": pa.array([None, 101.0, 103.0, None, None], pa.float64()),
            "order": pa.array([100, 101, 102, 103, 104], pa.int64()),
        }),
        "churn-train": pa.table({"user": ["ann", "ann", "zoe"], "day": [10, 20, 20], "left": [True, False, True]}),
        "churn-valid": pa.table({"user": ["bob", "zoe"], "day": [25, 30], "left": [None, False]}),
    }  # fmt: skip


DESCRIPTION = """
val_timestamp: 2020-01-05
tables:
  users: {file: users.parquet, pkey: name, time: since, columns: {about: none}}
  orders: {file: orders.csv, pkey: order, fkeys: {user: users, refers_to: orders}, time: at}
tasks:
  churn: {train: churn-train.parquet, valid: churn-valid.parquet, entity: {user: users}, label: left, time: day}
"""


def folder(tmp_path: Path, description: str = DESCRIPTION, **replaced: pa.Table) -> Path:
    path = tmp_path / "shop"
    path.mkdir(exist_ok=True)
    for name, table in {**tables(), **replaced}.items():
        if name == "orders":
            csv.write_csv(table, path / "orders.csv")
        else:
            pq.write_table(table, path / f"{name}.parquet")
    (path / "relational.yaml").write_text(description)
    return path


def pairs(graph: Graph, *edge_type: str) -> list[tuple[int, int]]:
    edges = graph.edges[edge_type]  # type: ignore[index]
    heads = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return sorted(zip(edges.indices.tolist(), heads.tolist(), strict=True))


def test_shop_by_hand(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="left out 1 of 4 edges by row number and column 'user'"):
        diskgnn.convert(tmp_path / "graph", source=folder(tmp_path))
    graph = Graph.open(tmp_path / "graph")
    users, orders, churn = (graph.nodes[name] for name in ("users", "orders", "churn"))
    # Up to 5 January: zoe and ann, so age is (x - 30) / 10 and plan knows pro only.
    assert x_of(users).tolist() == [[-1, 1, 1, 1, 2], [1, 0, 0, 0, 0], [57, 0, 0, 3, 4]]
    assert users.times is not None
    assert users.times.tolist() == [18262 * DAY, 18263 * DAY, 18270 * DAY]
    assert x_of(orders).tolist() == [[1]] * 5
    assert pairs(graph, "orders", "f2p_user", "users") == [(0, 1), (1, 0), (3, 1)]
    assert pairs(graph, "users", "rev_f2p_user", "orders") == [(0, 1), (1, 0), (1, 3)]
    assert pairs(graph, "orders", "f2p_refers_to", "orders") == [(1, 1), (2, 3)]
    assert pairs(graph, "users", "rev_f2p_user", "churn") == [(0, 2), (0, 4), (1, 0), (1, 1), (2, 3)]
    assert not [name for name in graph.edges if name[0] == "churn"]
    assert churn.labels is not None
    assert churn.labels.tolist() == [1, 0, 1, -1, 0]
    assert churn.times is not None
    assert churn.times.tolist() == [10, 20, 20, 25, 30]
    assert {split: ids.tolist() for split, ids in churn.splits.items()} == {"train": [0, 1, 2], "valid": [4]}
    assert users.user_ids is not None
    with users.user_ids as file:
        assert file.read()["id"].to_pylist() == ["zoe", "ann", "bob"]


def test_values_that_are_later_than_their_row_are_told(tmp_path: Path) -> None:
    times = tables()["users"]["since"].cast(pa.timestamp("us"))
    day = pa.scalar(86_400_000_000, pa.duration("us"))
    seen, born = pc.add(times, pc.multiply(day, pa.array([0, 3, 1]))), pc.subtract(times, day)
    table = tables()["users"].append_column("seen", seen).append_column("born", born.cast(pa.date32()))
    with pytest.warns(DataWarning) as found:
        diskgnn.convert(tmp_path / "graph", source=folder(tmp_path, users=table))
    told = [str(each.message) for each in found if "are later than" in str(each.message)]
    assert told == [
        "users.seen: 2 values are later than the time of their row ('since'). If they were written after it, a model "
        "reads the future from them: leave the column out (`exclude`, users.seen)"
    ]
    with pytest.warns(DataWarning) as found:
        diskgnn.convert(tmp_path / "other", source=folder(tmp_path, users=table), exclude="users.seen")
    assert not [each for each in found if "are later than" in str(each.message)]


def test_a_time_before_all_rows_is_told(tmp_path: Path) -> None:
    early = DESCRIPTION.replace("val_timestamp: 2020-01-05", "val_timestamp: 1990-01-01")
    with pytest.warns(DataWarning, match="val_timestamp: no row of table users .* is as early"):
        diskgnn.convert(tmp_path / "graph", source=folder(tmp_path, early))


def test_every_column_is_read_or_left_out(tmp_path: Path) -> None:
    train = tables()["churn-train"].append_column("note", pa.array([1, 2, 3]))
    with pytest.warns(DataWarning, match="note of churn .of a task, the entity, the label and the time are read"):
        report = diskgnn.convert(tmp_path / "graph", source=folder(tmp_path, **{"churn-train": train}))
    uses = {(item.of, item.name): item.use for item in report.contents.read}
    assert (uses["orders", "user"], uses["churn", "user"]) == ("edges to users", "edges from users")
    assert (uses["orders", "order"], uses["users", "age"], uses["churn", "left"]) == ("ids", "features", "labels")
    assert [(item.name, item.expected) for item in report.contents.left_out] == [("about", True), ("note", False)]


def test_refusals(tmp_path: Path) -> None:
    cases: list[tuple[str, type[Exception], str]] = [
        (DESCRIPTION.replace("pkey: name, ", ""), ConfigError, "expected a pkey of table users"),
        (DESCRIPTION.replace("user: users, refers", "user: people, refers"), ConfigError, "found 'people'"),
        (DESCRIPTION.replace("time: since", "time: when"), InputError, "expected a column 'when'"),
        (DESCRIPTION.replace("about: none", "about: words"), ConfigError, "about: expected number, .*found 'words'"),
        (DESCRIPTION.replace("about: none", "name: none"), ConfigError, "no keys and not the time.*found 'name'"),
        (DESCRIPTION.replace("2020-01-05", "soon"), ConfigError, "val_timestamp: .*date or time .*found 'soon'"),
        (DESCRIPTION.replace("label: left", "label: gone"), InputError, "expected a column 'gone'"),
        (DESCRIPTION.replace("entity: {user: users}, ", ""), ConfigError, "expected one key of an entity, found none"),
        (DESCRIPTION.replace("file: users.parquet", "file: people.parquet"), InputError, "people.parquet"),
    ]
    for description, error, message in cases:
        with pytest.raises(error, match=message):
            diskgnn.convert(tmp_path / "graph", source=folder(tmp_path, description))
        assert not (tmp_path / "graph").exists()
    sqlite3.connect(tmp_path / "shop.db").execute("create table users (name text primary key)").connection.close()
    hint = "tables in YAML, found an SQLite database; `diskgnn convert` takes it with format='sqlite'"
    with pytest.raises(ConfigError, match=hint):
        diskgnn.convert(tmp_path / "graph", source=tmp_path / "shop.db", format="relational")
    with pytest.raises(ConfigError, match=r"source: expected a description of the tables, found no file .*\.yaml"):
        diskgnn.convert(tmp_path / "graph", source=tmp_path, format="relational")
    with pytest.raises(InputError, match=r"found 'eve' in edge 3 .*no node has"):
        diskgnn.convert(tmp_path / "graph", source=folder(tmp_path), options={"skip_unknown": False})
    twice = tables()["users"].set_column(0, "name", pa.array(["zoe", "ann", "ann"]))
    with pytest.raises(InputError, match="table users: expected every id once, found 'ann' in row 1 and in row 2"):
        diskgnn.convert(tmp_path / "graph", source=folder(tmp_path, users=twice))


def test_texts_of_many_values_are_left_out_and_said(tmp_path: Path) -> None:
    many = pa.table({"key": np.arange(40), "text": [f"t{i}" for i in range(40)], "word": ["a", "b"] * 20})
    few = pa.table({"of": np.arange(40)[::-1].copy()})

    def table(frame: pa.Table, pkey: str | None, fkeys: dict[str, str]) -> Any:
        return SimpleNamespace(df=frame, pkey_col=pkey, fkey_col_to_pkey_table=fkeys, time_col=None)

    database = SimpleNamespace(table_dict={"many": table(many, "key", {}), "few": table(few, None, {"of": "many"})})
    with pytest.warns(DataWarning, match="left out of the graph: text of many .40 values, with fewer than 4 rows each"):
        diskgnn.convert(tmp_path / "graph", source=database)
    graph = Graph.open(tmp_path / "graph")
    assert x_of(graph.nodes["many"]).tolist() == [[1, 0], [0, 1]] * 20
    assert graph.nodes["many"].user_ids is None  # keys are 0, 1, 2, ...
    assert pairs(graph, "few", "f2p_of", "many") == [(i, 39 - i) for i in range(40)]


def test_equals_relbench(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    base, modeling = pytest.importorskip("relbench.base"), pytest.importorskip("relbench.modeling.graph")
    rng, num_users, num_items, num_reviews = np.random.default_rng(0), 50, 20, 400
    user_of = rng.integers(0, num_users, num_reviews).astype(float)
    user_of[::17] = np.nan
    seconds = np.sort(rng.integers(0, 10**9, num_reviews))
    users = pd.DataFrame({"user": np.arange(num_users), "age": rng.normal(40, 10, num_users)})
    items = pd.DataFrame({"item": np.arange(num_items), "old": rng.random(num_items) < 0.5})
    reviews = pd.DataFrame({"user": user_of, "item": rng.integers(0, num_items, num_reviews),
                            "at": pd.to_datetime(seconds, unit="s").astype("datetime64[ns]")})  # fmt: skip
    database = base.Database(
        {
            "users": base.Table(users, {}, "user"),
            "items": base.Table(items, {}, "item"),
            "reviews": base.Table(reviews, {"user": "users", "item": "items"}, None, "at"),
        }
    )
    task = {"train": base.Table(pd.DataFrame({"at": reviews["at"][:9], "user": np.arange(9), "left": np.arange(9.0)}),
                                {"user": "users"}, None, "at"), "label": "left", "kind": "regression"}  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=RelationalSource.of(database, {"task": task}))
    graph = Graph.open(tmp_path / "graph")
    expected, _ = modeling.make_pkey_fkey_graph(database, {"users": {}, "items": {}, "reviews": {}})
    assert {*expected.edge_types} == {*graph.edges} - {("users", "rev_f2p_user", "task")}
    for edge_type in expected.edge_types:
        assert pairs(graph, *edge_type) == sorted(map(tuple, expected[edge_type].edge_index.T.tolist()))
    assert graph.nodes["reviews"].times is not None
    np.testing.assert_array_equal(graph.nodes["reviews"].times, expected["reviews"].time)
    ages = x_of(graph.nodes["users"])[:, 0]
    np.testing.assert_allclose(ages, (users["age"] - users["age"].mean()) / users["age"].std(ddof=0), rtol=1e-5)
    assert graph.nodes["task"].labels.tolist() == list(range(9))


def test_where_val_timestamp_has_no_effect(tmp_path):
    """A table without times is scaled by all rows, which is listed; if none has times, it is refused."""
    pq.write_table(pa.table({"id": [1, 2], "age": [20.0, 40.0]}), tmp_path / "users.parquet")
    pq.write_table(pa.table({"user": [1, 2], "at": [3, 9], "x": [1.0, 5.0]}), tmp_path / "orders.parquet")
    tables = (
        "tables:\n  users: {file: users.parquet, pkey: id}\n  orders: {file: orders.parquet, fkeys: {user: users}%s}\n"
    )
    (tmp_path / "relational.yaml").write_text(tables % "")
    with pytest.raises(ConfigError, match=r"val_timestamp: expected tables with times, .* found none; say when rows"):
        diskgnn.convert(tmp_path / "graph", source=tmp_path, options={"val_timestamp": 5})
    (tmp_path / "relational.yaml").write_text(tables % ", time: at")
    report = diskgnn.convert(tmp_path / "graph", source=tmp_path, options={"val_timestamp": 5})
    told = {(each.of, each.name): each.reason for each in report.contents.left_out}
    assert told == {("users", "val_timestamp"): "it has no times, so features are scaled by all rows"}
