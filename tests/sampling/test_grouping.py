"""Seeds in groups of near ones, against label propagation written in Python, and communities that were planted."""

from collections import Counter

import numpy as np
import pytest
from graphs import INDICES, make_graph, random_bits, write_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbor_order import in_order, order_hash
from sources import assert_same

from diskgnn._native import MOST_LABEL_NEIGHBORS, propagate_labels
from diskgnn.baselines.in_memory import InMemory
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files import faults
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.loading.loader import Loader
from diskgnn.preparing.prepare import prepare
from diskgnn.sampling.grouping import nearness_order
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample
from diskgnn.specs.sampling import SamplingSpec


def graph_of(path, indptr, indices, train):
    features = random_bits((len(indptr) - 1, 1), "int8")
    return write_graph(path, indptr, in_order(indptr, indices), features, {"train": train}, dtype="int8")


def csc(num_nodes, sources, destinations):
    order = np.argsort(destinations, kind="stable")
    counts = np.bincount(destinations, minlength=num_nodes)
    return np.cumsum([0, *counts]), sources[order].astype(np.int32)


@pytest.fixture(scope="module")
def communities(tmp_path_factory):
    """60 communities of 50 nodes with scattered ids, 8 in-neighbours each, one in ten of them from elsewhere."""
    random = np.random.default_rng(4)
    num_nodes, size = 3000, 50
    community = random.permutation(num_nodes) // size
    members = np.argsort(community, kind="stable").reshape(-1, size)
    destinations = np.repeat(np.arange(num_nodes), 8)
    sources = members[community[destinations], random.integers(0, size, len(destinations))]
    strays = random.random(len(sources)) < 0.1
    sources[strays] = random.integers(0, num_nodes, strays.sum())
    train = random.permutation(num_nodes)[:2001]
    graph = graph_of(tmp_path_factory.mktemp("communities") / "graph", *csc(num_nodes, sources, destinations), train)
    return graph, community


def plan_of(graph, group_seeds, batch_size=96, **options):
    return SamplingPlan(graph, SamplingSpec([3, 2], batch_size, splits=("train",), group_seeds=group_seeds, **options))


def seeds_of(plan, epoch):
    return np.concatenate([minibatch.seeds for minibatch in plan.minibatches("train", epoch)])


def test_every_seed_once_an_epoch_in_groups_that_stay_together(communities):
    graph, _ = communities
    plan, seeds = plan_of(graph, 32), graph.splits["train"]
    grouped = seeds[nearness_order(graph, [("node", seeds)], 32)]
    groups = {tuple(grouped[first : first + 32]) for first in range(0, len(grouped), 32)}
    orders = []
    for epoch in range(3):
        order = seeds_of(plan, epoch)
        np.testing.assert_array_equal(np.sort(order), np.sort(seeds))
        lengths, found = [len(minibatch.seeds) for minibatch in plan.minibatches("train", epoch)], set()
        assert lengths == [96] * 20 + [81]
        first = 0
        while first < len(order):  # the smaller group may lie anywhere
            group = next(each for each in groups if each[0] == order[first])
            assert tuple(order[first : first + len(group)]) == group
            found.add(group)
            first += len(group)
        assert found == groups
        orders.append(order.tolist())
    assert orders[0] != orders[1] != orders[2]
    np.testing.assert_array_equal(seeds_of(plan_of(graph, 32), 1), orders[1])
    assert seeds_of(plan_of(graph, 32, seed=1), 1).tolist() != orders[1]


def test_groups_of_one_are_the_plain_shuffle_and_a_group_of_all_is_one_order(communities):
    graph, _ = communities
    plain = SamplingPlan(graph, SamplingSpec([3, 2], 96, splits=("train",)))
    np.testing.assert_array_equal(seeds_of(plan_of(graph, 1), 2), seeds_of(plain, 2))
    everything = plan_of(graph, 10**12)
    np.testing.assert_array_equal(seeds_of(everything, 0), seeds_of(everything, 1))


@pytest.mark.parametrize("group_seeds", [8, 32])
def test_planted_communities_are_found(communities, group_seeds):
    """Seeds side by side are of one community in nine cases of ten, and in one of 60 in another order."""
    graph, community = communities
    seeds = graph.splits["train"]

    def alike(order):
        found = community[seeds[order]]
        return np.mean(found[1:] == found[:-1])

    assert alike(np.arange(len(seeds))) < 0.1
    assert alike(nearness_order(graph, [("node", seeds)], group_seeds)) > 0.9


def labels_by_hand(indptr, indices, num_nodes, sweeps):
    """Label propagation, one node after the other; yields the labels after each sweep."""
    labels, sizes = list(range(num_nodes)), Counter(range(num_nodes))
    hashes = order_hash(np.arange(num_nodes)).tolist()
    for most_nodes in sweeps:
        for node in range(num_nodes):
            neighbors = indices[indptr[node] : indptr[node + 1]][:MOST_LABEL_NEIGHBORS]
            own = labels[node]
            counts = Counter(labels[neighbor] for neighbor in neighbors)
            open_ones = {label: n for label, n in counts.items() if label == own or sizes[label] < most_nodes}
            most = max(open_ones.values(), default=0)
            best = min((label for label, n in open_ones.items() if n == most), key=hashes.__getitem__, default=own)
            sizes[own] -= 1
            sizes[best] += 1
            labels[node] = best
        yield np.array(labels)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_labels_and_order_are_those_by_hand_through_any_chunks(tmp_path_factory, data):
    num_nodes = 40
    degrees = np.array(data.draw(st.lists(st.sampled_from([0, 1, 3, 8, 300, 700]), min_size=40, max_size=40)))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    indptr = np.cumsum([0, *degrees])
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    indices = in_order(indptr, random.integers(0, num_nodes, indptr[-1]).astype(dtype))
    seeds = random.permutation(num_nodes)[:25]
    graph = graph_of(tmp_path_factory.mktemp("chunks") / "graph", indptr, indices, seeds)
    size = data.draw(st.sampled_from([2, 5, 64]))
    swept = [labels[seeds] for labels in labels_by_hand(indptr, indices, num_nodes, [size, 4 * size, 16 * size])]
    expected = sorted(range(len(seeds)), key=lambda i: (swept[2][i], swept[1][i], swept[0][i], i))
    chunk_nodes, chunk_edges = data.draw(st.integers(1, 50)), data.draw(st.integers(MOST_LABEL_NEIGHBORS, 3000))
    with faults.pretending("chunk.nodes", chunk_nodes), faults.pretending("chunk.edges", chunk_edges):
        assert nearness_order(graph, [("node", seeds)], size).tolist() == expected
    assert nearness_order(graph, [("node", seeds)], size).tolist() == expected


def test_two_cliques_by_hand():
    """0 and 1 look at each other, and so do 2 and 3; 4 looks at 3, 5 at nobody."""
    indptr, indices = np.array([0, 1, 2, 3, 4, 5, 5]), np.array([1, 0, 3, 2, 3], np.int32)
    labels, sizes = np.arange(6, dtype=np.int32), np.ones(6, np.int32)
    propagate_labels(labels, sizes, 10, 0, indptr, indices)
    assert labels[0] == labels[1] != labels[2] == labels[3] == labels[4]
    assert labels[5] == 5
    assert sizes.tolist() == np.bincount(labels, minlength=6).tolist()
    for wrong in (np.array([1, 0, 3, 2, 6], np.int32), np.array([1, 0, 3, 2, -1], np.int32), indices[:4]):
        with pytest.raises(IndexError):
            propagate_labels(labels, sizes, 10, 0, indptr, wrong)


def test_labels_have_no_more_nodes_than_they_may():
    num_nodes = 500
    indptr = np.arange(num_nodes + 1) * 10
    indices = np.random.default_rng(0).integers(0, num_nodes, 10 * num_nodes).astype(np.int32)
    labels, sizes = np.arange(num_nodes, dtype=np.int32), np.ones(num_nodes, np.int32)
    for _ in range(5):
        propagate_labels(labels, sizes, 7, 0, indptr, indices)
        assert 2 < np.bincount(labels).max() <= 7


@pytest.mark.parametrize("draws", ["independent", "coordinated"])
def test_files_do_not_depend_on_memory_and_threads(tmp_path, draws):
    graph = make_graph(tmp_path / "graph")
    options = {"fanouts": [3, 2], "batch_size": 16, "epochs": 2, "draws": draws, "group_seeds": 4}
    sample(graph, tmp_path / "memory", threads=2, memory="1GiB", **options)
    sample(graph, tmp_path / "sweep", threads=1, memory="16KiB", **options)
    sample(graph, tmp_path / "alone", threads=1, **(options | {"group_seeds": 1}))
    opened = {name: Samples.open(tmp_path / name) for name in ("memory", "sweep", "alone")}
    assert opened["memory"].config.spec.group_seeds == 4
    assert opened["memory"].manifest.digest == opened["sweep"].manifest.digest
    grouped, alone = (next(opened[name].read("train")).seeds.tolist() for name in ("memory", "alone"))
    assert grouped != alone
    valid = [[each.seeds.tolist() for each in opened[name].read("valid")] for name in ("memory", "alone")]
    assert valid[0] == valid[1]


def test_prepared_and_online_minibatches_are_the_same(tmp_path):
    graph = make_graph(tmp_path / "graph")
    options = {"fanouts": [3, 2], "batch_size": 16, "group_seeds": 4, "seed": 3}
    prepare(graph, tmp_path / "packed", epochs=2, cpu_cache="10%", keep_input_nodes=True, **options)
    assert Packed.open(tmp_path / "packed").config.samples.spec.group_seeds == 4
    with Loader(tmp_path / "packed") as loader, InMemory(graph, **options) as online:
        for epoch in range(2):
            for batch, expected in zip(loader.epoch(epoch), online.epoch(epoch), strict=True):
                assert_same(batch, expected)
        state = online.state_dict()
    with InMemory(graph, **(options | {"group_seeds": 8})) as other, pytest.raises(ArtifactError, match="group_seeds"):
        other.load_state_dict(state)


def test_near_seeds_need_fewer_rows(communities, tmp_path):
    graph, _ = communities
    requested = {}
    for size in (1, 32):
        options = {"fanouts": [4, 4], "batch_size": 64, "cpu_cache": 0, "group_seeds": size}
        report = prepare(graph, tmp_path / f"packed {size}", **options)[1]
        requested[size] = int(report.details["train_requested_rows"])
    assert requested[32] < 0.75 * requested[1]


def test_a_damaged_topology_is_named(tmp_path):
    graph = make_graph(tmp_path / "graph")
    path = graph.manifest.file(INDICES)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=INDICES):
        plan_of(graph, 4).minibatches("train", 0)
    assert plan_of(graph, 1).minibatches("train", 0)  # which reads none of it


def test_no_group_of_none():
    with pytest.raises(ConfigError, match="group_seeds: expected at least 1, found 0"):
        SamplingSpec([2], 10, group_seeds=0)
