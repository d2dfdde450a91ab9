"""No minibatch of any split draws valid's and test's seed edges or their reverses: counted from samples with NumPy."""

import json
import pickle
import subprocess
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from minibatch_arrays import assert_same_minibatch

import diskgnn
from diskgnn.errors import ArtifactError, ConfigError, DataWarning
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.preparing.prepare import prepare
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample, sample_plan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget
from diskgnn.system.resources import Resources

RATES, RATED = ("user", "rates", "film"), ("film", "rev_rates", "user")
LINKS = ("node", "to", "node")
USERS, FILMS, NODES = 40, 60, 50


def convert(path, nodes, edges):
    diskgnn.convert(path, schema=GraphInput(nodes, edges), memory="1GiB")
    return Graph.open(path)


def split_of(pairs, random):
    """A plain random split, 60 : 20 : 20, of distinct pairs [n, 2]."""
    distinct = random.permutation(np.unique(pairs, axis=0))
    ends = len(distinct) * 6 // 10, len(distinct) * 8 // 10
    return dict(zip(("train", "valid", "test"), np.split(distinct, ends), strict=True))


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Users rate films, some of them several times; the reverse edges are a type of their own. Films link to films."""
    random = np.random.default_rng(1)
    pairs = np.stack([random.integers(0, USERS, 500), random.integers(0, FILMS, 500)], 1)
    pairs = np.concatenate([pairs, pairs[:150]])
    other = random.integers(0, FILMS, (2, 200))
    return convert(
        tmp_path_factory.mktemp("typed") / "graph",
        {"user": NodeInput(USERS, features=random.random((USERS, 3), np.float32)), "film": NodeInput(FILMS)},
        {RATES: EdgeInput(pairs.T, weights=random.random(650), reverse=True, **split_of(pairs, random)),
         ("film", "like", "film"): EdgeInput(other)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def symmetric(tmp_path_factory):
    """One type in both directions, with parallel edges and self loops, which are seed edges, too."""
    random = np.random.default_rng(2)
    pairs = random.integers(0, NODES, (400, 2))
    pairs = np.concatenate([pairs, pairs[:100], np.repeat(np.arange(10), 2).reshape(-1, 2)])
    splits = split_of(np.sort(pairs, axis=1), random)
    return convert(
        tmp_path_factory.mktemp("symmetric") / "graph",
        {"node": NodeInput(features=random.random((NODES, 3), np.float32))},
        {LINKS: EdgeInput(pairs.T, symmetric=True, **splits)},
    )


def edges_in(samples, split, graph):
    """{edge type: Counter of (source, destination)} of all edges that the minibatches of a split draw."""
    drawn = {edge_type: Counter() for edge_type in graph.edges}
    for minibatch in samples.read(split):
        for layer in minibatch.blocks:
            for edge_type, block in zip(graph.edges, layer, strict=True):
                sources = minibatch.input_nodes[graph.nodes[edge_type[0]].number][block.indices]
                degrees = np.diff(block.indptr)
                destinations = minibatch.input_nodes[graph.nodes[edge_type[2]].number]
                destinations = np.repeat(destinations[: len(degrees)], degrees)
                drawn[edge_type].update(zip(sources.tolist(), destinations.tolist(), strict=True))
    return drawn


def seed_edges(graph, edge_type, *splits):
    return {tuple(pair) for split in splits for pair in graph.edges[edge_type].splits[split].tolist()}


def turned(pairs):
    return {(dst, src) for src, dst in pairs}


def edges_of(graph, edge_type):
    edges = graph.edges[edge_type]
    return Counter(
        zip(edges.indices.tolist(), np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr)).tolist(),
            strict=True)
    )  # fmt: skip


DRAWS = {
    "all": {"fanouts": [-1, -1]},
    "uniform": {"fanouts": [4, 3]},
    "coordinated": {"fanouts": [4, 3], "draws": "coordinated"},
    "weighted": {"fanouts": [4, 3], "weighted": True},
    "once": {"fanouts": [4, -1, 3], "expand_once": True},
    "positions": {"fanouts": [4, 3], "edge_ids": True},
}


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("memory", ["1GiB", 0])
def test_no_split_draws_valids_and_tests_edges(typed, tmp_path, draws, memory):
    options = {"batch_size": 16, "epochs": 2, "target": LinkTarget(RATES, eval_negatives=3), **DRAWS[draws]}
    sample(typed, tmp_path / "samples", memory=memory, threads=2, **options)
    samples = Samples.open(tmp_path / "samples")
    held = seed_edges(typed, RATES, "valid", "test")
    for split in ("train", "valid", "test"):
        drawn = edges_in(samples, split, typed)
        assert drawn[RATES].total() > 100
        assert drawn[RATED].total() > 100
        assert not drawn[RATES].keys() & held
        assert not drawn[RATED].keys() & turned(held)
        if draws == "all":  # and nothing else is missing
            assert drawn[RATES].keys() | drawn[RATED].keys() >= seed_edges(typed, RATES, "train")


@pytest.mark.parametrize("draws", [draws for draws in DRAWS if draws != "weighted"])
@pytest.mark.parametrize("memory", ["1GiB", 0])
def test_both_directions_of_one_type(symmetric, tmp_path, draws, memory):
    options = {"batch_size": 16, "epochs": 2, "target": LinkTarget(LINKS, eval_negatives=3), **DRAWS[draws]}
    sample(symmetric, tmp_path / "samples", memory=memory, threads=1, **options)
    samples = Samples.open(tmp_path / "samples")
    held = seed_edges(symmetric, LINKS, "valid", "test")
    assert any(src == dst for src, dst in held)
    for split in ("train", "valid", "test"):
        (drawn,) = edges_in(samples, split, symmetric).values()
        assert drawn.total() > 100
        assert not drawn.keys() & (held | turned(held))


def test_a_train_minibatch_draws_neither_its_own_edges(symmetric):
    plan = SamplingPlan(symmetric, SamplingSpec([-1], 16, target=LinkTarget(LINKS, negatives=2)))
    held = seed_edges(symmetric, LINKS, "valid", "test")
    every, sampler = edges_of(symmetric, LINKS), plan.load_sampler()
    for planned in plan.minibatches("train", 0):
        minibatch, pairs = planned.draw(sampler), planned.pairs
        positive = pairs.label == 1
        own = {
            *zip(planned.seeds[pairs.src[positive]].tolist(), planned.seeds[pairs.dst[positive]].tolist(), strict=True)
        }
        left_out = held | own | turned(held | own)
        expected = Counter({pair: n for pair, n in every.items() if pair not in left_out and pair[1] in planned.seeds})
        block = minibatch.blocks[0][0]
        destinations = np.repeat(minibatch.seeds, np.diff(block.indptr))
        assert expected == Counter(
            zip(minibatch.input_nodes[0][block.indices].tolist(), destinations.tolist(), strict=True)
        )


@pytest.mark.parametrize("name", ["typed", "symmetric"])
def test_files_do_not_depend_on_memory_threads_and_processes(name, tmp_path, request):
    graph = request.getfixturevalue(name)
    target = LinkTarget(RATES if name == "typed" else LINKS, eval_negatives=3)
    plan = SamplingPlan(graph, SamplingSpec([4, 3], 16, epochs=2, target=target, draws="coordinated"))
    sample_plan(plan, tmp_path / "whole", Resources.of("1GiB", 2), shard_minibatches=3)
    sample_plan(pickle.loads(pickle.dumps(plan)), tmp_path / "swept", Resources.of(0, 1), shard_minibatches=3)
    assert open_artifact(tmp_path / "whole").digest == open_artifact(tmp_path / "swept").digest


@pytest.mark.parametrize("draws", ["independent", "coordinated"])
def test_what_is_left_is_drawn_uniformly(tmp_path, draws):
    """Of one destination's 24 sources, 8 are held out: by chi-square over 4000 epochs of a single minibatch."""
    pairs = np.stack([np.arange(24), np.zeros(24, np.int64)], 1)
    graph = convert(
        tmp_path / "graph", {"user": NodeInput(24), "film": NodeInput(1)},
        {RATES: EdgeInput(pairs.T, train=pairs[:1], valid=pairs[8:12], test=pairs[12:16])},
    )  # fmt: skip
    target = LinkTarget(RATES, negatives=0, eval_negatives=0, exclude="none")
    plan = SamplingPlan(graph, SamplingSpec([4], 1, target=target, draws=draws, group_seeds=1))
    sampler, counts, rounds = plan.load_sampler(), np.zeros(24), 4000
    for epoch in range(rounds):
        minibatch = plan.minibatches("train", epoch)[0].draw(sampler)
        drawn = minibatch.input_nodes[0][minibatch.blocks[0][0].indices]
        assert len(drawn) == len(set(drawn.tolist())) == 4
        counts[drawn] += 1
    assert counts[8:16].sum() == 0
    left = np.delete(counts, np.s_[8:16])
    if draws == "independent":
        # Draws without replacement vary less than chi-square assumes; so a p-value this small would mean a real bias.
        assert scipy.stats.chisquare(left).pvalue > 1e-4
    else:  # a slice of the ring of hashes: how far sources are from each other decides, so each is drawn
        assert (left > 0).all()


def test_all_edges_are_messages_where_that_is_asked_for(typed, tmp_path):
    target = LinkTarget(RATES, eval_negatives=3, message_edges="all")
    sample(typed, tmp_path / "samples", fanouts=[-1], batch_size=16, target=target)
    drawn = edges_in(Samples.open(tmp_path / "samples"), "test", typed)
    assert seed_edges(typed, RATES, "test") <= drawn[RATES].keys()
    assert turned(seed_edges(typed, RATES, "test")) <= drawn[RATED].keys()


def test_self_leaves_the_reverse_edges(symmetric, tmp_path):
    """As with `exclude`: where (b, a) is another edge than (a, b)."""
    target = LinkTarget(LINKS, eval_negatives=3, exclude="self")
    sample(symmetric, tmp_path / "samples", fanouts=[-1], batch_size=400, target=target)
    (drawn,) = edges_in(Samples.open(tmp_path / "samples"), "test", symmetric).values()
    held = seed_edges(symmetric, LINKS, "valid", "test")
    assert not drawn.keys() & held
    assert drawn.keys() & turned(held)


@pytest.mark.parametrize("ends", ["two types", "one type"])
def test_reverses_under_another_name_are_a_warning(tmp_path, ends):
    """Nothing in the name says so: they are found by what they hold."""
    random = np.random.default_rng(4)
    user, film = ("user", "film") if ends == "two types" else ("user", "user")
    pairs = random.integers(0, 40, (300, 2))
    links, turned_links, others = (user, "rates", film), (film, "rated_by", user), (film, "shown_to", user)
    graph = convert(
        tmp_path / "graph", {name: NodeInput(40) for name in (user, film)},
        {links: EdgeInput(pairs.T, **split_of(pairs, random)), turned_links: EdgeInput(pairs.T[::-1].copy()),
         others: EdgeInput(random.integers(0, 40, (2, 300)))},
    )  # fmt: skip
    held = seed_edges(graph, links, "valid", "test")
    name = ":".join(turned_links)
    told = f"{len(held)} of {len(held)} seed edges of valid and test are edges of {name}.*reverse_edge_type='{name}'"
    with pytest.warns(DataWarning, match=told) as warned:
        sample(graph, tmp_path / "kept", fanouts=[-1], batch_size=16, target=LinkTarget(links, eval_negatives=3))
    assert len(warned) == 1
    assert edges_in(Samples.open(tmp_path / "kept"), "test", graph)[turned_links].keys() & turned(held)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        for number, options in enumerate(
            ({"reverse_edge_type": turned_links}, {"message_edges": "all"}, {"exclude": "self"})
        ):
            target = LinkTarget(links, eval_negatives=3, **options)
            sample(graph, tmp_path / str(number), fanouts=[-1], batch_size=16, target=target)
    assert not edges_in(Samples.open(tmp_path / "0"), "test", graph)[turned_links].keys() & turned(held)


class Told:
    """A reporter that keeps what it is told."""

    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)

    def stage(self, *_):
        from contextlib import nullcontext

        return nullcontext(lambda _: None)


@pytest.mark.parametrize(
    ("message_edges", "done"), [("train", "are left out of all neighbourhoods"), ("all", "the model sees what")]
)
def test_people_and_manifests_are_told(typed, tmp_path, message_edges, done):
    held = seed_edges(typed, RATES, "valid", "test")
    copies = sum(count for pair, count in edges_of(typed, RATES).items() if pair in held)
    sizes = {split: len(typed.edges[RATES].splits[split]) for split in ("valid", "test")}
    target, told = LinkTarget(RATES, eval_negatives=3, message_edges=message_edges), Told()
    prepare(
        typed, tmp_path / "packed", fanouts=[2], batch_size=16, cpu_cache=0, target=target, reporter=told,
        samples=tmp_path / "samples",
    )  # fmt: skip
    (line,) = [each for each in told.lines if "seed edges" in each]
    assert f"{sizes['valid']} of valid's {sizes['valid']}" in line
    assert f"{sizes['test']} of test's {sizes['test']} seed edges are edges of the graph" in line
    assert f"{copies} user:rates:film, {copies} film:rev_rates:user" in line
    assert done in line
    expected = {
        "seed_edges": {split: {"all": size, "in_graph": size} for split, size in sizes.items()},
        "edges": {"user:rates:film": copies, "film:rev_rates:user": copies},
    }
    samples, packed = Samples.open(tmp_path / "samples"), Packed.open(tmp_path / "packed")
    for config in (samples.manifest.config, packed.manifest.config["samples"]):
        assert json.loads(json.dumps(config["eval_edges"])) == expected
        assert config["target"]["message_edges"] == message_edges
    assert packed.config.samples.eval_edges == samples.config.eval_edges


class Damaging(Told):
    """Damages a graph as it is looked at after it was made."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def stage(self, description, *_):
        if description == "look for valid's and test's edges":
            for file in self.graph.glob("ind*.npy"):
                file.write_bytes(b"\xff" * file.stat().st_size)
            self.lines.append("damaged")
        return super().stage()


def test_a_graph_that_is_made_is_no_error_of_convert(tmp_path):
    """What it tells people it reads from the graph: who needs what cannot be read says so."""
    random, told = np.random.default_rng(1), Damaging(tmp_path / "graph")
    pairs = random.integers(0, NODES, (300, 2))
    given = GraphInput({"node": NodeInput(NODES)}, {LINKS: EdgeInput(pairs.T, **split_of(pairs, random))})
    report = diskgnn.convert(tmp_path / "graph", schema=given, reporter=told)
    assert told.lines == ["damaged"]
    assert report.written_bytes > 0
    with pytest.raises(ArtifactError):
        prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[2], target=LinkTarget(LINKS))


def test_fresh_epochs_draw_as_prepared_ones(typed, tmp_path):
    target = LinkTarget(RATES, negatives=1)
    options = {"fanouts": [4, 3], "batch_size": 16, "target": target}
    prepare(typed, tmp_path / "packed", cpu_cache=0, epochs=2, keep_input_nodes=True, **options)
    with (
        diskgnn.FreshEpochs(typed, tmp_path / "fresh", cpu_cache=0, keep_input_nodes=True, **options) as fresh,
        diskgnn.Loader(tmp_path / "packed", "train") as loader,
    ):
        for epoch in range(2):
            for ours, theirs in zip(fresh.epoch(epoch), loader.epoch(epoch), strict=True):
                for name in ("user", "film"):
                    assert ours.input_nodes[name].tolist() == theirs.input_nodes[name].tolist()
                for one, other in zip(ours.blocks, theirs.blocks, strict=True):
                    assert {name: block.indices.tolist() for name, block in one.items()} == {
                        name: block.indices.tolist() for name, block in other.items()
                    }


def test_ranks_draw_what_one_draws_and_say_it_once(typed, tmp_path):
    told, options = Told(), {"fanouts": [3], "batch_size": 16, "target": LinkTarget(RATES, eval_negatives=2)}
    sample(typed, tmp_path / "one", **options)
    prepare(typed, tmp_path / "packed", cpu_cache=0, ranks=2, samples=tmp_path / "samples", reporter=told, **options)
    assert len([line for line in told.lines if "seed edges" in line]) == 1
    whole = list(Samples.open(tmp_path / "one").read("train"))
    for rank in range(2):
        parts = list(Samples.open(tmp_path / "samples" / f"rank-{rank}-of-2").read("train"))
        for ours, theirs in zip(parts, whole[rank::2], strict=True):
            assert_same_minibatch(ours, theirs)


def test_seed_edges_that_are_no_edges_change_nothing(tmp_path):
    """The data sets of OGB come so: the same bytes, whatever `message_edges` says."""
    random = np.random.default_rng(3)
    pairs = np.unique(random.integers(0, NODES, (300, 2)), axis=0)
    splits = split_of(pairs, random)
    graph = convert(
        tmp_path / "graph", {"node": NodeInput(NODES)},
        {LINKS: EdgeInput(splits["train"].T, train=splits["train"], valid=splits["valid"], test=splits["test"])},
    )  # fmt: skip
    held = seed_edges(graph, LINKS, "valid", "test")
    reversed_ones = sum(count for pair, count in edges_of(graph, LINKS).items() if pair in turned(held))
    told, files = Told(), {}
    for message_edges in ("train", "all"):
        target = LinkTarget(LINKS, eval_negatives=3, exclude="self", message_edges=message_edges)
        out = tmp_path / message_edges
        sample(graph, out, fanouts=[3, 2], batch_size=16, target=target, reporter=told)
        manifest = open_artifact(out)
        files[message_edges] = {name: file.crc32c for name, file in manifest.files.items()}
        assert manifest.config["eval_edges"]["edges"] == {"node:to:node": 0}
    assert files["train"] == files["all"]
    assert "0 of valid's" in told.lines[0]
    assert "nothing has to be left out" in told.lines[0]
    assert reversed_ones > 0  # with reverses there would be some


def test_only_given_seeds_count_where_there_are_some(typed, tmp_path):
    every = typed.edges[RATES].splits
    target = LinkTarget(RATES, eval_negatives=3, seeds={"train": every["train"], "test": every["valid"][:20]})
    sample(typed, tmp_path / "samples", fanouts=[-1, -1], batch_size=16, target=target)
    held = {tuple(pair) for pair in every["valid"][:20].tolist()}
    for split in ("train", "test"):
        drawn = edges_in(Samples.open(tmp_path / "samples"), split, typed)
        assert not drawn[RATES].keys() & held
        assert drawn[RATES].keys() & seed_edges(typed, RATES, "test")


# In a process of its own, so that only this is in its peak; the graph's files are in the kernel's memory.
PEAK = """
import re, sys
from pathlib import Path
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget

def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

graph = Graph.open(sys.argv[1])
plan = SamplingPlan(graph, SamplingSpec([2], 16, target=LinkTarget(("node", "to", "node"), avoid="none")))
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = kilobytes("VmRSS")
held = sum(len(each) for each in plan.held_out.edges)
print(held, plan.held_out_bytes, 1024 * (kilobytes("VmHWM") - before), 1024 * (kilobytes("VmRSS") - before))
"""


def test_memory_counts_what_is_held_out(tmp_path):
    """Finding 200,000 edges in both directions takes no more than what budgets set aside for it."""
    random = np.random.default_rng(5)
    pairs = random.integers(0, 100_000, (250_000, 2))
    splits = {"train": pairs[:50_000], "valid": pairs[50_000:150_000], "test": pairs[150_000:]}
    graph = convert(tmp_path / "graph", {"node": NodeInput(100_000)}, {LINKS: EdgeInput(pairs.T, **splits)})
    output = subprocess.run(
        [sys.executable, "-c", PEAK, str(graph.manifest.path)], check=True, capture_output=True, text=True
    ).stdout
    held, bound, peak, kept = map(int, output.split())
    every = edges_of(graph, LINKS).keys()
    found = {tuple(pair) for pair in pairs[50_000:].tolist()}
    assert held == len((found | turned(found)) & every)
    assert kept <= peak <= bound + (8 << 20)  # what malloc and Python add
    few = SamplingPlan(graph, SamplingSpec([2], 16, target=LinkTarget(LINKS, seeds={"train": pairs[:9]})))
    assert few.held_out_bytes == 0


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """Users rate films at times, some again and again."""
    random = np.random.default_rng(4)
    pairs = np.stack([random.integers(0, 12, 400), random.integers(0, 15, 400)], 1)
    times = np.arange(400) // 2
    graph = convert(
        tmp_path_factory.mktemp("timed") / "graph",
        {"user": NodeInput(12), "film": NodeInput(15)},
        {RATES: EdgeInput(pairs.T, times=times, reverse=True)},
    )
    bounds = {"train": slice(0, 300), "valid": slice(300, 350), "test": slice(350, 400)}
    seeds = {split: pairs[part] for split, part in bounds.items()}
    return graph, seeds, {split: times[part] for split, part in bounds.items()}


@pytest.mark.parametrize("temporal", ["uniform", "last"])
def test_links_with_times_see_what_is_before_them(timed, temporal):
    """All of it, seed edges of valid and test that are earlier included; nothing of their own time."""
    graph, seeds, times = timed
    target = LinkTarget(RATES, negatives=0, eval_negatives=0, seeds=seeds, times=times)
    plan = SamplingPlan(graph, SamplingSpec([-1], 16, target=target, temporal=temporal, edge_ids=True))
    assert plan.spec.strict_time
    sampler, edges = plan.load_sampler(), graph.edges[RATES]
    for split in ("train", "test"):
        for planned in plan.minibatches(split, 0):
            minibatch = planned.draw(sampler)
            films = graph.nodes["film"].number
            block = minibatch.blocks[0][list(graph.edges).index(RATES)]
            first = 0 if films == 0 else planned.seed_counts[0]
            for i in range(planned.seed_counts[films]):
                film, moment = planned.seeds[first + i], planned.times[first + i] + 1  # strictly before
                found = block.positions[block.indptr[i] : block.indptr[i + 1]]
                every = np.arange(edges.indptr[film], edges.indptr[film + 1])
                assert sorted(found.tolist()) == every[edges.times[every] < moment].tolist()


def test_links_without_times_of_their_own_are_held_out_in_temporal_draws(timed):
    """Where the edges have times and the pairs have none, nobody knows that an edge is not before its pair."""
    graph, seeds, _ = timed
    target = LinkTarget(RATES, seeds=seeds, eval_negatives=0)
    plan = SamplingPlan(graph, SamplingSpec([-1], 16, target=target, temporal="ignore"))
    held = {tuple(pair) for split in ("valid", "test") for pair in seeds[split].tolist()}
    assert sum(len(edges) for edges in plan.held_out.edges if edges is not None) == 2 * len(held)
    given = SamplingPlan(graph, SamplingSpec([-1], 16, temporal="uniform", strict_time=False, target=LinkTarget(
        RATES, seeds=seeds, eval_negatives=0, times={split: np.full(len(each), 500) for split, each in seeds.items()}
    )))  # fmt: skip
    assert sum(len(edges) for edges in given.held_out.edges if edges is not None) == 2 * len(held)


def test_neither_is_another_word():
    with pytest.raises(ConfigError, match="message_edges: expected one of train, all, found 'none'"):
        LinkTarget(RATES, message_edges="none")


def test_convert_says_what_prepare_will_leave_out(tmp_path):
    random = np.random.default_rng(6)
    pairs = np.unique(random.integers(0, 20, (200, 2)), axis=0)
    splits, told = split_of(pairs, random), Told()
    kept = np.concatenate([splits["train"], splits["valid"], splits["test"][:5]])
    schema = GraphInput({"user": NodeInput(20), "film": NodeInput(20)}, {RATES: EdgeInput(kept.T, **splits)})
    diskgnn.convert(tmp_path / "graph", schema=schema, reporter=told)
    (line,) = [each for each in told.lines if "seed edges" in each]
    sizes = {split: len(pairs) for split, pairs in splits.items()}
    assert line.startswith(
        f"user:rates:film: {sizes['valid']} of valid's {sizes['valid']} and 5 of test's {sizes['test']} "
    )
    assert "`prepare` leaves them" in line
