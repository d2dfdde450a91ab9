"""Times of seeds, nodes and edges in different units: what is drawn is wrong then, and that is said."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.errors import DataWarning
from diskgnn.formats.samples import Samples

SECONDS = np.datetime64("2021-01-01").astype("datetime64[s]").astype(np.int64) + 86400 * np.arange(40)
DATES = np.array([int(str(day).replace("-", "")) for day in SECONDS.astype("datetime64[s]").astype("datetime64[D]")])
SEEDS = np.arange(10, 20)
OF_SEEDS = {"milliseconds": 1000, "days": 1 / 86400, "seconds": 1}


def graph(path: Path, *, edge_times: np.ndarray | None = SECONDS, node_times: np.ndarray | None = None) -> Path:
    """A ring of 40 nodes."""
    node = {"features": np.eye(40, dtype=np.float32), "labels": np.arange(40) % 2, "train": SEEDS}
    edges = {"edges": np.stack([np.arange(40), (np.arange(40) + 1) % 40])}
    node |= {} if node_times is None else {"times": node_times}
    edges |= {} if edge_times is None else {"times": edge_times}
    diskgnn.convert(path, schema={"nodes": {"node": node}, "edges": {"node:to:node": edges}})
    return path


def sampled(path: Path, out: Path, times: np.ndarray | None) -> list[str]:
    """Samples one neighbour of each seed; returns what was warned of."""
    given = {} if times is None else {"target": diskgnn.NodeTarget("node", {"train": SEEDS}, {"train": times})}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        diskgnn.sample(path, out, fanouts=[1], batch_size=4, temporal="uniform", **given)
    return [str(each.message) for each in caught if "different units" in str(each.message)]


@pytest.mark.parametrize("unit", OF_SEEDS)
def test_seeds_in_another_unit_are_told(tmp_path: Path, unit: str) -> None:
    """Node v has an edge of the day before it is asked."""
    times = (SECONDS[SEEDS] * OF_SEEDS[unit]).astype(np.int64)
    told = sampled(graph(tmp_path / "graph"), tmp_path / "samples", times)
    edges = sum(
        len(block.indices) for each in Samples.open(tmp_path / "samples").read("train") for (block,) in each.blocks
    )
    assert edges == (0 if unit == "days" else len(SEEDS))
    if unit == "seconds":
        assert not told
        return
    (message,) = told
    assert f"times of {'the seeds' if unit == 'milliseconds' else 'edges of type node:to:node'} are around" in message
    assert f"{np.median(times):.0f}" in message


@pytest.mark.parametrize(("edge_times", "is_told"), [(DATES, True), (1000 * SECONDS, True), (SECONDS + 10**8, False)])
def test_nodes_and_edges_of_different_units_are_told(tmp_path: Path, edge_times: np.ndarray, is_told: bool) -> None:
    path = graph(tmp_path / "graph", edge_times=edge_times, node_times=SECONDS)
    told = sampled(path, tmp_path / "samples", None)
    assert len(told) == is_told
    assert all("nodes of type node" in message and "edges of type node:to:node" in message for message in told)


UNITS = {
    "milliseconds": SECONDS * 1000 + 5, "microseconds": SECONDS * 10**6, "nanoseconds": SECONDS * 10**9,
    "minutes": SECONDS // 60, "hours": SECONDS // 3600, "days": SECONDS // 86400, "weeks": SECONDS // 604800,
    "dates such as 20211231": DATES, "": SECONDS // 10**6,
}  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("of_edges", [False, True])
def test_convert_tells_them_and_the_unit_that_would_fit(tmp_path: Path, unit: str, of_edges: bool) -> None:
    """NumPy says what seconds of 2021 are in other units. What fits none is told without one."""
    times = {"edge_times": UNITS[unit], "node_times": SECONDS} if of_edges else {"node_times": UNITS[unit]}
    other = "edges of type node:to:node" if of_edges else "nodes of type node"
    with pytest.warns(DataWarning, match="they look like different units") as caught:
        graph(tmp_path / "graph", **times)
    (told,) = [str(each.message) for each in caught if "different units" in str(each.message)]
    word = "are" if "dates" in unit else "fit as"
    assert f"(those of {other} {word} {unit}, beside" in told if unit else "fit as" not in told


def test_convert_says_nothing_of_units_that_may_be_one(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    graph(tmp_path / "graph", edge_times=SECONDS + 10**8, node_times=SECONDS)
    assert not [each for each in recwarn if "different units" in str(each.message)]


def test_steps_and_years_are_units_too(tmp_path: Path) -> None:
    """Small numbers may differ as they like, also those before 1970."""
    path = graph(tmp_path / "graph", edge_times=np.arange(40) - 20)
    assert not sampled(path, tmp_path / "samples", np.full(len(SEEDS), 2021))
    (told,) = sampled(path, tmp_path / "more", np.full(len(SEEDS), SECONDS[0]))
    assert "the seeds" in told
