"""Where memory is short, evaluation has that of training, and no more: as /proc says of a process that trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskgnn

NODES, WIDTH = 6000, 2048  # 48 MB
_TRAIN = """
import json, sys
from contextlib import contextmanager
import diskgnn
from diskgnn.files import faults
from diskgnn.progress.reporter import Reporter
from diskgnn.system.memory import anonymous_bytes

class Watching(Reporter):
    def __init__(self):
        self.peaks = {}

    @contextmanager
    def stage(self, name, total, unit):
        def advance(count):
            self.peaks[name] = max(self.peaks.get(name, 0), anonymous_bytes() - before)

        yield advance

options = diskgnn.HopsOptions(batch_size=1000, memory=1) if sys.argv[2] == "hops" else None
shape = {"epochs": 1, "hidden": 4, "loader_options": options}
diskgnn.train(sys.argv[1], progress=False, **shape)  # what is loaded late is loaded
before, watching = anonymous_bytes(), Watching()
with faults.pretending("memory.available", 0):
    diskgnn.train(sys.argv[1], reporter=watching, **{**shape, "epochs": 3})
print(json.dumps(watching.peaks))
"""


def graph(path: Path, *, typed: bool) -> Path:
    """A graph of many columns, which has as many seeds to train on as to evaluate on."""
    rng = np.random.default_rng(0)

    def features() -> np.ndarray[Any, Any]:
        return rng.standard_normal((NODES, WIDTH), np.float32)

    seeds = {split: np.arange(NODES)[place::2] for place, split in enumerate(("train", "valid"))}
    nodes: dict[str, Any] = {"paper": {"features": features(), "labels": rng.integers(0, 3, NODES), **seeds}}
    edges = {"paper:cites:paper": {"edges": rng.integers(0, NODES, (2, 2 * NODES))}}
    if typed:
        nodes["author"] = {"features": features()}
        edges["author:writes:paper"] = {"edges": rng.integers(0, NODES, (2, 2 * NODES))}
    diskgnn.convert(path, schema={"nodes": nodes, "edges": edges}, progress=False)
    return path


@pytest.mark.parametrize("kind", ["one type", "typed", "hops"])
def test_evaluation_takes_no_more_than_training(tmp_path: Path, kind: str) -> None:
    made = graph(tmp_path / "graph", typed=kind == "typed")
    if kind == "hops":
        diskgnn.propagate(made, tmp_path / "made", hops=1, progress=False)
    else:
        diskgnn.prepare(made, tmp_path / "made", fanouts=[2], batch_size=1000, epochs=2, cpu_cache="60%",
                        eval_cpu_cache="50%", static_cache=0, progress=False)  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN, str(tmp_path / "made"), kind], capture_output=True, text=True, timeout=300,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},  # freed buffers are none, whichever malloc keeps
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    trained = max(peaks[f"epoch {epoch}"] for epoch in range(3))
    assert trained > 64 << 20  # minibatches, and what is read ahead: there is something to be counted
    # Minibatches differ. A tier that comes on top is a fifth more, buffers are a half.
    assert peaks["evaluate"] <= 1.1 * trained
    assert kind == "hops" or trained <= 1.1 * peaks["epoch 0"]  # the same again after an evaluation
