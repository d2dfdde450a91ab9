"""DiskGNN's segmented disk cache: the limit it keeps to, what it reads, and the order of its rows."""

import numpy as np
import pytest
import torch
from graphs import assert_rows_are_features, bits_of, make_graph
from sources import (
    assert_goes_on,
    assert_is_closed,
    assert_refuses_states_of,
    assert_runs_in_plain_loops,
    threads_of,
)

from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.segmented_packed import SegmentedPacked
from diskgnn.baselines.segmented_packing import prepare_segmented_packed
from diskgnn.baselines.segments import Segmented, SegmentedRowCounts
from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.formats.verification import verify_artifact

SAMPLING = {"fanouts": [4, 3], "batch_size": 8, "seed": 4}
PREPARING = {**SAMPLING, "static_cache": "5%", "segment_batches": 3, "keep_input_nodes": True}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("segmented") / "graph", width=300, num_nodes=150)


@pytest.fixture(scope="module")
def accesses(graph):
    with InMemory(graph, **SAMPLING) as reference:
        return [batch.input_nodes.numpy() for batch in reference.epoch(0)]


def prepared(graph, path, disk_limit="1GiB", **options):
    """Packs, compares all files with their checksums, and returns the config."""
    prepare_segmented_packed(graph, path, disk_limit=disk_limit, **(PREPARING | options))
    verify_artifact(path)
    return Segmented.open(path, graph).config


def stored_bytes(path, graph):
    """Of the rows in extents and disk caches, without padding."""
    num_rows = np.load(path / "index.npy")["num_rows"].sum()
    return int(num_rows) * graph.feature_file.row_bytes + (path / "caches.bin").stat().st_size


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("segmented")
    prepared(graph, folder / "all")
    limit = stored_bytes(folder / "all", graph) - 150 * graph.feature_file.row_bytes
    prepared(graph, folder / "packed", limit)
    return folder / "packed"


def static_nodes(accesses, num_nodes):
    counts = np.bincount(np.concatenate(accesses), minlength=num_nodes)
    return np.lexsort((np.arange(num_nodes), -counts))[: num_nodes // 20]


def oracle(accesses, num_nodes, cached_rows, segment_batches):
    """Rows from (static, disk caches, extents), and rows stored in the last two: by counting, node after node."""
    static = set(static_nodes(accesses, num_nodes).tolist())
    requested, cached, packed, stored = 0, 0, 0, 0
    for first in range(0, len(accesses), segment_batches):
        segment = [set(nodes.tolist()) - static for nodes in accesses[first : first + segment_batches]]
        popularity = {v: sum(v in nodes for nodes in segment) for v in set().union(*segment)}
        shared = sorted((v for v in popularity if popularity[v] > 1), key=lambda v: (-popularity[v], v))[:cached_rows]
        cached += sum(popularity[v] for v in shared)
        packed += sum(popularity.values()) - sum(popularity[v] for v in shared)
        stored += len(shared)
        requested += sum(len(nodes) for nodes in accesses[first : first + segment_batches])
    return SegmentedRowCounts(requested, requested - cached - packed, cached, packed), stored


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_rows_are_features_and_rows_read_are_those_of_the_oracle(graph, packed, accesses, engine):
    config = Segmented.open(packed, graph).config
    rows, stored = oracle(accesses, graph.num_nodes, config.cached_rows, config.segment_batches)
    assert rows == config.rows
    assert rows.cached > 0
    assert (packed / "caches.bin").stat().st_size == stored * graph.feature_file.row_bytes
    with SegmentedPacked(graph, packed, engine=engine) as source:
        for epoch in range(1, 4):
            for batch in source.epoch(epoch - 1):
                assert_rows_are_features(batch, graph)
            stats = source.stats()
            assert stats.requested_rows == epoch * rows.requested
            assert stats.pinned_rows == epoch * rows.static
            assert stats.disk_rows == epoch * (rows.cached + rows.packed)
            assert stats.read_requests >= epoch * source.num_batches
        assert stats.read_bytes >= 3 * (rows.cached + rows.packed) * graph.feature_file.row_bytes


def test_the_rows_keep_to_their_limit_with_as_few_cached_rows_as_they_can(graph, accesses, tmp_path):
    prepared(graph, tmp_path / "all")
    largest, row_bytes = stored_bytes(tmp_path / "all", graph), graph.feature_file.row_bytes
    for less_rows in (50, 150, 250):
        limit, path = largest - less_rows * row_bytes, tmp_path / str(less_rows)
        config = prepared(graph, path, limit)
        needed = []
        for cached_rows in (config.cached_rows, config.cached_rows - 1):
            rows, cached = oracle(accesses, graph.num_nodes, cached_rows, config.segment_batches)
            needed.append((rows.packed + cached) * row_bytes)
        assert stored_bytes(path, graph) == needed[0] <= limit < needed[1]


def test_segments_grow_until_every_row_is_stored_once_and_no_limit_is_impossible_silently(graph, accesses, tmp_path):
    distinct = np.setdiff1d(np.concatenate(accesses), static_nodes(accesses, graph.num_nodes))
    needed = len(distinct) * graph.feature_file.row_bytes
    with pytest.raises(ConfigError, match=rf"at least .* \({needed} bytes\) are needed"):
        prepared(graph, tmp_path / "packed", needed - 1)
    assert not list(tmp_path.iterdir())
    config = prepared(graph, tmp_path / "packed", needed)
    assert config.segment_batches >= len(accesses)
    assert stored_bytes(tmp_path / "packed", graph) == needed
    with SegmentedPacked(graph, tmp_path / "packed") as source:
        for batch in source.epoch(0):
            assert_rows_are_features(batch, graph)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_epoch_that_needs_almost_every_node_fits_as_many_bytes_as_the_features_have(tmp_path, dtype):
    graph = make_graph(tmp_path / "graph", num_nodes=300, width=4, dtype=dtype)  # headers are larger than rows
    sampling = {**SAMPLING, "fanouts": [10, 10]}
    with InMemory(graph, **sampling) as reference:
        needed = np.unique(np.concatenate([batch.input_nodes.numpy() for batch in reference.epoch(0)]))
    assert len(needed) > 0.95 * graph.num_nodes
    limit = graph.num_nodes * graph.feature_file.row_bytes
    for static_cache in (0, "10%"):
        prepared(graph, tmp_path / "packed", limit, **sampling, static_cache=static_cache, overwrite=True)
        assert stored_bytes(tmp_path / "packed", graph) <= limit
        with SegmentedPacked(graph, tmp_path / "packed") as source:
            for batch in source.epoch(0):
                assert_rows_are_features(batch, graph)


def test_without_need_nothing_is_cached(graph, accesses, tmp_path):
    config = prepared(graph, tmp_path / "packed")
    assert config.cached_rows == config.rows.cached == (tmp_path / "packed" / "caches.bin").stat().st_size == 0
    cold = sum(np.count_nonzero(~np.isin(nodes, static_nodes(accesses, graph.num_nodes))) for nodes in accesses)
    assert config.rows.packed == cold


def test_disk_caches_are_in_minhash_order(graph, packed, accesses):
    config, row_bytes = Segmented.open(packed, graph).config, graph.feature_file.row_bytes
    stored = (packed / "caches.bin").read_bytes()
    node_of = {graph.features[v].tobytes(): v for v in range(graph.num_nodes)}
    nodes = [node_of[stored[i : i + row_bytes]] for i in range(0, len(stored), row_bytes)]
    hashes = [permutation(len(accesses), batch_key(SAMPLING["seed"], f"minhash-{i}", 0)) for i in range(2)]
    start = 0
    for first in range(0, len(accesses), 3):
        numbers = range(first, min(first + 3, len(accesses)))
        signatures = []
        for v in nodes[start:]:
            using = [number for number in numbers if v in accesses[number]]
            if len(using) < 2 or len(signatures) == config.cached_rows:
                break
            signatures.append((*(min(int(h[n]) for n in using) for h in hashes), v))
        assert signatures == sorted(signatures)
        assert signatures
        start += len(signatures)
    assert start == len(nodes)


def test_same_bytes_whatever_the_memory_and_threads(graph, packed, tmp_path):
    limit = Segmented.open(packed, graph).config.disk_limit
    prepared(graph, tmp_path / "again", limit, memory=5000, threads=1)
    for file in packed.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


@pytest.mark.parametrize(("dtype", "width"), [("float16", 5), ("bfloat16", 513), ("int8", 1)])
def test_odd_widths_and_dtypes(tmp_path, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width, id_dtype=np.int64)
    prepared(graph, tmp_path / "all", static_cache=0)
    limit = stored_bytes(tmp_path / "all", graph) - 30 * graph.feature_file.row_bytes
    prepared(graph, tmp_path / "packed", limit, static_cache=0, segment_batches=100)
    with SegmentedPacked(graph, tmp_path / "packed") as source:
        for batch in source.epoch(1):
            assert batch.x.dtype == getattr(torch, dtype)
            assert_rows_are_features(batch, graph)


def test_a_new_order_each_epoch(graph, packed):
    with SegmentedPacked(graph, packed, seed=3) as source:
        epochs = [[bits_of(batch) for batch in source.epoch(epoch)] for epoch in (0, 1, 0)]
        assert epochs[0] == epochs[2] != epochs[1]
        assert sorted(epochs[0]) == sorted(epochs[1])
        assert [batch.batch_index for batch in source.epoch(1)] == list(range(source.num_batches))


def test_goes_on_from_its_state(graph, packed):
    assert_goes_on(lambda: SegmentedPacked(graph, packed, seed=3), 1, (0, 1, 4))
    with SegmentedPacked(graph, packed, seed=3) as source, SegmentedPacked(graph, packed, seed=4) as other:
        assert_refuses_states_of(other, source, "seed")


def test_runs_in_plain_loops(graph, packed):
    with SegmentedPacked(graph, packed) as source:
        assert_runs_in_plain_loops(source)


def test_leaving_early_joins_the_threads_and_minibatches_stay_valid(graph, packed):
    with SegmentedPacked(graph, packed) as source:
        batches = source.epoch(0)
        batch = next(batches)
        assert threads_of("segmented-packed")
        del batches
        assert not threads_of("segmented-packed")
        list(source.epoch(1))
        next(source.epoch(2))
    assert not threads_of("segmented-packed")
    assert_rows_are_features(batch, graph)
    assert_is_closed(source)


def test_damage_and_foreign_graphs_are_errors(graph, packed, tmp_path):
    prepared(graph, tmp_path / "packed")
    index = np.load(tmp_path / "packed" / "index.npy")
    with (tmp_path / "packed" / "extents.bin").open("r+b") as file:
        file.seek(int(index[2]["offset"] + index[2]["header_bytes"] // 2))
        file.write(b"\xff" * 4)
    with SegmentedPacked(graph, tmp_path / "packed") as source, pytest.raises(ArtifactError, match="extent 2 of"):
        list(source.epoch(0))
    assert not threads_of("segmented-packed")
    with pytest.raises(ArtifactError, match="another graph"):
        SegmentedPacked(make_graph(tmp_path / "other", seed=9), packed)
    with pytest.raises(ConfigError, match="segment_batches"):
        prepared(graph, tmp_path / "more", segment_batches=0)
