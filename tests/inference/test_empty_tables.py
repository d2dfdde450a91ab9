"""A database in which a table is still empty, asked about by a model that was trained where it has rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.errors import ConfigError, InputError

TABLES = """
CREATE TABLE users (id INTEGER PRIMARY KEY, age INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER REFERENCES users (id), at TIMESTAMP, total REAL);
INSERT INTO users WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 29)
    SELECT i, 20 + i * 7 % 40 FROM n;
"""
ORDERS = """
INSERT INTO orders WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 199)
    SELECT i, i % 30, datetime('2020-02-01', i || ' hours'), i / 7.0 FROM n;
"""
AT = {"times": "orders.at"}


def database(path: Path, *statements: str) -> str:
    with sqlite3.connect(path) as connection:
        connection.executescript("".join(statements))
    connection.close()
    return f"sqlite:{path}"


@pytest.mark.parametrize("model", ["relational", "rgcn"])
def test_it_is_as_before_the_first_row(tmp_path: Path, model: str) -> None:
    graph, later = tmp_path / "graph", tmp_path / "later"
    diskgnn.convert(graph, source=database(tmp_path / "full.db", TABLES, ORDERS), options=AT)
    nodes, days = np.arange(30), np.full(30, np.datetime64("2020-02-06", "s"))
    target = diskgnn.NodeTarget("users", {"train": nodes}, {"train": days}, {"train": nodes % 2})
    diskgnn.prepare(
        graph, tmp_path / "packed", target=target, temporal="last", fanouts=[4, 2], batch_size=8, cpu_cache=0
    )
    diskgnn.train(tmp_path / "packed", model=model, hidden=8, epochs=1, checkpoint=tmp_path / "run")
    diskgnn.convert(later, source=database(tmp_path / "empty.db", TABLES), options=AT, encoding_of=graph)
    said = []
    for asked, at in ((graph, "2020-01-01"), (later, "2020-01-01"), (graph, "2020-02-05")):
        diskgnn.predict(asked, tmp_path / "out.npy", tmp_path / "run", at=at, overwrite=True)
        said.append(np.load(tmp_path / "out.npy"))
    np.testing.assert_array_equal(said[1], said[0])
    assert np.abs(said[2] - said[0]).max() > 1e-4
    found = diskgnn.Graph.open(later)
    assert (found.nodes["orders"].num_nodes, found.edges["orders", "f2p_user_id", "users"].num_edges) == (0, 0)
    if model == "rgcn":  # whole neighbourhoods are these, too
        diskgnn.infer(later, tmp_path / "all.npy", tmp_path / "run", ignore_times=True)
        np.testing.assert_allclose(np.load(tmp_path / "all.npy"), said[1], rtol=1e-5, atol=1e-6)
    diskgnn.propagate(later, tmp_path / "hops", target="users", nodes="all", ignore_times=True, memory="2GiB")


def test_without_another_graph_it_is_no_type(tmp_path: Path) -> None:
    empty = "CREATE TABLE visits (id INTEGER PRIMARY KEY, user_id INTEGER REFERENCES users (id));"
    diskgnn.convert(tmp_path / "graph", source=database(tmp_path / "shop.db", TABLES, ORDERS, empty), options=AT)
    assert [*diskgnn.Graph.open(tmp_path / "graph").nodes] == ["users", "orders"]
    edges = {"n:to:n": {"edges": np.empty((2, 0), np.int64)}}
    with pytest.raises(InputError, match="expected at least one node, found none"):
        diskgnn.convert(tmp_path / "none", schema={"nodes": {"n": {"num_nodes": 0}}, "edges": edges})


def test_times_that_were_forgotten_are_refused(tmp_path: Path) -> None:
    """The graph says which column they are; predictions at a time would draw rows of later."""
    source = database(tmp_path / "shop.db", TABLES, ORDERS)
    diskgnn.convert(tmp_path / "graph", source=source, options=AT)
    with pytest.raises(ConfigError, match=r"appear at 'at' in .*`diskgnn convert --set times=orders.at` of a database"):
        diskgnn.convert(tmp_path / "later", source=source, encoding_of=tmp_path / "graph")
    assert not (tmp_path / "later").exists()
    diskgnn.convert(tmp_path / "later", source=source, encoding_of=tmp_path / "graph", options=AT)
