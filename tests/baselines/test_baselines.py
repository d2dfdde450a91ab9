"""What every baseline that samples while training keeps: x, minibatches, position, threads, counters."""

import gc
import os
from itertools import islice, product

import numpy as np
import pytest
import torch
from graphs import INDICES, INDPTR, assert_rows_are_features, make_graph, threads_of_this_process, threads_that_stay
from sources import (
    assert_goes_on,
    assert_is_closed,
    assert_refuses_states_of,
    assert_runs_in_plain_loops,
    assert_same,
    damaged,
)

from diskgnn._native import RowCache, RowReader
from diskgnn.baselines.cached_reads import POLICIES, CachedReads
from diskgnn.baselines.ginex import Ginex
from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.mmap import MMap
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files import faults

MAKERS = {
    "mmap": (MMap, {"gather_threads": 1}),
    "mmap, in parallel": (MMap, {"gather_threads": 8}),
    "mmap, read ahead": (MMap, {"advice": "normal", "topology": "mmap"}),
    "cached-reads, SIEVE": (CachedReads, {"policy": "sieve"}),
    "cached-reads, S3-FIFO": (CachedReads, {"policy": "s3-fifo", "cpu_cache": "60%", "topology": "mmap"}),
    "cached-reads, LRU": (CachedReads, {"policy": "lru", "cpu_cache": "10%", "prefetch": 3}),
    "cached-reads, no cache": (CachedReads, {"cpu_cache": 0}),
    "cached-reads, all cached": (CachedReads, {"cpu_cache": "1GiB", "engine": "threads"}),
    "ginex": (Ginex, {"superbatch": 3}),
    "ginex, neighbour cache": (Ginex, {"superbatch": 4, "neighbor_cache": "30%", "cpu_cache": "30%"}),
    "ginex, one superbatch, no caches": (Ginex, {"neighbor_cache": 0, "cpu_cache": 0, "engine": "threads"}),
}
SAMPLING = {"fanouts": [3, 2], "batch_size": 8}
each_baseline = pytest.mark.parametrize("name", MAKERS)


def make(name, graph, split="train", **arguments):
    kind, options = MAKERS[name]
    return kind(graph, split, **{**SAMPLING, **options, **arguments})


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("baselines") / "graph")


@pytest.fixture(scope="module")
def expected(graph):
    with InMemory(graph, **SAMPLING, seed=3, sample_epochs=2) as source:
        return [batch for epoch in range(3) for batch in source.epoch(epoch)]


@each_baseline
@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 1), ("float16", 7), ("bfloat16", 3), ("int8", 5), ("float32", 1433)]
)
def test_x_is_features_of_input_nodes(tmp_path, name, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width)
    for split in ("train", "valid"):
        with make(name, graph, split) as source:
            assert (source.num_features, source.num_layers, source.num_classes) == (width, 2, 4)
            for epoch in range(2):
                batches = list(source.epoch(epoch))
                assert len(batches) == source.num_batches
                for batch in batches:
                    assert batch.x.dtype == getattr(torch, dtype)
                    assert_rows_are_features(batch, graph)


@each_baseline
@pytest.mark.parametrize("threads", [1, 4])
def test_same_minibatches_as_in_memory(graph, expected, name, threads):
    with make(name, graph, seed=3, sample_epochs=2, threads=threads) as source:
        batches = [batch for epoch in range(3) for batch in source.epoch(epoch)]
        stats = source.stats()
    for batch, other in zip(batches, expected, strict=True):
        assert_same(batch, other)
    assert stats.requested_rows == sum(len(batch.x) for batch in batches)
    assert stats.requested_rows == stats.device_rows + stats.pinned_rows + stats.cpu_rows + stats.disk_rows


@each_baseline
def test_goes_on_from_its_state(graph, name):
    assert_goes_on(lambda: make(name, graph, seed=3, sample_epochs=2), 1, (0, 1, 7))
    with make(name, graph, seed=3) as source, make(name, graph) as other:
        assert_refuses_states_of(other, source, "seed")


@each_baseline
def test_runs_in_plain_loops(graph, name):
    with make(name, graph) as source:
        assert_runs_in_plain_loops(source)


@pytest.mark.usefixtures("arrow_on_one_thread")
@each_baseline
def test_leaving_early_leaves_no_thread(graph, name):
    before = threads_of_this_process()
    with make(name, graph, threads=3) as source:
        for number in range(3):
            for batch in islice(source.epoch(number), number + 1):
                assert_rows_are_features(batch, graph)
            batches = source.epoch(5)
            assert_rows_are_features(next(batches), graph)
            assert len(list(source.epoch(6))) == source.num_batches
            with pytest.raises(ConfigError, match="another epoch was started"):
                next(batches)
        next(source.epoch(7))
    assert threads_that_stay(before) <= before
    assert_is_closed(source)


@each_baseline
def test_an_error_of_the_rows_reaches_the_loop(graph, name):
    with make(name, graph) as source:
        received = []
        with (
            faults.armed("baseline.gather", OSError("disk on fire"), after=2),
            pytest.raises(OSError, match="disk on fire"),
        ):
            received.extend(batch.batch_index for batch in source.epoch(0))
        assert received == [0, 1]
        assert source.state_dict()["batch"] == 2


@each_baseline
def test_sources_share_topology_and_rows(tmp_path, name):
    graph = make_graph(tmp_path / "graph")
    with make(name, graph) as train:
        with damaged(graph, INDPTR, INDICES):  # what is shared is not loaded again
            valid = make(name, graph, "valid", share=train)
        for source in (train, valid, train):
            for batch in source.epoch(0):
                assert_rows_are_features(batch, graph)
        valid.close()
        assert len(list(train.epoch(1))) == train.num_batches  # the rows are the train source's
        with pytest.raises(ConfigError, match="another graph"):
            make(name, make_graph(tmp_path / "other", seed=1), share=train)
        with InMemory(graph, **SAMPLING) as other, pytest.raises(ConfigError, match="found a InMemory"):
            make(name, graph, share=other)


@each_baseline
def test_trace(graph, name):
    with make(name, graph) as source:
        list(source.epoch(0))
        assert source.take_trace() == []
        source.start_tracing()
        list(source.epoch(1))
        events = source.take_trace()
        assert sorted((event.stage, event.minibatch) for event in events if event.stage != "inspect") == sorted(
            product(("gather", "sample"), range(source.num_batches))
        )
        assert all(event.start_ns <= event.end_ns for event in events)
        assert source.take_trace() == []


@pytest.mark.parametrize("policy", POLICIES)
def test_cached_reads_follow_the_policy(graph, policy):
    """Misses are those of the policy (tests/test_row_cache.py) on the minibatches in order, in every run."""
    capacity = 90
    for threads in (1, 4):
        cache = RowCache(policy, graph.num_nodes, capacity)
        with CachedReads(
            graph, **SAMPLING, cpu_cache=capacity * graph.feature_file.row_bytes, policy=policy, threads=threads
        ) as source:
            missed = 0
            for epoch in range(2):
                for batch in source.epoch(epoch):
                    slots, _ = cache.lookup(batch.input_nodes.numpy())
                    missed += int((slots < 0).sum())
                    stats = source.stats()
                    assert (stats.disk_rows, stats.cpu_rows) == (missed, stats.requested_rows - missed)
            assert 0 < missed < stats.requested_rows
            assert 0 < stats.read_requests <= missed
            assert stats.read_bytes >= 4096 * stats.read_requests


def test_without_a_cache_every_row_is_read(graph):
    with CachedReads(graph, **SAMPLING, cpu_cache=0) as source:
        list(source.epoch(0))
        stats = source.stats()
    assert stats.disk_rows == stats.requested_rows


def test_with_room_for_all_every_row_is_read_once(graph):
    with CachedReads(graph, **SAMPLING, cpu_cache="100%") as source:
        distinct = {node for epoch in range(3) for batch in source.epoch(epoch) for node in batch.input_nodes.tolist()}
        assert source.stats().disk_rows == len(distinct)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (MMap, {"advice": "sequential"}, "advice: expected one of random, normal"),
        (MMap, {"gather_threads": 0}, "gather_threads"),
        (MMap, {"prefetch": 0}, "prefetch"),
        (CachedReads, {"policy": "fifo"}, "policy: expected one of sieve, s3-fifo, lru"),
        (CachedReads, {"cpu_cache": "120%"}, "share between"),
        (CachedReads, {"cpu_cache": "much"}, "size such as"),
        (CachedReads, {"engine": "aio"}, "engine"),
        (CachedReads, {"topology": "disk"}, "topology: expected 'memory' or 'mmap'"),
        (MMap, {"fanouts": [2.5]}, "fanouts: expected one whole number per layer"),  # which were 2
        (CachedReads, {"fanouts": [3, "2"]}, "fanouts: expected one whole number per layer"),
        (Ginex, {"batch_size": 7.5}, "batch_size: expected a whole number"),
        (Ginex, {"sample_epochs": 1.5}, "sample_epochs: expected a whole number"),
    ],
)
def test_arguments_are_checked(graph, kind, arguments, message):
    with pytest.raises(ConfigError, match=message):
        kind(graph, **(SAMPLING | arguments))


def test_a_truncated_feature_file_is_an_error_in_the_loop(tmp_path):
    graph = make_graph(tmp_path / "graph", width=2000)
    with CachedReads(graph, **SAMPLING, cpu_cache=0) as source:
        with graph.feature_file.path.open("r+b") as file:
            file.truncate(graph.feature_file.data_offset_bytes + 5000)
        with pytest.raises(ArtifactError, match="ends early"):
            list(source.epoch(0))
        with pytest.raises(ConfigError, match="has failed"):  # not with rows that were never read
            list(source.epoch(0))


def test_mmap_reads_no_more_than_the_pages_it_touches(tmp_path):
    """Advice: without read-ahead, what the kernel reads is bounded by the pages of the rows."""
    graph = make_graph(tmp_path / "graph", num_nodes=4000, width=1024, in_degree=2)
    read = {}
    for advice in ("random", "normal"):
        with MMap(graph, fanouts=[1], batch_size=4, advice=advice, threads=1) as source:
            gc.collect()  # what the map of the run before holds would stay in the page cache
            os.sync()
            with graph.feature_file.path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            rows = sum(len(batch.x) for batch in islice(source.epoch(0), 8))
            read[advice] = source.stats().read_bytes
    assert read["random"] <= rows * 2 * 4096 + (1 << 20)  # what else this process reads meanwhile
    assert read["normal"] >= read["random"]


def test_features_beyond_int32_offsets_are_found(tmp_path):
    """Node numbers times row bytes do not fit 32 bits: a sparse file of 5 GB."""
    row_bytes, num_rows = 1 << 16, 80_000
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(row_bytes * num_rows)
        file.seek(row_bytes * 79_999)
        file.write(bytes(range(256)) * 256)
    reader = RowReader(str(path), 0, row_bytes, num_rows)
    x = np.empty(row_bytes, np.uint8)
    reader.gather(
        np.array([79_999], np.int32), np.array([-1], np.int32), np.empty(0, np.int32), np.empty(0, np.uint8), x
    )
    assert x.tobytes() == bytes(range(256)) * 256
