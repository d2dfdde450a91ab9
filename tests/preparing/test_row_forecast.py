"""Rows from disk as they are predicted, against what is packed and against sequences counted by brute force."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn import generate
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack
from diskgnn.preparing.access_sample import AccessSample
from diskgnn.preparing.reuse_model import cyclic_interval_rates, extended, interval_rates, missed_rows
from diskgnn.preparing.row_forecast import SequenceForecast
from diskgnn.sampling.sample import sample

NO_STATIC = np.empty(0, np.int64)
EVERYTHING = 1 << 40
sequences = st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    out = tmp_path_factory.mktemp("forecast") / "graph"
    generate(out, num_nodes=20_000, avg_degree=8, num_classes=4, num_features=2, train_fraction=0.1,
             valid_fraction=0.01, test_fraction=0.01, homophily=0.7)  # fmt: skip
    return Graph.open(out)


@pytest.fixture(scope="module", params=[("independent", 1), ("coordinated", 1), ("coordinated", 8)], ids=str)
def packed(graph, tmp_path_factory, request):
    """((input nodes, number of seeds) and period of each minibatch, packed rows by the share of rows in the cache)."""
    folder, (draws, period) = tmp_path_factory.mktemp("packed"), request.param
    sample(graph, folder / "samples", fanouts=[5, 5], batch_size=64, epochs=2, splits=["train"], draws=draws,
           draw_period=period)  # fmt: skip
    samples = Samples.open(folder / "samples")
    minibatches = [(np.array(each.only_nodes), len(each.seeds)) for each in samples.read("train")]
    rows = {}
    for cache in ("5%", "20%"):
        pack(graph, folder / "samples", folder / cache, cpu_cache=cache)
        rows[cache] = Packed.open(folder / cache).config.splits["train"].rows
    return minibatches, rows


def forecast(minibatches, num_nodes, cpu_rows, *, run=None, max_accesses=EVERYTHING, static_rows=0):
    """From a run of so many minibatches in the middle of the sequence."""
    accesses = AccessSample(num_nodes, 1, max_accesses)
    run = len(minibatches) if run is None else run
    first = (len(minibatches) - run) // 2
    for position in range(first, first + run):
        accesses.add(0, position, minibatches[position][0])
    sequence = SequenceForecast(accesses, 0, np.array([num_seeds for _, num_seeds in minibatches]))
    return sequence.rows(sequence.hottest(static_rows), cpu_rows)


def test_a_whole_sequence_is_placed_as_it_is_packed(graph, packed):
    minibatches, rows = packed
    for cache, packed_rows in rows.items():
        found = forecast(minibatches, graph.num_nodes, graph.num_nodes * int(cache[:-1]) // 100)
        assert (found.requested, found.disk) == (packed_rows.requested, packed_rows.disk)
        assert found.disk_error == 0


@pytest.mark.parametrize("changes", [{"run": 32}, {"max_accesses": 20_000}, {"run": 40, "max_accesses": 20_000}])
def test_a_part_of_the_sequence_or_of_its_nodes_says_nearly_the_same(graph, packed, changes):
    minibatches, rows = packed
    for cache, packed_rows in rows.items():
        found = forecast(minibatches, graph.num_nodes, graph.num_nodes * int(cache[:-1]) // 100, **changes)
        assert found.requested == pytest.approx(packed_rows.requested, rel=0.05)
        assert found.disk == pytest.approx(packed_rows.disk, rel=0.1)
        assert 0 < found.disk_error < 0.2
        assert abs(found.disk / packed_rows.disk - 1) < 3 * found.disk_error + 0.01


def test_static_rows_are_not_read(graph, packed):
    minibatches, _ = packed
    num_nodes = graph.num_nodes
    counts = np.bincount(np.concatenate([nodes for nodes, _ in minibatches]), minlength=num_nodes)
    found = forecast(minibatches, num_nodes, 0, static_rows=500)
    assert found.disk == counts.sum() - np.sort(counts)[-500:].sum()
    thinned = forecast(minibatches, num_nodes, 0, static_rows=500, max_accesses=40_000)
    assert thinned.disk == pytest.approx(found.disk, rel=0.1)


def test_nothing_is_read_where_everything_fits(graph, packed):
    minibatches, _ = packed
    found = forecast(minibatches, graph.num_nodes, graph.num_nodes)
    assert found.disk == 0
    assert found.cpu == len(np.unique(np.concatenate([nodes for nodes, _ in minibatches])))


# The sample


@settings(deadline=None)
@given(sequences, st.integers(1, 40))
def test_a_sample_keeps_all_accesses_of_the_nodes_that_it_keeps(minibatches, max_accesses):
    accesses = AccessSample(16, 2, max_accesses)
    for position, nodes in enumerate(minibatches):
        accesses.add(position % 2, position, np.array(nodes, np.int32))
    kept = [accesses.runs[position % 2].minibatches[position] for position in range(len(minibatches))]
    assert sum(map(len, kept)) <= max(max_accesses, max(len(minibatches), 1))
    assert sum(run.requested(run.positions) for run in accesses.runs) == sum(map(len, minibatches))
    if accesses.share == 1:
        assert [nodes.tolist() for nodes in kept] == minibatches
    # Each number is that of one node, wherever it is needed.
    assert not (uses(nodes.tolist() for nodes in kept) - uses(minibatches))


def uses(minibatches):
    """How many nodes are needed by just these minibatches."""
    positions = defaultdict(set)
    for position, nodes in enumerate(minibatches):
        for node in nodes:
            positions[node].add(position)
    return Counter(map(frozenset, positions.values()))


def test_any_range_of_ids_is_sampled_evenly():
    accesses = AccessSample(100_000, 1, 5000)
    for first in range(0, 100_000, 1000):
        accesses.add(0, first, np.arange(first, first + 1000))
    assert 0.02 < accesses.share <= 0.05
    for nodes in accesses.runs[0].minibatches.values():
        assert len(nodes) == pytest.approx(1000 * accesses.share, abs=3)


# The model


def intervals_by_hand(minibatches):
    """(start, length) of each interval between two accesses."""
    found = []
    for start, nodes in enumerate(minibatches):
        for node in nodes:
            later = next((at for at in range(start + 1, len(minibatches)) if node in minibatches[at]), None)
            found += [] if later is None else [(start, later - start)]
    return found


@settings(deadline=None)
@given(sequences)
def test_intervals_are_counted_per_place_that_the_run_has_for_them(minibatches):
    num = len(minibatches)
    found = intervals_by_hand(minibatches)
    rates = interval_rates([np.array(nodes) for nodes in minibatches])
    for length in range(1, num):
        assert rates[length] == pytest.approx(sum(each == length for _, each in found) / (num - length))
    twice = intervals_by_hand([*minibatches, *minibatches])
    cyclic = cyclic_interval_rates([np.array(nodes) for nodes in minibatches])
    for length in range(1, num + 1):
        assert cyclic[length] * num == pytest.approx(sum(at < num and each == length for at, each in twice))
    assert cyclic.sum() * num == pytest.approx(sum(map(len, minibatches)))  # each is needed again


def test_the_shortest_intervals_take_the_slots():
    rates = np.array([0.0, 3.0, 2.0, 1.0])  # of 10 rows a minibatch
    assert missed_rows(rates, 10, 0) == (10, 0)
    assert missed_rows(rates, 10, 3) == (7, 1)
    assert missed_rows(rates, 10, 5) == (6, 1)  # one of two minibatches takes two slots
    assert missed_rows(rates, 10, 7) == (5, 2)
    assert missed_rows(rates, 10, 10) == (4, 3)
    assert missed_rows(rates, 10, 99) == (4, 3)


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), min_size=2, max_size=20), st.integers(0, 60), st.integers(1, 10_000))
def test_an_extended_sequence_needs_each_row_again(rates, more, num_nodes):
    rates = np.array([0.0, *rates])
    rows, num_batches = rates.sum() + 1, len(rates) + more
    whole = extended(rates, rows, num_batches, num_nodes)
    assert len(whole) == num_batches + 1
    assert whole.min() >= 0
    assert whole.sum() == pytest.approx(rows)
    missed = [missed_rows(whole, rows, slots)[0] for slots in range(0, 10_000, 500)]
    assert missed == sorted(missed, reverse=True)
