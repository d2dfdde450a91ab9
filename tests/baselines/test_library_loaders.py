"""Sources over other libraries' loaders: what they yield are minibatches of the graph; what is missing is said."""

import multiprocessing
import os
import signal
import subprocess
import sys
from itertools import islice

import numpy as np
import psutil
import pytest
import torch
from forked_python import Python
from graphs import assert_rows_are_features, make_graph
from sources import assert_refuses_states_of

from diskgnn.baselines.dgl_loader import DGL, import_dgl
from diskgnn.baselines.graphbolt_loader import GraphBolt
from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.library_source import blocks_of_subgraph
from diskgnn.baselines.pyg_loader import PyG, require_sampler
from diskgnn.errors import ConfigError, UnavailableError

SAMPLING = {"fanouts": [3, 2], "batch_size": 8}
pytestmark = [
    pytest.mark.filterwarnings("ignore:Dataloader CPU affinity"),
    pytest.mark.filterwarnings("ignore:Using 'SeededNeighborSampler' without a 'pyg-lib' installation"),
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("libraries") / "graph")


@pytest.fixture(params=[DGL, PyG])
def library(request):
    """The source over each library that can be imported."""
    kind = request.param
    try:
        import_dgl() if kind is DGL else require_sampler()
    except UnavailableError as error:
        pytest.skip(str(error))
    return kind


@pytest.fixture
def one_thread(library):
    """DGL on one thread: each of its threads has its own random numbers and takes nodes as they come."""
    if library is not DGL:
        yield
        return
    import dgl

    num_threads = dgl.utils.get_num_threads()
    dgl.utils.set_num_threads(1)
    yield
    dgl.utils.set_num_threads(num_threads)


def assert_blocks_are_of_the_graph(batch, graph, fanouts, drawn_once=False):
    """Each destination has min(fanout, degree) distinct in-neighbours of the graph.

    Its fanout is that of the layer; if neighbours are `drawn_once` for all layers, that of the hop that reached it.
    """
    nodes = batch.input_nodes.numpy()
    assert len(np.unique(nodes)) == len(nodes)
    assert batch.blocks[0].num_src == len(nodes)
    assert batch.blocks[-1].num_dst == len(batch.seeds)
    num_dst = [block.num_dst for block in batch.blocks]
    assert [block.num_src for block in batch.blocks[1:]] == num_dst[:-1]
    for block, fanout in zip(batch.blocks, reversed(fanouts), strict=True):
        assert block.indptr.dtype == block.indices.dtype == torch.int32
        for destination in range(block.num_dst):
            if drawn_once:
                fanout = fanouts[sum(destination >= reached for reached in reversed(num_dst))]
            drawn = nodes[block.indices[block.indptr[destination] : block.indptr[destination + 1]]]
            node = nodes[destination]
            neighbors = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
            assert set(drawn) <= set(neighbors)
            assert len(set(drawn)) == len(drawn) == (min(fanout, len(neighbors)) if fanout > 0 else len(neighbors))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("dtype", "width"), [("float32", 7), ("float16", 3), ("bfloat16", 5), ("int8", 1)])
def test_minibatches(tmp_path, library, workers, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width)
    with (
        InMemory(graph, **SAMPLING, seed=2) as reference,
        library(graph, **SAMPLING, seed=2, workers=workers) as source,
    ):
        assert (source.num_features, source.num_layers, source.num_classes) == (width, 2, 4)
        for batch, expected in zip(source.epoch(1), reference.epoch(1), strict=True):
            assert (batch.epoch, batch.batch_index) == (1, expected.batch_index)
            assert torch.equal(batch.seeds, expected.seeds)
            assert batch.x.dtype == getattr(torch, dtype)
            assert_rows_are_features(batch, graph)
            assert_blocks_are_of_the_graph(batch, graph, [3, 2], drawn_once=library is PyG)
        stats = source.stats()
        assert stats.disk_rows == stats.requested_rows > 0


@pytest.mark.usefixtures("one_thread")
def test_draws_anew_each_epoch_and_again_for_the_same(graph, library):
    with library(graph, **SAMPLING, sample_epochs=2) as source:
        first, second, third = ([batch.input_nodes for batch in source.epoch(epoch)] for epoch in range(3))
    assert all(torch.equal(one, other) for one, other in zip(first, third, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.usefixtures("one_thread")
def test_draws_the_same_whatever_the_workers_and_where_it_goes_on(graph, library):
    epochs = []
    for workers in (0, 1):
        with library(graph, **SAMPLING, workers=workers) as source:
            epochs.append(list(source.epoch(0)))
    with library(graph, **SAMPLING, workers=2) as source:
        begun = list(islice(source.epoch(0), 3))
        source.load_state_dict(source.state_dict())
        epochs.append(begun + list(source.epoch(0)))
    for batches in zip(*epochs, strict=True):
        for batch in batches:
            assert torch.equal(batch.input_nodes, batches[0].input_nodes)
            for block, expected in zip(batch.blocks, batches[0].blocks, strict=True):
                assert torch.equal(block.indptr, expected.indptr)
                assert torch.equal(block.indices, expected.indices)


@pytest.mark.parametrize("workers", [0, 2])
def test_goes_on_and_stops(graph, library, workers):
    with library(graph, **SAMPLING, workers=workers) as source:
        whole = [batch.seeds for batch in source.epoch(0)]
        batches = source.epoch(0)
        list(islice(batches, 3))
        assert len(multiprocessing.active_children()) == workers
        del batches
        assert not multiprocessing.active_children()
        source.load_state_dict(source.state_dict())
        for seeds, batch in zip(whole[3:], source.epoch(0), strict=True):
            assert torch.equal(batch.seeds, seeds)
            assert_rows_are_features(batch, graph)
        with library(graph, "valid", **SAMPLING, share=source) as valid:
            for batch in valid.epoch(0):
                assert_rows_are_features(batch, graph)
        with InMemory(graph, **SAMPLING) as other:
            assert_refuses_states_of(source, other, f"its sampler is None, expected {library.name}")
        batches = source.epoch(0)
        next(batches)
    assert not multiprocessing.active_children()
    with pytest.raises(ConfigError, match="was closed"):
        next(batches)
    with pytest.raises(ConfigError, match="workers"):
        library(graph, **SAMPLING, workers=-1)
    with pytest.raises(ConfigError, match="advice"):
        library(graph, **SAMPLING, advice="never")


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_what_started_them(graph, library, blow):
    """Ctrl-C goes to all of a terminal's processes; SIGKILL to the one that has the workers."""
    program = (
        f"import multiprocessing, sys, time; from {library.__module__} import {library.__name__};"
        f"source = {library.__name__}(sys.argv[1], fanouts=[3, 2], batch_size=8, workers=2); batches = source.epoch(0);"
        "next(batches); print(*(child.pid for child in multiprocessing.active_children()), flush=True);"
        "time.sleep(60)"
    )
    process = Python("-c", program, graph.manifest.path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with process:
        workers = [psutil.Process(int(number)) for number in process.stdout.readline().split()]
        assert len(workers) == 2
        (os.killpg if blow == signal.SIGINT else os.kill)(process.pid, blow)
        process.wait(30)
        _, alive = psutil.wait_procs(workers, 30)
        assert not alive


def test_with_all_neighbours_and_isolated_nodes(tmp_path, library):
    graph = make_graph(tmp_path / "graph", in_degree=3, id_dtype=np.int64)
    with library(graph, fanouts=[-1, 4], batch_size=50) as source:
        for batch in source.epoch(0):
            assert_blocks_are_of_the_graph(batch, graph, [-1, 4], drawn_once=library is PyG)


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
    monkeypatch.setattr(found, "WITH_TORCH_SPARSE", False)
    with pytest.raises(UnavailableError, match="needs pyg-lib or torch-sparse"):
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
@pytest.mark.usefixtures("forks")
def test_pyg_with_a_sampler_in_place_of_pyg_lib(tmp_path, monkeypatch, workers, dtype):
    found = pytest.importorskip("torch_geometric.typing")
    graph = make_graph(tmp_path / "graph", dtype=dtype)
    monkeypatch.setattr(found, "WITH_PYG_LIB", True)
    monkeypatch.setattr(torch.ops.pyg, "neighbor_sample", sample_as_pyg_lib_does, raising=False)
    with (
        InMemory(graph, fanouts=[-1, -1], batch_size=8, seed=2) as reference,
        PyG(graph, fanouts=[-1, -1], batch_size=8, seed=2, workers=workers) as source,
    ):
        for batch, expected in zip(source.epoch(1), reference.epoch(1), strict=True):
            assert torch.equal(batch.seeds, expected.seeds)
            assert_rows_are_features(batch, graph)
            assert_blocks_are_of_the_graph(batch, graph, [-1, -1])
            assert [block.num_edges for block in batch.blocks] == [block.num_edges for block in expected.blocks]


def test_graphbolt_of_another_dgl(graph, monkeypatch):
    pytest.importorskip("dgl")
    monkeypatch.setitem(sys.modules, "dgl.graphbolt", None)
    with pytest.raises(UnavailableError, match=r"dgl\.graphbolt"):
        GraphBolt(graph, **SAMPLING)
