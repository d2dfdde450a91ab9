"""What is good in the user's own data arrives bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from graphs import FEATURES
from user_data import NUM_NODES, WIDTH, save_arrays, small_data

from diskgnn.errors import ArtifactError, ConfigError, DiskFullError, InputError, OutputExistsError
from diskgnn.files import faults
from diskgnn.formats.row_format import FEATURE_STORAGE, RowFormat
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.graph.relinking import relink
from diskgnn.importers.containers.rows import RowReader, RowSource
from diskgnn.importers.convert import convert


@pytest.fixture
def data() -> dict[str, Any]:
    return small_data()


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


def test_rows_are_taken_across_buffers_that_are_used_again() -> None:
    values, buffer = np.arange(10), np.empty(4, np.int64)

    def chunks() -> Iterator[np.ndarray]:
        for start in range(0, 10, 4):
            part = values[start : start + 4]
            buffer[: len(part)] = part
            yield buffer[: len(part)]

    reader = RowReader(RowSource("values", 10, (), buffer.dtype, chunks))
    assert [reader.take(count).tolist() for count in (1, 6, 3)] == [[0], [1, 2, 3, 4, 5, 6], [7, 8, 9]]


def test_arrays_and_files_give_the_same_artifact(tmp_path: Path, data: dict[str, Any]) -> None:
    report = convert(tmp_path / "from-arrays", **data)
    convert(tmp_path / "from-files", **save_arrays(tmp_path, data))
    graph, other = Graph.open(tmp_path / "from-arrays"), Graph.open(tmp_path / "from-files")
    assert_holds(graph, data)
    assert graph.manifest.digest == other.manifest.digest
    assert graph.manifest.config == {
        "node_types": [{
            "name": "node", "num_nodes": NUM_NODES, "feature_dtype": "float32", "feature_width": WIDTH,
            "target": {"kind": "class", "num_outputs": 4}, "has_times": False,
        }],
        "edge_types": [{
            "type": "node:to:node", "num_edges": 300, "has_ids": False, "has_weights": False, "has_times": False,
            "link_splits": [],
        }],
        "reverse": False, "self_loops": False, "drop_duplicates": False,
    }  # fmt: skip
    assert (report.stage, report.details["num_edges"], report.details["train"]) == ("convert", 300, 20)
    assert report.read_bytes == 0
    assert report.written_bytes == graph.manifest.total_bytes
    verify_artifact(tmp_path / "from-files")


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


@pytest.mark.parametrize("dtype", [dtype for dtype in FEATURE_STORAGE if dtype != "int4"])
@pytest.mark.parametrize("width", [1, 7, 100, 1433])
def test_feature_dtypes_and_widths(tmp_path: Path, data: dict[str, Any], dtype: str, width: int) -> None:
    rng = np.random.default_rng(4)
    storage = np.dtype(FEATURE_STORAGE[dtype])
    features = rng.integers(0, 100, (NUM_NODES, width)).astype(storage)
    given = save_arrays(tmp_path, {**data, "features": features})
    for options in ({}, {"reference_features": True}):
        convert(tmp_path / "graph", **given, bfloat16=dtype == "bfloat16", overwrite=True, **options)
        graph = Graph.open(tmp_path / "graph")
        np.testing.assert_array_equal(graph.features, features)
        assert graph.features.dtype == storage
        assert graph.feature_file.rows == RowFormat(dtype, width)
        raw = graph.feature_file.path.read_bytes()[graph.feature_file.data_offset_bytes :]
        assert raw == features.tobytes()
        verify_artifact(tmp_path / "graph")


def test_referenced_features_stay_where_they_are(tmp_path: Path, data: dict[str, Any]) -> None:
    given = save_arrays(tmp_path, data)
    convert(tmp_path / "copied", **given)
    report = convert(tmp_path / "referenced", **given, reference_features=True)
    referenced = Graph.open(tmp_path / "referenced")
    assert not (tmp_path / "referenced" / FEATURES).exists()
    assert referenced.feature_file.path == tmp_path / "features.npy"
    assert report.written_bytes < referenced.manifest.total_bytes
    # Where they lie does not matter to what is made from the graph.
    assert referenced.manifest.digest == Graph.open(tmp_path / "copied").manifest.digest
    assert "features.npy" not in str(referenced.manifest.config)
    os.utime(tmp_path / "features.npy", (0, 2_000_000_000))  # as a copy has it, and a clock that is wrong
    relink_it = r"features.npy was changed after .*diskgnn relink \S+ --features \S+ --verify.*diskgnn convert"
    with pytest.raises(ArtifactError, match=relink_it):
        Graph.open(tmp_path / "referenced")
    relink(tmp_path / "referenced", tmp_path / "features.npy", verify=True)
    Graph.open(tmp_path / "referenced")
    np.save(tmp_path / "features.npy", data["features"] + 1)
    with pytest.raises(ArtifactError, match=relink_it):
        Graph.open(tmp_path / "referenced")
    with pytest.raises(ArtifactError):
        relink(tmp_path / "referenced", tmp_path / "features.npy", verify=True)
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
        data["features"] = save_arrays(tmp_path, data)["features"]
    with pytest.raises(ConfigError, match=r"only as a \.npy file in C order.*leave it out"):
        convert(tmp_path / "graph", **data, reference_features=True)
    convert(tmp_path / "graph", **data)
    features = data["features"] if isinstance(data["features"], np.ndarray) else np.load(data["features"])
    np.testing.assert_array_equal(Graph.open(tmp_path / "graph").features, features)


def test_masks_and_missing_splits(tmp_path: Path, data: dict[str, Any]) -> None:
    mask = np.zeros(NUM_NODES, bool)
    mask[[3, 1, 7]] = True
    convert(tmp_path / "graph", **{**data, "train": mask, "valid": None, "test": None})
    graph = Graph.open(tmp_path / "graph")
    assert {split: ids.tolist() for split, ids in graph.splits.items()} == {"train": [1, 3, 7]}


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
    with pytest.raises(InputError, match="pass num_classes=10001"):
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


def test_torch_tensors(tmp_path: Path, data: dict[str, Any]) -> None:
    import torch

    tensors = {k: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for k, v in data.items()}
    convert(tmp_path / "graph", **tensors)
    assert_holds(Graph.open(tmp_path / "graph"), data)


def test_an_output_that_exists(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "graph", **data)
    digest = Graph.open(tmp_path / "graph").manifest.digest
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        convert(tmp_path / "graph", **data)
    with pytest.raises(InputError):
        convert(tmp_path / "graph", **{**data, "train": []}, overwrite=True)
    assert Graph.open(tmp_path / "graph").manifest.digest == digest
    convert(tmp_path / "graph", **data, self_loops=True, overwrite=True)
    assert Graph.open(tmp_path / "graph").manifest.digest != digest


def test_a_full_disk(tmp_path: Path, data: dict[str, Any]) -> None:
    with faults.pretending("disk.free", 1000), pytest.raises(DiskFullError, match=r"graph needs .* bytes are missing"):
        convert(tmp_path / "graph", **data)
    assert list(tmp_path.iterdir()) == []


def test_features_inside_the_output_are_not_deleted(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "graph", **data)
    features = tmp_path / "graph" / FEATURES
    changed = {**data, "features": features, "reference_features": True, "overwrite": True}
    with pytest.raises(OutputExistsError, match="would be deleted"):
        convert(tmp_path / "graph", **changed)
    np.testing.assert_array_equal(np.load(features), data["features"])
