"""What is bad in the user's own data is refused with a clear error, or warned about."""

from __future__ import annotations

import os
import re
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from user_data import NUM_NODES, save_arrays, small_data

from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.files import faults
from diskgnn.formats.row_format import FEATURE_STORAGE, RowFormat
from diskgnn.graph.artifact_description import describe
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.importers.seed_tables import read_target
from diskgnn.importers.tables.table import TableColumns
from diskgnn.importers.value_scan import ValueScan


@pytest.fixture
def data() -> dict[str, Any]:
    return small_data()


BAD = [
    # what is changed, error, what the message must say
    ({"edges": [[0, 1, 2], [1, 50, 3]]}, InputError, r"from 0 to 49, found destination 50 in edge 1 "),
    ({"edges": [[0, 1, -2], [1, 0, 3]]}, InputError, r"from 0 to 49, found source -2 in edge 2 "),
    ({"edges": np.array([[0, 2**63], [1, 2]], np.uint64)}, InputError, r"found source 9223372036854775808 in edge 1 "),
    (
        {"edges": [[0.5, 1], [1, 2]]},
        InputError,
        r"edges: expected whole numbers, found fractional.* such as 0.5\), .*another array that was meant\?$",
    ),
    (
        {"edges": [[1.0, 1], [1, 2]]},
        InputError,
        r"edges: expected whole numbers, found fractional.*astype\(np.int64\)",
    ),
    ({"edges": np.ones((2, 3), bool)}, InputError, r"edges: expected whole numbers, found truth values"),
    ({"edges": np.ones((3, 3), int)}, InputError, r"edges: expected shape \[2, E\] or \[E, 2\], found \[3, 3\]"),
    ({"edges": np.ones(3, int)}, InputError, r"edges: expected shape .* found \[3\]"),
    ({"edges": np.array([["a", "b"], ["c", "d"]])}, ConfigError, r"edges: source names nodes by ids of type string; "),
    ({"edges": "missing.npy"}, InputError, r"edges: expected a \.npy file, found no file missing\.npy"),
    ({"edges": None}, ConfigError, r"either `edges`, or `indptr` and `indices`; found neither"),
    (
        {"edges": None, "ids": np.arange(50) + 7, "train": None},
        ConfigError,
        r"either `edges`, or `indptr` and `indices`; found neither",
    ),
    ({"indptr": [0]}, ConfigError, r"found `edges` and `indptr`"),
    ({"edges": None, "indptr": [0]}, ConfigError, r"found `indptr`"),
    ({"edges": None, "indices": [0]}, ConfigError, r"found `indices`"),
    ({"features": None}, ConfigError, r"features: expected an array .*or a table of the nodes .*found neither"),
    (
        {"labels": None, "train": None},
        ConfigError,
        r"labels: expected one for each node of valid and test, found none; .*leave out `valid` and `test`",
    ),  # but other splits
    (
        {"train": None, "valid": None, "test": None},
        ConfigError,
        r"train: expected the nodes to train on, found none; pass `train`, or random_split='0.8,0.1,0.1'",
    ),
    (
        {"features": np.ones((49, 3), np.float32)},
        InputError,
        r"labels: expected 49 rows .*as features says.* found 50",
    ),
    ({"features": np.ones((0, 3), np.float32)}, InputError, r"features: expected a row per node, found none"),
    (
        {"features": np.ones((50, 3), object)},
        InputError,
        r"found dtype object; save np.array\(array.tolist\(\), np.float32",
    ),
    ({"num_nodes": 60}, InputError, r"features: expected 60 rows .*the number of nodes given says.* found 50"),
    ({"features": np.ones((50, 0), np.float32)}, InputError, r"\[N, D\] with D of at least 1, found \[50, 0\]"),
    ({"features": np.ones(50, np.float32)}, InputError, r"\[N, D\] with D of at least 1, found \[50\]"),
    ({"features": np.ones((50, 3), np.int64)}, InputError, r"found int64; save features.astype\(np.float32\)"),
    ({"features": np.ones((50, 3), np.uint16)}, ConfigError, r"found uint16; pass bfloat16=True"),
    ({"bfloat16": True}, ConfigError, r"bfloat16 is stored as uint16, found float32"),
    (
        {"labels": np.zeros((50, 2), int)},
        InputError,
        r"labels: expected shape \[N\], found \[50, 2\]",
    ),
    ({"labels": np.zeros(50)}, InputError, r"labels: expected whole numbers .* found dtype float64.*np.where"),
    (
        {"labels": np.arange(50) + 0.5},
        InputError,
        r"labels: .* found dtype float64 and 0.5; .*`task: regression` in a `s",
    ),
    ({"labels": np.zeros(49, int)}, InputError, r"labels: expected 50 rows .* found 49"),
    (
        {"labels": [0] * 30 + [-2] + [0] * 19},
        InputError,
        r"labels: expected 0 or more, or -1 .* found -2 at node 30",
    ),
    (
        {"labels": [0] * 30 + [5] + [0] * 19, "num_classes": 5},
        InputError,
        r"expected 0 to 4, .* found 5 at node 30",
    ),
    (
        {"labels": np.array([0] * 30 + [2**64 - 1] + [0] * 19, np.uint64)},
        InputError,
        r"labels: expected 0 or more, or -1 .* found 9223372036854775807 or more at node 30",
    ),
    (
        {"labels": np.array([0] * 30 + [2**64 - 1] + [0] * 19, np.uint64), "num_classes": 5},
        InputError,
        r"expected 0 to 4, .* found 9223372036854775807 or more at node 30",
    ),
    (
        {"labels": [0] * 30 + [10**12] + [-1] + [0] * 18},
        InputError,
        r"found 1000000000000 at node 30, .* than the 49 nodes with a label.*num_classes=1000000000001 if",
    ),
    ({"num_classes": 0}, ConfigError, r"num_classes: expected at least 1, found 0"),
    ({"train": []}, InputError, r"train: expected node ids, found none; leave it out"),
    ({"train": np.zeros(50, bool)}, InputError, r"train: expected node ids, found none"),
    ({"valid": []}, InputError, r"valid: expected node ids, found none; leave it out"),
    ({"train": np.zeros(51, bool)}, InputError, r"train: expected a mask of 50 nodes, found one of 51"),
    ({"train": [0, 1, 50]}, InputError, r"train: expected node ids from 0 to 49, found 50 at position 2"),
    ({"test": [-1]}, InputError, r"test: expected node ids from 0 to 49, found -1 at position 0"),
    ({"train": [0.5]}, InputError, r"train: expected whole numbers, found fractional.* such as 0.5\), .*\?$"),
    (
        {"train": [[1, 2]]},
        InputError,
        r"train: expected node ids or a mask, one-dimensional, found shape \[1, 2\]",
    ),
    ({"train": [1, 41, 45]}, InputError, r"train: 2 of 3 nodes have no label \(-1\), the first of them node 41"),
    ({"memory": "much"}, ConfigError, r"expected a size such as 512MiB"),
    ({"memory": 50}, ConfigError, r"memory: expected at least .* in-edges"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_input(tmp_path: Path, data: dict[str, Any], change: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        convert(tmp_path / "graph", **{**data, **change})
    assert list(tmp_path.iterdir()) == []


CSC_BAD = [
    ({"indptr": [0, 3, 2, 5]}, r"indptr: expected non-decreasing numbers, found 3 and then 2 at node 1"),
    ({"indptr": [1, 2, 3, 5]}, r"indptr: expected 0 at the start, found 1"),
    ({"indptr": [0, 2, 3, 4]}, r"indptr: expected the number of indices, 5, at the end, found 4"),
    ({"indptr": [0, 2, 5]}, r"features: expected 2 rows \(one per node, as indptr says\), found 3"),
    ({"indptr": [0.0, 2, 3, 5]}, r"indptr: expected whole numbers, found fractional"),
    ({"indptr": []}, r"indptr: expected whole numbers|expected indptr \[N\+1\]"),
    ({"indptr": [[0, 2, 3, 5]]}, r"expected indptr \[N\+1\] and indices \[E\], found shapes \[1, 4\] and \[5\]"),
    ({"indices": [0, 1, 2, 0, 3]}, r"from 0 to 2, found source 3 in edge 4 "),
    ({"indices": [0, 1, 2, 0, 0.5]}, r"indices: expected whole numbers, found fractional"),
]


@pytest.mark.parametrize(("change", "message"), CSC_BAD, ids=[message for _, message in CSC_BAD])
def test_bad_csc(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = {
        "indptr": [0, 2, 3, 5], "indices": [0, 1, 2, 0, 1], "features": np.ones((3, 2), np.float32),
        "labels": [0, 1, 0], "train": [0], "memory": "1MiB",
    }  # fmt: skip
    convert(tmp_path / "good", **good)
    assert Graph.open(tmp_path / "good").indices.tolist() == [1, 0, 2, 1, 0]  # by hash
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "bad", **{**good, **change})
    assert not (tmp_path / "bad").exists()


def test_damaged_files(tmp_path: Path, data: dict[str, Any]) -> None:
    given = save_arrays(tmp_path, data)
    content = given["features"].read_bytes()
    for damaged, message in ((content[:-1], "not a complete"), (content[:40], "not a complete"),
                             (b"PK" + content, "not a complete"), (b"", "not a complete")):  # fmt: skip
        given["features"].write_bytes(damaged)
        with pytest.raises(InputError, match=f"features: .*features.npy is {message}"):
            convert(tmp_path / "graph", **given)
    np.savez(tmp_path / "several.npz", data["features"])
    with pytest.raises(InputError, match="holds several arrays"):
        convert(tmp_path / "graph", **{**given, "features": tmp_path / "several.npz"})
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="features"):
        convert(tmp_path / "graph", **{**given, "features": tmp_path / "objects.npy"})


def test_a_mask_of_numbers_is_not_taken_for_ids(tmp_path: Path, data: dict[str, Any]) -> None:
    mask = np.zeros(NUM_NODES, np.uint8)
    mask[:20] = 1
    with pytest.raises(InputError, match=r"mask.astype\(bool\)"):
        convert(tmp_path / "graph", **{**data, "train": mask})


def test_float64_becomes_float32_with_a_warning(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.warns(DataWarning, match=r"float64 and become float32.*astype\(np.float32\)"):
        convert(tmp_path / "graph", **{**data, "features": data["features"].astype(np.float64)})
    np.testing.assert_array_equal(Graph.open(tmp_path / "graph").features, data["features"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("reference", [False, True])
def test_nan_is_counted(tmp_path: Path, data: dict[str, Any], dtype: str, reference: bool) -> None:
    features = data["features"].copy()
    features[[5, 5, 9], [0, 3, 6]] = np.nan
    features[12, 1] = -np.inf
    bfloat16 = (features.view(np.uint32) >> 16).astype(np.uint16)
    features = bfloat16 if dtype == "bfloat16" else features.astype(dtype)
    given = save_arrays(tmp_path, {**data, "features": features})
    with pytest.warns(
        DataWarning, match=r"3 NaN values and 1 infinite value in 3 nodes, the first at node 5, column 0"
    ):
        convert(tmp_path / "graph", **given, bfloat16=dtype == "bfloat16", reference_features=reference)
    np.testing.assert_array_equal(Graph.open(tmp_path / "graph").features, features)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_scans_count_like_numpy(dtype: str, draw: st.DataObject) -> None:
    shape = (draw.draw(st.integers(1, 30)), draw.draw(st.integers(1, 9)))
    width, size = (4 if dtype == "float32" else 2), shape[0] * shape[1]
    data = draw.draw(st.binary(min_size=width * size, max_size=width * size))
    stored = np.frombuffer(data, FEATURE_STORAGE[dtype]).reshape(shape)
    values = (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else stored
    scan = ValueScan(RowFormat(dtype, shape[1]))
    scan.add(stored[: shape[0] // 2])
    scan.add(stored[shape[0] // 2 :])
    unusual = ~np.isfinite(values) | (np.abs(values.astype(np.float64)) > 1e6)
    places = np.argwhere(unusual)
    first = places[0].tolist() if len(places) else [0, 0]
    infinite = np.isinf(values).sum()
    assert astuple(scan.counts) == (
        np.isnan(values).sum(), infinite, unusual.sum() - np.isnan(values).sum() - infinite,
        unusual.any(axis=1).sum(), *first,
    )  # fmt: skip


def test_what_is_proposed_for_infinite_features_works(tmp_path: Path, data: dict[str, Any]) -> None:
    features = data["features"].copy()
    features[12, 1], features[20, 0] = -np.inf, np.nan
    with pytest.warns(DataWarning, match="not finite") as told:
        convert(tmp_path / "graph", **{**data, "features": features})
    call = re.search(r"np\.nan_to_num\(features.*?\)", str(told[0].message))
    assert call is not None
    proposed = eval(call.group(), {"np": np, "features": features})
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        convert(tmp_path / "mended", **{**data, "features": proposed})


def test_features_that_are_finite_but_extreme_are_told(tmp_path: Path, data: dict[str, Any]) -> None:
    features = np.nan_to_num(np.where(np.arange(data["features"].size).reshape(data["features"].shape) == 23, np.inf,
                                      data["features"])).astype(np.float32)  # fmt: skip
    with pytest.warns(DataWarning, match=r"1 value beyond ±1,000,000 in 1 node, the first at node .*scale or clip"):
        convert(tmp_path / "graph", **{**data, "features": features})
    assert describe(tmp_path / "graph").facts["unusual_values"] == "1 value beyond ±1,000,000"


@pytest.mark.parametrize("after", range(6))
def test_counts_of_a_killed_run_are_kept(tmp_path: Path, data: dict[str, Any], after: int) -> None:
    features = data["features"].copy()
    features[[5, 5, 9], [0, 3, 6]] = np.nan
    edge_features = np.ones((data["edges"].shape[1], 2), np.float32)
    edge_features[7, 1] = np.inf
    nodes = {"node": {"features": save(tmp_path / "x.npy", features)}}
    edges = {"edges": save(tmp_path / "e.npy", data["edges"]), "features": save(tmp_path / "f.npy", edge_features)}
    schema = {"nodes": nodes, "edges": {"node:to:node": edges}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        convert(tmp_path / "whole", schema=schema)
        with suppress(KeyboardInterrupt), faults.armed("unit.written", KeyboardInterrupt(), after=after):
            convert(tmp_path / "killed", schema=schema)
        if not (tmp_path / "killed").exists():
            convert(tmp_path / "killed", schema=schema)
    whole, again = Graph.open(tmp_path / "whole"), Graph.open(tmp_path / "killed")
    assert whole.manifest.digest == again.manifest.digest
    assert astuple(again.only_nodes("test").config.values) == (3, 0, 0, 2, 5, 0)
    assert astuple(again.only_edges("test").config.values) == (0, 1, 0, 1, 7, 1)


def save(path: Path, array: npt.NDArray[Any]) -> Path:
    np.save(path, array)
    return path


def test_split_warnings(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.warns(DataWarning, match="train: 2 of 5 node ids occur before; each node is kept once"):
        convert(tmp_path / "twice", **{**data, "train": [4, 2, 4, 9, 2]})
    assert Graph.open(tmp_path / "twice").splits["train"].tolist() == [4, 2, 9]
    with pytest.warns(DataWarning, match="2 nodes are both in train and in test"):
        convert(tmp_path / "overlap", **{**data, "test": [3, 4, 35]})
    assert Graph.open(tmp_path / "overlap").splits["test"].tolist() == [3, 4, 35]


@contextmanager
def as_nobody() -> Iterator[None]:
    """As a user who may not read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_what_may_not_be_read_is_named(data: dict[str, Any]) -> None:
    with TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o777)
        files = save_arrays(folder, data)
        convert(folder / "graph", **files)
        graph = Graph.open(folder / "graph")
        raw, seeds = folder / "features.bin", folder / "seeds.csv"
        data["features"].tofile(raw)
        seeds.write_text("id\n1\n")
        width = data["features"].shape[1]
        for file, changed in (
            (Path(files["features"]), {}),
            (Path(files["edges"]), {}),
            (raw, {"features": f"raw:float32:{width}:{raw}"}),
        ):
            file.chmod(0)
            with (
                as_nobody(),
                pytest.raises(InputError, match=f"you have no permission to read .*{re.escape(file.name)}"),
            ):
                convert(folder / "out", **{**files, **changed})
            file.chmod(0o644)
        seeds.chmod(0)
        with as_nobody(), pytest.raises(InputError, match=r"you have no permission to read .*seeds\.csv"):
            read_target(graph, {"train": seeds})
        assert not (folder / "out").exists()


def test_a_list_of_two_pairs_may_be_meant_otherwise(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.warns(DataWarning, match=r"a list of shape \[2, 2\] is read as \[2, E\]"):
        convert(tmp_path / "list", **{**data, "edges": [[0, 1], [5, 6]]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(tmp_path / "array", **{**data, "edges": np.array([[0, 1], [5, 6]])})
    assert Graph.open(tmp_path / "list").manifest.digest == Graph.open(tmp_path / "array").manifest.digest


def test_a_graph_without_edges_is_made_with_a_warning(data, tmp_path):
    with pytest.warns(DataWarning, match="the graph has no edges"):
        convert(tmp_path / "out", **{**data, "edges": np.zeros((2, 0), np.int64)})


def test_keywords_that_there_are_not_say_what_was_meant(tmp_path: Path):
    for wrong, told in (
        ("embed_text", r"'embed_text'; pass columns=TableColumns\(encode={"),
        ("val_timestamp", r"'val_timestamp'; pass options={'val_timestamp': ...}"),
        ("option", "'option'; did you mean 'options'"),
        ("xyzzy", "'xyzzy'$"),
    ):
        with pytest.raises(TypeError, match=f"^convert: got an unexpected keyword argument {told}"):
            convert(tmp_path / "graph", source="sqlite:shop.db", **{wrong: 1})


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_folder_is_no_database(tmp_path: Path, kind: str):
    (tmp_path / "shop").mkdir()
    with pytest.raises(InputError, match=r"file of a database, found the folder .*shop; .* format='relational'"):
        convert(tmp_path / "graph", source=tmp_path / "shop", format=kind)


def test_columns_of_a_database_are_left_out_by_either_name(tmp_path: Path):
    """`columns` has `exclude`, too, for tables that are files."""
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.executescript(
            "CREATE TABLE users (id INTEGER PRIMARY KEY, age REAL, left INTEGER); INSERT INTO users VALUES (1, 2, 0);"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, user INTEGER REFERENCES users);"
            "INSERT INTO orders VALUES (1, 1);"
        )
    connection.close()
    given = {"source": tmp_path / "shop.db", "overwrite": True}
    digests = set()
    for said in ({"exclude": ["users.left"]}, {"columns": TableColumns(exclude=["users.left"])}):
        convert(tmp_path / "graph", **given, **said)
        digests.add(Graph.open(tmp_path / "graph").manifest.digest)
    assert len(digests) == 1
    convert(tmp_path / "whole", source=tmp_path / "shop.db")
    for said in ({"exclude": ["users.left"]}, {"columns": TableColumns(exclude=["users.left"])}):
        convert(tmp_path / "graph", **given, **said, encoding_of=tmp_path / "whole")
        assert "left" not in {each.name for each in Graph.open(tmp_path / "graph").nodes["users"].config.columns or ()}
    with pytest.raises(ConfigError, match=r"exclude: expected .* found 'users.lft'.*did you mean 'users.left'"):
        convert(tmp_path / "graph", **given, columns=TableColumns(exclude=["users.lft"]))
