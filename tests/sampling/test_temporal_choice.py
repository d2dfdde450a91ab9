"""A graph with times has to say at every door what they are for; ignoring them draws as if there were none."""

from __future__ import annotations

import re
import shlex
import warnings

import numpy as np
import pytest
from commands import run
from typed_graphs import CITES, WRITES, citations

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.errors import ConfigError, DataWarning
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget

OPTIONS = {"fanouts": [3, 2], "batch_size": 8, "seed": 4}
DOORS = {
    "sample": lambda graph, out, **given: diskgnn.sample(graph, out, **given),
    "prepare": lambda graph, out, **given: diskgnn.prepare(graph, out, cpu_cache=0, **given),
    "estimate": lambda graph, out, **given: diskgnn.estimate(graph, out, cpu_cache=0, max_seconds=1, **given),
    "fresh epochs": lambda graph, out, **given: diskgnn.FreshEpochs(graph, out, cpu_cache=0, **given).close(),
    "in memory": lambda graph, out, **given: InMemory(graph, **given).close(),
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return citations(tmp_path_factory.mktemp("choice") / "graph")


def years(path, times):
    """Eight papers that cite one another, with or without years."""
    edges = np.stack(np.nonzero(~np.eye(8, dtype=bool)))
    node = {"features": np.eye(8, dtype=np.float32), "labels": np.arange(8) % 2, "train": np.arange(8)}
    times = {"times": np.arange(8) + 1990} if times else {}
    diskgnn.convert(path, schema={"nodes": {"node": node | times}, "edges": {"node:to:node": {"edges": edges}}})
    return Graph.open(path)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_asks_and_takes_each_answer(graph, tmp_path, door):
    with pytest.raises(ConfigError) as refused:
        DOORS[door](graph, tmp_path / "none", **OPTIONS)
    message = str(refused.value)
    assert "edges of type paper:cites:paper, nodes of type paper" in message
    assert all(f"temporal='{each}'" in message for each in ("uniform", "last", "ignore"))
    assert not any(tmp_path.iterdir())
    for temporal in ("uniform", "last", "ignore"):
        DOORS[door](graph, tmp_path / temporal, temporal=temporal, **OPTIONS)


def test_ignoring_times_draws_what_a_graph_without_them_draws(tmp_path):
    for name, times, temporal in (("timed", True, "ignore"), ("plain", False, None), ("said", False, "ignore")):
        found = years(tmp_path / name, times)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            diskgnn.sample(found, tmp_path / f"{name}-samples", fanouts=[2, 2], batch_size=3, temporal=temporal)
        said = [str(each.message) for each in told if issubclass(each.category, DataWarning)]
        assert len(said) == (name == "said"), said
        assert all("temporal: expected times that draws could ignore, found none" in each for each in said)
    timed, plain, said = (Samples.open(tmp_path / f"{name}-samples") for name in ("timed", "plain", "said"))
    assert (timed.config.spec.temporal, plain.config.spec.temporal) == ("ignore", None)
    for other in (timed, said):
        for one, two in zip(plain.read("train"), other.read("train"), strict=True):
            assert two.trees is None
            np.testing.assert_array_equal(one.input_nodes, two.input_nodes)
            for (a,), (b,) in zip(one.blocks, two.blocks, strict=True):
                np.testing.assert_array_equal(a.indices, b.indices)


def test_only_types_that_draws_reach_are_asked_about(graph):
    """Authors have no times; papers do, and their edges to one another."""

    def plan(**options):
        return SamplingPlan(graph, SamplingSpec(batch_size=8, **options))

    papers, links = NodeTarget("paper"), LinkTarget(WRITES, negatives=0, eval_negatives=0)
    for fanouts, target in (({WRITES: [3]}, papers), ({WRITES: [3], CITES: [0]}, links)):
        assert plan(fanouts=fanouts, target=target).spec.temporal is None
    for fanouts, target, types in (
        ({CITES: [0, 1]}, papers, "edges of type paper:cites:paper, nodes of type paper"),
        ({WRITES: [3]}, LinkTarget(WRITES, negatives=1), "nodes of type paper"),  # which negatives are drawn from
    ):
        with pytest.raises(ConfigError, match=f"temporal: expected a choice, as {types} of .* have times"):
            plan(fanouts=fanouts, target=target)


def test_a_graph_without_times_draws_in_none(tmp_path):
    with pytest.raises(ConfigError, match="temporal: the seeds, nodes of type 'node', have no times"):
        diskgnn.sample(years(tmp_path / "plain", False), tmp_path / "out", temporal="uniform", **OPTIONS)


def test_the_command_that_is_proposed_says_it_and_works(tmp_path):
    """Where seeds have times, draws go by them; where they have none, they are said to be ignored."""
    for name, timed, expected in (("papers", "node", "uniform"), ("others", "edge", "ignore")):
        folder = tmp_path / name
        folder.mkdir()
        times = np.arange(3) + 1990
        for file, array in (("edges", np.array([[0, 1, 2], [1, 2, 0]])), ("x", np.ones((3, 1), np.float32)),
                            ("y", np.arange(3)), ("times", times)):  # fmt: skip
            np.save(folder / f"{file}.npy", array)
        at = {each: "times: times.npy" if each == timed else "" for each in ("node", "edge")}
        (folder / "graph.yaml").write_text(
            f"nodes:\n  node:\n    features: x.npy\n    labels: y.npy\n    train: [0, 1, 2]\n    {at['node']}\n"
            f"edges:\n  node:to:node:\n    edges: edges.npy\n    {at['edge']}\n"
        )
        made = " ".join(run("convert", folder / "graph", "--schema", folder).stderr.split())
        assert f"have times{':' if expected == 'uniform' else ','}" in made
        command = re.search(r"next: diskgnn (.*) # predicts", made)[1]
        assert f"--temporal {expected}" in command
        run(*[each for each in shlex.split(command) if each != "--estimate"])
        assert Packed.open(folder / "graph-packed").config.samples.spec.temporal == expected
