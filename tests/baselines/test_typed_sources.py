"""Sources that sample while training, on a graph with several types: what they yield is of the graph, and is learnt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_runs import Interrupting
from typed_batches import CITES, WRITES, TypedGraph
from typed_directories import PAPER_SPLITS, paper_labels, seed_edges, write_typed_graph

from diskgnn.baselines.cached_reads import CachedReads
from diskgnn.baselines.ginex import Ginex
from diskgnn.baselines.in_memory import InMemory, in_memory_sources
from diskgnn.baselines.mmap import MMap
from diskgnn.batches.blocks import tensors_of
from diskgnn.batches.minibatch import TypedMiniBatch
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack
from diskgnn.sampling.sample import sample
from diskgnn.specs.targets import LinkTarget
from diskgnn.training.train import train

LINKS = LinkTarget(WRITES, negatives=2, eval_negatives=9)
SAMPLING = {"fanouts": [3, 2], "batch_size": 8, "seed": 1}


@pytest.fixture(scope="module")
def plain() -> TypedGraph:
    return TypedGraph(dtype=torch.float32)


@pytest.fixture(scope="module")
def graph(tmp_path_factory, plain) -> Graph:
    return write_typed_graph(tmp_path_factory.mktemp("typed") / "graph", plain)


def assert_of_the_graph(batch: TypedMiniBatch, plain: TypedGraph) -> None:
    """Rows, edges, edge features and counts are those of the graph's nodes and edges."""
    for name, x in plain.x.items():
        assert torch.equal(batch.x[name], x[batch.input_nodes[name]])
    assert set(batch.x) == set(plain.x)
    for layer, blocks in enumerate(batch.blocks):
        before, after = batch.node_counts[layer], batch.node_counts[layer + 1]
        assert list(blocks) == list(plain.edges)
        for (source, name, destination), block in blocks.items():
            assert (block.num_src, block.num_dst) == (before[source], after[destination])
            assert (block.in_degrees <= 3).all()
            ends = torch.stack([batch.input_nodes[source][block.indices],
                                batch.input_nodes[destination][block.destinations]])  # fmt: skip
            known = {tuple(pair) for pair in plain.edges[source, name, destination].T.tolist()}
            assert {tuple(pair) for pair in ends.T.tolist()} <= known
    for blocks in batch.blocks:
        block = blocks[CITES]
        sources = batch.input_nodes["paper"][block.indices]
        assert torch.equal(plain.edges[CITES][0, block.edge_ids], sources)
        assert torch.equal(block.edge_x, plain.edge_x[CITES][block.edge_ids])


def bits(batches: list[TypedMiniBatch]) -> list[bytes]:
    return [tensor.numpy().tobytes() for batch in batches for tensor in tensors_of(batch)]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_minibatches_are_of_the_graph(graph, plain, split):
    with InMemory(graph, split, **SAMPLING) as source:
        assert source.schema.node_types == (("paper", 40, 5), ("author", 25, 3), ("place", 6, None))
        assert (source.schema.target, source.schema.target_kind, source.schema.num_outputs) == ("paper", "class", 3)
        batches = list(source.epoch(0))
    assert all(isinstance(batch, TypedMiniBatch) for batch in batches)
    seeds = torch.cat([batch.seeds for batch in batches])
    assert sorted(seeds.tolist()) == sorted(PAPER_SPLITS[split].tolist())
    for batch in batches:
        assert_of_the_graph(batch, plain)
        assert torch.equal(batch.input_nodes["paper"][: len(batch.seeds)], batch.seeds)
        assert batch.node_counts[-1] == {"paper": len(batch.seeds), "author": 0, "place": 0}
        np.testing.assert_array_equal(batch.y, paper_labels(plain, "class")[batch.seeds])


def test_pairs_are_seed_edges_and_no_edges(graph, plain):
    links = seed_edges(plain)
    every = {tuple(pair) for pairs in links.values() for pair in pairs.tolist()}
    for split, negatives in (("train", 2), ("test", 9)):
        with InMemory(graph, split, target=LINKS, **SAMPLING) as source:
            assert (source.schema.target, source.schema.target_kind) == (WRITES, "link")
            batches = list(source.epoch(0))
        found = []
        for batch in batches:
            assert_of_the_graph(batch, plain)
            pairs, count = batch.pairs, int(batch.pairs.label.sum())
            authors = batch.input_nodes["author"][pairs.src]
            papers = batch.input_nodes["paper"][pairs.dst]
            found += torch.stack([authors, papers], 1)[:count].tolist()
            assert len(pairs.label) == count * (1 + negatives)
            assert torch.equal(authors[count:], authors[:count].repeat_interleave(negatives))
            assert not {*zip(authors[count:].tolist(), papers[count:].tolist(), strict=True)} & every
        assert sorted(map(tuple, found)) == sorted(map(tuple, links[split].tolist()))


@pytest.mark.parametrize("target", [{}, {"target": LINKS}], ids=["nodes", "links"])
def test_every_source_yields_the_same(graph, target):
    with InMemory(graph, threads=1, **SAMPLING, **target) as source:
        expected = bits([batch for epoch in range(2) for batch in source.epoch(epoch)])
    others = [
        InMemory(graph, threads=3, **SAMPLING, **target),
        MMap(graph, gather_threads=2, **SAMPLING, **target),
        MMap(graph, topology="mmap", gather_threads=1, **SAMPLING, **target),
        CachedReads(graph, cpu_cache="30%", **SAMPLING, **target),
        CachedReads(graph, cpu_cache=400, **SAMPLING, **target),
    ]
    for other in others:
        with other:
            assert bits([batch for epoch in range(2) for batch in other.epoch(epoch)]) == expected
            stats = other.stats()
            assert stats.requested_rows == stats.cpu_rows + stats.disk_rows > 0


def test_what_needs_one_type_says_so(graph):
    with pytest.raises(
        ConfigError, match=r"typed graph \(paper, author, place\): .* needs one type of node and of edge"
    ):
        Ginex(graph, **SAMPLING, cpu_cache="10%")


@pytest.mark.parametrize(("kind", "arguments"), [
    ("class", {"model": "rgat", "heads": 2}), ("multilabel", {}), ("regression", {"loss": "l1"}),
])  # fmt: skip
def test_every_task_learns(tmp_path, plain, kind, arguments):
    graph = write_typed_graph(tmp_path / "graph", plain, kind)
    result = train(**in_memory_sources(graph, **SAMPLING), hidden=16, dropout=0.0, lr=0.01, epochs=10, **arguments)
    assert result.epochs[-1].loss < 0.6 * result.epochs[0].loss
    assert set(result.epochs[-1].evaluations) == {"valid", "test"}


@pytest.mark.parametrize("target", [None, LINKS], ids=["nodes", "links"])
def test_from_disk_is_from_memory(graph, tmp_path, target):
    """Sampled, packed and read, the same minibatches give the same losses, scores and weights."""
    sample(graph, tmp_path / "samples", **SAMPLING, epochs=3, target=target)
    pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache="20%", static_cache="5%")
    arguments = {"hidden": 8, "epochs": 3, "lr": 0.01}
    found = train(tmp_path / "packed", **arguments)
    online = in_memory_sources(graph, **SAMPLING, **({} if target is None else {"target": target}))
    expected = train(**online, **arguments)
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in expected.epochs]
    assert [epoch.scores() for epoch in found.epochs] == [epoch.scores() for epoch in expected.epochs]
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(tensor, found.model.state_dict()[name])


def test_links_are_learnt_and_resumed_exactly(graph, tmp_path):
    arguments = {"hidden": 16, "dropout": 0.2, "lr": 0.01, "epochs": 4}
    sources = in_memory_sources(graph, target=LINKS, **SAMPLING)
    whole = train(**sources, **arguments)
    assert whole.epochs[-1].loss < whole.epochs[0].loss
    arguments |= {
        "checkpoint": tmp_path,
        "valid_source": sources["valid_source"],
        "test_source": sources["test_source"],
    }
    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(InMemory(graph, target=LINKS, **SAMPLING), 7), **arguments)
    result = train(InMemory(graph, target=LINKS, **SAMPLING), resume=True, **arguments)
    assert [epoch.scores() for epoch in result.epochs] == [epoch.scores() for epoch in whole.epochs]
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name])


def test_fanouts_of_each_edge_type(graph):
    with InMemory(graph, fanouts={CITES: [2, 0], WRITES: [0, 3]}, batch_size=24) as source:
        (batch,) = source.epoch(0)
    edges = [{edge_type: block.num_edges for edge_type, block in layer.items()} for layer in batch.blocks]
    assert [{edge_type for edge_type, number in layer.items() if number} for layer in edges] == [{WRITES}, {CITES}]
    assert batch.node_counts[0]["place"] == 0
