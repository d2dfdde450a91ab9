"""Coordinated draws: slices of hash-ordered lists, against NumPy, by hand, and as distributions."""

import numpy as np
import pytest
import torch
from graphs import random_bits, write_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbor_order import in_order, neighbor_slice, order_hash
from one_type import expansion, files_of, sampled_by, take
from sources import assert_same

from diskgnn._native import NeighborSampler, TopologySweep
from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.library_source import LibrarySource
from diskgnn.baselines.partition_buffer import PartitionBuffer
from diskgnn.errors import ConfigError
from diskgnn.formats.samples import Samples
from diskgnn.fresh.fresh_epochs import FreshEpochs
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample
from diskgnn.specs.sampling import SamplingSpec

LAST = 2**64 - 1


def one_list(neighbors, id_dtype=np.int32):
    """A sampler of node 0 with these in-neighbours, put in order; the others have none. And the order."""
    num_nodes = int(max(neighbors, default=0)) + 1
    indptr = np.array([0] + [len(neighbors)] * num_nodes)
    ordered = in_order(indptr, np.array(neighbors, id_dtype))
    return NeighborSampler(indptr, ordered), ordered


def drawn(sampler, fanout, start):
    """What node 0 draws, in order; it is no in-neighbour of its own."""
    nodes, blocks = sampled_by(sampler, np.zeros(1, np.int64), np.array([fanout], np.int32), 0, 0, start)
    return nodes[blocks[0][1]].tolist()


def test_by_hand():
    # The hashes of 1, 3, 2, 4 begin with 3f, 66, 9f, d0.
    sampler, ordered = one_list([1, 2, 3, 4])
    assert ordered.tolist() == [1, 3, 2, 4]
    for begins_with, expected in ((0x00, [1, 3]), (0x40, [3, 2]), (0x70, [2, 4]), (0xA0, [4, 1]), (0xE0, [1, 3])):
        assert drawn(sampler, 2, begins_with << 56) == expected
    assert drawn(sampler, 2, 0x3F611BFEEC71E8F5) == [1, 3]  # the hash of 1 itself
    assert drawn(sampler, 2, 0x3F611BFEEC71E8F6) == [3, 2]
    for all_of_them in (-1, 4, 5):
        assert drawn(sampler, all_of_them, 0xA0 << 56) == [1, 3, 2, 4]


@settings(max_examples=200)
@given(
    neighbors=st.lists(st.integers(1, 3000), max_size=300),
    fanout=st.sampled_from([1, 2, 3, 10, 64, -1]),
    start=st.integers(0, LAST),
    wide=st.booleans(),
)
def test_a_draw_is_numpys_slice(neighbors, fanout, start, wide):
    """With repeated neighbours, too: they are side by side."""
    sampler, ordered = one_list(neighbors, np.int64 if wide else np.int32)
    hashes = [*order_hash(ordered[:3]).tolist(), *order_hash(ordered[-3:]).tolist()]
    for each in (start, 0, LAST, *hashes, *(hash_ + 1 for hash_ in hashes if hash_ < LAST)):
        assert drawn(sampler, fanout, each) == neighbor_slice(ordered, fanout, each).tolist()


def test_neighbours_are_drawn_equally_often_in_the_mean():
    """Over many hashes, that is many lists, every position comes up with probability fanout / degree."""
    fanout, degree, num_lists, rounds = 4, 50, 200, 400
    random = np.random.default_rng(0)
    lists = np.stack([random.choice(10**4, degree, replace=False) + num_lists for _ in range(num_lists)])
    indptr = np.concatenate([np.arange(num_lists) * degree, np.full(10**4 + 1, lists.size)])
    sampler = NeighborSampler(indptr, in_order(indptr, lists.ravel().astype(np.int32)))
    rows, fanouts = np.arange(num_lists), np.array([fanout], np.int32)
    counts = np.zeros((num_lists, degree))
    for start in random.integers(0, LAST, rounds, np.uint64, endpoint=True):
        nodes, ((ends, indices),) = sampled_by(sampler, rows, fanouts, 0, 0, int(start))
        assert np.array_equal(ends, np.arange(num_lists + 1) * fanout)
        draws = nodes[indices].reshape(num_lists, 1, fanout)
        counts += (lists[:, :, None] == draws).any(axis=2)
    shares = counts / rounds
    assert shares.mean() == pytest.approx(fanout / degree, rel=1e-12)
    # A neighbour is drawn when the start falls into the `fanout` gaps before its hash. A gap is 1 / degree in the
    # mean and, nearly exponential, deviates by as much: the sum of `fanout` by sqrt(fanout) / degree.
    assert shares.std() == pytest.approx(np.sqrt(fanout) / degree, rel=0.1)
    # By position in the list as given, which has nothing to do with the hash.
    deviation = np.sqrt(fanout) / degree / np.sqrt(num_lists)
    assert np.abs(shares.mean(0) - fanout / degree).max() < 5 * deviation


def test_nodes_agree():
    """Two nodes with the same in-neighbours draw the same; one with some of them draws no other than these two skip."""
    random = np.random.default_rng(1)
    neighbors = random.choice(np.arange(3, 500), 60, replace=False)
    part = neighbors[::2]
    indptr = np.concatenate([[0, 60, 120, 150], np.full(497, 150)])
    indices = in_order(indptr, np.concatenate([neighbors, neighbors[::-1], part]).astype(np.int32))
    sampler = NeighborSampler(indptr, indices)
    for start in random.integers(0, LAST, 50, np.uint64):
        nodes, (block,) = sampled_by(sampler, np.arange(3), np.array([8], np.int32), 0, 0, int(start))
        lists = [nodes[block[1][block[0][i] : block[0][i + 1]]].tolist() for i in range(3)]
        assert lists[0] == lists[1]
        shared = [node for node in lists[0] if node in part]
        assert lists[2][: len(shared)] == shared


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Degrees from 0 to 40, and a hub; made by `convert`."""
    folder = tmp_path_factory.mktemp("graph")
    random = np.random.default_rng(2)
    num_nodes = 400
    nodes = random.permutation(num_nodes)
    dst = np.repeat(np.arange(num_nodes), random.integers(0, 41, num_nodes))
    dst = np.concatenate([dst, np.full(5000, 7)])
    convert(
        folder / "graph", edges=np.stack([random.integers(0, num_nodes, len(dst)), dst]), drop_duplicates=False,
        features=np.zeros((num_nodes, 1), np.int8), labels=np.zeros(num_nodes, np.int64),
        train=nodes[:200], valid=nodes[200:250], test=nodes[250:260],
    )  # fmt: skip
    return Graph.open(folder / "graph")


def test_minibatches_are_numpys(graph):
    spec = SamplingSpec([5, 3], 16, eval_fanouts=[-1, 4], draws="coordinated", draw_period=3)
    plan, sampler = SamplingPlan(graph, spec), NeighborSampler(*graph.topology())
    for split in plan.splits:
        for planned in plan.minibatches(split, 0):
            minibatch = planned.draw(sampler)
            nodes = minibatch.only_nodes
            known = planned.seeds.tolist()
            for (indptr, indices), fanout in zip(reversed(minibatch.only_blocks), planned.fanouts[:, 0], strict=True):
                for i, node in enumerate(list(known)):
                    neighbors = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
                    expected = neighbor_slice(neighbors, fanout, planned.slice_start).tolist()
                    assert nodes[indices[indptr[i] : indptr[i + 1]]].tolist() == expected
                    known += [each for each in dict.fromkeys(expected) if each not in known]
            assert nodes.tolist() == known


def test_periods_and_epochs(graph):
    def starts(epoch, split="train", **options):
        plan = SamplingPlan(graph, SamplingSpec([5], 16, **({"draws": "coordinated"} | options)))
        return [each.slice_start for each in plan.minibatches(split, epoch)]

    assert starts(0, draws="independent") == [None] * 13
    assert len(set(starts(0))) == 13
    moving = np.array(starts(0, draw_period=40) + starts(1, draw_period=40) + starts(2, draw_period=40), object)
    assert set((moving[1:] - moving[:-1]) % 2**64) <= {2**64 // 40, 2**64 // 40 + 1}  # on and on, over epochs
    assert (moving[-1] - moving[0]) % 2**64 == 38 * 2**64 // 40
    slow = starts(0, "valid", draw_period=10**9)
    assert max(slow) - min(slow) > 2**60  # those of evaluation are anywhere
    several = [starts(0), starts(1), starts(0, seed=1), starts(0, "valid")]
    assert len(set().union(*several)) == sum(map(len, several))
    assert all(0 <= start <= LAST for start in starts(0))


def test_epochs_cover_the_neighbours(graph):
    """In 100 epochs of one minibatch, a node of degree 40 meets about as many neighbours as with independent draws."""
    node = int(np.argsort(np.abs(np.diff(graph.indptr) - 40))[0])
    neighbors = set(graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist())
    sampler = NeighborSampler(*graph.topology())
    plan = SamplingPlan(graph, SamplingSpec([5], 200, draws="coordinated"))
    met = set()
    for epoch in range(100):
        start = plan.minibatches("train", epoch)[0].slice_start
        nodes, _ = sampled_by(sampler, np.array([node]), np.array([5], np.int32), 0, 0, start)
        met |= set(nodes[1:].tolist())
    assert met <= neighbors
    assert len(met) > 0.95 * len(neighbors - {node})


@pytest.mark.parametrize("fanouts", [[4, 3, 5], [-1, 2], [300, 300]])
def test_files_do_not_depend_on_memory_and_threads(graph, tmp_path, fanouts):
    options = {"fanouts": fanouts, "batch_size": 16, "epochs": 2, "draws": "coordinated", "draw_period": 4}
    sample(graph, tmp_path / "memory", threads=2, memory="1GiB", **options)
    sample(graph, tmp_path / "sweep", threads=2, memory="16KiB", **options)
    sample(graph, tmp_path / "period 1", threads=1, **(options | {"draw_period": 1}))
    spec = Samples.open(tmp_path / "memory").config.spec
    assert (spec.draws, spec.draw_period) == ("coordinated", 4)
    digests = [Samples.open(tmp_path / name).manifest.digest for name in ("memory", "sweep", "period 1")]
    assert digests[0] == digests[1] != digests[2]


@settings(max_examples=60)
@given(data=st.data())
def test_sweeps_draw_the_same_through_any_window(tmp_path_factory, data):
    """Lists that lie in several windows of 4096 bytes, with slices in one of them, in several, and over the end."""
    id_dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    num_nodes = 40
    degrees = np.array(data.draw(st.lists(st.sampled_from([0, 1, 5, 300, 1024, 3000]), min_size=40, max_size=40)))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    indptr = np.cumsum([0, *degrees])
    indices = in_order(indptr, random.integers(0, num_nodes, indptr[-1]).astype(id_dtype))
    graph = write_graph(
        tmp_path_factory.mktemp("sweep") / "graph", indptr, indices, random_bits((num_nodes, 1), "int8"),
        {"train": [0]}, dtype="int8",
    )  # fmt: skip
    fanout = data.draw(st.sampled_from([1, 7, 299, 1023, 2500]))
    hashes = order_hash(np.arange(num_nodes)).tolist()
    start = st.one_of(st.integers(0, LAST), st.sampled_from([0, LAST, *hashes, *(each + 1 for each in hashes)]))
    minibatches = []
    for _ in range(data.draw(st.integers(1, 4))):
        seeds = random.permutation(num_nodes)[: data.draw(st.integers(1, num_nodes))]
        minibatches.append((seeds, np.array([fanout], np.int32), 0, 0, data.draw(start)))
    files = files_of(graph)
    sweep = TopologySweep(files, engine="threads", window_bytes=4096, threads=2)
    group = [expansion(files, id_dtype, *each) for each in minibatches]
    sweep.count(group)
    sweep.draw(group)
    sampler = NeighborSampler(indptr, indices)
    for grown, minibatch in zip(group, minibatches, strict=True):
        grown.relabel()
        nodes, blocks = take(grown)
        expected_nodes, expected_blocks = sampled_by(sampler, *minibatch)
        np.testing.assert_array_equal(nodes, expected_nodes)
        for left, right in zip(blocks[0], expected_blocks[0], strict=True):
            np.testing.assert_array_equal(left, right)


def test_lists_in_another_order_are_no_crash():
    random = np.random.default_rng(3)
    neighbors = random.permutation(np.arange(1, 1001)).astype(np.int32)
    sampler = NeighborSampler(np.array([0] + [1000] * 1001), neighbors)
    for start in random.integers(0, LAST, 100, np.uint64):
        assert len(set(drawn(sampler, 10, int(start)))) == 10


def test_sampling_while_training_draws_the_same(graph, tmp_path):
    options = {"fanouts": [4, 3], "batch_size": 16, "draws": "coordinated", "draw_period": 2, "seed": 5}
    sample(graph, tmp_path / "samples", epochs=2, **options)
    prepared = list(Samples.open(tmp_path / "samples").read("train"))
    with InMemory(graph, **options) as source:
        batches = [batch for epoch in range(2) for batch in source.epoch(epoch)]
    for batch, minibatch in zip(batches, prepared, strict=True):
        np.testing.assert_array_equal(batch.input_nodes, minibatch.only_nodes)
        for block, (indptr, indices) in zip(batch.blocks, minibatch.only_blocks, strict=True):
            assert torch.equal(block.indptr, torch.from_numpy(indptr.copy()))
            assert torch.equal(block.indices, torch.from_numpy(indices.copy()))


def test_what_cannot_coordinate_says_so(graph, tmp_path):
    options = {"fanouts": [2], "batch_size": 10, "draws": "coordinated"}
    with pytest.raises(ConfigError, match="draws: partition-buffer can only draw independently"):
        PartitionBuffer(graph, tmp_path / "partitions", resident=2, **options)
    with pytest.raises(ConfigError, match=r"draws: \? can only draw independently"):
        LibrarySource(graph, **options)


def test_fresh_epochs_draw_the_same(graph, tmp_path):
    options = {"fanouts": [4, 3], "batch_size": 50, "draws": "coordinated", "draw_period": 2, "seed": 5}
    with (
        InMemory(graph, **options) as online,
        FreshEpochs(graph, tmp_path, cpu_cache="10%", keep_input_nodes=True, num_epochs=2, **options) as fresh,
    ):
        for epoch in range(2):
            for left, right in zip(online.epoch(epoch), fresh.epoch(epoch), strict=True):
                assert_same(left, right)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": "random"}, "draws: expected one of independent, coordinated, found 'random'"),
        ({"draws": "coordinated", "draw_period": 0}, "draw_period: expected at least 1"),
        ({"draws": "coordinated", "draw_period": 1.5}, "draw_period: expected a whole number"),
        ({"draw_period": 2}, "independent draws have none, found 2"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        SamplingSpec([3], 10, **options)
