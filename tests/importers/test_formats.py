"""What convert reads by the name of a format: the seam, and how wrong sources are called."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import torch
from commands import run, run_python
from user_data import NUM_NODES, save_arrays, small_data

import diskgnn
from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.containers.file_kinds import describe
from diskgnn.importers.containers.rows import EdgeStream, RowSource
from diskgnn.importers.convert import FORMATS, EdgeInput, GraphInput, NodeInput, convert
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE


@pytest.fixture
def data() -> dict[str, Any]:
    return small_data()


def without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


def digest(path: Path) -> dict[str, Any]:
    """The checksums of all files. A digest of the manifest would be of the list of what the source has, too."""
    return Graph.open(path).manifest.files


@pytest.mark.parametrize("stored_as", ["coo", "csr", "csc"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_sparse_matrix_of_scipy(tmp_path: Path, data: dict[str, Any], stored_as: str, compressed: bool) -> None:
    src, dst = data["edges"]
    matrix = scipy.sparse.coo_array((np.ones(len(src)), (src, dst)), (NUM_NODES, NUM_NODES)).asformat(stored_as)
    edges = np.stack(matrix.tocoo().coords)  # csr and csc added up equal edges
    convert(tmp_path / "plain", **{**data, "edges": edges})
    scipy.sparse.save_npz(tmp_path / "matrix.npz", matrix, compressed=compressed)
    rest = without(data, "edges")
    convert(tmp_path / "out", source=tmp_path / "matrix.npz", **rest)
    assert digest(tmp_path / "out") == digest(tmp_path / "plain")
    convert(tmp_path / "weighted", source=tmp_path / "matrix.npz", options={"weights": "true"}, **rest)
    convert(tmp_path / "memory", source=matrix, options={"weights": True}, **rest)
    assert digest(tmp_path / "memory") == digest(tmp_path / "weighted")
    weights = Graph.open(tmp_path / "weighted").edges[ONE_EDGE_TYPE].weights
    assert float(np.sum(weights)) == matrix.sum()


def test_a_sparse_matrix_in_memory_of_any_format_is_square(tmp_path: Path) -> None:
    for number, stored_as in enumerate(("lil", "bsr", "coo")):
        convert(tmp_path / str(number), source=scipy.sparse.eye_array(4, k=1, format=stored_as))
        assert digest(tmp_path / str(number)) == digest(tmp_path / "0")
    with pytest.raises(InputError, match=r"matrix: expected a square matrix, found one of shape \[4, 5\]"):
        convert(tmp_path / "out", source=scipy.sparse.eye_array(4, 5, format="csr"))


def test_a_graph_may_have_nothing_to_learn(tmp_path: Path, data: dict[str, Any]) -> None:
    """As those that `schema` describes."""
    bare = {name: data[name] for name in ("edges", "features")}
    files = save_arrays(tmp_path, bare)
    run("convert", tmp_path / "plain", "--edges", files["edges"], "--features", files["features"])
    convert(tmp_path / "described", schema={
        "nodes": {"node": {"features": data["features"]}}, "edges": {"node:to:node": {"edges": data["edges"]}},
    })  # fmt: skip
    plain, described = (Graph.open(tmp_path / name) for name in ("plain", "described"))
    assert {name: entry.crc32c for name, entry in plain.manifest.files.items()} == {
        name: entry.crc32c for name, entry in described.manifest.files.items()
    }
    assert plain.nodes["node"].labels is None


def test_a_tensor_that_is_trained_is_taken_as_its_numbers(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "plain", **data)
    convert(tmp_path / "out", **{**data, "features": torch.tensor(data["features"], requires_grad=True)})
    assert digest(tmp_path / "out") == digest(tmp_path / "plain")


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_are_seconds_since_1970(tmp_path: Path, unit: str) -> None:
    dates = np.array(["1950-05-13", "1969-12-31", "2024-02-29"], "datetime64[s]")
    given = dates.astype(f"datetime64[{unit}]") + (999_999_999 if unit == "ns" else 0)  # rounded down
    np.save(tmp_path / "dates.npy", given)
    edges = {"node:to:node": {"edges": np.array([[0, 1, 2], [1, 2, 0]]), "times": tmp_path / "dates.npy"}}
    convert(tmp_path / "out", schema={"nodes": {"node": {"times": given}}, "edges": edges})
    graph = Graph.open(tmp_path / "out")
    assert graph.nodes["node"].times.tolist() == dates.astype(int).tolist()
    assert sorted(graph.edges["node", "to", "node"].times.tolist()) == dates.astype(int).tolist()
    times = np.array(["2020-01-01", "NaT"], f"datetime64[{unit}]")
    with pytest.raises(InputError, match="expected a time for each; found none at 1"):
        convert(tmp_path / "wrong", schema={"nodes": {"node": {"times": times}}, "edges": edges})


def test_the_command_line_takes_a_format_and_what_it_lacks(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "plain", **data, reverse=True, quantise="float16")
    src, dst = data["edges"]
    scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.coo_array((np.ones(len(src)), (src, dst)), (NUM_NODES,) * 2))
    files = save_arrays(tmp_path, without(data, "edges"))
    given = [part for name, value in files.items() for part in (f"--{name}", value)]
    command = ["convert", tmp_path / "out", "--from", "auto", tmp_path / "m.npz", *given]
    run(*command, "--reverse", "--quantise", "float16", "--set", "weights=false")
    assert digest(tmp_path / "out") == digest(tmp_path / "plain")
    refused = run(*command, "--overwrite", "--set", "wieghts=false", exit_code=2).stderr
    assert "--set: format scipy takes weights; found 'wieghts'" in " ".join(refused.split())
    assert "weights: expected true or false" in run(*command, "--overwrite", "--set", "weights=3", exit_code=2).stderr
    command[3] = "nosuch"
    assert "--from: expected one of" in run(*command, "--overwrite", exit_code=2).stderr
    assert digest(tmp_path / "out") == digest(tmp_path / "plain")
    said = run("convert", "--help").stdout
    assert all(name in said for name in FORMATS)


def test_streams_stand_where_arrays_do(tmp_path: Path, data: dict[str, Any]) -> None:
    """In pieces of any size, as the same arrays."""
    convert(tmp_path / "plain", **data)

    def rows(name: str, step: int) -> RowSource:
        array = np.asarray(data[name])
        return RowSource(name, len(array), array.shape[1:], array.dtype,
                         lambda: (array[at : at + step] for at in range(0, len(array), step)))  # fmt: skip

    src, dst = data["edges"]
    edges = EdgeStream("edges", len(src), lambda: ((src[at : at + 7], dst[at : at + 7]) for at in range(0, 300, 7)))
    mask = np.zeros(NUM_NODES, bool)
    mask[data["test"]] = True
    masks = RowSource("test", NUM_NODES, (), mask.dtype, lambda: iter([mask[:31], mask[31:]]))
    nodes = NodeInput(features=rows("features", 3), labels=rows("labels", 9), train=rows("train", 8),
                      valid=rows("valid", 1), test=masks)  # fmt: skip
    diskgnn.convert(tmp_path / "out", schema=GraphInput({ONE_NODE_TYPE: nodes}, {ONE_EDGE_TYPE: EdgeInput(edges)}))
    plain, streamed = Graph.open(tmp_path / "plain").manifest, Graph.open(tmp_path / "out").manifest
    assert plain.files == streamed.files


def test_tensors_of_torch_and_labels_in_a_column(tmp_path: Path, data: dict[str, Any]) -> None:
    convert(tmp_path / "plain", **data)
    tensors = {name: torch.as_tensor(np.ascontiguousarray(value)) for name, value in data.items() if name != "memory"}
    tensors["labels"] = tensors["labels"][:, None]
    for name, tensor in tensors.items():
        torch.save(tensor, tmp_path / f"{name}.pt")
    convert(tmp_path / "out", **{name: tmp_path / f"{name}.pt" for name in tensors})
    assert digest(tmp_path / "out") == digest(tmp_path / "plain")
    torch.save(tensors["features"].bfloat16(), tmp_path / "features.pt")
    convert(tmp_path / "narrow", **{name: tmp_path / f"{name}.pt" for name in tensors}, bfloat16=True)
    found = torch.from_numpy(np.array(Graph.open(tmp_path / "narrow").features)).view(torch.bfloat16)
    assert torch.equal(found, tensors["features"].bfloat16())
    torch.save({"x": tensors["features"]}, tmp_path / "features.pt")
    with pytest.raises(InputError, match=r"expected one tensor in .*, found something else"):
        convert(tmp_path / "dict", **{**data, "features": tmp_path / "features.pt"})


def test_wrong_sources(tmp_path: Path, data: dict[str, Any]) -> None:
    rest = without(data, "edges")
    for arguments, error, message in (
        ({"source": tmp_path / "none"}, InputError, "source: expected a file or folder, found none at"),
        ({"source": tmp_path, "format": "scipy"}, InputError, "expected a matrix .* found a folder"),
        ({"source": tmp_path}, ConfigError, r"found a folder \(empty\).*The formats are:\n"),
        ({"source": object()}, ConfigError, "found an object of type object"),
        ({"source": tmp_path, "edges": [[0], [1]]}, ConfigError, "edges: the data set .* leave out `edges`"),
        ({"edges": [[0], [1]], "format": "scipy"}, ConfigError, "format: expected a data set that it is about"),
        ({"schema": {}, "source": tmp_path}, ConfigError, "schema: it says all .* leave out the data set of `format`"),
    ):
        with pytest.raises(error, match=message):
            convert(tmp_path / "out", **({} if "schema" in arguments else rest), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_wrong_files_are_called_what_they_are(tmp_path: Path, data: dict[str, Any]) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("src,dst\n0,1\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"0,1\n1,2\n"))
    (tmp_path / "a.txt").write_text("# Nodes: 2\n0\t1\n")
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([1, 2]))
    (tmp_path / "a.db").write_bytes(b"m\x86\xf9)\xc1'4xDUCK\xe7\x03\0\0")  # as DuckDB 2.0 writes
    (tmp_path / "empty").touch()
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    for name, expected in (
        ("a.parquet", "a Parquet file"), ("a.csv", "a CSV file"), ("a.csv.gz", "a compressed CSV file"),
        ("a.txt", "a text file"), ("a.h5", "an HDF5 file"), ("a.pkl", "a Python pickle"), ("empty", "an empty file"),
        ("a.db", "a DuckDB database; `diskgnn convert` takes it with format=.duckdb."),
        ("objects.npy", "holds pickled Python objects"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"features: .*{expected}"):
            convert(tmp_path / "out", **{**data, "features": tmp_path / name})
    assert describe(tmp_path).startswith("a folder of Parquet files")


def test_the_benchmark_runs(tmp_path: Path) -> None:
    """On a tiny data set, so that it cannot rot; the three layouts hold the same edges."""
    tool = Path(__file__).parents[2] / "tools" / "bench_importing.py"
    arguments = ["--nodes=2000", "--edges=5000", "--width=8", "--memory=128MiB", "--spare=none", "--compressed"]
    done = run_python(
        tool, tmp_path / "bench", *arguments,
        env={**os.environ, "PYTHONPATH": str(tool.parents[1])}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["layout"] for record in records] == ["ogb", "igb", "parquet"]
    assert all((record["num_nodes"], record["num_edges"]) == (2000, 5000) for record in records)
    assert not (tmp_path / "bench").exists()
