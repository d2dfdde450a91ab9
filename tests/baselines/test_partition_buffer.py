"""The partition buffer: minibatches that never leave the resident partitions."""

from itertools import islice, pairwise

import numpy as np
import pytest
from graphs import assert_rows_are_features, make_graph, write_graph
from partitioned import adjacency, partition_of
from sources import (
    assert_goes_on,
    assert_is_closed,
    assert_refuses_states_of,
    assert_runs_in_plain_loops,
    assert_same,
    threads_of,
)

from diskgnn.baselines.partition_buffer import PartitionBuffer
from diskgnn.baselines.partition_order import order_epoch
from diskgnn.baselines.partition_sizes import resident_partitions
from diskgnn.baselines.partitioning import write_partitions
from diskgnn.baselines.partitions import Partitions
from diskgnn.errors import ConfigError
from diskgnn.files import faults

FANOUTS, BATCH_SIZE = [3, 2], 6


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("partition") / "graph", num_nodes=203)


@pytest.fixture(scope="module")
def folder(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("partition")
    write_partitions(graph, path / "random", num_partitions=8, seed=1)
    write_partitions(graph, path / "first", num_partitions=8, seed=1, train_first=True)
    return path


def buffer(graph, path, **options):
    return PartitionBuffer(graph, path, **({"fanouts": FANOUTS, "batch_size": BATCH_SIZE, "resident": 4} | options))


def order_of(graph, path, source, epoch):
    """The states and seeds of an epoch of `source`, which has seed 0."""
    train = np.unique(Partitions.open(path, graph).train, axis=0)
    return order_epoch(train[:, 0], source.buffer, seed=0, epoch=epoch)


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
        if order == "few":  # each of 8 partitions is in one state
            assert source.num_batches == len(order_of(graph, folder / name, source, 0).slots) == 4
        requested = 0
        for epoch in (0, 1, 5):
            order_of_epoch, seen = order_of(graph, folder / name, source, epoch), []
            for number, batch in enumerate(source.epoch(epoch)):
                assert (batch.epoch, batch.batch_index) == (epoch, number)
                assert_rows_are_features(batch, graph)
                slots = order_of_epoch.slots[order_of_epoch.batch_state[number]]
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
    assert stats.requested_rows == stats.cpu_rows == requested
    assert stats.disk_rows == 0


def test_all_neighbours_when_everything_is_resident(graph, folder):
    with buffer(graph, folder / "random", resident=8, fanouts=[-1]) as source:
        for batch in source.epoch(0):
            for seed, begin, end in zip(batch.seeds, *batch.blocks[0].indptr.unfold(0, 2, 1).T, strict=True):
                found = batch.input_nodes[batch.blocks[0].indices[begin:end]].numpy()
                np.testing.assert_array_equal(np.sort(found), graph.indices[slice(*graph.indptr[seed : seed + 2])])


def test_all_neighbours_in_buckets_of_many_pages(tmp_path):
    graph = make_graph(tmp_path / "graph", num_nodes=400, in_degree=150, width=2)
    write_partitions(graph, tmp_path / "partitions", num_partitions=2)
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
        starts = Partitions.open(folder / "random", graph).starts
        slots_of_state = order_of(graph, folder / "random", source, 0).slots
        stats = source.stats()
    held, rows = np.full(slots_of_state.shape[1], -1), 0
    for slots in slots_of_state:
        rows += sum(np.diff(starts)[q] for q in slots[(slots >= 0) & (slots != held)])
        held = np.where(slots >= 0, slots, held)
    assert stats.filled_rows == rows
    assert stats.read_bytes >= rows * (graph.feature_file.row_bytes + 4)


def test_cached_partitions_are_read_once(graph, folder):
    with buffer(graph, folder / "first", order="cached", resident=4) as source:
        reads = []
        for epoch in range(4):
            list(source.epoch(epoch))
            reads.append(source.stats().filled_rows)
    assert reads[0] in range(100, 104)
    assert all(now - before in (0, 25, 26) for before, now in pairwise(reads))
    assert reads[-1] > reads[0]


def test_same_minibatches_whatever_the_threads_and_what_came_before(graph, folder):
    with buffer(graph, folder / "random", threads=1) as one, buffer(graph, folder / "random", threads=4) as four:
        list(one.epoch(0))
        list(islice(one.epoch(1), 7))
        for left, right in zip(one.epoch(2), four.epoch(2), strict=True):
            assert_same(left, right)


def test_goes_on_from_its_state(graph, folder):
    assert_goes_on(lambda: buffer(graph, folder / "random"), 1, (0, 1, 9))
    with buffer(graph, folder / "random") as source, buffer(graph, folder / "random", resident=2) as other:
        assert_refuses_states_of(other, source, "resident")


def test_runs_in_plain_loops(graph, folder):
    with buffer(graph, folder / "random") as source:
        assert_runs_in_plain_loops(source)


def test_leaving_early_joins_the_threads(graph, folder):
    with buffer(graph, folder / "random", batch_size=2) as source:
        for _ in source.epoch(0):
            assert threads_of("partition-buffer")
            break
        assert not threads_of("partition-buffer")
        next(source.epoch(1))
    assert not threads_of("partition-buffer")
    assert_is_closed(source)


def test_a_failing_disk_reaches_the_loop(graph, folder):
    with buffer(graph, folder / "random") as source:
        received = []
        with (
            faults.armed("partition.read", OSError("disk on fire"), after=30),
            pytest.raises(OSError, match="disk on fire"),
        ):
            received.extend(source.epoch(0))
        assert not threads_of("partition-buffer")
        assert len(list(source.epoch(0))) == source.num_batches > len(received)


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
        ({"fanouts": [2.5]}, "fanouts"),
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
    slot_bytes = found.config.stride * (found.config.row_bytes + 40)
    edges_bytes = graph.num_edges * 16
    for slots, swapped, kept in ((3, 2, 3), (5, 2, 5), (6, 4, 6), (7, 4, 7), (8, 8, 8)):
        memory = slots * slot_bytes + edges_bytes
        # Two logical partitions, and a third one that is read ahead; with one state an epoch there is no next one.
        assert resident_partitions(found, memory) == swapped
        assert resident_partitions(found, memory, "cached") == kept
    with buffer(graph, folder / "random", resident=None, memory="1GiB") as source:
        assert source.buffer.resident == 8


def test_nodes_without_edges_and_wide_ids(tmp_path):
    indptr, indices = np.zeros(11, np.int64), np.empty(0, np.int64)
    features = np.arange(30, dtype=np.float32).reshape(10, 3)
    graph = write_graph(tmp_path / "graph", indptr, indices, features, {"train": np.array([3, 9, 1])})
    write_partitions(graph, tmp_path / "partitions", num_partitions=4)
    with buffer(graph, tmp_path / "partitions", resident=2) as source:
        batches = list(source.epoch(0))
    assert sorted(np.concatenate([batch.seeds for batch in batches])) == [1, 3, 9]
    for batch in batches:
        assert_rows_are_features(batch, graph)
    assert Partitions.open(tmp_path / "partitions", graph).config.num_edges == 0
