"""Which minibatches a plan has: a shuffle of its own for each epoch of training, the user's order otherwise."""

import numpy as np
import pytest
import scipy.stats
from graphs import random_bits, write_graph

from diskgnn.draws import batch_key
from diskgnn.errors import ConfigError
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget


@pytest.fixture
def plan_of(tmp_path):
    """A plan for a graph without edges, of these splits."""

    def make(batch_size, seed, **splits):
        num_nodes = 1000
        graph = write_graph(
            tmp_path / "graph", np.zeros(num_nodes + 1), np.empty(0, np.int32), random_bits((num_nodes, 1), "int8"),
            splits, dtype="int8",
        )  # fmt: skip
        return SamplingPlan(graph, SamplingSpec([3, 2], batch_size, epochs=2, eval_fanouts=[-1, 4], seed=seed))

    return make


def test_seeds_are_a_permutation_for_training_only(plan_of):
    nodes = np.random.default_rng(0).permutation(1000)[:300]
    plan = plan_of(64, 1, train=nodes, valid=nodes, test=[5, 2, 5, 9, 2])
    seen = []
    for epoch in range(4):
        minibatches = plan.minibatches("train", epoch)
        assert [len(minibatch.seeds) for minibatch in minibatches] == [64] * 4 + [44]
        order = np.concatenate([minibatch.seeds for minibatch in minibatches])
        np.testing.assert_array_equal(np.sort(order), np.sort(nodes))
        seen.append(order.tolist())
    assert len(set(map(tuple, seen))) == 4
    for epoch in range(2):
        minibatches = plan.minibatches("valid", epoch)
        np.testing.assert_array_equal(np.concatenate([minibatch.seeds for minibatch in minibatches]), nodes)
    assert [minibatch.seeds.tolist() for minibatch in plan.minibatches("test", 0)] == [[5, 2, 9]]


def test_the_shuffle_is_uniform(plan_of):
    """Each of 5 nodes comes to each position equally often, and all 120 orders come up equally often."""
    plan = plan_of(5, 0, train=np.arange(5))
    orders = [plan.minibatches("train", epoch)[0].seeds for epoch in range(6000)]
    counts = np.unique(np.array(orders), axis=0, return_counts=True)[1]
    assert len(counts) == 120
    assert scipy.stats.chisquare(counts).pvalue > 1e-4


def test_minibatches_have_the_fanouts_of_their_split_and_the_key_of_their_epoch(plan_of):
    plan = plan_of(10, 7, train=np.arange(25), valid=np.arange(12))
    for split, epoch, fanouts in (("train", 0, [3, 2]), ("train", 9, [3, 2]), ("valid", 0, [-1, 4])):
        minibatches = plan.minibatches(split, epoch)
        assert [minibatch.number for minibatch in minibatches] == list(range(plan.sizes[split].batches_per_epoch))
        for minibatch in minibatches:
            assert minibatch.fanouts[:, 0].tolist() == fanouts
            assert minibatch.key == batch_key(7, split, epoch)
    assert (plan.splits, list(plan.prepared_epochs("train")), list(plan.prepared_epochs("valid"))) == (
        ("train", "valid"), [0, 1], [0],
    )  # fmt: skip


def test_a_target_is_named_as_on_the_command_line():
    def target(given):
        return SamplingSpec([2], 8, target=given).target

    assert target("paper") == NodeTarget("paper")
    assert target("author:writes:paper") == LinkTarget("author:writes:paper")
    for wrong, found in (("a:b", "'source:name:destination', found 'a:b'"), (3, "'author:writes:paper', found int")):
        with pytest.raises(ConfigError, match=f"target: expected .*{found}"):
            target(wrong)
