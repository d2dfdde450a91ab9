"""Graphs of one type each and relations of a type with itself, beside PyG's own loaders with all neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.loader
from pyg_samplers import AllNeighbors
from torch_geometric.data import Data, HeteroData

import diskgnn
import diskgnn.pyg
from diskgnn.errors import ConfigError

CITES, REVERSE, LIKES = ("paper", "cites", "paper"), ("paper", "rev_cites", "paper"), ("paper", "likes", "paper")


@pytest.fixture
def quiet(tmp_path):
    return {"cache": tmp_path / "cache", "progress": False}


def papers(*edge_types: Any) -> HeteroData:
    random = torch.Generator().manual_seed(5)
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.randn(40, 3, generator=random), torch.arange(40)
    for edge_type in edge_types:
        data[edge_type].edge_index = torch.randint(0, 40, (2, 90), generator=random)
        data[edge_type].edge_attr = torch.randn(90, 2, generator=random)
        data[edge_type].weight = torch.rand(90, generator=random) + 0.1
        data[edge_type].time = torch.randint(0, 50, (90,), generator=random)
    return data


def edges_of(batch: Data | HeteroData, edge_type: Any) -> list[Any]:
    """Everything that each edge carries, in an order that does not depend on that of the edges."""
    store, (source, destination) = batch[edge_type], (batch[edge_type[0]], batch[edge_type[2]])
    row, col = store.edge_index
    columns = [source.n_id[row], destination.n_id[col]]
    columns += [store[name] for name in ("e_id", "edge_attr", "weight", "time") if store.get(name) is not None]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def check_same(ours: HeteroData, theirs: HeteroData) -> None:
    """The same attributes, with the same nodes and edges."""
    assert type(ours) is type(theirs) is HeteroData
    assert ours.metadata() == theirs.metadata()
    for mine, expected in zip(ours.stores, theirs.stores, strict=True):
        assert set(mine.keys()) == set(expected.keys())
        for key in ("batch_size", "num_sampled_nodes", "num_sampled_edges"):
            assert mine.get(key) == expected.get(key)
        for key in ("input_id", "edge_label_index", "edge_label"):
            assert (mine.get(key) is None) == (expected.get(key) is None)
            assert expected.get(key) is None or torch.equal(mine[key], expected[key])
    for name in theirs.node_types:
        order, expected_order = ours[name].n_id.argsort(), theirs[name].n_id.argsort()
        for key in ("n_id", "x", "y"):
            assert torch.equal(ours[name][key][order], theirs[name][key][expected_order])
    for edge_type in theirs.edge_types:
        assert edges_of(ours, edge_type) == edges_of(theirs, edge_type)


SUBGRAPHS = ["directional", "bidirectional"]


@pytest.mark.parametrize("edge_types", [(CITES,), (CITES, LIKES), (CITES, REVERSE)], ids=len)
@pytest.mark.parametrize("subgraph_type", SUBGRAPHS)
def test_relations_of_a_type_with_itself(quiet, edge_types, subgraph_type):
    data = papers(*edge_types)
    for nodes in ("paper", ("paper", torch.arange(8, 20)), ("paper", torch.arange(40) % 3 == 0)):
        options = {"num_neighbors": [-1, -1], "input_nodes": nodes, "batch_size": 6}
        sampler = AllNeighbors(data, 2, subgraph_type=subgraph_type)
        ours = diskgnn.pyg.NeighborLoader(data, subgraph_type=subgraph_type, **options, **quiet)
        theirs = torch_geometric.loader.NeighborLoader(data, neighbor_sampler=sampler, **options)
        for batch, expected in zip(ours, theirs, strict=True):
            check_same(batch, expected)
        check_same(ours([1, 2]), theirs([1, 2]))


@pytest.mark.parametrize("edge_types", [(CITES,), (CITES, LIKES)], ids=len)
@pytest.mark.parametrize("subgraph_type", SUBGRAPHS)
def test_links_of_a_type_with_itself(quiet, edge_types, subgraph_type):
    data = papers(*edge_types)
    options = {"num_neighbors": [-1, -1], "edge_label_index": CITES, "batch_size": 10}
    sampler = AllNeighbors(data, 2, subgraph_type=subgraph_type)
    ours = diskgnn.pyg.LinkNeighborLoader(data, subgraph_type=subgraph_type, **options, **quiet)
    theirs = torch_geometric.loader.LinkNeighborLoader(data, neighbor_sampler=sampler, **options)
    for batch, expected in zip(ours, theirs, strict=True):
        check_same(batch, expected)


@pytest.mark.parametrize("subgraph_type", SUBGRAPHS)
@pytest.mark.parametrize("options", [{"weight_attr": "weight"}, {"time_attr": "time"}, {"disjoint": True}])
def test_draws_by_weights_and_times_with_one_type_of_each(quiet, subgraph_type, options):
    data = papers(CITES)
    if "time_attr" in options:
        options = options | {"input_time": torch.arange(40)}
    loader = diskgnn.pyg.NeighborLoader(
        data, {CITES: [3, 2]}, input_nodes="paper", batch_size=10, subgraph_type=subgraph_type, **options, **quiet
    )
    for batch in loader:
        store, n_id = batch[CITES], batch["paper"].n_id
        assert torch.equal(batch["paper"].x, data["paper"].x[n_id])
        if subgraph_type == "bidirectional":
            assert {"edge_attr", "time", "weight", "e_id"}.isdisjoint(store.keys())  # as in PyG's typed batches
            continue
        assert torch.equal(n_id[store.edge_index], data[CITES].edge_index[:, store.e_id])
        for name in ("edge_attr", "weight", "time"):
            assert torch.equal(store[name], data[CITES][name][store.e_id])
        if "input_time" in options:
            seeds = batch["paper"].batch[store.edge_index[1]]
            assert (store.time <= batch["paper"].seed_time[seeds]).all()


def test_a_graph_directory_of_one_named_type_each(quiet, tmp_path):
    data = papers(CITES)
    nodes = {"paper": {"features": data["paper"].x.numpy(), "labels": np.arange(40) % 3, "train": np.arange(7)}}
    edges = {"paper:cites:paper": {"edges": data[CITES].edge_index.numpy(), "train": np.array([[1, 2], [3, 4]])}}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": nodes, "edges": edges})
    for seeds in ("train", ("paper", "train")):
        (batch,) = diskgnn.pyg.NeighborLoader(tmp_path / "graph", [-1], input_nodes=seeds, batch_size=7, **quiet)
        assert isinstance(batch, HeteroData)
        assert batch["paper"].n_id[:7].tolist() == list(range(7))
        assert torch.equal(batch["paper"].x, data["paper"].x[batch["paper"].n_id])
    for pairs in ("train", (CITES, "train")):
        (batch,) = diskgnn.pyg.LinkNeighborLoader(
            tmp_path / "graph", [2], edge_label_index=pairs, batch_size=2, **quiet
        )
        found = batch["paper"].n_id[batch[CITES].edge_label_index]
        assert found.tolist() == [[1, 2], [3, 4]]


def test_a_split_of_several_types_says_which_one(quiet, tmp_path):
    data = papers(CITES, LIKES)
    nodes = {"paper": {"features": data["paper"].x.numpy()}, "author": {"num_nodes": 3}}
    edges = {"paper:cites:paper": {"edges": data[CITES].edge_index.numpy()}}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": nodes, "edges": edges})
    for seeds in ("train", ("film", "train")):
        with pytest.raises(ConfigError, match=r"input_nodes: expected \(type, 'train'\) with a type of 'paper', 'auth"):
            diskgnn.pyg.NeighborLoader(tmp_path / "graph", [2], input_nodes=seeds, **quiet)


@pytest.mark.parametrize("edge_types", [(CITES,), (CITES, LIKES)], ids=len)
def test_to_pyg_of_packed_minibatches_beside_pyg_s_loader(tmp_path, edge_types):
    """With all neighbours, and ids kept: the same nodes, edges, rows and seeds as PyG's loader has of a mask."""
    data = papers(*edge_types)
    mask = torch.arange(40) % 3 == 1
    train = mask.nonzero().flatten().numpy()
    nodes = {"features": data["paper"].x.numpy(), "labels": np.arange(40), "train": train}
    edges = {":".join(each): {"edges": data[each].edge_index.numpy(), "keep_ids": True} for each in edge_types}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": {"paper": nodes}, "edges": edges})
    diskgnn.prepare(
        tmp_path / "graph", tmp_path / "packed", fanouts=[-1, -1], batch_size=5, epochs=1, cpu_cache=0, shuffle=False,
        keep_input_nodes=True, edge_ids=True, expand_once=True,
    )  # fmt: skip
    theirs = torch_geometric.loader.NeighborLoader(
        data, [-1, -1], ("paper", mask), neighbor_sampler=AllNeighbors(data, 2), batch_size=5
    )
    with diskgnn.Loader(tmp_path / "packed", "train") as loader:
        for batch, expected in zip(loader, theirs, strict=True):
            found, size = batch.to_pyg(), expected["paper"].batch_size
            store = found if len(edge_types) == 1 else found["paper"]
            assert store.batch_size == size
            assert torch.equal(store.input_id, expected["paper"].input_id)
            assert torch.equal(store.y, expected["paper"].y[:size])
            assert store.num_sampled_nodes == expected["paper"].num_sampled_nodes
            assert store.n_id.sort().values.tolist() == expected["paper"].n_id.sort().values.tolist()
            assert torch.equal(store.x, data["paper"].x[store.n_id])
            for each in edge_types:
                edge_store = found if len(edge_types) == 1 else found[each]
                assert edge_store.num_sampled_edges == expected[each].num_sampled_edges
                assert edge_store.e_id.sort().values.tolist() == expected[each].e_id.sort().values.tolist()
                assert torch.equal(store.n_id[edge_store.edge_index], data[each].edge_index[:, edge_store.e_id])


def test_types_that_the_data_does_not_have_are_named(quiet, tmp_path):
    """In place of what PyG's own code raises, and before anything is prepared."""
    data, all_of = papers(CITES, LIKES), torch.arange(40)
    diskgnn.convert(tmp_path / "graph", source=data)
    numbers = {CITES: [2], LIKES: [2]}
    for given, message in (
        ({"input_nodes": ("papre", all_of)}, "input_nodes: the graph has no node type 'papre', .*did you mean 'paper'"),
        ({"input_nodes": all_of}, r"input_nodes: expected \(type, ids\), with a type of paper, .* found no type"),
        ({"input_nodes": None}, "input_nodes: expected .* found none"),
        ({"num_neighbors": {("paper", "cite", "paper"): [2], LIKES: [2]}},
         "num_neighbors: the graph has no edge type paper:cite:paper, only .*did you mean 'paper:cites:paper'"),
        ({"num_neighbors": {CITES: [2, 2]}},
         r"num_neighbors: expected a list for each edge type, found none for paper:likes:paper; \[0, 0\] draws none"),
    ):  # fmt: skip
        for source in (data, tmp_path / "graph"):
            arguments = {"num_neighbors": numbers, "input_nodes": ("paper", all_of), **given}
            with pytest.raises(ConfigError, match=message):
                diskgnn.pyg.NeighborLoader(source, **arguments, **quiet)
    with pytest.raises(ConfigError, match="edge_label_index: the graph has no edge type paper:cite:paper"):
        diskgnn.pyg.LinkNeighborLoader(
            data, numbers, edge_label_index=(("paper", "cite", "paper"), torch.zeros(2, 3, dtype=torch.int64)), **quiet
        )
    plain = Data(x=torch.ones(4, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(ConfigError, match="num_neighbors: expected one list, as the data has one type of edges"):
        diskgnn.pyg.NeighborLoader(plain, numbers, input_nodes=torch.arange(4), **quiet)
    assert not (tmp_path / "cache").exists()
