"""Division of budgets against all divisions that there are, and against rows counted one by one."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from diskgnn.files import faults
from diskgnn.packing.accesses import Accesses, count_histogram
from diskgnn.packing.reuse import Reuse
from diskgnn.packing.tiers import Demand, TierBudgets, divide_cpu_rows, divide_static_rows
from diskgnn.specs.caches import CacheSpec
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Scratch


def demand(folder, name, batches, row_bytes):
    num_nodes = 1 + max(itertools.chain(*batches))
    arrays = (np.array(batch, np.int32) for batch in batches)
    accesses = Accesses.sort(arrays, num_nodes, Scratch(folder / name))
    return Demand(Reuse(accesses, np.empty(0, np.int64)), row_bytes)


def zipf_batches(seed, num_nodes, exponent, batch_rows=60, num_batches=30):
    random = np.random.default_rng(seed)
    weights = np.arange(1, num_nodes + 1) ** -exponent
    return [
        random.choice(num_nodes, batch_rows, replace=False, p=weights / weights.sum()).tolist()
        for _ in range(num_batches)
    ]


def read_bytes(demands, rows):
    return sum(int(each.reuse.misses(count).sum()) * each.row_bytes for each, count in zip(demands, rows, strict=True))


def bytes_of(demands, rows):
    return sum(each.row_bytes * count for each, count in zip(demands, rows, strict=True))


def least_read_bytes(demands, budget_bytes):
    """Over all divisions."""
    counts = [range(min(each.reuse.num_rows, budget_bytes // each.row_bytes) + 1) for each in demands]
    reads = [[int(each.reuse.misses(rows).sum()) * each.row_bytes for rows in count]
             for each, count in zip(demands, counts, strict=True)]  # fmt: skip
    return min(
        sum(reads[number][count] for number, count in enumerate(rows))
        for rows in itertools.product(*counts)
        if bytes_of(demands, rows) <= budget_bytes
    )


def sequences():
    batch = st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True)
    return st.lists(batch, min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    sets=st.lists(st.tuples(sequences(), st.sampled_from([4, 8, 12])), min_size=1, max_size=3),
    budget_bytes=st.integers(0, 150),
)
def test_a_division_keeps_to_the_budget_and_beats_an_even_one(tmp_path_factory, sets, budget_bytes):
    folder = tmp_path_factory.mktemp("sets")
    demands = [demand(folder, f"x{number}", *each) for number, each in enumerate(sets)]
    found = divide_cpu_rows(demands, budget_bytes)
    assert bytes_of(demands, found.rows) <= budget_bytes
    assert bytes_of(demands, found.even_rows) <= budget_bytes
    assert all(rows <= each.reuse.num_rows for rows, each in zip(found.rows, demands, strict=True))
    assert found.read_bytes == read_bytes(demands, found.rows) <= found.even_read_bytes
    assert found.even_read_bytes == read_bytes(demands, found.even_rows)
    assert found == divide_cpu_rows(demands, budget_bytes, threads=3)


@settings(max_examples=60, deadline=None)
@given(first=sequences(), second=sequences(), budget_rows=st.integers(0, 14))
def test_a_division_is_the_best_where_what_is_read_is_convex(tmp_path_factory, first, second, budget_rows):
    folder = tmp_path_factory.mktemp("sets")
    demands = [demand(folder, "a", first, 4), demand(folder, "b", second, 4)]
    for each in demands:
        misses = [each.reuse.misses(rows).sum() for rows in range(10)]
        assume((np.diff(misses, 2) >= 0).all())
    assert divide_cpu_rows(demands, 4 * budget_rows).read_bytes == least_read_bytes(demands, 4 * budget_rows)


@pytest.mark.parametrize("budget_bytes", [2_000, 8_000, 25_000])
def test_sets_of_hundreds_of_rows_are_divided_nearly_as_well_as_can_be(tmp_path, budget_bytes):
    sets = [(zipf_batches(0, 200, 1.2), 64), (zipf_batches(1, 300, 0.3), 16), (zipf_batches(2, 100, 0.8), 256)]
    demands = [demand(tmp_path, f"x{number}", *each) for number, each in enumerate(sets)]
    found = divide_cpu_rows(demands, budget_bytes)
    assert bytes_of(demands, found.rows) <= budget_bytes
    assert found.read_bytes < found.even_read_bytes
    two = least_read_bytes(demands[:2], budget_bytes - found.rows[2] * 256) + read_bytes(demands[2:], found.rows[2:])
    assert found.read_bytes <= 1.005 * two


def test_one_set_gets_everything_that_it_can_use(tmp_path):
    (only,) = [demand(tmp_path, "a", [[0, 1, 2], [2, 3]], 10)]
    assert divide_cpu_rows([only], 25).rows == (2,)
    assert divide_cpu_rows([only], 1000).rows == (4,)
    assert divide_cpu_rows([only], 0).rows == (0,)


def test_static_rows_by_hand():
    # Set a: two rows accessed 5 times, one once. Set b: one row accessed 3 times, four twice.
    a, b = np.array([9, 1, 0, 0, 0, 2]), np.array([0, 0, 4, 1])
    found = divide_static_rows([(a, 100), (b, 10)], 225)
    assert found.rows == (2, 2)
    assert found.read_bytes == 1 * 100 + 3 * 2 * 10
    assert found.even_rows == (3 * 225 // 350, 5 * 225 // 350)
    assert found.even_read_bytes == (5 + 1) * 100 + 2 * 2 * 10
    assert divide_static_rows([(a, 100), (b, 10)], 10_000).read_bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=20), min_size=1, max_size=3),
    budget_rows=st.integers(0, 70),
)
@example(counts=[[0] * 40 + [3, 1, 3]], budget_rows=2)
def test_static_rows_are_the_most_accessed_of_all_sets(counts, budget_rows):
    histograms = [count_histogram(np.array(each, np.int32)) for each in counts]
    assert [dict(enumerate(each)) for each in histograms] == [
        {count: Counter(each)[count] for count in range(max(each) + 1)} for each in counts
    ]
    found = divide_static_rows([(histogram, 8) for histogram in histograms], 8 * budget_rows)
    ranked = sorted(itertools.chain(*counts), reverse=True)
    assert found.read_bytes == 8 * sum(ranked[budget_rows:]) <= found.even_read_bytes
    assert sum(found.rows) <= budget_rows
    for rows, each in zip(found.rows, counts, strict=True):
        assert rows <= sum(count > 0 for count in each)


@pytest.mark.parametrize("free_bytes", [0, 1 << 40])
def test_a_budget_that_the_process_alone_exceeds_is_no_negative_cache(free_bytes):
    with faults.pretending("gpu.free", free_bytes):
        assert TierBudgets.of(CacheSpec(0), (), Resources(-4000, 1)) == TierBudgets(0, 0, 0, static_is_auto=True)
