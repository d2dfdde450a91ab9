"""Rows that caches read, counted: against caches written here, one row at a time."""

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskgnn.baselines.in_memory import InMemory
from diskgnn.compare import counting

FANOUTS, BATCH_SIZE = [3, 2], 8


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counting")
    graph = make_graph(folder / "graph")
    sampling = {"fanouts": FANOUTS, "batch_size": BATCH_SIZE, "seed": 0}
    with InMemory(graph, "train", fanouts=FANOUTS, batch_size=BATCH_SIZE) as source:
        online = [batch.input_nodes.tolist() for batch in source.epoch(0)]
    (counted,) = counting.sample_inputs(graph, folder, sampling, 1 << 30)
    return counted, online


def fewest_misses(minibatches, capacity):
    """Belady's MIN with bypass: after each minibatch, of all that is at hand, what is needed soonest is kept."""
    resident, misses = set(), 0
    for position, nodes in enumerate(minibatches):
        misses += len(set(nodes) - resident)
        rest = minibatches[position + 1 :]
        next_use = {
            node: next((i for i, later in enumerate(rest) if node in later), len(rest))
            for node in resident | set(nodes)
        }
        resident = set(sorted(next_use, key=next_use.get)[:capacity])
    return misses


def fewest_misses_in_order(minibatches, capacity):
    """The same for a cache that must take the rows of a minibatch in their order."""
    accesses = [node for minibatch in minibatches for node in minibatch]
    resident, misses = set(), 0
    for position, node in enumerate(accesses):
        if node in resident:
            continue
        misses += 1
        resident.add(node)
        if len(resident) > capacity:
            rest = accesses[position + 1 :]
            resident.remove(max(resident, key=lambda each: rest.index(each) if each in rest else len(rest)))
    return misses


def lru_misses(minibatches, capacity):
    recent, misses = [], 0
    for node in (node for minibatch in minibatches for node in minibatch):
        if node in recent:
            recent.remove(node)
        else:
            misses += 1
        recent = [*recent, node][-capacity:]
    return misses


def static_misses(minibatches, capacity):
    accesses = [node for minibatch in minibatches for node in minibatch]
    counts = sorted((accesses.count(node) for node in set(accesses)), reverse=True)
    return len(counts[:capacity]) + sum(counts[capacity:])


def test_the_minibatches_are_those_sampled_online(inputs):
    counted, online = inputs
    assert [nodes.tolist() for nodes in counted] == online
    assert counted.requested_rows == sum(map(len, online))


@pytest.mark.parametrize("cache_rows", [0, 1, 5, 20, 60, 200])
def test_each_count_is_that_of_a_cache_written_here(inputs, cache_rows):
    counted, online = inputs
    assert counting.belady_rows(counted, cache_rows) == fewest_misses(online, cache_rows)
    assert counting.static_rows(counted, cache_rows) == static_misses(online, cache_rows)
    superbatches = [online[first : first + 3] for first in range(0, len(online), 3)]
    assert counting.ginex_rows(counted, cache_rows, superbatch=3) == sum(
        fewest_misses(superbatch, cache_rows) for superbatch in superbatches
    )
    if cache_rows:
        assert counting.policy_rows("lru")(counted, cache_rows) == lru_misses(online, cache_rows)
    else:
        assert counting.policy_rows("lru")(counted, 0) == counted.requested_rows


def recorded(minibatches, num_rows, scratch, row_bytes=4):
    """A sequence that a test makes up."""
    return counting.InputRows(
        lambda: (np.array(rows, np.int32) for rows in minibatches), num_rows, row_bytes, scratch / "inputs"
    )


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True), min_size=1, max_size=12),
    st.integers(0, 10),
)
def test_nobody_reads_less_than_belady(tmp_path, minibatches, cache_rows):
    counted = recorded(minibatches, 16, tmp_path)
    fewest = counting.belady_rows(counted, cache_rows)
    assert fewest == fewest_misses(minibatches, cache_rows) <= fewest_misses_in_order(minibatches, cache_rows)
    assert fewest >= len({node for minibatch in minibatches for node in minibatch})
    for name, counter in counting.COUNTERS.items():
        assert counter.rows(counted, cache_rows) >= fewest, name


def test_the_sweep_has_a_point_for_each_cache_and_loader(inputs):
    counted, online = inputs
    points = counting.sweep([counted], [("5%", 10), ("50%", 100)])
    assert [(point.name, point.cache) for point in points] == [
        (name, cache) for cache in ("5%", "50%") for name in counting.COUNTERS
    ]
    for point in points:
        assert point.belady_rows == fewest_misses(online, point.cache_rows) <= point.rows_read
        assert point.requested_rows == counted.requested_rows


def test_types_share_a_cache_that_each_loader_divides_in_its_own_way(tmp_path):
    """Wide rows are needed again and again, narrow ones once: what divides by saving keeps the wide ones."""
    wide, narrow = [[0, 1, 2]] * 6, [[step] for step in range(6)]
    types = []
    for name, minibatches, num_rows, row_bytes in (("wide", wide, 4, 8), ("narrow", narrow, 16, 2)):
        (tmp_path / name).mkdir()
        types.append(recorded(minibatches, num_rows, tmp_path / name, row_bytes))
    cache_rows = 8  # of (4 * 8 + 16 * 2) // 20 = 3 bytes: room for three wide rows
    assert counting.rows_by_type(counting.BELADY, types, cache_rows) == [3, 6]
    assert counting.rows_by_type(counting.COUNTERS["static cache, packed"], types, cache_rows) == [3, 6]
    # In proportion: 24 * 4 // 64 = 1 wide row and 6 narrow ones. LRU keeps none of three that come in turn.
    assert counting.rows_by_type(counting.COUNTERS["cached reads, LRU"], types, cache_rows) == [18, 6]
    names = {point.name for point in counting.sweep(types, [("8", cache_rows)])}
    assert names == set(counting.COUNTERS) - {"Ginex"}
