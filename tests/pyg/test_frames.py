"""TensorFrames as RelBench has them in PyG's data, read from disk: batches beside PyG's own."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("torch_frame")
pytest.importorskip("relbench")

from frames_beside import assert_same_batch, assert_same_frame
from pyg_samplers import NeighborsInTime
from relbench.modeling.graph import get_link_train_table_input, get_node_train_table_input, make_pkey_fkey_graph
from relbench_shop import Churn, Reviewed, Shop
from shop_columns import KINDS, Hashed
from torch_frame import TensorFrame, stype
from torch_frame.config import TextEmbedderConfig
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader as PygLinkLoader
from torch_geometric.loader import NeighborLoader as PygLoader

from diskgnn import pyg, relbench
from diskgnn.errors import DataWarning


@pytest.fixture(scope="module")
def shop():
    return Shop(60, 25, 700)  # large enough that an epoch is worth several windows


@pytest.fixture(scope="module")
def in_memory(shop):
    """What RelBench makes of the shop."""
    kinds = {name: dict(columns) for name, columns in KINDS.items()}
    data, statistics = make_pkey_fkey_graph(shop.get_db(), kinds, TextEmbedderConfig(Hashed(), batch_size=64))
    return data, statistics


@pytest.fixture
def options():
    return {"time_attr": "time", "batch_size": 32, "num_workers": 2, "persistent_workers": True}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    return {"cache": tmp_path_factory.mktemp("cache"), "progress": False}


@pytest.mark.parametrize("loader", [pyg.NeighborLoader, relbench.NeighborLoader])
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional"])
def test_batches_are_those_of_pyg(shop, in_memory, options, quiet, loader, subgraph_type):
    data, _ = in_memory
    given = get_node_train_table_input(Churn(shop).get_table("train"), Churn(shop))
    of_loader = {**options, "input_nodes": given.nodes, "input_time": given.time, "transform": given.transform,
                 "subgraph_type": subgraph_type}  # fmt: skip
    sampler = NeighborsInTime(data, [-1, -1], subgraph_type)
    expected = PygLoader(data, [-1, -1], neighbor_sampler=sampler, **{**of_loader, "num_workers": 0,
                                                                      "persistent_workers": False})  # fmt: skip
    found = loader(data, num_neighbors={key: [-1, -1] for key in data.edge_types}, **of_loader, **quiet)
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert_same_batch(one, other)


def test_the_newest_neighbours_are_those_of_a_temporal_sampler(shop, in_memory, options, quiet):
    data = copy.copy(in_memory[0])
    for name in ("gift", "product"):  # without times, of which none is the newest
        for edge_type in [each for each in data.edge_types if name in each[::2]]:
            del data[edge_type]
        del data[name]
    given = get_node_train_table_input(Churn(shop).get_table("val"), Churn(shop))
    of_loader = {**options, "input_nodes": given.nodes, "input_time": given.time, "num_workers": 0,
                 "persistent_workers": False}  # fmt: skip
    expected = PygLoader(data, [3, 2], neighbor_sampler=NeighborsInTime(data, [3, 2]), **of_loader)
    found = relbench.NeighborLoader(data, [3, 2], temporal_strategy="last", **of_loader, **quiet)
    for one, other in zip(found, expected, strict=True):
        assert_same_batch(one, other)


def test_seeds_come_again_at_other_times_and_are_known_by_their_row(shop, in_memory, options, quiet):
    data, task = in_memory[0], Reviewed(shop)
    given = get_link_train_table_input(task.get_table("train"), task)
    loader = relbench.NeighborLoader(data, [2], input_nodes=given.src_nodes, input_time=given.src_time, shuffle=True,
                                     **options, **quiet)  # fmt: skip
    rows = []
    for batch in loader:
        store = batch["customer"]
        rows += store.input_id.tolist()
        assert torch.equal(given.src_nodes[1][store.input_id], store.n_id[: store.batch_size])
        assert torch.equal(given.src_time[store.input_id], store.seed_time)
        assert torch.equal(batch["customer"].batch[: store.batch_size], torch.arange(store.batch_size))
    loader.close()
    assert sorted(rows) == list(range(len(given.src_nodes[1])))
    assert len({*given.src_nodes[1].tolist()}) < len(rows)


def test_a_loop_that_leaves_early_prepares_little_more_and_epochs_differ(shop, in_memory, options, quiet):
    data = in_memory[0]
    given = get_node_train_table_input(Churn(shop).get_table("train"), Churn(shop))
    loader = relbench.NeighborLoader(data, [2, 2], input_nodes=given.nodes, input_time=given.time, shuffle=True,
                                     **{**options, "batch_size": 8}, **quiet)  # fmt: skip
    windows = loader.prepare().batches._windows
    seen = []
    for _epoch in range(3):
        seen.append([])
        for number, batch in enumerate(loader):
            seen[-1].append((batch["customer"].input_id.tolist(), sorted(batch["review"].n_id.tolist())))
            if number == 6:
                break
    assert len(loader) > 60
    assert seen[0] != seen[1] != seen[2]
    assert windows.stats().prepared_batches < 3 * 7 + 25
    loader.close()
    assert len(list(loader)) == len(loader)  # an epoch to its end after that
    loader.close()


def test_what_was_prepared_is_known_again_and_a_changed_frame_is_noticed(shop, in_memory, options, quiet):
    data = copy.copy(in_memory[0])
    given = get_node_train_table_input(Churn(shop).get_table("val"), Churn(shop))

    def frames():
        loader = pyg.NeighborLoader(data, [3], input_nodes=given.nodes, input_time=given.time, **options, **quiet)
        return [batch["customer"].tf for batch in loader]

    before, made = frames(), {path.name for path in quiet["cache"].iterdir()}
    for one, other in zip(frames(), before, strict=True):
        assert_same_frame(one, other)
    assert {path.name for path in quiet["cache"].iterdir()} == made
    data["customer"].tf = copy.deepcopy(data["customer"].tf)
    data["customer"].tf.feat_dict[stype.numerical] += 1
    for one, other in zip(frames(), before, strict=True):
        ages = [frame.feat_dict[stype.numerical] for frame in (one, other)]
        torch.testing.assert_close(ages[0], ages[1] + 1, equal_nan=True)


def test_batches_that_are_asked_for_have_frames(shop, in_memory, options, quiet):
    data = in_memory[0]
    given = get_node_train_table_input(Churn(shop).get_table("val"), Churn(shop))
    loader = pyg.NeighborLoader(data, [-1], input_nodes=given.nodes, input_time=given.time, **options, **quiet)
    batch = loader([3, 5, 3])
    assert batch["customer"].n_id[:3].tolist() == given.nodes[1][[3, 5, 3]].tolist()
    for name in data.node_types:
        assert_same_frame(batch[name].tf, data[name].tf[batch[name].n_id])


def test_frames_that_stay_in_memory_are_named(in_memory, options, quiet):
    data = copy.copy(in_memory[0])
    data["product"].tf = copy.copy(data["product"].tf)
    data["product"].tf.y = torch.arange(data["product"].num_nodes)
    loader = pyg.NeighborLoader(data, [2], input_nodes="product", **options, **quiet, input_time=torch.full(
        (data["product"].num_nodes,), 2**40))  # fmt: skip
    with pytest.warns(DataWarning, match=r"tf of node type product, a TensorFrame, stays in memory .* as it has y"):
        batch = next(iter(loader))
    assert torch.equal(batch["product"].tf.y, batch["product"].n_id)


def test_codes_that_are_wider_than_those_on_the_disk_stay_in_memory(quiet):
    data = HeteroData()
    codes = torch.tensor([[2**31], [3], [-1]])
    data["p"].tf = TensorFrame({stype.categorical: codes}, {stype.categorical: ["c"]})
    data["p", "to", "p"].edge_index = torch.tensor([[0], [1]])
    with pytest.warns(DataWarning, match="stays in memory .* as columns of categorical have codes above 2147483646"):
        batch = next(iter(pyg.NeighborLoader(data, [1], input_nodes="p", batch_size=3, **quiet)))
    assert torch.equal(batch["p"].tf.feat_dict[stype.categorical], codes)


@pytest.mark.parametrize("neg_sampling", [None, "binary", {"mode": "triplet", "amount": 2}])
def test_links_have_the_times_that_pyg_gives_them(in_memory, options, quiet, neg_sampling):
    data, edge_type = in_memory[0], ("review", "f2p_customer_id", "customer")
    pairs = data[edge_type].edge_index[:, :80]
    given = {"edge_label_index": (edge_type, pairs), "edge_label_time": data["review"].time[pairs[0]] + 86400,
             "neg_sampling": neg_sampling, **options, "num_workers": 0, "persistent_workers": False}  # fmt: skip
    expected = PygLinkLoader(data, [-1, -1], neighbor_sampler=NeighborsInTime(data, [-1, -1]), **given)
    found = pyg.LinkNeighborLoader(data, [-1, -1], **given, **quiet)
    for one, other in zip(found, expected, strict=True):
        for kind in [*other.node_types, edge_type]:
            assert {*one[kind].keys()} == {*other[kind].keys()}, kind
            for name in ("input_id", "edge_label", "edge_label_time", "seed_time", "src_index", "dst_pos_index",
                         "dst_neg_index", "edge_label_index"):  # fmt: skip
                if name in other[kind]:
                    assert torch.equal(one[kind][name], other[kind][name]), (kind, name)
        if neg_sampling is None:  # other negatives are drawn
            assert_same_batch(one, other)
