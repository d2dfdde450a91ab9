"""Sampling from graphs of types: against an oracle in Python, in memory and by sweeps; times, weights, exclusion."""

from collections import Counter

import numpy as np
import pytest
import scipy.stats
from minibatch_arrays import assert_same_minibatch
from sampling_oracle import assert_is, held_out_by_hand, negatives_of, sample_by_hand
from typed_graphs import CITES, NUM_NODES, WRITES, WRITTEN, citations

from diskgnn._native import DrawRequest, Expansion32, NeighborSampler, Relation, TopologySweep, TreeExpansion32
from diskgnn.errors import ConfigError, InputError
from diskgnn.formats.samples import Samples
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample, sample_plan
from diskgnn.sampling.sweeping import SweepingSampler
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.system.resources import Resources

LINKS = LinkTarget(WRITES, negatives=2, eval_negatives=3)
CHOICES = {
    "plain": {},
    "edge ids": {"edge_ids": True},
    "one edge type": {"fanouts": {CITES: [4, 3]}},
    "by edge type": {"fanouts": {WRITES: [3, 0], WRITTEN: [0, 5], CITES: [-1, 2]}},
    "weighted": {"weighted": True},
    "uniform in time": {"temporal": "uniform"},
    "strictly earlier": {"temporal": "uniform", "strict_time": True, "fanouts": [2, -1]},
    "last": {"temporal": "last"},
    "in a window": {"temporal": "uniform", "temporal_window": {CITES: 5, WRITTEN: 9}},
    "last in a window": {"temporal": "last", "temporal_window": {CITES: 5}},
    "weighted in a window": {"temporal": "uniform", "weighted": True, "temporal_window": {WRITTEN: 6, CITES: 1}},
    "weighted in time": {"temporal": "uniform", "weighted": True},
    "once": {"expand_once": True, "fanouts": [4, 3, 2]},
    "once in time": {"expand_once": True, "temporal": "uniform", "edge_ids": True, "fanouts": [3, 3, -1]},
    "links": {"target": LINKS},
    "links, reverse kept": {"target": LinkTarget(WRITES, exclude="self"), "fanouts": [-1, 3]},
    "links in time": {"target": LINKS, "temporal": "uniform"},
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return citations(tmp_path_factory.mktemp("typed") / "graph")


def plan_of(graph, **options):
    return SamplingPlan(
        graph, SamplingSpec(**({"fanouts": [4, 3], "batch_size": 7, "seed": 3, "temporal": "ignore"} | options))
    )


@pytest.mark.parametrize("draws", ["independent", "coordinated"])
@pytest.mark.parametrize("choice", CHOICES)
def test_minibatches_are_the_oracles(graph, choice, draws):
    """In memory and by sweeps, in which all minibatches grow together."""
    plan = plan_of(graph, draws=draws, **CHOICES[choice])
    planned = [*plan.minibatches("train", 1)[:3], *plan.minibatches("valid", 0)[:1]]
    sampler = plan.parts.load()
    with SweepingSampler(plan.parts, Resources(1 << 20, 2)) as sweeping:
        swept = list(sweeping.sample(planned))
    for each, other in zip(planned, swept, strict=True):
        expected = sample_by_hand(graph, each, held_out_by_hand(graph, plan.spec.target))
        assert_is(each.draw(sampler), expected, each)
        assert_is(other, expected, each)


@pytest.mark.parametrize("choice", ["by edge type", "weighted in time", "links", "links in time"])
def test_files_do_not_depend_on_memory_and_threads(graph, tmp_path, choice):
    plan = plan_of(graph, draws="coordinated", epochs=2, **CHOICES[choice])
    sample_plan(plan, tmp_path / "whole", Resources.of("1GiB", 2), shard_minibatches=3)
    sample_plan(plan, tmp_path / "swept", Resources.of(0, 1), shard_minibatches=3)
    samples = Samples.open(tmp_path / "whole")
    assert samples.manifest.digest == Samples.open(tmp_path / "swept").manifest.digest
    assert samples.config == plan.config() == SamplesConfig.parse(plan.config().to_json())
    for split in samples.splits:
        for number, minibatch in enumerate(samples.read(split)):
            epoch, number = divmod(number, plan.sizes[split].batches_per_epoch)
            planned = plan.minibatches(split, epoch)[number]
            expected = sample_by_hand(graph, planned, held_out_by_hand(graph, plan.spec.target))
            assert_is(minibatch, expected, planned)
            np.testing.assert_array_equal(minibatch.seeds, planned.seeds)
            if planned.pairs is not None:
                np.testing.assert_array_equal(minibatch.pairs.src, planned.pairs.src)
                np.testing.assert_array_equal(minibatch.pairs.label, planned.pairs.label)


@pytest.mark.parametrize("draws", ["independent", "coordinated"])
@pytest.mark.parametrize("choice", ["plain", "edge ids", "weighted", "uniform in time", "last", "links in time"])
def test_lists_that_lie_in_several_windows(tmp_path, choice, draws):
    """Up to 2000 edges a list, of which a window holds a few hundred; trees share hubs."""
    graph = citations(tmp_path / "graph", degree=1000)
    plan = plan_of(graph, **({"fanouts": [30, 2], "draws": draws} | CHOICES[choice]))
    planned = [*plan.minibatches("train", 0)[:2]]
    files = plan.parts.open_files()
    sweep = TopologySweep(files, engine="threads", window_bytes=4096, threads=2)
    new = TreeExpansion32 if plan.spec.is_temporal else Expansion32
    group = [new(each.request(), files) for each in planned]
    for _ in range(2):
        sweep.count(group)
        bounds = [(grown.memory_bytes + grown.drawn_bytes, grown.next_layer_bytes) for grown in group]
        sweep.draw(group)
        for grown, (drawn, _) in zip(group, bounds, strict=True):
            assert grown.memory_bytes <= drawn
            grown.relabel()
        assert all(grown.memory_bytes <= bound for grown, (_, bound) in zip(group, bounds, strict=True))
    sampler = plan.parts.load()
    for each, grown in zip(planned, group, strict=True):
        swept, whole = each.drawn(grown.take()), each.draw(sampler)
        assert_same_minibatch(swept, whole)


def test_wide_ids_are_the_same(graph, tmp_path):
    wide = citations(tmp_path / "wide", id_dtype=np.int64)
    for options in ({}, {"temporal": "uniform"}):
        narrow, other = (
            [each.draw(plan.parts.load()) for each in plan.minibatches("train", 0)]
            for plan in (plan_of(graph, **options), plan_of(wide, **options))
        )
        for left, right in zip(narrow, other, strict=True):
            assert {nodes.dtype for nodes in left.input_nodes} == {np.dtype(np.int32)}
            assert {nodes.dtype for nodes in right.input_nodes} == {np.dtype(np.int64)}
            assert_same_minibatch(left, right)


@pytest.mark.parametrize("first_time", [-7, -20, 1 - 2**63], ids=["around 1970", "before 1970", "the earliest"])
@pytest.mark.parametrize("choice", [choice for choice, options in CHOICES.items() if "temporal" in options])
def test_draws_go_by_the_order_of_times_not_by_their_sign(graph, tmp_path, choice, first_time):
    earlier = citations(tmp_path / "graph", first_time=first_time)
    found = []
    for plan in (plan_of(each, **CHOICES[choice]) for each in (graph, earlier)):
        planned, sampler = plan.minibatches("train", 0), plan.parts.load()
        with SweepingSampler(plan.parts, Resources(1 << 20, 2)) as sweeping:
            found.append([each.draw(sampler) for each in planned] + list(sweeping.sample(planned)))
    for one, other in zip(*found, strict=True):
        assert_same_minibatch(one, other)


def test_the_last_ones_before_1970_are_those_nearest_to_the_seed():
    sampler = one_list(times=np.array([-5, 3, -1, -(2**62), 0, -3, 9, -4]))
    assert sorted(draw_from(sampler, 3, time=-2, latest=True)) == [0, 5, 7]  # -5, -3 and -4
    assert sorted(draw_from(sampler, 3, time=3, latest=True)) == [1, 2, 4]  # 3, -1 and 0
    assert sorted(draw_from(sampler, 3, time=-6, latest=True)) == [3]


def one_list(times=None, weights=None, source_times=None, degree=8):
    """A sampler of destination 0 with sources 0 to degree - 1."""
    relation = Relation(0, 1, np.array([0, degree]), np.arange(degree, dtype=np.int32), weights, times)
    return NeighborSampler(num_nodes=[degree, 1], relations=[relation], node_times=[source_times, None])


def draw_from(sampler, fanout, number=0, time=None, start=None, **options):
    times = None if time is None else [np.empty(0, np.int64), np.array([time])]
    request = DrawRequest(
        [np.empty(0, np.int64), np.zeros(1, np.int64)], np.array([fanout], np.int32), 1, number, slice_start=start,
        seed_times=times, **options,
    )  # fmt: skip
    return sampler.draw(request)[0][0].tolist()


def test_last_by_hand():
    sampler = one_list(times=np.array([5, 1, 7, 3, 9, 3, 7, 0]))
    assert draw_from(sampler, 2, time=8, latest=True) == [2, 6]
    assert draw_from(sampler, 3, time=6, latest=True) == [0, 3, 5]
    assert draw_from(sampler, 2, time=3, latest=True) == [3, 5]
    assert draw_from(sampler, 1, time=3, latest=True) == [3]  # of two at the same time, the first in the list
    assert draw_from(sampler, 5, time=0, latest=True) == [7]
    by_source = one_list(source_times=np.array([5, 1, 7, 3, 9, 3, 7, 0]))
    assert draw_from(by_source, 2, time=8, latest=True) == [2, 6]


@pytest.mark.parametrize("start", [None, 0])
def test_every_edge_that_passes_is_drawn_equally_often(start):
    """By chi-square: uniformly among those that are not later, independently and over many starts."""
    times = np.array([5, 1, 7, 3, 9, 3, 7, 0] * 3)
    sampler, random, counts = one_list(times=times, degree=24), np.random.default_rng(0), np.zeros(24)
    rounds = 20_000
    for number in range(rounds):
        if start is None:
            counts[draw_from(sampler, 4, number, time=5)] += 1
        else:
            order = random.permutation(1 << 16)[:24].astype(np.int64)  # other sources: other hashes
            relation = Relation(0, 1, np.array([0, 24]), order, None, times)
            other = NeighborSampler(num_nodes=[1 << 16, 1], relations=[relation], node_times=[None, None])
            at = int(random.integers(0, 1 << 63)) * 2
            counts[np.isin(order, draw_from(other, 4, number, time=5, start=at))] += 1
            if number == rounds // 10:
                break
    assert (counts[times > 5] == 0).all()
    passing = counts[times <= 5]
    # Draws without replacement vary less than chi-square assumes; so a p-value this small would mean a real bias.
    assert scipy.stats.chisquare(passing).pvalue > 1e-4


@pytest.mark.parametrize("coordinated", [False, True])
def test_weights_are_probabilities(coordinated):
    """The first edge drawn is edge i with probability w_i / sum; without replacement, as sequential draws."""
    weights = np.array([1, 2, 0, 4, 8, 1, 0, 4], np.float32)
    sampler, rounds = one_list(weights=weights), 20_000
    random = np.random.default_rng(1)
    firsts, pairs = np.zeros(8), np.zeros(8)
    for number in range(rounds):
        start = int(random.integers(0, 1 << 63)) if coordinated else None
        firsts[draw_from(sampler, 1, number, weighted=True, start=start)] += 1
        pairs[draw_from(sampler, 2, number, weighted=True, start=start)] += 1
    p = weights / weights.sum()
    assert scipy.stats.chisquare(firsts[p > 0], rounds * p[p > 0]).pvalue > 1e-4
    # P(i among two) = p_i + sum over j of p_j p_i / (1 - p_j).
    second = np.array([sum(p[j] * p[i] / (1 - p[j]) for j in range(8) if j != i) for i in range(8)])
    expected = rounds * (p + second)
    assert (pairs[p == 0] == 0).all()
    assert np.abs(pairs - expected).max() < 5 * np.sqrt(expected.max())
    assert draw_from(sampler, -1, weighted=True) == [0, 1, 3, 4, 5, 7]


def test_coordinated_weighted_draws_agree():
    """Two destinations with the same sources and weights draw the same."""
    weights = np.random.default_rng(2).random(30).astype(np.float32)
    relation = Relation(0, 1, np.array([0, 30, 60]), np.tile(np.arange(30, dtype=np.int32), 2), np.tile(weights, 2))
    sampler = NeighborSampler(num_nodes=[30, 2], relations=[relation], node_times=[None, None])
    for start in (0, 1, 1 << 63):
        request = DrawRequest([np.empty(0, np.int64), np.arange(2)], np.array([5], np.int32), 0, 0, slice_start=start,
                              weighted=True)  # fmt: skip
        ((indptr, indices, _),) = sampler.draw(request)[2][0]
        assert indptr.tolist() == [0, 5, 10]
        assert indices[:5].tolist() == indices[5:].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("temporal", ["uniform", "last"])
def test_no_edge_from_the_future_in_ten_million(tmp_path, temporal):
    """Each sampled edge is looked at: neither it nor its source is later than the seed of its tree."""
    graph = citations(tmp_path / "graph", degree=60)
    papers, cites = graph.nodes["paper"], graph.edges[CITES]
    plan = SamplingPlan(
        graph, SamplingSpec([40, 40], 40, epochs=1000, temporal=temporal, edge_ids=True, draws="coordinated")
    )
    sampler, drawn, epoch = plan.parts.load(), 0, 0
    while drawn < 5_000_000:
        for planned in plan.minibatches("train", epoch):
            minibatch = planned.draw(sampler)
            for layer in minibatch.blocks:
                for number, (edge_type, edges) in enumerate(graph.edges.items()):
                    block = layer[number]
                    source = graph.nodes[edge_type[0]].number
                    limits = planned.times[minibatch.trees[source][block.indices]]
                    if edge_type[0] == "paper":
                        assert (papers.times[edges.indices[block.positions]] <= limits).all()
                    if edge_type == CITES:
                        assert (cites.times[block.positions] <= limits).all()
                    drawn += len(block.indices)
        epoch += 1


def test_links_are_the_splits_and_negatives_are_none(graph):
    plan = plan_of(graph, target=LINKS, epochs=2)
    edges = graph.edges[WRITES].splits
    taken = {tuple(pair) for pairs in edges.values() for pair in pairs.tolist()}
    seen = []
    for epoch in (0, 1):
        for planned in plan.minibatches("train", epoch):
            papers, authors = np.split(planned.seeds, [planned.seed_counts[0]])
            src, dst, label = authors[planned.pairs.src], papers[planned.pairs.dst], planned.pairs.label
            positives = int(label.sum())
            assert label.tolist() == [1] * positives + [0] * (2 * positives)
            assert src[positives:].tolist() == np.repeat(src[:positives], 2).tolist()
            assert not {*zip(src[positives:].tolist(), dst[positives:].tolist(), strict=True)} & taken
            # In order of first appearance, each once.
            assert papers.tolist() == list(dict.fromkeys(dst.tolist()))
            assert authors.tolist() == list(dict.fromkeys(src.tolist()))
            seen += zip(src[:positives].tolist(), dst[:positives].tolist(), strict=True)
    assert sorted(seen) == sorted(map(tuple, 2 * edges["train"].tolist()))


def test_negatives_are_uniform_and_those_of_evaluation_stay(graph):
    def negatives(split, epoch, batch_size):
        found = []
        for planned in plan_of(graph, target=LINKS, batch_size=batch_size).minibatches(split, epoch):
            papers = planned.seeds[: planned.seed_counts[0]]
            positives = int(planned.pairs.label.sum())
            found += papers[planned.pairs.dst[positives:]].reshape(positives, -1).tolist()
        return found

    assert negatives("valid", 0, 7) == negatives("valid", 5, 3)
    assert negatives("train", 0, 7) != negatives("train", 1, 7)
    source = int(graph.edges[WRITES].splits["train"][0, 0])
    taken = {dst for pairs in graph.edges[WRITES].splits.values() for src, dst in pairs.tolist() if src == source}
    every = np.concatenate(list(graph.edges[WRITES].splits.values()))
    bits = np.random.default_rng(0).integers(0, 1 << 64, (1, 100_000), np.uint64)
    drawn = negatives_of(every, NUM_NODES["paper"]).draw(np.array([source]), bits)
    counts = np.bincount(drawn.ravel(), minlength=NUM_NODES["paper"])
    assert set(np.flatnonzero(counts == 0)) == taken
    assert scipy.stats.chisquare(counts[counts > 0]).pvalue > 1e-4


def test_negatives_by_popularity_are_drawn_in_proportion_to_train_edges(graph):
    """Of the destinations without an edge from the source; those that no train edge has are never drawn."""
    random = np.random.default_rng(1)
    places = random.integers(0, 5, 40)
    edges = np.stack([random.integers(0, 3, 30), random.integers(0, 40, 30)], axis=1)
    bits = random.integers(0, 1 << 64, (1, 100_000), np.uint64)
    for source in np.unique(edges[:, 0]):
        drawn = negatives_of(edges, 40, places).draw(np.array([source]), bits)
        expected = places.copy()
        expected[edges[edges[:, 0] == source, 1]] = 0
        counts = np.bincount(drawn.ravel(), minlength=40)
        assert not counts[expected == 0].any()
        shares = expected[expected > 0] / expected.sum()
        assert scipy.stats.chisquare(counts[expected > 0], shares * counts.sum()).pvalue > 1e-4

    target = LinkTarget(WRITES, negatives=3, negatives_by="popularity", eval_negatives=5)
    train = {dst for _, dst in graph.edges[WRITES].splits["train"].tolist()}
    edges = {(src, dst) for pairs in graph.edges[WRITES].splits.values() for src, dst in pairs.tolist()}
    for split in ("train", "valid"):
        for planned in plan_of(graph, target=target).minibatches(split, 0):
            papers, authors = np.split(planned.seeds, [planned.seed_counts[0]])
            negative = planned.pairs.label == 0
            pairs = zip(authors[planned.pairs.src[negative]].tolist(), papers[planned.pairs.dst[negative]].tolist(),
                        strict=True)  # fmt: skip
            for source, destination in pairs:
                assert destination in train
                assert (source, destination) not in edges
    seeds = {"valid": graph.edges[WRITES].splits["valid"]}
    with pytest.raises(ConfigError, match="negatives_by: popularity is counted in the seed edges to train on"):
        plan_of(graph, target=LinkTarget(WRITES, negatives_by="popularity", seeds=seeds))


def test_excluded_edges_are_not_drawn(graph):
    """Neither the seed edges of a train minibatch nor their reverses, nor those of valid in any; with all neighbours
    drawn, all others are.
    """
    plan = plan_of(graph, target=LINKS, fanouts=[-1])
    numbers = {edge_type: number for number, edge_type in enumerate(graph.edges)}
    for split in ("train", "valid"):
        for planned in plan.minibatches(split, 0):
            minibatch = planned.draw(plan.parts.load())
            papers, authors = np.split(planned.seeds, [planned.seed_counts[0]])
            positives = int(planned.pairs.label.sum())
            pairs = authors[planned.pairs.src[:positives]], papers[planned.pairs.dst[:positives]]
            for edge_type, seeds, (src, dst) in ((WRITES, papers, pairs), (WRITTEN, authors, pairs[::-1])):
                edges, block = graph.edges[edge_type], minibatch.blocks[0][numbers[edge_type]]
                nodes = minibatch.input_nodes[graph.nodes[edge_type[0]].number]
                forbidden = {*zip(src.tolist(), dst.tolist(), strict=True)} if split == "train" else set()
                forbidden |= held_out_by_hand(graph, LINKS)[edge_type]
                for i, node in enumerate(seeds.tolist()):
                    expected = edges.indices[edges.indptr[node] : edges.indptr[node + 1]].tolist()
                    expected = [each for each in expected if (each, node) not in forbidden]
                    assert nodes[block.indices[block.indptr[i] : block.indptr[i + 1]]].tolist() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fanouts": {("author", "reads", "paper"): [1, 1]}}, "no edge type author:reads:paper, only author:writes"),
        ({"fanouts": {WRITES: [1, 1], CITES: [1]}}, "as many layers for each edge type"),
        ({"fanouts": {WRITES: [1, -2]}}, "from 0 to 2147483647 or -1"),
        ({"fanouts": [3, 0]}, "from 1 to 2147483647 or -1"),
        ({"fanouts": [10**12]}, "from 1 to 2147483647 or -1"),
        ({"target": NodeTarget("editor")}, "no node type 'editor', only paper, author"),
        ({"target": LinkTarget(("paper", "of", "paper"))}, "no edge type paper:of:paper"),
        ({"target": LinkTarget(WRITES, reverse_edge_type=("paper", "by", "author"))}, "no edge type paper:by:author"),
        ({"temporal": "first"}, "temporal: expected one of uniform, last, ignore, found 'first'"),
        ({"strict_time": True}, "strict_time: draws have no times"),
        ({"temporal": "last", "weighted": True}, "weighted: temporal='last'"),
        ({"target": LinkTarget(WRITES, negatives=0), "group_seeds": 4}, "group_seeds: with negatives=0"),
    ],
)
def test_what_makes_no_sense_is_refused(graph, options, message):
    with pytest.raises(ConfigError, match=message):
        plan_of(graph, **options)


def test_targets_are_checked():
    with pytest.raises(ConfigError, match="expected one from 'paper' to 'author'"):
        LinkTarget(WRITES, reverse_edge_type=CITES)
    with pytest.raises(ConfigError, match="exclude: expected one of"):
        LinkTarget(WRITES, exclude="both")
    with pytest.raises(ConfigError, match="negatives_by: expected one of uniform, popularity, found 'degree'"):
        LinkTarget(WRITES, negatives_by="degree")
    with pytest.raises(ConfigError, match="negatives: expected at least 0"):
        LinkTarget(WRITES, negatives=-1)


def test_splits_that_are_empty_are_refused(graph, tmp_path):
    with pytest.raises(InputError, match=r"no nodes in the splits asked for \(test\)"):
        plan_of(graph, splits=["test"])
    with pytest.raises(InputError, match="no seed edges in the splits asked for"):
        plan_of(graph, splits=["test"], target=LINKS)
    with pytest.raises(InputError, match="no nodes in the splits"):
        plan_of(graph, target=NodeTarget("author"))
    with pytest.raises(ConfigError, match="no edge type"):
        sample(graph, tmp_path / "samples", fanouts=[2], batch_size=3, target=LinkTarget(("a", "b", "c")))


def test_a_complete_graph_has_no_negatives():
    edges = np.array([[0, 0], [0, 1], [0, 2], [1, 2]])
    negatives = negatives_of(edges, 3)
    bits = np.arange(6, dtype=np.uint64).reshape(2, 3) << np.uint64(61)
    assert negatives.draw(np.array([1, 1]), bits).tolist() == [[0, 0, 0], [0, 1, 1]]
    with pytest.raises(ConfigError, match="source 0 has edges to all 3 destinations"):
        negatives.draw(np.array([1, 0]), bits)


@pytest.mark.parametrize("avoid", ["seeds", "known", "none"])
def test_negatives_avoid_what_they_are_told(graph, tmp_path, avoid):
    target = LinkTarget(WRITES, negatives=60, eval_negatives=60, exclude="none", avoid=avoid)
    known = {(int(author), paper) for paper in range(70) for author in neighbours(graph, paper)}
    seeds = {tuple(pair) for pairs in graph.edges[WRITES].splits.values() for pair in pairs.tolist()}
    sample(graph, tmp_path / "samples", target=target, fanouts=[1], batch_size=8, temporal="ignore")
    drawn = Counter()
    for split in ("train", "valid"):
        for minibatch in Samples.open(tmp_path / "samples").read(split):
            papers, authors = np.split(minibatch.seeds, [minibatch.node_counts[-1][0]])
            negative = minibatch.pairs.label == 0
            found = zip(authors[minibatch.pairs.src[negative]], papers[minibatch.pairs.dst[negative]], strict=True)
            drawn.update((int(author), int(paper)) for author, paper in found)
    assert sum(drawn.values()) == 60 * 80
    forbidden = {"seeds": seeds, "known": seeds | known, "none": set()}[avoid]
    assert not forbidden & drawn.keys()
    # Every other pair of a seed's author comes up sooner or later.
    possible = {(author, paper) for author, _ in seeds for paper in range(70)} - forbidden
    assert len(possible & drawn.keys()) > 0.6 * len(possible)
    assert drawn.keys() <= possible


def neighbours(graph, paper):
    edges = graph.edges[WRITES]
    return edges.indices[edges.indptr[paper] : edges.indptr[paper + 1]]
