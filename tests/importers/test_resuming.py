"""A conversion that was killed goes on with what it finished, and its result is the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from user_data import save_arrays, small_data

from diskgnn.errors import InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.progress import SILENT
from diskgnn.storage import faults


class Stages:
    """Remembers which passes were made."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def stage(self, description: str, total: int, unit: str) -> Any:
        self.names.append(description)
        return SILENT.stage(description, total, unit)


@pytest.fixture
def schema(tmp_path: Path) -> dict[str, Any]:
    """Two edge types, in files."""
    files = save_arrays(tmp_path, small_data())
    np.save(tmp_path / "more.npy", np.random.default_rng(1).integers(0, 50, (2, 70)))
    np.save(tmp_path / "weights.npy", np.ones(70))
    nodes = {name: files[name] for name in ("features", "labels", "train")}
    return {"nodes": {"node": nodes}, "edges": {
        "node:to:node": {"edges": files["edges"]},
        "node:more:node": {"edges": tmp_path / "more.npy", "weights": tmp_path / "weights.npy"},
    }}  # fmt: skip


@pytest.mark.parametrize(
    ("point", "after", "sorted_again", "copied_again"),
    [("unit.written", 0, 2, 1), ("unit.written", 1, 1, 1), ("unit.written", 2, 0, 1), ("artifact.sync", 0, 0, 0)],
)
def test_a_killed_conversion_goes_on(
    tmp_path: Path, schema: dict[str, Any], point: str, after: int, sorted_again: int, copied_again: int
) -> None:
    convert(tmp_path / "whole", schema=schema)
    with faults.armed(point, KeyboardInterrupt(), after=after), pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "out", schema=schema)
    assert not (tmp_path / "out").exists()
    stages = Stages()
    convert(tmp_path / "out", schema=schema, reporter=stages)
    assert Graph.open(tmp_path / "out").manifest.digest == Graph.open(tmp_path / "whole").manifest.digest
    assert (stages.names.count("sort edges"), stages.names.count("copy features")) == (sorted_again, copied_again)
    assert [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_what_changed_is_converted_anew(tmp_path: Path, schema: dict[str, Any]) -> None:
    with faults.armed("unit.written", KeyboardInterrupt(), after=1), pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "out", schema=schema)
    path = Path(schema["edges"]["node:to:node"]["edges"])
    os.utime(path, ns=(0, 0))
    stages = Stages()
    convert(tmp_path / "out", schema=schema, reporter=stages)
    assert stages.names.count("sort edges") == 2
    damaged = tmp_path / "other"
    with faults.armed("unit.written", KeyboardInterrupt(), after=1), pytest.raises(KeyboardInterrupt):
        convert(damaged, schema=schema)
    (tmp_path / ".other.partial" / "indices-node.to.node.npy").write_bytes(b"damaged")
    convert(damaged, schema=schema)
    assert Graph.open(damaged).manifest.digest == Graph.open(tmp_path / "out").manifest.digest


def test_wrong_data_and_arrays_in_memory_leave_nothing(tmp_path: Path, schema: dict[str, Any]) -> None:
    before = sorted(tmp_path.iterdir())
    np.save(tmp_path / "more.npy", np.full((2, 70), 50))
    with pytest.raises(InputError, match="found source 50"):
        convert(tmp_path / "out", schema=schema)
    assert sorted(tmp_path.iterdir()) == before
    with faults.armed("artifact.sync", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "out", **small_data())
    assert sorted(tmp_path.iterdir()) == before
