"""Evaluation of links does not see its answers: a model that does nothing but look for them finds none."""

import numpy as np
import pytest
import torch
from torch import nn

import diskgnn
from diskgnn.batches.blocks import Block
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.specs.targets import LinkTarget

LINKS = ("node", "to", "node")
COMMUNITIES, SIZE = 6, 20


class Lookup(nn.Module):
    """With one column for each node: a row has 1000 in that of its node, and 1 in those of its neighbours.

    The dot product of two is 1000 for each edge between them in the minibatch, and 1 for each common neighbour.
    """

    def forward(self, blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
        (block,) = blocks
        rows = 1000 * x[: block.num_dst]
        return rows.index_add(0, block.destinations, x[block.indices])


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Each node has edges to itself and to a third of its community; a plain random split of the latter."""
    random, num_nodes = np.random.default_rng(0), COMMUNITIES * SIZE
    ends = np.stack(np.triu_indices(num_nodes, 1), 1)
    ends = ends[(ends[:, 0] // SIZE == ends[:, 1] // SIZE) & (random.random(len(ends)) < 0.33)]
    edges = random.permutation(ends)
    path = tmp_path_factory.mktemp("communities") / "graph"
    splits = dict(
        zip(("train", "valid", "test"), np.split(edges, [len(edges) * 6 // 10, len(edges) * 8 // 10]), strict=True)
    )
    diskgnn.convert(path, schema=GraphInput(
        {"node": NodeInput(features=np.eye(num_nodes, dtype=np.float32))},
        {LINKS: EdgeInput(edges.T, symmetric=True, self_loops=True, **splits)},
    ))  # fmt: skip
    return path


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_model_that_looks_answers_up_finds_none(graph, tmp_path, split):
    found = {}
    for message_edges in ("train", "all"):
        target = LinkTarget(LINKS, negatives=1, eval_negatives=20, avoid="known", message_edges=message_edges)
        packed = tmp_path / message_edges
        diskgnn.prepare(graph, packed, fanouts=[-1], batch_size=32, cpu_cache=0, target=target)
        found[message_edges] = diskgnn.evaluate(Lookup(), packed, split=split).scores["mrr"]
    assert found["all"] == 1.0
    assert 0.3 < found["train"] < 0.55  # common neighbours tell the community, and nothing within it
