"""Labels that a column of the features says are a warning before anything is trained, and so is one class alone."""

from __future__ import annotations

import re
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run

import diskgnn
from diskgnn import NodeTarget
from diskgnn.errors import DataWarning

COUNT = 3000
ANSWERS = "shown its answers"


def converted(
    path: Path, features: npt.NDArray[Any], labels: npt.NDArray[Any], task: str = "class", **rest: Any
) -> Path:
    ring = np.stack([np.arange(COUNT), (np.arange(COUNT) + 1) % COUNT])
    nodes = {"features": features, "labels": labels, "task": task, "train": np.arange(COUNT), **rest}
    diskgnn.convert(path, schema={"nodes": {"user": nodes}, "edges": {"user:knows:user": {"edges": ring}}})
    return path


def warned(graph: Path, out: Path, **target: Any) -> list[str]:
    """What `sample` warns of about labels."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        diskgnn.sample(graph, out, fanouts=[1], batch_size=COUNT, **target)
    return [str(each.message) for each in caught if str(each.message).startswith("labels:")]


def noisy(labels: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """`labels` of which evenly spaced ones are another class."""
    found = labels.copy()
    wrong = np.linspace(0, len(labels) - 1, count).astype(np.int64)
    found[wrong] = (found[wrong] + 1) % (labels.max() + 1)
    return found


def columns_of(rng: np.random.Generator, *columns: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.stack([*rng.standard_normal((3, COUNT)), *columns], axis=1).astype(np.float32)


@pytest.mark.parametrize("num_classes", [2, 5])
@pytest.mark.parametrize("quantise", [None, "bfloat16", "int4"])
def test_a_number_that_names_the_class(tmp_path: Path, num_classes: int, quantise: str | None) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, num_classes, COUNT)
    graph = converted(tmp_path / "graph", columns_of(rng, 7 - 2.5 * labels), labels, quantise=quantise)
    (told,) = warned(graph, tmp_path / "samples")
    assert "column 3 (from 0) of the features of user" in told
    assert ANSWERS in told


@pytest.mark.parametrize("keep_columns", [True, False])
@pytest.mark.parametrize("kind", ["left", "plan"])
def test_a_database_and_seeds_made_of_it(tmp_path: Path, kind: str, keep_columns: bool) -> None:
    rng = np.random.default_rng(2)
    left = rng.random(COUNT) < 0.1
    plan = rng.choice(["free", "paid", "trial"], COUNT)
    rows = [(i, float(rng.random()), int(left[i]), plan[i], (i * 7) % COUNT) for i in range(COUNT)]
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, age REAL, 'left' INTEGER, plan TEXT, "
                           "friend INTEGER REFERENCES users)")  # fmt: skip
        connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?)", rows)
    connection.close()
    label = left if kind == "left" else plan
    seeds = pa.table({"id": np.arange(COUNT), "label": label, "split": ["train"] * 2000 + ["test"] * (COUNT - 2000)})
    pq.write_table(seeds, tmp_path / "seeds.parquet")
    options = {"keep_columns": keep_columns}
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "shop.db", options=options)
    target = diskgnn.read_target(tmp_path / "graph", tmp_path / "seeds.parquet")
    (told,) = warned(tmp_path / "graph", tmp_path / "samples", target=target)
    assert f"column '{kind}' of the features of users says the label" in told
    command = "prepare --without" if keep_columns else "convert --exclude"
    assert f"`diskgnn {command} users.{kind}`" in told
    with pytest.warns(DataWarning, match=ANSWERS):
        diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", target=target, fanouts=[1], batch_size=COUNT)
    diskgnn.convert(tmp_path / "without", source=tmp_path / "shop.db", options=options, exclude=f"users.{kind}")
    target = diskgnn.read_target(tmp_path / "without", tmp_path / "seeds.parquet")
    assert warned(tmp_path / "without", tmp_path / "other", target=target) == []


def test_a_column_beside_the_label_of_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    label = rng.integers(0, 4, COUNT)
    table = pa.table({"id": np.arange(COUNT), "x": rng.random(COUNT), "topic": [f"t{i}" for i in label], "label": label,
                      "split": ["train"] * COUNT})  # fmt: skip
    pq.write_table(table, tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": np.arange(COUNT), "dst": np.arange(COUNT)[::-1]}), tmp_path / "edges.parquet")
    given = {"nodes": tmp_path / "nodes.parquet", "edges": tmp_path / "edges.parquet"}
    diskgnn.convert(tmp_path / "graph", **given)
    (told,) = warned(tmp_path / "graph", tmp_path / "samples")
    assert "`diskgnn convert --exclude topic`" in told
    diskgnn.convert(tmp_path / "without", **given, exclude=["topic"])
    assert warned(tmp_path / "without", tmp_path / "other") == []


@pytest.mark.parametrize("others", [["x"], []])
def test_a_label_that_is_a_feature_too_is_left_out_of_the_features(tmp_path: Path, others: list[str]) -> None:
    """Excluding the column would take the labels away. What is proposed is run, as a command and in Python."""
    rng = np.random.default_rng(3)
    table = pa.table({"id": np.arange(COUNT), "x": rng.random(COUNT), "topic": rng.choice(["a", "b"], COUNT),
                      "split": ["train"] * COUNT})  # fmt: skip
    pq.write_table(table, tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": np.arange(COUNT), "dst": np.arange(COUNT)[::-1]}), tmp_path / "edges.parquet")
    given = {"nodes": tmp_path / "nodes.parquet", "edges": tmp_path / "edges.parquet"}
    columns = diskgnn.TableColumns(label="topic", features=[*others, "topic"])
    diskgnn.convert(tmp_path / "graph", **given, columns=columns)
    (told,) = warned(tmp_path / "graph", tmp_path / "samples")
    assert "column 'topic' of the features of node says the label" in told
    assert "--exclude" not in told
    said = run("sample", tmp_path / "graph", tmp_path / "sampled", "--fanouts", 1).stderr
    assert "TableColumns" in said
    assert "--target-column" not in said  # a flag of `sample`, which is not what to run
    proposed = re.search("`diskgnn convert (.*?)`", told)
    words = ["--column", "label=topic", *(proposed[1].split() if proposed and others else [])]
    assert words[2:] == (["--column", "features=x"] if others else [])
    run("convert", tmp_path / "command", "--nodes", given["nodes"], "--edges", given["edges"], *words)
    columns = diskgnn.TableColumns(label="topic")
    if others:
        assert "TableColumns(features=['x'])" in told
        columns = diskgnn.TableColumns(label="topic", features=["x"])
    diskgnn.convert(tmp_path / "python", **given, columns=columns)
    for name in ("command", "python"):
        assert warned(tmp_path / name, tmp_path / f"{name}-samples") == []
        graph = diskgnn.Graph.open(tmp_path / name)
        assert (graph.num_classes, graph.features.shape) == (2, (COUNT, 1))


def test_rare_classes_are_compared_with_as_many_of_the_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    labels = (rng.permutation(COUNT) < 40).astype(np.int64)
    assert warned(converted(tmp_path / "graph", columns_of(rng, labels), labels), tmp_path / "samples")
    # All but the rare ones agree with a column that hardly ever changes.
    other = (rng.permutation(COUNT) < 2).astype(np.int64)
    assert not warned(converted(tmp_path / "other", columns_of(rng, other), labels), tmp_path / "more")


@pytest.mark.parametrize(("wrong", "is_warned"), [(1, True), (15, False)])
def test_one_in_a_thousand_may_differ(tmp_path: Path, wrong: int, is_warned: bool) -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, COUNT)
    graph = converted(tmp_path / "graph", columns_of(rng, noisy(labels, wrong)), labels)
    assert bool(warned(graph, tmp_path / "samples")) == is_warned


def test_what_only_correlates_is_no_warning(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 3, COUNT)
    ids, near, of_class = np.arange(COUNT), labels + 0.01 * rng.random(COUNT), labels == 1
    graph = converted(tmp_path / "graph", columns_of(rng, ids, near, of_class, np.zeros(COUNT)), labels)
    assert warned(graph, tmp_path / "samples") == []
    few = NodeTarget("user", {"train": ids[:900]}, labels={"train": labels[:900]})
    same = converted(tmp_path / "same", columns_of(rng, labels), labels)
    assert warned(same, tmp_path / "few", target=few) == []  # a good feature may agree for so few
    assert warned(same, tmp_path / "all", target=NodeTarget("user")) != []
    # A class each says nothing.
    own = NodeTarget("user", {"train": ids}, labels={"train": ids})
    assert warned(graph, tmp_path / "own", target=own) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_that_a_column_says(tmp_path: Path, dtype: type) -> None:
    rng = np.random.default_rng(7)
    labels = rng.standard_normal(COUNT).astype(np.float32)
    features = columns_of(rng, labels + 0.1 * rng.standard_normal(COUNT)).astype(dtype)
    assert warned(converted(tmp_path / "near", features, labels, "regression"), tmp_path / "one") == []
    features = columns_of(rng, -labels / 9).astype(dtype)
    assert len(warned(converted(tmp_path / "same", features, labels, "regression"), tmp_path / "two")) == 1


def test_numbers_that_are_mostly_nought(tmp_path: Path) -> None:
    """A deviation is then that of a few, and all others are alike in any such column."""
    rng = np.random.default_rng(11)
    labels, others = (np.where(rng.random(COUNT) < 0.01, rng.lognormal(5, 3, COUNT), 0) for _ in range(2))
    graph = converted(tmp_path / "graph", columns_of(rng, others), labels.astype(np.float32), "regression")
    assert warned(graph, tmp_path / "one") == []
    graph = converted(tmp_path / "other", columns_of(rng, labels), labels.astype(np.float32), "regression")
    assert len(warned(graph, tmp_path / "two")) == 1


def test_one_of_several_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    labels = rng.integers(0, 2, (COUNT, 3))
    graph = converted(tmp_path / "graph", columns_of(rng, 1 - labels[:, 2]), labels, "multilabel")
    assert "column 3" in warned(graph, tmp_path / "samples")[0]
    graph = converted(tmp_path / "other", columns_of(rng), labels, "multilabel")
    assert warned(graph, tmp_path / "more") == []


def test_seeds_of_one_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    labels = np.where(np.arange(COUNT) < 50, 1, 0)
    graph = converted(tmp_path / "graph", columns_of(rng), labels, classes=("no", "yes"))
    target = NodeTarget("user", {"train": np.arange(30)})
    (told,) = warned(graph, tmp_path / "samples", target=target)
    assert "all 30 seeds of train that were looked at are of class 'yes'" in told
    target = NodeTarget("user", {"train": [3, 4]}, labels={"train": [2, 2]})
    (told,) = warned(graph, tmp_path / "other", target=target)
    assert "of class 2" in told
    assert warned(graph, tmp_path / "both", target=NodeTarget("user")) == []


@pytest.mark.parametrize("split", ["valid", "test"])
def test_seeds_of_another_split_that_are_of_one_class(tmp_path: Path, split: str) -> None:
    rng = np.random.default_rng(10)
    labels = np.where(np.arange(COUNT) < 50, 1, 0)
    graph = converted(tmp_path / "graph", columns_of(rng), labels, classes=("no", "yes"))
    target = NodeTarget("user", {"train": np.arange(40, 60), split: np.arange(100, 117)})
    (told,) = warned(graph, tmp_path / "samples", target=target)
    assert f"all 17 seeds of {split} that were looked at are of class 'no'" in told
    target = NodeTarget("user", {"train": [3, 4], split: [5, 6]}, labels={"train": [0, 2], split: [2, 2]})
    (told,) = warned(graph, tmp_path / "other", target=target)
    assert f"all 2 seeds of {split} that were looked at are of class 2" in told


def test_pairs_of_one_class(tmp_path: Path) -> None:
    edges = np.stack([np.arange(20), np.arange(20)[::-1]])
    diskgnn.convert(tmp_path / "graph", schema={
        "nodes": {"user": {"features": np.eye(20, dtype=np.float32)}}, "edges": {"user:knows:user": {"edges": edges}}
    })  # fmt: skip
    pairs = {"train": edges.T[:5], "valid": edges.T[5:8], "test": edges.T[8:12]}

    def told(name: str, dtype: type, **said: Any) -> list[str]:
        labels = {"train": np.ones(5, dtype), "valid": np.array([0, 1, 0], dtype), "test": np.zeros(4, dtype)}
        target = diskgnn.LinkTarget("user:knows:user", seeds=pairs, labels=labels, **said)
        return warned(tmp_path / "graph", tmp_path / name, target=target)

    for_train, for_test = told("classes", np.int64, classes=("no", "yes"))
    assert "all 5 seeds of train that were looked at are of class 'yes'" in for_train
    assert "all 4 seeds of test that were looked at are of class 'no'" in for_test
    assert told("numbers", np.float32) == []


def test_training_on_one_class_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    graph = converted(tmp_path / "graph", columns_of(rng), np.zeros(COUNT, np.int64), classes=("no",))
    with pytest.warns(DataWarning, match="all 3000 seeds of train that were looked at are of class 'no'"):
        diskgnn.prepare(graph, tmp_path / "packed", fanouts=[1], batch_size=COUNT)
    with pytest.warns(DataWarning, match="labels: all are of one class"):
        diskgnn.train(tmp_path / "packed", epochs=1)
