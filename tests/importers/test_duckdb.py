"""A DuckDB file becomes the graph that its tables in SQLite become, byte for byte, and what cannot be read is named."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import run
from table_features import x_of

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.importers.identity import identity

duckdb = pytest.importorskip("duckdb")

TABLES = """
CREATE TABLE users (id BIGINT PRIMARY KEY, since TIMESTAMP, age DOUBLE, plan VARCHAR, paid BOOLEAN);
CREATE TABLE "Order Details" (number VARCHAR PRIMARY KEY, "user" BIGINT REFERENCES users, "at" DATE NOT NULL,
                              price DOUBLE, earlier VARCHAR REFERENCES "Order Details" (number));
CREATE TABLE visits ("user" BIGINT REFERENCES users (id), seconds BIGINT);
INSERT INTO users VALUES (10, '2019-12-31 23:59:59', 20, 'pro', true), (7, '2020-01-02 00:00:00', 40.5, NULL, false),
                         (20, '1969-07-20 20:17:40', NULL, 'new', NULL);
INSERT INTO "Order Details" VALUES ('b', 10, '2020-01-03', 1, NULL);
INSERT INTO "Order Details" VALUES ('a', NULL, '2020-01-04', 2.5, 'b');
INSERT INTO "Order Details" VALUES ('c', 7, '2020-01-09', 3, 'a');
INSERT INTO visits VALUES (20, 5), (20, 9), (7, 2);
"""


def database(tmp_path: Path, script: str = TABLES, name: str = "shop.duckdb") -> Path:
    path = tmp_path / name
    with duckdb.connect(str(path)) as connection:
        connection.execute(script)
    return path


@pytest.mark.parametrize("name", ["auto", "duckdb"])
def test_a_database_equals_the_same_in_sqlite(tmp_path: Path, name: str) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as other:
        other.executescript(TABLES)
    other.close()
    options = ("--set", "times=users.since,Order Details.at", "--set", "val_timestamp=2020-01-05", "--exclude", "paid")
    run("convert", tmp_path / "graph", "--from", name, database(tmp_path), *options)
    run("convert", tmp_path / "same", "--from", "sqlite", tmp_path / "shop.db", *options)
    graph, same = Graph.open(tmp_path / "graph"), Graph.open(tmp_path / "same")
    assert {*graph.edges} == {*same.edges}
    # SQLite lists foreign keys from the last to the first, which is the order of edge types in a manifest.
    assert {name: entry.crc32c for name, entry in graph.manifest.files.items()} == {
        name: entry.crc32c for name, entry in same.manifest.files.items()
    }
    assert graph.nodes["users"].times is not None


def test_many_rows_come_in_their_order(tmp_path: Path) -> None:
    path = database(tmp_path, """
        CREATE TABLE b (id BIGINT PRIMARY KEY);
        CREATE TABLE a (id BIGINT PRIMARY KEY, x DOUBLE, b BIGINT REFERENCES b, kind VARCHAR);
        INSERT INTO b SELECT range FROM range(7);
        INSERT INTO a SELECT (r * 48271) % 300007, r * r % 977, r % 7, chr(97 + (r % 5)::INTEGER)
            FROM range(300000) t(r);
        DELETE FROM a WHERE x = 4;
        """)  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=path)
    graph = Graph.open(tmp_path / "graph")
    number = np.array([r for r in range(300_000) if r * r % 977 != 4])
    x = number.astype(np.float64) ** 2 % 977
    features = x_of(graph.nodes["a"])
    np.testing.assert_allclose(features[:, 0], (x - x.mean()) / x.std(), rtol=1e-5, atol=1e-6)
    kinds = next(each.values for each in graph.nodes["a"].config.columns or () if each.name == "kind")
    np.testing.assert_array_equal(np.array(kinds)[features[:, 1:].argmax(axis=1)], np.array([*"abcde"])[number % 5])
    edges = graph.edges["a", "f2p_b", "b"]
    assert np.diff(edges.indptr).tolist() == np.bincount(number % 7).tolist()


def test_what_types_become_and_what_is_left_out(tmp_path: Path) -> None:
    path = database(tmp_path, TABLES + """
        CREATE TYPE mood AS ENUM ('sad', 'glad');
        CREATE SCHEMA more;
        CREATE TABLE more.things (id UUID PRIMARY KEY, m mood, v FLOAT[2], cost DECIMAL(9, 2), made TIMESTAMPTZ,
                                  span INTERVAL);
        CREATE TABLE lines (a BIGINT, b BIGINT, PRIMARY KEY (a, b));
        CREATE TABLE notes (a BIGINT, b BIGINT, "user" BIGINT REFERENCES users, FOREIGN KEY (a, b) REFERENCES lines);
        CREATE TABLE bare (id BIGINT);
        CREATE VIEW paying AS SELECT * FROM users WHERE paid;
        INSERT INTO more.things VALUES (uuid(), 'glad', [1, 2], 1.5, '2020-01-01 00:00:00+01', NULL),
                                       (uuid(), 'sad', [3, 4], 2.5, 'infinity', NULL);
        INSERT INTO lines VALUES (2, 1), (3, 1);
        INSERT INTO notes VALUES (2, 1, 7);
        """)  # fmt: skip
    with pytest.warns(DataWarning, match="left out of the graph"):
        report = diskgnn.convert(tmp_path / "graph", source=path)
    assert {(item.of, item.name): item.reason for item in report.contents.left_out} == {
        ("paying", "table"): "it is a view",
        ("bare", "table"): "it has no rows",
        ("lines", "primary key (a, b)"): "it has several columns, so rows are numbered",
        ("notes", "foreign key (a, b)"): "it has several columns",
        ("more_things", "infinite values of made"): "1 rows have one: null now",
        ("more_things", "span"): "month_day_nano_interval is no number, time, truth value, category or vector",
    }
    graph = Graph.open(tmp_path / "graph")
    found = {each.name: each.how for each in report.contents.read if (each.of, each.use) == ("more_things", "features")}
    assert found == {"m": "category", "v": "vector", "cost": "number", "made": "time"}
    assert x_of(graph.nodes["more_things"]).shape == (2, 2 + 2 + 1 + 1)
    assert graph.edges["notes", "f2p_user", "users"].num_edges == 1


def test_refusals(tmp_path: Path) -> None:
    path = database(tmp_path)
    with pytest.raises(ConfigError, match=r"memory: expected at least .* to read the source"):
        diskgnn.convert(tmp_path / "graph", source=path, memory="150MiB")
    with pytest.raises(ConfigError, match=r"exclude: users.id, which is a key or a time"):
        diskgnn.convert(tmp_path / "graph", source=path, exclude="users.id")
    keyless = database(tmp_path, "CREATE TABLE t (x BIGINT); INSERT INTO t VALUES (1)", "keyless.duckdb")
    with pytest.raises(ConfigError, match="expected tables with foreign keys, found none in t"):
        diskgnn.convert(tmp_path / "graph", source=keyless)
    (tmp_path / "text.duckdb").write_text("no database")
    with pytest.raises(InputError, match=r"text.duckdb: expected a database that DuckDB can read, found: "):
        diskgnn.convert(tmp_path / "graph", source=tmp_path / "text.duckdb", format="duckdb")
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) // 2])
    with pytest.raises(InputError, match=r"shop.duckdb: expected a database that DuckDB can read, found: "):
        diskgnn.convert(tmp_path / "graph", source=path)
    assert not (tmp_path / "graph").exists()


def test_a_file_that_somebody_writes_to(tmp_path: Path) -> None:
    path = database(tmp_path)
    before = identity({"source": path})
    script = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); c.execute('UPDATE visits SET seconds = 1'); print(1, flush=True); sys.stdin.read()"  # noqa: E501
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert identity({"source": path}) != before  # its log counts
        with pytest.raises(InputError, match=r"shop.duckdb: .*lock"):
            diskgnn.convert(tmp_path / "graph", source=path)
        writer.communicate()
    diskgnn.convert(tmp_path / "graph", source=path)


def test_keys_are_equal_where_constraints_say_so(tmp_path: Path) -> None:
    """DuckDB's constraints do not look at collations: its joins would find two rows."""
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("""
            CREATE TABLE users (id BIGINT PRIMARY KEY, email VARCHAR COLLATE NOCASE UNIQUE);
            CREATE TABLE sales (email VARCHAR REFERENCES users (email), amount BIGINT);
            INSERT INTO users VALUES (5, 'Ann'), (6, 'ANN'), (7, 'bob');
            INSERT INTO sales VALUES ('ANN', 1), ('bob', 2), ('Ann', 3);
            """)
        assert len(connection.execute("FROM users JOIN sales ON users.email = sales.email").fetchall()) == 5
    diskgnn.convert(tmp_path / "graph", source=path)
    edges = Graph.open(tmp_path / "graph").edges["sales", "f2p_email", "users"]
    assert (edges.indptr.tolist(), edges.indices.tolist()) == ([0, 1, 2, 3], [2, 0, 1])


def test_keys_of_a_type_that_has_none_are_refused_before_the_fetch(tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("""
            CREATE TABLE users (id DECIMAL(9, 2) PRIMARY KEY, x DOUBLE);
            CREATE TABLE sales (u DECIMAL(9, 2) REFERENCES users (id), amount BIGINT);
            INSERT INTO users VALUES (1, 2);
            INSERT INTO sales VALUES (1, 2);
            """)
    with (
        faults.armed("work.piece", AssertionError("fetched")),
        pytest.raises(InputError, match=r"table users: expected keys .* 'id', found decimal128\(9, 2\): cast it"),
    ):
        diskgnn.convert(tmp_path / "graph", source=path)
