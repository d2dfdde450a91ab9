"""The database of flights of the tutorial, on tables small enough to check by hand."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_docs import DOCS, blocks, commands_in, outcome

import diskgnn
from diskgnn.graph.graph import Graph

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

import flights_database

# Plane A flew on Sunday 13 January, on Monday and Sunday of the week behind it, and in September; B is listed nowhere.
FLIGHTS = {
    "time_hour": pa.array(["2013-01-13T10:00:00", "2013-01-14T00:00:00", "2013-01-20T23:00:00", "2013-09-04T05:00:00",
                           "2013-10-22T05:00:00", "2013-10-23T05:00:00"]).cast(pa.timestamp("s")),
    "tailnum": ["A", "A", "A", "A", "B", None], "origin": ["EWR"] * 6,
    "dest": ["LAX", "XXX", "LAX", "LAX", "LAX", "LAX"],
    "carrier": ["UA"] * 6, "hour": [5] * 6, "distance": [9] * 6, "dep_delay": [0, 6, None, 60, 1, 1],
    "arr_delay": [600, 30, 60, -30, 90, 5], "air_time": [1, 2, 3, 3, 4, 4],
}  # fmt: skip
TABLES = {
    "flights": pa.table(FLIGHTS),
    "planes": pa.table({"tailnum": ["A"], "year": [2000], "type": ["Rotorcraft"], "manufacturer": ["M"], "model": ["X"],
                        "engines": [2], "seats": [9]}),
    "airports": pa.table({"faa": ["LAX", "EWR"], "name": ["a", "b"], "lat": [1, 2], "lon": [1, 2], "alt": [1, 2],
                          "tz": [-8, -5]}),
}  # fmt: skip


def test_by_hand(tmp_path: Path) -> None:
    flights_database.write(TABLES, tmp_path)
    found = {split: pq.read_table(tmp_path / f"{split}.parquet").to_pylist() for split in ("train", "valid", "test")}
    told = {
        split: [(row["tailnum"], str(row["at"].date()), row["delay"]) for row in rows] for split, rows in found.items()
    }
    assert told == {
        "train": [("A", "2013-01-14", 0.75)], "valid": [("A", "2013-09-02", -0.5)], "test": [("B", "2013-10-21", 1.5)],
    }  # fmt: skip
    with sqlite3.connect(tmp_path / "flights.db") as connection:
        assert connection.execute("SELECT tailnum, seats FROM planes").fetchall() == [("A", 9), ("B", None)]
        assert connection.execute("SELECT known FROM flights WHERE id = 1").fetchall() == [("2013-01-15 10:00:00",)]
    connection.close()


@pytest.mark.filterwarnings("ignore::diskgnn.errors.DataWarning")
def test_it_is_what_the_tutorial_converts_and_prepares(tmp_path: Path) -> None:
    flights_database.write(TABLES, tmp_path)
    options = {"times": "flights.known", "val_timestamp": "2013-09-02"}
    columns = diskgnn.TableColumns(encode={"planes.model": "hash:16", "airports.name": "hash:16"})
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "flights.db", options=options, columns=columns,
                    exclude="flights.scheduled")  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    assert {name: nodes.num_nodes for name, nodes in graph.nodes.items()} == {"planes": 2, "airports": 3, "flights": 6}
    seeds = {split: str(tmp_path / f"{split}.parquet") for split in ("train", "valid", "test")}
    named = diskgnn.TableColumns(id="tailnum", time="at", label="delay")
    target = diskgnn.read_target(tmp_path / "graph", seeds, node_type="planes", columns=named)
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", target=target, fanouts=[30, 5], temporal="last",
                    temporal_window="28d", cpu_cache=0)  # fmt: skip
    (batch,) = diskgnn.Loader(tmp_path / "packed", "test")
    assert (batch.seeds.tolist(), batch.y.tolist()) == ([1], [[1.5]])
    assert batch.x["planes"].shape == (1, 16 + 3 + 2)  # the model's name, three numbers, a type and a manufacturer
    assert len(batch.x["flights"]) == 0  # its flight of that week is not known yet
    (batch,) = diskgnn.Loader(tmp_path / "packed")
    assert len(batch.x["flights"]) == 0  # what was known on 14 January, the flight of the day before was not


def test_the_python_of_the_tutorial_does_what_its_commands_do(tmp_path: Path) -> None:
    page, said = DOCS / "database-tutorial.md", {}
    for language in ("bash", "python"):
        (tmp_path / language / "shop").mkdir(parents=True)
        flights_database.write(TABLES, tmp_path / language / "shop")
        lines = [["-c", text] for text in blocks(page, "python")]
        if language == "bash":
            lines = [each for text in blocks(page, "bash") for each in commands_in(text) if each[0] == "-m"]
        for each in lines:
            outcome(each, tmp_path / language)
        said[language] = pq.read_table(tmp_path / language / "week.parquet")
    assert said["bash"]["id"].to_pylist() == ["A", "B"]
    assert said["bash"].equals(said["python"])
