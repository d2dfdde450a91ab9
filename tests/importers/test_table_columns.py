"""Columns of tables of nodes and edges: what each becomes, as NumPy and `--from relational` say; nothing vanishes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from diskgnn.cli import main
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import TableColumns, convert

USERS = """,user_id,age,plan,premium,joined,bio,label,split
0,ann,20.0,pro,True,2019-01-01,"likes, cats",yes,train
1,bob,,free,False,2019-01-03,x,no,val
2,"cy, c",40.0,,True,2019-01-05,y,,
3,dan,60.0,pro,False,2019-01-07,z,yes,test
4,eve,80.0,free,True,2019-01-09,w,no,TRAIN
"""
FOLLOWS = """from,to,at,weight
ann,bob,2020-01-01 00:00:00,0.5
bob,"cy, c",1969-12-31 23:59:59,1.0
dan,ann,2020-01-03 12:00:00,2.0
"""
NAMED = {"src": "from", "dst": "to", "id": "user_id"}


def files(tmp_path: Path, users: str = USERS, follows: str = FOLLOWS) -> dict[str, Any]:
    (tmp_path / "users.csv").write_text(users)
    (tmp_path / "follows.csv").write_text(follows)
    return {"nodes": tmp_path / "users.csv", "edges": tmp_path / "follows.csv"}


def scaled(*values: float) -> npt.NDArray[np.float64]:
    found = np.array(values)
    return np.nan_to_num((found - np.nanmean(found)) / np.nanstd(found))


def test_a_table_as_data_frames_write_it(tmp_path: Path) -> None:
    columns = TableColumns(**NAMED, encode={"bio": "none"})
    with pytest.warns(DataWarning, match="left out of the graph: at of node:to:node, weight of .*nothing asks for it"):
        report = convert(tmp_path / "graph", **files(tmp_path), columns=columns)
    graph = Graph.open(tmp_path / "graph")
    nodes = graph.nodes["node"]
    expected = [scaled(20, np.nan, 40, 60, 80), [0, 1, 0, 0, 1], [1, 0, 0, 1, 0], [1, 0, 1, 0, 1], scaled(*range(5))]
    np.testing.assert_allclose(nodes.features, np.stack(expected, 1), rtol=1e-6, atol=1e-7)
    assert {split: ids.tolist() for split, ids in nodes.splits.items()} == {"train": [0, 4], "valid": [1], "test": [3]}
    assert nodes.labels is not None
    assert nodes.labels.tolist() == [1, 0, -1, 1, 0]
    assert nodes.config.target is not None
    assert nodes.config.target.classes == ("no", "yes")
    read = {item.name: (item.use, item.how, item.width, item.null_share) for item in report.contents.read}
    assert read == {
        "user_id": ("ids", "", None, None), "label": ("labels", "2 classes: no, yes", None, 0.2),
        "split": ("splits", "", None, None), "age": ("features", "number", 1, 0.2),
        "plan": ("features", "category", 2, 0.2), "premium": ("features", "boolean", 1, 0.0),
        "joined": ("features", "time", 1, 0.0), "from": ("source", "", None, None),
        "to": ("destination", "", None, None),
    }  # fmt: skip
    assert {item.name: item.reason.partition(":")[0] for item in report.contents.left_out} == {
        "": "it counts the rows", "bio": "excluded by you", "at": "nothing asks for it",
        "weight": "nothing asks for it",
    }  # fmt: skip
    assert graph.manifest.parsed(type(graph.config).parse).contents == report.contents


def test_the_same_file_by_relational(tmp_path: Path) -> None:
    """Where kinds agree; text of many values is left out by both."""
    rng, count = np.random.default_rng(4), 80
    table = pa.table({
        "id": [f"n{i}" for i in range(count)],
        "x": rng.random(count),
        "whole": pa.array([None if i % 7 == 0 else i * i for i in range(count)]),
        "word": rng.choice(["a", "b", "c"], count),
        "text": [f"t{i}" for i in range(count)],
        "flag": rng.random(count) < 0.5,
        "day": pa.array(rng.integers(0, 10**4, count).astype(np.int32)).cast(pa.date32()),
        "vector": pa.array(rng.random((count, 3)).tolist(), pa.list_(pa.float64())),
        "up": [f"n{i}" for i in rng.integers(0, count, count)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "nodes.parquet", row_group_size=9)
    pq.write_table(table.select(["id", "up"]), tmp_path / "edges.parquet")
    (tmp_path / "relational.yaml").write_text(
        "tables: {node: {file: nodes.parquet, pkey: id, fkeys: {up: node}, columns: {flag: number}}}\n"
    )
    encode = {"flag": "number", "up": "none"}
    schema = {
        "nodes": {"node": {"table": tmp_path / "nodes.parquet", "columns": {"encode": encode}}},
        "edges": {"node:up:node": {"edges": tmp_path / "edges.parquet", "columns": {"src": "id", "dst": "up"}}},
    }
    with pytest.warns(DataWarning, match="text of node .more than 32 values"):
        convert(tmp_path / "relational", source=tmp_path, options={"keep_columns": False})
    with pytest.warns(DataWarning, match="text of node .more than 32 values"):
        convert(tmp_path / "typed", schema=schema)
    relational, typed = (Graph.open(tmp_path / name).nodes["node"].features for name in ("relational", "typed"))
    np.testing.assert_array_equal(relational, typed)
    assert typed.shape == (count, 1 + 1 + 3 + 1 + 1 + 3)


def test_named_columns_of_numbers_stay_as_they_are(tmp_path: Path) -> None:
    columns = TableColumns(**NAMED, features=["plan", "age"], encode={"joined": "raw"})
    with pytest.raises(ConfigError, match=r"encode: nodes: expected columns .*of plan, age; found 'joined'"):
        convert(tmp_path / "graph", **files(tmp_path), columns=columns)
    columns = TableColumns(**NAMED, features=["plan", "age"])
    with pytest.warns(DataWarning, match="1 NaN value"):
        convert(tmp_path / "graph", **files(tmp_path), columns=columns)
    found = Graph.open(tmp_path / "graph").nodes["node"].features
    np.testing.assert_array_equal(found, [[0, 1, 20], [1, 0, np.nan], [0, 0, 40], [0, 1, 60], [1, 0, 80]])


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e200, -1.7e308])
def test_numbers_that_cannot_be_scaled_are_a_warning(tmp_path: Path, value: float) -> None:
    """They would make a deviation that is not finite, and all others 0."""
    pq.write_table(pa.table({"id": range(4), "size": [1.0, value, 3.0, 8.0]}), tmp_path / "nodes.parquet")
    with pytest.warns(DataWarning, match=r"nodes.size: found .*; infinite values and those beyond ±1e\+100 become 0"):
        convert(tmp_path / "graph", edges=np.array([[0, 1, 2], [1, 2, 3]]), nodes=tmp_path / "nodes.parquet")
    first, second, third = scaled(1, 3, 8)
    found = Graph.open(tmp_path / "graph").features
    np.testing.assert_allclose(found[:, 0], [first, 0, second, third], rtol=1e-6)


def test_infinite_values_in_lists_are_told_as_such(tmp_path: Path) -> None:
    """3.4e38 in their place would be told as a large number, and no model trains on it either."""
    lists = pa.array([[1.0, 2.0], [np.inf, 0.0], None, [-np.inf, 1.0]])
    pq.write_table(pa.table({"id": range(4), "size": [1, 2, 3, 4], "v": lists}), tmp_path / "nodes.parquet")
    with pytest.warns(DataWarning, match="features hold 2 infinite values in 2 nodes"):
        convert(tmp_path / "graph", edges=np.array([[0, 1, 2], [1, 2, 3]]), nodes=tmp_path / "nodes.parquet")
    found = Graph.open(tmp_path / "graph").features
    np.testing.assert_array_equal(found[:, 1:], [[1, 2], [np.inf, 0], [0, 0], [-np.inf, 1]])


def test_text_of_many_values_is_said_or_refused(tmp_path: Path) -> None:
    rows = [f"{i},{i % 2}.5,text {i}" for i in range(40)]
    given = files(tmp_path, "\n".join(["id,x,bio", *rows]) + "\n", "src,dst\n0,1\n")
    with pytest.warns(DataWarning, match="left out of the graph: bio of node .more than 32 values: text or ids"):
        convert(tmp_path / "graph", **given)
    assert Graph.open(tmp_path / "graph").nodes["node"].features.shape == (40, 1)
    for columns in (TableColumns(features=["x", "bio"]), TableColumns(encode={"bio": "category"})):
        with pytest.raises(InputError, match=r"nodes\.bio: expected at most 32 values of a category"):
            convert(tmp_path / "other", **given, columns=columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"features": ["aeg"]}, r"features: expected a column of the tables, found 'aeg'.*has from, to, at"),
        ({"time": "when"}, r"time: expected a column of the tables, found 'when'; .*users.csv has , user_id, age"),
        ({"weight": "age"}, r"weight: expected a column of the tables, found 'age'"),
        ({"encode": {"plam": "none"}}, r"encode: expected a column of the tables, found 'plam'"),
        ({"encode": {"plan": "onehot"}}, r"encode: nodes.plan: expected number, raw, time, .*found 'onehot'"),
        ({"label": "topic"}, r"nodes: expected a column 'topic' in .*users.csv, found \['', 'user_id', 'age'"),
        ({"split": "fold"}, r"nodes: expected a column 'fold' in .*users.csv"),
        ({"id": "uid"}, r"nodes: expected a column 'uid' in .*users.csv"),
    ],
)  # fmt: skip
def test_a_name_that_no_table_has_is_an_error(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, InputError), match=message):
        convert(tmp_path / "graph", **files(tmp_path), columns=TableColumns(**{**NAMED, **columns}))
    assert not (tmp_path / "graph").exists()


def test_roles_of_edges_need_no_schema(tmp_path: Path) -> None:
    columns = TableColumns(**NAMED, time="at", weight="weight", encode={"bio": "none"})
    convert(tmp_path / "graph", **files(tmp_path), columns=columns)
    edges = Graph.open(tmp_path / "graph").edges["node", "to", "node"]
    times = {"ann": 1577836800, "bob": -1, "dan": 1578052800}
    assert edges.times is not None
    assert edges.weights is not None
    # In CSC order: to ann, to bob, to cy.
    assert edges.times.tolist() == [times["dan"], times["ann"], times["bob"]]
    assert edges.weights.tolist() == [2.0, 0.5, 1.0]


def test_the_command_says_what_it_read_and_inspect_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = ["--edges", "follows.csv", "--nodes", "users.csv", "--encode", "bio=none"]
    for role, name in NAMED.items():
        given += ["--column", f"{role}={name}"]
    for command in (["convert", "graph", *given], ["inspect", "graph"]):
        with pytest.raises(SystemExit, match="0"):
            main(command)
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["node", "plan", "features", "category", "2", "20.00%"] in lines
        assert ["node", "label", "labels", "2", "classes:", "no,", "yes", "20.00%"] in lines
    assert ["node", "''", "it", "counts", "the", "rows"] in lines
    with pytest.raises(SystemExit, match="0"):
        main(["convert", "again", *given, "--json"])
    contents = json.loads(capsys.readouterr().out)["contents"]
    plan = {"of": "node", "name": "plan", "use": "features", "how": "category", "width": 2, "null_share": 0.2}
    assert plan in contents["read"]
    assert {"at", "weight"} <= {item["name"] for item in contents["left_out"]}


def test_many_columns_alike_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pa.table({f"f{i}": np.random.default_rng(i).random(5) for i in range(20)})
    csv.write_csv(table, "nodes.csv")
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(SystemExit, match="0"):
        main(["convert", "graph", "--edges", "edges.csv", "--nodes", "nodes.csv"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "f0" in line]
    assert "f0 ... f19 (20 columns)" in line


@pytest.mark.parametrize("make", [lambda number: f"u{number}", lambda number: 1000 - 7 * number])
def test_the_column_that_edges_refer_to_has_the_ids(tmp_path: Path, make: Any) -> None:
    """Text and numbers; another column of unique values has not all of them, and no role."""
    ids, rng = [make(number) for number in range(60)], np.random.default_rng(0)
    order = rng.permutation(60)
    nodes = pa.table({"code": [f"u{number + 30}" for number in range(60)], "person_id": [ids[i] for i in order],
                      "x": rng.random(60), "other_id": rng.permutation(60) + 5})  # fmt: skip
    src, dst = rng.integers(0, 60, (2, 200))
    pq.write_table(nodes, tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": [ids[i] for i in src], "dst": [ids[i] for i in dst]}), tmp_path / "edges.parquet")
    given = {"edges": tmp_path / "edges.parquet", "nodes": tmp_path / "nodes.parquet"}
    with pytest.warns(DataWarning, match="nodes: took column 'person_id' as the ids, as edges refer to it"):
        report = convert(tmp_path / "guessed", **given)
    convert(tmp_path / "named", **given, columns=TableColumns(id="person_id"))
    guessed, named = (Graph.open(tmp_path / name).manifest for name in ("guessed", "named"))
    assert guessed.digest == named.digest
    assert ("person_id", "ids") in [(item.name, item.use) for item in report.contents.read]


def test_two_columns_of_ids_are_not_guessed_from(tmp_path: Path) -> None:
    ids = [f"u{number}" for number in range(9)]
    pq.write_table(pa.table({"a": ids, "b": ids[::-1], "x": np.arange(9) % 4}), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": ids, "dst": ids[::-1]}), tmp_path / "edges.parquet")
    given = {"edges": tmp_path / "edges.parquet", "nodes": tmp_path / "nodes.parquet"}
    with pytest.raises(ConfigError, match="expected one column with the ids that edges refer to, found a and b; name"):
        convert(tmp_path / "graph", **given)


def test_numbers_of_rows_stay_what_edges_are_of(tmp_path: Path) -> None:
    """No column called like ids has all that edges refer to."""
    pq.write_table(pa.table({"rank": [2, 0, 1], "x": [0.0, 1.0, 3.0]}), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 2]}), tmp_path / "edges.parquet")
    convert(tmp_path / "graph", edges=tmp_path / "edges.parquet", nodes=tmp_path / "nodes.parquet")
    graph = Graph.open(tmp_path / "graph")
    assert graph.nodes["node"].user_ids is None
    assert graph.indices.tolist() == [0, 1]


def test_leading_zeros_are_said_and_kept_if_asked(tmp_path: Path) -> None:
    given = files(tmp_path, "id,x\n007,1\n010,2\n", "src,dst\n007,010\n")
    with pytest.warns(DataWarning, match="column 'id' is read as numbers, so 007 is 7; .*types=id:string"):
        convert(tmp_path / "graph", **given)
    text = dict.fromkeys(("id", "src", "dst"), "string")
    convert(tmp_path / "text", **given, columns=TableColumns(types=text))
    with Graph.open(tmp_path / "text").nodes["node"].user_ids as ids:  # type: ignore[union-attr]
        assert ids.read()["id"].to_pylist() == ["007", "010"]
    with pytest.raises(InputError, match=r"expected ids of type string, .*found int64 such as 7; there is '007'"):
        convert(tmp_path / "both", **given, columns=TableColumns(types={"id": "string"}))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("999", "1.000", "12.500"), "numbers such as 999 and 1.000, which is read as 1: if the dot groups thousands"),
        (("-5", "", "-1.250"), "numbers such as -5 and -1.250, which is read as -1.25"),
        (("1.000", "2.500", "3.125"), ""),  # as "%.3f" writes them
        (("3", "0.125", "1.500"), ""),
        (("3", "2.5", "1.000"), ""),
        (("1000", "1.500", "3"), ""),
    ],
)
def test_dots_that_may_group_thousands_are_said(tmp_path: Path, values: tuple[str, ...], told: str) -> None:
    given = files(tmp_path, "id,x\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values)), "src,dst\n0,1\n")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        convert(tmp_path / "graph", **given)
        convert(tmp_path / "typed", **given, columns=TableColumns(types={"x": "double"}))
    said = [str(each.message) for each in found if "thousands" in str(each.message)]
    assert len(said) == bool(told)
    assert all(told in each for each in said)


def test_a_column_of_one_number_each_stands_for_the_numbers(tmp_path: Path) -> None:
    """[N, 1] for [N]: as PyG and pandas give them."""
    rng, edges = np.random.default_rng(7), np.array([[0, 1, 2], [1, 2, 0]])
    flat: dict[str, Any] = {"labels": np.array([0, 1, 0]), "times": np.array([5, 6, 7]), "train": np.array([0, 2]),
                            "ids": np.array([9, 8, 7]), "valid": np.array([False, True, False])}  # fmt: skip
    on_edges = {"weights": rng.random(3), "times": np.array([1, 2, 3])}
    for name, change in (("flat", lambda array: array), ("column", lambda array: array[:, None])):
        if "ids" in flat:
            flat["train"] = np.array([9, 7])
        nodes = {"features": np.ones((3, 2), np.float32), **{key: change(value) for key, value in flat.items()}}
        carried = {key: change(value) for key, value in on_edges.items()}
        links = {"edges": np.array([9, 8, 7])[edges], **carried}
        convert(tmp_path / name, schema={"nodes": {"n": nodes}, "edges": {"n:to:n": links}})
    flat_graph, column_graph = (Graph.open(tmp_path / name).manifest for name in ("flat", "column"))
    assert flat_graph.digest == column_graph.digest


def test_a_table_of_nodes_needs_no_labels_and_no_splits(tmp_path: Path) -> None:
    for users in ("id,x\na,1\nb,2.5\n", "id,x,label\na,1,yes\nb,2.5,no\n"):
        convert(tmp_path / "graph", **files(tmp_path, users, "src,dst\na,b\n"), overwrite=True)
        nodes = Graph.open(tmp_path / "graph").nodes["node"]
        assert nodes.splits == {}
        assert (nodes.config.target is not None) == ("label" in users)
    split_alone = files(tmp_path, "id,x,split\na,1,train\nb,2.5,test\n", "src,dst\na,b\n")
    with pytest.raises(
        ConfigError, match=r"expected a column of labels in .*label=NAME.* for the nodes of train and test"
    ):
        convert(tmp_path / "graph", **split_alone, overwrite=True)
