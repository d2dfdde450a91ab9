"""Tensors of a .pt file are read and not mapped: a page that cannot be read is an error, and no signal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from forked_python import run_python
from torch import Tensor

from diskgnn.importers.containers import torch_files

ROWS, COLUMNS = 3000, 40
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x, "columns": lambda x: x[:, 3:19], "every third": lambda x: x[::3], "column": lambda x: x[:, 7],
    "turned": lambda x: x.t(), "some columns, turned": lambda x: x[:, 5:9].t(),
    "blocks": lambda x: x.view(-1, 4, 10)[:, 1:3], "the same again": lambda x: x[:, :1].expand(ROWS, 4),
    "bfloat16": lambda x: x.bfloat16()[:, ::2],
}  # fmt: skip
_TRUNCATED = """
import os, sys
from pathlib import Path
from diskgnn.errors import InputError
from diskgnn.importers.containers import torch_files

path = Path(sys.argv[1])
rows = torch_files.tensor("x", path)
os.truncate(path, 4096)  # as a disk that fails: whoever touches the map is ended by SIGBUS
try:
    for chunk in rows.chunks():
        chunk.sum()
except InputError as error:
    print(error)
"""
_VALUES = """
import os, sys
from pathlib import Path
from diskgnn.errors import InputError
from diskgnn.importers.source_formats import pyg

path = Path(sys.argv[1])
(edges,) = pyg.read(path).edges.values()
weights = edges.weights
os.truncate(path, 4096)
try:
    weights.load()
except InputError as error:
    print(error)
"""


def test_rows_that_share_a_span_are_read_together(tmp_path: Path) -> None:
    """Of a turned array, the numbers of a row lie all over the file: row by row, all of it would be read for each."""
    turned = torch.randn(COLUMNS, 100_000).t()[:90_000]
    torch.save(turned, tmp_path / "x.pt")
    source = torch_files.tensor("x", tmp_path / "x.pt")
    before = _read_characters()
    rows = source.load()
    assert _read_characters() - before < 8 * turned.nbytes
    np.testing.assert_array_equal(rows, turned.numpy())


def _read_characters() -> int:
    """Returns how many bytes this process has read so far, as the kernel counts."""
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if "rchar" in line).split()[1])


@pytest.mark.parametrize("view", [*VIEWS])
def test_rows_of_a_view_are_those_that_torch_has(tmp_path: Path, view: str) -> None:
    x = torch.randn(ROWS, COLUMNS)
    expected = VIEWS[view](x)
    torch.save(expected, tmp_path / "x.pt")
    rows = torch_files.tensor("x", tmp_path / "x.pt")
    assert rows.shape == list(expected.shape)
    np.testing.assert_array_equal(rows.widened().load(), expected.float())
    for first in (1, len(expected) - 1):
        parts = np.concatenate([*rows.chunks_from(first)])
        np.testing.assert_array_equal(parts, rows.load()[first:])
    if len(expected) < COLUMNS and rows.apart is not None:
        np.testing.assert_array_equal(rows.apart(1).load(), rows.load()[1])
    ended = run_python("-c", _TRUNCATED, tmp_path / "x.pt", capture_output=True, text=True)
    assert (ended.returncode, "ends before its last row" in ended.stdout) == (0, True), ended.stderr


def test_values_of_sparse_edges_are_read_too(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    ends = torch.arange(0, 5 * ROWS + 1, 5), torch.randint(0, ROWS, (5 * ROWS,))
    adjacency = torch.sparse_csr_tensor(*ends, torch.rand(5 * ROWS), size=(ROWS, ROWS))
    torch.save(data.Data(x=torch.randn(ROWS, 2), adj_t=adjacency), tmp_path / "graph.pt")
    ended = run_python("-c", _VALUES, tmp_path / "graph.pt", capture_output=True, text=True)
    assert (ended.returncode, "ends before its last row" in ended.stdout) == (0, True), ended.stderr
