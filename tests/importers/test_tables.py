"""CSV files and folders of parts give what the same arrays give; pyarrow, gzip and zstd write them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from user_data import NUM_NODES, small_data

from diskgnn.cli import main
from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import TableColumns, convert
from diskgnn.importers.tables.table import Table


def rows(path: Path, columns: TableColumns | None = None) -> dict[str, list[Any]]:
    """All that `Table` yields, a few rows at a time."""
    table = Table("table", path, columns)
    batches = list(table.batches(table.schema.names, 7))
    assert sum(batch.num_rows for batch in batches) == table.num_rows
    assert all(batch.num_rows <= 7 for batch in batches)
    return pa.Table.from_batches(batches, batches[0].schema).to_pydict()


def node_and_edge_tables(data: dict[str, Any]) -> tuple[pa.Table, pa.Table]:
    """In numbers that text does not change."""
    splits = np.full(NUM_NODES, None, object)
    for split in ("train", "valid", "test"):
        splits[data[split]] = split
    features = {f"f{column}": data["features"][:, column] for column in range(data["features"].shape[1])}
    labels = pa.array([None if label < 0 else int(label) for label in data["labels"]], pa.int64())
    names = pa.array([f'n{i}, "é"' for i in range(NUM_NODES)])
    nodes = pa.table({"name": names, "label": labels, **features, "split": pa.array(splits.tolist(), pa.string())})
    return nodes, pa.table({"src": nodes["name"].take(data["edges"][0]), "dst": nodes["name"].take(data["edges"][1])})


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst", ".tsv", ""])
def test_csv_equals_arrays(tmp_path: Path, suffix: str) -> None:
    data = {**small_data(), "train": np.arange(20)}
    nodes, edges = node_and_edge_tables(data)
    for name, table in (("nodes", nodes), ("edges", edges)):
        with pa.output_stream(tmp_path / f"{name}{suffix}", compression="detect") as file:
            csv.write_csv(table, file, csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ","))
    features = [
        part for column in nodes.schema.names if column[0] == "f" for part in ("--column", f"features={column}")
    ]
    files = ["--edges", str(tmp_path / f"edges{suffix}"), "--nodes", str(tmp_path / f"nodes{suffix}")]
    with pytest.raises(SystemExit, match="0"), pytest.warns(match="become float32"):
        main(["convert", str(tmp_path / "graph"), *files, "--memory", "2MiB", "--column", "id=name", *features])
    convert(tmp_path / "dense", **data)
    graph, dense = Graph.open(tmp_path / "graph"), Graph.open(tmp_path / "dense")
    np.testing.assert_allclose(graph.features, dense.features, rtol=1e-6)
    np.testing.assert_array_equal(graph.indices, dense.indices)
    np.testing.assert_array_equal(graph.labels, dense.labels)
    assert {split: list(ids) for split, ids in graph.splits.items()} == {
        split: list(ids) for split, ids in dense.splits.items()
    }


def test_csv_without_names_or_with_odd_ones(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("007;3\n08;4\n")
    given = TableColumns(names=["src", "dst"], delimiter=";", types={"src": "string"})
    assert rows(tmp_path / "edges.csv", given) == {"src": ["007", "08"], "dst": [3, 4]}
    with pytest.raises(
        InputError, match=r"expected a column 'src' .*found \['007', '3'\]; if the file has no line with"
    ):
        Table("edges", tmp_path / "edges.csv").field("src")
    (tmp_path / "gaps.csv").write_text('a,b,c\n,"x,y",\n2,,\n')
    assert rows(tmp_path / "gaps.csv") == {"a": [None, 2], "b": ["x,y", None], "c": [None, None]}
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(InputError, match=r"expected 2 columns in each row of .*ragged\.csv, found 1 in line 3: '3'"):
        rows(tmp_path / "ragged.csv")
    (tmp_path / "late.csv").write_text("a,b\n" + "1,2\n" * 2_000_000 + "x,2\n")
    with pytest.raises(InputError, match=r"found 'x' in line 2000002; correct it, or say what the column holds"):
        Table("late", tmp_path / "late.csv").num_rows  # noqa: B018
    with pytest.raises(ConfigError, match="expected an Arrow type such as string or int64 for 'a', found 'text'"):
        Table("edges", tmp_path / "gaps.csv", TableColumns(types={"a": "text"}))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 100_000)[:-100])
    with pytest.raises(InputError, match=r"cut\.csv\.gz"):
        rows(tmp_path / "cut.csv.gz")


def test_folder_of_parts_as_spark_writes_it(tmp_path: Path) -> None:
    folder = tmp_path / "edges"
    parts = {
        "day=2024-01-01/part-00000-1f.c000.snappy.parquet": [("a", 1), ("b", 2), ("c", 3)],
        "day=2024-01-01/part-00001-1f.c000.snappy.parquet": [],
        "day=2024-01-02/part-00000-1f.c000.snappy.parquet": [("d", 4)],
        "day=__HIVE_DEFAULT_PARTITION__/part-00000-1f.c000.snappy.parquet": [("e", 5)],
    }
    for name, content in parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        kind = pa.dictionary(pa.int32(), pa.string()) if "01/" in name else pa.string()
        table = pa.table(
            {"src": pa.array([a for a, _ in content], kind), "dst": pa.array([b for _, b in content], pa.int64())}
        )
        pq.write_table(table, folder / name, row_group_size=2, compression="snappy")
    (folder / "_SUCCESS").touch()
    (folder / "day=2024-01-02/.part-00000-1f.c000.snappy.parquet.crc").write_bytes(b"crc\0")
    (folder / "_temporary/0").mkdir(parents=True)
    (folder / "_temporary/0/part-00000.parquet").write_bytes(b"half")
    assert rows(folder) == {
        "src": ["a", "b", "c", "d", "e"],
        "dst": [1, 2, 3, 4, 5],
        "day": ["2024-01-01"] * 3 + ["2024-01-02", None],
    }
    pq.write_table(pa.table({"src": ["f"], "dst": [6.0]}), folder / "day=2024-01-02/part-00001.parquet")
    with pytest.raises(
        InputError, match=r"column 'dst' of type double in .*02/part-00001\.parquet, which is of type int64"
    ):
        Table("edges", folder)
    pq.write_table(pa.table({"src": ["f"]}), folder / "day=2024-01-02/part-00001.parquet")
    with pytest.raises(InputError, match=r"found column 'dst' missing in .*02/part-00001\.parquet"):
        Table("edges", folder)
    (folder / "more.csv").write_text("src,dst\n")
    with pytest.raises(InputError, match=r"expected Parquet files or CSV files in .*, found both"):
        Table("edges", folder)


def test_partitions_of_whole_numbers_serve_as_times(tmp_path: Path) -> None:
    for year in (2021, 1999):
        (tmp_path / f"edges/year={year}").mkdir(parents=True)
        pq.write_table(pa.table({"src": [0, 1], "dst": [1, year % 2]}), tmp_path / f"edges/year={year}/part-0.parquet")
    schema = {
        "nodes": {"n": {"num_nodes": 2}},
        "edges": {"n:to:n": {"edges": tmp_path / "edges", "columns": {"time": "year"}}},
    }
    convert(tmp_path / "graph", schema=schema)
    edges = Graph.open(tmp_path / "graph").edges["n", "to", "n"]
    assert edges.times is not None
    assert sorted(edges.times.tolist()) == [1999, 1999, 2021, 2021]


def test_vectors_of_spark_ml(tmp_path: Path) -> None:
    lists = {"indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
    kind = pa.struct({"type": pa.int8(), "size": pa.int32(), **lists}.items())
    dense = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]}
    sparse = {"type": 0, "size": 3, "indices": [0, 2], "values": [4.0, 5.0]}
    empty = {"type": 0, "size": 3, "indices": [], "values": []}

    def graph_of(*vectors: dict[str, Any] | None) -> Graph:
        pq.write_table(pa.table({"features": pa.array(vectors, kind)}), tmp_path / "nodes.parquet", row_group_size=2)
        nodes = {"n": {"table": tmp_path / "nodes.parquet"}}
        convert(tmp_path / "graph", schema={"nodes": nodes, "edges": {"n:to:n": {"edges": [[0], [1]]}}}, overwrite=True)
        return Graph.open(tmp_path / "graph")

    with pytest.warns(match="become float32"):
        found = graph_of(sparse, dense, empty, sparse)
    assert found.nodes["n"].features.tolist() == [[4, 0, 5], [1, 2, 3], [0, 0, 0], [4, 0, 5]]
    with (
        pytest.warns(match="become float32"),
        pytest.raises(InputError, match=r"expected 3 numbers .*found 2 in row 1"),
    ):
        graph_of(dense, {**sparse, "size": 2, "indices": [0, 1]})
    with pytest.warns(match="become float32"), pytest.raises(InputError, match="found null in row 2"):
        graph_of(dense, sparse, None)
