"""tools/bench_inference.py runs as written; what it counts is compared with counts by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import loaded_mib, run_python
from graphs import write_graph

import diskgnn
from diskgnn.system.memory_cgroup import refusal

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def test_run_prints_ratios_and_agrees_with_pyg(tmp_path: Path):
    random = np.random.default_rng(0)
    indptr = np.arange(0, 5001 * 3, 3)
    features = random.standard_normal((5000, 12)).astype(np.float32)
    write_graph(tmp_path / "graph", indptr, random.integers(0, 5000, 15000).astype(np.int32), features, {"train": [1]})
    command = [ROOT / "tools/bench_inference.py", "run", tmp_path / "graph", "--memory", "2GiB",
               "--hidden", "8", "--layers", "2", "--folder", tmp_path, "--reference"]  # fmt: skip
    done = run_python(*command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    features_once, hidden_twice = 5000 * 12 * 4, 2 * 5000 * 8 * 4
    logits_once = 128 + 5000 * 4 * 4  # and the header of a .npy file
    assert found["minimum_bytes"] == features_once + hidden_twice + logits_once
    assert 1 < found["moved_over_minimum"] < 6
    assert found["largest_difference"] < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


@pytest.mark.skipif(bool(refusal()), reason="no memory cgroup can be made here")
def test_keeps_to_its_memory_in_a_cgroup(tmp_path: Path):
    memory_mib = loaded_mib() + 160  # features are 179 MB, what is between layers as much
    diskgnn.generate(tmp_path / "graph", num_nodes=350_000, avg_degree=4, num_classes=16, num_features=128,
                     train_fraction=0.01, valid_fraction=0, test_fraction=0, homophily=0.5)  # fmt: skip
    # Which looks at neighbours twice; GraphSAGE keeps to its memory in engines/test_ray.py.
    command = [sys.executable, ROOT / "tools/bench_inference.py", "run", tmp_path / "graph", "--model", "gat",
               "--memory", f"{memory_mib}MiB", "--limit", f"{memory_mib + 70}MiB",
               "--folder", tmp_path, "--threads", "2"]  # fmt: skip
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=True)
    report, _, said = done.stdout.partition("in a cgroup")
    assert "; 0 kills" in said
    assert json.loads(report)["peak_anonymous_bytes"] <= memory_mib << 20


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
