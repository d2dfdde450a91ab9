"""A disk that fails, below each input of each stage: the error names the file, nothing is lost, nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import diskgnn

HERE = Path(__file__).parent / "failing_disk"
COMPILER = shutil.which("cc")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler for the library that fails reads")
def test_a_failing_disk_is_named_and_a_recovering_one_is_not_noticed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    diskgnn.convert(
        tmp_path / "graph", edges=random.integers(0, 200, (2, 900)), labels=random.integers(0, 3, 200),
        features=random.standard_normal((200, 40)).astype(np.float32), train=np.arange(90), valid=np.arange(90, 120),
    )  # fmt: skip
    likes = np.stack([random.integers(0, 50, 300), random.integers(0, 30, 300)])
    times = {"times": random.integers(0, 9, 50)}, {"times": random.integers(0, 9, 30)}
    diskgnn.convert(tmp_path / "links", schema={
        "nodes": {"user": {"num_nodes": 50, **times[0]}, "item": {"num_nodes": 30, **times[1]}},
        "edges": {"user:likes:item": {
            "edges": likes, "times": random.integers(0, 9, 300), "weights": random.random(300), "reverse": True,
            "train": likes[:, :100].T,
        }},
    })  # fmt: skip
    library = tmp_path / "failing_disk.so"
    subprocess.run(
        [str(COMPILER), "-shared", "-fPIC", "-O1", "-o", library, HERE / "failing_disk.c", "-ldl"], check=True
    )
    done = subprocess.run(
        [sys.executable, HERE / "stages.py", library, tmp_path],
        env=os.environ | {"LD_PRELOAD": str(library)}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout[-1000:], done.stderr[-3000:])
    attempts = [json.loads(line) for line in done.stdout.splitlines()]
    read = {(each["stage"], each["file"]) for each in attempts if each["was_read"]}
    assert len(read) > 30, read
    for each in attempts:
        assert each["again"], each  # what a stage made before or makes now is what it makes undisturbed
        if each["was_read"] and each["for_ever"]:
            assert each["error"] == "ReadError", each
            assert each["file"] in each["message"], each
            assert "the disk failed" in each["message"], each
        else:
            assert "error" not in each, each
