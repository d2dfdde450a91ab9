"""Budgets of memory, kept by whole processes in memory cgroups: what the kernel lets live is the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from diskgnn.system.memory_cgroup import refusal

pytestmark = pytest.mark.skipif(bool(refusal()), reason="no memory cgroup can be made here")
HEADROOM_BYTES = 24 << 20  # pages of files under way, and page tables


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))


def test_stages_work_with_the_smallest_budget_that_they_name(tmp_path: Path) -> None:
    from measure_budgets import measure

    found = measure(tmp_path, nodes=40_000, degree=10, width=32, over=8, headroom_bytes=HEADROOM_BYTES)
    assert {"prepare", "infer", "predict", "repair"} <= found.keys()
    for name, row in found.items():
        assert (row["exit_code"], row["kills"]) == (0, 0), name
        assert row["budget"] == row["least"], name  # the graph is small
        assert row["peak"] <= row["budget"], name


def test_little_memory_means_fewer_threads(tmp_path: Path) -> None:
    from measure_budgets import least_bytes, run

    arguments = ["generate", str(tmp_path / "graph"), "--num-nodes", "40000", "--threads", "64"]
    budget = least_bytes(arguments, 1 << 30)
    done = run([*arguments, "--memory", str(budget)], budget + HEADROOM_BYTES)
    assert (done.exit_code, done.kills) == (0, 0)
    assert done.peak_bytes <= budget
