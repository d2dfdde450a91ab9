"""Splits drawn at random are parts of the labelled nodes, of the sizes asked for, and always the same."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pytest
import yaml
from commands import run
from scipy import stats

import diskgnn
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.importers import random_splits as module
from diskgnn.importers.containers.rows import RowSource
from diskgnn.importers.identity import identity

EDGES = np.array([[0, 1, 2], [1, 2, 0]])


def given(labels: npt.NDArray[Any]) -> dict[str, Any]:
    return {"edges": EDGES, "features": np.zeros((len(labels), 1), np.float32), "labels": labels}


def splits_of(path: Path) -> dict[str, list[int]]:
    (nodes,) = Graph.open(path).nodes.values()
    return {split: ids.tolist() for split, ids in nodes.splits.items()}


@pytest.mark.parametrize(
    ("shares", "sizes"),
    [("0.8,0.1,0.1", (240, 30, 30)), ([0.5, 0, 0.25], (150, 0, 75)), ((1, 0, 0), (300, 0, 0))],
)  # fmt: skip
def test_shares_of_the_labelled_nodes(tmp_path: Path, shares: Any, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    labels = np.full(400, -1)
    labels[rng.permutation(400)[:300]] = rng.integers(0, 3, 300)
    diskgnn.convert(tmp_path / "graph", **given(labels), random_split=shares)
    found = splits_of(tmp_path / "graph")
    assert tuple(len(found.get(split, ())) for split in ("train", "valid", "test")) == sizes
    together = [*chain(*found.values())]
    assert len(set(together)) == len(together)
    assert set(together) <= set(np.flatnonzero(labels >= 0).tolist())
    again = diskgnn.convert(tmp_path / "again", **given(labels), random_split=shares)
    assert splits_of(tmp_path / "again") == found
    assert ("random split", "splits") in [(each.name, each.use) for each in again.contents.read]


def test_a_draw_is_uniform_and_independent_of_how_rows_come() -> None:
    count = 3 * (1 << 16) + 17  # several blocks
    rng = np.random.default_rng(2)
    labels = np.where(rng.random(count) < 0.7, 1, -1)

    def drawn(step: int) -> dict[str, npt.NDArray[np.int64]]:
        rows = RowSource("labels", count, (), labels.dtype, lambda: iter(np.split(labels, range(step, count, step))))
        return module.random_splits(rows, (0.6, 0.3, 0.1))

    found, other = drawn(1000), drawn(70_001)
    for split, share in (("train", 0.6), ("valid", 0.3), ("test", 0.1)):
        np.testing.assert_array_equal(found[split], other[split])
        assert (np.diff(found[split]) > 0).all()
        assert abs(len(found[split]) - share * (labels == 1).sum()) <= 4
        places = np.bincount(found[split] * 50 // count, minlength=50)
        expected = np.bincount(np.flatnonzero(labels == 1) * 50 // count, minlength=50)
        assert stats.chisquare(places, expected * places.sum() / expected.sum()).pvalue > 1e-4


def test_labels_of_other_kinds(tmp_path: Path) -> None:
    numbers = np.where(np.arange(20) < 10, np.nan, 1.5).astype(np.float32)
    nodes = {"features": np.zeros((20, 1), np.float32), "labels": numbers, "task": "regression",
             "random_split": [0.5, 0.2, 0.3]}  # fmt: skip
    schema = {"nodes": {"n": nodes}, "edges": {"n:to:n": {"edges": EDGES}}}
    diskgnn.convert(tmp_path / "graph", schema=schema)
    found = splits_of(tmp_path / "graph")
    assert sorted([*chain(*found.values())]) == list(range(10, 20))
    assert [len(ids) for ids in found.values()] == [5, 2, 3]
    np.save(tmp_path / "x.npy", nodes["features"])
    np.save(tmp_path / "y.npy", numbers)
    np.save(tmp_path / "e.npy", EDGES)
    nodes = {**nodes, "features": "x.npy", "labels": "y.npy"}
    (tmp_path / "graph.yaml").write_text(
        yaml.safe_dump({"nodes": {"n": nodes}, "edges": {"n:to:n": {"edges": "e.npy"}}})
    )
    diskgnn.convert(tmp_path / "yaml", schema=tmp_path)
    assert splits_of(tmp_path / "yaml") == found


@pytest.mark.parametrize("shares", ["0.8,0.2", "0.8,0.2,0.2", "0,0,0", "a,b,c", "-0.1,0.5,0.5", [0.8], 0.8])
def test_shares_that_are_none(tmp_path: Path, shares: Any) -> None:
    with pytest.raises(ConfigError, match="random_split: expected shares of train, valid, test"):
        diskgnn.convert(tmp_path / "graph", **given(np.arange(10) % 2), random_split=shares)


def test_what_it_does_not_go_with(tmp_path: Path) -> None:
    labels = np.arange(10) % 2
    with pytest.raises(ConfigError, match="random_split: expected nodes that are in no split, found train"):
        diskgnn.convert(tmp_path / "graph", **given(labels), train=[1], random_split="0.8,0.1,0.1")
    with pytest.raises(ConfigError, match="random_split: expected labels"):
        diskgnn.convert(tmp_path / "graph", edges=EDGES, features=np.zeros((3, 1), np.float32), random_split="1,0,0")


def test_the_next_command_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = pa.table({"id": [f"n{i}" for i in range(30)], "x": np.arange(30) / 2, "label": ["no", "yes"] * 15})
    pa.csv.write_csv(nodes, "nodes.csv")
    pa.csv.write_csv(pa.table({"src": ["n1", "n2"], "dst": ["n2", "n3"]}), "edges.csv")
    said = run("convert", "graph", "--edges", "edges.csv", "--nodes", "nodes.csv").stderr
    (line,) = (line for line in said.splitlines() if line.startswith("next: "))
    command, _, why = line.removeprefix("next: ").partition("   # ")
    expected = "diskgnn convert graph --edges edges.csv --nodes nodes.csv --random-split 0.8,0.1,0.1 --overwrite"
    assert command == expected
    assert why.startswith("its labels are in no split")
    after = run(*command.split()[1:])
    assert "next: diskgnn prepare graph graph-packed" in after.stderr
    assert [len(ids) for ids in splits_of(tmp_path / "graph").values()] == [24, 3, 3]
    refused = run(
        "convert", "other", "--edges", "edges.csv", "--nodes", "nodes.csv", "--random-split", "1", exit_code=2
    )
    assert "--random-split: expected shares of train, valid, test" in " ".join(refused.stderr.split())


def test_a_killed_conversion_is_taken_up_with_the_same_shares_only() -> None:
    first, same, other = (
        identity({"random_split": shares}) for shares in ([0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.5, 0, 0])
    )
    assert first is not None
    assert first == same != other
