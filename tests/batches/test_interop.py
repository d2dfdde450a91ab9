from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch
from one_type import sampled_by
from torch import Tensor, nn

from diskgnn import Block, ConfigError, MiniBatch
from diskgnn._native import NeighborSampler
from diskgnn.nn.layers import GATLayer, GCNLayer, SAGELayer

os.environ.setdefault("DGLBACKEND", "pytorch")
pyg_nn = pytest.importorskip("torch_geometric.nn")
pyg_utils = pytest.importorskip("torch_geometric.utils")
try:
    import dgl
    from dgl import nn as dgl_nn
except ImportError:  # its last wheels are for Python 3.11
    dgl = None
needs_dgl = pytest.mark.skipif(dgl is None, reason="DGL is not installed")

IN, OUT, HEADS = 7, 5, 3
NUM_NODES = 200
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(scope="module")
def edges() -> Tensor:
    """[2, E] sources and destinations of a random graph in which one node in ten has no in-neighbour."""
    rng = np.random.default_rng(0)
    destinations = rng.integers(NUM_NODES // 10, NUM_NODES, size=1500)
    return torch.from_numpy(np.stack([rng.integers(NUM_NODES, size=1500), destinations]))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(NUM_NODES, IN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def whole_block(edges: Tensor) -> Block:
    """Every node with all of its in-neighbours."""
    indptr = torch.cumsum(torch.bincount(edges[1] + 1, minlength=NUM_NODES + 1), 0)
    return Block(indptr.int(), edges[0, edges[1].argsort(stable=True)].int(), NUM_NODES)


def draw(edges: Tensor, x: Tensor, fanouts: list[int]) -> MiniBatch:
    """A minibatch of 30 seeds."""
    whole, seeds = whole_block(edges), torch.arange(10, 40)
    sampler = NeighborSampler(whole.indptr.long().numpy(), whole.indices.numpy())
    nodes, sampled = sampled_by(sampler, seeds.numpy(), np.array(fanouts, np.int32), 0, 0)
    input_nodes, num_src, blocks = torch.from_numpy(nodes).long(), len(nodes), []
    for indptr, indices in sampled:
        blocks.append(Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src))
        num_src = len(indptr) - 1
    return MiniBatch(x[input_nodes], seeds % 4, tuple(blocks), seeds, 0, 0, input_nodes)


@pytest.fixture(scope="module")
def batch(edges: Tensor, x: Tensor) -> MiniBatch:
    return draw(edges, x, [5, 4, 3])


def randomized(layer: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.to(dtype)


def assert_same(ours: nn.Module, theirs: nn.Module, names: dict[str, str], call_ours, call_theirs, dtype) -> None:
    """Outputs, and the gradients of all parameters, with theirs copied from ours: {ours: theirs}."""
    values = dict(ours.named_parameters())
    targets = dict(theirs.named_parameters())
    assert {*names.keys()} == {*values}
    assert {*names.values()} == {*targets}

    def alike(value: Tensor, target: Tensor) -> Tensor:
        # DGL stores GraphConv's weight transposed, and attention vectors with a dimension of one in front.
        return value.t() if value.dim() == 2 and value.shape != target.shape[-2:] else value.view_as(target)

    theirs.to(dtype)
    with torch.no_grad():
        for name, their_name in names.items():
            targets[their_name].copy_(alike(values[name], targets[their_name]))
    expected, found = call_theirs(theirs), call_ours(ours)
    expected = expected.reshape(found.shape)
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(found, expected, **tolerance)
    cotangent = torch.randn(found.shape, dtype=dtype) / len(found)
    (found * cotangent).sum().backward()
    (expected * cotangent).sum().backward()
    for name, their_name in names.items():
        gradient = targets[their_name].grad
        torch.testing.assert_close(alike(values[name].grad, gradient), gradient, **tolerance)


SAGE_NAMES = {
    "dgl": {"own.weight": "fc_self.weight", "own.bias": "fc_self.bias", "neighbours.weight": "fc_neigh.weight"},
    "pyg": {"own.weight": "lin_r.weight", "own.bias": "lin_l.bias", "neighbours.weight": "lin_l.weight"},
}
GAT_NAMES = {
    "dgl": {
        "weight": "fc.weight",
        "source_attention": "attn_l",
        "destination_attention": "attn_r",
        "bias": "res_fc.bias",
        "residual.weight": "res_fc.weight",
    },
    "pyg": {
        "weight": "lin.weight",
        "source_attention": "att_src",
        "destination_attention": "att_dst",
        "bias": "bias",
        "residual.weight": "res.weight",
    },
}
DGL_LAYERS = {
    "sage": (lambda: SAGELayer(IN, OUT), lambda: dgl_nn.SAGEConv(IN, OUT, "mean"), SAGE_NAMES["dgl"]),
    "gat": (
        lambda: GATLayer(IN, OUT, HEADS),
        lambda: dgl_nn.GATConv(IN, OUT, HEADS, allow_zero_in_degree=True),
        {"weight": "fc.weight", "source_attention": "attn_l", "destination_attention": "attn_r", "bias": "bias"},
    ),
    "gat-residual": (
        lambda: GATLayer(IN, OUT, HEADS, residual=True),
        lambda: dgl_nn.GATConv(IN, OUT, HEADS, residual=True, allow_zero_in_degree=True),
        GAT_NAMES["dgl"],
    ),
    "gcn": (
        lambda: GCNLayer(IN, OUT),
        lambda: dgl_nn.GraphConv(IN, OUT, norm="both"),
        {"weight": "weight", "bias": "bias"},
    ),
}
PYG_LAYERS = {
    "sage": (lambda: SAGELayer(IN, OUT), lambda: pyg_nn.SAGEConv(IN, OUT), SAGE_NAMES["pyg"]),
    "gat-residual": (
        lambda: GATLayer(IN, OUT, HEADS, residual=True),
        lambda: pyg_nn.GATConv(IN, OUT, HEADS, residual=True, add_self_loops=False),
        GAT_NAMES["pyg"],
    ),
    "gat-mean-residual": (
        lambda: GATLayer(IN, OUT, HEADS, concat=False, residual=True),
        lambda: pyg_nn.GATConv(IN, OUT, HEADS, concat=False, residual=True, add_self_loops=False),
        GAT_NAMES["pyg"],
    ),
}


@needs_dgl
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", DGL_LAYERS)
def test_layers_equal_dgl(batch: MiniBatch, name: str, dtype: torch.dtype):
    ours, theirs, names = DGL_LAYERS[name]
    h, block, dgl_block = batch.x.to(dtype), batch.blocks[0], batch.to_dgl()[0]
    assert (block.in_degrees == 0).any()
    if name == "gcn":
        src, dst = (torch.cat([nodes, torch.arange(block.num_dst).int()]) for nodes in dgl_block.edges())
        dgl_block = dgl.create_block((src, dst), block.num_src, block.num_dst)
    pair = h if name == "gcn" else (h, h[: block.num_dst])
    assert_same(randomized(ours(), dtype), theirs(), names, lambda m: m(block, h), lambda m: m(dgl_block, pair), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", PYG_LAYERS)
def test_layers_equal_pyg(batch: MiniBatch, name: str, dtype: torch.dtype):
    ours, theirs, names = PYG_LAYERS[name]
    h, block = batch.x.to(dtype), batch.blocks[0]
    edge_index, size = batch.to_pyg_layers()[0]
    assert_same(
        randomized(ours(), dtype),
        theirs(),
        names,
        lambda m: m(block, h),
        lambda m: m((h, h[: size[1]]), edge_index, size=size),
        dtype,
    )


def test_gcn_equals_pyg_where_degrees_are_the_graphs(edges: Tensor, x: Tensor):
    """On a whole graph, both directions of every edge in it and no loop, a block's degrees are the nodes'."""
    both_ways = pyg_utils.to_undirected(pyg_utils.remove_self_loops(edges)[0])
    ours, theirs = randomized(GCNLayer(IN, OUT)), pyg_nn.GCNConv(IN, OUT).double()
    theirs.load_state_dict({"lin.weight": ours.weight, "bias": ours.bias})
    torch.testing.assert_close(ours(whole_block(both_ways), x), theirs(x, both_ways))


@needs_dgl
def test_dgl_blocks_have_the_structure_that_dgl_sampled(edges: Tensor, x: Tensor):
    dgl.seed(0)
    seeds = torch.arange(10, 40)
    graph = dgl.graph((edges[0], edges[1]), num_nodes=NUM_NODES)
    input_nodes, _, sampled = dgl.dataloading.NeighborSampler([5, 4, 3]).sample(graph, seeds)
    blocks = []
    for block in sampled:
        indptr, indices, _ = block.adj_tensors("csc")
        blocks.append(Block(indptr.int(), indices.int(), block.num_src_nodes()))
    converted = MiniBatch(x[input_nodes], seeds % 4, tuple(blocks), seeds, 0, 0, input_nodes).to_dgl()
    assert len(converted) == len(sampled)
    for block, original in zip(converted, sampled, strict=True):
        assert block.is_block
        assert block.idtype == torch.int32
        assert block.num_src_nodes() == original.num_src_nodes()
        assert block.num_dst_nodes() == original.num_dst_nodes()
        assert dgl.NID not in block.srcdata
        found, expected = (torch.stack(b.edges()).long() for b in (block, original))
        key = found[1] * NUM_NODES + found[0]
        assert torch.equal(key.sort().values, (expected[1] * NUM_NODES + expected[0]).sort().values)


def without_edges() -> MiniBatch:
    block = Block(torch.zeros(3, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), 4)
    return MiniBatch(torch.ones(4, IN), torch.zeros(2).long(), (block,), torch.arange(2), 0, 0)


@needs_dgl
def test_blocks_without_edges_convert_to_dgl():
    (block,) = without_edges().to_dgl()
    assert (block.num_src_nodes(), block.num_dst_nodes(), block.num_edges()) == (4, 2, 0)


def test_blocks_without_edges_convert_to_pyg():
    ((edge_index, size),) = without_edges().to_pyg_layers()
    assert (tuple(edge_index.shape), size) == ((2, 0), (4, 2))
    data = without_edges().to_pyg()
    assert (tuple(data.edge_index.shape), data.num_nodes, data.batch_size) == ((2, 0), 4, 2)
    assert "n_id" not in data


def test_pyg_data_keeps_each_nodes_first_draw(batch: MiniBatch):
    data = batch.to_pyg()
    data.validate()
    assert data.x is batch.x
    assert data.y is batch.y
    assert torch.equal(data.n_id, batch.input_nodes)
    assert torch.equal(data.n_id[: data.batch_size], data.seeds)
    assert torch.equal(data.input_id, data.seeds)
    assert data.edge_index.dtype == torch.int64
    assert data.num_nodes == sum(data.num_sampled_nodes)
    assert data.num_edges == sum(data.num_sampled_edges)
    edges = data.edge_index.t().tolist()
    for node in range(batch.blocks[0].num_dst):
        block = next(block for block in batch.blocks[::-1] if node < block.num_dst)
        expected = block.indices[block.indptr[node] : block.indptr[node + 1]].tolist()
        assert [source for source, destination in edges if destination == node] == expected
    assert max(destination for _, destination in edges) < batch.blocks[0].num_dst


def sage_logits(layers: nn.ModuleList, batch: MiniBatch) -> Tensor:
    h = batch.x
    for index, (layer, block) in enumerate(zip(layers, batch.blocks, strict=True)):
        h = layer(block, h)
        h = h.relu() if index < len(layers) - 1 else h
    return h


@pytest.fixture(scope="module")
def models() -> tuple[nn.ModuleList, nn.Module]:
    """Three SAGE layers of ours, and PyG's model with the same parameters."""
    widths = [(IN, 8), (8, 8), (8, 4)]
    ours = randomized(nn.ModuleList(SAGELayer(*pair) for pair in widths))
    theirs = pyg_nn.GraphSAGE(IN, 8, num_layers=3, out_channels=4).double()
    targets = dict(theirs.named_parameters())
    with torch.no_grad():
        for index, layer in enumerate(ours):
            for name, their_name in SAGE_NAMES["pyg"].items():
                targets[f"convs.{index}.{their_name}"].copy_(layer.get_parameter(name))
    return ours, theirs


def test_pyg_layers_give_the_blocks_logits(batch: MiniBatch, models: tuple[nn.ModuleList, nn.Module]):
    ours, theirs = models
    h = batch.x
    for index, (conv, (edge_index, size)) in enumerate(zip(theirs.convs, batch.to_pyg_layers(), strict=True)):
        h = conv((h, h[: size[1]]), edge_index)
        h = h.relu() if index < 2 else h
    torch.testing.assert_close(h, sage_logits(ours, batch))


def test_all_forms_give_the_full_graphs_logits(edges: Tensor, x: Tensor, models: tuple[nn.ModuleList, nn.Module]):
    """With all neighbours taken, blocks and PyG's subgraph both compute what PyG computes on the whole graph."""
    ours, theirs = models
    batch = draw(edges, x, [-1, -1, -1])
    data = batch.to_pyg()
    expected = theirs(x, edges)[batch.seeds]
    torch.testing.assert_close(sage_logits(ours, batch), expected)
    torch.testing.assert_close(theirs(data.x, data.edge_index)[: data.batch_size], expected)


def test_trimming_layers_keeps_the_logits(batch: MiniBatch, models: tuple[nn.ModuleList, nn.Module]):
    _, theirs = models
    data = batch.to_pyg()
    trimmed = theirs(
        data.x,
        data.edge_index,
        num_sampled_nodes_per_hop=data.num_sampled_nodes,
        num_sampled_edges_per_hop=data.num_sampled_edges,
    )
    torch.testing.assert_close(trimmed[: data.batch_size], theirs(data.x, data.edge_index)[: data.batch_size])


@pytest.mark.parametrize(
    ("module", "method", "message"),
    [
        ("dgl", "to_dgl", r"needs dgl.*pip install dgl"),
        ("torch_geometric", "to_pyg", r"needs torch-geometric.*pip install torch-geometric"),
    ],
)
def test_a_missing_library_is_named(batch: MiniBatch, monkeypatch, module: str, method: str, message: str):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=message):
        getattr(batch, method)()
