"""Importing Parquet tables gives what importing the same arrays gives; pyarrow writes the tables."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from user_data import NUM_NODES, WIDTH, small_data

from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import TableColumns, convert


@pytest.fixture
def data() -> dict[str, Any]:
    """A small graph, in memory. A table's rows give each split in ascending order."""
    return {**small_data(), "train": np.arange(20)}


def files(path: Path) -> dict[str, object]:
    """Checksums; manifests differ, as that of a graph of tables says which columns were read."""
    return {name: entry.crc32c for name, entry in Graph.open(path).manifest.files.items()}


def edge_table(edges: np.ndarray, src: str = "src", dst: str = "dst") -> pa.Table:
    return pa.table({src: edges[0], dst: edges[1]})


def node_table(data: dict[str, Any], features: pa.Array) -> pa.Table:
    splits = np.full(NUM_NODES, None, object)
    for split in ("train", "valid", "test"):
        splits[data[split]] = split
    labels = pa.array([None if label < 0 else int(label) for label in data["labels"]], pa.int32())
    return pa.table({"label": labels, "features": features, "split": pa.array(splits.tolist(), pa.string())})


LISTS = {
    "fixed": pa.list_(pa.float32(), WIDTH),
    "variable": pa.list_(pa.float32()),
    "large": pa.large_list(pa.float32()),
    "double": pa.list_(pa.float64(), WIDTH),
}


@pytest.mark.parametrize("kind", list(LISTS))
def test_parquet_equals_arrays(tmp_path: Path, data: dict[str, Any], kind: str) -> None:
    features = pa.array(data["features"].tolist(), LISTS[kind])
    pq.write_table(edge_table(data["edges"]), tmp_path / "edges.parquet", row_group_size=70)
    pq.write_table(node_table(data, features), tmp_path / "nodes.parquet", row_group_size=13)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        convert(tmp_path / "parquet", edges=tmp_path / "edges.parquet", nodes=tmp_path / "nodes.parquet", memory="1MiB")
    assert [w.category for w in caught] == ([DataWarning] if kind == "double" else [])
    convert(tmp_path / "arrays", **data)
    assert files(tmp_path / "parquet") == files(tmp_path / "arrays")


@pytest.mark.parametrize(
    ("kind", "dtype"), [(pa.float32(), "float32"), (pa.float16(), "float16"), (pa.int8(), "int8")])  # fmt: skip
def test_parquet_columns_of_numbers(tmp_path: Path, data: dict[str, Any], kind: pa.DataType, dtype: str) -> None:
    features = np.random.default_rng(5).integers(-100, 100, (NUM_NODES, WIDTH)).astype(dtype)
    table = node_table(data, pa.nulls(NUM_NODES)).drop_columns("features")
    table = table.rename_columns(["topic", "fold"])
    for column in range(WIDTH):
        table = table.append_column(f"f{column}", pa.array(features[:, column], kind))
    table = table.append_column("id", pa.array(np.arange(NUM_NODES)))
    folder = tmp_path / "nodes"  # a folder of files, in the order of their names
    folder.mkdir()
    pq.write_table(table.slice(20), folder / "b.parquet")
    pq.write_table(table.slice(0, 20), folder / "a.parquet")
    pq.write_table(edge_table(data["edges"], "from", "to"), tmp_path / "edges.parquet")
    names = [f"f{column}" for column in range(WIDTH)]
    columns = TableColumns(src="from", dst="to", label="topic", split="fold", features=names)
    convert(tmp_path / "graph", edges=tmp_path / "edges.parquet", nodes=folder, columns=columns, memory="1MiB")
    convert(tmp_path / "arrays", **{**data, "features": features})
    assert files(tmp_path / "graph") == files(tmp_path / "arrays")
    some = TableColumns(src="from", dst="to", label="topic", split="fold", features=["f3", "f1"])
    convert(tmp_path / "some", edges=tmp_path / "edges.parquet", nodes=folder, columns=some, memory="1MiB")
    np.testing.assert_array_equal(Graph.open(tmp_path / "some").features, features[:, [3, 1]])


def test_parquet_with_arrays_beside(tmp_path: Path, data: dict[str, Any]) -> None:
    table = node_table(data, pa.nulls(NUM_NODES)).drop_columns("features")
    pq.write_table(table, tmp_path / "nodes.parquet")
    given = {k: data[k] for k in ("edges", "features", "memory")}
    order = {"train": data["train"][::-1], "test": data["test"]}
    convert(tmp_path / "graph", **given, **order, nodes=tmp_path / "nodes.parquet")
    convert(tmp_path / "arrays", **{**data, **order, "valid": None})
    assert files(tmp_path / "graph") == files(tmp_path / "arrays")


def test_parquet_nulls_are_nan(tmp_path: Path, data: dict[str, Any]) -> None:
    rows = data["features"].tolist()
    rows[4][2] = None
    pq.write_table(node_table(data, pa.array(rows, LISTS["fixed"])), tmp_path / "nodes.parquet")
    with pytest.warns(DataWarning, match="1 NaN value in 1 node, the first at node 4, column 2"):
        convert(tmp_path / "graph", edges=data["edges"], nodes=tmp_path / "nodes.parquet", memory="1MiB")


def test_bad_parquet(tmp_path: Path, data: dict[str, Any]) -> None:
    lists = pa.array(data["features"].tolist(), LISTS["variable"])
    nodes = node_table(data, lists)
    edges = edge_table(data["edges"])

    def replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, values)

    ragged = data["features"].tolist()
    ragged[31] = ragged[31][:-1]
    holes = pa.array([None if i == 17 else 3 for i in range(300)])
    doubled = pa.array(np.arange(300) / 2)
    words = [None] * NUM_NODES
    words[8] = "holdout"
    ids = np.arange(NUM_NODES)
    ids[31] = 30
    texts = pa.array([b"x"] * NUM_NODES)
    cases: list[tuple[str, pa.Table, str]] = [
        ("edges", edges.drop_columns("dst"), r"edges: expected a column 'dst' in .*, found \['src'\]"),
        ("edges", replaced(edges, "src", holes), r"expected an id in column 'src', found null in edge 17"),
        (
            "edges",
            replaced(edges, "dst", doubled),
            r"in column 'dst', found double, such as 0.5: is it another",
        ),
        ("edges", replaced(edges, "dst", pa.array([50] * 300, pa.uint64())), r"found destination 50 in edge 0 "),
        (
            "nodes",
            replaced(nodes, "features", pa.array(ragged, LISTS["variable"])),
            r"7 numbers .*found 6 in row 31",
        ),
        ("nodes", replaced(nodes, "features", texts), r"features: expected columns .*'features' \(binary is no"),
        (
            "nodes",
            replaced(nodes, "label", pa.array([0.5] * 50)),
            r"labels: expected classes: whole numbers, .*found 0.5; for regression",
        ),
        (
            "nodes",
            replaced(nodes, "label", pa.array([0] * 30 + [2**64 - 1] + [None] * 19, pa.uint64())),
            r"labels: expected 0 or more, .* found 9223372036854775807 or more at node 30",
        ),
        ("nodes", replaced(nodes, "split", pa.array(words)), r"found 'holdout' in row 8"),
        ("nodes", replaced(nodes, "split", pa.array([1] * 50)), r"'train', 'valid' or 'test' in column 'split'"),
        ("nodes", replaced(nodes, "split", pa.array(["test"] * 50)), r"nodes of test have no label in column"),
        ("nodes", replaced(nodes, "split", pa.nulls(50, pa.string())), r"splits: expected train, .* found none; leave"),
        ("nodes", nodes.drop_columns("label"), r"expected a column of labels in .*for the nodes of train"),
        ("nodes", nodes.slice(0, 0), r"lists of at least one number in column 'features', found none"),
        (
            "nodes",
            nodes.append_column("id", pa.array(ids)),
            r"nodes: .*every id once, found 30 in row 30 and in row 31",
        ),
    ]
    for name, table, message in cases:
        for good, content in (("edges", edges), ("nodes", nodes)):
            pq.write_table(content, tmp_path / f"{good}.parquet", row_group_size=20)
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=20)
        with pytest.raises((InputError, ConfigError), match=message):
            convert(
                tmp_path / "graph",
                edges=tmp_path / "edges.parquet",
                nodes=tmp_path / "nodes.parquet",
                memory="1MiB",
            )
        assert not (tmp_path / "graph").exists()

    whole = (tmp_path / "edges.parquet").read_bytes()
    (tmp_path / "edges.parquet").write_bytes(whole[:-10])
    with pytest.raises(InputError, match=r"edges\.parquet is no readable Parquet file"):
        convert(tmp_path / "graph", **{**data, "edges": tmp_path / "edges.parquet"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"expected Parquet files or CSV files in .*found a folder .empty."):
        convert(tmp_path / "graph", **{**data, "edges": tmp_path / "empty"})
