"""From a graph to x: every loader's rows are the features of the input nodes, bit for bit, whatever the way there."""

import itertools

import numpy as np
import pytest
import torch
from graphs import assert_rows_are_features, bits_of, make_graph, prepare_graph, random_bits, write_graph

import diskgnn
from diskgnn._native import io_uring_refusal
from diskgnn.baselines.in_memory import InMemory
from diskgnn.batches.batch_source import BatchSource
from diskgnn.formats.packed import Packed

DTYPES = ("float32", "float16", "bfloat16", "int8")
WIDTHS = (1, 7, 100, 1433)
ENGINES = ["threads"] if io_uring_refusal() else ["threads", "io_uring"]


@pytest.mark.parametrize(("dtype", "width"), list(itertools.product(DTYPES, WIDTHS)))
def test_x_is_features_of_input_nodes(tmp_path, dtype, width):
    graph = make_graph(tmp_path / "graph", num_nodes=150, dtype=dtype, width=width, splits={"train": 40, "valid": 9})
    packed = prepare_graph(graph, tmp_path, fanouts=[3, 3], batch_size=7, static_cache="5%")
    for engine, split in itertools.product(ENGINES, ("train", "valid")):
        with diskgnn.Loader(
            packed, split, engine=engine, verify=True, device_cache=3 * graph.feature_file.row_bytes
        ) as loader:
            assert all(hasattr(loader, name) for name in vars(BatchSource) if not name.startswith("_"))
            assert (loader.num_features, loader.num_layers, loader.num_classes) == (width, 2, 4)
            for epoch in range(4):  # the sequence is two epochs long for train, one for valid: it starts over
                batches = list(loader.epoch(epoch))
                assert len(batches) == loader.num_batches
                for number, batch in enumerate(batches):
                    assert batch.x.dtype == getattr(torch, dtype)
                    assert (batch.epoch, batch.batch_index) == (epoch, number)
                    assert_rows_are_features(batch, graph)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("end-to-end") / "graph", width=3)


@pytest.fixture(scope="module")
def sampled(graph):
    with InMemory(graph, fanouts=[3, 2], batch_size=8, sample_epochs=2) as source:
        return [batch for epoch in range(5) for batch in source.epoch(epoch)]


STATIC, CPU = ("0", "5%", "100%"), ("0", "10%", "100%")


@pytest.mark.parametrize(("static_cache", "cpu_cache"), [*itertools.product(STATIC, CPU), ("5%", "1GiB")])
def test_every_tier_split_yields_what_memory_yields(graph, sampled, tmp_path, static_cache, cpu_cache):
    packed = prepare_graph(graph, tmp_path, static_cache=static_cache, cpu_cache=cpu_cache)
    row_bytes = graph.feature_file.row_bytes
    num_static = Packed.open(packed).config.num_static
    device_rows = {0, 1, num_static // 2, num_static} if num_static else {0}
    for engine, device in itertools.product(ENGINES, sorted(device_rows)):
        with diskgnn.Loader(packed, engine=engine, threads=2, device_cache=device * row_bytes) as loader:
            batches = [batch for epoch in range(5) for batch in loader.epoch(epoch)]
            stats = loader.stats()
        for batch, expected in zip(batches, sampled, strict=True):
            assert bits_of(batch) == bits_of(expected)
            for name in ("y", "seeds", "input_nodes"):
                assert torch.equal(getattr(batch, name), getattr(expected, name)), name
            for block, other in zip(batch.blocks, expected.blocks, strict=True):
                assert block.num_src == other.num_src
                assert torch.equal(block.indptr, other.indptr)
                assert torch.equal(block.indices, other.indices)
        tier_rows = stats.device_rows + stats.pinned_rows + stats.cpu_rows + stats.disk_rows
        assert stats.requested_rows == tier_rows >= sum(len(batch.x) for batch in batches)
        assert (stats.device_rows == 0) == (device == 0)
        assert (stats.cpu_rows == 0) == (cpu_cache == "0" or static_cache == "100%")
        assert (stats.disk_rows == 0) == (static_cache == "100%" or cpu_cache in ("100%", "1GiB"))


def one_epoch(graph, tmp_path, **arguments):
    packed = prepare_graph(graph, tmp_path, **{"epochs": 1, "cpu_cache": "50%", **arguments})
    with diskgnn.Loader(packed) as loader:
        batches = list(loader.epoch(0)) + list(loader.epoch(1))
    for batch in batches:
        assert_rows_are_features(batch, graph)
    return batches


def test_one_node_and_no_edge(tmp_path):
    graph = write_graph(
        tmp_path / "graph", [0, 0], np.empty(0, np.int32), random_bits((1, 5), "float32"), {"train": [0]}
    )
    first, second = one_epoch(graph, tmp_path, fanouts=[3, 2], batch_size=10)
    assert [block.num_edges for block in first.blocks] == [0, 0]
    assert [(block.num_src, block.num_dst) for block in first.blocks] == [(1, 1), (1, 1)]
    assert bits_of(first) == bits_of(second)


def test_one_node_that_is_its_own_neighbour(tmp_path):
    graph = write_graph(
        tmp_path / "graph", [0, 1], np.zeros(1, np.int32), random_bits((1, 1), "int8"), {"train": [0]}, dtype="int8"
    )
    first, _ = one_epoch(graph, tmp_path, fanouts=[-1], batch_size=1)
    assert first.blocks[0].indices.tolist() == [0]


def test_isolated_seeds_beside_others_and_a_last_minibatch_of_one_seed(tmp_path):
    # 0 <- 1 <- 2; 3 and 4 have no edge at all.
    graph = write_graph(
        tmp_path / "graph", [0, 1, 2, 2, 2, 2], np.array([1, 2], np.int32), random_bits((5, 2), "float16"),
        {"train": [3, 0, 4], "valid": [], "test": [4]}, dtype="float16",
    )  # fmt: skip
    batches = one_epoch(graph, tmp_path, fanouts=[2, 2], batch_size=2)[:2]
    assert [len(batch.seeds) for batch in batches] == [2, 1]
    needed = {seed: {0: {0, 1, 2}}.get(seed, {seed}) for seed in (0, 3, 4)}
    for batch in batches:
        assert set(batch.input_nodes.tolist()) == set().union(*(needed[seed] for seed in batch.seeds.tolist()))
    with pytest.raises(diskgnn.ArtifactError, match="'valid'"):  # empty, so it was left out
        diskgnn.Loader(tmp_path / "packed", "valid")
    with diskgnn.Loader(tmp_path / "packed", "test") as loader:
        assert [batch.seeds.tolist() for batch in loader.epoch(0)] == [[4]]


def test_64_bit_node_ids(tmp_path):
    graph = make_graph(tmp_path / "graph", id_dtype=np.int64)
    for batch in one_epoch(graph, tmp_path):
        assert batch.input_nodes.dtype == torch.int64
