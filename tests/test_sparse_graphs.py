"""Ids and positions beyond 2^31, on graphs whose files are sparse: tens of gigabytes that take some megabytes."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sparse_graphs import write_sparse_graph

import diskgnn
from diskgnn.formats.samples import Samples
from diskgnn.graph.artifact_description import describe
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import NodeTarget

BEYOND = 1 << 31
MEMORY = "512MiB"
FANOUTS = [-1, 2]
pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    """In memory where there is such a folder: holes are read faster there than from a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


def rows_of(nodes):
    """[n, 3] int8: what the features of these nodes are, none of them zeros."""
    nodes = np.asarray(nodes, np.int64)
    return np.stack([nodes % 120 + 1, nodes // 127 % 120 + 1, (nodes >= BEYOND) * 2 - 1], axis=1).astype(np.int8)


class ManyNodes:
    """2^31 + 2000 nodes; the last 1000 have edges: 6 each, from these and from a hundred nodes anywhere, each of which
    costs 2 MiB of every array with a number for each node.
    """

    num_nodes, with_edges, degree = BEYOND + 2000, 1000, 6
    first = num_nodes - with_edges

    def __init__(self, path):
        rng = np.random.default_rng(31)
        anywhere = rng.choice(rng.integers(0, self.num_nodes, 100), (self.with_edges, self.degree // 2))
        near = rng.integers(self.first, self.num_nodes, (self.with_edges, self.degree // 2))
        self.sources = np.concatenate([anywhere, near], axis=1)
        offsets = np.arange(self.with_edges + 1) * self.degree
        nodes = np.unique(np.concatenate([self.sources.ravel(), np.arange(self.first, self.num_nodes)]))
        write_sparse_graph(
            path, self.num_nodes, self.sources.size, indptr={self.first: offsets}, indices={0: self.sources.ravel()},
            features={int(node): rows_of([node]) for node in nodes}, width=3,
        )  # fmt: skip

    def lists(self, nodes):
        """The in-neighbours of each node."""
        return [self.sources[node - self.first].tolist() if node >= self.first else [] for node in nodes.tolist()]


def edges_of(block, inputs):
    """Of each destination of a block, the nodes that it draws."""
    indptr, sources = block.indptr.numpy(), inputs[block.indices.numpy()]
    return [sources[a:b].tolist() for a, b in pairwise(indptr)]


def test_ids_beyond_2_31(folder):
    made = ManyNodes(folder / "graph")
    assert describe(folder / "graph").facts["total_bytes"] > 8 * BEYOND
    seeds = np.arange(made.num_nodes - 96, made.num_nodes)[::-1]
    target = NodeTarget(seeds={"train": seeds})
    diskgnn.prepare(
        folder / "graph", folder / "packed", fanouts=FANOUTS, batch_size=32, epochs=2, target=target,
        cpu_cache=3 * 200, static_cache=3 * 50, keep_input_nodes=True, memory=MEMORY,
    )  # fmt: skip
    plan, seen = SamplingPlan(Graph.open(folder / "graph"), SamplingSpec(FANOUTS, 32, 2, target=target)), []
    online = plan.parts.mapped()
    with diskgnn.Loader(folder / "packed", "train") as loader:
        for epoch in range(4):  # the sequence comes round
            for planned, minibatch in zip(plan.minibatches("train", epoch % 2), loader, strict=True):
                inputs = minibatch.input_nodes.numpy()
                assert np.array_equal(minibatch.x.numpy(), rows_of(inputs))
                assert np.array_equal(inputs, planned.draw(online).only_nodes)  # without a sweep
                for block, fanout in zip(minibatch.blocks, reversed(FANOUTS), strict=True):
                    for drawn, known in zip(edges_of(block, inputs), made.lists(inputs), strict=False):
                        assert len(drawn) == (len(known) if fanout == -1 else min(fanout, len(known)))
                        assert not set(drawn) - set(known)
                seen.append(minibatch.seeds.numpy())
    assert np.array_equal(np.sort(np.concatenate(seen[:3])), np.sort(seeds))


class ManyEdges:
    """Node 500 has 2^31 edges, all from node 0 but the last; so the edges of nodes 501 to 999 lie beyond 2^31."""

    num_nodes, hub, degree = 1000, 500, 4
    num_edges = BEYOND + (num_nodes - hub - 1) * degree

    def __init__(self, path):
        rng = np.random.default_rng(32)
        self.sources = rng.integers(self.hub + 1, self.num_nodes, (self.num_nodes - self.hub - 1, self.degree))
        after = BEYOND + np.arange(self.num_nodes - self.hub) * self.degree
        write_sparse_graph(
            path, self.num_nodes, self.num_edges, indptr={self.hub + 1: after},
            indices={BEYOND - 1: np.concatenate([[7], self.sources.ravel()])},
            features={0: rows_of(np.arange(self.num_nodes))}, width=3,
        )  # fmt: skip


def test_positions_of_edges_beyond_2_31(folder):
    made = ManyEdges(folder / "graph")
    seeds = np.array([made.hub, 999, 501, 777])
    diskgnn.sample(
        folder / "graph", folder / "samples", fanouts=[3, 3], batch_size=2, edge_ids=True, memory=MEMORY,
        target=NodeTarget(seeds={"test": seeds}),
    )  # fmt: skip
    graph, indices = Graph.open(folder / "graph"), np.zeros(0, np.int64)
    for minibatch in Samples.open(folder / "samples").read("test"):
        nodes = minibatch.only_nodes
        for (block,) in minibatch.blocks:
            assert block.positions.dtype == np.int64
            assert np.array_equal(graph.indices[block.positions], nodes[block.indices])
            per_node = np.split(block.positions, block.indptr[1:-1])
            for node, positions in zip(nodes.tolist(), per_node, strict=False):
                begin, end = graph.indptr[node : node + 2]
                assert len(np.unique(positions)) == min(3, end - begin)
                assert ((begin <= positions) & (positions < end)).all()
            indices = np.concatenate([indices, block.positions])
    assert indices.max() >= BEYOND
    assert indices.min() < BEYOND
    diskgnn.pack(folder / "graph", folder / "samples", folder / "packed", cpu_cache=0, static_cache=0,
                 keep_input_nodes=True, memory=MEMORY)  # fmt: skip
    with diskgnn.Loader(folder / "packed", "test") as loader:
        for minibatch in loader:
            inputs = minibatch.input_nodes.numpy()
            assert np.array_equal(minibatch.x.numpy(), rows_of(inputs))
            for block in minibatch.blocks:
                assert np.array_equal(graph.indices[block.edge_ids.numpy()], inputs[block.indices.numpy()])
