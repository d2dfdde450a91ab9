"""tools/gpu_bench runs as written, on the CPU where there is no GPU, at a size where its figures say nothing."""

import json
import os
from pathlib import Path

import pytest
from commands import run_python

ROOT = Path(__file__).parents[1]
TINY = [
    "--nodes",
    "2000",
    "--width",
    "8",
    "--classes",
    "5",
    "--batch-size",
    "32",
    "--minibatches",
    "3",
    "--hidden",
    "8",
]


def run(tmp_path, *options):
    folder, record = tmp_path / "data", tmp_path / "bench.json"
    finished = run_python(
        "-m", "gpu_benchmark", "--folder", folder, "--json", record, "--skip-tests", *TINY, *options,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tools'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert not folder.exists()
    return json.loads(record.read_text()), finished.stdout


@pytest.mark.slow
def test_every_line_is_measured(tmp_path):
    pytest.importorskip("triton")
    found, shown = run(tmp_path, "--configurations", "2", "--seconds", "600", "--dtype", "float16")
    assert found["left_out"] == []
    assert all(rate > 0 for rate in found["bytes_per_second"].values())
    lines = found["epochs"]
    assert [(line["tier"], line["what"]) for line in lines] == [
        *(("device 0 %", what) for what in ("load", "SAGE", "GAT")),
        *(("device 10 %", what) for what in ("load", "SAGE", "GAT")),
        ("pinned 10 %, zero-copy", "load"),
        ("pinned 10 %, host gathers", "load"),
    ]
    for line in lines:
        assert line["read_bytes"] > 0
        assert line["bound_seconds"] == max(line["disk_seconds"], line.get("compute_seconds", 0))
        assert line["distance"] == line["seconds"] / line["bound_seconds"]
        assert f"{line['distance']:.3f}" in shown


def test_what_does_not_fit_the_budget_is_said(tmp_path):
    pytest.importorskip("triton")
    found, shown = run(tmp_path, "--seconds", "100", "--spent", "100", "--configurations", "3")
    assert found["epochs"] == []
    assert found["left_out"] == [
        f"10,15,20  cpu {cpu} %, device {device} %" for cpu, device in ((10, 0), (10, 10), (0, 0))
    ]
    assert shown.count("left out for lack of time") == 3
