"""What a database looks like whose times were forgotten, or whose splits were swapped, is told."""

from __future__ import annotations

import sqlite3
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import diskgnn
from diskgnn.errors import DataWarning

SHOP = """
CREATE TABLE users (id INTEGER PRIMARY KEY, born DATE, joined TIMESTAMP);
CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER REFERENCES users (id), at TIMESTAMP, total REAL);
INSERT INTO users WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 59)
    SELECT i, date('1980-01-01', i || ' days'), datetime('2020-01-01', i || ' hours') FROM n;
INSERT INTO orders WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 299)
    SELECT i, i % 60, datetime('2020-02-01', i || ' hours'), i / 7.0 FROM n;
"""


def told(graph: Path, seeds: dict[str, str]) -> list[str]:
    """What `prepare` warns of, with seeds that are asked from these days on."""
    days = {split: np.datetime64(day, "s") + np.arange(20) for split, day in seeds.items()}
    random = np.random.default_rng(0)
    target = diskgnn.NodeTarget(
        "users", {split: random.permutation(60)[:20] for split in days}, days,
        {split: np.arange(20) % 2 for split in days},
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", DataWarning)
        diskgnn.prepare(
            graph, graph.parent / "packed", target=target, fanouts=[3, 2], batch_size=8, temporal="last",
            cpu_cache="10%", overwrite=True,
        )  # fmt: skip
    return [str(each.message) for each in found]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.executescript(SHOP)
    return tmp_path / "shop.db"


@pytest.mark.parametrize("columns", ["true", "false"])
def test_rows_whose_times_nobody_said_are_told(shop: Path, tmp_path: Path, columns: str) -> None:
    in_march = {"train": "2020-03-01"}
    forgotten = {"times": "users.joined", "keep_columns": columns}
    diskgnn.convert(tmp_path / "forgotten", source=f"sqlite:{shop}", options=forgotten)
    (message,) = [each for each in told(tmp_path / "forgotten", in_march) if "without regard to time" in each]
    assert message.startswith("rows of orders are drawn without regard to time")
    assert "--set times=orders.at`" in message
    said = {"times": "users.joined,orders.at", "keep_columns": columns}
    diskgnn.convert(tmp_path / "said", source=f"sqlite:{shop}", options=said)
    assert not [each for each in told(tmp_path / "said", in_march) if "without regard" in each]
    # Users are looked up, whatever they have, and birthdays are no times.
    only_orders = {"times": "orders.at", "keep_columns": columns}
    diskgnn.convert(tmp_path / "orders", source=f"sqlite:{shop}", options=only_orders)
    assert not [each for each in told(tmp_path / "orders", in_march) if "without regard" in each]


def test_splits_in_another_order_than_their_times_are_told(shop: Path, tmp_path: Path) -> None:
    options = {"times": "users.joined,orders.at"}
    diskgnn.convert(tmp_path / "graph", source=f"sqlite:{shop}", options=options)
    days = ["2020-03-01", "2020-04-01", "2020-05-01"]
    for order, swapped in (
        ((0, 1, 2), []),
        ((1, 0, 2), ["train are all later than those of valid"]),
        ((0, 2, 1), ["valid are all later than those of test"]),
    ):
        seeds = {split: days[number] for split, number in zip(("train", "valid", "test"), order, strict=True)}
        found = [each for each in told(tmp_path / "graph", seeds) if "were the two swapped" in each]
        assert [each for each in found if not any(part in each for part in swapped)] == []
        assert len(found) == len(swapped)


def test_seeds_that_are_asked_before_they_are_there_are_told(shop: Path, tmp_path: Path) -> None:
    """As users of today at a moment of the past: RelBench's tasks only have those who had joined."""
    diskgnn.convert(tmp_path / "graph", source=f"sqlite:{shop}", options={"times": "users.joined,orders.at"})
    joined = np.datetime64("2020-01-01", "h") + np.arange(60)
    seeds = np.random.default_rng(0).permutation(60)[:20]
    later = int((joined[seeds] > np.datetime64("2020-01-02", "s") + np.arange(20)).sum())
    assert 0 < later < 20
    (message,) = [each for each in told(tmp_path / "graph", {"train": "2020-01-02"}) if "seeds are nodes" in each]
    assert message.startswith(f"{later} of 20 seeds are nodes of type users that come after the moment")
    assert not [each for each in told(tmp_path / "graph", {"train": "2020-03-01"}) if "seeds are nodes" in each]
    diskgnn.train(tmp_path / "packed", hidden=4, epochs=1, checkpoint=tmp_path / "run")
    ask = partial(diskgnn.predict, tmp_path / "graph", tmp_path / "said.parquet", tmp_path / "run", overwrite=True)
    # At the very moment a user is there; ids are 0, 1, 2, ... and each joined an hour after the one before.
    with pytest.warns(DataWarning, match=r"^35 of 60 seeds .*\(the first is .*25\)"):
        ask(at="2020-01-02")
    assert pq.read_metadata(tmp_path / "said.parquet").num_rows == 60
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        ask(nodes=np.arange(25), at="2020-01-02")
