"""The data set of flights, on tables small enough to check by hand."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

import flights


def test_flights_by_hand():
    """Two planes in three weeks; one flight of plane A was cancelled, one has no plane."""
    day = "2013-01-{:02d}T{:02d}:00:00".format
    flights_table = pa.table({
        "time_hour": pa.array([day(1, 10), day(9, 10), day(10, 10), day(16, 5), day(16, 6)]).cast(pa.timestamp("s")),
        "tailnum": ["A", "A", "A", "B", None], "origin": ["EWR"] * 5, "dest": ["LAX", "XXX", "LAX", "LAX", "LAX"],
        "dep_delay": [0, 6, None, 60, 1], "arr_delay": [0, 30, None, 90, 5], "air_time": [1, 2, None, 3, 4],
        "distance": [9, 9, 9, 9, 9], "hour": [5, 5, 5, 0, 1],
    })  # fmt: skip
    weather = {"time_hour": pa.array([day(9, 10)]).cast(pa.timestamp("s")), "origin": ["EWR"]}
    weather |= {name: [1.0] for name in ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")}
    described = flights.load({
        "flights": flights_table, "weather": pa.table(weather),
        "planes": pa.table({"tailnum": ["B"], "year": [2000], "engines": [2], "seats": [100],
                            "type": ["Rotorcraft"]}),
        "airports": pa.table({"faa": ["LAX", "EWR"], "lat": [1, 2], "lon": [1, 2], "alt": [1, 2], "tz": [-8, -5]}),
    })  # fmt: skip
    nodes, edges = described["nodes"], described["edges"]
    assert nodes["flight"]["times"].tolist() == [5 + 48, 8 * 24 + 5 + 48, 9 * 24 + 5 + 48, 360 + 48, 361 + 48]
    assert edges["plane:flew:flight"]["edges"].tolist() == [[1, 1, 1, 0], [0, 1, 2, 3]]  # B is listed, A is met
    assert edges["airport:received:flight"]["edges"].tolist() == [[0, 2, 0, 0, 0], [0, 1, 2, 3, 4]]
    assert edges["weather:met:flight"]["edges"].tolist() == [[0], [1]]
    # Plane B in the third week (from hour 336), plane A in the second: the first week is no seed.
    assert edges["plane:has:plane_week"]["edges"].tolist() == [[0, 1], [0, 1]]
    assert nodes["plane_week"]["labels"].tolist() == [1.5, 0.5]
    assert nodes["plane_week"]["times"].tolist() == [336, 168]
    # Of B's flight at midnight; and of the one of A that landed, at 5. Nothing of what happened to them.
    hour = np.array([[0.0, 1.0], [np.sin(5 * np.pi / 12), np.cos(5 * np.pi / 12)]])
    np.testing.assert_allclose(nodes["plane_week"]["features"], np.insert(hour, 0, 0.0, axis=1), atol=1e-6)
    assert nodes["plane"]["features"].shape == (2, 9)
    assert nodes["plane"]["features"][0, 6:].tolist() == [0, 0, 1]
