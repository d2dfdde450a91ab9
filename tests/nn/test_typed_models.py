"""Layers and models on typed blocks against PyG's, DGL's and what autograd computes."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typed_batches import (
    AT,
    CITES,
    CLASSES,
    EDGE_WIDTHS,
    HOSTS,
    NODES,
    WRITES,
    WRITTEN,
    TypedGraph,
    schema,
    seed_pairs,
)

from diskgnn.errors import ConfigError
from diskgnn.nn.model_output import model_input
from diskgnn.nn.model_spec import TYPED_MODELS, ModelSpec
from diskgnn.nn.typed_layers import HGTLayer, LayerTypes, RGATLayer, RGCNLayer
from diskgnn.nn.typed_models import layer_types, make_typed_model
from diskgnn.training.link_prediction import LinkPrediction
from diskgnn.training.model_check import made_up_minibatch
from diskgnn.training.named_models import model_for
from diskgnn.training.task import task_of

pytestmark = pytest.mark.usefixtures("one_thread")

os.environ.setdefault("DGLBACKEND", "pytorch")
pyg_nn = pytest.importorskip("torch_geometric.nn")
WIDTH, OUT, HEADS = 6, 8, 2
PAPERS = [3, 11, 0, 28, 39, 17]
PLAIN = LayerTypes(("paper", "author"), (CITES, WRITES, WRITTEN, HOSTS), (None,) * 4)


@pytest.fixture(scope="module")
def batch():
    return TypedGraph().draw({"paper": PAPERS, "author": [2, 9, 20]}, 1)


@pytest.fixture(scope="module")
def rows(batch):
    torch.manual_seed(0)
    return {name: torch.randn(n, WIDTH, dtype=torch.float64) for name, n in batch.node_counts[0].items()}


def randomized(layer: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.double()


def bipartite(batch, rows, types):
    """What PyG's layers take: (rows of sources, rows of destinations) and edge_index, for each edge type."""
    counts, (blocks,) = batch.node_counts[1], batch.blocks
    for edge_type in types.edges:
        source, _, destination = edge_type
        block = blocks[edge_type]
        edge_index = torch.stack([block.indices.long(), block.destinations.long()])
        yield edge_type, (rows[source], rows[destination][: counts[destination]]), edge_index, block.edge_x


def assert_same_with_gradients(layer, found, expected):
    """The same rows, and the same gradients of all parameters."""
    parameters = [p for p in layer.parameters() if p.requires_grad]
    gradients = []
    for rows in (found, expected):
        total = sum((rows[name] * torch.linspace(-1, 1, rows[name].numel(), dtype=torch.float64).view_as(rows[name])
                     ).sum() for name in found)  # fmt: skip
        gradients.append(torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True))
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_bases", [None, 2])
def test_rgcn_is_pygs_hetero_conv_of_sage(batch, rows, num_bases):
    layer = randomized(RGCNLayer(WIDTH, OUT, PLAIN, num_bases))
    counts = batch.node_counts[1]
    weights = layer.weight if num_bases is None else torch.einsum("rb,boi->roi", layer.mixture, layer.weight)
    expected = {name: own(rows[name][: counts[name]]) for own, name in zip(layer.own, PLAIN.destinations, strict=True)}
    for number, (edge_type, x, edge_index, _) in enumerate(bipartite(batch, rows, PLAIN)):
        conv = pyg_nn.SAGEConv((WIDTH, WIDTH), OUT, root_weight=False, bias=False).double()
        del conv.lin_l.weight
        conv.lin_l.weight = weights[number]
        expected[edge_type[2]] = expected[edge_type[2]] + conv(x, edge_index)
    assert_same_with_gradients(layer, layer(batch.blocks[0], rows, counts), expected)


@pytest.mark.parametrize("num_bases", [None, 3])
def test_rgcn_is_pygs_rgcn_conv_on_one_node_type(num_bases):
    """All edge types between papers: RGCNConv's own weight is that of the one node type."""
    torch.manual_seed(0)
    graph = TypedGraph()
    likes = ("paper", "likes", "paper")
    types = LayerTypes(("paper",), (CITES, likes), (None, None))
    block, other = (graph.draw({"paper": PAPERS}, 1, 2, seed).blocks[0][CITES] for seed in (0, 1))
    num_src = max(block.num_src, other.num_src)
    blocks = {CITES: block, likes: other}
    x = {"paper": torch.randn(num_src, WIDTH, dtype=torch.float64)}
    layer = randomized(RGCNLayer(WIDTH, OUT, types, num_bases))
    conv = pyg_nn.RGCNConv((WIDTH, WIDTH), OUT, 2, num_bases=num_bases).double()
    with torch.no_grad():
        conv.weight.copy_(layer.weight.transpose(1, 2))
        conv.root.copy_(layer.own[0].weight.T)
        conv.bias.copy_(layer.own[0].bias)
        if num_bases is not None:
            conv.comp.copy_(layer.mixture)
    edges = torch.cat([torch.stack([b.indices.long(), b.destinations.long()]) for b in blocks.values()], 1)
    kinds = torch.repeat_interleave(torch.arange(2), torch.tensor([b.num_edges for b in blocks.values()]))
    expected = conv((x["paper"], x["paper"][: len(PAPERS)]), edges, kinds)
    found = layer(blocks, x, {"paper": len(PAPERS)})["paper"]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("with_edges", [True, False])
def test_rgat_is_pygs_hetero_conv_of_gat(batch, rows, concat, with_edges):
    widths = tuple(EDGE_WIDTHS[edge_type] if with_edges else None for edge_type in PLAIN.edges)
    types = LayerTypes(PLAIN.destinations, PLAIN.edges, widths)
    layer = randomized(RGATLayer(WIDTH, OUT, HEADS, types, concat=concat))
    counts = batch.node_counts[1]
    expected = {name: own(rows[name][: counts[name]]) for own, name in zip(layer.own, types.destinations, strict=True)}
    for number, (edge_type, x, edge_index, edge_x) in enumerate(bipartite(batch, rows, types)):
        width = widths[number]
        conv = pyg_nn.GATConv((WIDTH, WIDTH), OUT, HEADS, concat=concat, add_self_loops=False, bias=False,
                              edge_dim=width).double()  # fmt: skip
        # GATConv scores a destination by a . (W x); ours by one vector, which is W^T a.
        parameters = {"lin_src.weight": layer.weight[number], "att_src": layer.source_attention[number][None],
                      "lin_dst.weight": _block_diagonal(layer.destination_attention[number], OUT),
                      "att_dst": torch.ones(1, HEADS, OUT, dtype=torch.float64) / OUT}  # fmt: skip
        if width is not None:
            parameters["lin_edge.weight"] = layer.edge[number].weight.repeat_interleave(OUT, 0)
            parameters["att_edge"] = torch.ones(1, HEADS, OUT, dtype=torch.float64) / OUT
        found = torch.func.functional_call(conv, parameters, (x, edge_index, edge_x if width else None))
        expected[edge_type[2]] = expected[edge_type[2]] + found
    assert_same_with_gradients(layer, layer(batch.blocks[0], rows, counts), expected)


def _block_diagonal(vectors: torch.Tensor, repeats: int) -> torch.Tensor:
    """[heads * repeats, W] of [heads, W]."""
    return vectors.repeat_interleave(repeats, 0)


def test_hgt_is_pygs(batch, rows):
    """On the sampled block, whose destinations are among the sources: PyG computes rows of all nodes, ours of these."""
    types = LayerTypes(("paper", "author", "place"), tuple(EDGE_WIDTHS), (None,) * 5)
    graph = TypedGraph().draw({name: list(range(n)) for name, n in NODES.items()}, 1)  # every node, all edges
    x = {name: torch.randn(n, WIDTH, dtype=torch.float64) for name, n in NODES.items()}
    layer = randomized(HGTLayer(WIDTH, HEADS, types, list(NODES)))
    conv = pyg_nn.HGTConv(WIDTH, WIDTH, (list(NODES), list(types.edges)), HEADS).double()
    with torch.no_grad():
        for number, name in enumerate(NODES):
            parts = [layer.key[number], layer.query[number], layer.value[number]]
            conv.kqv_lin.lins[name].weight.copy_(torch.cat([part.weight for part in parts]))
            conv.kqv_lin.lins[name].bias.copy_(torch.cat([part.bias for part in parts]))
            conv.out_lin.lins[name].weight.copy_(layer.out[number].weight)
            conv.out_lin.lins[name].bias.copy_(layer.out[number].bias)
            conv.skip[name].copy_(layer.skip[number])
        numbers = {edge_type: number for number, edge_type in enumerate(types.edges)}
        for edge_type, number in conv.edge_types_map.items():
            for head in range(HEADS):
                place = number + len(types.edges) * head
                conv.k_rel.weight[place].copy_(layer.attention_weight[numbers[edge_type], head])
                conv.v_rel.weight[place].copy_(layer.message_weight[numbers[edge_type], head])
            conv.p_rel["__".join(edge_type)].copy_(layer.prior[numbers[edge_type]][None])
    (blocks,) = graph.blocks
    edges = {edge_type: torch.stack([b.indices.long(), b.destinations.long()]) for edge_type, b in blocks.items()}
    expected = conv(x, edges)
    found = layer(blocks, x, graph.node_counts[1])
    for name in NODES:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-9)


def test_layers_are_dgls(batch, rows):
    """DGL's HeteroGraphConv of GraphConv(norm='right') sums means over each edge type, as R-GCN's neighbours do."""
    dgl = pytest.importorskip("dgl")
    from dgl import nn as dgl_nn

    layer = randomized(RGCNLayer(WIDTH, OUT, PLAIN))
    (blocks,), counts = batch.blocks, batch.node_counts[1]
    theirs = dgl.create_block(
        {edge_type: ("csc", (blocks[edge_type].indptr, blocks[edge_type].indices,
                             torch.arange(blocks[edge_type].num_edges, dtype=torch.int32)))
         for edge_type in PLAIN.edges},
        num_src_nodes=dict(batch.node_counts[0]), num_dst_nodes=dict(counts),
    )  # fmt: skip
    convs = {}
    for number, edge_type in enumerate(PLAIN.edges):
        conv = dgl_nn.GraphConv(WIDTH, OUT, norm="right", bias=False, allow_zero_in_degree=True).double()
        conv.weight.data = layer.weight[number].T.clone()
        convs[edge_type[1]] = conv
    summed = dgl_nn.HeteroGraphConv(convs, aggregate="sum")(
        theirs, (rows, {name: rows[name][: counts[name]] for name in rows})
    )
    found = layer(blocks, rows, counts)
    for own, name in zip(layer.own, PLAIN.destinations, strict=True):
        torch.testing.assert_close(found[name], summed[name] + own(rows[name][: counts[name]]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_layer_gradients(batch, rows, name):
    types = LayerTypes(("paper", "author"), tuple(EDGE_WIDTHS)[:3], (2, None, None))
    layer = randomized({
        "rgcn": lambda: RGCNLayer(WIDTH, 2, types, 2),
        "rgat": lambda: RGATLayer(WIDTH, 2, 2, types),
        "hgt": lambda: HGTLayer(WIDTH, 2, types, ["paper", "author"]),
    }[name]())  # fmt: skip
    inputs = [rows["paper"][:, :WIDTH].clone().requires_grad_(), rows["author"].clone().requires_grad_()]

    def call(papers, authors):
        found = layer(batch.blocks[0], {"paper": papers, "author": authors}, batch.node_counts[1])
        return found["paper"], found["author"]

    assert torch.autograd.gradcheck(call, inputs, atol=1e-6)


def test_edge_features_are_a_part_of_what_a_neighbour_brings(batch, rows):
    """R-GCN with edge features is R-GCN over neighbours' rows with the edges' features beside them."""
    types = LayerTypes(("paper",), (CITES,), (2,))
    layer = randomized(RGCNLayer(WIDTH, OUT, types))
    block, counts = batch.blocks[0][CITES], batch.node_counts[1]
    found = layer(batch.blocks[0], rows, counts)["paper"]
    brought = torch.cat([rows["paper"][block.indices], block.edge_x], 1)
    weight = torch.cat([layer.weight[0], layer.edge[0].weight], 1)
    for i in range(block.num_dst):
        mine = brought[block.indptr[i] : block.indptr[i + 1]]
        mean = mine.mean(0) if len(mine) else torch.zeros(WIDTH + 2, dtype=torch.float64)
        torch.testing.assert_close(found[i], layer.own[0](rows["paper"][i]) + F.linear(mean, weight))


# Models


def test_layers_compute_nothing_that_nobody_uses():
    outer, inner = layer_types(schema(), 2)
    assert (inner.destinations, inner.edges) == (("paper",), (CITES, WRITES))
    assert inner.edge_features == (2, None)
    assert (outer.destinations, outer.edges) == (("paper", "author"), (CITES, WRITES, WRITTEN, HOSTS))
    (links,) = layer_types(schema(AT, "link", 1), 1)
    assert (links.destinations, links.edges) == (("author", "place"), (WRITTEN, AT, HOSTS))


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_models_learn_with_every_parameter(name):
    """A model overfits a minibatch; every parameter and every embedding that it has takes part."""
    torch.manual_seed(0)
    graph = TypedGraph(dtype=torch.float32)
    batch = graph.draw({"paper": list(range(20))}, 2)
    task = task_of(schema())
    net = model_for(ModelSpec(name, 16, 2, heads=2, dropout=0.0, num_bases=3), schema(), task)
    tables = [m.weight for m in net.modules() if isinstance(m, nn.Embedding)]
    assert [tuple(table.shape) for table in tables] == [(NODES["place"], 16)]
    optimizer = torch.optim.Adam([p for p in net.parameters() if p is not tables[0]], lr=0.02)
    sparse = torch.optim.SparseAdam(tables, lr=0.02)
    for _ in range(150):
        loss = task.loss(task.outputs(net, batch), batch)
        optimizer.zero_grad()
        sparse.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in net.parameters())
        optimizer.step()
        sparse.step()
    assert loss.item() < 0.3  # guessing costs 1.1


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_links_between_types(name):
    torch.manual_seed(0)
    seeds, pairs = seed_pairs()
    batch = TypedGraph(dtype=torch.float32).draw(seeds, 2, target=WRITES, pairs=pairs)
    found = schema(WRITES, "link", 1)
    task = LinkPrediction(WRITES)
    net = model_for(ModelSpec(name, 16, 2, heads=2, decoder="mlp"), found, task).eval()
    vectors = net(batch.blocks, model_input(batch))
    assert {name: tuple(rows.shape) for name, rows in vectors.items()} == {"paper": (10, 16), "author": (8, 16)}
    outputs = task.outputs(net, batch)
    expected = net.decoder(vectors["author"][pairs.src], vectors["paper"][pairs.dst])
    torch.testing.assert_close(torch.cat([outputs.edges, outputs.negatives.flatten()]), expected)


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_seeds_without_any_edge(name):
    """A minibatch that has no edge, and types of which it has no node."""
    graph = TypedGraph(dtype=torch.float32)
    batch = graph.draw({"paper": [0, 1]}, 2, fanout=0)
    net = model_for(ModelSpec(name, 8, 2, heads=2), schema(), task_of(schema()))
    loss = F.cross_entropy(net(batch.blocks, model_input(batch))["paper"], batch.y)
    loss.backward()
    assert torch.isfinite(loss)


@pytest.mark.parametrize("target", ["paper", "author", WRITES, AT])
def test_made_up_minibatches_fit(target):
    kind = "class" if isinstance(target, str) else "link"
    found = schema(target, kind, CLASSES if kind == "class" else 1)
    batch = made_up_minibatch(found, 2, torch.float32)
    for layer, before, after in zip(batch.blocks, batch.node_counts, batch.node_counts[1:], strict=False):
        for (source, _, destination), block in layer.items():
            assert (block.num_src, block.num_dst) == (before[source], after[destination])
    task = task_of(found)
    net = model_for(ModelSpec("rgcn", 8, 2), found, task)
    assert task.accepts(task.outputs(net, batch), 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "sage"}, "expected one of rgcn, rgat, hgt, relational for a graph with several types"),
        ({"name": "hgt", "hidden": 9}, "multiple of heads=4, found 9"),
        ({"num_layers": 3}, "3 layers, .* 2 fanouts"),
        ({"embedding_memory": 1000}, "6 nodes without features .place. take 24.0 KiB in training, and may take 1000 B"),
        ({"decoder": "transe"}, "decoder: expected one of dot, distmult, mlp, found 'transe'"),
        ({"num_bases": 0}, "num_bases: .*found 0"),
    ],
)
def test_what_no_model_can_be(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_typed_model(ModelSpec(**spec).fitted(schema(), 2), schema(), CLASSES)


def test_vectors_on_disk_are_refused_where_all_nodes_have_features():
    featured = replace(
        schema(), node_types=tuple((name, count, width or 4) for name, count, width in schema().node_types)
    )
    with pytest.raises(ConfigError, match="embeddings: only for vectors of nodes without features, found 'disk'"):
        ModelSpec(embeddings="disk").fitted(featured, 2)
    assert ModelSpec(embeddings="disk").fitted(schema(), 2).embeddings == "disk"


def test_a_model_of_another_graph_says_what_is_missing():
    net = make_typed_model(ModelSpec("rgcn", 8, 2), schema(), CLASSES)
    batch = TypedGraph(dtype=torch.float32).draw({"paper": PAPERS}, 2)
    x = model_input(batch)
    with pytest.raises(ConfigError, match="model has 2 layers, minibatch has 1 block;"):
        net(batch.blocks[:1], x)
    with pytest.raises(ConfigError, match=r"does not have: \['author'\]"):
        net(batch.blocks, {name: rows for name, rows in x.items() if name != "author"})
    with pytest.raises(ConfigError, match="paper nodes with 5 features, minibatch has 4"):
        net(batch.blocks, {**x, "paper": x["paper"][:, :4]})


def test_models_of_typed_blocks_compute_in_half_precision():
    batch = TypedGraph(dtype=torch.float32).draw({"paper": PAPERS}, 2)
    for name in TYPED_MODELS:
        torch.manual_seed(0)
        net = make_typed_model(ModelSpec(name, 16, 2, dropout=0.0), schema(), CLASSES)
        full = net(batch.blocks, model_input(batch))["paper"]
        with torch.autocast("cpu", torch.bfloat16):
            half = net(batch.blocks, model_input(batch))["paper"]
            half.float().sum().backward()
        np.testing.assert_allclose(half.detach().float(), full.detach(), atol=0.1)
