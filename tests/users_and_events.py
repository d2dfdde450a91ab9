"""A database of users and their events, and seeds at times whose labels only some of it tells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

import diskgnn
from diskgnn.importers.source_formats.relational_source import RelationalSource
from diskgnn.specs.targets import NodeTarget

USERS, SEEDS, EACH, DAY = 300, 900, 6, 86_400
START = 1_600_000_000
CITIES = 60  # more than have features


def users_and_events() -> dict[str, pa.Table]:
    """Users without a time, events of users in the 60 days before the first seed and after."""
    random = np.random.default_rng(0)
    cities = random.integers(0, CITIES, USERS)
    users = pa.table({
        "id": np.arange(USERS), "city": [f"city {number}" for number in cities],
        "score": pa.array(random.normal(size=USERS), mask=random.random(USERS) < 0.5),
        "tags": [[f"tag {tag}" for tag in random.integers(0, 9, number)] for number in random.integers(0, 4, USERS)],
        "joined": pa.array(START * 10**6 - random.integers(0, 10**15, USERS), pa.timestamp("us")),
    })  # fmt: skip
    events = pa.table({
        "user": np.tile(np.arange(USERS), EACH),
        "at": pa.array(START + random.integers(0, 60 * DAY, USERS * EACH), pa.timestamp("s")),
        "amount": random.normal(size=USERS * EACH),
    })  # fmt: skip
    return {"users": users, "events": events}


def convert(path: Path, tables: dict[str, pa.Table], *, keep_columns: bool, encoding_of: Path | None = None) -> None:
    def keyed(name: str, fkeys: dict[str, str], pkey: str | None, time: str | None) -> SimpleNamespace:
        return SimpleNamespace(df=tables[name], pkey_col=pkey, fkey_col_to_pkey_table=fkeys, time_col=time)

    database = {"users": keyed("users", {}, "id", None), "events": keyed("events", {"user": "users"}, None, "at")}
    source = RelationalSource.of(SimpleNamespace(table_dict=database), {})
    diskgnn.convert(path, source=source, options={"keep_columns": keep_columns}, encoding_of=encoding_of)


def seeds() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Users, each at several times after all that happened."""
    random = np.random.default_rng(1)
    users, times = random.integers(0, USERS, SEEDS), START + 60 * DAY + random.integers(0, 30 * DAY, SEEDS)
    parts = np.split(np.arange(SEEDS), [600, 750])
    return tuple(
        dict(zip(("train", "valid", "test"), (each[part] for part in parts), strict=True)) for each in (users, times)
    )  # type: ignore[return-value]


def recent(tables: dict[str, pa.Table], users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """[n] 1 where the last event of a user is less than 22 days old: about a half."""
    last = np.zeros(USERS, np.int64)
    np.maximum.at(last, tables["events"]["user"].to_numpy(), tables["events"]["at"].cast(pa.int64()).to_numpy())
    return (times - last[users] < 22 * DAY).astype(np.int64)


def lately_joined(tables: dict[str, pa.Table], users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """[n] 1 where a user joined less than 16 years before: about a half."""
    joined = tables["users"]["joined"].cast(pa.int64()).to_numpy() // 10**6
    return (times - joined[users] < 16 * 365 * DAY + 60 * DAY).astype(np.int64)


def of_user(tables: dict[str, pa.Table], users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """[n] 1 where the city has an even number, and the other way round where the score is null."""
    even = np.array([int(city.split()[1]) % 2 == 0 for city in tables["users"]["city"].to_pylist()])
    return (even ^ tables["users"]["score"].is_null().to_numpy())[users].astype(np.int64)


def prepare(graph: Path, out: Path, tables: dict[str, pa.Table], label: Any = recent, **options: Any) -> Path:
    users, times = seeds()
    labels = {split: label(tables, users[split], times[split]) for split in users}
    target = NodeTarget("users", users, times, labels)
    given = {"temporal": "last", "keep_times": True, "fanouts": [3, 2], "batch_size": 64, "cpu_cache": "20%", **options}
    diskgnn.prepare(graph, out, target=target, **given)
    return out
