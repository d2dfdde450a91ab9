"""Databases as people have them: letters of names, what stands before a colon, very wide tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run

import diskgnn
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph


def database(path: Path, script: str) -> Path:
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()
    return path


def test_names_in_other_letters(tmp_path: Path) -> None:
    """SQLite compares names without regard to small and capital letters."""
    source = database(tmp_path / "shop.db", """
        CREATE TABLE shops (code TEXT UNIQUE NOT NULL, size REAL);
        CREATE TABLE sales (shop TEXT REFERENCES Shops (CODE), amount REAL);
        INSERT INTO shops VALUES ('a', 1), ('b', 2);
        INSERT INTO sales VALUES ('b', 5), ('a', 6), ('b', 7);
    """)  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=source)
    edges = Graph.open(tmp_path / "graph").edges["sales", "f2p_shop", "shops"]
    assert (edges.indptr.tolist(), sorted(edges.indices.tolist())) == ([0, 1, 3], [0, 1, 2])


def test_two_columns_of_times_are_refused(tmp_path: Path) -> None:
    source = database(tmp_path / "shop.db", """
        CREATE TABLE users (id INTEGER PRIMARY KEY, since DATE, seen DATE);
        CREATE TABLE sales (user INTEGER REFERENCES users);
        INSERT INTO users VALUES (1, '2020-01-01', '2021-01-01');
        INSERT INTO sales VALUES (1);
    """)  # fmt: skip
    with pytest.raises(ConfigError, match="times: expected one column of users, found since and seen"):
        diskgnn.convert(tmp_path / "graph", source=source, options={"times": "users.since,users.seen"})


@pytest.mark.parametrize(
    "url", ["mysql://u:planted@h/db", "'postgresql://u:planted@h/db'", " postgresql://u:planted@h"]
)
def test_what_is_no_format_is_not_shown_behind_its_colon(tmp_path: Path, url: str) -> None:
    done = run("convert", tmp_path / "graph", "--from", url, exit_code=2)
    assert "before the first colon" in " ".join(done.stderr.split())
    assert "planted" not in done.stdout + done.stderr


def test_a_very_wide_table_keeps_its_columns(tmp_path: Path) -> None:
    """NumPy itself refuses headers beyond 10,000 bytes unless it is told."""
    wide = {f"number_{number}": np.arange(3) + number for number in range(700)}
    pq.write_table(pa.table({"id": [0, 1, 2], **wide}), tmp_path / "users.parquet")
    pq.write_table(pa.table({"user": [2, 0]}), tmp_path / "sales.parquet")
    (tmp_path / "relational.yaml").write_text(
        "tables:\n  users: {file: users.parquet, pkey: id}\n  sales: {file: sales.parquet, fkeys: {user: users}}\n"
    )
    diskgnn.convert(tmp_path / "graph", source=tmp_path, format="relational", options={"keep_columns": True})
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", target=diskgnn.NodeTarget("users", {"train": [1, 2]}),
                    fanouts=[2], batch_size=2, cpu_cache=0)  # fmt: skip
    (batch,) = diskgnn.Loader(tmp_path / "packed")
    assert batch.columns["users"]["number_699"][:2].tolist() == (batch.seeds[:2] + 699).tolist()
