"""An SQLite file becomes the graph that its tables as Parquet become, and what cannot be read is named."""

from __future__ import annotations

import os
import signal
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run
from table_features import x_of

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, DiskFullError, InputError
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.importers.graph_input import TableColumns
from diskgnn.importers.identity import identity
from diskgnn.importers.source_formats.sqlite import open_catalogue
from diskgnn.progress.reporter import SILENT

SHOP = """
CREATE TABLE users (id INTEGER PRIMARY KEY, since TIMESTAMP, age REAL, plan VARCHAR(9), paid BOOLEAN);
CREATE TABLE "Order Details" (number TEXT PRIMARY KEY, user INTEGER REFERENCES Users, at DATE NOT NULL, price NUMERIC,
                              earlier TEXT REFERENCES "Order Details" (number));
CREATE TABLE visits (user INTEGER REFERENCES users (id), seconds INTEGER);
INSERT INTO users VALUES (10, '2019-12-31 23:59:59', 20, 'pro', 1), (7, '2020-01-02', 40.5, NULL, 0),
                         (20, '1969-07-20T20:17:40Z', NULL, 'new', NULL);
INSERT INTO "Order Details" VALUES ('b', 10, '2020-01-03', 1, NULL), ('a', NULL, '2020-01-04', 2.5, 'b'),
                                   ('c', 7, '2020-01-09', 3, 'a');
INSERT INTO visits VALUES (20, 5), (20, 9), (7, 2);
"""


def database(tmp_path: Path, script: str = SHOP, name: str = "shop.db") -> Path:
    path = tmp_path / name
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()
    return path


def as_parquet(path: Path, folder: Path) -> Path:
    """The same tables by SQLite's own words, with the types that they are declared as."""
    folder.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA query_only = 1")
    kinds = {"id": pa.int64(), "age": pa.float64(), "plan": pa.string(), "paid": pa.bool_(), "number": pa.string(),
             "user": pa.int64(), "price": pa.float64(), "earlier": pa.string(), "seconds": pa.int64()}  # fmt: skip
    for table in ("users", "Order Details", "visits"):
        cursor = connection.execute(f'SELECT * FROM "{table}" ORDER BY rowid')
        names = [column[0] for column in cursor.description]
        columns = {}
        for name, values in zip(names, zip(*cursor.fetchall(), strict=True), strict=True):
            if name in ("since", "at"):
                times = [None if value is None else np.datetime64(value.rstrip("Z"), "us") for value in values]
                columns[name] = pa.array(times, pa.timestamp("us"))
            else:
                columns[name] = pa.array([bool(value) if name == "paid" and value is not None else value
                                          for value in values], kinds[name])  # fmt: skip
        pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    (folder / "relational.yaml").write_text("""
        tables:
          users: {file: users.parquet, pkey: id, time: since}
          Order_Details: {file: Order Details.parquet, pkey: number, time: at,
                          fkeys: {earlier: Order_Details, user: users}}
          visits: {file: visits.parquet, fkeys: {user: users}}
        """)
    connection.close()
    return folder


def pairs(graph: Graph, *edge_type: str) -> list[tuple[int, int]]:
    edges = graph.edges[edge_type]  # type: ignore[index]
    heads = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return sorted(zip(edges.indices.tolist(), heads.tolist(), strict=True))


@pytest.mark.parametrize("given", ["--from auto {}", "--from sqlite {}", "--from sqlite:{}", "--from=sqlite:{}"])
def test_a_database_equals_its_tables_as_parquet(tmp_path: Path, given: str) -> None:
    path = database(tmp_path)
    run("convert", tmp_path / "graph", *given.format(path).split(), "--set", "times=users.since,Order Details.at")
    run("convert", tmp_path / "same", "--from", "relational", as_parquet(path, tmp_path / "tables"))
    graph, same = Graph.open(tmp_path / "graph"), Graph.open(tmp_path / "same")
    assert [*graph.edges] == [*same.edges]
    for edge_type in same.edges:
        assert pairs(graph, *edge_type) == pairs(same, *edge_type)
    assert pairs(graph, "visits", "f2p_user", "users") == [(0, 2), (1, 2), (2, 0)]  # users by id: 7, 10, 20
    for node_type, nodes in same.nodes.items():
        np.testing.assert_array_equal(x_of(graph.nodes[node_type]), x_of(nodes))
        if nodes.times is not None:
            np.testing.assert_array_equal(graph.nodes[node_type].times, nodes.times)
    assert graph.nodes["users"].times is not None
    assert graph.nodes["users"].times.min() < 0  # before 1970
    assert {name: entry.crc32c for name, entry in graph.manifest.files.items()} == {
        name: entry.crc32c for name, entry in same.manifest.files.items()
    }


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_keys_to_unique_columns(tmp_path: Path, kind: str) -> None:
    """Those to a table that has a primary key name the rows of that."""
    script = """
        CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT UNIQUE);
        CREATE TABLE shops (code TEXT UNIQUE, x BIGINT);
        CREATE TABLE visits (email TEXT REFERENCES users (email), shop TEXT REFERENCES shops (code), u BIGINT);
        INSERT INTO users VALUES (30, 'c'), (10, 'a'), (20, NULL);
        INSERT INTO shops VALUES ('x', 1), ('y', 2);
        INSERT INTO visits VALUES ('a', 'y', 30), (NULL, 'x', 20), ('c', 'y', 10);
        """
    path = tmp_path / "shop"
    if kind == "sqlite":
        database(tmp_path, script, "shop")
    else:
        with pytest.importorskip("duckdb").connect(str(path)) as connection:
            connection.execute(script)
    diskgnn.convert(tmp_path / "graph", source=path, options={"links": "visits.u=users"})
    graph = Graph.open(tmp_path / "graph")
    users = [10, 20, 30]
    with graph.nodes["users"].user_ids as ids:  # type: ignore[union-attr]
        order = ids.read().column(0).to_pylist()
    assert sorted(order) == users
    of_user = {user: order.index(user) for user in users}
    assert pairs(graph, "visits", "f2p_email", "users") == sorted([(0, of_user[10]), (2, of_user[30])])
    assert pairs(graph, "visits", "f2p_u", "users") == sorted([(0, of_user[30]), (1, of_user[20]), (2, of_user[10])])
    assert pairs(graph, "visits", "f2p_shop", "shops") == [(0, 1), (1, 0), (2, 1)]


def test_keys_that_are_given(tmp_path: Path) -> None:
    """The same in a file and in a folder of tables that say nothing of keys."""
    path = database(tmp_path, """
        CREATE TABLE users (id INTEGER, x INTEGER); CREATE TABLE orders (user_id INTEGER, x INTEGER);
        INSERT INTO users VALUES (5, 1), (3, 2); INSERT INTO orders VALUES (3, 1), (3, 2), (5, 3);
        """)  # fmt: skip
    folder = tmp_path / "tables"
    folder.mkdir()
    pq.write_table(pa.table({"id": [5, 3], "x": [1, 2]}), folder / "users.parquet")
    pq.write_table(pa.table({"user_id": [3, 3, 5], "x": [1, 2, 3]}), folder / "orders.parquet")
    tables = "{users: {file: users.parquet}, orders: {file: orders.parquet}}"
    (folder / "relational.yaml").write_text(f"tables: {tables}")
    given = ("--key", "users=id", "--link", "orders.user_id=users")
    run("convert", tmp_path / "graph", "--from", f"sqlite:{path}", *given)
    run("convert", tmp_path / "same", "--from", "relational", folder, *given)
    graph, same = Graph.open(tmp_path / "graph"), Graph.open(tmp_path / "same")
    assert graph.manifest.digest == same.manifest.digest
    assert pairs(graph, "orders", "f2p_user_id", "users") == [(0, 1), (1, 1), (2, 0)]
    result = run("convert", tmp_path / "no", "--from", "relational", folder, "--key", "users=key", exit_code=2)
    assert "--key: expected a column of users (id, x), found 'key'" in result.output


def test_a_killed_fetch_goes_on_with_the_next_table(tmp_path: Path) -> None:
    path, told = database(tmp_path), list[str]()

    class Told:
        def stage(self, description: str, total: int, unit: str) -> Any:
            told.append(description)
            return SILENT.stage(description, total, unit)

    diskgnn.convert(tmp_path / "whole", source=path)
    stopped = faults.armed("work.unit", KeyboardInterrupt(), after=2), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        diskgnn.convert(tmp_path / "graph", source=path)
    diskgnn.convert(tmp_path / "graph", source=path, reporter=Told())
    assert [stage for stage in told if stage.startswith("fetch")] == ["fetch visits"]
    assert Graph.open(tmp_path / "graph").manifest.digest == Graph.open(tmp_path / "whole").manifest.digest


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_kill_between_the_name_of_the_tables_and_their_end_leaves_nothing(tmp_path: Path) -> None:
    path, out = database(tmp_path), tmp_path / "graph"

    def die() -> None:
        if (tmp_path / ".graph.partial" / "tables").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        try:
            with faults.armed("artifact.sync", die):
                diskgnn.convert(out, source=path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / ".graph.partial" / ".tables.lock").exists()
    diskgnn.convert(out, source=path)
    assert {entry.name for entry in out.iterdir()} == {"manifest.json", *Graph.open(out).manifest.files}
    diskgnn.convert(out, source=path, overwrite=True)


def test_disk_for_the_graph_is_asked_for_beside_the_tables(tmp_path: Path) -> None:
    path = database(tmp_path, """
        CREATE TABLE a (id INTEGER PRIMARY KEY, x REAL, y REAL, b INTEGER REFERENCES b);
        CREATE TABLE b (id INTEGER PRIMARY KEY);
        WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 29999)
            INSERT INTO a SELECT i, random() / 1e9, random() / 1e9, abs(random()) % 7 FROM n;
        INSERT INTO b VALUES (0), (1), (2), (3), (4), (5), (6);
        """)  # fmt: skip
    stopped = faults.armed("work.piece", KeyboardInterrupt()), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        diskgnn.convert(tmp_path / "graph", source=path)
    tables_bytes = sum(file.stat().st_size for file in (tmp_path / ".graph.partial" / "tables").iterdir())
    assert tables_bytes > 300_000
    told = []
    for disk in range(tables_bytes + (160 << 10), 8 << 20, 160 << 10):
        try:
            diskgnn.convert(tmp_path / "graph", source=path, disk=disk)
        except DiskFullError as error:
            told.append(str(error))
        else:
            break
    assert (tmp_path / "graph").is_dir()
    # Refused before anything is written, as long as the graph does not fit beside the tables.
    assert len(told) > 3
    assert all("disk: the graph" in each for each in told[:3])


def test_a_table_of_many_batches(tmp_path: Path) -> None:
    numbers = ",".join(f"({number}, {number * number % 977}, {number % 7})" for number in range(40_000))
    path = database(tmp_path, f"""
        CREATE TABLE a (id INTEGER PRIMARY KEY, x REAL, b INTEGER REFERENCES b);
        CREATE TABLE b (id INTEGER PRIMARY KEY);
        INSERT INTO a VALUES {numbers};
        INSERT INTO b VALUES (0), (1), (2), (3), (4), (5), (6);
        """)  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=path)
    graph = Graph.open(tmp_path / "graph")
    values = np.arange(40_000, dtype=np.float64) ** 2 % 977
    np.testing.assert_allclose(x_of(graph.nodes["a"])[:, 0], (values - values.mean()) / values.std(), rtol=1e-5)
    assert pairs(graph, "a", "f2p_b", "b") == sorted((number, number % 7) for number in range(40_000))


def test_long_texts_are_read_few_at_a_time(tmp_path: Path) -> None:
    path = database(tmp_path, """
        CREATE TABLE a (id INTEGER PRIMARY KEY, body TEXT, earlier INTEGER REFERENCES a);
        WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999)
        INSERT INTO a SELECT i, printf('%0100000d', i), i / 2 FROM n;
        """)  # fmt: skip
    tracemalloc.start()
    with pytest.warns(DataWarning, match="body of a .more than 32 MiB of values"):
        diskgnn.convert(tmp_path / "graph", source=path)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 40 << 20  # of 95 MiB of text
    assert pairs(Graph.open(tmp_path / "graph"), "a", "f2p_earlier", "a")[:3] == [(0, 0), (1, 0), (2, 1)]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE users SET age = 'old' WHERE id = 10", "numbers in column 'age', .* 'REAL'; found 'old' in row 1"),
        ("UPDATE visits SET seconds = 2.5 WHERE user = 7", "whole numbers in column 'seconds', .* found 2.5 in row 2"),
        ("UPDATE users SET plan = x'00ff' WHERE id = 20", "text in column 'plan', .* found b.* in row 2"),
        ("UPDATE users SET paid = 2 WHERE id = 7", "0 or 1 in column 'paid', .* found 2 in row 0"),
        ("UPDATE users SET since = 'soon' WHERE id = 20", "times in ISO 8601, .* 'since', .* found 'soon' in row 2"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_column_is_named(tmp_path: Path, statement: str, message: str) -> None:
    path = database(tmp_path, SHOP + statement)
    with pytest.raises(InputError, match=r"table (users|visits) \(.*shop.db\).*" + message):
        diskgnn.convert(tmp_path / "graph", source=path)
    assert not (tmp_path / "graph").exists()


def test_what_is_left_out_is_named_with_the_reason(tmp_path: Path) -> None:
    path = database(tmp_path, SHOP + """
        CREATE TABLE lines (n TEXT, line INTEGER, kind, mixed, PRIMARY KEY (n, line)) WITHOUT ROWID;
        CREATE TABLE notes (n TEXT, line INTEGER, code TEXT REFERENCES users (plan), gone INTEGER REFERENCES nowhere,
                            user INTEGER REFERENCES users, body BLOB, FOREIGN KEY (n, line) REFERENCES lines);
        CREATE TABLE bare (id INTEGER PRIMARY KEY);
        CREATE VIEW paying AS SELECT * FROM users WHERE paid;
        INSERT INTO lines VALUES ('z', 2, 1, 1), ('y', 1, 3, 'x');
        INSERT INTO notes VALUES ('z', 2, 'pro', 1, 7, x'00');
        """)  # fmt: skip
    with pytest.warns(DataWarning):
        report = diskgnn.convert(tmp_path / "graph", source=path)
    reasons = {(item.of, item.name): item.reason for item in report.contents.left_out}
    assert reasons == {
        ("paying", "table"): "it is a view",
        ("bare", "table"): "it has no rows",
        ("lines", "primary key (n, line)"): "it has several columns, so rows are numbered",
        ("lines", "mixed"): "declared as nothing, it has values of several types (integer, text)",
        ("notes", "foreign key (n, line)"): "it has several columns",
        ("notes", "foreign key (code)"): "it names users by plan, which is not its primary key, and not unique; "
        "if it names each row, `keys` says so (users=plan)",
        ("notes", "foreign key (gone)"): "there is no table nowhere",
        ("notes", "body"): "binary is no number, time, truth value, category or vector",
    }
    graph = Graph.open(tmp_path / "graph")
    # Without rowids the order is that of the primary key: ('y', 1) first. Line and kind are scaled, n is a category.
    assert x_of(graph.nodes["lines"]).tolist() == [[1, 0, -1, 1], [0, 1, 1, -1]]


def test_refusals(tmp_path: Path) -> None:
    path = database(tmp_path)
    for options, message in (
        ({"times": "nobody.at"}, "times: expected TABLE.COLUMN of a table of users, Order Details, visits, found 'nob"),
        ({"val_timestamp": "soon"}, "val_timestamp: expected a whole number .* or a date or time"),
        ({"tasks": "x"}, "format sqlite takes val_timestamp, reverse"),
    ):
        with pytest.raises(ConfigError, match=message):
            diskgnn.convert(tmp_path / "graph", source=path, options=options)
    with pytest.raises(InputError, match="expected a column 'when', found"):
        diskgnn.convert(tmp_path / "graph", source=path, options={"times": "users.when"})
    keyless = database(tmp_path, "CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (1)", "keyless.db")
    with pytest.raises(ConfigError, match="expected tables with foreign keys, found none in t"):
        diskgnn.convert(tmp_path / "graph", source=keyless)
    text = tmp_path / "text.db"
    text.write_text("no database")
    with pytest.raises(InputError, match=r"text\.db: expected an SQLite database.*file is not a database"):
        diskgnn.convert(tmp_path / "graph", source=text, format="sqlite")


def test_one_state_is_read_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    path = database(tmp_path, "PRAGMA journal_mode = WAL;" + SHOP)
    writer = sqlite3.connect(path)
    writer.execute("UPDATE users SET age = 30")
    writer.commit()  # into the log beside the file, which stays there while this connection is open
    found = open_catalogue(path).catalogue
    writer.execute("UPDATE users SET age = 'old'")
    writer.commit()
    (batch,) = found.tables["users"].rows.batches(["age"], 10)
    assert batch["age"].to_pylist() == [30, 30, 30]
    before = identity({"source": path})
    writer.execute("UPDATE users SET age = 50")
    writer.commit()
    assert identity({"source": path}) != before  # a killed conversion is not taken up with another state
    writer.close()


def test_positions_of_edges_are_rows_of_their_table(tmp_path: Path) -> None:
    path = database(tmp_path, """
        CREATE TABLE users (id INTEGER PRIMARY KEY, age REAL);
        CREATE TABLE visits (user INTEGER NOT NULL REFERENCES users, seconds INTEGER);
        INSERT INTO users VALUES (1, 20), (2, 30);
        INSERT INTO visits VALUES (2, 5), (1, 9), (2, 2);
        """)  # fmt: skip
    with pytest.raises(ConfigError, match="keep_ids: edges of visits:f2p_user:users to ids that no node has"):
        diskgnn.convert(tmp_path / "graph", source=path, keep_ids=True)
    run("convert", tmp_path / "graph", "--from", "sqlite", path, "--set", "skip_unknown=false", "--keep-ids")
    edges = Graph.open(tmp_path / "graph").edges["visits", "f2p_user", "users"]
    assert np.array(edges.edge_ids).tolist() == [1, 0, 2]  # to user 1, then to user 2


def test_a_file_that_somebody_writes_to(tmp_path: Path) -> None:
    path = database(tmp_path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match=r"shop.db: .* found one that somebody writes to .database is locked"):
        diskgnn.convert(tmp_path / "graph", source=path)
    writer.execute("ROLLBACK")
    writer.close()
    diskgnn.convert(tmp_path / "graph", source=path)


def test_json_is_text(tmp_path: Path) -> None:
    """SQLite keeps a document that is a number as one. As Parquet has their text, features are the same bytes."""
    documents = [f'{{"a": {number}}}' for number in range(40)] + ["7", "2.5", None]
    path = database(tmp_path, """
        CREATE TABLE users (id INTEGER PRIMARY KEY, said JSON, packed JSONB);
        CREATE TABLE visits (user INTEGER REFERENCES users (id), seconds INTEGER);
        INSERT INTO visits VALUES (0, 5), (1, 9);
    """)  # fmt: skip
    with sqlite3.connect(path) as connection:
        rows = [(number, each, b"{}" if number else "{}") for number, each in enumerate(documents)]
        connection.executemany("INSERT INTO users VALUES (?, ?, ?)", rows)
    connection.close()
    encode = TableColumns(encode={"users.said": "hash:16"})
    with pytest.warns(DataWarning, match="packed of users .declared as JSONB, it has values of several types"):
        diskgnn.convert(tmp_path / "graph", source=path, columns=encode)
    folder = tmp_path / "folder"
    folder.mkdir()
    pq.write_table(pa.table({"id": np.arange(len(documents)), "said": documents}), folder / "users.parquet")
    pq.write_table(pa.table({"user": [0, 1], "seconds": [5, 9]}), folder / "visits.parquet")
    (folder / "relational.yaml").write_text("""
        tables: {users: {file: users.parquet, pkey: id}, visits: {file: visits.parquet, fkeys: {user: users}}}
        """)
    diskgnn.convert(tmp_path / "expected", source=folder, columns=encode)
    found, expected = (Graph.open(tmp_path / name).nodes["users"].features for name in ("graph", "expected"))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ConfigError, match=r"encode: users\.packed cannot be read: declared as JSONB, it has values of"):
        diskgnn.convert(tmp_path / "none", source=path, columns=TableColumns(encode={"users.packed": "hash:16"}))
