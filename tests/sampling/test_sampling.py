"""The sampler against SciPy, DGL and a chi-square test."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
import torch
from graphs import make_graph, random_bits, write_graph
from one_type import sampled_by

from diskgnn._native import NeighborSampler
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.files import faults
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack
from diskgnn.sampling.sample import sample


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Degrees from 0 to 40."""
    random = np.random.default_rng(1)
    num_nodes = 120
    degrees = random.integers(0, 41, num_nodes)
    degrees[0] = 0
    sources = [np.sort(random.choice(num_nodes, degree, replace=False)) for degree in degrees]
    nodes = random.permutation(num_nodes)
    return write_graph(
        tmp_path_factory.mktemp("sampling") / "graph",
        np.cumsum([0, *degrees]),
        np.concatenate(sources).astype(np.int32),
        random_bits((num_nodes, 1), "int8"),
        {"train": nodes[:50], "valid": nodes[50:67], "test": []},
        dtype="int8",
    )


def files(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def assert_blocks_are_subsets(graph, minibatch, fanouts):
    """`fanouts` from the seeds outwards."""
    adjacency = sp.csr_array(  # row: destination
        (np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr), (graph.num_nodes, graph.num_nodes)
    )
    nodes = minibatch.only_nodes
    assert len(set(nodes.tolist())) == len(nodes)
    np.testing.assert_array_equal(nodes[: len(minibatch.seeds)], minibatch.seeds)
    num_dst = len(minibatch.seeds)
    for (indptr, indices), fanout in zip(reversed(minibatch.only_blocks), fanouts, strict=True):
        assert (indptr.dtype, indices.dtype) == (np.int32, np.int32)
        assert len(indptr) == num_dst + 1
        assert indptr[0] == 0
        assert indptr[-1] == len(indices)
        destinations, sources = nodes[:num_dst].repeat(np.diff(indptr)), nodes[indices]
        drawn = sp.coo_array((np.ones(len(indices), np.int8), (destinations, sources)), adjacency.shape).tocsr()
        assert drawn.max() <= 1 if drawn.nnz else True, "an edge was drawn twice"
        assert (drawn - drawn.multiply(adjacency)).nnz == 0, "an edge that the graph does not have"
        degrees = np.diff(graph.indptr)[nodes[:num_dst]]
        np.testing.assert_array_equal(np.diff(indptr), degrees if fanout < 0 else np.minimum(degrees, fanout))
        # The sources are the destinations, then what was drawn first in order of appearance: DGL's convention.
        seen = list(dict.fromkeys([*range(num_dst), *indices.tolist()]))
        assert seen == list(range(len(seen)))
        num_dst = len(seen)
    assert num_dst == len(nodes)


@pytest.mark.parametrize("fanouts", [[1], [5, 3], [-1], [3, -1, 2], [40, 33], [10**9, 2]])
def test_blocks_obey_fanouts_and_are_in_the_graph(graph, tmp_path, fanouts):
    report = sample(graph, tmp_path / "samples", fanouts=fanouts, batch_size=9, epochs=2, threads=1)
    samples = Samples.open(tmp_path / "samples")
    assert samples.splits == ("train", "valid")
    sizes = [samples.config.splits[split] for split in samples.splits]
    assert [(size.epochs, size.batches_per_epoch) for size in sizes] == [(2, 6), (1, 2)]
    minibatches = [minibatch for split in samples.splits for minibatch in samples.read(split)]
    assert len(minibatches) == report.details["minibatches"] == 14
    for minibatch in minibatches:
        assert_blocks_are_subsets(graph, minibatch, fanouts)
    assert report.details["edges"] == sum(minibatch.num_edges for minibatch in minibatches)
    assert [len(minibatch.seeds) for minibatch in minibatches[:6]] == [9, 9, 9, 9, 9, 5]


def test_evaluation_has_fanouts_of_its_own(graph, tmp_path):
    sample(graph, tmp_path / "samples", fanouts=[2, 2], eval_fanouts=[-1, 4], batch_size=9, threads=1)
    samples = Samples.open(tmp_path / "samples")
    for split, fanouts in (("train", [2, 2]), ("valid", [-1, 4])):
        for minibatch in samples.read(split):
            assert_blocks_are_subsets(graph, minibatch, fanouts)


def test_to_block_of_dgl_gives_the_same_numbers(graph, tmp_path):
    dgl = pytest.importorskip("dgl")  # not built for every Python
    sample(graph, tmp_path / "samples", fanouts=[4, 3], batch_size=9, threads=1)
    for minibatch in Samples.open(tmp_path / "samples").read("train"):
        destinations = minibatch.seeds
        for indptr, indices in reversed(minibatch.only_blocks):
            nodes = minibatch.only_nodes
            ends = destinations.repeat(np.diff(indptr))
            frontier = dgl.graph((nodes[indices].astype(np.int64), ends.astype(np.int64)), num_nodes=graph.num_nodes)
            block = dgl.to_block(frontier, torch.from_numpy(destinations.astype(np.int64)))
            sources = block.srcdata[dgl.NID].numpy()
            np.testing.assert_array_equal(sources, nodes[: len(sources)])
            np.testing.assert_array_equal(block.edges()[0], indices)
            destinations = sources


@pytest.mark.parametrize("fanout", [1, 3, 32, 33, 70])  # up to 32 by linear search, beyond with a set
def test_neighbours_are_drawn_uniformly(fanout):
    degree, rounds = 97, 4000
    indptr, indices = np.array([0, degree] + [degree] * degree), np.arange(1, degree + 1, dtype=np.int32)
    sampler = NeighborSampler(indptr, indices)
    drawn = np.stack(
        [
            sampled_by(sampler, np.zeros(1, np.int64), np.array([fanout], np.int32), 7, number)[0][1:]
            for number in range(rounds)
        ]
    )
    assert drawn.shape == (rounds, fanout)
    assert (np.diff(np.sort(drawn)) > 0).all()  # without replacement
    # Counts without replacement vary by (1 - p) less than independent ones, which the statistic is scaled for.
    counts = np.bincount(drawn.ravel(), minlength=degree + 1)[1:]
    expected = rounds * fanout / degree
    statistic = ((counts - expected) ** 2 / expected).sum() / (1 - fanout / degree) * (degree - 1) / degree
    assert 1e-4 < scipy.stats.chi2.sf(statistic, degree - 1) < 1 - 1e-4
    if fanout == 3:  # all pairs, too: no neighbour prefers another's company
        pairs = np.zeros((degree + 1, degree + 1))
        for left, right in ((0, 1), (0, 2), (1, 2)):
            np.add.at(pairs, (drawn[:, left], drawn[:, right]), 1)
        folded = (pairs + pairs.T)[np.triu_indices(degree + 1, 1)].reshape(-1)
        folded = folded[folded.size - degree * (degree - 1) // 2 :]
        assert scipy.stats.chisquare(folded).pvalue > 1e-4


@pytest.mark.parametrize("varied", ["key", "minibatch", "layer", "node"])
def test_draws_are_independent_over_all_that_names_them(varied):
    """The position drawn with one name says nothing about that drawn with the next: a chi-square test of pairs."""
    degree, rounds = 8, 6000
    num_nodes = rounds if varied == "node" else 1
    indptr = np.arange(num_nodes + 1) * degree
    # Every node has the nodes 0..7 as neighbours, or itself again and again.
    indices = np.tile(np.arange(degree, dtype=np.int32) + num_nodes, num_nodes)
    indptr = np.concatenate([indptr, np.full(degree, indptr[-1])])
    sampler = NeighborSampler(indptr, indices)
    one = np.array([1], np.int32)
    if varied == "node":
        nodes, blocks = sampled_by(sampler, np.arange(num_nodes), one, 3, 0)
        drawn = nodes[blocks[0][1]] - num_nodes
    elif varied == "layer":
        # 0 -> 1..8 -> all of 1..8 again: what layer 1 draws for a node against what layer 2 draws for it.
        indptr, indices = np.arange(degree + 1) * degree, np.tile(np.arange(degree, dtype=np.int32), degree)
        sampler = NeighborSampler(indptr, indices)
        pairs = []
        for number in range(rounds):
            nodes, (outer, inner) = sampled_by(sampler, np.zeros(1, np.int64), np.array([1, 1], np.int32), 3, number)
            pairs.append((nodes[inner[1][0]], nodes[outer[1][0]]))
        drawn = np.array(pairs).ravel()
    else:

        def draw(number):
            key, minibatch = (number, 0) if varied == "key" else (0, number)
            return sampled_by(sampler, np.zeros(1, np.int64), one, key, minibatch)[0][1] - num_nodes

        drawn = np.array([draw(number) for number in range(rounds)])
    table = np.zeros((degree, degree))
    step = 2 if varied == "layer" else 1
    np.add.at(table, (drawn[:-1:step], drawn[1::step]), 1)
    assert scipy.stats.chi2_contingency(table).pvalue > 1e-4
    assert scipy.stats.chisquare(table.sum(0)).pvalue > 1e-4


def test_offsets_past_2_to_31(tmp_path):
    """2^31 + 5 edges in a sparse file: all but the last 8 lead to node 0."""
    num_edges, num_nodes = (1 << 31) + 5, 40
    path = tmp_path / "indices.bin"
    with path.open("wb") as file:
        file.truncate(num_edges * 4)
    indices = np.memmap(path, np.int32, "r+")
    indices[-8:] = np.arange(30, 38)
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[1:] = num_edges - 8  # node 0 has nearly all
    indptr[4:] = num_edges - 3  # node 3: five, node 4: three
    indptr[5:] = num_edges
    sampler = NeighborSampler(indptr, np.memmap(path, np.int32, "r"))
    nodes, blocks = sampled_by(sampler, np.array([3, 4, 5]), np.array([-1], np.int32), 0, 0)
    assert nodes.tolist() == [3, 4, 5, *range(30, 38)]
    assert blocks[0][0].tolist() == [0, 5, 8, 8]
    nodes, blocks = sampled_by(sampler, np.array([4, 0]), np.array([2, 1], np.int32), 1, 0)
    assert set(nodes[2:].tolist()) <= {35, 36, 37}
    assert len(blocks[1][1]) == 4


def test_64_bit_ids_give_the_same_minibatches(tmp_path):
    narrow = make_graph(tmp_path / "narrow")
    wide = make_graph(tmp_path / "wide", id_dtype=np.int64)
    for graph, name in ((narrow, "samples-narrow"), (wide, "samples-wide")):
        sample(graph, tmp_path / name, fanouts=[3, 2], batch_size=10, threads=1)
    pairs = zip(*(Samples.open(tmp_path / f"samples-{name}").read("train") for name in ("narrow", "wide")), strict=True)
    for left, right in pairs:
        assert (left.only_nodes.dtype, right.only_nodes.dtype) == (np.int32, np.int64)
        np.testing.assert_array_equal(left.only_nodes, right.only_nodes)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fanouts": []}, ConfigError, "fanouts"),
        ({"fanouts": [3, 0]}, ConfigError, "fanouts"),
        ({"fanouts": [2.5]}, ConfigError, "fanouts"),
        ({"fanouts": [1 << 31]}, ConfigError, "fanouts"),
        ({"fanouts": [3], "eval_fanouts": [3, 3]}, ConfigError, "eval_fanouts has 2 layers"),
        ({"batch_size": 0}, ConfigError, "batch_size"),
        ({"batch_size": 1.5}, ConfigError, "batch_size"),
        ({"epochs": 0}, ConfigError, "epochs"),
        ({"seed": "a"}, ConfigError, r"seed: expected a number from 0 to 2\^64 - 1, found 'a'"),
        ({"seed": True}, ConfigError, r"seed: expected a number from 0 to 2\^64 - 1, found True"),
        ({"threads": 0}, ConfigError, "threads"),
        ({"splits": ["training"]}, ConfigError, "training"),
        ({"splits": ["test"]}, InputError, "no nodes"),
    ],
)
def test_arguments_are_checked(graph, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        sample(graph, tmp_path / "samples", **({"fanouts": [3], "batch_size": 10} | arguments))
    assert list(tmp_path.iterdir()) == []


def test_numbers_may_be_numpys(graph, tmp_path):
    sample(
        graph, tmp_path / "samples", fanouts=np.array([3, 2]), batch_size=np.int64(10), epochs=np.int32(1),
        seed=np.int64(0), threads=1,
    )  # fmt: skip
    sample(graph, tmp_path / "plain", fanouts=[3, 2], batch_size=10, threads=1)
    assert files(tmp_path / "samples") == files(tmp_path / "plain")


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 2, 4], [0, 1, 2, 1]),  # a neighbour past the last node
        ([0, 2, 4], [0, -1, 1, 1]),
        ([0, 9, 4], [0, 1, 0, 1]),  # past the end, then decreasing
        ([0, -3, 4], [0, 1, 0, 1]),
    ],
)
def test_topology_that_leads_outside_is_refused(tmp_path, indptr, indices):
    graph = write_graph(
        tmp_path / "graph", indptr, np.array(indices, np.int32), random_bits((2, 1), "int8"), {"train": [0, 1]},
        dtype="int8",
    )  # fmt: skip
    with pytest.raises(ArtifactError, match="damaged"):
        sample(graph, tmp_path / "samples", fanouts=[-1, -1], batch_size=2, threads=2)


def test_splits_that_lead_outside_are_refused(tmp_path):
    for number, nodes in enumerate(([0, 2], [-1, 0])):
        graph = write_graph(
            tmp_path / f"graph{number}", [0, 0, 0], np.empty(0, np.int32), random_bits((2, 1), "int8"),
            {"train": nodes}, dtype="int8",
        )  # fmt: skip
        with pytest.raises(ArtifactError, match="not in the graph"):
            sample(graph, tmp_path / "samples", fanouts=[1], batch_size=2)


def test_native_sampler_checks_its_arguments():
    indptr, indices = np.array([0, 1, 2]), np.array([1, 0], np.int32)
    sampler = NeighborSampler(indptr, indices)
    one = np.array([1], np.int32)
    for seeds, message in (([2], "not in"), ([-1], "not in"), ([0, 0], "repeated")):
        with pytest.raises(ValueError, match=message):
            sampled_by(sampler, np.array(seeds), one, 0, 0)
    for bad_indptr in ([], [1, 1, 2], [0, 1, 3]):
        with pytest.raises(ValueError, match="indptr"):
            NeighborSampler(np.array(bad_indptr, np.int64), indices)
    with pytest.raises(TypeError, match="int32 or int64"):
        NeighborSampler(indptr, np.array([1, 0], np.int16))
    nodes, blocks = sampled_by(sampler, np.empty(0, np.int64), one, 0, 0)
    assert (len(nodes), blocks[0][0].tolist(), blocks[0][1].tolist()) == (0, [0], [])


def test_a_graph_is_opened_by_path_too(graph, tmp_path):
    assert isinstance(graph, Graph)
    sample(str(graph.manifest.path), tmp_path / "samples", fanouts=[1], batch_size=50, threads=1)
    assert Samples.open(tmp_path / "samples").manifest.source["digest"] == graph.manifest.digest


def test_minibatches_that_no_header_holds_are_refused_when_sampled(tmp_path):
    graph = make_graph(tmp_path / "graph")
    with faults.pretending("header.most_bytes", 2000):
        with pytest.raises(ConfigError, match=r"batch_size: .* minibatch of 50 .* use \d+, or smaller") as refused:
            sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=50)
        assert [path.name for path in tmp_path.iterdir()] == ["graph"]
        fits = int(re.search(r"use (\d+)", str(refused.value))[1])
        sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=fits)
        pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0)
    assert Packed.open(tmp_path / "packed").index("train").max_header_bytes < 2000 + 4096  # names of columns
