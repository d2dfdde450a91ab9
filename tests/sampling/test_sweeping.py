"""Sampling by sweeps against sampling in memory: the same bytes, whatever the budget, threads and windows."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from graphs import INDICES, INDPTR, random_bits, write_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from one_type import expansion, files_of, sampled_by, take, topology_files

from diskgnn._native import NeighborSampler, TopologySweep
from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.formats.samples import Samples
from diskgnn.graph.generation import generate
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.sampling.sample import sample, sample_plan
from diskgnn.sampling.sweeping import SweepingSampler
from diskgnn.sampling.topology import TopologyParts
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources


def random_graph(path, num_nodes, *, id_dtype=np.int32, hub_degree=0, train=60, valid=20, max_degree=60, seed=0):
    """Degrees from 0 to `max_degree`, some edges twice; the last node but one may be a hub."""
    random = np.random.default_rng(seed)
    degrees = random.integers(0, max_degree + 1, num_nodes)
    degrees[random.random(num_nodes) < 0.1] = 0
    degrees[-2] = max(degrees[-2], hub_degree)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = random.integers(0, num_nodes, indptr[-1]).astype(id_dtype)
    nodes = random.permutation(num_nodes)
    splits = {"train": nodes[:train], "valid": nodes[train : train + valid]}
    return write_graph(path, indptr, indices, random_bits((num_nodes, 1), "int8"), splits, dtype="int8")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """2.4 MB of indices and 160 kB of indptr: several panels and windows of the least size; a hub of 200 kB."""
    return random_graph(tmp_path_factory.mktemp("sweep") / "graph", 20_000, hub_degree=50_000, train=600, valid=100)


@pytest.mark.parametrize("memory", [0, "300kB", "1MB", "2MB"])
@pytest.mark.parametrize("threads", [1, 3])
def test_same_bytes_as_in_memory(graph, tmp_path, memory, threads):
    spec = SamplingSpec(fanouts=[4, 3, 5], eval_fanouts=[-1, 40, 2], batch_size=16, epochs=2, seed=3)
    plan = SamplingPlan(graph, spec)
    whole = sample_plan(plan, tmp_path / "whole", Resources.of("1GiB", 1), shard_minibatches=7)
    topology_bytes = graph.indptr.nbytes + graph.indices.nbytes
    assert whole.read_bytes == topology_bytes
    swept = sample_plan(plan, tmp_path / "swept", Resources.of(memory, threads), shard_minibatches=7)
    assert Samples.open(tmp_path / "swept").manifest.digest == Samples.open(tmp_path / "whole").manifest.digest
    assert swept.details == whole.details
    if memory == 0:  # one minibatch at a time
        assert swept.read_bytes > 10 * topology_bytes


def test_more_memory_means_fewer_sweeps(graph, tmp_path):
    read_bytes = [
        sample(graph, tmp_path / str(memory), fanouts=[4, 4], batch_size=8, memory=memory, threads=1).read_bytes
        for memory in (0, 1 << 20, 5 << 19)
    ]
    assert read_bytes[0] > 3 * read_bytes[1] > 3 * read_bytes[2]


def sweep_of(graph, window_bytes=4096, threads=2, engine="auto"):
    return TopologySweep(files_of(graph), engine=engine, window_bytes=window_bytes, threads=threads)


def assert_same_as_in_memory(graph, plans, sweep):
    """Grow `plans`, (seeds, fanouts, key, minibatch), together; what was drawn stays within the stated bounds."""
    files = files_of(graph)
    group = [expansion(files, graph.indices.dtype, *plan) for plan in plans]
    for layer in range(len(plans[0][1])):
        assert [grown.layer for grown in group] == [layer] * len(group)
        sweep.count(group)
        bounds = [(e.memory_bytes + e.drawn_bytes, e.next_layer_bytes) for e in group]
        sweep.draw(group[1:])  # any part, in any order
        sweep.draw(group[:1])
        for grown, (drawn, _) in zip(group, bounds, strict=True):
            assert grown.memory_bytes == drawn
            grown.relabel()
        assert all(e.memory_bytes <= bound for e, (_, bound) in zip(group, bounds, strict=True))
    sampler = NeighborSampler(np.array(graph.indptr), np.array(graph.indices))
    for plan, grown in zip(plans, group, strict=True):
        nodes, blocks = take(grown)
        expected_nodes, expected_blocks = sampled_by(sampler, *plan)
        assert nodes.dtype == expected_nodes.dtype
        np.testing.assert_array_equal(nodes, expected_nodes)
        for block, expected in zip(blocks, expected_blocks, strict=True):
            np.testing.assert_array_equal(block[0], expected[0])
            np.testing.assert_array_equal(block[1], expected[1])


@pytest.mark.parametrize("engine", ["auto", "threads"])
@pytest.mark.parametrize("window_bytes", [4096, 3 * 4096, 1 << 20])
@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
def test_windows_smaller_than_a_column(tmp_path, id_dtype, window_bytes, engine):
    """The hub's edges take many windows; all of them are drawn by some minibatches, a few by others."""
    graph = random_graph(tmp_path / "graph", 3000, id_dtype=id_dtype, hub_degree=20_000)
    seeds = np.array([2998, 0, 2999, 1500])
    fanouts = [np.array(layers, np.int32) for layers in ([-1, 2], [7, 40], [20_000, 1], [19_999, -1])]
    plans = [(seeds, layers, 5, number) for number, layers in enumerate(fanouts)]
    assert_same_as_in_memory(graph, plans, sweep_of(graph, window_bytes, engine=engine))


@settings(max_examples=25)
@given(
    num_nodes=st.integers(3, 400),
    max_degree=st.integers(0, 90),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 5, 33]), min_size=1, max_size=3),
    minibatches=st.integers(1, 5),
    seed=st.integers(0, 1 << 32),
)
def test_any_graph(tmp_path_factory, num_nodes, max_degree, fanouts, minibatches, seed):
    path = tmp_path_factory.mktemp("any") / "graph"
    graph = random_graph(path, num_nodes, max_degree=max_degree, seed=seed, train=1, valid=1)
    random = np.random.default_rng(seed)
    plans = [
        (random.permutation(num_nodes)[: random.integers(1, num_nodes + 1)], np.array(fanouts, np.int32), seed, number)
        for number in range(minibatches)
    ]
    assert_same_as_in_memory(graph, plans, sweep_of(graph))


def test_gaps_that_nobody_needs_are_not_read(tmp_path):
    num_nodes, degree = 200_000, 10
    graph = write_graph(
        tmp_path / "graph", np.arange(num_nodes + 1) * degree,
        np.random.default_rng(0).integers(0, num_nodes, num_nodes * degree).astype(np.int32),
        random_bits((num_nodes, 1), "int8"), {"train": [7, num_nodes // 2, num_nodes - 1]}, dtype="int8",
    )  # fmt: skip
    report = sample(graph, tmp_path / "samples", fanouts=[3], batch_size=3, memory="4MB", threads=1)
    # One pass to check; two offsets to count, again to draw, and ten neighbours, for each of three nodes.
    assert report.read_bytes - graph.topology_bytes == 3 * (2 * 16 + degree * 4)


def test_offsets_past_2_to_31(tmp_path):
    """2^31 + 5 edges in a sparse file: all but the last 8 lead to node 0."""
    num_edges, num_nodes = (1 << 31) + 5, 40
    path = tmp_path / "indices.bin"
    with path.open("wb") as file:
        file.truncate(num_edges * 4)
    indices = np.memmap(path, np.int32, "r+")
    indices[-8:] = np.arange(30, 38)
    indices.flush()
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[1:] = num_edges - 8
    indptr[4:] = num_edges - 3
    indptr[5:] = num_edges
    indptr.tofile(tmp_path / "indptr.bin")
    files = topology_files(tmp_path / "indptr.bin", path, num_nodes, num_edges)
    sweep = TopologySweep(files, engine="auto", window_bytes=4096, threads=1)
    minibatch = expansion(files, np.int32, [3, 4, 5], [-1, 2])
    sweep.count([minibatch])
    sweep.draw([minibatch])
    minibatch.relabel()
    nodes, blocks = take(minibatch)
    assert nodes.tolist() == [3, 4, 5, *range(30, 38)]
    assert blocks[0][0].tolist() == [0, 5, 8, 8]
    hub = expansion(files, np.int32, [0, 3], [-1])
    with pytest.raises(ValueError, match="more than 2\\^31 - 1 edges"):
        sweep.count([hub])


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 2, 4], [0, 1, 2, 1]),  # a neighbour past the last node
        ([0, 2, 4], [0, -1, 1, 1]),
        ([0, 9, 4], [0, 1, 0, 1]),  # past the end, then decreasing
        ([0, -3, 4], [0, 1, 0, 1]),
        ([0, 3, 2, 4], [0, 1, 0, 1]),  # decreasing
    ],
)
def test_damaged_topology_is_refused(tmp_path, indptr, indices):
    num_nodes = len(indptr) - 1
    graph = write_graph(
        tmp_path / "graph", indptr, np.array(indices, np.int32), random_bits((num_nodes, 1), "int8"),
        {"train": np.arange(num_nodes)}, dtype="int8",
    )  # fmt: skip
    for memory in (0, "1GiB"):
        with pytest.raises(ArtifactError, match=r"damaged \((indptr|neighbour)"):
            sample(graph, tmp_path / "samples", fanouts=[-1, -1], batch_size=2, memory=memory, threads=2)


def test_a_file_that_ends_early_is_an_error(graph, tmp_path):
    short = tmp_path / "indices.npy"
    whole = graph.manifest.file(INDICES).read_bytes()
    short.write_bytes(whole[: len(whole) // 2])
    files = topology_files(graph.manifest.file(INDPTR), short, graph.num_nodes, graph.num_edges, offset=128)
    sweep = TopologySweep(files, engine="auto", window_bytes=65536, threads=2)
    group = [expansion(files, np.int32, np.arange(graph.num_nodes), [2])]
    sweep.count(group)
    with pytest.raises(ArtifactError, match="ends early"):
        sweep.draw(group)


@pytest.mark.parametrize("changed", [[0, 0, 3, 4], [0, 4, 4, 4], [0, 1, 1, 4], [0, 2, 4, 4]])
@pytest.mark.parametrize("fanout", [-1, 2])
def test_topology_that_changes_after_it_was_counted_is_refused(tmp_path, changed, fanout):
    """Room for what is drawn was made by then: more would be written past its end, fewer would leave what lay there."""
    indptr, indices = tmp_path / "indptr", tmp_path / "indices"
    np.array([0, 1, 3, 4]).tofile(indptr)
    np.array([0, 1, 2, 0], np.int32).tofile(indices)
    files = topology_files(indptr, indices, 3, 4)
    sweep = TopologySweep(files, engine="auto", window_bytes=4096, threads=1)
    group = [expansion(files, np.int32, [0, 1, 2], [fanout])]
    sweep.count(group)
    np.array(changed).tofile(indptr)
    with pytest.raises(IndexError, match="another one before"):
        sweep.draw(group)


def test_native_arguments_are_checked(graph):
    files = files_of(graph)
    for seeds, message in (([graph.num_nodes], "not in"), ([-1], "not in"), ([0, 0], "repeated")):
        with pytest.raises(ValueError, match=message):
            expansion(files, np.int32, seeds, [1])
    with pytest.raises(ValueError, match="fanouts"):
        expansion(files, np.int32, [0], [])
    for wrong in ({"window_bytes": 0}, {"window_bytes": 1000}, {"threads": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            sweep_of(graph, **wrong)
    sweep = sweep_of(graph)
    minibatch = expansion(files, np.int32, [5], [1])
    with pytest.raises(RuntimeError, match="after count"):
        sweep.draw([minibatch])
    sweep.count([minibatch])
    with pytest.raises(RuntimeError, match="after draw"):
        minibatch.relabel()
    sweep.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        sweep.draw([minibatch])


def test_leaving_early_joins_threads(graph):
    seeds = np.arange(100)
    plans = [PlannedMinibatch(seeds, np.array([[2], [2]], np.int32), 0, number) for number in range(20)]
    before = {thread.ident for thread in threading.enumerate()}
    with SweepingSampler(TopologyParts(graph), Resources(1 << 20, 2)) as sampler:
        next(sampler.sample(plans))
        assert {thread.ident for thread in threading.enumerate()} > before
    assert {thread.ident for thread in threading.enumerate()} == before


def test_ctrl_c_stops_the_sweep(graph, tmp_path):
    calls = []

    def interrupt():
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    with faults.armed("sample.sweep", interrupt), pytest.raises(KeyboardInterrupt):
        sample(graph, tmp_path / "samples", fanouts=[3], batch_size=1, epochs=20, threads=2, memory=0)
    assert len(calls) == 3
    assert not (tmp_path / "samples").exists()


MEMORY_SCRIPT = """
import os, resource, sys
import numpy, pyarrow
from contextlib import suppress
from pathlib import Path
from diskgnn.graph.graph import Graph
from diskgnn.sampling.sample import sample
from diskgnn.system.resources import held_bytes
graph, memory = Graph.open(sys.argv[1]), int(sys.argv[3])
budget = memory + held_bytes(2)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start = peak()
root, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
if not (root / limit).exists():
    root, limit = Path("/sys/fs/cgroup"), "memory.max"
with suppress(OSError):  # not root, or a container: no limit that page cache counts for
    folder = root / f"diskgnn-test-{os.getpid()}"
    folder.mkdir()
    (folder / limit).write_text(str(budget + (24 << 20)))
    (folder / "cgroup.procs").write_text(str(os.getpid()))
sample(graph, sys.argv[2], fanouts=[10, 10, 5], batch_size=256, memory=budget, threads=2)
assert peak() - start < memory + (12 << 20), (start, peak(), memory)
"""


@pytest.mark.slow
def test_memory_stays_within_the_budget(tmp_path):
    generate(
        tmp_path / "graph", num_nodes=1_000_000, avg_degree=20, num_classes=4, num_features=1, feature_dtype="int8",
        train_fraction=0.01, valid_fraction=0, test_fraction=0, homophily=0.5,
    )  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    budget_bytes = (graph.indptr.nbytes + graph.indices.nbytes) // 4
    assert budget_bytes < 24 << 20
    script = [sys.executable, "-c", MEMORY_SCRIPT, tmp_path / "graph", tmp_path / "swept", str(budget_bytes)]
    process = subprocess.Popen(script)
    try:
        assert process.wait() == 0
    finally:
        for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
            with suppress(OSError):
                (Path(root) / f"diskgnn-test-{process.pid}").rmdir()
    sample(graph, tmp_path / "whole", fanouts=[10, 10, 5], batch_size=256, memory="1GiB", threads=2)
    assert Samples.open(tmp_path / "swept").manifest.digest == Samples.open(tmp_path / "whole").manifest.digest


@pytest.mark.usefixtures("measured_forked")
def test_the_benchmark_runs(tmp_path, monkeypatch, capsys):
    """On a tiny graph, so that it cannot rot."""
    import bench_sampling

    arguments = ["--nodes=20000", "--degree=8", "--train-fraction=0.05", "--batch-size=64", "--repeat=1",
                 "--draws", "independent", "coordinated", "--folder", tmp_path / "bench",
                 "--json", tmp_path / "records.json"]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["bench_sampling.py", *map(str, arguments)])
    bench_sampling.main()
    records = json.loads((tmp_path / "records.json").read_text())
    runs = {tuple(name.split()): turns[0] for name, turns in records.items()}
    assert list(runs) == [
        (method, draws) for method in ("memory", "sweep", "map", "draw") for draws in ("independent", "coordinated")
    ]
    for draws in ("independent", "coordinated"):
        assert runs["memory", draws]["digest"] == runs["sweep", draws]["digest"]
        assert runs["memory", draws]["read_bytes"] < runs["sweep", draws]["read_bytes"]
    assert "the same samples" in capsys.readouterr().out
    assert not (tmp_path / "bench").exists()
