"""Graphs whose nodes have ids of the user's equal those of dense ids; pyarrow writes the tables."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from user_data import NUM_NODES, small_data

from diskgnn.errors import ConfigError, InputError
from diskgnn.files import faults
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.artifact_description import describe
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import EdgeInput, GraphInput, NodeInput, TableColumns, convert
from diskgnn.importers.ids import id_ranges

ROOT = np.random.default_rng(7)
KINDS: dict[str, Any] = {
    "string": [f"user/{n:x}/é" for n in ROOT.permutation(10_000)[:NUM_NODES]],
    "binary": [uuid.UUID(int=int(n) << 64 | 5).bytes for n in ROOT.permutation(10_000)[:NUM_NODES]],
    "int64": [int(n) for n in ROOT.integers(-(2**63), 2**63 - 1, NUM_NODES)],
    "uint64": [int(n) for n in ROOT.integers(2**63, 2**64 - 1, NUM_NODES, np.uint64)],
}
ARROW = {
    "string": pa.dictionary(pa.int32(), pa.string()),
    "binary": pa.binary(16),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
}


def files_but_ids(path: Path) -> dict[str, int]:
    return {name: entry.crc32c for name, entry in Graph.open(path).manifest.files.items() if name != "ids-node.parquet"}


def kept_ids(path: Path, node_type: str = "node") -> pa.Array:
    file = Graph.open(path).nodes[node_type].user_ids
    assert file is not None
    with file:
        return file.read().column("id").combine_chunks()


@pytest.mark.parametrize("kind", list(KINDS))
def test_ids_in_tables_and_arrays_equal_dense_ones(tmp_path: Path, kind: str) -> None:
    data, ids = small_data(), KINDS[kind]
    convert(tmp_path / "dense", **data)
    column = pa.array(ids, ARROW[kind].value_type if kind == "string" else ARROW[kind])
    by_id = column.take
    pq.write_table(
        pa.table({
            "key": by_id(pa.array(np.arange(NUM_NODES))).cast(ARROW[kind]),
            "label": pa.array([None if label < 0 else int(label) for label in data["labels"]], pa.int32()),
            "features": pa.array(data["features"].tolist(), pa.list_(pa.float32())),
        }),
        tmp_path / "nodes.parquet",
    )  # fmt: skip
    ends = {"a": by_id(pa.array(data["edges"][0])), "b": by_id(pa.array(data["edges"][1]))}
    pq.write_table(pa.table(ends), tmp_path / "edges.parquet", row_group_size=70)
    splits = {split: by_id(pa.array(data[split])) for split in ("train", "valid", "test")}
    pq.write_table(pa.table({"key": splits["test"]}), tmp_path / "test.parquet")
    arrays = {split: np.array(splits[split].to_pylist(), object if kind == "binary" else None) for split in splits}
    convert(
        tmp_path / "tables", edges=tmp_path / "edges.parquet", nodes=tmp_path / "nodes.parquet",
        columns=TableColumns(src="a", dst="b", id="key"), train=arrays["train"], valid=arrays["valid"],
        test=tmp_path / "test.parquet", memory="1MiB",
    )  # fmt: skip
    assert files_but_ids(tmp_path / "tables") == files_but_ids(tmp_path / "dense")
    assert kept_ids(tmp_path / "tables").to_pylist() == ids
    verify_artifact(tmp_path / "tables")
    assert describe(tmp_path / "tables").facts["user_ids"] != "none" == describe(tmp_path / "dense").facts["user_ids"]

    rest = {name: data[name] for name in ("features", "labels")}
    objects = np.array(ids, object if kind == "binary" else None)
    convert(tmp_path / "arrays", edges=objects[data["edges"].T], ids=objects, **rest, **arrays)
    assert files_but_ids(tmp_path / "arrays") == files_but_ids(tmp_path / "dense")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_mentioned_ids_are_numbered_in_ascending_order(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    one_id = data.draw(st.sampled_from([st.text(max_size=4), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3)]))
    ids = data.draw(st.lists(one_id, min_size=1, max_size=30, unique=True))
    count = data.draw(st.integers(1, 200))
    rng = np.random.default_rng(count)
    src, dst = ([ids[i] for i in rng.integers(0, len(ids), count)] for _ in range(2))
    folder = tmp_path_factory.mktemp("mentioned")
    pq.write_table(pa.table({"src": src, "dst": dst}), folder / "edges.parquet", row_group_size=50)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(id_ranges, "MOST_PART_IDS", 16)
        schema = {
            "nodes": {"user": {}},
            "edges": {"user:knows:user": {"edges": folder / "edges.parquet", "keep_ids": True}},
        }
        convert(folder / "graph", schema=schema, memory="32KiB" if data.draw(st.booleans()) else "1MiB")
    graph = Graph.open(folder / "graph")
    edges = graph.edges["user", "knows", "user"]
    there = sorted({*src, *dst}, key=lambda value: value.encode() if isinstance(value, str) else value)
    assert graph.nodes["user"].num_nodes == len(there)
    found = there if there == list(range(len(there))) else kept_ids(folder / "graph", "user").to_pylist()
    assert found == there
    assert edges.edge_ids is not None
    heads = np.repeat(np.arange(len(there)), np.diff(edges.indptr))
    assert [there[i] for i in edges.indices] == [src[e] for e in edges.edge_ids]
    assert [there[i] for i in heads] == [dst[e] for e in edges.edge_ids]


def typed(tmp_path: Path, **edges: Any) -> GraphInput:
    """Users have ids, items are numbered: 5 edges between them."""
    pq.write_table(pa.table({"id": ["ann", "bob", "cy"], "x": [0.0, 1.0, 2.0]}), tmp_path / "users.parquet")
    given = {"src": ["bob", "bob", "ann", "cy", "ann"], "dst": [3, 0, 1, 2, 2], "weight": [5.0, 4.0, 3.0, 2.0, 1.0]}
    pq.write_table(pa.table(given), tmp_path / "buys.parquet")
    buys = EdgeInput(tmp_path / "buys.parquet", columns=TableColumns(weight="weight"), reverse=True, **edges)
    nodes = {"user": NodeInput(table=tmp_path / "users.parquet"), "item": NodeInput(num_nodes=4)}
    return GraphInput(nodes, {("user", "buys", "item"): buys})


def test_one_end_of_ids_and_what_edges_carry(tmp_path: Path) -> None:
    convert(tmp_path / "graph", schema=typed(tmp_path))
    graph = Graph.open(tmp_path / "graph")
    back = graph.edges["item", "rev_buys", "user"]
    pairs = zip(np.repeat(range(3), np.diff(back.indptr)), back.indices, back.weights, strict=True)
    assert sorted((int(user), int(item), float(weight)) for user, item, weight in pairs) == [
        (0, 1, 3.0), (0, 2, 1.0), (1, 0, 4.0), (1, 3, 5.0), (2, 2, 2.0)
    ]  # fmt: skip
    assert graph.nodes["item"].user_ids is None
    assert kept_ids(tmp_path / "graph", "user").to_pylist() == ["ann", "bob", "cy"]


def test_seed_edges_and_labels_by_id(tmp_path: Path) -> None:
    given = typed(tmp_path)
    pq.write_table(pa.table({"src": ["cy", "ann"], "dst": [0, 3]}), tmp_path / "seeds.parquet")
    pq.write_table(pa.table({"id": ["cy", "ann"], "label": [1, 0]}), tmp_path / "labels.parquet")
    nodes = {
        **given.nodes,
        "user": NodeInput(table=tmp_path / "users.parquet", labels=tmp_path / "labels.parquet", train=["cy"]),
    }
    ((name, edges),) = given.edges.items()
    edges = EdgeInput(edges.edges, train=tmp_path / "seeds.parquet")
    convert(tmp_path / "graph", schema=GraphInput(nodes, {name: edges}))
    graph = Graph.open(tmp_path / "graph")
    assert graph.edges[name].splits["train"].tolist() == [[2, 0], [0, 3]]
    assert graph.nodes["user"].labels is not None
    assert graph.nodes["user"].labels.tolist() == [0, -1, 1]
    assert graph.nodes["user"].splits["train"].tolist() == [2]


def test_bytes_do_not_depend_on_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = np.array([f"{n:08x}" for n in rng.permutation(20_000)])
    pq.write_table(
        pa.table({"id": ids, "label": np.zeros(20_000, int), "f": np.zeros(20_000, np.float32)}),
        tmp_path / "nodes.parquet",
    )
    ends = {"src": ids[rng.integers(0, 20_000, 60_000)], "dst": ids[rng.zipf(1.5, 60_000) % 20_000]}
    pq.write_table(pa.table(ends), tmp_path / "edges.parquet", row_group_size=7_000)
    digests = set()
    for memory in ("1MiB", "40MiB", "1GiB"):
        convert(
            tmp_path / memory,
            edges=tmp_path / "edges.parquet",
            nodes=tmp_path / "nodes.parquet",
            train=ids[5:9],
            memory=memory,
        )
        digests.add(Graph.open(tmp_path / memory).manifest.digest)
    assert len(digests) == 1
    assert Graph.open(tmp_path / "1MiB").splits["train"].tolist() == [5, 6, 7, 8]


def test_another_number_of_nodes_than_there_are_ids(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["ann", "bob"], "x": [0.0, 1.0]}), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": ["ann"], "dst": ["bob"]}), tmp_path / "edges.parquet")
    tables = {"nodes": tmp_path / "nodes.parquet", "edges": tmp_path / "edges.parquet"}
    with pytest.raises(InputError, match="expected 5 nodes, as the number of nodes given says, found 2 ids; leave it"):
        convert(tmp_path / "graph", **tables, num_nodes=5)
    convert(tmp_path / "graph", **tables, num_nodes=2)


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    def ends(src: list[Any], dst: list[Any]) -> pa.Table:
        return pa.table({"src": src, "dst": dst})

    def ids(given: list[Any]) -> pa.Table:
        return pa.table({"id": given, "x": [0.0, 1.0, 2.0]})

    users, buys = ids(["ann", "bob", "cy"]), ends(["bob", "ann"], [3, 0])
    cases: list[tuple[str, pa.Table, str]] = [
        (
            "buys",
            ends(["bob", "dan"], [3, 0]),
            r"edge type user:buys:item \(.*buys\.parquet\): column 'src': .*'dan' in edge 1 ",
        ),
        ("buys", ends(["bob", None], [3, 0]), r"buys\.parquet.*expected an id in column 'src', found null in edge 1"),
        ("buys", ends([0, 1], [3, 0]), r"ids of type string, as the nodes have them, found int64; .* numbers of rows"),
        ("buys", ends(["bob", "ann"], ["x", "y"]), r"by ids of type string; expected the ids of node type item"),
        ("buys", ends(["bob", "ann"], [3, 9]), r"expected node ids from 0 to 3, found destination 9 in edge 1"),
        ("users", ids(["ann", "bob", "ann"]), r"users\.parquet.*every id once, found 'ann' in row 0 and in row 2"),
        ("users", ids(["ann", None, "cy"]), r"users\.parquet.*found null in row 1"),
        (
            "users",
            ids([0.5, 1.5, 2.5]),
            r"expected whole numbers, strings, binary or UUID in column 'id', found double",
        ),
    ]
    for wrong, table, message in cases:
        for name, content in (("users", users), ("buys", buys), (wrong, table)):
            pq.write_table(content, tmp_path / f"{name}.parquet")
        before = sorted(tmp_path.iterdir())
        schema = {
            "nodes": {"user": {"table": tmp_path / "users.parquet"}, "item": {"num_nodes": 4}},
            "edges": {"user:buys:item": {"edges": tmp_path / "buys.parquet"}},
        }
        with pytest.raises((InputError, ConfigError), match=message):
            convert(tmp_path / "graph", schema=schema)
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("point", ["shuffle.write", "work.piece", "artifact.sync"])
def test_a_disk_that_is_full_loses_nothing(tmp_path: Path, point: str) -> None:
    pq.write_table(pa.table({"src": ["ann", "bob"], "dst": ["bob", "ann"]}), tmp_path / "edges.parquet")
    schema = {"nodes": {"user": {}}, "edges": {"user:knows:user": {"edges": tmp_path / "edges.parquet"}}}
    with faults.armed(point, OSError(errno.ENOSPC, "no space left")), pytest.raises(OSError, match="no space"):
        convert(tmp_path / "graph", schema=schema)
    assert not (tmp_path / "graph").exists()
    convert(tmp_path / "graph", schema=schema)
    assert {file.name for file in tmp_path.iterdir()} == {"edges.parquet", "graph"}
    assert pq.read_table(tmp_path / "graph" / "ids-user.parquet")["id"].to_pylist() == ["ann", "bob"]
