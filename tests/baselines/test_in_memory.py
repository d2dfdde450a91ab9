"""The in-memory source against NumPy, SciPy and what `diskgnn.sample` prepares."""

from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graphs import FEATURES, INDICES, INDPTR, make_graph, prepare_graph
from sources import (
    assert_goes_on,
    assert_is_closed,
    assert_refuses_states_of,
    assert_runs_in_plain_loops,
    assert_same,
    damaged,
    threads_of,
)

from diskgnn.baselines.in_memory import InMemory, in_memory_sources
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.files import faults
from diskgnn.formats.samples import Samples
from diskgnn.loading.loader import Loader
from diskgnn.sampling.sample import sample


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("in-memory") / "graph")


@pytest.mark.parametrize(("dtype", "width"), [("float32", 1), ("float16", 7), ("bfloat16", 3), ("int8", 5)])
def test_x_is_features_of_input_nodes_bit_for_bit(tmp_path, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width)
    with InMemory(graph, fanouts=[3, 2], batch_size=10) as source:
        assert (source.num_features, source.num_layers, source.num_classes) == (width, 2, 4)
        batches = list(source.epoch(0))
    assert len(batches) == source.num_batches == 6
    for batch in batches:
        assert batch.x.dtype == getattr(torch, dtype)
        expected = graph.features[batch.input_nodes.numpy()]
        assert batch.x.view(torch.int8).numpy().tobytes() == expected.tobytes()
        np.testing.assert_array_equal(batch.y, graph.labels[batch.seeds.numpy()])
        np.testing.assert_array_equal(batch.seeds, batch.input_nodes[: len(batch.seeds)])


def test_blocks_are_in_neighbours_in_the_graph(graph):
    shape = (graph.num_nodes, graph.num_nodes)
    adjacency = sp.csr_matrix((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr), shape)
    with InMemory(graph, fanouts=[3, -1], batch_size=16) as source:
        for batch in source.epoch(1):
            nodes = batch.input_nodes.numpy()
            assert batch.blocks[0].num_src == len(nodes)
            for block, fanout in zip(batch.blocks, [graph.num_nodes, 3], strict=True):
                destinations = np.repeat(nodes[: block.num_dst], np.diff(block.indptr))
                assert adjacency[destinations, nodes[block.indices]].all()
                degrees = np.diff(graph.indptr)[nodes[: block.num_dst]]
                np.testing.assert_array_equal(np.diff(block.indptr), np.minimum(degrees, fanout))
            assert batch.blocks[1].num_src == batch.blocks[0].num_dst
            assert batch.blocks[1].num_dst == len(batch.seeds)


def test_an_epoch_visits_every_seed_once_in_new_order(graph):
    with InMemory(graph, fanouts=[2], batch_size=10) as source:
        first, second = (np.concatenate([batch.seeds for batch in source.epoch(epoch)]) for epoch in (0, 1))
    np.testing.assert_array_equal(np.sort(first), np.sort(graph.splits["train"]))
    np.testing.assert_array_equal(np.sort(second), np.sort(graph.splits["train"]))
    assert not np.array_equal(first, second)


def test_same_minibatches_whatever_the_threads(graph):
    with (
        InMemory(graph, fanouts=[3, 3], batch_size=4, seed=5, threads=1) as one,
        InMemory(graph, fanouts=[3, 3], batch_size=4, seed=5, threads=4) as four,
    ):
        for left, right in zip(one.epoch(3), four.epoch(3), strict=True):
            assert_same(left, right)


def test_same_minibatches_as_prepared_ones(graph, tmp_path):
    sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=10, epochs=2, seed=9)
    samples = Samples.open(tmp_path / "samples")
    for split, epochs in (("train", 2), ("valid", 1)):
        with InMemory(graph, split, fanouts=[3, 2], batch_size=10, seed=9, sample_epochs=2) as source:
            # One epoch more than was prepared: it is the first one again.
            drawn = [batch for epoch in range(epochs + 1) for batch in source.epoch(epoch)]
        prepared = list(samples.read(split))
        prepared += prepared[: source.num_batches]
        for batch, expected in zip(drawn, prepared, strict=True):
            np.testing.assert_array_equal(batch.seeds, expected.seeds)
            np.testing.assert_array_equal(batch.input_nodes, expected.only_nodes)
            for block, (indptr, indices) in zip(batch.blocks, expected.only_blocks, strict=True):
                np.testing.assert_array_equal(block.indptr, indptr)
                np.testing.assert_array_equal(block.indices, indices)


def test_same_minibatches_as_a_loader_yields(graph, tmp_path):
    packed = prepare_graph(graph, tmp_path, fanouts=(3, 2), batch_size=10, epochs=2, seed=9)
    for split in ("train", "valid"):
        with (
            InMemory(graph, split, fanouts=[3, 2], batch_size=10, seed=9, sample_epochs=2) as source,
            Loader(packed, split) as loader,
        ):
            for epoch in range(3):
                for one, other in zip(source.epoch(epoch), loader.epoch(epoch), strict=True):
                    assert_same(one, other)


def test_goes_on_from_its_state(graph):
    assert_goes_on(lambda: InMemory(graph, fanouts=[3, 2], batch_size=10, threads=2), 1, range(6))


def test_runs_in_plain_loops(graph):
    with InMemory(graph, fanouts=[3], batch_size=10) as source:
        assert_runs_in_plain_loops(source)


def test_state_counts_what_was_received_not_what_was_prefetched(graph):
    with InMemory(graph, fanouts=[3], batch_size=10, threads=4) as source:
        batches = source.epoch(0)
        assert source.state_dict()["batch"] == 0
        for received, _ in enumerate(batches, 1):
            assert source.state_dict()["batch"] == received


def test_state_of_other_minibatches_is_refused(graph):
    with InMemory(graph, fanouts=[3], batch_size=10) as source:
        for change in ({"seed": 1}, {"batch_size": 11}, {"fanouts": [4]}, {"sample_epochs": 2}):
            other = InMemory(graph, **({"fanouts": [3], "batch_size": 10} | change))
            assert_refuses_states_of(other, source, next(iter(change)))


def test_leaving_the_loop_early_joins_the_threads(graph):
    with InMemory(graph, fanouts=[3], batch_size=2, threads=3) as source:
        for _ in source.epoch(0):
            assert threads_of("in-memory")
            break
        assert not threads_of("in-memory")
        batches = source.epoch(0)
        next(batches)
        list(islice(source.epoch(1), 1))  # another epoch ends the one before
        with pytest.raises(ConfigError, match="another epoch was started"):
            next(batches)
        batches = source.epoch(0)
        next(batches)
    assert not threads_of("in-memory")
    assert_is_closed(source)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_thread_reaches_the_loop(graph, threads):
    with InMemory(graph, fanouts=[3], batch_size=10, threads=threads) as source:
        received = []
        with (
            faults.armed("baseline.sample", OSError("disk on fire"), after=3),
            pytest.raises(OSError, match="disk on fire"),
        ):
            received.extend(batch.batch_index for batch in source.epoch(0))
        assert not threads_of("in-memory")
    assert received == list(range(len(received)))
    assert len(received) == 3 if threads == 1 else len(received) <= 3  # several threads may pass the point in any order
    assert source.state_dict()["batch"] == len(received)


def test_sources_share_their_arrays(tmp_path):
    graph = make_graph(tmp_path / "graph")
    with InMemory(graph, fanouts=[3], batch_size=10) as train:
        with damaged(graph, FEATURES, INDPTR, INDICES):  # what is shared is not loaded again
            valid = InMemory(graph, "valid", fanouts=[2], batch_size=5, share=train)
            with pytest.raises(ArtifactError, match="damaged"):
                InMemory(graph, "valid", fanouts=[2], batch_size=5)
        for batch in valid.epoch(0):
            np.testing.assert_array_equal(batch.x, graph.features[batch.input_nodes])
        with pytest.raises(ConfigError, match="another graph"):
            InMemory(make_graph(tmp_path / "other", seed=1), fanouts=[3], batch_size=10, share=train)


def test_sources_of_all_splits_are_what_prepare_samples(graph):
    with faults.armed("baseline.load", AssertionError("the features were loaded twice"), after=1):
        sources = in_memory_sources(graph, fanouts=[3], batch_size=10, eval_fanouts=[2], seed=4)
    assert list(sources) == ["train_source", "valid_source"]  # there is no test split
    for name, source in sources.items():
        fanouts = [3] if name == "train_source" else [2]
        expected = InMemory(graph, name.removesuffix("_source"), fanouts=fanouts, batch_size=10, seed=4)
        for one, other in zip(source.epoch(0), expected.epoch(0), strict=True):
            assert_same(one, other)
    both = in_memory_sources(graph, fanouts=[3], batch_size=10)["valid_source"]
    assert next(both.epoch(0)).blocks[0].in_degrees.max() == 3


def test_stats_count_rows_received(graph):
    with InMemory(graph, fanouts=[3], batch_size=10) as source:
        rows = sum(len(batch.x) for batch in islice(source.epoch(0), 4))
        stats = source.stats()
    assert stats.requested_rows == stats.cpu_rows == rows
    assert stats.read_bytes == stats.disk_rows == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fanouts": []}, ConfigError, "fanouts"),
        ({"fanouts": [3, 0]}, ConfigError, "fanouts"),
        ({"fanouts": [2.5]}, ConfigError, "fanouts: expected one whole number per layer"),
        ({"batch_size": 0}, ConfigError, "batch_size"),
        ({"threads": 0}, ConfigError, "threads"),
        ({"split": "training"}, ConfigError, "split"),
        ({"split": "test"}, InputError, "no test nodes"),
    ],
)
def test_arguments_are_checked(graph, arguments, error, message):
    with pytest.raises(error, match=message):
        InMemory(graph, **({"fanouts": [3], "batch_size": 10} | arguments))


def test_what_cannot_fit_is_refused_before_it_is_loaded(graph):
    with faults.pretending("memory.limit", 1000), pytest.raises(MemoryError, match="no more than 1000 B: train from"):
        InMemory(graph, fanouts=[2], batch_size=4)
