"""Labels of any kind become classes as NumPy's `unique` numbers them, and predictions come back as what they were."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import TableColumns, convert

COUNT = 40
RING = np.stack([np.arange(COUNT), (np.arange(COUNT) + 1) % COUNT])
WORDS = ["setosa", "virginica", "versicolor", "é"]


def graph_of(folder: Path, labels: Any, **given: Any) -> Graph:
    """A ring whose nodes have the labels of an Arrow array, from a table."""
    table = pa.table({"x": np.random.default_rng(1).random(COUNT, np.float32), "label": labels,
                      "split": ["train", "valid"] * (COUNT // 2)})  # fmt: skip
    pq.write_table(table, folder / "nodes.parquet", row_group_size=7)
    convert(folder / "graph", edges=RING, nodes=folder / "nodes.parquet", overwrite=True, **given)
    return Graph.open(folder / "graph")


def graph_of_all(folder: Path, labels: Any, **given: Any) -> Graph:
    """The same without a column of splits."""
    table = pa.table({"x": np.random.default_rng(1).random(COUNT, np.float32), "label": labels})
    pq.write_table(table, folder / "nodes.parquet")
    convert(folder / "graph", edges=RING, nodes=folder / "nodes.parquet", **given)
    return Graph.open(folder / "graph")


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.int64(), pa.float32()])
def test_labels_that_nobody_has_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(InputError, match=r"expected the class of some rows, found none in 40.*leave the labels out"):
        graph_of(tmp_path, pa.nulls(COUNT, kind))
    assert not (tmp_path / "graph").exists()


def classes_of(graph: Graph) -> tuple[Any, ...] | None:
    target = graph.nodes["node"].config.target
    assert target is not None
    return target.classes


VALUES: dict[str, Any] = {
    "text": np.random.default_rng(2).choice(WORDS, COUNT).tolist(),
    "truth": (np.arange(COUNT) % 3 == 0).tolist(),
    "from one": (np.arange(COUNT) % 5 + 1).tolist(),
    "gaps": (np.arange(COUNT) % 3 * 10 + 10).tolist(),
    "whole floats": [float(value) for value in np.arange(COUNT) % 3 + 4],
}


@pytest.mark.parametrize("name", list(VALUES))
def test_classes_ascend_by_value(tmp_path: Path, name: str) -> None:
    values = VALUES[name]
    graph = graph_of(tmp_path, pa.array(values))
    distinct, codes = np.unique(np.array(values), return_inverse=True)
    assert list(classes_of(graph) or ()) == distinct.tolist()
    np.testing.assert_array_equal(graph.labels, codes)
    assert graph.num_classes == len(distinct)


def test_whole_numbers_from_zero_stay_classes(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, pa.array(np.arange(COUNT) % 4))
    assert classes_of(graph) is None
    assert graph.num_classes == 4
    graph = graph_of(tmp_path, pa.array(np.arange(COUNT) % 4 + 2), num_classes=9)
    assert (classes_of(graph), graph.num_classes) == (None, 9)
    np.testing.assert_array_equal(graph.labels, np.arange(COUNT) % 4 + 2)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_null_is_no_class(tmp_path: Path, kind: pa.DataType) -> None:
    values = [None if number in (0, 39) else WORDS[number % 2] for number in range(COUNT)]
    table = {"label": pa.array(values).cast(kind), "x": np.ones(COUNT), "y": np.arange(COUNT) % 2}
    pq.write_table(pa.table(table), tmp_path / "nodes.parquet")
    convert(tmp_path / "graph", edges=RING, nodes=tmp_path / "nodes.parquet")
    graph = Graph.open(tmp_path / "graph")
    np.testing.assert_array_equal(graph.labels, [-1, *[number % 2 for number in range(1, 39)], -1])
    assert graph.splits == {}


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([-1, 1] * 20, InputError, "found -1 and 1, but -1 means a node without a label: call the classes 0 and 1"),
        ([-2, 1] * 20, InputError, "labels: expected 0 or more, or -1 for none; found -2"),
        ([0.5, 1] * 20, InputError, "expected classes: whole numbers, text or truth values; found 0.5; for regression"),
        ([[1], [2]] * 20, InputError, "expected whole numbers, text or truth values in column 'label', found list"),
    ],
)
def test_what_is_no_class_is_refused(tmp_path: Path, labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        graph_of(tmp_path, pa.array(labels))
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize("num_classes", [2, 5])
def test_another_number_of_classes_than_there_are(tmp_path: Path, num_classes: int) -> None:
    labels = np.array(["red", "green", "blue", "red"])
    told = rf"labels: expected {num_classes} classes, .* found 3 values \(blue, green, red\): correct the labels or"
    features = np.ones((4, 1), np.float32)
    arrays = {"edges": np.array([[0, 1], [1, 2]]), "features": features, "labels": labels, "train": [0, 1]}
    with pytest.raises(InputError, match=told):
        convert(tmp_path / "graph", **arrays, num_classes=num_classes)
    convert(tmp_path / "graph", **arrays, num_classes=3)


def test_a_class_for_each_row_is_doubted(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="each of 40 rows has a class of its own .n0, n1, .*another column that"):
        graph_of(tmp_path, pa.array([f"n{number}" for number in range(COUNT)]))


@pytest.mark.parametrize("word", ["NA", "n/a", "null", "None", "NaN"])
def test_words_for_nothing_are_doubted_as_classes(tmp_path: Path, word: str) -> None:
    labels = pa.array(["a", word, "b", None] * (COUNT // 4))
    split = {"train": np.arange(0, COUNT, 4)}
    with pytest.warns(DataWarning, match=f"label.*: {word} is taken as a class; .*empty these cells"):
        graph = graph_of_all(tmp_path, labels, **split)
    assert set(graph.nodes["node"].config.target.classes) == {"a", word, "b"}


def test_too_much_text_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [f"t{i}" for i in range(10_001)], "x": np.ones(10_001)}), tmp_path / "n.parquet")
    with pytest.raises(InputError, match="labels: expected at most 10000 values as classes, found more"):
        convert(tmp_path / "graph", edges=RING, nodes=tmp_path / "n.parquet")


def test_arrays_of_text_and_truth_values(tmp_path: Path) -> None:
    common = {"edges": RING, "features": np.ones((COUNT, 2), np.float32), "train": np.arange(30), "overwrite": True}
    for values in (VALUES["text"], VALUES["truth"]):
        for labels in (np.array(values), np.array(values)[:, None], np.array(values, object)):
            convert(tmp_path / "graph", **common, labels=labels)
            graph = Graph.open(tmp_path / "graph")
            distinct, codes = np.unique(np.array(values), return_inverse=True)
            assert list(classes_of(graph) or ()) == distinct.tolist()
            np.testing.assert_array_equal(graph.labels, codes)


def test_classes_may_be_named_in_their_order(tmp_path: Path) -> None:
    words = [["low", "mid", "high"][number % 3] for number in range(COUNT)]
    pq.write_table(pa.table({"label": words, "x": np.arange(COUNT) % 2}), tmp_path / "nodes.parquet")
    nodes: dict[str, Any] = {"table": tmp_path / "nodes.parquet", "classes": ["low", "mid", "high"]}
    edges = {"n:to:n": {"edges": RING}}
    convert(tmp_path / "graph", schema={"nodes": {"n": nodes}, "edges": edges})
    graph = Graph.open(tmp_path / "graph").nodes["n"]
    np.testing.assert_array_equal(graph.labels, np.arange(COUNT) % 3)
    coded = {"features": np.ones((COUNT, 1), np.float32), "labels": np.arange(COUNT) % 2, "classes": ["no", "yes", "?"]}
    convert(tmp_path / "coded", schema={"nodes": {"n": coded}, "edges": edges})
    target = Graph.open(tmp_path / "coded").nodes["n"].config.target
    assert target is not None
    assert (target.num_outputs, target.classes) == (3, ("no", "yes", "?"))
    for wrong, message in (
        (["low", "mid"], "expected values of `classes`, found 'high'"),
        (["low", "low", "mid", "high"], "classes: expected a list of different names"),
        ("high", "classes: expected a list of different names"),
    ):
        with pytest.raises((ConfigError, InputError), match=message):
            convert(tmp_path / "no", schema={"nodes": {"n": nodes | {"classes": wrong}}, "edges": edges})


def test_labels_by_id_in_a_table_of_their_own(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["b", "c"], "label": ["yes", "no"]}), tmp_path / "labels.parquet")
    nodes = {"ids": np.array(["a", "b", "c"]), "features": np.ones((3, 1), np.float32)}
    nodes["labels"] = tmp_path / "labels.parquet"
    convert(
        tmp_path / "graph", schema={"nodes": {"n": nodes}, "edges": {"n:to:n": {"edges": np.array([["a"], ["c"]])}}}
    )
    found = Graph.open(tmp_path / "graph").nodes["n"]
    assert found.labels is not None
    assert found.labels.tolist() == [-1, 1, 0]
    assert found.config.target is not None
    assert found.config.target.classes == ("no", "yes")


@pytest.mark.parametrize("name", ["text", "truth", "gaps"])
def test_predictions_are_the_values(tmp_path: Path, name: str) -> None:
    """By `predict` of a graph and of what was packed, and by `infer`: the value at the largest logit."""
    graph = graph_of(tmp_path, pa.array(VALUES[name]))
    options: dict[str, Any] = {"fanouts": [2], "batch_size": 16, "cpu_cache": "50%", "static_cache": 0}
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", **options)
    diskgnn.train(tmp_path / "packed", epochs=1, hidden=8, checkpoint=tmp_path / "run", device="cpu")
    distinct = np.unique(np.array(VALUES[name]))
    for number, call in enumerate((diskgnn.predict, diskgnn.infer)):
        call(graph, tmp_path / f"{number}-logits.npy", tmp_path / "run", memory="2GiB")
        expected = distinct[np.load(tmp_path / f"{number}-logits.npy").argmax(1)]
        for suffix in (".npy", ".parquet"):
            call(graph, tmp_path / f"{number}{suffix}", tmp_path / "run", what="classes", memory="2GiB")
        found = np.load(tmp_path / f"{number}.npy")
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        assert pq.read_table(tmp_path / f"{number}.parquet")["class"].to_pylist() == expected.tolist()
        chosen = np.array([7, 3, 7])
        call(graph, tmp_path / f"{number}-some.npy", tmp_path / "run", what="classes", nodes=chosen, memory="2GiB")
        np.testing.assert_array_equal(np.load(tmp_path / f"{number}-some.npy"), expected[chosen])
    diskgnn.predict(tmp_path / "packed", tmp_path / "p.parquet", tmp_path / "run", what="classes", split="valid")
    assert set(pq.read_table(tmp_path / "p.parquet")["class"].to_pylist()) <= set(distinct.tolist())
    module = diskgnn.load_model(tmp_path / "run")
    diskgnn.infer(graph, tmp_path / "module.npy", module, what="classes", memory="2GiB")
    np.testing.assert_array_equal(np.load(tmp_path / "module.npy"), np.load(tmp_path / "1.npy"))


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.timestamp("ms"), pa.date32(), pa.string()])
def test_times_of_every_kind(tmp_path: Path, kind: pa.DataType) -> None:
    """Before 1970 too; text is what `str` of NumPy's datetime64 writes."""
    if kind == pa.date32():
        expected = np.array([-86_400 * 3, 0, 86_400 * 20_000])
        values = pa.array((expected // 86_400).astype(np.int32)).cast(kind)
    elif kind == pa.timestamp("ms"):
        expected = np.array([-2, 0, 1_700_000_000])
        values = pa.array(expected * 1000 + 999).cast(kind)
    elif kind == pa.string():
        expected = np.array([-1, 0, 1_700_000_000])
        values = pa.array([str(np.datetime64(int(second), "s")) for second in expected])
    else:
        expected = np.array([-5, 0, 1_700_000_000])
        values = pa.array(expected).cast(kind)
    pq.write_table(pa.table({"src": [0, 1, 2], "dst": [0, 1, 2], "at": values}), tmp_path / "edges.parquet")
    pq.write_table(pa.table({"x": [0.0, 1.0, 2.0], "born": values}), tmp_path / "nodes.parquet")
    nodes = {"table": tmp_path / "nodes.parquet", "columns": {"time": "born"}}
    edges = {"edges": tmp_path / "edges.parquet", "columns": TableColumns(time="at")}
    convert(tmp_path / "graph", schema={"nodes": {"n": nodes}, "edges": {"n:to:n": edges}})
    graph = Graph.open(tmp_path / "graph")
    np.testing.assert_array_equal(graph.nodes["n"].times, expected)
    np.testing.assert_array_equal(graph.edges["n", "to", "n"].times, expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["2024-01-01", "soon"], "times.*column 'at': expected dates or times in ISO 8601 .*found 'soon'; convert"),
        (["2024-01-01", None], "times.*column 'at': expected a time for each; found none at 1 .*null_time='never'"),
        (["2024-01-01", ""], "times.*column 'at': expected a time for each; found none at 1 "),
        ([1.0, 2.5], "column 'at': expected timestamps, dates or whole numbers"),
        (["2024-01-01T00:00", "2024-01-01T00:00 CET"], "expected dates or times.*found '2024-01-01T00:00 CET'"),
    ],
)
def test_what_is_no_time_is_refused(tmp_path: Path, values: list[Any], message: str) -> None:
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 0], "at": values}), tmp_path / "edges.parquet")
    edges = {"edges": tmp_path / "edges.parquet", "columns": {"time": "at"}}
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "graph", schema={"nodes": {"n": {"num_nodes": 2}}, "edges": {"n:to:n": edges}})


def test_text_with_zones_is_in_utc(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst,at\n0,1,1970-01-01 01:00:00+01:00\n1,0,1970-01-01T00:00:05Z\n")
    for types in ({}, {"at": "string"}):
        edges = {"edges": tmp_path / "edges.csv", "columns": {"time": "at", "types": types}}
        schema = {"nodes": {"n": {"num_nodes": 2}}, "edges": {"n:to:n": edges}}
        convert(tmp_path / "graph", schema=schema, overwrite=True)
        times = Graph.open(tmp_path / "graph").edges["n", "to", "n"].times
        assert times is not None
        assert times.tolist() == [5, 0]


def test_arrays_that_count_from_one_are_doubted(tmp_path: Path) -> None:
    common = {"edges": RING, "features": np.ones((COUNT, 2), np.float32), "train": np.arange(30), "overwrite": True}
    with pytest.warns(DataWarning, match="no node has one below 1: 6 classes are taken, of which 1 are never seen"):
        convert(tmp_path / "graph", **common, labels=np.arange(COUNT) % 5 + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(tmp_path / "graph", **common, labels=np.arange(COUNT) % 5 + 1, num_classes=6)
    assert Graph.open(tmp_path / "graph").num_classes == 6


@pytest.mark.parametrize(
    ("labels", "alike"),
    [
        (["cat", "dog", "Cat", "cat "], "'Cat' and 'cat' and 'cat '"),
        (["yes", "True", "no", "true"], "'True' and 'true'"),
        (["cat", "cats", "dog", "dogs"], ""),
    ],
)
def test_classes_that_differ_in_case_or_blanks_are_told(tmp_path: Path, labels: list[str], alike: str) -> None:
    node = {"features": np.eye(4, dtype=np.float32), "labels": np.array(labels), "train": np.arange(4)}
    schema = {"nodes": {"node": node}, "edges": {"node:to:node": {"edges": np.array([[0, 1], [1, 2]])}}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        diskgnn.convert(tmp_path / "graph", schema=schema)
    told = [str(each.message) for each in caught if "classes of their own" in str(each.message)]
    assert len(told) == bool(alike)
    assert all(f"{alike} are classes of their own" in message for message in told)
