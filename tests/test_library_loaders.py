"""Sources over other libraries' loaders: what they yield are minibatches of the graph; what is missing is said."""

import sys
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from graphs import assert_rows_are_features, make_graph

from diskgnn.baselines.graphbolt import GraphBolt
from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.library_source import blocks_of_subgraph
from diskgnn.baselines.pyg import PyG
from diskgnn.errors import ArtifactError, ConfigError, UnavailableError
from diskgnn.minibatch import BatchSource

SAMPLING = {"fanouts": [3, 2], "batch_size": 8}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("libraries") / "graph")


@pytest.fixture
def dgl_source():
    pytest.importorskip("dgl")
    from diskgnn.baselines.dgl_loader import DGL

    return DGL


def assert_blocks_are_of_the_graph(batch, graph, fanouts):
    """Each destination has min(fanout, degree) distinct in-neighbours of the graph."""
    nodes = batch.input_nodes.numpy()
    assert len(np.unique(nodes)) == len(nodes)
    assert batch.blocks[0].num_src == len(nodes)
    assert batch.blocks[-1].num_dst == len(batch.seeds)
    num_dst = [block.num_dst for block in batch.blocks]
    assert [block.num_src for block in batch.blocks[1:]] == num_dst[:-1]
    for block, fanout in zip(batch.blocks, reversed(fanouts), strict=True):
        assert block.indptr.dtype == block.indices.dtype == torch.int32
        for destination in range(block.num_dst):
            drawn = nodes[block.indices[block.indptr[destination] : block.indptr[destination + 1]]]
            node = nodes[destination]
            neighbors = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
            assert set(drawn) <= set(neighbors)
            assert len(set(drawn)) == len(drawn) == (min(fanout, len(neighbors)) if fanout > 0 else len(neighbors))


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("dtype", "width"), [("float32", 7), ("float16", 3), ("bfloat16", 5), ("int8", 1)])
def test_dgl(tmp_path, dgl_source, workers, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width)
    with (
        InMemory(graph, **SAMPLING, seed=2) as online,
        dgl_source(graph, **SAMPLING, seed=2, workers=workers) as source,
    ):
        assert isinstance(source, BatchSource)
        assert (source.feature_width, source.num_layers, source.num_classes) == (width, 2, 4)
        for batch, expected in zip(source.epoch(1), online.epoch(1), strict=True):
            assert (batch.epoch, batch.index) == (1, expected.index)
            assert torch.equal(batch.seeds, expected.seeds)
            assert batch.x.dtype == getattr(torch, dtype)
            assert_rows_are_features(batch, graph)
            assert_blocks_are_of_the_graph(batch, graph, [3, 2])
        stats = source.stats()
        assert stats["disk_rows"] == stats["requested_rows"] > 0


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
def test_dgl_draws_anew_each_epoch_and_again_for_the_same(graph, dgl_source, request):
    import dgl

    request.addfinalizer(partial(dgl.utils.set_num_threads, dgl.utils.get_num_threads()))
    dgl.utils.set_num_threads(1)  # each of its threads has its own random numbers and takes nodes as they come
    with dgl_source(graph, **SAMPLING, sample_epochs=2) as source:
        first, second, third = ([batch.input_nodes for batch in source.epoch(epoch)] for epoch in range(3))
    assert all(torch.equal(one, other) for one, other in zip(first, third, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
@pytest.mark.parametrize("workers", [0, 1])
def test_dgl_goes_on_and_stops(graph, dgl_source, workers):
    import multiprocessing

    with dgl_source(graph, **SAMPLING, workers=workers) as source:
        whole = [batch.seeds for batch in source.epoch(0)]
        list(islice(source.epoch(0), 3))
        assert not multiprocessing.active_children()
        source.load_state_dict(source.state_dict())
        for seeds, batch in zip(whole[3:], source.epoch(0), strict=True):
            assert torch.equal(batch.seeds, seeds)
            assert_rows_are_features(batch, graph)
        with dgl_source(graph, "valid", **SAMPLING, share=source) as valid:
            for batch in valid.epoch(0):
                assert_rows_are_features(batch, graph)
        with InMemory(graph, **SAMPLING) as other, pytest.raises(ArtifactError, match="dgl"):
            source.load_state_dict(other.state_dict())
        batches = source.epoch(0)
        next(batches)
    assert next(batches, None) is None
    with pytest.raises(ConfigError, match="workers"):
        dgl_source(graph, **SAMPLING, workers=-1)
    with pytest.raises(ConfigError, match="advice"):
        dgl_source(graph, **SAMPLING, advice="never")


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
def test_dgl_with_all_neighbours_and_isolated_nodes(tmp_path, dgl_source):
    graph = make_graph(tmp_path / "graph", in_degree=3, id_dtype=np.int64)
    with dgl_source(graph, fanouts=[-1, 4], batch_size=50) as source:
        for batch in source.epoch(0):
            assert_blocks_are_of_the_graph(batch, graph, [-1, 4])


def test_blocks_of_a_pyg_subgraph(graph):
    """With all neighbours, a subgraph has the same edges as blocks, and PyG's trim_to_layer says where layers end."""
    with InMemory(graph, fanouts=[-1, -1, -1], batch_size=4) as source:
        for batch in source.epoch(0):
            data = batch.to_pyg()
            blocks = blocks_of_subgraph(data.edge_index, len(batch.seeds), num_hops=3)
            assert [block.num_src for block in reversed(blocks)] == np.cumsum(data.num_sampled_nodes)[1:].tolist()
            assert [block.num_edges for block in reversed(blocks)] == np.cumsum(data.num_sampled_edges).tolist()
            for block, expected in zip(blocks, batch.blocks, strict=True):
                assert block.num_src == expected.num_src
                assert torch.equal(block.indptr, expected.indptr)
                assert torch.equal(block.indices, expected.indices)


def test_blocks_of_a_subgraph_by_hand():
    # Seed 0 draws 1 and 2; 1 draws 0; 2 draws 3.
    edge_index = torch.tensor([[1, 2, 0, 3], [0, 0, 1, 2]])
    outer, inner = blocks_of_subgraph(edge_index, num_seeds=1, num_hops=2)
    assert (outer.indptr.tolist(), outer.indices.tolist(), outer.num_src) == ([0, 2, 3, 4], [1, 2, 0, 3], 4)
    assert (inner.indptr.tolist(), inner.indices.tolist(), inner.num_src) == ([0, 2], [1, 2], 3)
    with pytest.raises(ValueError, match="order"):
        blocks_of_subgraph(edge_index.flip(1), num_seeds=1, num_hops=2)
    # A hop that reaches nothing, and one without edges.
    outer, inner = blocks_of_subgraph(torch.empty((2, 0), dtype=torch.int64), num_seeds=2, num_hops=2)
    assert (outer.indptr.tolist(), outer.num_src, inner.num_src) == ([0, 0, 0], 2, 2)


@pytest.mark.parametrize(
    ("kind", "missing", "message"),
    [(PyG, "torch_geometric", "needs torch-geometric"), (GraphBolt, "dgl", "needs dgl")],
)
def test_what_is_missing_is_said(graph, monkeypatch, kind, missing, message):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UnavailableError, match=message):
        kind(graph, **SAMPLING)


def test_pyg_without_a_sampler(graph, monkeypatch):
    found = pytest.importorskip("torch_geometric.typing")
    monkeypatch.setattr(found, "WITH_PYG_LIB", False)
    with pytest.raises(UnavailableError, match="needs pyg-lib"):
        PyG(graph, **SAMPLING)


def sample_as_pyg_lib_does(colptr, row, seed, num_neighbors, *_):
    """The first neighbours of each node that is new; (row, col, node, edge, nodes per hop, edges per hop)."""
    nodes, rows, columns, edges = seed.tolist(), [], [], []
    num_nodes, num_edges, first = [len(nodes)], [], 0
    for fanout in num_neighbors:
        end = len(nodes)
        for local in range(first, end):
            begin, stop = colptr[nodes[local]].item(), colptr[nodes[local] + 1].item()
            for edge in range(begin, stop if fanout < 0 else min(stop, begin + fanout)):
                neighbor = row[edge].item()
                if neighbor not in nodes:
                    nodes.append(neighbor)
                rows.append(nodes.index(neighbor))
                columns.append(local)
                edges.append(edge)
        num_nodes.append(len(nodes) - end)
        num_edges.append(len(edges) - sum(num_edges))
        first = end
    tensors = [torch.tensor(values) for values in (rows, columns, nodes, edges)]
    return (*tensors, num_nodes, num_edges)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pyg_with_a_sampler_in_place_of_pyg_lib(tmp_path, monkeypatch, workers, dtype):
    found = pytest.importorskip("torch_geometric.typing")
    graph = make_graph(tmp_path / "graph", dtype=dtype)
    monkeypatch.setattr(found, "WITH_PYG_LIB", True)
    monkeypatch.setattr(torch.ops.pyg, "neighbor_sample", sample_as_pyg_lib_does, raising=False)
    with (
        InMemory(graph, fanouts=[-1, -1], batch_size=8, seed=2) as online,
        PyG(graph, fanouts=[-1, -1], batch_size=8, seed=2, workers=workers) as source,
    ):
        for batch, expected in zip(source.epoch(1), online.epoch(1), strict=True):
            assert torch.equal(batch.seeds, expected.seeds)
            assert_rows_are_features(batch, graph)
            assert_blocks_are_of_the_graph(batch, graph, [-1, -1])
            assert [block.num_edges for block in batch.blocks] == [block.num_edges for block in expected.blocks]


def test_graphbolt_of_another_dgl(graph, monkeypatch):
    pytest.importorskip("dgl")
    monkeypatch.setitem(sys.modules, "dgl.graphbolt", None)
    with pytest.raises(UnavailableError, match=r"dgl\.graphbolt"):
        GraphBolt(graph, **SAMPLING)
