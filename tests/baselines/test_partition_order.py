"""The orders of the partition buffer: who is in memory when, and which training nodes are used then."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn.baselines.partition_order import (
    BufferSpec,
    Draws,
    comet_states,
    dispersed_states,
    epoch_shape,
    group_size,
    order_epoch,
    round_states,
)


@given(num=st.integers(2, 12), capacity=st.integers(2, 12), key=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=60)
def test_comet_brings_every_pair_together_one_swap_at_a_time(num, capacity, key):
    capacity = min(num, capacity)
    states = [frozenset(state) for state in comet_states(num, capacity, Draws(key))]
    assert {len(state) for state in states} == {capacity}
    met = {pair for state in states for pair in combinations(sorted(state), 2)}
    assert met == set(combinations(range(num), 2))
    assert all(len(now - before) == 1 for before, now in pairwise(states))
    assert len(states) == len(comet_states(num, capacity, Draws(key + 1)))
    # As many swaps as BETA (Marius, OSDI 2021) promises at most: pairs still to meet, capacity - 1 at a time.
    assert len(states) - 1 <= (num * (num - 1) / 2 - capacity * (capacity - 1) / 2) / (capacity - 1) + num


def test_dispersed_brings_every_partition_in_once():
    states = dispersed_states(9, 3, Draws(5))
    assert len(states) == 7
    assert set().union(*states) == set(range(9))
    assert all(len(set(now) - set(before)) == 1 for before, now in pairwise(states))


@given(num=st.integers(2, 12), capacity=st.integers(2, 5), rounds=st.integers(1, 5), key=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=60)
def test_a_round_has_everyone_in_as_few_states_as_hold_them(num, capacity, rounds, key):
    capacity = min(num, capacity)
    states = round_states(num, capacity, rounds, Draws(key))
    assert len(states) == rounds * -(-num // capacity)
    assert all(len(set(state)) == capacity for state in states)
    assert min(np.bincount(np.concatenate(states), minlength=num)) >= rounds
    if capacity == 2:  # COMET's order has all pairs
        assert {frozenset(state) for state in states} <= {frozenset(s) for s in comet_states(num, 2, Draws(key))}


@given(
    st.sampled_from([(8, 4), (8, 2), (12, 6), (6, 6), (9, 3), (7, 3), (5, 4), (24, 4)]),
    st.sampled_from(["comet", "dispersed"]),
    st.integers(1, 90),
    st.integers(1, 20),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_an_epoch_uses_every_node_once_while_it_is_resident(shape, order, num_nodes, batch_size, seed):
    p, c = shape
    buffer = BufferSpec(order, num_partitions=p, resident=c, batch_size=batch_size)
    train = np.sort(np.random.default_rng(seed).integers(0, p, num_nodes))
    found = order_epoch(train, buffer, seed=seed, epoch=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(found.batches)), np.arange(num_nodes))
    assert max(map(len, found.batches)) <= batch_size
    assert min(map(len, found.batches)) >= 1
    assert len(found.batches) == epoch_shape(train, buffer).num_batches
    np.testing.assert_array_equal(np.unique(found.batch_state), np.arange(len(found.slots)))  # none without seeds
    for state, nodes in zip(found.batch_state, found.batches, strict=True):
        assert set(train[nodes]) <= set(found.slots[state])
    for slots in found.slots:
        resident = slots[slots >= 0]
        assert len(set(resident)) == len(resident) == c
    states = {"comet": comet_states, "dispersed": dispersed_states}[order]
    whole = len(states(p // group_size(p, c), c // group_size(p, c), Draws(0)))
    for state, (before, now) in enumerate(pairwise(found.slots), start=1):
        entered = (now >= 0) & (now != before)
        overwrites = bool((before[entered] >= 0).any())
        assert found.enters_free_slots(state) == (not overwrites) == (entered.sum() <= group_size(p, c))
        assert not overwrites or len(found.slots) < whole  # one swap leads from each of an order's states to the next
    again, other = (order_epoch(train, buffer, seed=seed, epoch=e) for e in (0, 1))
    np.testing.assert_array_equal(found.slots, again.slots)
    assert len(other.batches) == len(found.batches)


def test_comet_groups_partitions_anew_each_epoch_and_covers_all_pairs():
    pairs = []
    for epoch in range(2):
        buffer = BufferSpec("comet", num_partitions=16, resident=4, batch_size=4)
        found = order_epoch(np.repeat(np.arange(16), 20), buffer, seed=0, epoch=epoch)
        assert group_size(16, 4) == 2  # 8 logical partitions, the paper's 2p / c
        met = {pair for state in found.slots for pair in combinations(sorted(state[state >= 0]), 2)}
        assert met == set(combinations(range(16), 2))
        pairs.append([frozenset(state) for state in found.slots])
    assert pairs[0] != pairs[1]


@pytest.mark.parametrize("logical", [20, 21])
def test_few_seeds_visit_few_states_and_many_the_whole_order(logical):
    p, group, batch_size = 4 * logical, 4, 64
    buffer = BufferSpec("comet", num_partitions=p, resident=2 * group, batch_size=batch_size)
    whole, round_size = len(comet_states(logical, 2, Draws(0))), -(-logical // 2)
    fewest, before = logical * batch_size // 4, 0
    for num_nodes in (fewest, 3 * fewest, 12 * fewest, whole * batch_size * 3 // 4, 2 * whole * batch_size):
        train = np.random.default_rng(num_nodes).integers(0, p, num_nodes)
        for epoch in range(3):
            found = order_epoch(train, buffer, seed=1, epoch=epoch)
            visited, full = len(found.slots), -(-num_nodes // batch_size)
            np.testing.assert_array_equal(np.sort(np.concatenate(found.batches)), np.arange(num_nodes))
            assert np.isin(np.arange(p), found.slots).all()
            assert max(map(len, found.batches)) <= batch_size
            if num_nodes <= whole * batch_size * 3 // 4:  # a minibatch for each state, and few more than would be full
                assert len(found.batches) == visited < whole
                assert len(found.batches) <= max(round_size, 1.5 * full + round_size)
            else:
                assert visited == whole
                assert len(found.batches) <= min(full + whole - 1, 3 * whole)
            if num_nodes == fewest:
                assert visited == round_size
                entered = [
                    set(now) - set(then) - {-1} for then, now in pairwise([found.slots[0] * 0 - 1, *found.slots])
                ]
                assert sum(map(len, entered)) <= p + group  # one pass over the features
        assert visited > before or num_nodes == fewest
        before = visited
