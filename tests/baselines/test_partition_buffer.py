"""The partition buffer: what is on disk, COMET's order, and minibatches that never leave the resident partitions."""

import threading
from itertools import combinations, islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graphs import assert_rows_are_features, bits_of, make_graph, write_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn._native import read_ranges
from diskgnn.baselines.partition_buffer import PartitionBuffer, resident_partitions
from diskgnn.baselines.partition_order import (
    Draws,
    comet_states,
    dispersed_states,
    epoch_shape,
    group_size,
    plan_epoch,
    round_states,
)
from diskgnn.baselines.partitioning import Partitions, prepare_partitions
from diskgnn.errors import ArtifactError, ConfigError, InputError, OutputExistsError
from diskgnn.batch_source import BatchSource
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import verify_artifact

FANOUTS, BATCH_SIZE = [3, 2], 6


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("partition") / "graph", num_nodes=203)


@pytest.fixture(scope="module")
def folder(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("partition")
    prepare_partitions(graph, path / "random", num_partitions=8, seed=1)
    prepare_partitions(graph, path / "first", num_partitions=8, seed=1, train_first=True)
    return path


def buffer(graph, path, **options):
    return PartitionBuffer(graph, path, **({"fanouts": FANOUTS, "batch_size": BATCH_SIZE, "resident": 4} | options))


def adjacency(graph):
    return sp.csr_matrix((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr), (graph.num_nodes,) * 2)


def partition_of(graph, path):
    found = Partitions.open(path, graph)
    partition = np.empty(graph.num_nodes, np.int64)
    for q in range(found.num_partitions):
        partition[found.nodes[found.starts[q] : found.starts[q + 1]]] = q
    return partition


# What is on disk


@pytest.mark.parametrize(("dtype", "width", "memory"), [("float32", 7, "1GiB"), ("bfloat16", 3, 2000), ("int8", 1, 64)])
def test_the_files_hold_what_the_format_says(tmp_path, dtype, width, memory):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width, num_nodes=101)
    prepare_partitions(graph, tmp_path / "partitions", num_partitions=5, memory=memory, threads=2)
    manifest = verify_artifact(tmp_path / "partitions")
    found = Partitions.open(tmp_path / "partitions", graph)
    np.testing.assert_array_equal(np.sort(found.nodes), np.arange(graph.num_nodes))
    assert set(np.diff(found.starts)) <= {20, 21}
    features = manifest.file("features.bin").read_bytes()
    edges = np.fromfile(manifest.file("edges.bin"), np.int32).reshape(-1, 2)
    assert len(edges) == graph.num_edges
    members = [found.nodes[found.starts[q] : found.starts[q + 1]] for q in range(5)]
    graph_edges = adjacency(graph)
    for q, nodes in enumerate(members):
        assert (np.diff(nodes) > 0).all()
        begin = q * found.partition_bytes
        assert begin % 4096 == 0
        stored = features[begin : begin + len(nodes) * found.row_bytes]
        assert stored == graph.features[nodes].tobytes()
        assert not any(features[begin + len(stored) : begin + found.partition_bytes])
        for r, sources in enumerate(members):
            bucket = edges[found.buckets[q, r] : found.buckets[q, r + 1]]
            expected = graph_edges[nodes][:, sources]
            np.testing.assert_array_equal(bucket[np.lexsort(bucket.T[::-1])], np.argwhere(expected.toarray()))
            assert (np.diff(bucket[:, 0]) >= 0).all()
    train = np.array([members[q][position] for q, position in found.train])
    np.testing.assert_array_equal(train, graph.splits["train"])


def test_the_same_bytes_whatever_the_memory(graph, tmp_path):
    for name, memory in (("one", "1GiB"), ("two", 5000)):
        prepare_partitions(graph, tmp_path / name, num_partitions=4, memory=memory)
    one, two = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two


def test_train_nodes_first(graph, folder):
    partition = partition_of(graph, folder / "first")[graph.splits["train"]]
    assert partition.max() == 2  # 57 of 203 nodes, 25 or 26 a partition


def test_preparing_checks_its_arguments(graph, folder, tmp_path):
    for number in (0, 257, 204):
        with pytest.raises(ConfigError, match="num_partitions"):
            prepare_partitions(graph, tmp_path / "out", num_partitions=number)
    with pytest.raises(OutputExistsError):
        prepare_partitions(graph, folder / "random", num_partitions=8)
    with pytest.raises(InputError, match="train"):
        prepare_partitions(make_graph(tmp_path / "other", splits={"valid": 9}), tmp_path / "out", num_partitions=2)
    with pytest.raises(ArtifactError, match="another graph"):
        buffer(make_graph(tmp_path / "third", seed=4), folder / "random")
    assert not (tmp_path / "out").exists()


# The order


@given(num=st.integers(2, 12), capacity=st.integers(2, 12), key=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=60)
def test_comet_brings_every_pair_together_one_swap_at_a_time(num, capacity, key):
    capacity = min(num, capacity)
    states = [frozenset(state) for state in comet_states(num, capacity, Draws(key))]
    assert {len(state) for state in states} == {capacity}
    met = {pair for state in states for pair in combinations(sorted(state), 2)}
    assert met == set(combinations(range(num), 2))
    assert all(len(now - before) == 1 for before, now in pairwise(states))
    assert len(states) == len(comet_states(num, capacity, Draws(key + 1)))
    # As many swaps as BETA (Marius, OSDI 2021) promises at most: pairs still to meet, capacity - 1 at a time.
    assert len(states) - 1 <= (num * (num - 1) / 2 - capacity * (capacity - 1) / 2) / (capacity - 1) + num


def test_dispersed_brings_every_partition_in_once():
    states = dispersed_states(9, 3, Draws(5))
    assert len(states) == 7
    assert set().union(*states) == set(range(9))
    assert all(len(set(now) - set(before)) == 1 for before, now in pairwise(states))


@given(num=st.integers(2, 12), capacity=st.integers(2, 5), rounds=st.integers(1, 5), key=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=60)
def test_a_round_has_everyone_in_as_few_states_as_hold_them(num, capacity, rounds, key):
    capacity = min(num, capacity)
    states = round_states(num, capacity, rounds, Draws(key))
    assert len(states) == rounds * -(-num // capacity)
    assert all(len(set(state)) == capacity for state in states)
    assert min(np.bincount(np.concatenate(states), minlength=num)) >= rounds
    if capacity == 2:  # COMET's order has all pairs
        assert {frozenset(state) for state in states} <= {frozenset(s) for s in comet_states(num, 2, Draws(key))}


@given(
    st.sampled_from([(8, 4), (8, 2), (12, 6), (6, 6), (9, 3), (7, 3), (5, 4), (24, 4)]),
    st.sampled_from(["comet", "dispersed"]),
    st.integers(1, 90),
    st.integers(1, 20),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_a_plan_uses_every_node_once_while_it_is_resident(shape, order, num_nodes, batch_size, seed):
    p, c = shape
    train = np.sort(np.random.default_rng(seed).integers(0, p, num_nodes))
    arguments = {"order": order, "num_partitions": p, "resident": c, "batch_size": batch_size, "seed": seed}
    plan = plan_epoch(train, **arguments, epoch=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(plan.batches)), np.arange(num_nodes))
    assert max(map(len, plan.batches)) <= batch_size
    assert min(map(len, plan.batches)) >= 1
    shape = epoch_shape(train, order=order, num_partitions=p, resident=c, batch_size=batch_size)
    assert len(plan.batches) == shape.num_batches
    np.testing.assert_array_equal(np.unique(plan.batch_state), np.arange(len(plan.slots)))  # none without seeds
    for state, nodes in zip(plan.batch_state, plan.batches, strict=True):
        assert set(train[nodes]) <= set(plan.slots[state])
    for slots in plan.slots:
        resident = slots[slots >= 0]
        assert len(set(resident)) == len(resident) == c
    states = {"comet": comet_states, "dispersed": dispersed_states}[order]
    whole = len(states(p // group_size(p, c), c // group_size(p, c), Draws(0)))
    for state, (before, now) in enumerate(pairwise(plan.slots), start=1):
        entered = (now >= 0) & (now != before)
        overwrites = bool((before[entered] >= 0).any())
        assert plan.enters_free_slots(state) == (not overwrites) == (entered.sum() <= group_size(p, c))
        assert not overwrites or len(plan.slots) < whole  # one swap leads from each of an order's states to the next
    again, other = (plan_epoch(train, **arguments, epoch=e) for e in (0, 1))
    np.testing.assert_array_equal(plan.slots, again.slots)
    assert len(other.batches) == len(plan.batches)


def test_comet_groups_partitions_anew_each_epoch_and_covers_all_pairs():
    pairs = []
    for epoch in range(2):
        plan = plan_epoch(np.repeat(np.arange(16), 20), order="comet", num_partitions=16, resident=4, batch_size=4,
                          seed=0, epoch=epoch)  # fmt: skip
        assert group_size(16, 4) == 2  # 8 logical partitions, the paper's 2p / c
        met = {pair for state in plan.slots for pair in combinations(sorted(state[state >= 0]), 2)}
        assert met == set(combinations(range(16), 2))
        pairs.append([frozenset(state) for state in plan.slots])
    assert pairs[0] != pairs[1]


@pytest.mark.parametrize("logical", [20, 21])
def test_few_seeds_visit_few_states_and_many_the_whole_order(logical):
    p, group, batch_size = 4 * logical, 4, 64
    whole, round_size = len(comet_states(logical, 2, Draws(0))), -(-logical // 2)
    fewest, before = logical * batch_size // 4, 0
    for num_nodes in (fewest, 3 * fewest, 12 * fewest, whole * batch_size * 3 // 4, 2 * whole * batch_size):
        train = np.random.default_rng(num_nodes).integers(0, p, num_nodes)
        for epoch in range(3):
            plan = plan_epoch(train, order="comet", num_partitions=p, resident=2 * group, batch_size=batch_size,
                              seed=1, epoch=epoch)  # fmt: skip
            visited, full = len(plan.slots), -(-num_nodes // batch_size)
            np.testing.assert_array_equal(np.sort(np.concatenate(plan.batches)), np.arange(num_nodes))
            assert np.isin(np.arange(p), plan.slots).all()
            assert max(map(len, plan.batches)) <= batch_size
            if num_nodes <= whole * batch_size * 3 // 4:  # a minibatch for each state, and few more than would be full
                assert len(plan.batches) == visited < whole
                assert len(plan.batches) <= max(round_size, 1.5 * full + round_size)
            else:
                assert visited == whole
                assert len(plan.batches) <= min(full + whole - 1, 3 * whole)
            if num_nodes == fewest:
                assert visited == round_size
                entered = [set(now) - set(then) - {-1} for then, now in pairwise([plan.slots[0] * 0 - 1, *plan.slots])]
                assert sum(map(len, entered)) <= p + group  # one pass over the features
        assert visited > before or num_nodes == fewest
        before = visited


# Minibatches


@pytest.mark.parametrize(
    ("name", "order", "resident"),
    [("random", "comet", 4), ("random", "comet", 2), ("random", "comet", 8), ("random", "dispersed", 4),
     ("first", "cached", 5), ("random", "comet", 3), ("random", "few", 2)],
)  # fmt: skip
@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_minibatches_stay_within_the_resident_partitions(graph, folder, name, order, resident, engine):
    edges, partition = adjacency(graph), partition_of(graph, folder / name)
    options = {"order": "comet", "batch_size": 30} if order == "few" else {"order": order}
    with buffer(graph, folder / name, **options, resident=resident, engine=engine, threads=2) as source:
        assert isinstance(source, BatchSource)
        assert order != "few" or source.num_batches == len(source._plan(0).slots) == 4  # of 8 partitions, each once
        requested = 0
        for epoch in (0, 1, 5):
            plan, seen = source._plan(epoch), []
            for number, batch in enumerate(source.epoch(epoch)):
                assert (batch.epoch, batch.batch_index) == (epoch, number)
                assert_rows_are_features(batch, graph)
                slots = plan.slots[plan.batch_state[number]]
                nodes = batch.input_nodes.numpy()
                assert set(partition[nodes]) <= set(slots[slots >= 0])
                assert len(slots[slots >= 0]) == resident
                in_buffer = np.isin(partition, slots)
                assert len(np.unique(nodes)) == len(nodes) == batch.blocks[0].num_src
                for block, fanout in zip(batch.blocks, reversed(FANOUTS), strict=True):
                    destinations = nodes[: block.num_dst]
                    drawn = np.diff(block.indptr.numpy())
                    pairs = np.stack([np.repeat(destinations, drawn), nodes[block.indices.numpy()]])
                    assert all(edges[v, u] for v, u in pairs.T)
                    assert len(np.unique(pairs, axis=1).T) == block.num_edges
                    degrees = np.asarray(edges[destinations][:, in_buffer].sum(axis=1)).ravel()
                    np.testing.assert_array_equal(drawn, np.minimum(degrees, fanout))
                assert batch.blocks[1].num_src == batch.blocks[0].num_dst
                seen.append(batch.seeds.numpy())
                requested += len(nodes)
            np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.sort(graph.splits["train"]))
            assert len(seen) == source.num_batches
        stats = source.stats()
    assert stats["requested_rows"] == stats["cpu_rows"] == requested
    assert stats["disk_rows"] == 0


def test_all_neighbours_when_everything_is_resident(graph, folder):
    with buffer(graph, folder / "random", resident=8, fanouts=[-1]) as source:
        for batch in source.epoch(0):
            for seed, begin, end in zip(batch.seeds, *batch.blocks[0].indptr.unfold(0, 2, 1).T, strict=True):
                found = batch.input_nodes[batch.blocks[0].indices[begin:end]].numpy()
                np.testing.assert_array_equal(np.sort(found), graph.indices[slice(*graph.indptr[seed : seed + 2])])


def test_all_neighbours_in_buckets_of_many_pages(tmp_path):
    graph = make_graph(tmp_path / "graph", num_nodes=400, in_degree=150, width=2)
    prepare_partitions(graph, tmp_path / "partitions", num_partitions=2)
    assert np.diff(Partitions.open(tmp_path / "partitions", graph).buckets).min() * 8 > 64 << 10
    with buffer(graph, tmp_path / "partitions", resident=2, fanouts=[-1]) as source:
        for batch in source.epoch(0):
            np.testing.assert_array_equal(batch.blocks[0].in_degrees, np.diff(graph.indptr)[batch.seeds.numpy()])
            assert_rows_are_features(batch, graph)
            for i, seed in enumerate(batch.seeds.tolist()):
                found = batch.input_nodes[batch.blocks[0].indices[slice(*batch.blocks[0].indptr[i : i + 2].tolist())]]
                expected = graph.indices[slice(*graph.indptr[seed : seed + 2])]
                np.testing.assert_array_equal(np.sort(found), expected)


def test_reads_what_enters_and_nothing_else(graph, folder):
    with buffer(graph, folder / "random", order="comet") as source:
        list(source.epoch(0))
        plan, starts = source._plan(0), Partitions.open(folder / "random", graph).starts
        stats = source.stats()
    held, rows = np.full(plan.slots.shape[1], -1), 0
    for state in sorted(set(plan.batch_state)):
        slots = plan.slots[state]
        rows += sum(np.diff(starts)[q] for q in slots[(slots >= 0) & (slots != held)])
        held = np.where(slots >= 0, slots, held)
    assert stats["loaded_rows"] == rows
    assert stats["read_bytes"] >= rows * (graph.feature_file.row_bytes + 4)


def test_cached_partitions_are_read_once(graph, folder):
    with buffer(graph, folder / "first", order="cached", resident=4) as source:
        reads = []
        for epoch in range(4):
            list(source.epoch(epoch))
            reads.append(source.stats()["loaded_rows"])
    assert reads[0] in range(100, 104)
    assert all(now - before in (0, 25, 26) for before, now in pairwise(reads))
    assert reads[-1] > reads[0]


def same(one, other):
    assert (one.epoch, one.index, bits_of(one)) == (other.epoch, other.index, bits_of(other))
    assert torch.equal(one.seeds, other.seeds)
    assert all(torch.equal(a.indices, b.indices) for a, b in zip(one.blocks, other.blocks, strict=True))


def test_same_minibatches_whatever_the_threads_and_what_came_before(graph, folder):
    with buffer(graph, folder / "random", threads=1) as one, buffer(graph, folder / "random", threads=4) as four:
        list(one.epoch(0))
        list(islice(one.epoch(1), 7))
        for left, right in zip(one.epoch(2), four.epoch(2), strict=True):
            same(left, right)


def test_goes_on_from_its_state(graph, folder):
    with buffer(graph, folder / "random") as source:
        whole = list(source.epoch(1))
    for consumed in (0, 1, 9, len(whole)):
        with buffer(graph, folder / "random") as first, buffer(graph, folder / "random") as second:
            list(islice(first.epoch(1), consumed))
            second.load_state_dict(first.state_dict())
            for left, right in zip(second.epoch(1), whole[consumed:], strict=True):
                same(left, right)
            with buffer(graph, folder / "random", resident=2) as other, pytest.raises(ArtifactError, match="resident"):
                other.load_state_dict(first.state_dict())


def source_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("diskgnn-partition-buffer")]


def test_leaving_early_joins_the_threads(graph, folder):
    with buffer(graph, folder / "random", batch_size=2) as source:
        for _ in source.epoch(0):
            assert source_threads()
            break
        assert not source_threads()
        next(source.epoch(1))
    assert not source_threads()
    with pytest.raises(ConfigError, match="closed"):
        source.epoch(0)


def test_a_failing_disk_reaches_the_loop(graph, folder, monkeypatch):
    real, reads = read_ranges, []

    def failing(*arguments):
        reads.append(arguments)
        if len(reads) > 30:
            raise OSError("disk on fire")
        real(*arguments)

    with buffer(graph, folder / "random") as source:
        monkeypatch.setattr(_native, "read_ranges", failing)
        received = []
        with pytest.raises(OSError, match="disk on fire"):
            received.extend(source.epoch(0))
        assert not source_threads()
        monkeypatch.undo()
        assert len(list(source.epoch(0))) == source.num_batches > len(received)


def test_damage_is_an_error(graph, tmp_path):
    prepare_partitions(graph, tmp_path / "partitions", num_partitions=4)
    np.save(tmp_path / "partitions" / "buckets.npy", np.zeros((4, 5), np.int64))
    with pytest.raises(ArtifactError, match=r"buckets\.npy"):
        buffer(graph, tmp_path / "partitions")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resident": 1}, "resident"),
        ({"resident": 9}, "resident"),
        ({"resident": None}, "one of resident and memory"),
        ({"memory": "1GiB"}, "one of resident and memory"),
        ({"resident": None, "memory": 1000}, "memory"),
        ({"order": "sorted"}, "order"),
        ({"order": "cached"}, "train_first"),
        ({"fanouts": []}, "fanouts"),
        ({"prefetch": 0}, "prefetch"),
    ],
)
def test_arguments_are_checked(graph, folder, arguments, message):
    with pytest.raises(ConfigError, match=message):
        buffer(graph, folder / "random", **arguments)
    with pytest.raises(ConfigError, match="resident"):
        buffer(graph, folder / "first", order="cached", resident=2)


def test_memory_says_how_many_are_resident(graph, folder):
    found = Partitions.open(folder / "random", graph)
    assert resident_partitions(found, 1 << 30) == 8
    slot_bytes = found.stride * (found.row_bytes + 40)
    edges_bytes = graph.num_edges * 16
    for slots, swapped, kept in ((3, 2, 3), (5, 2, 5), (6, 4, 6), (7, 4, 7), (8, 8, 8)):
        memory = slots * slot_bytes + edges_bytes
        # Two logical partitions, and a third one that is read ahead; with one state an epoch there is no next one.
        assert resident_partitions(found, memory) == swapped
        assert resident_partitions(found, memory, "cached") == kept
    with buffer(graph, folder / "random", resident=None, memory="1GiB") as source:
        assert source.resident == 8


def test_nodes_without_edges_and_wide_ids(tmp_path):
    indptr, indices = np.zeros(11, np.int64), np.empty(0, np.int64)
    features = np.arange(30, dtype=np.float32).reshape(10, 3)
    graph = write_graph(tmp_path / "graph", indptr, indices, features, {"train": np.array([3, 9, 1])})
    prepare_partitions(graph, tmp_path / "partitions", num_partitions=4)
    with buffer(graph, tmp_path / "partitions", resident=2) as source:
        batches = list(source.epoch(0))
    assert sorted(np.concatenate([batch.seeds for batch in batches])) == [1, 3, 9]
    for batch in batches:
        assert_rows_are_features(batch, graph)
    assert artifacts.open_artifact(tmp_path / "partitions").config["num_edges"] == 0
