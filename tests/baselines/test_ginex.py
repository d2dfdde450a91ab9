"""Ginex: optimal caching within a superbatch, and the neighbour cache."""

from itertools import product

import numpy as np
import pytest
from graphs import make_graph, write_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from one_type import sampled_by

from diskgnn._native import NeighborSampler
from diskgnn.baselines.ginex import Ginex
from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.neighbor_cache import cached_neighbors, sampler_with_neighbor_cache
from diskgnn.baselines.superbatches import changeset
from diskgnn.errors import ConfigError
from diskgnn.files import faults

SAMPLING = {"fanouts": [3, 2], "batch_size": 6, "seed": 1}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("ginex") / "graph", num_nodes=300)


def belady_misses(minibatches, capacity):
    """Ginex's rule by sets, one superbatch that starts empty: after each minibatch, of what is cached and what was just
    accessed, those are kept whose next access is nearest."""
    cached, misses = set(), []
    for number, nodes in enumerate(minibatches):
        misses.append(len(set(nodes) - cached))

        def next_access(node, number=number):
            return next((later for later in range(number + 1, len(minibatches)) if node in minibatches[later]), np.inf)

        kept = sorted((next_access(node), node) for node in cached | set(nodes) if next_access(node) < np.inf)
        cached = {node for _, node in kept[:capacity]}
    return misses


def fewest_misses(minibatches, capacity):
    """The optimum over all choices of what to keep: exhaustive."""
    states = {frozenset(): 0}
    for nodes in minibatches:
        reached = {}
        for cached, misses in states.items():
            after = misses + len(set(nodes) - cached)
            candidates = sorted(cached | set(nodes))
            for mask in range(1 << len(candidates)):
                kept = frozenset(node for bit, node in enumerate(candidates) if mask >> bit & 1)
                if len(kept) <= capacity and reached.get(kept, np.inf) > after:
                    reached[kept] = after
        states = reached
    return min(states.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6))
def test_the_rule_is_optimal(capacity, minibatches):
    assert sum(belady_misses(minibatches, capacity)) == fewest_misses(minibatches, capacity)


@pytest.mark.parametrize(("superbatch", "rows"), list(product((1, 3, 100), (0, 20, 100, 300))))
def test_misses_are_beladys_within_a_superbatch(graph, superbatch, rows):
    cpu_cache = rows * graph.feature_file.row_bytes
    with (
        InMemory(graph, **SAMPLING) as reference,
        Ginex(graph, **SAMPLING, superbatch=superbatch, cpu_cache=cpu_cache) as source,
    ):
        for epoch in range(2):
            sequence = [set(batch.input_nodes.tolist()) for batch in reference.epoch(epoch)]
            expected = [
                misses
                for first in range(0, len(sequence), superbatch)
                for misses in belady_misses(sequence[first : first + superbatch], rows)
            ]
            before, found = source.stats().disk_rows, []
            for _ in source.epoch(epoch):
                found.append(source.stats().disk_rows - before)
                before += found[-1]
            assert found == expected
        stats = source.stats()
    assert stats.cpu_rows == stats.requested_rows - stats.disk_rows
    assert (stats.cpu_rows > 0) == (rows > 0 and superbatch > 1)


def test_changeset_by_hand():
    # Five inputs, a cache of 10: the second and the last are read, and the last takes slot 4.
    found = changeset(np.array([3, 11, 7, 9, 10], np.int32), 2, np.array([0, 4], np.int32), 10)
    assert found.slots.tolist() == [3, -1, 7, 9, -1]
    assert found.admissions.tolist() == [[4, 4]]


def test_scratch_files_go_with_the_epoch(graph, tmp_path):
    with Ginex(graph, **SAMPLING, superbatch=2, scratch=tmp_path) as source:
        assert not list(tmp_path.iterdir())
        for number, _ in enumerate(source.epoch(0)):
            (folder,) = tmp_path.iterdir()
            saved = {int(path.name.split("-")[0]) for path in folder.iterdir()}
            assert max(saved, default=0) < number + 1 + 2 * 2 + 1  # two superbatches and what is gathered ahead
        assert not list(tmp_path.iterdir())
        for _ in source.epoch(1):
            break
        assert not list(tmp_path.iterdir())


def test_errors_reach_the_loop(graph, tmp_path):
    nowhere = tmp_path / "none"
    with Ginex(graph, **SAMPLING, scratch=nowhere) as source, pytest.raises(FileNotFoundError, match="none"):
        list(source.epoch(0))
    with Ginex(graph, **SAMPLING, superbatch=2, scratch=tmp_path) as source:
        received = []
        with (
            faults.armed("ginex.inspect", OSError("no space left"), after=1),
            pytest.raises(OSError, match="no space left"),
        ):
            received.extend(batch.batch_index for batch in source.epoch(0))
        assert received == [0, 1]
        assert not list(tmp_path.iterdir())
    for arguments, message in (
        ({"superbatch": 0}, "superbatch"),
        ({"prefetch": 0}, "prefetch"),
        ({"cpu_cache": "101%"}, "share between"),
        ({"neighbor_cache": "big"}, "size such as"),
        ({"engine": "aio"}, "engine"),
    ):
        with pytest.raises(ConfigError, match=message):
            Ginex(graph, **SAMPLING, **arguments)


@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("share", ["0%", "1%", "20%", "99%", "100%"])
def test_sampling_with_a_neighbour_cache_draws_the_same(tmp_path, id_dtype, share):
    graph = make_graph(tmp_path / "graph", id_dtype=id_dtype)
    cached = sampler_with_neighbor_cache(graph, share)
    plain = NeighborSampler(np.array(graph.indptr), np.array(graph.indices))
    for number in range(3):
        arguments = np.arange(20 * number, 20 * number + 20), np.array([3, -1, 2], np.int32), 7, number
        (nodes, blocks), (expected, expected_blocks) = sampled_by(cached, *arguments), sampled_by(plain, *arguments)
        np.testing.assert_array_equal(nodes, expected)
        for one, other in zip(blocks, expected_blocks, strict=True):
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])


def test_cached_are_the_neighbours_of_the_nodes_with_the_best_score(graph):
    for capacity in (0, 4, 333, graph.num_edges - 1):
        with faults.pretending("chunk.edges", 17):
            starts, neighbors = cached_neighbors(graph, capacity)
        in_degrees = np.diff(graph.indptr)
        out_degrees = np.bincount(graph.indices, minlength=graph.num_nodes)
        order = sorted(range(graph.num_nodes), key=lambda node: (-out_degrees[node] / max(in_degrees[node], 1), node))
        left, expected = capacity, set()
        for node in order:
            left -= in_degrees[node]
            if left < 0:
                break
            expected.add(node)
        assert set(np.flatnonzero(starts >= 0).tolist()) == expected
        assert len(neighbors) == sum(in_degrees[node] for node in expected) <= capacity
        for node in expected:
            found = neighbors[starts[node] : starts[node] + in_degrees[node]]
            np.testing.assert_array_equal(found, graph.indices[graph.indptr[node] : graph.indptr[node + 1]])


def test_a_hub_larger_than_a_chunk(tmp_path):
    indices = np.array([1, 2, 3, 4, 0, 0], np.int32)  # node 0 has four in-neighbours, 1 and 2 have node 0
    graph = write_graph(tmp_path / "graph", [0, 4, 5, 6, 6, 6], indices, np.zeros((5, 1), np.float32), {"train": [0]})
    with faults.pretending("chunk.edges", 2):
        starts, neighbors = cached_neighbors(graph, 6)
    for node in range(5):
        found = neighbors[starts[node] : starts[node] + np.diff(graph.indptr)[node]]
        np.testing.assert_array_equal(found, indices[graph.indptr[node] : graph.indptr[node + 1]])


def test_a_damaged_neighbour_cache_is_no_crash(graph):
    sampler = NeighborSampler(np.array(graph.indptr), np.array(graph.indices))
    neighbors = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="one per node"):
        sampler.cache_neighbors(np.zeros(3, np.int64), neighbors)
    with pytest.raises(TypeError, match="dtype of indices"):
        sampler.cache_neighbors(np.zeros(graph.num_nodes, np.int64), neighbors.astype(np.int64))
    sampler.cache_neighbors(np.full(graph.num_nodes, 2), neighbors)
    with pytest.raises(IndexError, match="cache is damaged"):
        sampled_by(sampler, np.arange(5), np.array([2], np.int32), 0, 0)
