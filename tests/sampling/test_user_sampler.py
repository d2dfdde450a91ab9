"""Samplers of the user's own: the minibatches of any function, checked one by one, and as reproducible as ours."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from click.testing import CliRunner
from comparisons import write_learnable_graph
from graphs import make_graph
from typed_batches import CITES, EDGE_WIDTHS, WRITES, TypedGraph
from typed_directories import write_typed_graph

import diskgnn
from diskgnn.baselines.ginex import Ginex
from diskgnn.baselines.in_memory import InMemory
from diskgnn.cli import main
from diskgnn.errors import ConfigError, InputError
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.preparing.repair import repair
from diskgnn.sampling.neighbourhood import Neighbourhood
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.system.resources import Resources


def shards(path):
    return {file.name: file.read_bytes() for file in Path(path).rglob("*.arrow")}


def all_neighbours(graph, num_layers):
    """What fanouts of -1 draw: all in-edges of all nodes so far, in the order of the CSC."""
    kept = {name: edges.topology() for name, edges in graph.edges.items()}

    def sampler(seeds, rng):
        typed = seeds if isinstance(seeds, dict) else {"node": seeds}
        nodes = {name: list(map(int, ids)) for name, ids in typed.items()}
        layers = []
        for _ in range(num_layers):
            layer, before = {}, {name: list(ids) for name, ids in nodes.items()}
            for edge_type, (indptr, indices) in kept.items():
                into = np.array(before[edge_type[2]], np.int64)
                degrees = indptr[into + 1] - indptr[into]
                places = [np.arange(indptr[node], indptr[node + 1]) for node in into]
                positions = np.concatenate([*places, np.empty(0, np.int64)]).astype(np.int64)
                layer[edge_type] = (indices[positions], np.repeat(into, degrees), positions)
                nodes[edge_type[0]] += [n for n in dict.fromkeys(indices[positions].tolist())
                                        if n not in nodes[edge_type[0]]]  # fmt: skip
            layers.append(layer)
        if isinstance(seeds, dict):
            return Neighbourhood.from_edges(seeds, layers)
        return Neighbourhood.from_edges(seeds, [layer["node", "to", "node"] for layer in layers])

    return sampler


@pytest.mark.parametrize("typed", [False, True])
def test_all_neighbours_are_those_of_our_sampler_with_fanouts_of_minus_one(tmp_path, typed):
    if typed:
        graph = write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
        targets = [NodeTarget("paper"), LinkTarget(WRITES, exclude="none", message_edges="all", eval_negatives=3)]
    else:
        graph, targets = make_graph(tmp_path / "graph"), [None]
    options = {"fanouts": [-1, -1], "batch_size": 8, "epochs": 2, "edge_ids": True, "seed": 3}
    for number, target in enumerate(targets):
        ours, theirs = tmp_path / f"ours-{number}", tmp_path / f"theirs-{number}"
        diskgnn.sample(graph, ours, target=target, **options)
        diskgnn.sample(graph, theirs, target=target, sampler=all_neighbours(graph, 2), **options)
        assert shards(ours) == shards(theirs)


def shadow(graph, depth=2, budget=3, num_layers=2):
    """ShaDow (Zeng et al., NeurIPS 2021): random walks find a few nodes around each seed; all layers see all edges
    among these.
    """
    indptr, indices = graph.topology()
    matrix = scipy.sparse.csc_matrix((np.ones(len(indices)), indices, indptr), shape=(len(indptr) - 1,) * 2)

    def sampler(seeds, rng):
        found = list(dict.fromkeys(seeds.tolist()))
        for seed in seeds:
            for _ in range(budget):
                node = seed
                for _ in range(depth):
                    degree = indptr[node + 1] - indptr[node]
                    if degree:
                        node = indices[indptr[node] + rng.integers(degree)]
                    if node not in found:
                        found.append(int(node))
        nodes = np.array(found)
        among = matrix[nodes][:, nodes].tocsc()
        everything = among.indptr, among.indices
        inner = among.indptr[: len(seeds) + 1], among.indices[: among.indptr[len(seeds)]]
        return Neighbourhood(nodes, [everything] * (num_layers - 1) + [inner])

    return sampler


def test_shadow_subgraphs_are_packed_and_trained_as_from_memory(tmp_path):
    write_learnable_graph(tmp_path / "graph")
    graph = Graph.open(tmp_path / "graph")
    options = {"fanouts": [-1, -1], "batch_size": 100, "sampler": shadow(graph), "seed": 2}
    diskgnn.prepare(graph, tmp_path / "packed", epochs=2, cpu_cache="20%", static_cache=0, keep_input_nodes=True,
                    samples=tmp_path / "samples", **options)  # fmt: skip
    into = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    for minibatch in Samples.open(tmp_path / "samples").read("train"):
        nodes = minibatch.only_nodes
        is_among = np.isin(graph.indices, nodes) & np.isin(into, nodes)
        among = list(zip(graph.indices[is_among].tolist(), into[is_among].tolist(), strict=True))
        for (indptr, indices), kept in zip(minibatch.only_blocks, (len(nodes), len(minibatch.seeds)), strict=True):
            destinations = np.repeat(nodes[: len(indptr) - 1], np.diff(indptr))
            found = set(zip(nodes[indices].tolist(), destinations.tolist(), strict=True))
            assert found == {(src, dst) for src, dst in among if dst in set(nodes[:kept].tolist())}
    with InMemory(graph, **options) as online, InMemory(graph, "valid", share=online, **options) as valid:
        expected = diskgnn.train(online, valid_source=valid, hidden=8, epochs=2)
    scores = diskgnn.train(tmp_path / "packed", hidden=8, epochs=2).scores()
    assert {name: scores[name] for name in expected.scores()} == expected.scores()
    with diskgnn.FreshEpochs(graph, tmp_path, cpu_cache="20%", num_epochs=2, window=2, **options) as fresh:
        losses = [epoch.loss for epoch in diskgnn.train(fresh, hidden=8, epochs=2).epochs]
    assert losses == [epoch.loss for epoch in expected.epochs]
    assert "test_user_sampler:shadow" in Samples.open(tmp_path / "samples").config.spec.sampler.name


def test_draws_follow_from_the_minibatch_alone(tmp_path):
    """Whatever the threads, and where a run was stopped."""
    graph = make_graph(tmp_path / "graph")
    options = {"fanouts": [-1, -1], "batch_size": 16, "epochs": 3}
    diskgnn.sample(graph, tmp_path / "one", threads=1, sampler=shadow(graph), **options)
    diskgnn.sample(graph, tmp_path / "many", threads=5, sampler=shadow(graph), **options)
    calls = []

    def stops_once(seeds, rng):
        calls.append(seeds)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return shadow(graph)(seeds, rng)

    for _ in range(2):
        try:
            diskgnn.sample(graph, tmp_path / "stopped", threads=1, sampler=stops_once, **options)
        except KeyboardInterrupt:
            assert not (tmp_path / "stopped").exists()
    assert shards(tmp_path / "one") == shards(tmp_path / "many") == shards(tmp_path / "stopped")
    first, second = (next(iter(Samples.open(tmp_path / "one").read("train"))) for _ in range(2))
    assert first.only_nodes.tolist() == second.only_nodes.tolist()


def broken(change):
    """A sampler that is right but for one thing."""

    def sampler(seeds, rng):
        pieces = {"nodes": np.append(seeds, [n for n in range(40) if n not in seeds][:2]),
                  "indptr": np.arange(len(seeds) + 1), "indices": np.full(len(seeds), len(seeds))}  # fmt: skip
        change(pieces)
        return Neighbourhood(pieces["nodes"], [(pieces["indptr"], pieces["indices"])])

    return sampler


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(nodes=p["nodes"][::-1]), "to be the seeds"),
        (lambda p: p["nodes"].__setitem__(-1, 10**6), r"node nodes are 0 to \d+, found \[1000000\]"),
        (lambda p: p["nodes"].__setitem__(-1, p["nodes"][-2]), "some are there twice"),
        (lambda p: p.update(nodes=p["nodes"].astype(float)), "expected whole numbers"),
        (lambda p: p["indptr"].__setitem__(0, 1), "that ascend from 0"),
        (lambda p: p["indptr"].__setitem__(1, 9), "that ascend from 0"),
        (lambda p: p.update(indptr=p["indptr"][:-1]), "counts of node nodes"),
        (lambda p: p["indices"].__setitem__(0, len(p["nodes"])), "indices: expected numbers from 0 to"),
        (lambda p: p["indices"].__setitem__(0, -1), "indices: expected numbers from 0 to"),
        (lambda p: 1 // 0, "ZeroDivisionError"),
        (lambda p: p.update(nodes={"node": p["nodes"]}), "found nodes by type"),
    ],
)
def test_what_is_no_neighbourhood_is_refused_with_its_minibatch(tmp_path, change, message):
    graph = make_graph(tmp_path / "graph")
    with pytest.raises(InputError, match=rf"minibatch 0 of epoch 0 of the train split.*{message}"):
        diskgnn.sample(graph, tmp_path / "samples", fanouts=[-1], batch_size=8, threads=1, sampler=broken(change))
    assert not (tmp_path / "samples").exists()


def test_edges_lie_in_the_order_of_their_destinations():
    """By hand: 7 has 3 and 4, 9 has 3; then 3 has 9 and 8."""
    found = Neighbourhood.from_edges(
        np.array([7, 9]), [(np.array([3, 3, 4]), np.array([9, 7, 7])), (np.array([9, 8]), np.array([3, 3]))]
    )
    assert found.nodes.tolist() == [7, 9, 3, 4, 8]
    outer, inner = ([each.tolist() for each in block] for block in found.blocks)
    assert inner == [[0, 2, 3], [2, 3, 2]]
    assert outer == [[0, 0, 0, 2, 2], [1, 4]]
    with pytest.raises(ConfigError, match="destination 5 of layer 0 is neither a seed"):
        Neighbourhood.from_edges(np.array([7]), [(np.array([3]), np.array([5]))])


def test_types_that_are_not_there_and_missing_positions_are_refused(tmp_path):
    graph = write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
    assert EDGE_WIDTHS[CITES]  # so positions are needed

    def layer(edge_type, *arrays):
        return lambda seeds, rng: Neighbourhood.from_edges(seeds, [{edge_type: arrays}])

    empty = np.empty(0, np.int64)
    for sampler, message in (
        (layer(("paper", "likes", "paper"), empty, empty), "no edge type"),
        (layer(CITES, empty, empty), "paper:cites:paper: expected indptr, indices and positions"),
        (lambda seeds, rng: seeds, "expected a diskgnn.Neighbourhood, found dict"),
    ):
        with pytest.raises(InputError, match=message):
            diskgnn.sample(graph, tmp_path / "s", fanouts=[-1], batch_size=8, target=NodeTarget("paper"),
                           sampler=sampler)  # fmt: skip


def test_arguments_that_the_function_decides_are_refused(tmp_path):
    graph = make_graph(tmp_path / "graph")
    for changes, message in (
        ({"fanouts": [3]}, "fanouts: a sampler of your own decides"),
        ({"draws": "coordinated"}, "draws: a sampler"),
        ({"weighted": True}, "weighted: a sampler"),
        ({"target": LinkTarget(WRITES)}, "exclude: a sampler of your own is not told"),
        ({"target": LinkTarget(WRITES, exclude="none")}, "message_edges: a sampler of your own is not told"),
        ({"sampler": "nowhere"}, "expected 'module:function', found 'nowhere'"),
        ({"sampler": "no.such.module:f"}, "cannot be imported here"),
        ({"sampler": "numpy:pi"}, "numpy:pi to be a function"),
    ):
        with pytest.raises(ConfigError, match=message):
            SamplingSpec(**{"fanouts": [-1], "batch_size": 8, "sampler": shadow(graph), **changes})
    with pytest.raises(ConfigError, match="ginex draws in its own way"):
        Ginex(graph, fanouts=[-1], batch_size=8, sampler=shadow(graph))


MODULE = """
import numpy as np
from diskgnn import Neighbourhood

def alone(seeds, rng):
    "Nothing but the seeds."
    return Neighbourhood(seeds, [(np.zeros(len(seeds) + 1, int), np.empty(0, int))])

alone.version = "1"
"""


def test_the_command_line_names_a_function_and_repair_calls_it_again(tmp_path, monkeypatch):
    graph = make_graph(tmp_path / "graph")
    (tmp_path / "my_own_sampler.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    arguments = ["sample", "graph", "samples", "--fanouts", "-1", "--batch-size", "8", "--sampler"]
    result = CliRunner().invoke(main, [*arguments, "my_own_sampler:alone"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    samples = Samples.open("samples")
    assert (samples.config.spec.sampler.name, samples.config.spec.sampler.version) == ("my_own_sampler:alone", "1")
    before = shards("samples")
    damaged = next(Path("samples").rglob("train*.arrow"))
    damaged.write_bytes(damaged.read_bytes()[::-1])
    assert [damage.file for damage in repair("samples", graph=Graph.open(graph.manifest.path),
                                             resources=Resources.of("auto", 1))] == [damaged.name]  # fmt: skip
    assert shards("samples") == before
    assert functools.reduce(
        int.__add__, [len(each.only_nodes) for each in Samples.open("samples").read("train")]
    ) == len(graph.splits["train"])
