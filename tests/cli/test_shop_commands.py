"""The commands that lead from a database to predictions, as a stranger types them, with the defaults."""

from __future__ import annotations

import shlex
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from postgresql_server import started_server

from diskgnn.cli import main
from diskgnn.graph.graph import Graph

USERS, FIRST = 90, datetime(2026, 1, 1)
TABLES = """
    CREATE TABLE users (id integer PRIMARY KEY, country text, age integer, last_seen timestamp);
    CREATE TABLE products (id integer PRIMARY KEY, kind text, price double precision);
    CREATE TABLE orders (id integer PRIMARY KEY, user_id integer REFERENCES users, product_id integer
                         REFERENCES products, at timestamp, quantity integer);
    CREATE TABLE reviews (id integer PRIMARY KEY, user_id integer REFERENCES users, product_id integer
                          REFERENCES products, written timestamp, stars integer, text text);
"""


def moment(days: float) -> str:
    return (FIRST + timedelta(days=float(days))).isoformat(" ", "seconds")


def statements() -> str:
    """A shop in SQL that both databases take."""
    random = np.random.default_rng(0)
    ages = random.integers(18, 80, USERS)
    rows = [f"INSERT INTO users VALUES ({user + 1}, '{random.choice(['de', 'fr'])}', {age if user % 9 else 'NULL'}, "
            f"'{moment(random.integers(300, 400))}')" for user, age in enumerate(ages)]  # fmt: skip
    rows += [f"INSERT INTO products VALUES ({number + 1}, 'kind {number % 40}', {random.random():.4f})"
             for number in range(200)]  # fmt: skip
    for number in range(1200):
        keys = f"{number + 1}, {random.integers(1, USERS + 1)}, {random.integers(1, 201)}"
        rows.append(f"INSERT INTO orders VALUES ({keys}, '{moment(random.integers(0, 300))}', {random.integers(1, 5)})")
    for number in range(400):
        keys = f"{number + 1}, {random.integers(1, USERS + 1)}, {random.integers(1, 201)}"
        words = " ".join(random.choice(["good", "broken", "fine"], 3))
        rows.append(f"INSERT INTO reviews VALUES ({keys}, '{moment(random.integers(0, 300))}', 3, '{words}')")
    return TABLES + ";\n".join(rows) + ";"


def write_questions(folder: Path) -> None:
    random = np.random.default_rng(1)
    for name, first, last in (("churn", 100, 200), ("valid", 201, 240), ("test", 241, 280)):
        users = random.integers(1, USERS + 1, 60)
        at = [FIRST + timedelta(days=int(day)) for day in random.integers(first, last, 60)]
        table = {"id": users, "time": pa.array(at, pa.timestamp("s")), "label": users % 2 == 0}
        pq.write_table(pa.table(table), folder / f"{name}.parquet")


def run(command: str) -> str:
    done = CliRunner().invoke(main, shlex.split(command)[1:])
    assert done.exit_code == 0, (command, done.output)
    return done.output


def run_all(source: str) -> None:
    convert = f"diskgnn convert shop --from {source} --embed-text reviews.text=hash:256 --exclude users.last_seen"
    prepare = (
        "diskgnn prepare shop packed --target users --target-seeds train=churn.parquet --target-seeds "
        "valid=valid.parquet --target-seeds test=test.parquet --temporal last --temporal-window 180d --fanouts 64,32"
    )
    run(convert)
    refused = CliRunner().invoke(main, shlex.split(prepare)[1:])
    assert refused.exit_code != 0
    assert "`diskgnn convert --set times=orders.at,reviews.written`" in refused.output
    run(f"{convert} --set times=orders.at,reviews.written --overwrite")
    run(prepare)
    said = run("diskgnn train packed --model relational --checkpoint run")
    assert "test" in said
    run("diskgnn predict shop --checkpoint run --at 2026-11-01 --out predicted.parquet")
    assert pq.read_table("predicted.parquet")["id"].to_pylist() == list(range(1, USERS + 1))
    graph = Graph.open("shop")
    assert "products.kind" in graph.kept_columns  # of 40 values, which vectors of features would not have
    assert not any(name.startswith("users.last_seen") for name in graph.kept_columns)


def test_from_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    connection = sqlite3.connect("shop.db")
    connection.executescript(statements())
    connection.close()
    write_questions(tmp_path)
    run_all("sqlite:shop.db")
    found = Graph.open("shop").nodes["users"].num_nodes
    assert found == USERS
    run("diskgnn propagate shop hops --target users --nodes all --ignore-times --hops 2")  # the same graph


def test_from_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path)
    with started_server() as server:
        run_all(server.database("stranger", statements()))
