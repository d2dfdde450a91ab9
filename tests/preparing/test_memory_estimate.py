"""`prepare --estimate` names the smallest budget of memory with which `prepare` starts: `prepare` itself is the oracle,
in processes of their own, since a budget counts what a process has loaded. Most are forked with all loaded."""

import json
import subprocess
import sys

import numpy as np
import pytest
from commands import run_python

import diskgnn

NUM_USERS, NUM_ITEMS, NUM_EDGES = 10_000, 2_000, 100_000
LINKS = ["--target", "user:buys:item", "--eval-negatives", "10"]
KINDS = {
    "nodes": ["nodes", "--fanouts", "10,10", "--temporal", "ignore"],
    "all neighbours": ["nodes", "--fanouts", "5,5", "--eval-fanouts=-1,-1", "--temporal", "ignore"],
    "trees": ["nodes", "--fanouts", "10,10", "--temporal", "uniform"],
    "types": ["types", "--fanouts", "10,10", "--temporal", "ignore", "--edge-ids"],
    "links": ["types", "--fanouts", "10,10", "--temporal", "ignore", *LINKS],
    "known links": [
        "types",
        "--fanouts",
        "5",
        "--temporal",
        "ignore",
        *LINKS,
        "--avoid",
        "known",
        "--batch-size",
        "512",
    ],
    "links with times": ["types", "--fanouts", "10,10", "--temporal", "uniform", *LINKS, "--strict-time"],
    "swept": ["nodes", "--fanouts", "2", "--batch-size", "256", "--temporal", "ignore"],
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A graph of one type, and one of two types with links; both have times."""
    folder, rng = tmp_path_factory.mktemp("graphs"), np.random.default_rng(0)
    users = {"features": rng.random((NUM_USERS, 4), np.float32), "labels": rng.integers(0, 3, NUM_USERS)}
    users |= {"train": np.arange(2000), "valid": np.arange(2000, 3000), "times": rng.integers(0, 100, NUM_USERS)}
    edges = {"edges": rng.integers(0, NUM_USERS, (2, NUM_EDGES)), "times": rng.integers(0, 100, NUM_EDGES)}
    schema = {"nodes": {"node": users}, "edges": {"node:to:node": edges}}
    diskgnn.convert(folder / "nodes", schema=schema, progress=False)
    pairs = np.unique(np.stack([rng.integers(0, NUM_USERS, NUM_EDGES), rng.integers(0, NUM_ITEMS, NUM_EDGES)]), axis=1)
    times = rng.integers(0, 100, pairs.shape[1])
    seeds = rng.permutation(pairs.shape[1])[:3000]
    links = {"edges": pairs, "times": times, "train": pairs[:, seeds[:2000]], "valid": pairs[:, seeds[2000:]]}
    items = {"features": rng.random((NUM_ITEMS, 2), np.float32)}
    back = {"edges": pairs[::-1], "times": times}
    schema = {"nodes": {"user": users, "item": items}, "edges": {"user:buys:item": links, "item:rev_buys:user": back}}
    diskgnn.convert(folder / "types", schema=schema, progress=False)
    return folder


def run(process, graphs, out, graph, *arguments, code=0):
    """What it printed, what it told."""
    command = ["-m", "diskgnn", "prepare", graphs / graph, out, "--cpu-cache", "10%", *map(str, arguments)]
    done = process(*command, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def start_python(*arguments, **keywords):
    """With nothing loaded."""
    return subprocess.run([sys.executable, *arguments], **keywords)


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_budget_is_the_one_that_prepare_starts_with(graphs, tmp_path, kind):
    """As few threads as there can be, or as many as there are cores."""
    process = start_python if kind == "links with times" else run_python
    target = ["--target", "user"] if KINDS[kind][0] == "types" and "--target" not in KINDS[kind] else []
    arguments = [process, graphs, tmp_path / "packed", *KINDS[kind], *target]
    estimate = json.loads(run(*arguments, "--estimate", "--json", "--disk", "1TiB")[0])
    least_bytes = estimate["prepare_memory_bytes"]
    assert estimate["missing_memory_bytes"] == 0
    _, refused = run(*arguments, "--memory", least_bytes - (4 << 20), code=2)
    assert "--memory: expected at least" in " ".join(refused.split())
    assert not (tmp_path / "packed").exists()
    run(*arguments, "--memory", least_bytes)


def test_rows_that_refer_to_one_row_need_no_memory_for_as_many_as_the_fanout(tmp_path):
    """As in a database: each order has one user, and users have many orders."""
    orders = {"features": np.ones((20_000, 2), np.float32), "labels": np.arange(20_000) % 2, "train": np.arange(5000)}
    orders["times"] = np.arange(20_000)
    refers = np.stack([np.arange(20_000), np.arange(20_000) % 200])
    schema = {
        "nodes": {"order": orders, "user": {"features": np.ones((200, 2), np.float32)}},
        "edges": {"order:of:user": {"edges": refers}, "user:has:order": {"edges": refers[::-1]}},
    }
    diskgnn.convert(tmp_path / "graph", schema=schema, progress=False)

    def least_bytes(has):
        fanouts = {"order:of:user": [30, 30], "user:has:order": [has, has]}
        given = {"fanouts": fanouts, "temporal": "last", "batch_size": 1000, "cpu_cache": "10%"}
        return diskgnn.estimate(tmp_path / "graph", **given).prepare_memory_bytes

    assert abs(least_bytes(64) - least_bytes(1)) < 4 << 20
    assert least_bytes(64) < 512 << 20  # 64 edges each would be 64 x 30 x 1000 nodes, ten times: 30 GB


def test_a_budget_that_prepare_would_refuse_is_told(graphs, tmp_path):
    _, told = run(run_python, graphs, tmp_path / "packed", *KINDS["nodes"], "--estimate", "--memory", "40MiB")
    assert "prepare would refuse this --memory: expected at least" in told
    assert "next:" not in told


SMALLEST = """
import sys
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sampling_need import sampling_need
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources, SmallBudgetError

plan = SamplingPlan(Graph.open(sys.argv[1]), SamplingSpec([2], 8, temporal="ignore"))
for budget in (0, None):
    try:
        resources = Resources(least_bytes - 1 if budget is None else budget, 1)
        resources.within(sampling_need(plan, resources))
    except SmallBudgetError as error:
        least_bytes = error.least_bytes
    else:
        sys.exit("not refused")
resources = Resources(least_bytes, 1)
resources.within(sampling_need(plan, resources))
print(least_bytes > plan.sampler_bytes)
"""


def test_of_loading_and_sweeping_the_topology_the_one_is_named_that_needs_less(graphs, tmp_path):
    """Buffers of a sweep alone are larger than a small topology."""
    nodes = {"features": np.zeros((100, 1), np.float32), "labels": np.arange(100) % 2, "train": np.arange(100)}
    edges = {"edges": np.stack([np.arange(100), np.arange(100)[::-1]]), "times": np.arange(100)}
    schema = {"nodes": {"node": nodes}, "edges": {"node:to:node": edges}}
    diskgnn.convert(tmp_path / "small", schema=schema, progress=False)
    for graph, is_loaded in ((tmp_path / "small", "True"), (graphs / "nodes", "False")):
        done = subprocess.run([sys.executable, "-c", SMALLEST, graph], capture_output=True, text=True, timeout=300)
        assert (done.stdout.strip(), done.stderr) == (is_loaded, "")
