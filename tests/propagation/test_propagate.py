"""Hops of whole neighbourhoods against SciPy in float64, with memory from the least to plenty."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from least_budgets import with_least
from propagated_graphs import OPERATORS, Given, assert_hops_are_exact, convert, random_graph, segments

import diskgnn
from diskgnn.cli import main
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.files import faults
from diskgnn.formats.hops import Hops
from diskgnn.formats.manifest import open_artifact
from diskgnn.graph.artifact_description import describe
from diskgnn.graph.graph import Graph
from diskgnn.propagation.propagate import estimate_propagation
from diskgnn.system.resources import SmallBudgetError


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 20), width=st.sampled_from([1, 3, 4, 9, 18, 33]), weighted=st.booleans(),
       hops=st.integers(1, 4), operators=st.permutations(OPERATORS), taken=st.integers(1, 3))  # fmt: skip
def test_hops_are_scipys_whatever_the_memory(
    tmp_path_factory: pytest.TempPathFactory, seed: int, width: int, weighted: bool, hops: int,
    operators: list[str], taken: int,
) -> None:  # fmt: skip
    tmp_path = tmp_path_factory.mktemp("hops")
    given = random_graph(seed, width=width, weighted=weighted)
    graph = convert(given, tmp_path / "graph")
    asked = {"hops": hops, "operators": operators[:taken], "progress": False}
    with_least(partial(diskgnn.propagate, graph, tmp_path / "least", **asked))
    diskgnn.propagate(graph, tmp_path / "plenty", memory="1GiB", threads=3, **asked)
    assert open_artifact(tmp_path / "least").digest == open_artifact(tmp_path / "plenty").digest
    assert_hops_are_exact(tmp_path / "least", given)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int8 codes", "int4 codes"])
def test_features_of_every_dtype(tmp_path: Path, dtype: str) -> None:
    given, options = random_graph(3, width=11), {}
    if dtype == "bfloat16":
        bits = given.features.astype(np.float32).view(np.uint32) >> 16
        options = {"features": bits.astype(np.uint16), "bfloat16": True}
        x = (bits << 16).view(np.float32).astype(float)
    elif dtype == "int8":
        options = {"features": (given.features * 20).astype(np.int8)}
        x = options["features"].astype(float)
    elif dtype.endswith("codes"):
        convert(given, tmp_path / "graph", quantise=dtype.split()[0])
        codes = np.load(tmp_path / "graph" / "features-node.npy")
        if dtype == "int4 codes":
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)[:, :11]
        scale, zero_point = np.load(tmp_path / "graph" / "quantisation-node.npy")
        x = ((codes.astype(np.float32) - zero_point) * scale).astype(float)
    else:
        options = {"features": given.features.astype(dtype)}
        x = options["features"].astype(float)
    if not dtype.endswith("codes"):
        convert(given, tmp_path / "graph", **options)
    diskgnn.propagate(tmp_path / "graph", tmp_path / "hops", hops=2, operators=OPERATORS, progress=False)
    assert_hops_are_exact(tmp_path / "hops", given, x)


def test_a_hub_of_a_million_equal_values(tmp_path: Path) -> None:
    """Sums in float32, one after the other, are off by a hundredth there."""
    count = 1 << 20
    hub = np.stack([np.arange(1, count + 1), np.zeros(count, np.int64)])
    back = np.stack([np.zeros(9, np.int64), np.arange(1, 10)])
    seeds = {"train": np.arange(0, 12)}
    given = Given(np.concatenate([hub, back], 1), np.full((count + 1, 2), np.float32(0.1)).astype(float), None, seeds)
    graph = convert(given, tmp_path / "graph")
    for threads, memory in ((1, "64MiB"), (3, "1GiB")):
        out = tmp_path / f"hops-{threads}"
        diskgnn.propagate(
            graph, out, hops=2, operators=OPERATORS, threads=threads, memory=memory, progress=False
        )  # fmt: skip
        assert_hops_are_exact(out, given)
    assert open_artifact(tmp_path / "hops-1").digest == open_artifact(tmp_path / "hops-3").digest


def test_degrees_are_those_of_the_whole_graph(tmp_path: Path) -> None:
    """0 <- 1 <- 2, 3: one hop of node 0 needs no list of node 1, but its degree, which is 2."""
    edges = np.array([[1, 2, 3], [0, 1, 1]])
    given = Given(edges, np.array([[1.0], [8.0], [4.0], [2.0]]), None, {"train": np.array([0])})
    diskgnn.propagate(
        convert(given, tmp_path / "graph"), tmp_path / "hops", hops=1, operators=OPERATORS, progress=False
    )
    found = {name: float(values[0, 0]) for name, values in segments(tmp_path / "hops", "train")}
    assert found == pytest.approx({
        "x": 1, "mean/1": 8, "symmetric/1": 8 / np.sqrt(2), "gcn/1": 1 / 2 + 8 / np.sqrt(2 * 3),
    })  # fmt: skip


def test_all_nodes_and_chosen_ones(tmp_path: Path) -> None:
    given = random_graph(5)
    graph = convert(given, tmp_path / "graph")
    some = np.random.default_rng(0).permutation(500)[:77]
    np.save(tmp_path / "some.npy", some)
    calls = {"all": "all", "array": some, "file": tmp_path / "some.npy", "mask": np.isin(np.arange(500), some)}
    for name, nodes in calls.items():
        diskgnn.propagate(
            graph, tmp_path / name, hops=2, operators="gcn,mean", nodes=nodes, progress=False
        )  # fmt: skip
        assert_hops_are_exact(tmp_path / name, given)
    assert Hops.open(tmp_path / "all").records("nodes").shape == (500, 5 * 7)
    np.testing.assert_array_equal(np.load(tmp_path / "array" / "seeds-nodes.npy"), some)
    np.testing.assert_array_equal(np.load(tmp_path / "mask" / "seeds-nodes.npy"), np.sort(some))
    assert open_artifact(tmp_path / "array").digest == open_artifact(tmp_path / "file").digest


def test_records_lie_in_an_order_that_the_seed_names(tmp_path: Path) -> None:
    given = random_graph(6)
    graph = convert(given, tmp_path / "graph")
    seeds = {}
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        diskgnn.propagate(graph, tmp_path / name, hops=1, seed=seed, progress=False)
        seeds[name] = np.load(tmp_path / name / "seeds-train.npy")
        for split in ("valid", "test"):
            np.testing.assert_array_equal(np.load(tmp_path / name / f"seeds-{split}.npy"), given.seeds[split])
    np.testing.assert_array_equal(seeds["a"], seeds["b"])
    assert set(seeds["a"]) == set(seeds["c"]) == set(given.seeds["train"])
    assert (seeds["a"] != seeds["c"]).any()
    assert (seeds["a"] != given.seeds["train"]).any()


def test_labels_and_statistics_are_those_of_the_records(tmp_path: Path) -> None:
    given = random_graph(7)
    given.features[:, 2] = 5  # a constant column has no deviation
    labels = np.random.default_rng(0).integers(0, 4, 500)
    diskgnn.convert(
        tmp_path / "graph", edges=given.edges, features=given.features.astype(np.float32), labels=labels,
        **given.seeds, progress=False,
    )  # fmt: skip
    diskgnn.propagate(tmp_path / "graph", tmp_path / "hops", hops=2, progress=False)
    for split in ("train", "valid", "test"):
        nodes = np.load(tmp_path / "hops" / f"seeds-{split}.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "hops" / f"labels-{split}.npy"), labels[nodes])
    hops = Hops.open(tmp_path / "hops")
    mean, deviation = hops.statistics()
    train = hops.records("train").astype(np.float64)
    np.testing.assert_allclose(mean, train.mean(axis=0), rtol=1e-12, atol=1e-15)
    expected = train.std(axis=0)
    assert expected[2] == 0
    np.testing.assert_allclose(deviation, np.where(expected == 0, 1, expected), rtol=1e-9)


def test_what_only_rounding_tells_apart_is_constant(tmp_path: Path) -> None:
    """Each node of complete graphs keeps its 5, but for float32's roots of degrees; its other column differs."""
    blocks = [np.ones((size, size), bool) for size in (3, 4, 6, 7, 8, 12, 14)]
    edges = np.array(np.nonzero(sp.block_diag(blocks).toarray() & ~np.eye(54, dtype=bool)))
    features = np.stack([np.full(54, 5.0), np.arange(54.0)], 1)
    graph = convert(Given(edges, features, None, {"train": np.arange(54)}), tmp_path / "graph")
    diskgnn.propagate(graph, tmp_path / "hops", hops=2, operators="symmetric", progress=False)
    hops = Hops.open(tmp_path / "hops")
    _, deviation = hops.statistics()
    found = hops.records("train").astype(np.float64).std(axis=0)
    assert 0 < found[4] < 1e-5
    np.testing.assert_allclose(deviation, [1, found[1], 1, found[3], 1, found[5]], rtol=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    given = random_graph(8)
    given.features[[3, 30], 1] = value
    with pytest.warns(DataWarning):
        graph = convert(given, tmp_path / "graph")
    for unit_bytes in (1, 1 << 30):
        told = r"of 2 nodes .* node 3;.*posinf=0"
        with faults.pretending("unit.bytes", unit_bytes), pytest.raises(InputError, match=told):
            diskgnn.propagate(graph, tmp_path / "hops", hops=3, nodes="all", progress=False)
        assert sorted(path.name for path in tmp_path.iterdir()) in (["graph"], [".hops.lock", "graph"])
    lonely = np.array([499])  # no edge leads from there, or to it
    diskgnn.propagate(graph, tmp_path / "hops", hops=3, nodes=lonely, progress=False)


def test_hops_beyond_float32_are_refused_without_a_warning_before(tmp_path: Path) -> None:
    given = random_graph(4, num_nodes=60, width=2, weighted=True)
    with pytest.warns(DataWarning):
        graph = convert(
            Given(given.edges, given.features * 1e37, given.weights * np.float32(1e-38)), tmp_path / "graph"
        )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"expected hops within float32.* 'symmetric/1' of"):
            diskgnn.propagate(graph, tmp_path / "hops", hops=1, operators="symmetric", nodes="all", progress=False)
    assert not (tmp_path / "hops").exists()


def test_arguments_that_cannot_work(tmp_path: Path) -> None:
    given = random_graph(9)
    graph = convert(given, tmp_path / "graph")
    propagate = partial(diskgnn.propagate, graph, tmp_path / "hops", progress=False)
    with pytest.raises(ConfigError, match="hops: expected at least 1, found 0"):
        propagate(hops=0)
    for hops in (1.0, True, None, "a"):
        with pytest.raises(ConfigError, match=f"hops: expected a whole number, found {hops!r}"):
            propagate(hops=hops)
    with pytest.raises(ConfigError, match="hops: expected at most 255, found 50000000"):
        propagate(hops=50_000_000)
    for operators in ("median", "mean,mean", [], None, 3, [1], [["mean"]]):
        with pytest.raises(ConfigError, match="operators: expected different ones of mean, symmetric, gcn"):
            propagate(hops=1, operators=operators)
    for seed in ("a", 1.5, True, None, -1, 1 << 64):
        with pytest.raises(ConfigError, match=rf"seed: expected a number from 0 to 2\^64 - 1, found {seed!r}"):
            propagate(hops=1, seed=seed)
    for nodes, told in {"ragged": ([[1], [2, 3]], "no array"), "none": (np.zeros(500, bool), "no True")}.values():
        with pytest.raises(ConfigError, match=rf"nodes: expected at least one id \[n\], or bool \[500\].*{told}"):
            propagate(hops=1, nodes=nodes)
    with pytest.raises(ConfigError, match="each node once"):
        propagate(hops=1, nodes=[1, 1])
    with pytest.raises(ConfigError, match="rows from 0 to 499"):
        propagate(hops=1, nodes=[500])
    with pytest.raises(SmallBudgetError, match="memory: expected at least"):
        propagate(hops=1, memory=100)
    without = Given(given.edges, given.features)
    with pytest.raises(InputError, match="has no seeds"):
        diskgnn.propagate(convert(without, tmp_path / "plain"), tmp_path / "hops", hops=1, progress=False)
    assert not (tmp_path / "hops").exists()


def test_numbers_of_numpy_and_spaces_are_welcome(tmp_path: Path) -> None:
    graph = convert(random_graph(9), tmp_path / "graph")
    given = {"hops": np.int64(2), "operators": "mean, gcn", "seed": np.uint64((1 << 64) - 1)}
    diskgnn.propagate(graph, tmp_path / "a", **given, progress=False)
    diskgnn.propagate(graph, tmp_path / "b", hops=2, operators=["mean", "gcn"], seed=(1 << 64) - 1, progress=False)
    assert Hops.open(tmp_path / "a").manifest.digest == open_artifact(tmp_path / "b").digest


def test_edges_are_swept_until_no_rows_are_added(tmp_path: Path) -> None:
    """0 <- 1 <- 2 <- 3, and 4 by itself: 8 hops of node 0 need 4 sweeps, those of all nodes one."""
    edges = np.array([[1, 2, 3], [0, 1, 2]])
    given = Given(edges, np.arange(10.0).reshape(5, 2), None, {"train": np.array([0])})
    graph = convert(given, tmp_path / "graph")
    for nodes in (None, "all"):
        out = tmp_path / f"hops-{nodes}"
        found = estimate_propagation(graph, out, hops=8, nodes=nodes, progress=False)
        assert found.rows == ((4,) * 6 + (3, 2, 1) if nodes is None else (5,) * 9)
        assert found.edges == ((3,) * 6 + (2, 1) if nodes is None else (3,) * 8)
        diskgnn.propagate(graph, out, hops=8, nodes=nodes, progress=False)
        assert_hops_are_exact(out, given)
    graph = convert(random_graph(2, num_nodes=5000, width=1), tmp_path / "larger")
    topology_bytes = Graph.open(graph).topology_bytes
    report = diskgnn.propagate(graph, tmp_path / "deep", hops=20, nodes="all", progress=False)
    assert 20 * topology_bytes < report.read_bytes < 27 * topology_bytes  # each hop's edges once, not twice
    predicted = estimate_propagation(graph, tmp_path / "none", hops=20, nodes="all", progress=False)
    assert report.read_bytes == pytest.approx(predicted.read_bytes, rel=0.02)


def test_features_that_hops_overwrote_are_loaded_again_and_no_others(tmp_path: Path) -> None:
    """Three windows of rows, and seeds so few that the last hop takes the place of rows of the first one."""
    leaves = np.arange(20, 3000)
    edges = np.concatenate([[leaves, 10 + leaves % 10], [np.arange(10, 20), np.arange(10)]], axis=1)
    features = np.random.default_rng(0).standard_normal((3000, 8192), np.float32).astype(np.float16)
    given = Given(edges, features, None, {"train": np.arange(10)})
    graph, read_bytes = convert(given, tmp_path / "graph", features=features), list[int]()
    for operators in ("mean", "mean,symmetric"):
        asked = {"hops": 2, "operators": operators, "memory": "512MiB", "progress": False}
        report = diskgnn.propagate(graph, tmp_path / operators, **asked)
        predicted = estimate_propagation(graph, tmp_path / "none", **asked)
        assert report.read_bytes == pytest.approx(predicted.read_bytes, rel=0.02)
        read_bytes.append(report.read_bytes)
    assert_hops_are_exact(tmp_path / "mean,symmetric", given)
    assert 0.3 * features.nbytes < read_bytes[1] - read_bytes[0] < 0.4 * features.nbytes


def test_bytes_of_several_panels_are_as_predicted(tmp_path: Path) -> None:
    """Panels that share stripes read these whole."""
    graph, found = convert(random_graph(13, num_nodes=5000, width=5), tmp_path / "graph"), list[tuple[Any, Any]]()

    def propagate(memory: int, threads: int) -> None:
        asked = {"hops": 2, "operators": "mean", "nodes": "all", "memory": memory, "threads": threads}
        predicted = estimate_propagation(graph, tmp_path / "none", **asked, progress=False)
        found.append((diskgnn.propagate(graph, tmp_path / "hops", **asked, progress=False), predicted))

    with_least(propagate)
    ((report, predicted),) = found
    assert predicted.panels > 1
    assert report.read_bytes == pytest.approx(predicted.read_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("nodes", "edges", "told", "taken"),
    [
        ({}, {"times": np.arange(2000)}, "edges of .* have times.* `diskgnn prepare --temporal", True),
        ({"times": np.arange(500)}, {}, "nodes of .* have times.* ignore_times=True", True),
        ({}, {"features": np.ones((2000, 3), np.float32)}, "edges of .* have features.* `diskgnn prepare`", False),
        ({}, {"seeds": ("train", "valid", "test")}, "seed edges of valid and test.* `diskgnn prepare`", False),
        ({}, {"seeds": ("train",)}, None, True),
    ],
)
def test_what_whole_neighbourhoods_would_pass_over_is_refused(
    tmp_path: Path, nodes: dict[str, np.ndarray], edges: dict[str, Any], told: str | None, taken: bool
) -> None:
    """The future of a seed, what edges say, edges that are asked about."""
    given = random_graph(12)
    all_edges = given.edges[:, :2000]
    splits = dict(zip(edges.get("seeds", ()), np.array_split(all_edges, 3, axis=1), strict=False))
    labelled = {"features": given.features.astype(np.float32), "labels": np.zeros(500, int), **given.seeds}
    schema = {
        "nodes": {"node": labelled | nodes},
        "edges": {"node:to:node": {"edges": all_edges, **{k: v for k, v in edges.items() if k != "seeds"}, **splits}},
    }
    graph, out = tmp_path / "graph", tmp_path / "hops"
    diskgnn.convert(graph, schema=schema, progress=False)
    if told is not None:
        with pytest.raises(ConfigError, match=told):
            diskgnn.propagate(graph, out, hops=2, progress=False)
        with pytest.raises(ConfigError, match=told):
            estimate_propagation(graph, out, hops=2, progress=False)
        assert CliRunner().invoke(main, ["propagate", str(graph), str(out), "--hops", "2"]).exit_code == 2
        assert not out.exists()
    flags = ["--ignore-times"] if taken and told else []
    if taken:
        done = CliRunner().invoke(main, ["propagate", str(graph), str(out), "--hops", "2", *flags])
        assert done.exit_code == 0, done.output
        assert_hops_are_exact(out, Given(all_edges, given.features))
    if taken and told is None:
        with pytest.raises(ConfigError, match=r"ignore_times: only for a graph with times, .*graph has none; leave"):
            diskgnn.propagate(graph, out, hops=2, ignore_times=True, overwrite=True, progress=False)


def test_inspect_says_what_a_record_has(tmp_path: Path) -> None:
    given = random_graph(10)
    diskgnn.propagate(convert(given, tmp_path / "graph"), tmp_path / "hops", hops=2, progress=False)
    found = describe(tmp_path / "hops")
    assert found.source_digest == Graph.open(tmp_path / "graph").manifest.digest
    assert found.facts["segments"] == "x, mean/1, mean/2"
    assert found.facts["record_bytes"] == 4 * 3 * 7
    assert found.facts["train_records"] == len(given.seeds["train"])


def test_propagating_does_without_torch(tmp_path: Path) -> None:
    graph = convert(random_graph(11), tmp_path / "graph")
    call = f"diskgnn.propagate({str(graph)!r}, {str(tmp_path / 'hops')!r}, hops=1)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, diskgnn; {call}; print('torch' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "False"
