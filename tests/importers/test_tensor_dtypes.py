"""Tensors of types that NumPy does not have, at every door: numbers as torch converts them, or what to do instead."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskgnn
from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.graph import Graph

NUM_NODES, NUM_EDGES = 60, 200
RNG = torch.Generator().manual_seed(3)
EDGES = torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=RNG)
NUMBERS = (torch.rand(NUM_NODES, generator=RNG) * 100).bfloat16()
ROWS = torch.randn(NUM_NODES, 3, generator=RNG).bfloat16()
WEIGHTS = (torch.rand(NUM_EDGES, generator=RNG) * 9).bfloat16()
TIMES = torch.randint(0, 200, (NUM_EDGES,), generator=RNG).bfloat16()  # whole numbers up to 256 are exact


@pytest.fixture(params=["file", "former-file", "memory"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function from a tensor to what `convert` is given."""

    def give(name: str, tensor: torch.Tensor) -> Any:
        if request.param == "memory":
            return tensor
        path = tmp_path / f"{name}.pt"
        torch.save(tensor, path, _use_new_zipfile_serialization=request.param == "file")
        return path

    return give


def test_bfloat16_has_its_numbers_at_every_door(tmp_path: Path, given: Any) -> None:
    nodes = {
        "features": given("features", ROWS), "labels": given("labels", NUMBERS), "task": "regression",
        "train": torch.arange(30), "times": given("node-times", TIMES[:NUM_NODES]),
    }  # fmt: skip
    edges = {
        "edges": EDGES, "weights": given("weights", WEIGHTS), "times": given("times", TIMES), "keep_ids": True,
        "features": given("edge-features", WEIGHTS[:, None]),
    }  # fmt: skip
    diskgnn.convert(tmp_path / "graph", schema={"nodes": {"n": nodes}, "edges": {"n:to:n": edges}})
    graph = Graph.open(tmp_path / "graph")
    found, (linked,) = graph.nodes["n"], graph.edges.values()
    order = np.array(linked.edge_ids)
    np.testing.assert_array_equal(np.array(found.labels), NUMBERS.float().numpy())
    np.testing.assert_array_equal(np.array(found.times), TIMES[:NUM_NODES].long().numpy())
    np.testing.assert_array_equal(np.array(linked.weights), WEIGHTS.float().numpy()[order])
    np.testing.assert_array_equal(np.array(linked.times), TIMES.long().numpy()[order])
    assert found.config.rows is not None
    assert found.config.rows.dtype == "bfloat16"
    features = torch.from_numpy(np.array(graph.features)).view(torch.bfloat16)
    assert torch.equal(features, ROWS)


def test_bfloat16_ids_are_refused_as_fractions(tmp_path: Path, given: Any) -> None:
    for name, value in {"train": torch.arange(30).bfloat16(), "edges": EDGES.bfloat16()}.items():
        arguments = {"edges": EDGES, "labels": torch.zeros(NUM_NODES, dtype=torch.long), "train": torch.arange(30)}
        with pytest.raises(InputError, match=rf"{name}: expected whole numbers, found fractional numbers"):
            diskgnn.convert(tmp_path / "graph", features=ROWS, **{**arguments, name: given(name, value)})


def test_files_without_a_header_are_bfloat16_if_they_are_called_so(tmp_path: Path) -> None:
    ROWS.view(torch.uint16).numpy().tofile(tmp_path / "rows.bin")
    NUMBERS.view(torch.uint16).numpy().tofile(tmp_path / "labels.bin")
    nodes = {"features": f"raw:bfloat16:3:{tmp_path}/rows.bin", "labels": f"raw:bfloat16:{tmp_path}/labels.bin",
             "task": "regression", "train": torch.arange(30)}  # fmt: skip
    diskgnn.convert(tmp_path / "graph", schema={"nodes": {"n": nodes}, "edges": {"n:to:n": {"edges": EDGES}}})
    graph = Graph.open(tmp_path / "graph")
    np.testing.assert_array_equal(np.array(graph.nodes["n"].labels), NUMBERS.float().numpy())
    assert torch.equal(torch.from_numpy(np.array(graph.features)).view(torch.bfloat16), ROWS)


def test_pyg_files_with_bfloat16(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    saved = data.Data(x=ROWS, edge_index=EDGES, edge_weight=WEIGHTS, edge_time=TIMES, y=NUMBERS)
    saved.train_mask = torch.arange(NUM_NODES) < 30
    torch.save(saved, tmp_path / "data.pt")
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "data.pt", format="pyg", options={"task": "regression"})
    graph = Graph.open(tmp_path / "graph")
    (linked,) = graph.edges.values()
    order = np.array(linked.edge_ids)
    np.testing.assert_array_equal(np.array(linked.weights), WEIGHTS.float().numpy()[order])
    np.testing.assert_array_equal(np.array(linked.times), TIMES.long().numpy()[order])
    np.testing.assert_array_equal(np.array(graph.nodes["node"].labels), NUMBERS.float().numpy())
    assert torch.equal(torch.from_numpy(np.array(graph.features)).view(torch.bfloat16), ROWS)


def test_whole_numbers_of_16_bits_are_not_taken_for_bfloat16(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    counts = torch.arange(NUM_NODES * 3, dtype=torch.int32).to(torch.uint16).reshape(NUM_NODES, 3)
    torch.save(data.Data(x=counts, edge_index=EDGES), tmp_path / "data.pt")
    for source in (tmp_path / "data.pt", data.Data(x=counts.numpy(), edge_index=EDGES)):
        with pytest.raises(ConfigError, match="found uint16"):
            diskgnn.convert(tmp_path / "graph", source=source, format="pyg")


@pytest.mark.parametrize("door", ["features", "labels", "train", "edges"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda tensor: tensor.to(torch.float8_e4m3fn), r"found torch.float8_e4m3fn; take tensor.float\(\)"),
        (lambda tensor: tensor.to_sparse(), r"found one of layout torch.sparse_coo; take tensor.to_dense\(\)"),
        (lambda tensor: torch.nested.nested_tensor([tensor, tensor]), "found a nested one"),
        (lambda tensor: tensor.to("meta"), r"found one on meta; take tensor.cpu\(\)"),
    ],
    ids=["float8", "sparse", "nested", "meta"],
)  # fmt: skip
@pytest.mark.parametrize("given", ["file", "memory"], indirect=True)  # torch reads few of them in its former format
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_numpy_has_no_type_for(tmp_path: Path, given: Any, door: str, change: Any, expected: str) -> None:
    labels = torch.zeros(NUM_NODES, dtype=torch.long)
    arguments = {"features": ROWS.float(), "labels": labels, "train": torch.arange(30), "edges": EDGES}
    changed = change(arguments[door].float())
    with pytest.raises(InputError, match=rf"{door}.*{expected}"):
        diskgnn.convert(tmp_path / "graph", **{**arguments, door: given(door, changed)})


def test_a_view_that_torch_negates_is_read_as_its_numbers(tmp_path: Path, given: Any) -> None:
    rows = torch.complex(ROWS.float(), -ROWS.float()).conj().imag
    assert rows.is_neg()
    diskgnn.convert(tmp_path / "graph", edges=EDGES, features=given("features", rows))
    np.testing.assert_array_equal(np.array(Graph.open(tmp_path / "graph").features), ROWS.float().numpy())
