"""Dates and times are read alike wherever one is given: in a column, a database, an option or an argument."""

from __future__ import annotations

import re
import sqlite3
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_features import x_of

import diskgnn
from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.tables.times import moment

TEXTS = [
    "2020-01-01", "2020-01-01 00:00:00", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00+02:00", "2020-01-01 00:00-0530",
    "2020-01-01T12:30:59.75", "1969-12-31T23:59:59.5Z", "2020-01-01 06Z",
]  # fmt: skip


def in_utc(text: str) -> int:
    """Seconds by Python's own parser, which on 3.10 wants zones and fractions in full; what has no zone is of UTC."""
    full = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text.replace("Z", "+00:00"))
    found = datetime.fromisoformat(re.sub(r"\.(\d+)", lambda digits: f".{digits[1]:0<6}", full))
    found = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
    return (found - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1)


EXPECTED = [in_utc(text) for text in TEXTS[:-1]] + [1577836800 + 6 * 3600]


def of_column(folder: Path, texts: list[str]) -> list[int]:
    """Times of edges in a table, in the order of the rows."""
    count = len(texts)
    table = pa.table({"src": range(count), "dst": [(i + 1) % count for i in range(count)], "at": texts})
    pq.write_table(table, folder / "edges.parquet")
    edges = {"edges": folder / "edges.parquet", "columns": {"time": "at"}}
    schema = {"nodes": {"n": {"num_nodes": count}}, "edges": {"n:to:n": edges}}
    diskgnn.convert(folder / "graph", schema=schema, overwrite=True)
    times = np.array(Graph.open(folder / "graph").edges["n", "to", "n"].times)
    return [int(times[(i + 1) % count]) for i in range(count)]  # edge i ends in node i + 1


def of_database(folder: Path, texts: list[str]) -> list[int]:
    (folder / "shop.db").unlink(missing_ok=True)
    with sqlite3.connect(folder / "shop.db") as connection:
        connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, at TIMESTAMP, up INTEGER REFERENCES a)")
        connection.executemany("INSERT INTO a VALUES (?, ?, 0)", enumerate(texts))
    connection.close()
    diskgnn.convert(folder / "graph", source=folder / "shop.db", options={"times": "a.at"}, overwrite=True)
    times: list[int] = np.array(Graph.open(folder / "graph").nodes["a"].times).tolist()
    return times


@pytest.mark.parametrize("read", [of_column, of_database])
def test_texts_of_a_column(tmp_path: Path, read: Any) -> None:
    assert read(tmp_path, TEXTS) == EXPECTED  # some with a zone, some without
    without = [text for text in TEXTS if "Z" not in text and "+" not in text and "-0530" not in text]
    assert read(tmp_path, without) == [in_utc(text) for text in without]


@pytest.mark.parametrize(("text", "expected"), [*zip(TEXTS, EXPECTED, strict=True)])
def test_one_text(text: str, expected: int) -> None:
    assert moment("at", text) == expected
    assert moment("at", f" {text} ") == expected


def test_other_moments() -> None:
    east = timezone(timedelta(hours=2))
    assert moment("at", datetime(2020, 1, 1, tzinfo=east)) == EXPECTED[0] - 7200
    assert moment("at", datetime(2020, 1, 1)) == moment("at", date(2020, 1, 1)) == EXPECTED[0]
    assert moment("at", np.datetime64("2020-01-01")) == EXPECTED[0]
    assert moment("at", -5) == moment("at", "-5") == moment("at", np.int32(-5)) == -5
    wrong: list[Any] = ["soon", "", "2020-13-01", "2020-01-01 00:00 CET", 1.5, True, None, [1]]
    for given in wrong:
        with pytest.raises(ConfigError, match=r"until: expected a whole number .*, or a date or time .*, found"):
            moment("until", given)


@pytest.mark.parametrize(
    ("until", "kept"), [("2020-01-01T00:00:00+02:00", 1), ("2020-01-01", 2), ("2020-01-01T00:00-01:00", 3)]
)
def test_options_respect_zones(tmp_path: Path, until: str, kept: int) -> None:
    """Rows of 22:00 before, of midnight, and of one o'clock."""
    rows = pa.table({"id": [0, 1, 2], "up": [0, 0, 0], "x": [1.0, 2.0, 4.0],
                     "at": ["2019-12-31 22:00", "2020-01-01", "2020-01-01 01:00"]})  # fmt: skip
    pq.write_table(rows, tmp_path / "a.parquet")
    description = "tables: {a: {file: a.parquet, pkey: id, fkeys: {up: a}, time: at}}"
    (tmp_path / "relational.yaml").write_text(description)
    diskgnn.convert(tmp_path / "cut", source=tmp_path, options={"until": until})
    assert Graph.open(tmp_path / "cut").nodes["a"].num_nodes == kept
    diskgnn.convert(tmp_path / "scaled", source=tmp_path, options={"val_timestamp": until})
    known = np.array([1.0, 2.0, 4.0])[:kept]
    found = x_of(Graph.open(tmp_path / "scaled").nodes["a"])[:, 0]
    expected = (np.array([1.0, 2.0, 4.0]) - known.mean()) / known.std() if kept > 1 else np.zeros(3)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("largest", [2**63, 2**64 - 1])
def test_whole_numbers_that_are_too_large(tmp_path: Path, largest: int) -> None:
    """A message of our own, and not of Arrow's."""
    rows = pa.table({"id": [0, 1], "up": [0, 0], "at": pa.array([3, largest], pa.uint64())})
    pq.write_table(rows, tmp_path / "a.parquet")
    (tmp_path / "relational.yaml").write_text("tables: {a: {file: a.parquet, pkey: id, fkeys: {up: a}, time: at}}")
    with pytest.raises(InputError, match=rf"times of table a, .* expected times below 2\^63, found {largest}"):
        diskgnn.convert(tmp_path / "graph", source=tmp_path)
