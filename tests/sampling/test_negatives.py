"""Pairs without an edge against sets and lists of Python; what they take of memory."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_oracle import negatives_of

import diskgnn
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.sampling.negatives import AvoidedDestinations
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.target_seeds import seeds_of
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget

LINKS = ("node", "to", "node")
# In a process of its own: in those of tests, nothing is refused for what the code takes beside its arrays.
REFUSED = """
import sys
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.sampling.memory_division import for_sampling
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget
from diskgnn.system.resources import Resources
for avoid in ("seeds", "known"):
    target = LinkTarget(("node", "to", "node"), exclude="none", avoid=avoid)
    try:
        for_sampling(SamplingPlan(Graph.open(sys.argv[1]), SamplingSpec([1], 10, target=target)), Resources(0, 1))
    except ConfigError as error:
        print(avoid, error)
"""


def lists_of(avoided):
    avoided.fill()
    bounds = zip(avoided.indptr[:-1], avoided.indptr[1:], strict=True)
    return {
        source: avoided.destinations[first:end].tolist()
        for source, (first, end) in zip(avoided.sources.tolist(), bounds, strict=True)
    }


def test_lists_of_many_edges_are_those_of_numpy():
    """More than are worked on at a time, one source with more than that by itself; known ones come in pieces."""
    rng, num_destinations = np.random.default_rng(0), 1 << 20
    given = np.stack([rng.zipf(1.5, 100_000) % 5000, rng.integers(0, num_destinations, 100_000)], axis=1)
    hub = np.stack([np.full(200_000, 7), rng.integers(0, num_destinations, 200_000)], axis=1)
    known = np.stack([rng.integers(0, 6000, 150_000), rng.integers(0, 300, 150_000)], axis=1)
    pieces = [(part[:, 0], part[:, 1]) for part in np.array_split(known, 7)]
    avoided = AvoidedDestinations([given, hub, given[:100]], num_destinations, lambda: pieces)
    found = lists_of(avoided)
    counted = known[np.isin(known[:, 0], np.concatenate([given[:, 0], [7]]))]
    every = np.unique(np.concatenate([given, hub, counted]), axis=0)
    assert list(found) == np.unique(np.concatenate([given[:, 0], [7]])).tolist()
    assert [[source, each] for source, destinations in found.items() for each in destinations] == every.tolist()
    assert avoided.destinations.nbytes == 4 * len(every)
    assert 4 * avoided.num_edges < avoided.num_bytes < 4 * avoided.num_edges + (32 << 20)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 30), st.booleans())
def test_the_rth_place_that_is_left_is_drawn(seed, num_destinations, num_edges, popular):
    rng = np.random.default_rng(seed)
    edges = np.stack([rng.integers(0, 4, num_edges), rng.integers(0, num_destinations, num_edges)], axis=1)
    places = rng.integers(0, 4, num_destinations) if popular else np.ones(num_destinations, np.int64)
    negatives = negatives_of(edges, num_destinations, places if popular else None)
    for source in np.unique(edges[:, 0]):
        taken = set(edges[edges[:, 0] == source, 1].tolist())
        left = [each for each in range(num_destinations) if each not in taken for _ in range(places[each])]
        if not left:
            with pytest.raises(ConfigError, match=f"source {source} has edges to all"):
                negatives.draw(np.array([source]), np.zeros((1, 1), np.uint64))
            continue
        # Bits whose share of 2^64 falls into the middle of each place.
        bits = np.array([[((2 * each + 1) << 63) // len(left) for each in range(len(left))]], np.uint64)
        assert negatives.draw(np.array([source]), bits).tolist() == [left]


def test_known_edges_count_in_the_budget(tmp_path):
    """4 bytes for each that a seed's source has, 12 by popularity; too little is refused before anything is there."""
    rng, num_nodes, num_edges = np.random.default_rng(1), 40_000, 1_000_000
    edges = np.unique(rng.integers(0, num_nodes, (num_edges, 2)), axis=0).T
    links = {"edges": edges, "train": np.stack([np.arange(100), np.arange(100)])}
    nodes = {"node": {"features": np.zeros((num_nodes, 1), np.float32)}}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": nodes, "edges": {":".join(LINKS): links}})
    graph = Graph.open(tmp_path / "graph")

    def plan(**options):
        return SamplingPlan(graph, SamplingSpec([1], 10, target=LinkTarget(LINKS, exclude="none", **options)))

    of_sources = int((edges[0] < 100).sum())
    few, seeds = plan(avoid="known"), plan()
    assert 4 * of_sources < few.negatives_bytes < 4 * of_sources + (1 << 20)
    assert seeds.negatives_bytes < few.negatives_bytes
    assert plan(avoid="known", negatives=0).negatives_bytes == 0
    links["train"] = np.stack([np.arange(num_nodes), np.arange(num_nodes)])
    diskgnn.convert(tmp_path / "all", schema={"nodes": nodes, "edges": {":".join(LINKS): links}})
    graph = Graph.open(tmp_path / "all")
    every, popular = plan(avoid="known"), plan(avoid="known", negatives_by="popularity")
    assert every.negatives_bytes > 4 * edges.shape[1]
    assert popular.negatives_bytes > every.negatives_bytes + 8 * (edges.shape[1] + num_nodes)
    done = subprocess.run([sys.executable, "-c", REFUSED, tmp_path / "all"], capture_output=True, text=True, check=True)
    smallest = dict(re.findall(r"(\w+) memory: expected at least (\d+) bytes .* to sample", done.stdout))
    assert int(smallest["known"]) - int(smallest["seeds"]) == every.negatives_bytes - plan().negatives_bytes


@pytest.mark.parametrize(("by", "num_nodes"), [("uniform", 1000), ("popularity", 1000), ("popularity", 2_000_000)])
def test_drawing_takes_no_more_than_was_said(tmp_path, by, num_nodes):
    """From counting the seed edges' ends to the first minibatch."""
    rng = np.random.default_rng(2)
    edges, train = rng.integers(0, num_nodes, (2, 1000)), rng.integers(0, num_nodes, (2, 2_000_000))
    nodes = {"node": {"num_nodes": num_nodes}}
    links = {":".join(LINKS): {"edges": edges, "train": train}}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": nodes, "edges": links})
    target = LinkTarget(LINKS, exclude="none", negatives_by=by)
    seeds = seeds_of(Graph.open(tmp_path / "graph"), SamplingSpec([1], 10, target=target))
    tracemalloc.start()
    try:
        said = seeds.negatives_bytes
        counted = tracemalloc.get_traced_memory()[1]
        seeds.batch("train", 0, np.arange(1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counted <= said
    assert said / 3 < peak <= said
