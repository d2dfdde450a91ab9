"""Times and edge ids that headers keep and that do not fit in memory: against NumPy, and how much is read for them,
against what the kernel counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import run_python
from least_budgets import with_least

import diskgnn
from diskgnn.files.traffic import Traffic
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.kept_numbers import KeptNumbers, kept_files
from diskgnn.progress.reporter import StageReport

USERS, ORDERS, SHOPS, BATCHES = 200_000, 100_000, 7, 100


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users and orders have times, shops none; orders of users have ids of the user's own, the other edges none."""
    folder, random = tmp_path_factory.mktemp("kept"), np.random.default_rng(0)
    users = {"features": np.zeros((USERS, 1), np.float32), "labels": np.arange(USERS) % 2}
    users |= {"train": np.arange(8 * BATCHES), "times": random.integers(0, 10**12, USERS)}
    orders = {"features": np.zeros((ORDERS, 1), np.float32), "times": random.integers(0, 10**12, ORDERS)}
    bought = np.stack([random.integers(0, ORDERS, 400_000), random.integers(0, USERS, 400_000)])
    at = np.stack([random.integers(0, SHOPS, ORDERS), np.arange(ORDERS)])
    schema = {
        "nodes": {"user": users, "order": orders, "shop": {"num_nodes": SHOPS}},
        "edges": {
            "order:of:user": {"edges": bought, "keep_ids": True},
            "user:has:order": {"edges": bought[::-1], "keep_ids": True},
            "shop:of:order": {"edges": at},
        },
    }
    diskgnn.convert(folder / "graph", schema=schema, progress=False)
    diskgnn.sample(
        folder / "graph", folder / "samples", target=diskgnn.NodeTarget("user"), fanouts=[4, 4], batch_size=8, epochs=1,
        temporal="ignore", keep_times=True, edge_ids=True, progress=False,
    )  # fmt: skip
    return folder


def kernel_read_bytes() -> int:
    """What this process has read so far, from whatever: `rchar`."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar")


def assert_numbers_are_the_graphs(graph: Graph, found: SampledMinibatch, sampled: SampledMinibatch) -> None:
    assert found.times is not None
    for nodes, times, ids in zip(graph.nodes.values(), found.times, sampled.input_nodes, strict=True):
        if nodes.times is None:
            assert times is None
        else:
            np.testing.assert_array_equal(times, nodes.times[ids])
    for of_layer, sampled_of_layer in zip(found.blocks, sampled.blocks, strict=True):
        for edges, block, drawn in zip(graph.edges.values(), of_layer, sampled_of_layer, strict=True):
            expected = drawn.positions if edges.edge_ids is None else edges.edge_ids[drawn.positions]
            np.testing.assert_array_equal(block.edge_ids, expected)


@pytest.mark.parametrize("group_bytes", [1, 300_000, 1 << 30])
@pytest.mark.parametrize("is_loaded", ["none", "times of orders", "all"])
def test_minibatches_of_a_group_share_a_pass(graph: Path, group_bytes: int, is_loaded: str) -> None:
    opened, samples = Graph.open(graph / "graph"), Samples.open(graph / "samples")
    files = kept_files(opened, samples.config)
    assert sorted(files.values()) == [8 * ORDERS, 8 * USERS, 8 * 400_000, 8 * 400_000]
    loaded = {"none": (), "all": files.keys(), "times of orders": [opened.nodes["order"].file("times")]}[is_loaded]
    sampled, traffic = list(samples.read("train")), Traffic()
    assert len(sampled) == BATCHES

    before = kernel_read_bytes()
    numbers = KeptNumbers(opened, samples.config, loaded=loaded, group_bytes=group_bytes, traffic=traffic)
    found = list(numbers.added_to(iter(sampled)))
    read_bytes = kernel_read_bytes() - before

    assert len(found) == BATCHES
    for with_numbers, minibatch in zip(found, sampled, strict=True):
        assert_numbers_are_the_graphs(opened, with_numbers, minibatch)
    sizes = {name: opened.manifest.files[name].bytes for name in files}
    once = sum(sizes[name] for name in loaded)
    passes, rest = divmod(traffic.read_bytes - once, max(1, sum(sizes.values()) - once))
    assert rest == 0
    assert 0 <= read_bytes - traffic.read_bytes <= 4096 * (2 + passes) * len(files)  # headers of files
    if is_loaded == "all":
        assert passes == 0
    elif group_bytes == 1:
        assert passes == BATCHES
    elif group_bytes == 1 << 30:
        assert passes == 1
    else:
        assert 1 < passes < BATCHES / 4


def test_with_little_memory_they_are_read_a_few_times(graph: Path, tmp_path: Path) -> None:
    """Not once for each minibatch, which wants a number of nearly every 32 KiB of each file."""
    reports, inputs = list[StageReport](), (graph / "graph", graph / "samples")

    def pack(**options: object) -> None:
        reports.append(diskgnn.pack(*inputs, tmp_path / "packed", cpu_cache=0, overwrite=True, **options))

    with_least(pack)
    little, (report,) = (tmp_path / "packed" / "train.bin").read_bytes(), reports
    pack(memory="1GiB", threads=2)
    assert little == (tmp_path / "packed" / "train.bin").read_bytes()
    kept = 8 * (USERS + ORDERS + 2 * 400_000)
    assert kept < report.read_bytes < 5 * kept < BATCHES * kept / 10


_LOOK_UP = """
import itertools, sys, threading
from diskgnn.files.traffic import Traffic
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.kept_numbers import KeptNumbers
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.memory import anonymous_bytes

graph, samples = Graph.open(sys.argv[1] + "/graph"), Samples.open(sys.argv[1] + "/samples")

def look_up(group_bytes, num_batches):
    peak, is_over = anonymous_bytes(), threading.Event()

    def look():
        nonlocal peak
        peak = max(peak, anonymous_bytes())

    def watch():
        while not is_over.wait(0.01):
            look()

    watching, traffic = threading.Thread(target=watch), Traffic()
    watching.start()
    numbers = KeptNumbers(graph, samples.config, loaded=sys.argv[3:], group_bytes=group_bytes, traffic=traffic)
    loaded_bytes = traffic.read_bytes
    for minibatch in itertools.islice(numbers.added_to(samples.read("train")), num_batches):
        look()
    is_over.set()
    watching.join()
    return peak, traffic.read_bytes - loaded_bytes

with freed_memory_returned():
    look_up(1, 5)
    before = anonymous_bytes()
    peak, read_bytes = look_up(int(sys.argv[2]), None)
print(peak - before, read_bytes)
"""


@pytest.mark.parametrize("some_are_loaded", [False, True])
def test_a_group_takes_the_memory_that_it_may(tmp_path: Path, some_are_loaded: bool) -> None:
    """Minibatches count, of which little is looked up; those of a group are gone while the next ones are read. Numbers
    that are loaded are not looked up for all of a group at once, which would take as much again."""
    random, num_nodes, num_tags, group_bytes = np.random.default_rng(0), 50_000, 50, 8 << 20
    nodes = {"features": np.zeros((num_nodes, 1), np.float32), "labels": np.arange(num_nodes) % 2}
    tags = {"num_nodes": num_tags, "times": random.integers(0, 10**9, num_tags)}
    if some_are_loaded:
        nodes["times"] = random.integers(0, 10**9, num_nodes)
    tagged = np.stack([np.arange(num_nodes) % num_tags, np.arange(num_nodes)])
    schema = {
        "nodes": {"node": nodes | {"train": np.arange(10_000)}, "tag": tags},
        "edges": {
            "node:to:node": {"edges": random.integers(0, num_nodes, (2, 12 * num_nodes))},
            "tag:of:node": {"edges": tagged},
        },
    }
    diskgnn.convert(tmp_path / "graph", schema=schema, progress=False)
    diskgnn.sample(
        tmp_path / "graph", tmp_path / "samples", fanouts=[10, 10], batch_size=100, epochs=3, temporal="ignore",
        keep_times=True, progress=False,
    )  # fmt: skip
    loaded = [Graph.open(tmp_path / "graph").nodes["node"].file("times")] if some_are_loaded else []
    done = run_python("-c", _LOOK_UP, tmp_path, group_bytes, *loaded, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    taken_bytes, read_bytes = map(int, done.stdout.split())
    assert read_bytes // (8 * num_tags) >= 3  # groups
    assert group_bytes / 2 < taken_bytes < group_bytes + (6 << 20)
