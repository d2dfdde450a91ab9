"""Importing the user's own data: what is good arrives bit for bit, what is bad is refused with a clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn.errors import ArtifactError, ConfigError, DataWarning, DiskFullError, InputError, OutputExistsError
from diskgnn.storage.row_format import FEATURE_STORAGE
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.storage import artifacts

NUM_NODES, WIDTH = 50, 7


@pytest.fixture
def data() -> dict[str, Any]:
    """A small graph, in memory."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, NUM_NODES)
    labels[40:] = -1
    return {
        "edges": rng.integers(0, NUM_NODES, (2, 300)),
        "features": rng.standard_normal((NUM_NODES, WIDTH), np.float32),
        "labels": labels,
        "train": np.arange(20)[::-1],
        "valid": np.arange(20, 30),
        "test": np.arange(30, 40),
        "memory": "1MiB",
    }


def save(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The same with every array in a .npy file."""
    for name, value in data.items():
        if isinstance(value, np.ndarray):
            np.save(folder / f"{name}.npy", value)
    return {k: folder / f"{k}.npy" if isinstance(v, np.ndarray) else v for k, v in data.items()}


def to_scipy(graph: Graph) -> scipy.sparse.csc_array:
    ones = np.ones(graph.num_edges, np.int64)
    return scipy.sparse.csc_array((ones, graph.indices, graph.indptr), (graph.num_nodes,) * 2)


def assert_holds(graph: Graph, data: dict[str, Any]) -> None:
    src, dst = data["edges"]
    expected = scipy.sparse.coo_array((np.ones(len(src), np.int64), (src, dst)), (graph.num_nodes,) * 2)
    assert (to_scipy(graph) != expected.tocsc()).nnz == 0
    np.testing.assert_array_equal(graph.features, data["features"])
    np.testing.assert_array_equal(graph.labels, data["labels"])
    assert graph.labels.dtype == np.int64
    assert list(graph.splits) == ["train", "valid", "test"]
    for split, ids in graph.splits.items():
        assert ids.dtype == np.int64
        np.testing.assert_array_equal(ids, data[split])


def test_arrays_and_files_give_the_same_artifact(tmp_path: Path, data: dict[str, Any]) -> None:
    report = convert(tmp_path / "from-arrays", **data)
    convert(tmp_path / "from-files", **save(tmp_path, data))
    graph, other = Graph.open(tmp_path / "from-arrays"), Graph.open(tmp_path / "from-files")
    assert_holds(graph, data)
    assert graph.manifest.digest == other.manifest.digest
    assert graph.manifest.config == {
        "num_nodes": NUM_NODES, "num_edges": 300, "num_classes": 4,
        "feature_dtype": "float32", "feature_width": WIDTH,
        "reverse": False, "self_loops": False, "drop_duplicates": False,
    }  # fmt: skip
    assert (report.stage, report.details["num_edges"], report.details["train"]) == ("convert", 300, 20)
    assert report.read_bytes == 0
    assert report.written_bytes == graph.manifest.total_bytes
    artifacts.verify_artifact(tmp_path / "from-files")


def test_edge_list_layouts(tmp_path: Path, data: dict[str, Any]) -> None:
    edges = data["edges"]
    layouts = [
        edges, edges.T, np.asfortranarray(edges), np.ascontiguousarray(edges.T), edges.astype(np.uint16),
        edges.tolist(), edges.astype(">i4"), edges.astype(np.int32), edges.astype(np.uint64),
    ]  # fmt: skip
    digests = set()
    for number, layout in enumerate(layouts):
        convert(tmp_path / str(number), **{**data, "edges": layout})
        digests.add(Graph.open(tmp_path / str(number)).manifest.digest)
        np.save(tmp_path / "edges.npy", layout)
        convert(tmp_path / f"{number}-file", **{**data, "edges": str(tmp_path / "edges.npy")})
        digests.add(Graph.open(tmp_path / f"{number}-file").manifest.digest)
    assert len(digests) == 1


def test_two_edges_are_taken_as_rows(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "graph", **{**data, "edges": np.array([[1, 2], [3, 4]])})
    assert to_scipy(Graph.open(tmp_path / "graph")).nonzero()[0].tolist() == [1, 2]


def test_csc_input_equals_edge_list(tmp_path: Path, data: dict[str, Any]) -> None:
    src, dst = data["edges"]
    order = np.argsort(dst, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=NUM_NODES))])
    for options in ({}, {"reverse": True, "self_loops": True, "drop_duplicates": True}):
        convert(tmp_path / "list", **data, **options, overwrite=True)
        csc = {**data, "indptr": indptr, "indices": src[order].astype(np.int32), **options}
        del csc["edges"]
        convert(tmp_path / "csc", **csc, overwrite=True)
        assert Graph.open(tmp_path / "csc").manifest.digest == Graph.open(tmp_path / "list").manifest.digest


@pytest.mark.parametrize("dtype", list(FEATURE_STORAGE))
@pytest.mark.parametrize("width", [1, 7, 100, 1433])
def test_feature_dtypes_and_widths(tmp_path: Path, data: dict[str, Any], dtype: str, width: int) -> None:
    rng = np.random.default_rng(4)
    storage = np.dtype(FEATURE_STORAGE[dtype])
    features = rng.integers(0, 100, (NUM_NODES, width)).astype(storage)
    given = save(tmp_path, {**data, "features": features})
    for options in ({}, {"reference_features": True}):
        convert(tmp_path / "graph", **given, bfloat16=dtype == "bfloat16", overwrite=True, **options)
        graph = Graph.open(tmp_path / "graph")
        np.testing.assert_array_equal(graph.features, features)
        assert graph.features.dtype == storage
        assert (graph.feature_file.dtype, graph.feature_file.width) == (dtype, width)
        raw = graph.feature_file.path.read_bytes()[graph.feature_file.data_offset_bytes :]
        assert raw == features.tobytes()
        artifacts.verify_artifact(tmp_path / "graph")


def test_referenced_features_stay_where_they_are(tmp_path: Path, data: dict[str, Any]) -> None:
    given = save(tmp_path, data)
    convert(tmp_path / "copied", **given)
    report = convert(tmp_path / "referenced", **given, reference_features=True)
    referenced = Graph.open(tmp_path / "referenced")
    assert not (tmp_path / "referenced" / artifacts.FEATURES).exists()
    assert referenced.feature_file.path == tmp_path / "features.npy"
    assert report.written_bytes < referenced.manifest.total_bytes
    # Where they lie does not matter to what is made from the graph.
    assert referenced.manifest.digest == Graph.open(tmp_path / "copied").manifest.digest
    assert "features.npy" not in str(referenced.manifest.config)
    np.save(tmp_path / "features.npy", data["features"] + 1)
    with pytest.raises(ArtifactError, match=r"features.npy was changed after .*diskgnn convert"):
        Graph.open(tmp_path / "referenced")
    (tmp_path / "features.npy").unlink()
    with pytest.raises(ArtifactError, match=r"features.npy.* is not there"):
        Graph.open(tmp_path / "referenced")


@pytest.mark.filterwarnings("ignore:features are float64")
@pytest.mark.parametrize(
    "change",
    [lambda x: x, lambda x: x.astype(np.float64), lambda x: x.astype(">f4"), np.asfortranarray],
    ids=["in memory", "float64", "big-endian", "fortran"],
)
def test_what_cannot_be_referenced(tmp_path: Path, data: dict[str, Any], change: Any) -> None:
    data["features"] = change(data["features"])
    if data["features"].dtype != np.float32 or data["features"].flags.f_contiguous:
        data["features"] = save(tmp_path, data)["features"]
    with pytest.raises(ConfigError, match=r"only as a \.npy file in C order.*drop --ref"):
        convert(tmp_path / "graph", **data, reference_features=True)
    convert(tmp_path / "graph", **data)
    features = data["features"] if isinstance(data["features"], np.ndarray) else np.load(data["features"])
    np.testing.assert_array_equal(Graph.open(tmp_path / "graph").features, features)


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
    given = save(tmp_path, {**data, "features": features})
    with pytest.warns(DataWarning, match=r"3 NaN and 1 infinite values in 3 nodes, the first of them node 5"):
        convert(tmp_path / "graph", **given, bfloat16=dtype == "bfloat16", reference_features=reference)
    np.testing.assert_array_equal(Graph.open(tmp_path / "graph").features, features)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_nan_scan_like_numpy(draw: st.DataObject) -> None:
    from diskgnn.importers.convert import node_data

    shape = (draw.draw(st.integers(1, 30)), draw.draw(st.integers(1, 9)))
    bits = np.frombuffer(draw.draw(st.binary(min_size=2 * shape[0] * shape[1], max_size=2 * shape[0] * shape[1])), "u2")
    values = bits.reshape(shape).view(np.float16)
    scan = node_data._NonFiniteScan("float16")
    scan.add(values[: shape[0] // 2])
    scan.add(values[shape[0] // 2 :])
    assert (scan._nan, scan._infinite) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert scan._nodes == (~np.isfinite(values)).any(axis=1).sum()


def test_masks_and_missing_splits(tmp_path: Path, data: dict[str, Any]) -> None:
    mask = np.zeros(NUM_NODES, bool)
    mask[[3, 1, 7]] = True
    convert(tmp_path / "graph", **{**data, "train": mask, "valid": None, "test": None})
    graph = Graph.open(tmp_path / "graph")
    assert {split: ids.tolist() for split, ids in graph.splits.items()} == {"train": [1, 3, 7]}


def test_split_warnings(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.warns(DataWarning, match="train: 2 of 5 node ids occur before; each node is kept once"):
        convert(tmp_path / "twice", **{**data, "train": [4, 2, 4, 9, 2]})
    assert Graph.open(tmp_path / "twice").splits["train"].tolist() == [4, 2, 9]
    with pytest.warns(DataWarning, match="2 nodes are both in train and in test"):
        convert(tmp_path / "overlap", **{**data, "test": [3, 4, 35]})
    assert Graph.open(tmp_path / "overlap").splits["test"].tolist() == [3, 4, 35]


def test_classes(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "graph", **data, num_classes=10)
    assert Graph.open(tmp_path / "graph").num_classes == 10
    for unsigned in (np.uint8, np.uint16, np.uint64):
        labels = np.maximum(data["labels"], 0).astype(unsigned)
        convert(tmp_path / "graph", **{**data, "labels": labels}, overwrite=True)
        np.testing.assert_array_equal(Graph.open(tmp_path / "graph").labels, labels)


def test_labels_that_can_hardly_be_classes_need_num_classes(tmp_path: Path, data: dict[str, Any]) -> None:
    data["labels"][7] = 9999
    convert(tmp_path / "few", **data)
    assert Graph.open(tmp_path / "few").num_classes == 10_000
    data["labels"][7] = 10_000
    with pytest.raises(InputError, match="pass --num-classes 10001"):
        convert(tmp_path / "many", **data)
    convert(tmp_path / "many", **data, num_classes=10_001)
    assert Graph.open(tmp_path / "many").num_classes == 10_001


def test_one_node_without_edges(tmp_path: Path) -> None:
    convert(tmp_path / "graph", edges=np.empty((2, 0), np.int64), features=np.ones((1, 1), np.int8), labels=[0],
            train=[0], memory="1MiB")  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (1, 0, 1)
    convert(tmp_path / "loop", edges=np.empty((0, 2), np.int64), features=np.ones((1, 1), np.int8), labels=[0],
            train=[0], self_loops=True, memory="1MiB")  # fmt: skip
    assert Graph.open(tmp_path / "loop").indices.tolist() == [0]


BAD = [
    # what is changed, error, what the message must say
    ({"edges": [[0, 1, 2], [1, 50, 3]]}, InputError, r"from 0 to 49, found destination 50 in edge 1 "),
    ({"edges": [[0, 1, -2], [1, 0, 3]]}, InputError, r"from 0 to 49, found source -2 in edge 2 "),
    ({"edges": np.array([[0, 2**64 - 1], [1, 2]], np.uint64)}, InputError, r"found source \d+ in edge 1 "),
    (
        {"edges": [[0.5, 1], [1, 2]]},
        InputError,
        r"edges: expected whole numbers, found fractional.*astype\(np.int64\)",
    ),
    ({"edges": [[1.0, 1], [1, 2]]}, InputError, r"edges: expected whole numbers, found fractional"),
    ({"edges": np.ones((2, 3), bool)}, InputError, r"edges: expected whole numbers, found truth values"),
    ({"edges": np.ones((3, 3), int)}, InputError, r"edges: expected shape \[2, E\] or \[E, 2\], found \[3, 3\]"),
    ({"edges": np.ones(3, int)}, InputError, r"edges: expected shape .* found \[3\]"),
    ({"edges": np.array([["a", "b"], ["c", "d"]])}, InputError, r"edges: expected numbers, found dtype <U1"),
    ({"edges": "missing.npy"}, InputError, r"edges: expected a \.npy file, found no file missing\.npy"),
    ({"edges": None}, ConfigError, r"either edges, or indptr and indices; found neither"),
    ({"indptr": [0]}, ConfigError, r"found edges and indptr"),
    ({"edges": None, "indptr": [0]}, ConfigError, r"found indptr"),
    ({"edges": None, "indices": [0]}, ConfigError, r"found indices"),
    ({"features": None}, ConfigError, r"found no features"),
    ({"labels": None, "train": None}, ConfigError, r"found no labels and no train"),
    (
        {"features": np.ones((49, 3), np.float32)},
        InputError,
        r"labels: expected 49 rows .*as features says.* found 50",
    ),
    ({"num_nodes": 60}, InputError, r"features: expected 60 rows .*the number of nodes given says.* found 50"),
    ({"features": np.ones((50, 0), np.float32)}, InputError, r"\[N, D\] with D of at least 1, found \[50, 0\]"),
    ({"features": np.ones(50, np.float32)}, InputError, r"\[N, D\] with D of at least 1, found \[50\]"),
    ({"features": np.ones((50, 3), np.int64)}, InputError, r"found int64; save features.astype\(np.float32\)"),
    ({"features": np.ones((50, 3), np.uint16)}, ConfigError, r"found uint16; pass --bfloat16"),
    ({"bfloat16": True}, ConfigError, r"bfloat16 is stored as uint16, found float32"),
    (
        {"labels": np.zeros((50, 1), int)},
        InputError,
        r"labels: expected shape \[N\], found \[50, 1\].*reshape\(-1\)",
    ),
    ({"labels": np.zeros(50)}, InputError, r"labels: expected whole numbers .* found dtype float64.*np.where"),
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
        r"found 1000000000000 at node 30, .* than the 49 nodes with a label.*--num-classes 1000000000001 if",
    ),
    ({"num_classes": 0}, ConfigError, r"expected at least 1 class, found 0"),
    ({"train": []}, InputError, r"train: expected node ids, found none; training needs"),
    ({"train": np.zeros(50, bool)}, InputError, r"train: expected node ids, found none"),
    ({"valid": []}, InputError, r"valid: expected node ids, found none; leave it out"),
    ({"train": np.zeros(51, bool)}, InputError, r"train: expected a mask of 50 nodes, found one of 51"),
    ({"train": [0, 1, 50]}, InputError, r"train: expected node ids from 0 to 49, found 50 at position 2"),
    ({"test": [-1]}, InputError, r"test: expected node ids from 0 to 49, found -1 at position 0"),
    ({"train": [0.5]}, InputError, r"train: expected whole numbers, found fractional"),
    (
        {"train": [[1, 2]]},
        InputError,
        r"train: expected node ids or a mask, one-dimensional, found shape \[1, 2\]",
    ),
    ({"train": [1, 41, 45]}, InputError, r"train: 2 of 3 nodes have no label \(-1\), the first of them node 41"),
    ({"memory": "much"}, ConfigError, r"expected a size such as 512MiB"),
    ({"memory": 50}, ConfigError, r"in-edges.*Pass --memory"),
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
    assert Graph.open(tmp_path / "good").indices.tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "bad", **{**good, **change})
    assert not (tmp_path / "bad").exists()


def test_damaged_files(tmp_path: Path, data: dict[str, Any]) -> None:
    given = save(tmp_path, data)
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


def test_torch_tensors(tmp_path: Path, data: dict[str, Any]) -> None:
    import torch

    tensors = {k: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for k, v in data.items()}
    convert(tmp_path / "graph", **tensors)
    assert_holds(Graph.open(tmp_path / "graph"), data)
    with pytest.raises(InputError, match=r"view\(torch.uint16\)"):
        convert(tmp_path / "bad", **{**tensors, "features": tensors["features"].to(torch.bfloat16)})


def test_an_output_that_exists(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "graph", **data)
    digest = Graph.open(tmp_path / "graph").manifest.digest
    with pytest.raises(OutputExistsError, match="--overwrite"):
        convert(tmp_path / "graph", **data)
    with pytest.raises(InputError):
        convert(tmp_path / "graph", **{**data, "train": []}, overwrite=True)
    assert Graph.open(tmp_path / "graph").manifest.digest == digest
    convert(tmp_path / "graph", **data, self_loops=True, overwrite=True)
    assert Graph.open(tmp_path / "graph").manifest.digest != digest


def test_a_full_disk(tmp_path: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "free_bytes", lambda folder: 1000)
    with pytest.raises(DiskFullError, match=r"graph needs .* bytes are missing"):
        convert(tmp_path / "graph", **data)
    assert list(tmp_path.iterdir()) == []


def test_a_mask_of_numbers_is_not_taken_for_ids(tmp_path: Path, data: dict[str, Any]) -> None:
    mask = np.zeros(NUM_NODES, np.uint8)
    mask[:20] = 1
    with pytest.raises(InputError, match=r"mask.astype\(bool\)"):
        convert(tmp_path / "graph", **{**data, "train": mask})


def test_features_inside_the_output_are_not_deleted(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "graph", **data)
    features = tmp_path / "graph" / "features.npy"
    changed = {**data, "features": features, "reference_features": True, "overwrite": True}
    with pytest.raises(OutputExistsError, match="would be deleted"):
        convert(tmp_path / "graph", **changed)
    np.testing.assert_array_equal(np.load(features), data["features"])
