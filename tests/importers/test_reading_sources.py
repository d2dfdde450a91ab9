"""Arrays in files, in any layout that NumPy and torch write, are read and not mapped; NumPy is the oracle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from user_data import small_data

from diskgnn.errors import InputError
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.importers.containers import arrays, edge_arrays, torch_files
from diskgnn.importers.convert import convert

LAYOUTS: dict[str, Any] = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "swapped": lambda array: array.astype(array.dtype.newbyteorder()),
    "swapped columns": lambda array: np.asfortranarray(array.astype(array.dtype.newbyteorder())),
}


def written(path: Path, array: np.ndarray, layout: str) -> Path:
    if layout == "torch":
        torch.save(torch.from_numpy(array), path)
    elif layout == "torch columns":
        torch.save(torch.from_numpy(array.T.copy()).permute(*range(array.ndim - 1, -1, -1)), path)
    else:
        np.save(path, LAYOUTS[layout](array))
    return path


@pytest.mark.parametrize("layout", [*LAYOUTS, "torch", "torch columns"])
@pytest.mark.parametrize("shape", [(700, 600), (3, 4, 5), (9,), (0, 3)])
def test_rows_from_any_on(tmp_path: Path, layout: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape, np.float32)
    rows = arrays.numbers("x", written(tmp_path / "x.npy", array, layout))
    assert (rows.shape, rows.dtype) == (list(shape), np.float32)
    np.testing.assert_array_equal(rows.load(), array)
    for first in {0, 1, len(array) // 2, len(array)}:
        parts = [part.copy() for part in rows.chunks_from(first)]
        np.testing.assert_array_equal(np.concatenate([array[:0], *parts]), array[first:])


@pytest.mark.parametrize("layout", [*LAYOUTS, "torch", "torch columns"])
@pytest.mark.parametrize("shape", [(2, 150_000), (150_000, 2), (2, 2)])
def test_edges_from_any_on(tmp_path: Path, layout: str, shape: tuple[int, int]) -> None:
    array = np.random.default_rng(0).integers(0, 1 << 40, shape)
    edges = edge_arrays.edge_list(written(tmp_path / "x.npy", array, layout))
    src, dst = array if shape[0] == 2 else array.T
    for first in (0, 1, edges.num_edges - 1):
        found = [np.stack(pair) for pair in edges.chunks_from(first)]
        np.testing.assert_array_equal(np.concatenate(found, axis=1), np.stack([src[first:], dst[first:]]))


def test_one_of_several_tensors_of_a_file_is_found(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(5), "b": torch.rand(7, 3), "c": torch.rand(4, 6)}
    torch.save(tensors, tmp_path / "x.pt")
    loaded = torch_files.load("x", tmp_path / "x.pt")
    for name, tensor in tensors.items():
        rows = torch_files.rows(name, tmp_path / "x.pt", torch_files.as_array(loaded[name][1:]))  # type: ignore[arg-type]
        assert rows.origin is None  # it is of the file, not of memory
        np.testing.assert_array_equal(rows.load(), tensor[1:].numpy())


def test_a_number_is_no_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32(3))
    torch.save(torch.tensor(3.0), tmp_path / "x.pt")
    for name in ("x.npy", "x.pt"):
        with pytest.raises(InputError, match="x: expected an array, found a single number"):
            arrays.numbers("x", tmp_path / name)


def mapped_and_touched(folder: Path) -> int:
    """Bytes of files in `folder` that lie in the memory of this process as a map."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = str(folder) in line
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


@pytest.mark.parametrize("kind", ["npy", "torch", "columns", "pyg"])
def test_nothing_is_touched_through_a_map(tmp_path: Path, kind: str) -> None:
    data = {name: value for name, value in small_data().items() if isinstance(value, np.ndarray)}
    folder = tmp_path / "sources"
    folder.mkdir()
    if kind == "pyg":
        geometric = pytest.importorskip("torch_geometric.data")
        mask = torch.zeros(len(data["labels"]), dtype=torch.bool)
        mask[torch.from_numpy(data["train"].copy())] = True
        tensors = {"x": data["features"], "edge_index": data["edges"], "y": data["labels"]}
        found = geometric.Data(train_mask=mask, **{name: torch.tensor(array) for name, array in tensors.items()})
        torch.save(found, folder / "data.pt")
        given: dict[str, Any] = {"source": folder / "data.pt"}
    else:
        layout = {"npy": "rows", "torch": "torch", "columns": "columns"}[kind]
        given = {name: written(folder / f"{name}.npy", array.copy(), layout) for name, array in data.items()}
    touched: list[int] = []
    with faults.armed("artifact.write", lambda: touched.append(mapped_and_touched(folder))):
        convert(tmp_path / "graph", **given)
    assert touched
    assert max(touched) == 0
    assert Graph.open(tmp_path / "graph").nodes["node"].num_nodes == len(data["labels"])
