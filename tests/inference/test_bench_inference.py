"""tools/bench_inference.py runs as written; what it counts is compared with counts by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from graphs import write_graph

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def test_run_prints_ratios_and_agrees_with_pyg(tmp_path: Path):
    random = np.random.default_rng(0)
    indptr = np.arange(0, 5001 * 3, 3)
    features = random.standard_normal((5000, 12)).astype(np.float32)
    write_graph(tmp_path / "graph", indptr, random.integers(0, 5000, 15000).astype(np.int32), features, {"train": [1]})
    command = [sys.executable, ROOT / "tools/bench_inference.py", "run", tmp_path / "graph", "--memory", "2GiB",
               "--hidden", "8", "--layers", "2", "--folder", tmp_path, "--reference"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    features_once, hidden_twice, logits_once = 5000 * 12 * 4, 2 * 5000 * 8 * 4, 5000 * 4 * 4
    assert found["minimum_bytes"] == features_once + hidden_twice + logits_once
    assert 1 < found["moved_over_minimum"] < 6
    assert found["largest_difference"] < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_counts_of_schedules_by_hand():
    from bench_inference import broadcast_bytes, window_bytes

    # 0 <- 0, 1 <- 0 and 3, 2 <- 1 and 2, 3 <- 3
    indptr, indices = np.array([0, 1, 3, 5, 6]), np.array([0, 0, 3, 1, 2, 3])
    row = 1 << 20  # longer than the gaps that are read along
    # In two windows: {0, 1} needs 0 and 3, {2, 3} needs 1, 2 and 3; and 4 own rows, and 4 sums out.
    assert window_bytes(indptr, indices, 2, row) == (2 + 3 + 4 + 4) * row
    # Sums as sources pass: 0: 0, 1; 1: 2; 2: 2; 3: 1, 3. With room for one, that of 1 waits on disk while 2 is made.
    assert broadcast_bytes(indptr, indices, 4, row) == 8 * row
    assert broadcast_bytes(indptr, indices, 1, row) == (8 + 2) * row
