"""Databases as people have them: letters of names, what stands before a colon, very wide tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import run
from object_store import ObjectStore
from table_features import x_of

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.progress.reporter import SILENT


def database(path: Path, script: str, kind: str = "sqlite") -> Path:
    if kind == "duckdb":
        with pytest.importorskip("duckdb").connect(str(path)) as connection:
            connection.execute(script)
        return path
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


def test_a_very_wide_table_keeps_its_columns(tmp_path: Path, store: ObjectStore) -> None:
    """NumPy itself refuses headers beyond 10,000 bytes unless it is told."""
    wide = {f"number_{number}": np.arange(3) + number for number in range(700)}
    pq.write_table(pa.table({"id": [0, 1, 2], **wide}), tmp_path / "users.parquet")
    pq.write_table(pa.table({"user": [2, 0]}), tmp_path / "sales.parquet")
    (tmp_path / "relational.yaml").write_text(
        "tables:\n  users: {file: users.parquet, pkey: id}\n  sales: {file: sales.parquet, fkeys: {user: users}}\n"
    )
    diskgnn.convert(tmp_path / "graph", source=tmp_path, format="relational", options={"keep_columns": True})
    there = Graph.open(store.upload(tmp_path / "graph", f"{tmp_path.name}/graph"))
    assert there.nodes["users"].config.rows == Graph.open(tmp_path / "graph").nodes["users"].config.rows
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", target=diskgnn.NodeTarget("users", {"train": [1, 2]}),
                    fanouts=[2], batch_size=2, cpu_cache=0)  # fmt: skip
    with pytest.raises(ConfigError, match=r"dtype: rows that keep their columns have x in torch.float32"):
        diskgnn.Loader(tmp_path / "packed", dtype=torch.float16)
    (batch,) = diskgnn.Loader(tmp_path / "packed")
    assert batch.columns["users"]["number_699"][:2].tolist() == (batch.seeds[:2] + 699).tolist()


def pairs(graph: Graph, *edge_type: str) -> list[tuple[int, int]]:
    edges = graph.edges[edge_type]  # type: ignore[index]
    heads = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return sorted(zip(edges.indices.tolist(), heads.tolist(), strict=True))


@pytest.mark.parametrize("referred", ["id INTEGER PRIMARY KEY, email TEXT UNIQUE", "email TEXT PRIMARY KEY"])
def test_keys_are_equal_where_sqlite_says_so(tmp_path: Path, referred: str) -> None:
    """By the collation of the column that is referred to. SQLite's own join says which rows belong together."""
    referred = referred.replace("email TEXT", "email TEXT COLLATE NOCASE")
    source = database(tmp_path / "shop.db", f"""
        CREATE TABLE users ({referred});
        CREATE TABLE sales (amount REAL, email TEXT REFERENCES users (email));
        INSERT INTO users (email) VALUES ('Ann@x'), ('bob@x'), ('ZOE@x');
        INSERT INTO sales VALUES (1, 'ann@X'), (2, 'bob@x'), (3, 'zoe@x'), (4, NULL), (5, 'Ann@x');
    """)  # fmt: skip
    with sqlite3.connect(source) as connection:
        expected = connection.execute(
            "SELECT sales.rowid - 1, users.rowid - 1 FROM users JOIN sales ON users.email = sales.email"
        ).fetchall()
    connection.close()
    diskgnn.convert(tmp_path / "graph", source=source)
    assert pairs(Graph.open(tmp_path / "graph"), "sales", "f2p_email", "users") == sorted(expected)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_keys_that_name_no_row_are_told(tmp_path: Path, kind: str) -> None:
    """Also those that are looked up among values of a unique column."""
    script = """
        CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT UNIQUE);
        CREATE TABLE sales (email TEXT, amount DOUBLE);
        INSERT INTO users VALUES (30, 'c'), (10, 'a');
        INSERT INTO sales VALUES ('a', 1), ('gone', 2), (NULL, 3), ('C', 4);
        """
    path = tmp_path / "shop"
    database(path, script, kind)
    options = {"links": "sales.email=users.email"}
    with pytest.warns(DataWarning, match=r"edges by email of sales .2 rows have values, such as 'gone', that no row"):
        report = diskgnn.convert(tmp_path / "graph", source=path, options=options)
    (told,) = (item for item in report.contents.left_out if item.name == "edges by email")
    assert told.reason == "2 rows have values, such as 'gone', that no row has in users.email"
    assert pairs(Graph.open(tmp_path / "graph"), "sales", "f2p_email", "users") == [(0, 1)]
    with pytest.raises(InputError, match=r"table sales .*column 'email': expected keys of rows, found others: 2 rows"):
        diskgnn.convert(tmp_path / "strict", source=path, options=options | {"skip_unknown": False})


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "folder"])
@pytest.mark.parametrize("link", ["sales.user=users", "sales.user=users.email"])
def test_keys_of_another_kind_are_refused(tmp_path: Path, kind: str, link: str) -> None:
    script = """
        CREATE TABLE users (code TEXT PRIMARY KEY, email TEXT UNIQUE);
        CREATE TABLE sales ("user" BIGINT, amount DOUBLE);
        INSERT INTO users VALUES ('1', '2'), ('2', '3');
        INSERT INTO sales VALUES (1, 1), (2, 2);
        """
    path = tmp_path / "shop"
    if kind in ("sqlite", "duckdb"):
        database(path, script, kind)
    else:
        path.mkdir()
        pq.write_table(pa.table({"code": ["1", "2"], "email": ["2", "3"]}), path / "users.parquet")
        pq.write_table(pa.table({"user": [1, 2], "amount": [1.0, 2.0]}), path / "sales.parquet")
        key = "code" if link.endswith("users") else "email"
        (path / "relational.yaml").write_text(
            f"tables: {{users: {{file: users.parquet, pkey: {key}}}, sales: {{file: sales.parquet}}}}"
        )
    with pytest.raises(
        InputError, match=r"sales: column 'user' has numbers .*, and users\.\w+, .* string .*never equal"
    ):
        diskgnn.convert(tmp_path / "graph", source=path, options={"links": link})
    assert not (tmp_path / ".graph.partial").exists()


@pytest.mark.parametrize(
    ("kind", "referred"), [("sqlite", "users (id)"), ("sqlite", "users"), ("duckdb", "users (id)")]
)
def test_another_key_than_the_declared_one(tmp_path: Path, kind: str, referred: str) -> None:
    """Declared foreign keys name the same rows as before: rows have other ids now."""
    script = f"""
        CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT NOT NULL);
        CREATE TABLE sales (u INTEGER REFERENCES {referred}, amount DOUBLE);
        INSERT INTO users VALUES (30, 'c'), (10, 'a');
        INSERT INTO sales VALUES (10, 1), (30, 2), (10, 3);
        """
    path = tmp_path / "shop"
    database(path, script, kind)
    run("convert", tmp_path / "graph", "--from", f"{kind}:{path}", "--key", "users=email")
    graph = Graph.open(tmp_path / "graph")
    with graph.nodes["users"].user_ids as ids:  # type: ignore[union-attr]
        order = ids.read().column(0).to_pylist()
    of_row = [order.index("a"), order.index("c"), order.index("a")]
    assert pairs(graph, "sales", "f2p_u", "users") == sorted(enumerate(of_row))


def test_another_key_than_a_folder_has(tmp_path: Path) -> None:
    """Its foreign keys name rows by the key that it has, and nothing looks these up: they have to be given, too."""
    pq.write_table(pa.table({"id": ["x", "y"], "email": ["a", "c"]}), tmp_path / "users.parquet")
    pq.write_table(pa.table({"u": ["x", "y"], "mail": ["c", "a"]}), tmp_path / "sales.parquet")
    (tmp_path / "relational.yaml").write_text(
        "tables: {users: {file: users.parquet, pkey: id}, sales: {file: sales.parquet, fkeys: {u: users}}}"
    )
    with pytest.raises(ConfigError, match=r"keys: sales.u: it names users by id, which is not its primary key"):
        diskgnn.convert(tmp_path / "graph", source=tmp_path, options={"keys": "users=email"})


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_rows_that_nobody_can_name(tmp_path: Path, kind: str) -> None:
    """A unique column may be null, so some rows have no id: they are nodes all the same."""
    script = """
        CREATE TABLE shops (code TEXT UNIQUE, size DOUBLE);
        CREATE TABLE sales (shop TEXT REFERENCES shops (code), amount DOUBLE);
        INSERT INTO shops VALUES (NULL, 1), ('b', 2), (NULL, 3), ('a', 4);
        INSERT INTO sales VALUES ('a', 5), ('b', 6), (NULL, 7), ('a', 8);
        """
    path = tmp_path / "shop"
    database(path, script, kind)
    diskgnn.convert(tmp_path / "graph", source=path, options={"keep_columns": True})
    graph = Graph.open(tmp_path / "graph")
    assert pairs(graph, "sales", "f2p_shop", "shops") == [(0, 3), (1, 1), (3, 3)]
    with graph.nodes["shops"].user_ids as ids:  # type: ignore[union-attr]
        assert ids.read().column(0).to_pylist() == [None, "b", None, "a"]
    assert np.load(tmp_path / "graph" / "features-shops.npy")["size"].tolist() == [1, 2, 3, 4]
    pq.write_table(pa.table({"id": ["a", "b"]}), tmp_path / "seeds.parquet")
    target = diskgnn.read_target(tmp_path / "graph", {"test": tmp_path / "seeds.parquet"}, node_type="shops")
    assert np.asarray(target.seeds["test"]).tolist() == [3, 1]  # type: ignore[index]


def test_long_names(tmp_path: Path) -> None:
    """Types have names of 64 letters, databases have longer ones; `inspect` has both."""
    users, orders = "users_" + "u" * 70, "orders_" + "o" * 70
    key, other = "key_" + "k" * 70 + "_1", "key_" + "k" * 70 + "_2"
    source = database(tmp_path / "shop.db", f"""
        CREATE TABLE {users} (id INTEGER PRIMARY KEY, age REAL);
        CREATE TABLE {orders} ({key} INTEGER REFERENCES {users}, {other} INTEGER REFERENCES {users}, at DATE, x REAL);
        INSERT INTO {users} VALUES (1, 20), (2, 30);
        INSERT INTO {orders} VALUES (1, 2, '2020-01-01', 5), (1, 1, '2020-01-02', 6);
    """)  # fmt: skip
    report = diskgnn.convert(tmp_path / "graph", source=source, options={"times": f"{orders}.at"})
    graph = Graph.open(tmp_path / "graph")
    named = {item.name: item.of for item in report.contents.read if item.use == "the name of the table"}
    assert {*named} == {users, orders}
    assert {*named.values()} == {*graph.nodes}
    first, second = (each for each in graph.edges if each[0] == named[orders])
    assert first[1] != second[1]
    assert sorted([pairs(graph, *first), pairs(graph, *second)]) == [[(0, 0), (1, 0)], [(0, 1), (1, 0)]]
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", temporal="last", fanouts=[2], batch_size=2, cpu_cache=0,
                    target=diskgnn.NodeTarget(named[users], {"train": [0, 1]}, {"train": [2**40] * 2}))  # fmt: skip


@pytest.mark.parametrize("table", ["Order Details", "Order_Details"])
def test_a_table_is_called_as_its_database_or_its_type(tmp_path: Path, table: str) -> None:
    """In all options alike."""
    source = database(tmp_path / "shop.db", """
        CREATE TABLE users (id INTEGER, age REAL);
        CREATE TABLE "Order Details" (number TEXT, user INTEGER, at DATE, note TEXT, size REAL, color REAL);
        INSERT INTO users VALUES (1, 20), (2, 30);
        INSERT INTO "Order Details" VALUES ('a', 1, '2020-01-01', 'x', 3, 1), ('b', 2, '2020-01-02', 'y', 4, 2);
    """)  # fmt: skip
    given = ["--key", "users=id", "--key", f"{table}=number", "--link", f"{table}.user=users", "--set",
             f"times={table}.at", "--embed-text", f"{table}.note=hash:16", "--exclude", f"{table}.color"]  # fmt: skip
    run("convert", tmp_path / "graph", "--from", f"sqlite:{source}", *given)
    graph = Graph.open(tmp_path / "graph")
    assert pairs(graph, "Order_Details", "f2p_user", "users") == [(0, 0), (1, 1)]
    assert x_of(graph.nodes["Order_Details"]).shape == (2, 17)  # the note and the size
    assert graph.nodes["Order_Details"].times is not None


def test_what_cannot_become_a_graph_is_told_before_tables_are_fetched(tmp_path: Path) -> None:
    source = database(tmp_path / "shop.db", """
        CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT);
        CREATE TABLE "a b" (user INTEGER REFERENCES users); CREATE TABLE a_b (x INTEGER);
        CREATE TABLE sales (user INTEGER REFERENCES users, amount REAL);
        INSERT INTO users VALUES (1, 'x'); INSERT INTO "a b" VALUES (1); INSERT INTO a_b VALUES (1);
        INSERT INTO sales VALUES (1, 2);
    """)  # fmt: skip
    fetched: list[str] = []

    class Told:
        def stage(self, description: str, total: int, unit: str) -> object:
            fetched.append(description)
            return SILENT.stage(description, total, unit)

    columns = diskgnn.TableColumns
    for error, message, given in (
        (ConfigError, "another table would be called a_b as well", {}),
        (ConfigError, "encode: table users.name: expected number, .* found 'catgory'; did you mean 'category'",
         {"columns": columns(encode={"users.name": "catgory"})}),
        (InputError, "users.name: expected lists", {"columns": columns(encode={"name": "vector"})}),
        (ConfigError, "until: expected a whole number", {"options": {"until": "soon"}}),
        (ConfigError, "quantise: expected int8 for tables", {"quantise": "int4"}),
        (ConfigError, "quantise: expected a column of embeddings in float32, .* found none",
         {"quantise": "int8", "columns": columns(encode={"name": "hash:8"})}),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            diskgnn.convert(tmp_path / "graph", source=source, reporter=Told(), **given)  # type: ignore[arg-type]
        with sqlite3.connect(source) as connection:
            connection.execute("DROP TABLE IF EXISTS a_b")
        connection.close()
    assert fetched == []


def test_keys_of_several_columns_alone(tmp_path: Path) -> None:
    """Their reasons are in the message: nothing else says why there are no edges."""
    source = database(tmp_path / "shop.db", """
        CREATE TABLE lines (n INTEGER, line INTEGER, x REAL, PRIMARY KEY (n, line));
        CREATE TABLE notes (n INTEGER, line INTEGER, FOREIGN KEY (n, line) REFERENCES lines);
        INSERT INTO lines VALUES (1, 1, 2); INSERT INTO notes VALUES (1, 1);
    """)  # fmt: skip
    with pytest.raises(ConfigError, match=r"none in lines, notes \(notes: foreign key \(n, line\): it has several col"):
        diskgnn.convert(tmp_path / "graph", source=source)


SALES = """
    CREATE TABLE users (id INTEGER PRIMARY KEY, age REAL);
    CREATE TABLE sales (user INTEGER REFERENCES users, amount REAL);
    INSERT INTO users VALUES (5, 20), (7, 30);
    INSERT INTO sales VALUES (7, 1), (5, 2), (7, 4);
    """


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_file_that_is_gone_after_it_was_fetched(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "shop"
    database(path, SALES if kind == "sqlite" else SALES.replace("INTEGER", "BIGINT"), kind)
    diskgnn.convert(tmp_path / "whole", source=path, format=kind)
    stopped = faults.armed("work.piece", KeyboardInterrupt(), after=3), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        diskgnn.convert(tmp_path / "graph", source=path, format=kind)
    path.unlink()
    other = run("convert", tmp_path / "other", "--from", f"{kind}:{path}", exit_code=3)
    assert f"source: expected a file or folder, found none at {path}" in " ".join(other.stderr.split())
    diskgnn.convert(tmp_path / "graph", source=path, format=kind)
    assert Graph.open(tmp_path / "graph").manifest.digest == Graph.open(tmp_path / "whole").manifest.digest


def test_writers_wait_no_longer_than_the_fetch(tmp_path: Path) -> None:
    """Also of one that was stopped, while the error is still at hand, as in a notebook."""
    source = database(tmp_path / "shop.db", SALES)
    with faults.armed("work.unit", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt) as stopped:
        diskgnn.convert(tmp_path / "graph", source=source)
    writer = sqlite3.connect(source, timeout=0)
    writer.execute("INSERT INTO users VALUES (9, 1)")
    writer.commit()
    writer.close()
    assert stopped.value is not None


def test_numbers_and_times_of_day_of_sqlite(tmp_path: Path) -> None:
    """A column of NUMERIC may hold whole numbers of 64 bits: as keys they are exact, as features what floats are."""
    source = database(tmp_path / "shop.db", f"""
        CREATE TABLE users (id NUMERIC PRIMARY KEY, total DECIMAL(20, 0), wakes TIME);
        CREATE TABLE sales (user NUMERIC REFERENCES users, amount REAL);
        INSERT INTO users VALUES ({2**60 + 1}, {2**60 + 1}, '06:30'), ({2**60}, 5, '23:59:59.25'), (3, NULL, NULL);
        INSERT INTO sales VALUES ({2**60}, 1), ({2**60 + 1}, 2), (3, 3);
    """)  # fmt: skip
    report = diskgnn.convert(tmp_path / "graph", source=source, options={"keep_columns": True})
    told = {(item.of, item.name): item.reason for item in report.contents.left_out}
    assert told == {("users", "digits of total"): "1 rows have more than 15, of which the first are kept"}
    graph = Graph.open(tmp_path / "graph")
    with graph.nodes["users"].user_ids as ids:  # type: ignore[union-attr]
        assert ids.read().column(0).to_pylist() == [2**60 + 1, 2**60, 3]
    assert pairs(graph, "sales", "f2p_user", "users") == [(0, 1), (1, 0), (2, 2)]
    rows = np.load(tmp_path / "graph" / "features-users.npy")
    assert rows["total"][:2].tolist() == [float(np.float32(2**60)), 5]
    assert rows["wakes"][:2].tolist() == [6.5 * 3600, float(np.float32(86399.25))]


def made(path: Path, kind: str, script: str, query: str = "") -> list[tuple[int, int]]:
    """A database of a kind; returns what its own query finds."""
    if kind == "sqlite":
        connection = sqlite3.connect(path)
        connection.executescript(script)
    else:
        connection = pytest.importorskip("duckdb").connect(str(path))
        connection.execute(script)
    found = connection.execute(query).fetchall() if query else []
    connection.close()
    return sorted(found)


def joined(child: str, column: str, parent: str, referred: str) -> str:
    """A query of what rows belong together, by their numbers."""
    return f"""SELECT a.n, b.n FROM (SELECT *, row_number() OVER (ORDER BY rowid) - 1 AS n FROM {child}) AS a
               JOIN (SELECT *, row_number() OVER (ORDER BY rowid) - 1 AS n FROM {parent}) AS b
               ON b.{referred} = a.{column}"""


FILES = pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
PEOPLE = """
    CREATE TABLE person (id INTEGER PRIMARY KEY, nr INTEGER UNIQUE, x DOUBLE);
    INSERT INTO person VALUES (1, 2, 0.1), (2, 3, 0.2), (3, 1, 0.3);
    """


@FILES
def test_a_primary_key_that_names_rows_by_another_column(tmp_path: Path, kind: str) -> None:
    script = (
        PEOPLE
        + """
        CREATE TABLE pass (nr INTEGER PRIMARY KEY REFERENCES person (nr), y DOUBLE);
        CREATE TABLE o (k INTEGER PRIMARY KEY, u INTEGER REFERENCES pass (nr), v DOUBLE);
        INSERT INTO pass VALUES (1, 0.1), (2, 0.2), (3, 0.3);
        INSERT INTO o VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3);
        """
    )
    expected = made(tmp_path / "db", kind, script, joined("pass", "nr", "person", "nr"))
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "db")
    graph = Graph.open(tmp_path / "graph")
    assert graph.nodes["pass"].user_ids is not None
    with graph.nodes["pass"].user_ids as ids:
        assert ids.read().column(0).to_pylist() == [1, 2, 3]
    assert pairs(graph, "pass", "f2p_nr", "person") == expected != [(0, 0), (1, 1), (2, 2)]
    assert pairs(graph, "o", "f2p_u", "pass") == [(0, 0), (1, 1), (2, 2)]
    assert x_of(graph.nodes["pass"]).shape == (3, 1)  # y alone: what was looked up is no feature


@FILES
@pytest.mark.parametrize("declared", ["DATE", "TIMESTAMP"])
def test_days_and_moments_are_keys(tmp_path: Path, kind: str, declared: str) -> None:
    """Calendars: the database itself joins them. Their ids are text, and seeds may have them in any type of dates."""
    moments = ["2024-01-01", "1969-12-31", "2024-02-29"]
    if declared == "TIMESTAMP":
        moments = ["2024-01-01 00:00:00", "1969-12-31 23:59:59.25", "2024-02-29 12:30:00"]
    script = f"""
        CREATE TABLE days (day {declared} PRIMARY KEY, holiday DOUBLE);
        CREATE TABLE sales (id INTEGER PRIMARY KEY, day {declared} REFERENCES days (day), amount DOUBLE);
        INSERT INTO days VALUES ('{moments[0]}', 1), ('{moments[1]}', 0), ('{moments[2]}', 0.5);
        INSERT INTO sales VALUES (1, '{moments[2]}', 3), (2, NULL, 4), (3, '{moments[1]}', 5), (4, '{moments[2]}', 6);
        """
    expected = made(tmp_path / "db", kind, script, joined("sales", "day", "days", "day"))
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "db", options={"times": "days.day"})
    graph = Graph.open(tmp_path / "graph")
    assert pairs(graph, "sales", "f2p_day", "days") == expected
    with graph.nodes["days"].user_ids as file:
        assert file.read()["id"].to_pylist() == [each.removesuffix(" 00:00:00") for each in moments]
    asked = pa.array(pd.to_datetime(pd.Series([moments[2], moments[0]]), format="ISO8601"), pa.timestamp("us"))
    for ids in (asked, asked.cast(pa.timestamp("us", "Europe/Berlin")), asked.cast(pa.timestamp("ns"))):
        pq.write_table(pa.table({"id": ids}), tmp_path / "seeds.parquet")
        target = diskgnn.read_target(tmp_path / "graph", {"test": tmp_path / "seeds.parquet"}, node_type="days")
        assert target.seeds["test"].tolist() == [2, 0]


@pytest.mark.parametrize("has_index", [False, True])
def test_a_key_that_is_not_declared_is_told(tmp_path: Path, has_index: bool) -> None:
    script = f"""
        CREATE TABLE users (id INTEGER{" UNIQUE" * has_index}, x REAL);
        CREATE TABLE sales (user INTEGER, amount REAL);
        INSERT INTO users VALUES (7, 1), (8, 2);
        INSERT INTO sales VALUES (8, 1), (7, 2);
        """
    source = database(tmp_path / "shop.db", script)
    column = "id" if has_index else "COLUMN"
    with pytest.raises(ConfigError, match=rf"`keys` says which column names its rows \(users={column}\)"):
        diskgnn.convert(tmp_path / "graph", source=source, options={"links": "sales.user=users"})
    told = run("convert", tmp_path / "graph", "--from", f"sqlite:{source}", "--link", "sales.user=users", exit_code=2)
    assert f"--key says which column names its rows (users={column})" in " ".join(told.stderr.split())
    diskgnn.convert(tmp_path / "graph", source=source, options={"links": "sales.user=users", "keys": "users=id"})
    assert pairs(Graph.open(tmp_path / "graph"), "sales", "f2p_user", "users") == [(0, 1), (1, 0)]


@FILES
@pytest.mark.parametrize("keys", [("a (id)", "person (nr)"), ("person (nr)", "a (id)")])
def test_two_keys_of_one_column(tmp_path: Path, kind: str, keys: tuple[str, str]) -> None:
    script = (
        PEOPLE
        + f"""
        CREATE TABLE a (id INTEGER PRIMARY KEY, x DOUBLE);
        INSERT INTO a VALUES (1, 0.1), (2, 0.2), (3, 0.3);
        CREATE TABLE o (k INTEGER PRIMARY KEY, u INTEGER, v DOUBLE, FOREIGN KEY (u) REFERENCES {keys[0]},
                        FOREIGN KEY (u) REFERENCES {keys[1]});
        INSERT INTO o VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3);
        """
    )
    expected = {
        "a": [(0, 0), (1, 1), (2, 2)],
        "person": made(tmp_path / "db", kind, script, joined("o", "u", "person", "nr")),
    }
    with pytest.warns(DataWarning, match="its column makes edges to"):
        diskgnn.convert(tmp_path / "graph", source=tmp_path / "db")
    graph = Graph.open(tmp_path / "graph")
    (named,) = (other for table, word, other in graph.edges if (table, word) == ("o", "f2p_u"))
    assert pairs(graph, "o", "f2p_u", named) == expected[named]


@FILES
def test_tables_called_as_ours_are_in_queries(tmp_path: Path, kind: str) -> None:
    script = """
        CREATE TABLE t (id INTEGER PRIMARY KEY, code TEXT UNIQUE, x DOUBLE);
        CREATE TABLE r (k INTEGER PRIMARY KEY, code TEXT REFERENCES T (CODE), v DOUBLE);
        INSERT INTO t VALUES (1, 'x', 3), (2, 'y', 4), (3, 'z', 5);
        INSERT INTO r VALUES (1, 'z', 1), (2, 'x', 2), (3, NULL, 3), (4, 'z', 4);
        """
    expected = made(tmp_path / "db", kind, script, joined("r", "code", "t", "code"))
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "db")
    assert pairs(Graph.open(tmp_path / "graph"), "r", "f2p_code", "t") == expected == [(0, 2), (1, 0), (3, 2)]


@pytest.mark.parametrize("codes", [(3, "A7", 1), (None, None, None)])
def test_keys_that_name_rows_by_what_is_not_read(tmp_path: Path, codes: tuple[object, ...]) -> None:
    """The database can compare it all the same."""
    values = ", ".join(f"({number}, {'NULL' if code is None else repr(code)})" for number, code in enumerate(codes, 1))
    script = f"""
        CREATE TABLE users (id INTEGER PRIMARY KEY, code NUMERIC UNIQUE);
        CREATE TABLE o (k INTEGER PRIMARY KEY, w NUMERIC REFERENCES users (code), v REAL);
        INSERT INTO users VALUES {values};
        INSERT INTO o VALUES (1, 1, 1), (2, 3, 2), (3, 3, 3);
        """
    expected = made(tmp_path / "db", "sqlite", script, joined("o", "w", "users", "code"))
    with pytest.warns(DataWarning, match="users"):
        diskgnn.convert(tmp_path / "graph", source=tmp_path / "db")
    assert pairs(Graph.open(tmp_path / "graph"), "o", "f2p_w", "users") == expected


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "folder"])
def test_keys_that_would_be_one_type_of_edges_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "shop"
    if kind == "folder":
        path.mkdir()
        pq.write_table(pa.table({"id": [1, 2, 3]}), path / "users.parquet")
        pq.write_table(pa.table({"u a": [1, 2, None], "u.a": [2, 3, 1], "v": [1.0, 2, 3]}), path / "sales.parquet")
        (path / "relational.yaml").write_text(
            "tables:\n  users: {file: users.parquet, pkey: id}\n"
            '  sales: {file: sales.parquet, fkeys: {"u a": users, "u.a": users}}\n'
        )
    else:
        made(path, kind, """
            CREATE TABLE users (id INTEGER PRIMARY KEY, x DOUBLE);
            CREATE TABLE sales ("u a" INTEGER REFERENCES users (id), "u.a" INTEGER REFERENCES users (id), v DOUBLE);
            INSERT INTO users VALUES (1, 1), (2, 2), (3, 3);
            INSERT INTO sales VALUES (1, 2, 1), (2, 3, 2), (NULL, 1, 3);
            """)  # fmt: skip
    with pytest.raises(ConfigError, match=r"table sales: the keys 'u.a' and 'u.a' would both be edges f2p_u_a to use"):
        diskgnn.convert(tmp_path / "graph", source=path)
    diskgnn.convert(tmp_path / "graph", source=path, exclude="sales.u a")
    assert pairs(Graph.open(tmp_path / "graph"), "sales", "f2p_u_a", "users") == [(0, 1), (1, 2), (2, 0)]


def test_ids_that_sqlite_compares_otherwise_in_a_table_without_a_primary_key(tmp_path: Path) -> None:
    script = """
        CREATE TABLE users (email TEXT UNIQUE COLLATE NOCASE, x REAL);
        CREATE TABLE o (k INTEGER PRIMARY KEY, u TEXT REFERENCES users (email), v REAL);
        INSERT INTO users VALUES ('A@x', 3), (NULL, 9), ('b@x', 4), ('c@x', 5);
        INSERT INTO o VALUES (1, 'a@X', 1.5), (2, 'B@x', 2.5), (3, NULL, 2), (4, 'c@x', 1);
        """
    expected = made(tmp_path / "db", "sqlite", script, joined("o", "u", "users", "email"))
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "db")
    assert pairs(Graph.open(tmp_path / "graph"), "o", "f2p_u", "users") == expected == [(0, 0), (1, 2), (3, 3)]


@FILES
def test_rows_that_have_no_id_but_another_unique_value(tmp_path: Path, kind: str) -> None:
    """They cannot be named; the warning says why, as the value is there."""
    made(tmp_path / "db", kind, """
        CREATE TABLE users (code TEXT UNIQUE, nr INTEGER UNIQUE, x DOUBLE);
        CREATE TABLE o (k INTEGER PRIMARY KEY, w INTEGER REFERENCES users (nr), v DOUBLE);
        CREATE TABLE p (k INTEGER PRIMARY KEY, u TEXT REFERENCES users (code), v DOUBLE);
        INSERT INTO users VALUES ('a', 2, 1), (NULL, 7, 2), ('b', NULL, 3);
        INSERT INTO o VALUES (1, 7, 1), (2, 2, 2);
        INSERT INTO p VALUES (1, 'b', 1), (2, 'a', 2);
        """)  # fmt: skip
    with pytest.warns(DataWarning):
        report = diskgnn.convert(tmp_path / "graph", source=tmp_path / "db")
    (told,) = (item for item in report.contents.left_out if item.name.startswith("edges by"))
    lost, named = ("w", "users.nr"), "users.code"
    if told.name == "edges by u":
        lost, named = ("u", "users.code"), "users.nr"
    assert told.name == f"edges by {lost[0]}"
    assert told.reason.endswith(
        f"that no row has in {lost[1]} together with a value of {named}, by which rows are named"
    )


@pytest.mark.parametrize(
    ("kind", "values"), [("UUID", ("md5('a')::UUID", "md5('b')::UUID")), ("mood", ("'sad'", "'glad'"))]
)
def test_duckdb_looks_up_values_that_are_no_text(tmp_path: Path, kind: str, values: tuple[str, str]) -> None:
    script = f"""
        CREATE TYPE mood AS ENUM ('sad', 'glad');
        CREATE TABLE users (id INTEGER PRIMARY KEY, code {kind} UNIQUE, x DOUBLE);
        CREATE TABLE o (k INTEGER PRIMARY KEY, u {kind} REFERENCES users (code), v DOUBLE);
        INSERT INTO users VALUES (1, {values[0]}, 2), (2, {values[1]}, 3);
        INSERT INTO o VALUES (1, {values[1]}, 2), (2, {values[0]}, 3), (3, NULL, 2);
        """
    expected = made(tmp_path / "db", "duckdb", script, joined("o", "u", "users", "code"))
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "db")
    assert pairs(Graph.open(tmp_path / "graph"), "o", "f2p_u", "users") == expected == [(0, 1), (1, 0)]
