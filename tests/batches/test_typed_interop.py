"""Typed minibatches in PyG's and DGL's forms: structure by hand, outputs by their models."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import nn
from typed_batches import CITES, NODES, WRITES, TypedGraph, seed_pairs

from diskgnn.batches.blocks import Pairs
from diskgnn.batches.minibatch import MiniBatch, TypedMiniBatch

os.environ.setdefault("DGLBACKEND", "pytorch")
pyg_data = pytest.importorskip("torch_geometric.data")
pyg_nn = pytest.importorskip("torch_geometric.nn")
PAPERS = [3, 11, 0, 28, 39, 17]


@pytest.fixture(scope="module")
def batch() -> TypedMiniBatch:
    return TypedGraph().draw({"paper": PAPERS}, 3, fanout=2)


def test_hetero_data_keeps_each_nodes_first_draw(batch: TypedMiniBatch):
    data = batch.to_pyg()
    data.validate()
    assert data.metadata() == (list(NODES), list(batch.blocks[0]))
    assert set(data.x_dict) == {"paper", "author"}
    assert data["place"].num_nodes == batch.node_counts[0]["place"]
    for name in NODES:
        assert torch.equal(data[name].n_id, batch.input_nodes[name])
        assert sum(data.num_sampled_nodes_dict[name]) == data[name].num_nodes
    for edge_type, numbers in data.num_sampled_edges_dict.items():
        assert sum(numbers) == data[edge_type].num_edges
    assert (data["paper"].batch_size, data["paper"].y is batch.y) == (6, True)
    assert torch.equal(data["paper"].n_id[:6], data["paper"].seeds)
    assert torch.equal(data["paper"].input_id, data["paper"].seeds)
    for edge_type in batch.blocks[0]:
        edges = data[edge_type].edge_index.t().tolist()
        for node in range(batch.blocks[0][edge_type].num_dst):
            block = next(layer[edge_type] for layer in batch.blocks[::-1] if node < layer[edge_type].num_dst)
            drawn = slice(int(block.indptr[node]), int(block.indptr[node + 1]))
            mine = [i for i, (_, destination) in enumerate(edges) if destination == node]
            assert [edges[i][0] for i in mine] == block.indices[drawn].tolist()
            assert torch.equal(data[edge_type].e_id[mine], block.edge_ids[drawn])
            if edge_type == CITES:
                assert torch.equal(data[edge_type].edge_attr[mine], block.edge_x[drawn])


def test_hetero_data_is_a_part_of_the_graph(batch: TypedMiniBatch):
    """Edge ids lead to the same edges, and to their features."""
    graph, data = TypedGraph(), batch.to_pyg()
    for edge_type in batch.blocks[0]:
        store, (source, _, destination) = data[edge_type], edge_type
        ends = torch.stack([data[source].n_id[store.edge_index[0]], data[destination].n_id[store.edge_index[1]]])
        assert torch.equal(ends, graph.edges[edge_type][:, store.e_id])
    assert torch.equal(data[CITES].edge_attr, graph.edge_x[CITES][data[CITES].e_id])


class HeteroSAGE(nn.Module):
    """A model of PyG's; places get rows of their own numbers."""

    def __init__(self, layers: int, edge_types) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = {"paper": 5, "author": 3, "place": 1}
        self.convs = nn.ModuleList()
        for _ in range(layers):
            self.convs.append(pyg_nn.HeteroConv({
                edge_type: pyg_nn.SAGEConv((widths[edge_type[0]], widths[edge_type[2]]), 4) for edge_type in edge_types
            }, aggr="sum").double())  # fmt: skip
            widths = dict.fromkeys(widths, 4)

    def forward(self, x, edge_index, nodes=None, edges=None):
        for number, conv in enumerate(self.convs):
            if nodes is not None:
                x, edge_index, _ = _trim()(number, nodes, edges, x, edge_index)
            x = {name: rows.relu() for name, rows in conv(x, edge_index).items()}
        return x


def _trim():
    from torch_geometric.utils import trim_to_layer

    return trim_to_layer


def with_places(x: dict, n_id: torch.Tensor) -> dict:
    return {**x, "place": n_id[:, None].double()}


def test_all_forms_give_the_whole_graphs_outputs():
    """With all neighbours taken, PyG's subgraph and its layers compute what PyG computes on the whole graph."""
    graph = TypedGraph()
    batch = graph.draw({"paper": PAPERS}, 3)
    data, net = batch.to_pyg(), HeteroSAGE(3, graph.edges)
    expected = net(with_places(graph.x, torch.arange(NODES["place"])), graph.edges)["paper"][PAPERS]
    x = with_places(data.x_dict, data["place"].n_id)
    found = net(x, data.edge_index_dict)
    torch.testing.assert_close(found["paper"][: data["paper"].batch_size], expected)
    trimmed = net(x, data.edge_index_dict, data.num_sampled_nodes_dict, data.num_sampled_edges_dict)
    torch.testing.assert_close(trimmed["paper"][: data["paper"].batch_size], expected)
    h = x
    for conv, (edge_index, sizes) in zip(net.convs, batch.to_pyg_layers(), strict=True):
        h = conv({(s, r, d): (h[s], h[d][: sizes[d][1]]) for s, r, d in edge_index}, edge_index)
        h = {name: rows.relu() for name, rows in h.items()}
    torch.testing.assert_close(h["paper"], expected)


def test_trimming_layers_keeps_the_outputs(batch: TypedMiniBatch):
    data, net = batch.to_pyg(), HeteroSAGE(3, batch.blocks[0])
    x = with_places(data.x_dict, data["place"].n_id)
    expected = net(x, data.edge_index_dict)["paper"][:6]
    trimmed = net(x, data.edge_index_dict, data.num_sampled_nodes_dict, data.num_sampled_edges_dict)
    torch.testing.assert_close(trimmed["paper"][:6], expected)


def test_links_come_as_from_pygs_link_loader():
    graph, (seeds, pairs) = TypedGraph(), seed_pairs()
    batch = graph.draw(seeds, 2, target=WRITES, pairs=pairs)
    data = batch.to_pyg()
    assert data[WRITES].edge_label.tolist() == pairs.label.tolist()
    ends = data[WRITES].edge_label_index
    authors, papers = data["author"].n_id[ends[0]], data["paper"].n_id[ends[1]]
    assert authors.tolist() == [seeds["author"][i] for i in pairs.src]
    assert papers.tolist() == [seeds["paper"][i] for i in pairs.dst]
    assert {"y", "input_id"}.isdisjoint(data["paper"].keys())


def test_trees_are_pygs_batch_vector(batch: TypedMiniBatch):
    trees = {name: torch.arange(number) % 6 for name, number in batch.node_counts[0].items()}
    data = replace(batch, trees=trees, input_nodes=None).to_pyg()
    assert all(torch.equal(data[name].batch, trees[name]) for name in NODES)
    assert "n_id" not in data["paper"]


def test_one_type_has_its_pairs_edges_and_trees():
    drawn = TypedGraph().draw({"paper": PAPERS}, 2)
    blocks = tuple(layer[CITES] for layer in drawn.blocks)
    x, pairs = torch.randn(blocks[0].num_src, 2), Pairs(*torch.tensor([[0, 1], [2, 3]]), torch.tensor([1.0, 0.0]))
    trees = torch.zeros(len(x))
    data = MiniBatch(x, pairs.label, blocks, drawn.seeds, 0, 0, pairs=pairs, trees=trees).to_pyg()
    assert data.edge_label_index.tolist() == [[0, 1], [2, 3]]
    assert data.edge_label.tolist() == [1.0, 0.0]
    assert {"y", "input_id"}.isdisjoint(data.keys())
    assert (len(data.e_id), tuple(data.edge_attr.shape)) == (data.num_edges, (data.num_edges, 2))
    assert data.batch is trees


def test_dgl_blocks_have_all_types(batch: TypedMiniBatch):
    dgl = pytest.importorskip("dgl")
    converted = batch.to_dgl()
    for block, layer, before, after in zip(
        converted, batch.blocks, batch.node_counts, batch.node_counts[1:], strict=False
    ):
        assert block.is_block
        assert {name: block.num_src_nodes(name) for name in NODES} == before
        assert {name: block.num_dst_nodes(name) for name in NODES} == after
        assert set(block.canonical_etypes) == set(layer)
        for edge_type, ours in layer.items():
            sources, destinations = block.edges(etype=edge_type, order="eid")
            assert torch.equal(sources, ours.indices)
            assert torch.equal(destinations, ours.destinations)
    assert dgl.NID not in converted[0].srcnodes["paper"].data
