"""What is said of a database, above all of times, and is not so, is told; before tables are read, if it can be."""

from __future__ import annotations

import sqlite3
import warnings
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import run
from told_stages import Stages

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError, OutputExistsError
from diskgnn.graph.graph import Graph

# Users until 2020-01-02, views of them, which have nothing but keys and times, until 2020-01-09.
SHOP = """
CREATE TABLE users (id INTEGER PRIMARY KEY, since TIMESTAMP, age REAL);
CREATE TABLE views (id INTEGER PRIMARY KEY, user INTEGER REFERENCES users, at TIMESTAMP, milliseconds BIGINT);
INSERT INTO users VALUES (1, '2019-12-31', 20), (2, '2020-01-02', 40);
INSERT INTO views VALUES (1, 1, '2020-01-03', 1578009600000), (2, 2, '2020-01-09', 1578528000000);
"""
TIMES = "users.since,views.at"
LATE = "no row is later than"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SHOP)
    connection.close()
    return path


def warned(source: Path | str, out: Path, **options: Any) -> list[str]:
    exclude = ["views.milliseconds"]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        diskgnn.convert(out, source=source, options={"times": TIMES, **options}, exclude=exclude, overwrite=True)
    return [str(each.message) for each in found]


@pytest.mark.parametrize(
    ("moment", "is_late"),
    [
        ("2020-01-01", False),
        ("2020-01-05", False),  # later than all users, and views have no columns whose statistics would tell
        ("2020-01-08T23:59:59", False),
        ("2020-01-09", True),
        (1577836800, False),
        (1577836800_000, True),  # milliseconds, of 2020-01-01
        ("2030-01-01", True),
    ],
)
def test_a_moment_after_all_rows_is_told(source: Path, tmp_path: Path, moment: object, is_late: bool) -> None:
    told = warned(source, tmp_path / "graph", val_timestamp=moment)
    assert [f"{LATE} {moment}, the last one is of views at 2020-01-09T00:00:00" in each for each in told] == (
        [True] if is_late else []
    )


@pytest.mark.parametrize(
    "moment",
    [
        date(2020, 1, 8),
        datetime(2020, 1, 8, 23, 59, 59, 999_999),
        datetime(2020, 1, 8, 12, tzinfo=timezone(timedelta(hours=2))),
        pd.Timestamp("2020-01-08 10:00"),
        pd.Timestamp("2020-01-08 10:00:00.000000001", tz="America/New_York"),
        np.datetime64("2020-01-08"),
        np.datetime64("2020-01-08T10:00:00.5", "ns"),
        np.int64(1578477600),
    ],
)
def test_moments_as_python_has_them(source: Path, tmp_path: Path, moment: Any) -> None:
    """pandas says which second each is: graphs are the same as with that number, and views later than it are not
    there."""
    second = int(moment) if isinstance(moment, np.int64) else int(pd.Timestamp(moment).timestamp() // 1)
    files = []
    for given in (moment, second):
        warned(source, tmp_path / "graph", until=given, val_timestamp=given)
        graph = Graph.open(tmp_path / "graph")
        assert graph.nodes["views"].num_nodes == 1
        files.append(graph.manifest.files)
    assert files[0] == files[1]


@pytest.mark.parametrize("moment", [pd.NaT, np.datetime64("NaT"), True, 1.5, timedelta(1)])
def test_no_moments(source: Path, tmp_path: Path, moment: object) -> None:
    with pytest.raises(ConfigError, match="until: expected"):
        warned(source, tmp_path / "graph", until=moment)


@pytest.mark.parametrize("keep_columns", [False, True])
def test_text_of_dates_is_proposed(source: Path, tmp_path: Path, keep_columns: bool) -> None:
    with sqlite3.connect(source) as connection:
        connection.executescript("CREATE TABLE likes (user INTEGER REFERENCES users, day TEXT, why TEXT)")
        days = [f"20{10 + number}-01-31 12:00" for number in range(40)]
        connection.executemany("INSERT INTO likes VALUES (1, ?, ?)", [(day, f"because {day}") for day in days])
    connection.close()
    options = {"keep_columns": keep_columns}
    proposed = r"found none \(users\.since, views\.at, likes\.day may be such\); say when .* times=users\.since"
    with pytest.raises(ConfigError, match=proposed):
        diskgnn.convert(tmp_path / "graph", source=source, options=options | {"val_timestamp": "2020-01-01"})
    with pytest.warns(DataWarning, match=r"day of likes \(.* dates or times such as '2010-01-31 12:00': they may say"):
        diskgnn.convert(tmp_path / "graph", source=source, options=options)


def test_lists_of_names(source: Path, tmp_path: Path) -> None:
    with sqlite3.connect(source) as connection:
        connection.execute("CREATE TABLE likes (user INTEGER, view INTEGER)")
        connection.execute("INSERT INTO likes VALUES (1, 2), (2, 2)")
    connection.close()
    files = []
    for links, times in (("likes.user=users,likes.view=views.id", TIMES), (["likes.user=users", "likes.view=views.id"],
                                                                         ("users.since", "views.at"))):  # fmt: skip
        warned(source, tmp_path / "graph", links=links, times=times)
        files.append(Graph.open(tmp_path / "graph").manifest.files)
    assert files[0] == files[1]
    with pytest.raises(ConfigError, match=r"options: times: expected str or a list of str \| None, found \[1\]"):
        warned(source, tmp_path / "graph", times=[1])


def test_a_format_before_the_path(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the command line. A file that is called so is that file."""
    monkeypatch.chdir(tmp_path)
    for given in (f"sqlite:{source}", "sqlite:shop.db", "auto:shop.db"):
        warned(given, tmp_path / "graph")
    with pytest.raises(InputError, match=r"found none at sqlit:shop.db; did you mean 'sqlite'\?"):
        warned("sqlit:shop.db", tmp_path / "graph")
    with pytest.raises(InputError, match=r"found none at gone\.db$"):
        warned("sqlite:gone.db", tmp_path / "graph")
    source.rename("duckdb:shop.db")
    warned("duckdb:shop.db", tmp_path / "graph")


def test_without_a_moment_nothing_is_late(source: Path, tmp_path: Path) -> None:
    assert warned(source, tmp_path / "graph") == []
    assert warned(source, tmp_path / "graph", val_timestamp="2030-01-01", statistics="all") == []


def test_keys_that_are_said_to_be_times_are_told(source: Path, tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match=r"views\.id: a key of whole numbers is taken as the time when rows appear"):
        diskgnn.convert(tmp_path / "graph", source=source, options={"times": "users.since,views.id"})
    days = tmp_path / "days.db"
    with sqlite3.connect(days) as connection:
        connection.executescript("""
            CREATE TABLE days (day DATE PRIMARY KEY, x REAL);
            CREATE TABLE sales (day DATE REFERENCES days, amount REAL);
            INSERT INTO days VALUES ('2020-01-01', 1), ('2020-01-02', 2);
            INSERT INTO sales VALUES ('2020-01-01', 5), ('2020-01-02', 6);
        """)
    connection.close()
    with warnings.catch_warnings():  # days of a calendar count nothing else
        warnings.simplefilter("error", DataWarning)
        diskgnn.convert(tmp_path / "days", source=days, options={"times": "days.day,sales.day"})


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"times": TIMES}, {"time_unit": "ms"}, "time_unit: expected s, as what is read says itself, found ms"),
        # Milliseconds beside dates, which become seconds: neither unit is right for both.
        ({"times": "users.since,views.milliseconds"}, {"time_unit": "ms"},
         "time_unit: expected s, as times of nodes of type users are dates or timestamps, .*; found ms"),
        ({}, {"null_time": "never"}, "null_time: found 'never', while no type of nodes or edges has times"),
        ({}, {"time_unit": "s"}, "time_unit: found 's', while no type"),
        ({}, {"order": "time"}, "order: found 'time', while no type"),
    ],
)  # fmt: skip
def test_what_fits_no_times_is_refused_before_tables_are_read(
    source: Path, tmp_path: Path, options: dict[str, str], given: dict[str, str], message: str
) -> None:
    told = Stages()
    arguments: Any = {"source": source, "options": options, "reporter": told, **given}
    with pytest.raises(ConfigError, match=message):
        diskgnn.convert(tmp_path / "graph", **arguments)
    assert told.names == []


def test_numbers_beside_dates_have_no_unit(source: Path, tmp_path: Path) -> None:
    diskgnn.convert(tmp_path / "graph", source=source, options={"times": "views.milliseconds"}, time_unit="ms")
    assert Graph.open(tmp_path / "graph").config.time_unit == "ms"


def test_an_output_that_is_there_is_told_before_the_source_is_read(tmp_path: Path) -> None:
    """An edge that leads nowhere is found when all was read: what is there comes first, and wrong arguments before."""
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,oops\n")
    run("generate", tmp_path / "graph", "--num-nodes", 1000)
    given: dict[str, Any] = {"edges": tmp_path / "edges.csv", "features": tmp_path / "none.npy"}
    with pytest.raises(OutputExistsError, match="exists already"):
        diskgnn.convert(tmp_path / "graph", **given)
    with pytest.raises(ConfigError, match="options: expected a data set"):
        diskgnn.convert(tmp_path / "graph", **given, options={"times": "a.b"})


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_an_empty_file_is_no_database(tmp_path: Path, kind: str) -> None:
    (tmp_path / "shop.db").touch()
    told = run("convert", tmp_path / "graph", "--from", f"{kind}:{tmp_path / 'shop.db'}", exit_code=3).stderr
    assert "found an empty file" in " ".join(told.split())
    assert not (tmp_path / "graph").exists()


def test_what_is_said_twice_is_refused(source: Path, tmp_path: Path) -> None:
    """The last one would have counted, and nobody would have seen it."""
    for given, message in (
        (["--set", "times=users.since", "--set", "times=views.at"], "--set: expected times once"),
        (["--set", "keys=users=id", "--key", "users=age"], "--set: expected keys once"),
        (["--key", "users=id", "--key", "users=age"], "--key: expected one of users, found id and age"),
        (["--link", "views.user=users", "--link", "views.user=views"], "--link: expected one of views.user, found"),
        (["--embed-text", "age=hash:4", "--embed-text", "age=none"], "--embed-text: expected age once"),
    ):
        told = run("convert", tmp_path / "graph", "--from", "sqlite", source, *given, exit_code=2).stderr
        assert message in " ".join(told.split())


def test_options_are_called_as_they_were_written(source: Path, tmp_path: Path) -> None:
    for flag in ("--embed-text", "--encode"):
        for given, message in (
            ("users.agee=hash:4", f"{flag}: expected COLUMN or TABLE.COLUMN"),
            ("users.age=hsh", f"{flag}: table users.age: expected number"),
        ):
            told = run("convert", tmp_path / "graph", "--from", "sqlite", source, flag, given, exit_code=2).stderr
            assert message in " ".join(told.split())
