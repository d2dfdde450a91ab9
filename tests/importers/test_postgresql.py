"""A PostgreSQL database becomes the graph that its tables as Parquet become; what cannot be kept is named."""

from __future__ import annotations

import csv
import io
import json
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from commands import forked_mib, run, run_python
from postgresql_server import PASSWORD, PostgresServer, started_server
from table_features import x_of

import diskgnn
from diskgnn.cli import main
from diskgnn.cli.serving import Board
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.progress.reporter import SILENT

SHOP = """
CREATE TYPE plan AS ENUM ('new', 'pro', 'never');
CREATE DOMAIN price AS numeric(10, 2) CHECK (value >= 0);
CREATE TABLE users (id bigint PRIMARY KEY, email text UNIQUE, since timestamptz, age float8, plan plan, paid bool);
CREATE TABLE "Order Détails" (number uuid PRIMARY KEY, "user" bigint REFERENCES users, at date NOT NULL, cost price,
                              email varchar(20) REFERENCES users (email),
                              earlier uuid REFERENCES "Order Détails", grade smallint, took time);
CREATE TABLE shops (code text UNIQUE NOT NULL, size real);
CREATE TABLE visits ("user" bigint REFERENCES users (id), shop text REFERENCES shops (code), seconds int, v float4[]);
INSERT INTO users VALUES (10, 'a@x', '2019-12-31 23:59:59+00', 20, 'pro', true),
                         (7, 'b@x', '2020-01-02 01:00:00+01', 40.5, NULL, false),
                         (20, NULL, '1969-07-20 20:17:40+00', NULL, 'new', NULL);
INSERT INTO "Order Détails" VALUES
    ('00000000-0000-0000-0000-00000000000b', 10, '2020-01-03', 1, 'b@x', NULL, 3, '00:00:10'),
    ('00000000-0000-0000-0000-00000000000a', NULL, '2020-01-04', 2.5, NULL, '00000000-0000-0000-0000-00000000000b', 1,
     NULL),
    ('00000000-0000-0000-0000-00000000000c', 7, '2020-01-09', 3, 'a@x', '00000000-0000-0000-0000-00000000000a', NULL,
     '12:00:00');
INSERT INTO shops VALUES ('x', 1.5), ('y', 2.5);
INSERT INTO visits VALUES (20, 'y', 5, '{1,2}'), (20, 'x', 9, '{3,4}'), (7, NULL, 2, NULL);
"""
TIMES = "users.since,Order Détails.at"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with started_server() as server:
        yield server


@pytest.fixture(scope="module")
def shop(server: PostgresServer) -> str:
    return server.database("shop", SHOP)


class Told:
    """Remembers stages, and lines for people; `meanwhile` happens when a stage of that name begins."""

    def __init__(self, **meanwhile: Any) -> None:
        self.stages: list[str] = []
        self.lines: list[str] = []
        self._meanwhile = meanwhile

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Any]:
        self.stages.append(description)
        with SILENT.stage(description, total, unit) as advance:
            yield advance
        self._meanwhile.pop(description.replace(" ", "_"), lambda: None)()

    def say(self, line: str) -> None:
        self.lines.append(line)


def require_citext(server: PostgresServer) -> None:
    if "1" not in server.sql("SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'"):
        pytest.skip("the server has no extension citext")


def as_parquet(server: PostgresServer, folder: Path) -> Path:
    """The same tables by psql's own words."""
    folder.mkdir()
    kinds = {"id": int, "age": float, "plan": str, "user": int, "cost": float, "grade": int, "code": str, "size": float,
             "seconds": int, "shop": str, "paid": lambda text: text == "t",
             "number": lambda text: uuid.UUID(text).bytes, "earlier": lambda text: uuid.UUID(text).bytes,
             "at": date.fromisoformat,
             "since": lambda text: np.datetime64(text.removesuffix("+00").replace(" ", "T"), "us"),
             "took": lambda text: 3600.0 * int(text[:2]) + int(text[-2:]),
             "v": lambda text: [float(each) for each in text.strip("{}").split(",")]}  # fmt: skip
    arrow = {"grade": pa.int16(), "seconds": pa.int32(), "size": pa.float32(), "v": pa.list_(pa.float32()),
             "at": pa.date32(), "since": pa.timestamp("us")}  # fmt: skip
    for table in ("users", "Order Détails", "shops", "visits"):
        script = f"SET timezone = 'UTC'; COPY \"{table}\" TO STDOUT (FORMAT csv, HEADER)"
        names, *rows = csv.reader(io.StringIO(server.sql(script, "shop")))
        columns = {}
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            if name == "email":  # users by their primary key
                ids = {"a@x": 10, "b@x": 7, "": None}
                columns[name] = pa.array([value or None for value in values] if table == "users"
                                         else [ids[value] for value in values])  # fmt: skip
            else:
                found = [kinds[name](value) if value else None for value in values]
                columns[name] = pa.array(found, arrow.get(name))
        pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    (folder / "relational.yaml").write_text("""
        tables:
          Order_D_tails: {file: Order Détails.parquet, pkey: number, time: at,
                          fkeys: {user: users, email: users, earlier: Order_D_tails}}
          shops: {file: shops.parquet, pkey: code}
          users: {file: users.parquet, pkey: id, time: since, columns: {plan: category}}
          visits: {file: visits.parquet, fkeys: {user: users, shop: shops}}
        """)
    return folder


@pytest.mark.parametrize("given", [["false"], ["true"], ["true", "--quantise", "int8"]], ids=" ".join)
def test_a_database_equals_its_tables_as_parquet(
    tmp_path: Path, server: PostgresServer, shop: str, given: list[str]
) -> None:
    keep_columns, *stored = given
    options = ("--set", "val_timestamp=2020-01-05", "--set", f"keep_columns={keep_columns}", *stored)
    run("convert", tmp_path / "graph", "--from", shop, "--set", f"times={TIMES}", *options)
    run("convert", tmp_path / "same", "--from", "relational", as_parquet(server, tmp_path / "tables"), *options)
    graph, same = Graph.open(tmp_path / "graph"), Graph.open(tmp_path / "same")
    assert [*graph.edges] == [*same.edges]
    assert ("Order_D_tails", "f2p_email", "users") in graph.edges
    assert {name: entry.crc32c for name, entry in graph.manifest.files.items()} == {
        name: entry.crc32c for name, entry in same.manifest.files.items()
    }
    assert graph.nodes["users"].times is not None
    assert graph.nodes["users"].times.min() < 0  # before 1970
    assert [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_what_types_become_and_what_is_left_out(tmp_path: Path, server: PostgresServer) -> None:
    url = server.database("odd", """
        CREATE TABLE a (id numeric PRIMARY KEY, n numeric, m money, d date, t timestamp, z timestamptz, i interval,
                        long text, j jsonb, b bytea, u uuid, words text[], h inet, o oid, c char(3), doc xml);
        INSERT INTO a VALUES
            (1, 12345678901234567890.5, 1.5, 'infinity', '-infinity', 'infinity', '1 month', repeat('ä', 9000), '{}',
             'x', gen_random_uuid(), '{a,NULL}', '::1', 4, 'x', NULL),
            (9007199254740993, 1.25, 2.5, '1950-01-01', '1950-01-01', '1950-01-01 00:00+01', '1 day 00:00:01', 'short',
             NULL, NULL, NULL, NULL, NULL, 5, 'y', NULL);
        CREATE TABLE many (a numeric REFERENCES a, b numeric REFERENCES a, PRIMARY KEY (a, b));
        CREATE TABLE more (a numeric, b numeric, FOREIGN KEY (a, b) REFERENCES many, x int);
        CREATE TABLE "empty" (id int PRIMARY KEY);
        CREATE VIEW seen AS SELECT * FROM a;
        CREATE MATERIALIZED VIEW kept AS SELECT 1 AS x;
        INSERT INTO many VALUES (1, 9007199254740993);
        INSERT INTO more VALUES (1, 9007199254740993, 3), (NULL, NULL, 4);
        """)  # fmt: skip
    with pytest.warns(DataWarning, match="left out of the graph"):
        report = diskgnn.convert(tmp_path / "graph", source=url)
    infinite = "1 rows have one, or one later than the year 294000: null now"
    nothing = "is no number, time, truth value, category or vector"
    assert {(item.of, item.name): item.reason for item in report.contents.left_out} == {
        ("seen", "table"): "it is a view",
        ("kept", "table"): "it is a materialized view",
        ("empty", "table"): "it has no rows",
        ("a", "digits of n"): "1 rows have more than 15, of which the first are kept",
        ("a", "infinite values of d"): infinite, ("a", "infinite values of t"): infinite,
        ("a", "infinite values of z"): infinite,
        ("a", "months of i"): "1 rows have some, taken as 30.4375 days each",
        ("a", "the rest of texts in long"): "1 rows have more than 8,192 letters, of which the first 8,192 are read",
        ("a", "j"): f"jsonb {nothing}", ("a", "b"): f"bytea {nothing}", ("a", "h"): f"inet {nothing}",
        ("a", "doc"): f"xml {nothing}", ("a", "u"): "a uuid that is no key says nothing of its row",
        ("many", "primary key (a, b)"): "it has several columns, so rows are numbered",
        ("more", "foreign key (a, b)"): "it has several columns",
        ("more", "digits of b"): "1 rows have more than 15, of which the first are kept",
    }  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    with graph.nodes["a"].user_ids as ids:
        assert ids.read().column(0).to_pylist() == [1, 2**53 + 1]
    found = {each.name: each.how for each in report.contents.read if (each.of, each.use) == ("a", "features")}
    assert found == {"n": "number", "m": "number", "d": "time", "t": "time", "z": "time", "i": "number",
                     "long": "category", "o": "number", "c": "category"}  # fmt: skip
    assert graph.nodes["many"].num_nodes == 1
    assert graph.edges["many", "f2p_b", "a"].num_edges == 1
    run("convert", tmp_path / "more", "--from", url, "--encode", "a.j=category")
    width = x_of(graph.nodes["a"]).shape[1]
    assert x_of(Graph.open(tmp_path / "more").nodes["a"]).shape[1] == width + 1


def test_intervals_are_seconds_with_months_of_30_4375_days(tmp_path: Path, server: PostgresServer) -> None:
    url = server.database("spans", """
        CREATE TABLE a (id int PRIMARY KEY, a int REFERENCES a, i interval);
        INSERT INTO a VALUES (1, 1, '1 year 1 month 1 day 01:01:01.5'), (2, 1, '-1 day'), (3, 1, NULL);
        """)  # fmt: skip
    (tmp_path / "yaml").mkdir()
    with pytest.warns(DataWarning, match="months of i"):
        diskgnn.convert(tmp_path / "graph", source=url)
    spans = np.array([13 * 30.4375 * 86400 + 86400 + 3661.5, -86400])
    expected = [*(spans - spans.mean()) / spans.std(), 0]
    np.testing.assert_allclose(x_of(Graph.open(tmp_path / "graph").nodes["a"])[:, 0], expected, rtol=1e-6)


def test_partitions_are_one_table_and_children_are_their_own(tmp_path: Path, server: PostgresServer) -> None:
    url = server.database("parts", """
        CREATE TABLE users (id int PRIMARY KEY);
        CREATE TABLE logs (id int, day date, u int REFERENCES users, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        CREATE TABLE logs_1 PARTITION OF logs FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
        CREATE TABLE logs_2 PARTITION OF logs FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
        CREATE TABLE old_users (left_on date) INHERITS (users);
        CREATE SCHEMA "other";
        CREATE TABLE "other".users (id int PRIMARY KEY, u int REFERENCES public.users);
        INSERT INTO users VALUES (1), (2);
        INSERT INTO old_users VALUES (3, '2020-01-01'), (4, '2020-01-01'), (5, '2020-01-01');
        INSERT INTO logs VALUES (1, '2020-05-05', 1), (1, '2021-05-05', 2), (2, '2021-05-05', 2);
        INSERT INTO "other".users VALUES (1, 2);
        """)  # fmt: skip
    with pytest.warns(DataWarning, match="primary key .id, day."):
        diskgnn.convert(tmp_path / "graph", source=url, options={"times": "logs.day"})
    graph = Graph.open(tmp_path / "graph")
    assert {name: nodes.num_nodes for name, nodes in graph.nodes.items()} == {
        "logs": 3, "old_users": 3, "users": 2, "other_users": 1,
    }  # fmt: skip
    assert {each: edges.num_edges for each, edges in graph.edges.items() if each[1].startswith("f2p")} == {
        ("logs", "f2p_u", "users"): 3, ("other_users", "f2p_u", "users"): 1,
    }  # fmt: skip


def test_what_the_user_must_not_read(tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.database("secret", """
        CREATE TABLE users (id int PRIMARY KEY, name text, salary int);
        CREATE TABLE orders (u int REFERENCES users, x int);
        CREATE TABLE hidden (u int REFERENCES users);
        INSERT INTO users VALUES (1, 'a', 9); INSERT INTO orders VALUES (1, 3), (1, 4);
        GRANT SELECT (id, name) ON users TO guest; GRANT SELECT ON orders TO guest;
        """)  # fmt: skip
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.warns(DataWarning, match="privilege"):
        report = diskgnn.convert(tmp_path / "graph", source=server.url("secret", "guest"))
    assert {(item.of, item.name): item.reason for item in report.contents.left_out if "priv" in item.reason} == {
        ("hidden", "table"): "the user has no privilege to read it (GRANT SELECT)",
        ("users", "salary"): "the user has no privilege to read it (GRANT SELECT)",
    }
    server.sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON orders USING (x = 3)", "secret")
    with pytest.raises(InputError, match="row-level security policy"):  # rather than some of the rows
        diskgnn.convert(tmp_path / "other", source=server.url("secret", "guest"))


def test_keys_that_the_database_does_not_declare(tmp_path: Path, server: PostgresServer) -> None:
    url = server.database("keyless", """
        CREATE TABLE users (id int, x int);
        CREATE TABLE orders (user_id int, x int);
        INSERT INTO users VALUES (5, 1), (3, 2); INSERT INTO orders VALUES (3, 1), (3, 2), (5, 3);
        """)  # fmt: skip
    result = run("convert", tmp_path / "graph", "--from", url, exit_code=2)
    assert "expected tables with foreign keys, found none in orders, users" in result.output
    result = run("convert", tmp_path / "graph", "--from", url, "--link", "orders.user_id=people", exit_code=2)
    assert "--link: expected a table of orders, users, found 'people'" in result.output
    result = run("convert", tmp_path / "graph", "--from", url, "--key", "users.id", exit_code=2)
    assert "--key: expected TABLE=COLUMN, such as users=id, found 'users.id'" in result.output
    run("convert", tmp_path / "graph", "--from", url, "--link", "orders.user_id=users", "--key", "users=id")
    edges = Graph.open(tmp_path / "graph").edges["orders", "f2p_user_id", "users"]
    assert np.diff(edges.indptr).tolist() == [1, 2]


def test_one_state_is_read_whatever_is_written_meanwhile(tmp_path: Path, server: PostgresServer) -> None:
    url = server.database("live", """
        CREATE TABLE a (id int PRIMARY KEY, x int); CREATE TABLE b (a int REFERENCES a, x int);
        INSERT INTO a VALUES (1, 1), (2, 2); INSERT INTO b VALUES (1, 1), (2, 2);
        """)  # fmt: skip
    diskgnn.convert(tmp_path / "before", source=url)
    told = Told(fetch_a=lambda: server.sql("DELETE FROM b; UPDATE a SET x = 9", "live"))
    diskgnn.convert(tmp_path / "graph", source=url, reporter=told)
    assert told.stages.count("fetch a") == told.stages.count("fetch b") == 1
    assert [line for line in told.lines if line.startswith("fetched: 4 rows in 2 tables of postgresql://owner@/live")]
    digests = [Graph.open(tmp_path / name).manifest.digest for name in ("before", "graph")]
    assert digests[0] == digests[1]


def test_a_killed_fetch_starts_again_and_says_so(tmp_path: Path, shop: str) -> None:
    options = {"times": TIMES}
    diskgnn.convert(tmp_path / "whole", source=shop, options=options)
    stopped = faults.armed("work.unit", KeyboardInterrupt(), after=2), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        diskgnn.convert(tmp_path / "graph", source=shop, options=options)
    told = Told()
    diskgnn.convert(tmp_path / "graph", source=shop, options=options, reporter=told)
    assert [line for line in told.lines if "starts again with the first table" in line]
    assert [stage for stage in told.stages if stage.startswith("fetch")] == [
        "fetch Order Détails", "fetch shops", "fetch users", "fetch visits",
    ]  # fmt: skip
    assert Graph.open(tmp_path / "graph").manifest.digest == Graph.open(tmp_path / "whole").manifest.digest


def test_what_was_fetched_is_not_asked_for_again(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the database nor the password has to be there any more; of files that are damaged it has to."""
    script = SHOP + "GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest"
    server.database("going", script)

    def url(password: str) -> str:
        return server.url("going", f"guest:{password}")

    options = {"times": TIMES}
    diskgnn.convert(tmp_path / "whole", source=url(PASSWORD), options=options)
    for name in ("graph", "damaged"):
        stopped = faults.armed("work.piece", KeyboardInterrupt(), after=3), faults.pretending("unit.bytes", 1)
        with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
            diskgnn.convert(tmp_path / name, source=url(PASSWORD), options=options)
    (table,) = (tmp_path / ".damaged.partial" / "tables").glob("table-0.arrow")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    told = Told()
    diskgnn.convert(tmp_path / "damaged", source=url(PASSWORD), options=options, reporter=told)
    assert "fetch users" in told.stages
    server.sql("DROP DATABASE going")
    told = Told()
    diskgnn.convert(tmp_path / "graph", source=url("another"), options=options, reporter=told)
    assert [stage for stage in told.stages if stage.startswith("fetch")] == []
    assert [
        line for line in told.lines if "as they were fetched: 11 rows in 4 tables" in line and "(PostgreSQL 1" in line
    ]
    for name in ("graph", "damaged"):
        assert Graph.open(tmp_path / name).manifest.digest == Graph.open(tmp_path / "whole").manifest.digest


@pytest.mark.parametrize("users", ["id int PRIMARY KEY, email {kind} UNIQUE", "email {kind} PRIMARY KEY, id int"])
@pytest.mark.parametrize(
    ("kind", "of_key"), [("citext", "citext"), ('text COLLATE "folded"', "text"), ("varchar(9)", "char(6)")]
)
def test_keys_are_equal_where_the_server_says_so(
    tmp_path: Path, server: PostgresServer, users: str, kind: str, of_key: str
) -> None:
    """Its own join says which rows belong together."""
    if "folded" in kind and "t" not in server.sql("SELECT EXISTS (SELECT FROM pg_collation WHERE collprovider = 'i')"):
        pytest.skip("the server was built without ICU")
    require_citext(server)
    name = f"folded {kind.split()[-1].strip(chr(34))} {users[:2]}"
    url = server.database(name, f"""
        CREATE EXTENSION citext SCHEMA public;
        CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        CREATE TABLE users ({users.format(kind=kind)});
        CREATE TABLE sales (row int, email {of_key} REFERENCES users (email));
        INSERT INTO users (id, email) VALUES (0, 'Ann@x'), (1, 'bob@x'), (2, 'ZOE@x');
        INSERT INTO sales SELECT 0, email FROM users WHERE id = 1;
        INSERT INTO sales SELECT 1, email FROM users WHERE id = 0;
        """)  # fmt: skip
    if kind != "varchar(9)":
        server.sql("INSERT INTO sales VALUES (2, 'ann@X'), (3, 'zoe@x'), (4, NULL), (5, 'BOB@x')", name)
    joined = server.sql("SELECT row, id FROM sales JOIN users USING (email) ORDER BY row", name)
    expected = [tuple(map(int, line.split("|"))) for line in joined.split()]
    diskgnn.convert(tmp_path / "graph", source=url)
    edges = Graph.open(tmp_path / "graph").edges["sales", "f2p_email", "users"]
    heads = np.repeat(np.arange(3), np.diff(edges.indptr))
    assert sorted(zip(edges.indices.tolist(), heads.tolist(), strict=True)) == expected
    assert len(expected) == (2 if kind == "varchar(9)" else 5)


def test_keys_that_name_no_row_and_keys_that_are_never_equal(tmp_path: Path, server: PostgresServer) -> None:
    require_citext(server)
    url = server.database("loose", """
        CREATE EXTENSION citext SCHEMA public;
        CREATE TABLE users (id int PRIMARY KEY, email text UNIQUE, nick citext, age int);
        CREATE TABLE sales (email text, nick citext, n int, amount real);
        INSERT INTO users VALUES (3, 'c', 'x', 2), (1, 'a', 'y', 2);
        INSERT INTO sales VALUES ('a', 'X', 1, 1), ('gone', 'x', 2, 2), (NULL, NULL, NULL, 3), ('C', 'x', 3, 4);
        """)  # fmt: skip
    links = {"links": "sales.email=users.email"}
    with pytest.warns(
        DataWarning, match="edges by email of sales .2 rows have values, such as 'gone', that no row has"
    ):
        diskgnn.convert(tmp_path / "graph", source=url, options=links)
    assert Graph.open(tmp_path / "graph").edges["sales", "f2p_email", "users"].num_edges == 1
    with pytest.raises(InputError, match=r"column 'email': expected keys of rows, found others: 2 rows"):
        diskgnn.convert(tmp_path / "strict", source=url, options=links | {"skip_unknown": False})
    for link in ("sales.n=users.email", "sales.email=users"):
        with pytest.raises((ConfigError, InputError), match=r"sales.*(never equal|cannot be equal)"):
            diskgnn.convert(tmp_path / "never", source=url, options={"links": link})
    odd = {"keys": "users=nick", "links": "sales.nick=users"}
    with pytest.raises(ConfigError, match=r"users.nick is of type public.citext, and .* needs a unique index"):
        diskgnn.convert(tmp_path / "odd", source=url, options=odd)
    # Another key than the declared one: what names rows by that finds them all the same.
    server.sql("ALTER TABLE sales ADD FOREIGN KEY (n) REFERENCES users (id) NOT VALID", "loose")
    with pytest.warns(DataWarning, match="edges by n of sales .1 rows have values, such as '2'"):
        diskgnn.convert(tmp_path / "other", source=url, options={"keys": "users=email"})
    graph = Graph.open(tmp_path / "other")
    with graph.nodes["users"].user_ids as ids:  # type: ignore[union-attr]
        assert ids.read().column(0).to_pylist() == ["c", "a"]
    assert np.diff(graph.edges["sales", "f2p_n", "users"].indptr).tolist() == [1, 1]


def test_rows_that_nobody_can_name(tmp_path: Path, server: PostgresServer) -> None:
    """A unique column may be null, so some rows have no id: they are nodes all the same."""
    url = server.database("nameless", """
        CREATE TABLE shops (code text UNIQUE, size int);
        CREATE TABLE sales (shop text REFERENCES shops (code), amount int);
        INSERT INTO shops VALUES (NULL, 1), ('b', 2), (NULL, 3), ('a', 4);
        INSERT INTO sales VALUES ('a', 5), ('b', 6), (NULL, 7), ('a', 8);
        """)  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=url, options={"keep_columns": True})
    edges = Graph.open(tmp_path / "graph").edges["sales", "f2p_shop", "shops"]
    assert np.diff(edges.indptr).tolist() == [0, 1, 0, 2]
    assert np.load(tmp_path / "graph" / "features-shops.npy")["size"].tolist() == [1, 2, 3, 4]


PEOPLE = """
    CREATE TABLE person (id int PRIMARY KEY, nr int UNIQUE, "NR" int UNIQUE, x float8);
    INSERT INTO person VALUES (1, 2, 3, 0.1), (2, 3, 1, 0.2), (3, 1, 2, 0.3);
    """


def numbers_of(server: PostgresServer, database: str, query: str) -> list[tuple[int, int]]:
    """The pairs of whole numbers that a query finds."""
    lines = server.sql(f"SELECT a || ',' || b FROM ({query}) AS found (a, b)", database).split()
    return sorted((int(a), int(b)) for a, b in (line.split(",") for line in lines))


def pairs_of(graph: Graph, *edge_type: str) -> list[tuple[int, int]]:
    edges = graph.edges[edge_type]  # type: ignore[index]
    heads = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return sorted(zip(edges.indices.tolist(), heads.tolist(), strict=True))


def test_keys_that_name_rows_by_another_column(tmp_path: Path, server: PostgresServer) -> None:
    """Beside keys of the same column that do not, and columns whose names differ by capital letters alone."""
    url = server.database("people", PEOPLE + """
        CREATE TABLE pass (nr int PRIMARY KEY REFERENCES person (nr), y float8);
        INSERT INTO pass VALUES (1, 0.1), (2, 0.2), (3, 0.3);
        CREATE TABLE o (k int PRIMARY KEY, u int REFERENCES pass, v float8, w int);
        ALTER TABLE o ADD CONSTRAINT c1 FOREIGN KEY (w) REFERENCES pass,
                      ADD CONSTRAINT c2 FOREIGN KEY (w) REFERENCES person (nr);
        INSERT INTO o VALUES (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3);
        CREATE TABLE p (k int PRIMARY KEY, u int REFERENCES person ("NR"), v float8);
        INSERT INTO p VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3);
        """)  # fmt: skip
    with pytest.warns(DataWarning, match="its column makes edges to"):
        diskgnn.convert(tmp_path / "graph", source=url)
    graph = Graph.open(tmp_path / "graph")
    assert graph.nodes["pass"].user_ids is not None
    with graph.nodes["pass"].user_ids as ids:
        assert ids.read().column(0).to_pylist() == [1, 2, 3]
    by_nr = numbers_of(server, "people", "SELECT pass.nr - 1, person.id - 1 FROM pass JOIN person USING (nr)")
    assert pairs_of(graph, "pass", "f2p_nr", "person") == by_nr == [(0, 2), (1, 0), (2, 1)]
    assert pairs_of(graph, "o", "f2p_u", "pass") == [(0, 0), (1, 1), (2, 2)]
    (named,) = (other for table, word, other in graph.edges if (table, word) == ("o", "f2p_w"))
    assert pairs_of(graph, "o", "f2p_w", named) == {"pass": [(0, 0), (1, 1), (2, 2)], "person": by_nr}[named]
    expected = numbers_of(server, "people", 'SELECT p.k - 1, person.id - 1 FROM p JOIN person ON p.u = "NR"')
    assert pairs_of(graph, "p", "f2p_u", "person") == expected == [(0, 1), (1, 2), (2, 0)]


@pytest.mark.parametrize(
    ("kind", "of_key", "values"),
    [
        ("char(5)", "varchar(9)", ("'ab'", "'cd  '")),
        ("timestamp", "date", ("'2020-01-01'", "'2020-01-02'")),
        ("date", "timestamptz", ("'2020-01-01'", "'2020-01-02'")),
    ],
)
def test_keys_of_another_type(
    tmp_path: Path, server: PostgresServer, kind: str, of_key: str, values: tuple[str, str]
) -> None:
    name = f"across {kind}"
    url = server.database(name, f"""
        CREATE TABLE users (n serial, id {kind} PRIMARY KEY);
        CREATE TABLE o (k int PRIMARY KEY, u {of_key} REFERENCES users, v float8);
        INSERT INTO users (id) VALUES ({values[0]}), ({values[1]});
        INSERT INTO o VALUES (1, {values[1]}, 1), (2, {values[0]}, 2), (3, NULL, 3);
        """)  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=url)
    on = "id = u::bpchar" if kind == "char(5)" else "id = u"  # as the constraint compares them
    expected = numbers_of(server, name, f"SELECT k - 1, n - 1 FROM o JOIN users ON {on}")
    assert pairs_of(Graph.open(tmp_path / "graph"), "o", "f2p_u", "users") == expected == [(0, 1), (1, 0)]


def test_ids_of_a_folding_collation_need_an_index(tmp_path: Path, server: PostgresServer) -> None:
    if "t" not in server.sql("SELECT EXISTS (SELECT FROM pg_collation WHERE collprovider = 'i')"):
        pytest.skip("the server was built without ICU")
    url = server.database("no index", """
        CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        CREATE TABLE users (n serial, code text COLLATE folded);
        CREATE TABLE o (k int PRIMARY KEY, u text COLLATE folded, v float8);
        INSERT INTO users (code) VALUES ('Ab'), ('cd');
        INSERT INTO o VALUES (1, 'aB', 1), (2, 'CD', 2), (3, 'Ab', 3);
        """)  # fmt: skip
    with pytest.raises(ConfigError, match=r"keys: users.code is of type text, .* needs a unique index"):
        diskgnn.convert(tmp_path / "graph", source=url, options={"keys": "users=code", "links": "o.u=users"})


def test_columns_that_differ_by_capital_letters(tmp_path: Path, server: PostgresServer) -> None:
    url = server.database("letters", """
        CREATE TABLE users (id int PRIMARY KEY, "ID" int UNIQUE);
        CREATE TABLE o (k int PRIMARY KEY, u int REFERENCES users ("ID"), v float8);
        INSERT INTO users VALUES (1, 3), (2, 1), (3, 2);
        INSERT INTO o VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3);
        """)  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=url)
    expected = numbers_of(server, "letters", 'SELECT k - 1, id - 1 FROM o JOIN users ON u = "ID"')
    assert pairs_of(Graph.open(tmp_path / "graph"), "o", "f2p_u", "users") == expected == [(0, 1), (1, 2), (2, 0)]


def test_ids_without_regard_to_capital_letters_that_may_be_null(tmp_path: Path, server: PostgresServer) -> None:
    require_citext(server)
    url = server.database("nameless2", """
        CREATE EXTENSION citext SCHEMA public;
        CREATE TABLE users (n serial, email citext UNIQUE);
        CREATE TABLE o (k int PRIMARY KEY, u citext REFERENCES users (email), v float8);
        INSERT INTO users (email) VALUES ('A@x'), (NULL), ('b@X'), (NULL);
        INSERT INTO o VALUES (1, 'a@X', 1), (2, NULL, 2), (3, 'B@x', 3);
        """)  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=url)
    expected = numbers_of(server, "nameless2", "SELECT k - 1, n - 1 FROM o JOIN users ON u = email")
    assert pairs_of(Graph.open(tmp_path / "graph"), "o", "f2p_u", "users") == expected == [(0, 0), (2, 2)]


@pytest.mark.parametrize(("readable", "lost"), [("id, x", "code"), ("code, x", "id")])
def test_keys_to_what_the_user_must_not_read(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, readable: str, lost: str
) -> None:
    database = f"guarded_{lost}"
    server.database(database, f"""
        CREATE TABLE users (id int PRIMARY KEY, code text UNIQUE, x float8);
        CREATE TABLE shops (id int PRIMARY KEY);
        CREATE TABLE o (k int PRIMARY KEY, u text REFERENCES users (code), w int REFERENCES users,
                        s int REFERENCES shops);
        INSERT INTO users VALUES (1, 'a', 0.1), (2, 'b', 0.2);
        INSERT INTO shops VALUES (1);
        INSERT INTO o VALUES (1, 'b', 1, 1), (2, 'a', 2, 1);
        GRANT SELECT ON o, shops TO guest; GRANT SELECT ({readable}) ON users TO guest;
        """)  # fmt: skip
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.warns(DataWarning, match="no privilege to read it"):
        report = diskgnn.convert(tmp_path / "graph", source=server.url(database, "guest"))
    reasons = {(item.of, item.name): item.reason for item in report.contents.left_out}
    told = f"users.{lost}, which names the rows, is left out"
    assert reasons["o", "foreign key (u)"] == told
    assert reasons.get(("o", "foreign key (w)")) == (told if lost == "id" else None)
    assert ("o", "f2p_s", "shops") in Graph.open(tmp_path / "graph").edges


def test_numeric_keys_are_whole_numbers(tmp_path: Path, server: PostgresServer) -> None:
    url = server.database("fractions", """
        CREATE TABLE users (id numeric PRIMARY KEY);
        CREATE TABLE sales (u numeric(20, 2) REFERENCES users, amount int);
        INSERT INTO users VALUES (9007199254740993.000), (2);
        INSERT INTO sales VALUES (2.00, 5), (9007199254740993, 6);
        """)  # fmt: skip
    diskgnn.convert(tmp_path / "graph", source=url)
    edges = Graph.open(tmp_path / "graph").edges["sales", "f2p_u", "users"]
    assert (edges.indptr.tolist(), edges.indices.tolist()) == ([0, 1, 2], [1, 0])
    server.sql("INSERT INTO users VALUES (2.5)", "fractions")
    with pytest.raises(InputError, match=r"table users .*: column 'id': 1 rows have keys that are no whole numbers"):
        diskgnn.convert(tmp_path / "other", source=url)


def test_refusals(tmp_path: Path, server: PostgresServer, shop: str) -> None:
    for options, message in (
        (
            {"times": "nobody.at"},
            "times: expected TABLE.COLUMN of a table of Order Détails, shops, users, visits, found",
        ),
        ({"tasks": "x"}, "format postgresql takes val_timestamp, reverse"),
    ):
        with pytest.raises(ConfigError, match=message):
            diskgnn.convert(tmp_path / "graph", source=shop, options=options)
    with pytest.raises(ConfigError, match=r"exclude: expected COLUMN or TABLE.COLUMN .* found 'users.nothing'"):
        diskgnn.convert(tmp_path / "graph", source=shop, exclude="users.nothing")
    with pytest.raises(ConfigError, match=r"exclude: users.id, which is a key or a time"):
        diskgnn.convert(tmp_path / "graph", source=shop, exclude="users.id")
    with pytest.raises(ConfigError, match=r"memory: expected at least .* to read the source"):
        diskgnn.convert(tmp_path / "graph", source=shop, memory="1MiB")
    with pytest.raises(InputError, match=r'a PostgreSQL server that answers, found: .* "nowhere" does not exist'):
        diskgnn.convert(tmp_path / "graph", source=server.url("nowhere"))
    with pytest.raises(ConfigError, match="format: expected postgresql, as the source is the URL"):
        diskgnn.convert(tmp_path / "graph", source=shop, format="sqlite")
    url = server.database("nested", """
        CREATE TABLE a (id int PRIMARY KEY, a int REFERENCES a, v int[]); INSERT INTO a VALUES (1, 1, '{{1,2},{3,4}}');
        """)  # fmt: skip
    with pytest.raises(InputError, match=r"table a .*column 'v': 1 rows have arrays of several dimensions"):
        diskgnn.convert(tmp_path / "graph", source=url)
    large = server.database("large", """
        CREATE TABLE a (id numeric PRIMARY KEY, a numeric REFERENCES a); INSERT INTO a VALUES (1e30, NULL);
        """)  # fmt: skip
    with pytest.raises(InputError, match="column 'id': 1 rows have keys that are no whole numbers of 64 bits"):
        diskgnn.convert(tmp_path / "graph", source=large)
    server.sql("CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0")
    server.sql("""
        CREATE TABLE a (id int PRIMARY KEY, a int REFERENCES a, t text); INSERT INTO a VALUES (1, 1, E'caf\\xe9');
        """, "bytes")  # fmt: skip
    with pytest.raises(InputError, match=r"gives table a .*invalid byte sequence"):
        diskgnn.convert(tmp_path / "graph", source=server.url("bytes"))
    assert [*tmp_path.iterdir()] == []


def test_excluded_columns_are_not_fetched(tmp_path: Path, shop: str) -> None:
    stopped = faults.armed("work.piece", KeyboardInterrupt(), after=3), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        diskgnn.convert(tmp_path / "graph", source=shop, exclude=["users.age", "shop"])
    names = set()
    for path in (tmp_path / ".graph.partial" / "tables").glob("*.arrow"):
        with pa.ipc.open_file(path) as reader:
            names |= {*reader.schema.names}
    assert names
    assert not names & {"age", "shop"}
    report = diskgnn.convert(tmp_path / "graph", source=shop, exclude=["users.age", "shop"])
    excluded = {(item.of, item.name) for item in report.contents.left_out if item.reason == "excluded by you"}
    assert excluded == {("users", "age"), ("visits", "shop")}
    assert ("visits", "f2p_shop", "shops") not in Graph.open(tmp_path / "graph").edges


def test_rows_of_many_pieces(tmp_path: Path, server: PostgresServer) -> None:
    url = server.database("many", """
        CREATE TABLE b (id int PRIMARY KEY);
        CREATE TABLE a (id bigint PRIMARY KEY, x float8, b int REFERENCES b, body text);
        INSERT INTO b SELECT generate_series(0, 6);
        INSERT INTO a SELECT (r::bigint * 48271) % 300007, r::bigint * r % 977, r % 7, repeat(md5(r::text), 2)
            FROM generate_series(0, 199999) r;
        """)  # fmt: skip
    with pytest.warns(DataWarning, match="body of a .more than 65536 values"):
        diskgnn.convert(tmp_path / "graph", source=url)
    graph, number = Graph.open(tmp_path / "graph"), np.arange(200_000)
    x = (number.astype(np.int64) ** 2 % 977).astype(np.float64)
    np.testing.assert_allclose(x_of(graph.nodes["a"])[:, 0], (x - x.mean()) / x.std(), rtol=1e-5, atol=1e-6)
    with graph.nodes["a"].user_ids as ids:
        np.testing.assert_array_equal(ids.read().column(0).to_numpy(), number * 48271 % 300007)
    edges = graph.edges["a", "f2p_b", "b"]
    assert np.diff(edges.indptr).tolist() == np.bincount(number % 7).tolist()
    assert json.dumps(graph.manifest.config).count("postgresql") == 0


def urls_with(secret: str, server: PostgresServer) -> list[str]:
    """URLs with a secret in them: wrong passwords of a right URL, and URLs that are none."""
    at = f"@/shop?host={server.folder}"
    return [
        f"postgresql://guest:{secret}{at}",
        f"postgresql://guest{at}&password={secret}",
        f"postgres+psycopg2://guest:{secret}@localhost:1/shop",
        f"postgresql://guest:{secret}%zz{at}",  # libpq quotes what has a wrong escape
        f"postgresql://guest:%zz{secret}{at}",
        f"postgresql://guest:{secret}%00{at}",
        f"postgresql://guest:12/{secret}{at}",
        f"postgresql://guest:1?{secret}{at}",
        f"postgresql://guest:#{secret}{at}",
        f"postgresql://guest:x y'{secret}\"z{at}",
        f"postgresql://guest:{secret}/shop",  # no @, so the driver would take it for a port
        f"postgresql://localhost:{secret}",
        f"postgresql:/guest:{secret}{at}",  # what a Path leaves
        f"postgresql:guest:{secret}{at}",
        f"postgresql//guest:{secret}{at}",
        f"postgres//{secret}{at}",
        f"postgresql://guest{at}&{secret}",
        f"postgresql://guest{at}&{secret}=1",
        f"postgresql://guest{at}&passwort={secret}",
        f"postgresql://guest{at}&sslpassword={secret}&sslmode=nothing",
    ]  # fmt: skip


def everything_in(folder: Path) -> bytes:
    return b"".join(str(path).encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_no_password_is_shown_or_kept(tmp_path: Path, server: PostgresServer, shop: str) -> None:
    del shop
    planted = "s3cr3tW0rd"
    for url in urls_with(planted, server):
        words = ["convert", tmp_path / "graph", "--from", url]
        for more in ([], ["--json"], ["--set", "times=x"], ["--schema", tmp_path]):
            failed = CliRunner().invoke(main, [*map(str, words), *map(str, more)])
            assert failed.exit_code in (2, 3), failed.output
            assert planted not in failed.output, failed.output
        with pytest.raises((ConfigError, InputError)) as error:
            diskgnn.convert(tmp_path / "graph", source=url)
        assert planted not in "".join(traceback.format_exception(error.value))
        assert planted not in json.dumps(Board(["diskgnn", *map(str, words)]).document())
    assert planted.encode() not in everything_in(tmp_path)


def test_a_password_of_a_graph_is_not_kept(tmp_path: Path, server: PostgresServer) -> None:
    server.database("guarded", SHOP + "GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")
    url = server.url("guarded", f"guest:{PASSWORD}")
    command = ["-m", "diskgnn", "convert", tmp_path / "graph", "--from", url, "--debug"]
    stopped = faults.armed("work.piece", KeyboardInterrupt(), after=3), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1]:
        said = CliRunner().invoke(main, [str(word) for word in command[2:]]).output
    assert (tmp_path / ".graph.partial" / "tables").is_dir()
    told = everything_in(tmp_path) + said.encode()
    done = run_python(*command, "--serve", "0", capture_output=True, text=True, check=True)
    told += everything_in(tmp_path) + done.stdout.encode() + done.stderr.encode()
    assert b"going on" in told or b"goes on" in told
    wrong = run_python(*command[:3], tmp_path / "no", "--from", server.url("guarded", "guest:another1"), "--debug",
                       capture_output=True, text=True, check=False)  # fmt: skip
    assert wrong.returncode != 0
    assert "password authentication failed" in wrong.stderr
    told += wrong.stdout.encode() + wrong.stderr.encode()
    for secret in (PASSWORD, "another1"):
        assert secret.encode() not in told


@pytest.mark.usefixtures("measured_forked")
def test_the_benchmark_runs(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a tiny database, so that it cannot rot."""
    bench_database = import_module("bench_database")
    arguments = [tmp_path / "bench", "--database", server.database("bench", ""), "--rows=3000", "--seeds=200",
                 f"--memory={forked_mib() + 200}MiB", "--limit=none"]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["bench_database.py", *map(str, arguments)])
    bench_database.main()
    found = {record["stage"]: record for record in map(json.loads, capsys.readouterr().out.splitlines())}
    assert sum(found["fill"]["tables"].values()) == pytest.approx(3000, abs=6)
    assert found["fetch"]["of_copy"] > 0
    assert found["epoch"]["of_raw_rate"] > 0
    assert found["epoch"]["of_raw_rate_with_x"] > 0
    assert found["convert"]["graph_bytes"] > 1800 * 2 * 256  # two embedded texts of each review
    assert not (tmp_path / "bench").exists()
    assert server.sql("SELECT count(*) FROM pg_class WHERE relname = 'reviews'", "bench").strip() == "0"
