"""DiskGNN's design against a NumPy count of what a static cache leaves to the disk."""

import numpy as np
import pytest
from graphs import (
    assert_rows_are_features,
    bits_of,
    make_graph,
    prepare_graph,
    threads_of_this_process,
    threads_that_stay,
)
from sources import assert_goes_on, assert_refuses_states_of, assert_runs_in_plain_loops

from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.static_packed import StaticPacked, prepare_static_packed
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.loading.loader import Loader

SAMPLING = {"fanouts": [3, 2], "batch_size": 8, "seed": 4}
ENGINES = ("auto", "threads")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("static") / "graph")


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("static") / "packed"
    prepare_static_packed(graph, path, **SAMPLING, static_cache="10%", keep_input_nodes=True)
    return path


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_read_are_accesses_less_hits_on_the_hottest(graph, packed, engine):
    with InMemory(graph, **SAMPLING) as reference:
        accesses = [batch.input_nodes.numpy() for batch in reference.epoch(0)]
    counts = np.bincount(np.concatenate(accesses), minlength=graph.num_nodes)
    hottest = np.lexsort((np.arange(graph.num_nodes), -counts))[: graph.num_nodes // 10]
    hits = counts[hottest].sum()
    with StaticPacked(packed, engine=engine) as source:
        for epoch in range(1, 4):
            for batch in source.epoch(epoch - 1):
                assert_rows_are_features(batch, graph)
            stats = source.stats()
            assert stats.requested_rows == epoch * counts.sum()
            assert stats.pinned_rows == epoch * hits
            assert stats.disk_rows == epoch * (counts.sum() - hits)
            assert stats.cpu_rows == stats.device_rows == 0
            assert stats.read_bytes == epoch * (packed / "train.bin").stat().st_size


def test_the_same_minibatches_in_another_order_each_epoch(graph, packed):
    with StaticPacked(packed, seed=3) as source, Loader(packed) as in_order:
        expected = {batch.seeds.numpy().tobytes(): bits_of(batch) for batch in in_order.epoch(0)}
        orders = []
        for epoch in (0, 1, 2, 1):
            found = [(batch.epoch, batch.batch_index, batch.seeds.numpy().tobytes(), bits_of(batch))
                     for batch in source.epoch(epoch)]  # fmt: skip
            assert [entry[:2] for entry in found] == [(epoch, index) for index in range(source.num_batches)]
            assert {seeds: bits for _, _, seeds, bits in found} == expected
            orders.append([seeds for _, _, seeds, _ in found])
    assert orders[1] == orders[3]
    assert len({tuple(order) for order in (orders[0], orders[1], orders[2], list(expected))}) == 4
    with StaticPacked(packed, seed=4) as other:
        assert [batch.seeds.numpy().tobytes() for batch in other.epoch(0)] != orders[0]


def test_goes_on_from_its_state(packed):
    assert_goes_on(lambda: StaticPacked(packed, seed=1), 1, (0, 3))
    with StaticPacked(packed, seed=1) as source, StaticPacked(packed, seed=2) as other:
        assert_refuses_states_of(other, source, "shuffle_seed")


def test_runs_in_plain_loops(packed):
    with StaticPacked(packed) as source:
        assert_runs_in_plain_loops(source)


def test_shuffling_several_prepared_epochs_keeps_each_in_its_own(graph, tmp_path):
    path = prepare_graph(graph, tmp_path, epochs=2, cpu_cache=0, static_cache="5%")
    with Loader(path) as in_order, Loader(path, shuffle_seed=0) as shuffled:
        for epoch in (0, 1, 2, 3, 1):
            one = [bits_of(batch) for batch in in_order.epoch(epoch)]
            other = [bits_of(batch) for batch in shuffled.epoch(epoch)]
            assert one != other
            assert sorted(one) == sorted(other)


def test_other_splits_come_in_their_order(graph, packed):
    with StaticPacked(packed, "valid") as source, InMemory(graph, "valid", **SAMPLING) as reference:
        for batch, expected in zip(source.epoch(5), reference.epoch(5), strict=True):
            assert bits_of(batch) == bits_of(expected)


@pytest.mark.parametrize(("dtype", "width"), [("float16", 5), ("bfloat16", 3), ("int8", 1)])
def test_odd_widths_and_dtypes(tmp_path, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width)
    prepare_static_packed(graph, tmp_path / "packed", **SAMPLING, static_cache=5 * width, keep_input_nodes=True)
    with StaticPacked(tmp_path / "packed", verify=True) as source:
        for batch in source.epoch(1):
            assert_rows_are_features(batch, graph)


@pytest.mark.usefixtures("arrow_on_one_thread")
def test_leaving_early_leaves_no_thread(packed):
    before = threads_of_this_process()
    with StaticPacked(packed) as source:
        next(source.epoch(0))
        next(source.epoch(1))
    assert threads_that_stay(before) <= before


def test_a_directory_with_a_cpu_tier_is_refused(graph, tmp_path):
    path = prepare_graph(graph, tmp_path, cpu_cache="10%")
    with pytest.raises(ArtifactError, match="prepare_static_packed"):
        StaticPacked(path)
    with pytest.raises(ConfigError, match="cpu tier"):
        Loader(path, shuffle_seed=0)


def test_damage_names_the_extent(graph, tmp_path):
    prepare_static_packed(graph, tmp_path / "packed", **SAMPLING, static_cache=0)
    index = np.load(tmp_path / "packed" / "train-index.npy")
    number = 3
    with (tmp_path / "packed" / "train.bin").open("r+b") as file:
        file.seek(int(index[number]["offset"] + index[number]["header_bytes"] // 2))
        file.write(b"\xff" * 8)
    with (
        StaticPacked(tmp_path / "packed") as source,
        pytest.raises(ArtifactError, match=rf"extent {number} of .* is damaged"),
    ):
        list(source.epoch(0))
