"""RelBench's training loops, shortened: losses and metrics with tables in memory and on disk, at three levels.

What the loops call, and in which order, is what gnn_entity.py and idgnn_recommendation.py call.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("torch_frame")
pytest.importorskip("relbench")

from pyg_samplers import NeighborsInTime
from relbench.modeling import graph as in_relbench
from relbench.modeling.graph import get_link_train_table_input, get_node_train_table_input
from relbench.modeling.loader import SparseTensor
from relbench.modeling.nn import HeteroEncoder, HeteroGraphSAGE, HeteroTemporalEncoder
from relbench_shop import Churn, Reviewed, Shop
from shop_columns import KINDS, Hashed
from torch_frame.config import TextEmbedderConfig
from torch_geometric.loader import NeighborLoader as PygLoader
from torch_geometric.nn import MLP
from torch_geometric.seed import seed_everything

from diskgnn import relbench


class Model(torch.nn.Module):
    """Encoders of columns and of time, two layers, and a head: as RelBench's examples put them together. Nothing is
    dropped at random, as nodes may come in another order."""

    def __init__(self, data, statistics, norm):
        super().__init__()
        names, edge_types = sorted(data.node_types), sorted(data.edge_types)
        self.encoder = HeteroEncoder(
            16, {name: data[name].tf.col_names_dict for name in names}, statistics,
            torch_frame_model_kwargs={"channels": 16, "num_layers": 1, "dropout_prob": 0.0},
        )  # fmt: skip
        self.times = HeteroTemporalEncoder([name for name in names if "time" in data[name]], 16)
        self.gnn = HeteroGraphSAGE(names, edge_types, 16, aggr="sum", num_layers=2)
        self.head = MLP(16, out_channels=1, norm=norm, num_layers=1)
        self.root = torch.nn.Embedding(1, 16)

    def forward(self, batch, entity, read=None):
        seed_time = batch[entity].seed_time
        x = self.encoder(batch.tf_dict)
        if read is not None:
            x[entity][: seed_time.size(0)] += self.root.weight
        for name, time in self.times(seed_time, batch.time_dict, batch.batch_dict).items():
            x[name] = x[name] + time
        if read is not None:
            return self.head(self.gnn(x, batch.edge_index_dict)[read])
        x = self.gnn(x, batch.edge_index_dict, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict)
        return self.head(x[entity][: seed_time.size(0)])


@pytest.fixture(scope="module")
def shop():
    return Shop(60, 25, 700)


LEVELS = ("loader", "graph", "folder")


def graph_at(level, shop, folder):
    """Returns (data, statistics, loader) of a level."""
    kinds, config = {name: dict(each) for name, each in KINDS.items()}, TextEmbedderConfig(Hashed(), batch_size=64)
    cache = {"cache_dir": folder / "graphs", "progress": False}
    if level in ("in memory", "loader"):
        data, statistics = in_relbench.make_pkey_fkey_graph(shop.get_db(), kinds, config)
    elif level == "graph":
        data, statistics = relbench.make_pkey_fkey_graph(shop.get_db(), kinds, config, **cache)
    else:
        Shop.get_db.__wrapped__(shop, upto_test_timestamp=False).save(folder / "db")
        data, statistics = relbench.make_pkey_fkey_graph(folder / "db", kinds, config, until=shop.test_timestamp,
                                                         **cache)  # fmt: skip

    def loader(subgraph_type="directional", **given):
        if level != "in memory":
            return relbench.NeighborLoader(data, [-1, -1], subgraph_type=subgraph_type, num_workers=2,
                                           persistent_workers=True, cache=folder / "packed", progress=False,
                                           **given)  # fmt: skip
        return PygLoader(data, [-1, -1], neighbor_sampler=NeighborsInTime(data, [-1, -1], subgraph_type), **given)

    return data, statistics, loader


def entity_loop(shop, graph):
    """As gnn_entity.py."""
    data, statistics, loader = graph
    task = Churn(shop)
    loaders = {}
    for split in ("train", "val", "test"):
        given = get_node_train_table_input(task.get_table(split), task)
        loaders[split] = loader(time_attr="time", input_nodes=given.nodes, input_time=given.time,
                                transform=given.transform, batch_size=96)  # fmt: skip
    seed_everything(0)
    model = Model(data, statistics, "batch_norm")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses, metrics = [], []

    @torch.no_grad()
    def predictions(split):
        model.eval()
        return torch.cat([torch.sigmoid(model(batch.to("cpu"), "customer")).view(-1) for batch in loaders[split]])

    for _ in range(2):
        model.train()
        for step, batch in enumerate(loaders["train"]):
            batch = batch.to("cpu")
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(batch, "customer").view(-1), batch["customer"].y.float())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step == 2:
                break
        metrics.append(task.evaluate(predictions("val").numpy(), task.get_table("val"))["roc_auc"])
    metrics.append(task.evaluate(predictions("test").numpy())["roc_auc"])
    return losses, metrics, predictions("val").numpy()


def recommendation_loop(shop, graph):
    """As idgnn_recommendation.py."""
    data, statistics, loader = graph
    task = Reviewed(shop)
    loaders, truth = {}, {}
    for split in ("train", "val"):
        given = get_link_train_table_input(task.get_table(split), task)
        truth[split] = given.dst_nodes
        loaders[split] = loader("bidirectional", time_attr="time", input_nodes=given.src_nodes,
                                input_time=given.src_time, batch_size=80)  # fmt: skip
    seed_everything(0)
    model = Model(data, statistics, "layer_norm")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    bought = SparseTensor(truth["train"][1])
    losses, metrics = [], []
    for _ in range(2):
        model.train()
        for batch in loaders["train"]:
            out = model(batch.to("cpu"), "customer", "product").flatten()
            size = batch["customer"].batch_size
            src_batch, dst_index = bought[batch["customer"].input_id]
            target = torch.isin(
                batch["product"].batch + size * batch["product"].n_id, src_batch + size * dst_index
            ).float()
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(out, target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        ranked = []
        for batch in loaders["val"]:
            with torch.no_grad():
                out = model(batch, "customer", "product").flatten()
            scores = torch.zeros(batch["customer"].batch_size, task.num_dst_nodes)
            scores[batch["product"].batch, batch["product"].n_id] = torch.sigmoid(out)
            ranked.append(torch.topk(scores, k=task.eval_k, dim=1)[1])
        metrics.append(task.evaluate(torch.cat(ranked).numpy(), task.get_table("val"))["link_prediction_map"])
    return losses, metrics, scores.numpy()


@pytest.fixture(scope="module", params=[entity_loop, recommendation_loop])
def beside(request, shop, tmp_path_factory):
    """A loop, and what it comes to in memory."""
    return request.param, request.param(shop, graph_at("in memory", shop, tmp_path_factory.mktemp("in-memory")))


@pytest.mark.parametrize("level", LEVELS)
def test_losses_and_metrics_are_those_in_memory(shop, beside, level, tmp_path):
    loop, (expected, of_expected, other_scores) = beside
    losses, metrics, scores = loop(shop, graph_at(level, shop, tmp_path))
    assert len({*np.round(expected, 4)}) > 4
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    np.testing.assert_allclose(scores, other_scores, atol=2e-3)
    np.testing.assert_allclose(metrics, of_expected, atol=0.02)  # two ranks may change places
