"""Predictions for the rows of a task say whose they are, and when: by these they are joined with its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from packed_directories import flip

import diskgnn

USERS = [f"u{number}" for number in range(20)]
PARTS = ("train", "valid", "test")


def made(folder: Path, **keys: object) -> Path:
    """A graph of users, orders and a task, and a model of the task; returns the task's rows as one table."""
    random = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(100), "D")
    pd.DataFrame({"name": USERS, "age": random.integers(20, 60, 20)}).to_parquet(folder / "users.parquet")
    orders = pd.DataFrame(
        {"order": range(100), "user": random.choice(USERS, 100), "price": random.random(100), "at": days}
    )
    orders.to_parquet(folder / "orders.parquet")
    for place, part in enumerate(PARTS):
        day = days[[40 + 20 * place, 41 + 20 * place]]
        users = [*random.permutation(USERS)[:8], "u3"]
        rows = {"user": users, "day": random.choice(day, 9), "left": random.integers(0, 2, 9)}
        pd.DataFrame(rows).to_parquet(folder / f"{part}.parquet", index=False)
    tables = {
        "users": {"file": "users.parquet", "pkey": "name"},
        "orders": {"file": "orders.parquet", "pkey": "order", "fkeys": {"user": "users"}, "time": "at"},
    }
    task = {**{part: f"{part}.parquet" for part in PARTS}, "entity": {"user": "users"}, "label": "left", "time": "day"}
    (folder / "relational.yaml").write_text(yaml.safe_dump({"tables": tables, "tasks": {"churn": task}}))
    diskgnn.convert(folder / "graph", source=folder, **keys)
    diskgnn.prepare(folder / "graph", folder / "packed", target=diskgnn.NodeTarget("churn"), temporal="last",
                    fanouts=[1, 4], batch_size=4, cpu_cache=0)  # fmt: skip
    diskgnn.train(folder / "packed", hidden=4, epochs=1, checkpoint=folder / "run")
    return folder


@pytest.mark.filterwarnings("ignore:.*seeds are nodes of type churn that come after")
def test_rows_of_a_task_have_the_key_and_the_time_of_its_tables(tmp_path: Path) -> None:
    folder = made(tmp_path)
    asked = pd.concat([pd.read_parquet(folder / f"{part}.parquet") for part in PARTS], ignore_index=True)
    diskgnn.predict(folder / "graph", folder / "all.parquet", folder / "run")
    found = pd.read_parquet(folder / "all.parquet")
    assert [*found.columns] == ["node", "id", "time", "logits"]
    assert found["node"].tolist() == [*range(27)]
    assert found["id"].tolist() == asked["user"].tolist()
    assert (found["time"] == asked["day"]).all()
    some = np.array([20, 3, 8])
    diskgnn.predict(folder / "graph", folder / "some.csv", folder / "run", nodes=some)
    text = pd.read_csv(folder / "some.csv", parse_dates=["time"])
    assert text["id"].tolist() == asked["user"][some].tolist()
    assert (text["time"].to_numpy() == asked["day"][some].to_numpy()).all()
    np.testing.assert_allclose(text["logits_0"], np.stack(found["logits"])[some, 0], rtol=1e-4, atol=1e-6)
    # At one moment for all, a row has no time of its own.
    diskgnn.predict(folder / "graph", folder / "at.parquet", folder / "run", at="2024-04-01")
    at = pd.read_parquet(folder / "at.parquet")
    assert [*at.columns] == ["node", "id", "logits"]
    assert at["id"].tolist() == asked["user"].tolist()


@pytest.mark.filterwarnings("ignore:.*seeds are nodes of type churn that come after")
@pytest.mark.parametrize("name", ["times-churn.npy", "indices-users.*.churn.npy"])
def test_names_are_compared_with_their_checksums(tmp_path: Path, name: str) -> None:
    folder = made(tmp_path)
    (path,) = (folder / "graph").glob(name)
    flip(path, path.stat().st_size - 8)
    with pytest.raises(diskgnn.ArtifactError, match=path.name.replace(".", r"\.")):
        diskgnn.predict(folder / "graph", folder / "all.parquet", folder / "run")
