"""Windows of time against all edges, one by one in NumPy: which are drawn, in memory and by sweeps; and how often."""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minibatch_arrays import assert_same_minibatch
from sampling_oracle import assert_is, sample_by_hand

import diskgnn
from diskgnn._native import DrawRequest, Expansion32, NeighborSampler, Relation, TopologySweep, TreeExpansion32
from diskgnn.errors import ConfigError, DataWarning
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sweeping import SweepingSampler
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import EdgeType
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.system.resources import Resources

pytestmark = pytest.mark.filterwarnings("ignore:.*they look like different units")  # days of one, year 0 of another

ORDERED, PLACED, VIEWS = ("order", "of", "user"), ("user", "rev_of", "order"), ("user", "views", "user")
DAY = 86400
LEAST = -(2**63)


def shop(
    path: Path, *, users: Any, orders: Any, of: Any, views: Any, view_times: Any, view_weights: Any = None, **said: Any
) -> Graph:
    """Orders refer to users, and both have times; views of users by users have times of their own, of users that may
    not be there yet."""
    schema = {
        "nodes": {
            "user": {"features": np.ones((len(users), 1), np.float32), "times": np.asarray(users, np.int64)},
            "order": {"num_nodes": len(orders), "times": np.asarray(orders, np.int64)},
        },
        "edges": {
            "order:of:user": {
                "edges": np.stack([np.arange(len(orders)), of]), "reverse": True, "foreign_key": True, "keep_ids": True,
            },
            "user:views:user": {
                "edges": np.asarray(views, np.int64).reshape(2, -1), "times": np.asarray(view_times, np.int64),
                "keep_ids": True, "weights": view_weights,
            },
        },
        **said,
    }  # fmt: skip
    diskgnn.convert(path, schema=schema, null_time="always")
    return Graph.open(path)


def clock_and_latest(graph: Graph, edge_type: EdgeType) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Of each edge, in the order of the graph, how old it is, and the latest time that anybody says of it."""
    edges, sources = graph.edges[edge_type], graph.nodes[edge_type[0]]
    of_source = None if sources.times is None else sources.times[edges.indices]
    known = [each for each in (edges.times, of_source) if each is not None]
    return (known[0], np.maximum.reduce(known)) if known else (None, None)


def drawn_by_hand(
    graph: Graph, seeds: list[int], times: list[int], fanouts: list[int], windows: Mapping[EdgeType, int], *,
    strict: bool, last: bool, starts: list[int] | None = None,
) -> list[dict[EdgeType, set[tuple[int, int]]]]:  # fmt: skip
    """By layer from the seeds outwards, (tree, position) of the edges of each type that users as seeds draw."""
    known = {"user": [*enumerate(seeds)], "order": list[tuple[int, int]]()}
    ages = {edge_type: clock_and_latest(graph, edge_type) for edge_type in graph.edges}

    @functools.cache
    def passing(tree: int, edge_type: EdgeType) -> np.ndarray:
        clock, latest = ages[edge_type]
        passes = np.ones(graph.edges[edge_type].num_edges, bool)
        if latest is not None:
            passes &= latest < times[tree] if strict else latest <= times[tree]
        if edge_type in windows:
            # In Python's whole numbers, which have no end.
            begin = times[tree] - windows[edge_type]
            begin = begin if starts is None else max(begin, starts[tree])
            passes &= np.array([int(each) > begin and each != LEAST for each in clock], bool)
        return passes

    layers = []
    for fanout in fanouts:
        before, found = {name: list(nodes) for name, nodes in known.items()}, {}
        for edge_type, edges in graph.edges.items():
            clock, chosen = ages[edge_type][0], found.setdefault(edge_type, set())
            for tree, node in before[edge_type[2]]:
                begin, end = edges.indptr[node : node + 2].tolist()
                these = begin + np.flatnonzero(passing(tree, edge_type)[begin:end])
                assert last or fanout < 0
                if fanout >= 0:
                    these = these[np.lexsort((these, -clock[these].astype(object)))][:fanout]
                chosen |= {(tree, int(each)) for each in these}
                for each in dict.fromkeys(edges.indices[these].tolist()):
                    if (tree, each) not in known[edge_type[0]]:
                        known[edge_type[0]].append((tree, each))
        layers.append(found)
    return layers


def drawn_of(graph: Graph, minibatch: Any) -> list[dict[EdgeType, set[tuple[int, int]]]]:
    """The same of a minibatch."""
    layers = []
    for blocks in minibatch.blocks[::-1]:
        found = {}
        for edge_type, block in zip(graph.edges, blocks, strict=True):
            trees = minibatch.trees[graph.nodes[edge_type[0]].number][block.indices].tolist()
            found[edge_type] = {*zip(trees, block.positions.tolist(), strict=True)}
            assert len(found[edge_type]) == len(block.indices)
        layers.append(found)
    return layers


TIMES = st.one_of(st.integers(-6, 6), st.sampled_from([LEAST, LEAST + 1, 2**62]))
WINDOWS = st.one_of(st.integers(0, 9), st.sampled_from([2**62, 2**63 - 1]))


@st.composite
def shops(draw: Any) -> dict[str, Any]:
    """Graphs with many equal times, before and after 0, missing ones, and seeds at any of these times."""
    num_users, num_orders, num_views = draw(st.integers(1, 4)), draw(st.integers(1, 12)), draw(st.integers(1, 12))

    def numbers(count: int, of: Any) -> list[int]:
        return draw(st.lists(of, min_size=count, max_size=count))

    some_user = st.integers(0, num_users - 1)
    num_seeds, copies = draw(st.integers(1, 4)), draw(st.sampled_from([1, 30]))  # lists that are searched are not short
    given = {
        "users": numbers(num_users, TIMES), "orders": copies * numbers(num_orders, TIMES),
        "of": copies * numbers(num_orders, some_user), "view_times": copies * numbers(num_views, TIMES),
        "views": np.tile(np.reshape(numbers(2 * num_views, some_user), (2, -1)), copies),
    }  # fmt: skip
    return {
        "graph": given,
        "seeds": numbers(num_seeds, some_user),
        "times": numbers(num_seeds, st.one_of(st.integers(-8, 8), st.sampled_from([-(2**63) + 2, 2**63 - 2]))),
        "starts": draw(st.none() | st.lists(
            st.integers(-8, 8) | st.sampled_from([LEAST, 2**63 - 1]), min_size=num_seeds, max_size=num_seeds)),
        "windows": draw(st.dictionaries(st.sampled_from([ORDERED, PLACED, VIEWS]), WINDOWS, min_size=1)),
        "fanouts": draw(st.sampled_from([[-1, -1], [2, 2], [1, -1, 3]])),
        "strict": draw(st.booleans()),
    }  # fmt: skip


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=shops(), temporal=st.sampled_from(["uniform", "last"]), order=st.sampled_from(["hash", "time"]))
def test_what_lies_in_the_window_is_drawn_and_nothing_else(case: dict[str, Any], temporal: str, order: str) -> None:
    fanouts = case["fanouts"] if temporal == "last" else [-1] * len(case["fanouts"])
    with tempfile.TemporaryDirectory() as folder:
        graph = shop(Path(folder) / "graph", order=order, **case["graph"])
        target = NodeTarget("user", {"train": case["seeds"]}, {"train": case["times"]})
        spec = SamplingSpec(
            fanouts, 3, target=target, temporal=temporal, temporal_window=case["windows"], strict_time=case["strict"],
            edge_ids=True, shuffle=False,
        )  # fmt: skip
        plan = SamplingPlan(graph, spec)
        planned, sampler, starts = list(plan.minibatches("train", 0)), plan.parts.load(), case["starts"]
        parts = [slice(3 * number, 3 * number + 3) for number in range(len(planned))]
        if starts is not None:
            planned = [replace(each, starts=np.array(starts[part], np.int64))
                       for each, part in zip(planned, parts, strict=True)]  # fmt: skip
        with SweepingSampler(plan.parts, Resources(1 << 20, 2)) as sweeping:
            swept = list(sweeping.sample(planned))
        for each, other, part in zip(planned, swept, parts, strict=True):
            found = each.draw(sampler)
            assert_same_minibatch(found, other)
            assert drawn_of(graph, found) == drawn_by_hand(
                graph, case["seeds"][part], case["times"][part], fanouts, case["windows"], strict=case["strict"],
                last=temporal == "last", starts=None if starts is None else starts[part],
            )  # fmt: skip


def weeks(path: Path, **said: Any) -> Graph:
    """User 0 came on day 0 and ordered on each day since; user 1 ordered nothing. Both saw each other daily."""
    days = np.arange(40) * DAY
    return shop(
        path, users=[0, 0], orders=days, of=np.zeros(40, int), views=np.stack([np.ones(40, int), np.zeros(40, int)]),
        view_times=days, **said,
    )  # fmt: skip


def sampled(graph: Graph, out: Path, **options: Any) -> dict[EdgeType, list[int]]:
    """The edges, by the user's numbers, that user 0 draws at the end of day 30: in one layer, and from its orders in
    another."""
    target = NodeTarget("user", {"train": [0]}, {"train": [30 * DAY]})
    diskgnn.sample(graph, out, fanouts=[-1, -1], batch_size=1, target=target, edge_ids=True, overwrite=True,
                   **{"temporal": "uniform"} | options)  # fmt: skip
    (minibatch,) = Samples.open(out).read("train")
    found = {}
    for number, edge_type in enumerate(graph.edges):
        layer = minibatch.blocks[0 if edge_type == PLACED else 1]
        numbers = np.load(graph.manifest.file(edge_file(artifacts.EDGE_IDS, edge_type)))
        found[edge_type] = sorted(numbers[np.unique(layer[number].positions)].tolist())
    return found


def test_rows_that_refer_are_in_the_window_and_those_that_are_referred_to_are_looked_up(tmp_path: Path) -> None:
    graph = weeks(tmp_path / "graph", time_unit="s")
    found = sampled(graph, tmp_path / "samples", temporal_window="7d")
    assert found == {ORDERED: [*range(24, 31)], PLACED: [*range(24, 31)], VIEWS: [*range(24, 31)]}
    listed = sampled(graph, tmp_path / "samples", temporal_window={PLACED: "7d", "order:of:user": 3 * DAY})
    assert listed == {ORDERED: [28, 29, 30], PLACED: [], VIEWS: [*range(31)]}
    strict = sampled(graph, tmp_path / "samples", temporal_window="168h", strict_time=True)
    assert strict == {ORDERED: [*range(24, 30)], PLACED: [*range(24, 30)], VIEWS: [*range(24, 30)]}


def test_the_same_window_is_the_same_samples_however_it_is_said(tmp_path: Path) -> None:
    graph = weeks(tmp_path / "graph", time_unit="s")
    options = {"fanouts": [2, 2], "batch_size": 1, "temporal": "last"}
    target = NodeTarget("user", {"train": [0]}, {"train": [30 * DAY]})
    said = ["7d", 7 * DAY, "1w", f"{7 * DAY}s", {ORDERED: "168h", VIEWS: 7 * DAY}, 8 * DAY, None]
    digests = []
    for number, window in enumerate(said):
        diskgnn.sample(graph, tmp_path / f"{number}", target=target, temporal_window=window, **options)
        digests.append(open_artifact(tmp_path / f"{number}").digest)
    assert len({*digests[:5]}) == 1
    assert len({*digests}) == 3
    kept = Samples.open(tmp_path / "0").config
    assert kept.spec.temporal_window == {ORDERED: f"{7 * DAY}s", VIEWS: f"{7 * DAY}s"}
    assert kept == SamplingPlan(graph, SamplingSpec(target=target, temporal_window="7d", **options)).config()


def test_a_window_with_a_unit_needs_that_of_the_graph(tmp_path: Path) -> None:
    plain, years = weeks(tmp_path / "plain"), weeks(tmp_path / "years", time_unit="y")
    with pytest.raises(ConfigError, match=r"found '7d', and nobody said what the times of .*--time-unit s"):
        sampled(plain, tmp_path / "samples", temporal_window="7d")
    assert sampled(plain, tmp_path / "samples", temporal_window=7 * DAY)[ORDERED] == [*range(24, 31)]
    for window in ("7d", "90min"):
        with pytest.raises(ConfigError, match=r"a whole number of the times of .*, which are in y"):
            sampled(years, tmp_path / "samples", temporal_window=window)
    assert sampled(years, tmp_path / "samples", temporal_window="5y")[ORDERED] == [30]
    with pytest.raises(ConfigError, match=r"at most 2\^63 - 1"):
        sampled(weeks(tmp_path / "short", time_unit="ns"), tmp_path / "samples", temporal_window="999999w")


def test_a_number_is_said_to_be_in_the_unit_of_the_graph(tmp_path: Path) -> None:
    graph, plain = weeks(tmp_path / "graph", time_unit="s"), weeks(tmp_path / "plain")
    for window in (60, "60", {ORDERED: 60}):
        with pytest.warns(
            DataWarning, match=r"temporal_window: 60 has no unit, so it is 60 s, .* write '60s' .* '60d'"
        ):
            sampled(graph, tmp_path / "samples", temporal_window=window)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="temporal_window")
        sampled(graph, tmp_path / "samples", temporal_window="60s")
        sampled(plain, tmp_path / "samples", temporal_window=60)  # nobody knows its unit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temporal_window": "7 fortnights"},
            "temporal_window: expected a whole number .* or one with a unit, such as",
        ),
        ({"temporal_window": -1}, "temporal_window: expected at least 0, found -1"),
        ({"temporal_window": 1.5}, "temporal_window: expected a whole number, found 1.5"),
        ({"temporal_window": "1.5d"}, "temporal_window: expected a whole number .* found '1.5d'"),
        ({"temporal_window": {}}, "temporal_window: expected a window of some edge type, found none"),
        ({"temporal_window": {"order:of": 3}}, "temporal_window: expected 'source:name:destination', found 'order:of'"),
        ({"temporal_window": {("user", "of", "order"): 3}}, "the graph has no edge type user:of:order, only order:of"),
        ({"temporal_window": 3, "temporal": "ignore"}, "temporal_window: draws have no times; pass temporal='uniform'"),
    ],
)
def test_what_is_no_window_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sampled(weeks(tmp_path / "graph"), tmp_path / "samples", **options)


def test_one_window_needs_to_know_which_edges_it_is_for(tmp_path: Path) -> None:
    """Nodes that have times alone do not say whether edges lead to what refers or to what is referred to."""
    node = {"features": np.eye(8, dtype=np.float32), "labels": np.arange(8) % 2, "train": np.arange(8)}
    edges = {"edges": np.stack(np.nonzero(~np.eye(8, dtype=bool)))}
    types = {"node:to:node": edges, "node:from:node": edges}
    diskgnn.convert(tmp_path / "two", schema={"nodes": {"node": node | {"times": np.arange(8)}}, "edges": types})
    two, options = Graph.open(tmp_path / "two"), {"fanouts": [-1], "batch_size": 8, "temporal": "uniform"}
    with pytest.raises(ConfigError, match="only nodes have times where edges of node:to:node, node:from:node begin.*"
                                          r"\(node:to:node=3\)"):  # fmt: skip
        SamplingPlan(two, SamplingSpec(temporal_window=3, **options))
    assert SamplingPlan(two, SamplingSpec(temporal_window={"node:to:node": 3}, **options))
    followed = {"fanouts": {"node:to:node": [-1]}}
    with pytest.raises(ConfigError, match="edges of node:to:node begin"):
        SamplingPlan(two, SamplingSpec(temporal_window=3, **options | followed))
    times = np.arange(8)
    diskgnn.convert(
        tmp_path / "one", schema={"nodes": {"node": node | {"times": times}}, "edges": {"node:to:node": edges}}
    )
    one = Graph.open(tmp_path / "one")
    plan = SamplingPlan(one, SamplingSpec(temporal_window=3, shuffle=False, **options))
    (minibatch,) = [each.draw(plan.parts.load()) for each in plan.minibatches("train", 0)]
    assert np.diff(minibatch.blocks[0][0].indptr).tolist() == [0, 1, *[2] * 6]  # t - 2 and t - 1, not t itself
    diskgnn.convert(tmp_path / "none", schema={"nodes": {"node": node}, "edges": {"node:to:node": edges}})
    target = NodeTarget("node", {"train": [0]}, {"train": [3]})
    for window in (3, {"node:to:node": 3}, "60d"):
        message = r"temporal_window: expected edges or nodes with times, found none .*convert --set times="
        with pytest.raises(ConfigError, match=message), pytest.warns():
            SamplingPlan(Graph.open(tmp_path / "none"), SamplingSpec(target=target, temporal_window=window, **options))


def test_pairs_have_windows_too(tmp_path: Path) -> None:
    graph = weeks(tmp_path / "graph", time_unit="s")
    target = LinkTarget(VIEWS, 0, 0, seeds={"train": [[0, 1]]}, times={"train": [30 * DAY]}, avoid="none")
    plan = SamplingPlan(graph, SamplingSpec([-1], 1, target=target, temporal="uniform", temporal_window="2d",
                                            edge_ids=True))  # fmt: skip
    ((planned,),) = [plan.minibatches("train", 0)]
    found = drawn_of(graph, planned.draw(plan.parts.load()))
    days = {edge_type: sorted(clock_and_latest(graph, edge_type)[0][position] // DAY for _, position in drawn)
            for edge_type, drawn in found[0].items()}  # fmt: skip
    assert days == {ORDERED: [29], PLACED: [], VIEWS: [29]}  # strictly before the pair, which is of day 30


@pytest.mark.parametrize("draws", ["independent", "coordinated"])
@pytest.mark.parametrize("options", [
    {"temporal": "uniform", "temporal_window": {ORDERED: 30, VIEWS: 12}}, {"temporal": "uniform"},
    {"temporal": "uniform", "weighted": True, "temporal_window": {VIEWS: 40}}, {"temporal": "ignore"},
    {"temporal": "last", "temporal_window": {ORDERED: 9}}, {"temporal": "ignore", "weighted": True},
])  # fmt: skip
def test_of_lists_by_time_draws_are_the_oracles(tmp_path: Path, options: dict[str, Any], draws: str) -> None:
    """Draw by draw in Python, as docs/FORMAT.md defines them, whatever the order of lists is."""
    random = np.random.default_rng(6)
    graph = shop(
        tmp_path / "graph", users=random.integers(-9, 50, 3), orders=random.integers(-20, 60, 400),
        of=random.integers(0, 3, 400), views=random.integers(0, 3, (2, 400)), view_times=random.integers(-20, 60, 400),
        view_weights=random.integers(0, 4, 400) + 0.5, order="time",
    )  # fmt: skip
    is_timed = options["temporal"] != "ignore"
    seeds = [0, 1, 2, *[1] * is_timed]
    target = NodeTarget("user", {"train": seeds}, {"train": [40, 7, 55, -30]} if is_timed else None)
    plan = SamplingPlan(graph, SamplingSpec([5, 3], 4, target=target, edge_ids=True, draws=draws, **options))
    (planned,) = plan.minibatches("train", 0)
    expected = sample_by_hand(graph, planned, {})
    assert_is(planned.draw(plan.parts.load()), expected, planned)
    with SweepingSampler(plan.parts, Resources(1 << 20, 2)) as sweeping:
        (swept,) = sweeping.sample([planned])
    assert_is(swept, expected, planned)


@pytest.mark.parametrize("by_time", [False, True])
@pytest.mark.parametrize("start", [None, 0])
def test_every_edge_of_the_window_is_drawn_equally_often(start: int | None, by_time: bool) -> None:
    """By chi-square: independently, and coordinated over many places where slices begin."""
    times = np.array([5, 1, 7, 3, 9, 3, 7, 0] * 16)
    times = np.sort(times) if by_time else times
    random, counts, rounds = np.random.default_rng(0), np.zeros(128), 20_000

    def one_list() -> NeighborSampler:
        sources = random.permutation(1 << 16)[:128].astype(np.int32)
        relation = Relation(0, 1, np.array([0, 128]), sources, None, times, by_time)
        return NeighborSampler(num_nodes=[1 << 16, 1], relations=[relation], node_times=[None, None])

    sampler = one_list()
    for number in range(rounds if start is None else rounds // 10):
        if start is not None:  # other sources: other hashes
            sampler = one_list()
        request = DrawRequest(
            [np.empty(0, np.int64), np.zeros(1, np.int64)], np.array([4], np.int32), 1, number,
            slice_start=None if start is None else int(random.integers(0, 1 << 63)) * 2,
            seed_times=[np.empty(0, np.int64), np.array([7])], windows=[5], positions=[True],
        )  # fmt: skip
        counts[sampler.draw(request)[2][0][0][2]] += 1
    passes = (times <= 7) & (times > 2)
    assert (counts[~passes] == 0).all()
    # Draws without replacement vary less than chi-square assumes; so a p-value this small would mean a real bias.
    assert scipy.stats.chisquare(counts[passes]).pvalue > 1e-4


@pytest.mark.parametrize(("latest", "fanout", "looked_at"), [(True, 3, (598, 602)), (False, 3, (400, 602))])
def test_of_lists_by_time_no_more_is_looked_at_than_the_window(latest: bool, fanout: int, looked_at: Any) -> None:
    """Edges that need not be looked at lead nowhere, which is an error. Two of the last three are of one time."""
    times = np.sort(np.concatenate([np.arange(1000), [600, 598]]))
    sources = np.full(1002, 1 << 20, np.int32)
    begin, end = np.searchsorted(times, looked_at[0]), np.searchsorted(times, 600, side="right")
    sources[begin:end] = np.arange(end - begin)
    relation = Relation(0, 1, np.array([0, 1002]), sources, None, times, True)
    sampler = NeighborSampler(num_nodes=[1002, 1], relations=[relation], node_times=[None, None])
    request = DrawRequest(
        [np.empty(0, np.int64), np.zeros(1, np.int64)], np.array([fanout], np.int32), 1, 0, latest=latest,
        seed_times=[np.empty(0, np.int64), np.array([600])], windows=[201], positions=[True],
    )  # fmt: skip
    drawn = sampler.draw(request)[2][0][0][2]
    assert len(drawn) == 3
    if latest:
        assert times[drawn].tolist() == [599, 600, 600]
    scanning = Relation(0, 1, np.array([0, 1002]), sources, None, times, False)
    with pytest.raises(IndexError, match="neighbour 1048576 is not in"):
        NeighborSampler(num_nodes=[1002, 1], relations=[scanning], node_times=[None, None]).draw(request)


@pytest.mark.parametrize("options", [
    {"temporal": "last", "temporal_window": 40}, {"temporal": "uniform", "temporal_window": {VIEWS: 9, ORDERED: 50}},
    {"temporal": "uniform", "draws": "coordinated"}, {"temporal": "ignore", "draws": "coordinated"},
    {"temporal": "ignore"},
])  # fmt: skip
def test_long_lists_of_either_order(tmp_path: Path, options: dict[str, Any]) -> None:
    """Swept in windows that hold a part of each. `last` and -1 are the same edges in both orders, and coordinated draws
    have the same sources."""
    random = np.random.default_rng(5)
    given = {
        "users": random.integers(-9, 50, 4), "orders": random.integers(-20, 100, 5000),
        "of": random.integers(0, 4, 5000), "views": random.integers(0, 4, (2, 5000)),
        "view_times": random.integers(-20, 100, 5000),
    }  # fmt: skip
    target = NodeTarget("user", {"train": [0, 1, 2, 3]}, {"train": [70, 30, 0, 99]})
    if options["temporal"] == "ignore":
        target = NodeTarget("user", {"train": [0, 1, 2, 3]})
    found = {}
    for order in ("hash", "time"):
        graph = shop(tmp_path / order, order=order, **given)
        for fanout in (7, -1):
            plan = SamplingPlan(
                graph, SamplingSpec([fanout, 2], 4, target=target, edge_ids=True, shuffle=False, **options)
            )
            (planned,) = plan.minibatches("train", 0)
            files = plan.parts.open_files()
            sweep = TopologySweep(files, engine="threads", window_bytes=4096, threads=2)
            grown = (TreeExpansion32 if plan.spec.is_temporal else Expansion32)(planned.request(), files)
            for _ in range(2):
                sweep.count([grown])
                sweep.draw([grown])
                grown.relabel()
            whole = planned.draw(plan.parts.load())
            assert_same_minibatch(planned.drawn(grown.take()), whole)
            for number, edge_type in enumerate(graph.edges):
                ids = np.load(graph.manifest.file(edge_file(artifacts.EDGE_IDS, edge_type)))
                if "draws" in options:  # which choose by sources, and among equal edges by their places
                    ids = graph.edges[edge_type].indices
                block = whole.blocks[-1][number]
                drawn = np.split(ids[block.positions], block.indptr[1:-1])
                found[order, fanout, edge_type] = [sorted(each.tolist()) for each in drawn]
    for (_, fanout, edge_type), drawn in found.items():
        assert any(drawn) or edge_type == PLACED
        if fanout < 0 or options["temporal"] == "last" or "draws" in options:
            assert found["time", fanout, edge_type] == found["hash", fanout, edge_type]
