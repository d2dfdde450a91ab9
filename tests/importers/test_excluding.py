"""Columns that the user excludes: the graph is that of the same tables without them, at every door."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import yaml
from commands import run
from pyg_graphs import one_type
from table_features import x_of

import diskgnn
from diskgnn import TableColumns
from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.graph import Graph

NODES = pa.table({
    "id": ["a", "b", "c", "d"],
    "age": [20.0, 30.0, 40.0, 60.0],
    "about": [f"text {i}" for i in range(4)],
    "left": [0, 1, 1, 0],
    "last.seen": [5, 6, 7, 9],
})  # fmt: skip
EDGES = pa.table({"src": ["a", "b", "c"], "dst": ["b", "c", "d"], "left": [3.0, 4.0, 5.0]})


def tables(folder: Path, *without: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    for name, table in (("nodes", NODES), ("edges", EDGES)):
        kept = [column for column in table.column_names if column not in without]
        pa.csv.write_csv(table.select(kept), folder / f"{name}.csv")
    return {"nodes": folder / "nodes.csv", "edges": folder / "edges.csv"}


def database(folder: Path) -> Path:
    path = folder / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.executescript("""
            CREATE TABLE users (id INTEGER PRIMARY KEY, age REAL, left_us INTEGER, last_seen DATE, odd);
            CREATE TABLE "Order Details" (id INTEGER PRIMARY KEY, user INTEGER REFERENCES users, gift INTEGER
                                          REFERENCES users, price REAL, last_seen DATE);
            INSERT INTO users VALUES (1, 20, 0, '2020-01-01', 1), (2, 30, 1, '2020-01-03', 'x'),
                                     (3, 50, 1, '2020-01-09', NULL);
            INSERT INTO "Order Details" VALUES (1, 1, 2, 3.5, '2020-01-02'), (2, 3, 3, 4.5, '2020-01-05');
            """)
    connection.close()
    return path


def left_out(report: Any) -> dict[tuple[str, str], tuple[str, bool]]:
    return {(item.of, item.name): (item.reason, item.expected) for item in report.contents.left_out}


def test_tables_without_a_column(tmp_path: Path) -> None:
    report = diskgnn.convert(tmp_path / "graph", **tables(tmp_path), exclude=["about", "left", "last.seen"])
    others = tables(tmp_path / "others", "about", "left", "last.seen")
    diskgnn.convert(tmp_path / "same", **others)
    found, same = (Graph.open(tmp_path / name).nodes["node"].features for name in ("graph", "same"))
    np.testing.assert_array_equal(found, same)
    assert found.shape == (4, 1)
    assert left_out(report) == {
        **{("node", name): ("excluded by you", True) for name in ("about", "left", "last.seen")},
        ("node:to:node", "left"): ("excluded by you", True),
    }


@pytest.mark.parametrize("kind", ["text", "numbers", "rows"])
def test_ids_that_are_excluded_are_told(tmp_path: Path, kind: str) -> None:
    """Text is refused with what to do; numbers would be those of rows; where they are, nothing is to be said."""
    given = tables(tmp_path, "about", "left")
    ids = {"text": list("abcd"), "numbers": [3, 0, 2, 1], "rows": [0, 1, 2, 3]}[kind]
    pa.csv.write_csv(pa.table({"id": ids, "age": NODES["age"]}), given["nodes"])
    pa.csv.write_csv(pa.table({"src": ids[:3], "dst": ids[1:]}), given["edges"])
    words = ("convert", tmp_path / "graph", "--edges", given["edges"], "--nodes", given["nodes"], "--exclude", "id")
    told = " ".join(run(*words, exit_code=2 if kind == "text" else 0).stderr.split())
    assert ("column 'id' is excluded, so edges cannot name nodes by it" in told) == (kind != "rows")
    assert ("an id is no feature anyway: leave it out of --exclude" in told) == (kind != "rows")
    assert ("edges name nodes by the numbers of their rows" in told) == (kind == "numbers")


def test_ends_of_edges_that_are_excluded_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it is excluded, but the graph cannot do without .*'src' out of `exclude`"):
        diskgnn.convert(tmp_path / "graph", **tables(tmp_path), exclude="src")


def test_a_column_of_one_table_only(tmp_path: Path) -> None:
    columns = TableColumns(features=["left"])
    with pytest.raises(InputError, match=r"expected a column 'left' in .*nodes.csv, found .*it is excluded"):
        diskgnn.convert(tmp_path / "graph", **tables(tmp_path), columns=columns, exclude="nodes.left")
    diskgnn.convert(tmp_path / "graph", **tables(tmp_path), exclude=["nodes.left", "about"],
                    columns=TableColumns(weight="left"))  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    assert graph.nodes["node"].features.shape == (4, 2)
    assert np.array(graph.edges["node", "to", "node"].weights).tolist() == [3.0, 4.0, 5.0]


def test_a_label_that_is_excluded_is_no_label(tmp_path: Path) -> None:
    given = tables(tmp_path, "about")
    labelled = pa.table({"id": NODES["id"], "age": NODES["age"], "label": NODES["left"], "split": ["train"] * 4})
    pa.csv.write_csv(labelled, given["nodes"])
    report = diskgnn.convert(tmp_path / "graph", **given, exclude=["label", "split", "edges.left"])
    found = Graph.open(tmp_path / "graph").nodes["node"]
    assert found.labels is None
    assert found.splits == {}
    assert found.features.shape == (4, 1)
    assert left_out(report)["node", "label"] == ("excluded by you", True)


@pytest.mark.parametrize("from_yaml", [False, True])
def test_types_of_a_schema(tmp_path: Path, from_yaml: bool) -> None:
    given = {name: str(path) for name, path in tables(tmp_path).items()}
    schema: dict[str, Any] = {
        "nodes": {"user": {"table": given["nodes"]}},
        "edges": {"user:knows:user": {"edges": given["edges"], "columns": {"features": "left"}}},
    }
    if from_yaml:
        schema["nodes"]["user"]["columns"] = {"exclude": ["left", "about", "last.seen"]}
        (tmp_path / "graph.yaml").write_text(yaml.safe_dump(schema))
        report = diskgnn.convert(tmp_path / "graph", schema=tmp_path / "graph.yaml")
    else:
        report = diskgnn.convert(tmp_path / "graph", schema=schema, exclude=["user.left", "about", "user.last.seen"])
    graph = Graph.open(tmp_path / "graph")
    assert graph.nodes["user"].features.shape == (4, 1)
    assert graph.edges["user", "knows", "user"].config.rows is not None
    assert {name for (of, name), (why, _) in left_out(report).items() if why == "excluded by you"} == {
        "left", "about", "last.seen",
    }  # fmt: skip


def test_a_database(tmp_path: Path) -> None:
    path = database(tmp_path)
    names = ("users.left_us", "Order_Details.last_seen", "gift", "odd")
    excluded = [word for name in names for word in ("--exclude", name)]
    done = run("convert", tmp_path / "graph", "--from", "sqlite", path, "--set", "times=users.last_seen", *excluded)
    assert "warning: left out" not in done.stderr
    graph = Graph.open(tmp_path / "graph")
    assert {name: x_of(nodes).shape[1] for name, nodes in graph.nodes.items()} == {"users": 1, "Order_Details": 1}
    assert [edge_type[1] for edge_type in graph.edges] == ["f2p_user", "rev_f2p_user"]
    for shown in (done.stdout, run("inspect", tmp_path / "graph").stdout):
        for name in ("left_us", "last_seen", "gift", "odd"):
            assert any(line.split()[1:] == [name, "excluded", "by", "you"] for line in shown.splitlines() if line)


def test_a_database_in_memory(tmp_path: Path) -> None:
    class Rows:
        def __init__(self, frame: pa.Table, fkeys: dict[str, str]) -> None:
            self.df, self.pkey_col, self.fkey_col_to_pkey_table, self.time_col = frame, "id", fkeys, None

    class Database:
        def __init__(self) -> None:
            users = pa.table({"id": [0, 1, 2], "age": [1.0, 2.0, 4.0], "left": [0, 1, 1]})
            orders = pa.table({"id": [0, 1], "user": [2, 0], "price": [1.0, 3.0]})
            self.table_dict = {"users": Rows(users, {}), "orders": Rows(orders, {"user": "users"})}

    report = diskgnn.convert(tmp_path / "graph", source=Database(), exclude=["users.left"])
    assert x_of(Graph.open(tmp_path / "graph").nodes["users"]).shape == (3, 1)
    assert left_out(report)["users", "left"] == ("excluded by you", True)


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ("nosuch", r"exclude: expected COLUMN or TABLE.COLUMN .*found 'nosuch'; users has id, age, left_us, .*; Order"),
        ("orders.price", r"found 'orders.price'"),
        ("users.id", r"exclude: users.id, which is a key or a time"),
        ("last_seen", r"exclude: users.last_seen, which is a key or a time"),
    ],
)  # fmt: skip
def test_what_cannot_be_left_out_of_a_database(tmp_path: Path, exclude: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        diskgnn.convert(tmp_path / "graph", source=database(tmp_path), options={"times": "users.last_seen"},
                        exclude=[exclude])  # fmt: skip
    assert not (tmp_path / "graph").exists()


def test_names_that_no_table_has(tmp_path: Path) -> None:
    given = tables(tmp_path)
    with pytest.raises(ConfigError, match=r"exclude: .* found 'lft'; nodes has id, age, .*; edges has src, dst, left"):
        diskgnn.convert(tmp_path / "graph", **given, exclude=["lft"])
    refused = run("convert", tmp_path / "graph", "--edges", given["edges"], "--nodes", given["nodes"], "--exclude",
                  "users.left", exit_code=2)  # fmt: skip
    assert "--exclude: expected COLUMN or TABLE.COLUMN" in " ".join(refused.stderr.split())
    with pytest.raises(ConfigError, match=r"exclude: expected a source with columns \(relational, sqlite"):
        diskgnn.convert(tmp_path / "graph", source=one_type(), exclude=["x"])
    schema = {
        "nodes": {"user": {"table": given["nodes"], "columns": {"exclude": ["lft"]}}},
        "edges": {"user:knows:user": {"edges": given["edges"]}},
    }
    with pytest.raises(ConfigError, match=r"columns: exclude: expected columns of .*nodes.csv, .*found 'lft'"):
        diskgnn.convert(tmp_path / "graph", schema=schema)
