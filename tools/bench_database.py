"""From a PostgreSQL database to an epoch of training within a memory cgroup, page cache included.

    python tools/bench_database.py FOLDER --database postgresql:///empty --rows 50000000 --limit 1GiB

Fills the database, which shall be empty, with six tables: users, sellers, products, orders, items, and reviews, which
are six of ten rows and have two texts. Then, each in a process of its own within the limit (root only; 'none' for no
limit): `convert` with the texts embedded and all columns kept, `prepare` for users at times with windows of 180 days,
and an epoch of the loader. Prints a line of JSON for each:
- copy: seconds of psql's `\\copy (SELECT ...) TO file WITH binary` of what is fetched, before and after converting;
- fetch: the same rows, as `convert` fetches them; of_copy is the ratio of rates, of the two medians;
- convert, prepare: seconds, peaks of memory, bytes of the graph and of extents, those of headers beside;
- epoch: the loader's rate beside the disk's, in turns; with_x: where each minibatch is asked for x of all types.
psql finds its password by PGPASSWORD or ~/.pgpass. FOLDER is removed in the end; tables are dropped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import diskgnn
from benchmarks import limits
from diskgnn.compare.measurement import Measurement, run
from diskgnn.formats.artifacts import extents_file
from diskgnn.formats.packed import Packed
from diskgnn.progress.reporter import Advance
from diskgnn.units import parse_size

SHARES = {"users": 0.01, "sellers": 0.002, "products": 0.018, "orders": 0.17, "items": 0.2, "reviews": 0.6}
DAYS = 730
# What looks random is a hash of the row's number: the same at each run.
_FILL = """
CREATE FUNCTION draw(number bigint, what int, below bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    'SELECT (hashint8extended(number, what) & 9007199254740991) % below';
CREATE FUNCTION moment(number bigint, what int) RETURNS timestamp LANGUAGE sql IMMUTABLE AS
    $$SELECT timestamp '2021-01-01' + draw(number, what, {days} * 86400) * interval '1 second'$$;
CREATE FUNCTION words(number bigint, what int) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$SELECT replace(replace(md5((32 * number + what)::text), '0', ' '), 'f', ' ')$$;
CREATE TABLE users AS SELECT id, 'name ' || id AS name, 'country ' || draw(id, 1, 50) AS country,
    18 + draw(id, 2, 70) AS age, moment(id, 3) AS joined FROM generate_series(1::bigint, {users}) AS id;
CREATE TABLE sellers AS SELECT id, draw(id, 4, 1000) / 200.0::float8 AS rating
    FROM generate_series(1::bigint, {sellers}) AS id;
CREATE TABLE products AS SELECT id, 1 + draw(id, 5, {sellers}) AS seller_id,
    'category ' || draw(id, 6, 200) AS category, (draw(id, 7, 100000) / 100.0)::numeric(10, 2) AS price
    FROM generate_series(1::bigint, {products}) AS id;
CREATE TABLE orders AS SELECT id, 1 + draw(id, 8, {users}) AS user_id, moment(id, 9) AS at,
    draw(id, 10, 100000) / 100.0::float8 AS total FROM generate_series(1::bigint, {orders}) AS id;
CREATE TABLE items AS SELECT 1 + draw(id, 11, {orders}) AS order_id, 1 + draw(id, 12, {products}) AS product_id,
    (1 + draw(id, 13, 9))::int AS amount FROM generate_series(1::bigint, {items}) AS id;
CREATE TABLE reviews AS SELECT id, 1 + draw(id, 14, {users}) AS user_id, 1 + draw(id, 15, {products}) AS product_id,
    moment(id, 16) AS at, (1 + draw(id, 17, 5))::smallint AS stars, words(id, 18) AS title,
    words(id, 19) || words(id, 20) || words(id, 21) AS text FROM generate_series(1::bigint, {reviews}) AS id;
"""
_KEYS = """
ALTER TABLE users ADD PRIMARY KEY (id); ALTER TABLE sellers ADD PRIMARY KEY (id);
ALTER TABLE products ADD PRIMARY KEY (id); ALTER TABLE orders ADD PRIMARY KEY (id);
ALTER TABLE reviews ADD PRIMARY KEY (id);
ALTER TABLE products ADD FOREIGN KEY (seller_id) REFERENCES sellers NOT VALID;
ALTER TABLE orders ADD FOREIGN KEY (user_id) REFERENCES users NOT VALID;
ALTER TABLE items ADD FOREIGN KEY (order_id) REFERENCES orders NOT VALID;
ALTER TABLE items ADD FOREIGN KEY (product_id) REFERENCES products NOT VALID;
ALTER TABLE reviews ADD FOREIGN KEY (user_id) REFERENCES users NOT VALID;
ALTER TABLE reviews ADD FOREIGN KEY (product_id) REFERENCES products NOT VALID;
ANALYZE;
"""
_CLEAR = f"DROP TABLE {', '.join(SHARES)}; DROP FUNCTION draw, moment, words;"


class Stages:
    """Adds up the seconds of stages by their names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """See `diskgnn.progress`."""
        started = time.perf_counter()
        yield lambda _: None
        self.seconds[description] += time.perf_counter() - started


def psql(database: str, script: str) -> None:
    """Run a script."""
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database]
    subprocess.run(command, input=script, text=True, check=True, stdout=subprocess.DEVNULL)


def fill(database: str, sizes: Mapping[str, int]) -> None:
    """Make the tables."""
    psql(database, _FILL.format(days=DAYS, **sizes))
    psql(database, _KEYS)


def copied_seconds(database: str, folder: Path) -> float:
    """Seconds of psql's binary copy of what `convert` fetches: all but the column that it leaves out."""
    columns = {"users": "id, country, age, joined"}
    seconds = 0.0
    for table in SHARES:
        target = folder / "copied"
        script = f"\\copy (SELECT {columns.get(table, '*')} FROM {table}) TO '{target}' WITH binary\n"
        seconds += limits.timed(lambda script=script: psql(database, script))  # type: ignore[misc]
        target.unlink()
    return seconds


def write_seeds(folder: Path, users: int, seeds: int) -> None:
    """Users at times, with a class that means nothing."""
    random = np.random.default_rng(0)
    at = np.datetime64("2022-01-01", "s") + random.integers(0, 365 * 86400, seeds).astype("timedelta64[s]")
    table = {"user": random.integers(1, users + 1, seeds), "at": np.sort(at), "label": random.integers(0, 2, seeds)}
    pq.write_table(pa.table(table), folder / "train.parquet")


def convert(folder: Path, database: str, memory: str) -> dict[str, Any]:
    """The graph."""
    stages = Stages()
    done = diskgnn.convert(
        folder / "graph", source=database, exclude=["users.name"],
        options={"keep_columns": "true", "times": "users.joined,orders.at,reviews.at"},
        columns=diskgnn.TableColumns(encode={"reviews.title": "hash:256", "reviews.text": "hash:256"}),
        memory=memory, reporter=stages,
    )  # fmt: skip
    fetch = sum(seconds for name, seconds in stages.seconds.items() if name.startswith("fetch "))
    graph_bytes = sum(file.stat().st_size for file in (folder / "graph").rglob("*"))
    return {
        "convert_seconds": done.seconds,
        "fetch_seconds": fetch,
        "graph_bytes": graph_bytes,
        "stages": stages.seconds,
    }


def prepare(folder: Path, memory: str) -> list[object]:
    """The command that prepares one epoch of neighbourhoods in windows of 180 days."""
    names = [part for name in ("id=user", "time=at", "label=label") for part in ("--target-column", name)]
    return ["prepare", folder / "graph", folder / "packed", "--target", "users", *names,
            "--target-seeds", f"train={folder / 'train.parquet'}", "--temporal", "last", "--temporal-window", "180d",
            "--fanouts", "64,32", "--batch-size", "256", "--epochs", "1", "--cpu-cache", "256MiB", "--memory", memory,
            "--json"]  # fmt: skip


def epoch(folder: Path) -> dict[str, Any]:
    """The loader's rate beside the disk's, in turns: nobody asks for columns, then a model of vectors does for x."""
    packed = Packed.open(folder / "packed")
    path, turns = packed.file(extents_file("train")), []
    with diskgnn.Loader(folder / "packed") as loader:
        next(loader.epoch(0))
        for turn in range(3):
            raw_rate = limits.read_rate(path)
            seconds = limits.timed(lambda turn=turn: sum(1 for _ in loader.epoch(turn)))  # type: ignore[misc]
            with_x = limits.timed(lambda turn=turn: [_ask_for_x(batch) for batch in loader.epoch(turn)])  # type: ignore[misc]
            raw_rate = (raw_rate + limits.read_rate(path)) / 2
            rate, x_rate = (path.stat().st_size / each for each in (seconds, with_x))
            turns.append({"seconds": seconds, "seconds_with_x": with_x, "of_raw_rate": rate / raw_rate,
                          "of_raw_rate_with_x": x_rate / raw_rate, "raw_rate": raw_rate})  # fmt: skip
    return {
        "turns": turns,
        **{name: median(turn[name] for turn in turns) for name in ("of_raw_rate", "of_raw_rate_with_x")},
        "extent_bytes": path.stat().st_size, "header_bytes": int(packed.index("train").extents["header_bytes"].sum()),
    }  # fmt: skip


def _ask_for_x(batch: Any) -> None:
    for node_type in batch.x:
        batch.x[node_type]


def main() -> None:
    """Fill, copy, convert, prepare, read, remove."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for files; must not exist; removed")
    parser.add_argument("--database", required=True, help="postgresql://..., of an empty database; without a password")
    parser.add_argument("--rows", type=int, default=50_000_000, help="of all tables")
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--memory", default="900MiB", help="of convert and prepare")
    parser.add_argument("--filled", action="store_true", help="the database has the tables of --rows already")
    parser.add_argument("--limit", default="1GiB", help="the cgroup's, for each stage; none: no cgroup")
    parser.add_argument("--stage", choices=("convert", "epoch"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        found = (
            epoch(options.folder)
            if options.stage == "epoch"
            else convert(options.folder, options.database, options.memory)
        )
        print(json.dumps(found))
        return
    options.folder.mkdir(parents=True)
    try:
        measure(options.folder, options)
    finally:
        shutil.rmtree(options.folder)


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Print what each stage took."""
    limit = None if options.limit == "none" else parse_size(options.limit)
    itself = [sys.executable, __file__, folder, "--database", options.database, "--memory", options.memory, "--stage"]

    def stage(name: str, command: Sequence[object]) -> dict[str, Any]:
        ran = run(Measurement(name, command, limit))
        print(json.dumps({"stage": name, **ran.costs, **ran.figures}), flush=True)
        return ran.figures

    sizes = {table: max(3, int(share * options.rows)) for table, share in SHARES.items()}
    seconds = 0.0 if options.filled else limits.timed(lambda: fill(options.database, sizes))
    print(json.dumps({"stage": "fill", "seconds": round(seconds, 1), "tables": sizes}), flush=True)
    write_seeds(folder, sizes["users"], options.seeds)
    copies = [copied_seconds(options.database, folder)]
    fetch_seconds = stage("convert", [*itself, "convert"])["fetch_seconds"]
    copies.append(copied_seconds(options.database, folder))
    psql(options.database, _CLEAR)  # its disk space is needed
    of_copy = median(copies) / fetch_seconds
    print(
        json.dumps({"stage": "fetch", "seconds": fetch_seconds, "copy_seconds": copies, "of_copy": of_copy}), flush=True
    )
    stage("prepare", [sys.executable, "-m", "diskgnn", *prepare(folder, options.memory)])
    stage("epoch", [*itself, "epoch"])


if __name__ == "__main__":
    main()
