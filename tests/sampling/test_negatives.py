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
from typed_graphs import WRITES, citations

import diskgnn
from diskgnn.errors import ConfigError, DataWarning
from diskgnn.graph.graph import Graph
from diskgnn.sampling.negatives import Appearing, AvoidedDestinations, NegativeDestinations
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
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sampling_need import sampling_need
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget
from diskgnn.system.resources import Resources
for avoid in ("seeds", "known"):
    target = LinkTarget(("node", "to", "node"), exclude="none", avoid=avoid)
    try:
        plan = SamplingPlan(Graph.open(sys.argv[1]), SamplingSpec([1], 10, target=target))
        Resources(0, 1).within(sampling_need(plan, Resources(0, 1)))
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


@pytest.mark.parametrize(("by", "num_nodes"), [("uniform", 1000), ("popularity", 1000), ("popularity", 500_000)])
def test_drawing_takes_no_more_than_was_said(tmp_path, by, num_nodes):
    """From counting the seed edges' ends to the first minibatch."""
    rng = np.random.default_rng(2)
    edges, train = rng.integers(0, num_nodes, (2, 1000)), rng.integers(0, num_nodes, (2, 500_000))
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


@pytest.mark.parametrize(("by", "expected"), [("uniform", [1, 1, 1, 0]), ("popularity", [1, 3, 2, 0])])
def test_negatives_are_drawn_among_nodes_that_are_there(by, expected):
    """By hand: at 5, nodes 0, 1, 2 and 4 are there; source 0 avoids 4 and 3. The others are drawn by their places."""
    times = np.array([5, 1, 3, 9, 2])
    avoided = AvoidedDestinations([np.array([[0, 4], [0, 3]])], 5, numbers=Appearing(times).numbers())
    avoided.fill()
    places = None if by == "uniform" else np.array([1, 3, 2, 7, 5])
    negatives = NegativeDestinations(avoided, 5, places, Appearing(times))
    bits = np.random.default_rng(0).integers(0, 2**63, (1, 6000)).astype(np.uint64) * np.uint64(2)
    counts = np.bincount(negatives.draw(np.array([0]), bits, np.array([5]))[0], minlength=5)
    share = np.array(expected) / sum(expected)
    assert counts[3] == counts[4] == 0
    chi_square = (((counts[:3] - 6000 * share[:3]) ** 2) / (6000 * share[:3])).sum()
    assert chi_square < 13.8  # 2 degrees of freedom: 1 in 1000
    with pytest.raises(ConfigError, match="at time 0, and no destination that can be drawn exists then"):
        negatives.draw(np.array([0]), bits[:, :1], np.array([0]))


def test_a_source_with_edges_to_all_that_exist_draws_some_of_these():
    """By hand: at 5, only node 0 exists, and source 0 has an edge to it."""
    appearing = Appearing(np.array([5, 9, 7]))
    avoided = AvoidedDestinations([np.array([[0, 0], [0, 1]])], 3, numbers=appearing.numbers())
    avoided.fill()
    negatives = NegativeDestinations(avoided, 3, None, appearing)
    bits = np.arange(20, dtype=np.uint64)[None] << np.uint64(59)
    with pytest.warns(DataWarning, match="edges to all destinations that exist"):
        assert set(negatives.draw(np.array([0]), bits, np.array([5])).ravel()) == {0}
    assert set(negatives.draw(np.array([0]), bits, np.array([8])).ravel()) == {2}


@pytest.mark.filterwarnings("ignore:negatives. some sources have edges to all")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("by", ["uniform", "popularity"])
@pytest.mark.parametrize("avoid", ["seeds", "known", "none"])
def test_no_negative_appears_after_its_pair(tmp_path, avoid, by, strict):
    """Counted with NumPy over all splits: authors have no times, so a pair is there when its paper is."""
    graph = citations(tmp_path / "graph", first_time=-9)
    target = LinkTarget(WRITES, negatives=3, eval_negatives=7, avoid=avoid, negatives_by=by)
    plan = SamplingPlan(graph, SamplingSpec([2], 16, target=target, temporal="uniform", strict_time=strict, epochs=2))
    appears, drawn = np.asarray(graph.nodes["paper"].times), []
    for split, epoch in (("train", 0), ("train", 1), ("valid", 0)):
        for planned in plan.minibatches(split, epoch):
            papers = planned.seeds[: planned.seed_counts[0]][planned.pairs.dst]
            positives = int(planned.pairs.label.sum())
            of_pair = np.repeat(papers[:positives], len(papers) // positives - 1)
            assert (appears[papers[positives:]] <= appears[of_pair]).all()
            # What both ends draw is the pair's own, and with strict times what is before it.
            moments = planned.times[: planned.seed_counts[0]]
            assert (moments == np.concatenate([appears[papers[:positives]], appears[of_pair]]) - strict).all()
            drawn += (appears[of_pair] - appears[papers[positives:]]).tolist()
    assert min(drawn) == 0  # what appears with the pair exists
    assert max(drawn) > 10
