"""Budgets of memory, kept by whole processes in memory cgroups: what the kernel lets live is the oracle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.specs.targets import NodeTarget
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
    budget = least_bytes(arguments)
    done = run([*arguments, "--memory", str(budget)], budget + HEADROOM_BYTES)
    assert (done.exit_code, done.oom_kills) == (0, 0)
    assert done.anonymous_bytes <= budget


@pytest.mark.parametrize("given", [False, True], ids=["of the graph", "of the seeds"])
def test_labels_of_many_columns_count(tmp_path: Path, given: bool) -> None:
    """20 MB of labels, which are more than all that packing takes beside them."""
    from measure_budgets import least_bytes, run

    rng, n, columns = np.random.default_rng(0), 40_000, 500
    labels = rng.integers(0, 2, (n, columns)).astype(np.uint8)
    of_graph = {} if given else {"labels": labels, "task": "multilabel"}
    nodes = {"features": np.zeros((n, 1), np.float32), "train": np.arange(n), **of_graph}
    if given:
        del nodes["train"]
    edges = {"node:to:node": {"edges": rng.integers(0, n, (2, 4 * n))}}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": {"node": nodes}, "edges": edges})
    target = {"target": NodeTarget("node", seeds={"train": np.arange(n)}, labels={"train": labels})} if given else {}
    diskgnn.sample(tmp_path / "graph", tmp_path / "samples", fanouts=[2], batch_size=256, epochs=1, **target)
    stages = [["pack", "graph", "samples", "packed", "--cpu-cache", "0", "--threads", "1"]]
    if not given:
        stages.append(["prepare", "graph", "prepared", "--fanouts", "2", "--cpu-cache", "0", "--threads", "1"])
    for name, *arguments in stages:
        places = [str(tmp_path / each) if each[0].isalpha() else each for each in arguments]
        budget = least_bytes([name, *places])
        done = run([name, *places, "--memory", str(budget)], budget + HEADROOM_BYTES)
        assert (done.exit_code, done.oom_kills) == (0, 0), done.errors
        assert 60 << 20 < done.anonymous_bytes <= budget


_PREPARE_WITH_EDGE_IDS = """
import sys
from diskgnn.graph.graph import Graph
from diskgnn.preparing.prepare import prepare_request
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import CacheSpec
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources, SmallBudgetError

def prepare(memory_bytes):
    plan = SamplingPlan(Graph.open(sys.argv[1]), SamplingSpec.of(fanouts=[2], batch_size=64, epochs=1, edge_ids=True))
    resources = Resources(memory_bytes, 1)
    prepare_request(PrepareRequest.of(plan, CacheSpec(0), resources, sys.argv[2]))

try:
    prepare(1)
except SmallBudgetError as error:
    prepare(error.least_bytes)
    print("prepared")
"""


def test_edge_ids_that_headers_keep_count(tmp_path: Path) -> None:
    """`prepare` names before it samples what packing accepts then."""
    rng = np.random.default_rng(0)
    nodes = {"features": np.zeros((500, 1), np.float32), "labels": np.zeros(500, int), "train": np.arange(500)}
    edges = {"edges": rng.integers(0, 500, (2, 4000)), "keep_ids": True}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": {"n": nodes}, "edges": {"n:a:n": edges}})
    assert answer(_PREPARE_WITH_EDGE_IDS, tmp_path / "graph", tmp_path / "packed") == "prepared"


_TRAIN_FRESH = """
import re, sys
from contextlib import contextmanager
import diskgnn
from diskgnn.progress.reporter import Reporter
from diskgnn.system.memory import anonymous_bytes

class Watching(Reporter):
    peak = 0

    @contextmanager
    def stage(self, *of):
        yield self.advance

    def advance(self, count):
        self.peak = max(self.peak, anonymous_bytes())

options = {"fanouts": [2], "batch_size": 256, "cpu_cache": 0, "threads": 1, "num_epochs": 1, "window": 157}
try:
    diskgnn.FreshEpochs(*sys.argv[1:], memory=1, **options)
except diskgnn.ConfigError as error:
    budget = int(re.search(r"at least (\\d+) bytes", str(error))[1])
before, watching = anonymous_bytes(), Watching()
with diskgnn.FreshEpochs(*sys.argv[1:], memory=budget, reporter=watching, **options) as source:
    next(source.epoch(0))
print(budget, watching.peak - before)
"""


def test_labels_that_stay_from_window_to_window_count(tmp_path: Path) -> None:
    rng, n, columns = np.random.default_rng(0), 40_000, 1000
    labels = rng.integers(0, 2, (n, columns)).astype(np.uint8)
    nodes = {"features": np.zeros((n, 1), np.float32), "train": np.arange(n), "labels": labels, "task": "multilabel"}
    edges = {"edges": rng.integers(0, n, (2, 4 * n))}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": {"n": nodes}, "edges": {"n:a:n": edges}})
    budget, peak = map(int, answer(_TRAIN_FRESH, tmp_path / "graph", tmp_path).split())
    assert labels.nbytes < peak <= budget + (16 << 20)  # and modules that are loaded late


def answer(script: str, *arguments: Path) -> str:
    """What a process says that has loaded nothing but what `script` needs."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
