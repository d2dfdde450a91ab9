"""The types of a graph as a Mermaid diagram; mermaid 12.3.0 has read what is expected here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from commands import run

import diskgnn
from diskgnn.graph.diagram import diagram
from diskgnn.graph.graph import Graph


def test_tables_and_their_keys(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    pq.write_table(
        pa.table({"id": [1, 2], "class": ["a", "b"], "2 names": [1.0, 2.5], "PK": [1.0, 0.0]}), shop / "users.parquet"
    )
    pq.write_table(pa.table({"user": [1, 2, 2], "at": [1, 2, 3]}), shop / "orders.parquet")
    (shop / "relational.yaml").write_text(
        "tables:\n  users: {file: users.parquet, pkey: id}\n"
        "  orders: {file: orders.parquet, fkeys: {user: users}, time: at}\n"
    )
    diskgnn.convert(tmp_path / "graph", source=shop)
    expected = """\
erDiagram
    "users"["users: 2 nodes"] {
        category class
        number _2_names
        number _PK
    }
    "orders"["orders: 3 nodes, with times"] {
    }
    "orders" }o--o{ "users" : "f2p_user: 3 edges"
"""
    assert run("inspect", tmp_path / "graph", "--diagram").stdout == expected


def test_arrays_of_one_type(tmp_path: Path) -> None:
    edges = np.array([[0, 1, 2], [1, 2, 0]])
    diskgnn.convert(tmp_path / "graph", edges=edges, features=np.ones((3, 5), np.float16))
    expected = """\
erDiagram
    "node"["node: 3 nodes"] {
        float16 features "5 numbers"
    }
    "node" }o--o{ "node" : "to: 3 edges"
"""
    assert diagram(Graph.open(tmp_path / "graph")) + "\n" == expected


def test_edges_that_lead_both_ways_of_their_own_are_both_there(tmp_path: Path) -> None:
    edges = np.array([[0, 1], [1, 0]])
    types = {"a:to:b": {"edges": edges}, "b:rev_to:a": {"edges": edges[::-1]}, "b:rev_of:a": {"edges": edges}}
    nodes = {name: {"num_nodes": 2} for name in "ab"}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": nodes, "edges": types})
    lines = diagram(Graph.open(tmp_path / "graph")).splitlines()
    assert [line.strip() for line in lines if "--" in line] == [
        '"a" }o--o{ "b" : "to: 2 edges"', '"b" }o--o{ "a" : "rev_of: 2 edges"',
    ]  # fmt: skip
