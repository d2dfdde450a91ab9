"""Loops as PyG's own examples have them, the cache that they fill, and what is refused."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from enum import Enum

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import run_python
from pyg_graphs import BACK, FROM, one_type, two_types
from torch import nn
from torch_geometric.nn import SAGEConv, to_hetero
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.typing import TensorFrame

from diskgnn.errors import ConfigError, DataWarning
from diskgnn.pyg import LinkNeighborLoader, NeighborLoader


@pytest.fixture
def quiet(tmp_path):
    return {"cache": tmp_path / "cache", "progress": False, "batch_size": 16, "num_workers": 2,
            "persistent_workers": True}  # fmt: skip


def folders(quiet):
    return {path.name: path.stat().st_ino for path in quiet["cache"].iterdir()}  # mtime says when it was used


def test_training_and_layer_wise_inference_as_in_reddit_py(quiet):
    """Labels are the sign of the sum of the features of all in-neighbours: two layers learn them from any sample."""
    torch.manual_seed(0)
    data = one_type()
    sums = torch.zeros(120).index_add_(0, data.edge_index[1], data.x[data.edge_index[0]].sum(1))
    data.y = (sums > 0).long()
    loader = NeighborLoader(data, [10, 5], input_nodes=data.train_mask, shuffle=True, **quiet)
    subgraphs = NeighborLoader(copy.copy(data), input_nodes=None, num_neighbors=[-1], shuffle=False, **quiet)
    del subgraphs.data.x, subgraphs.data.y
    subgraphs.data.num_nodes = data.num_nodes
    subgraphs.data.n_id = torch.arange(data.num_nodes)
    convs = nn.ModuleList([SAGEConv(6, 16), SAGEConv(16, 2)])
    optimizer = torch.optim.Adam(convs.parameters(), lr=0.02)
    losses = []
    for _ in range(25):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            y_hat = convs[1](convs[0](batch.x, batch.edge_index).relu(), batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(y_hat, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += float(loss) * batch.batch_size
        losses.append(total)
    assert losses[-1] < losses[0] / 2
    with torch.no_grad():
        x = data.x
        for layer, conv in enumerate(convs):
            parts = []
            for batch in subgraphs:
                assert "x" not in batch
                h = conv(x[batch.n_id], batch.edge_index)
                parts.append((h.relu() if layer == 0 else h)[: batch.batch_size])
            x = torch.cat(parts)
        torch.testing.assert_close(x, convs[1](convs[0](data.x, data.edge_index).relu(), data.edge_index))


class Elsewhere(torch.Tensor):
    """Refuses what tensors on a GPU do, where there is none."""

    def numpy(self, **_):
        raise TypeError("can't convert a tensor of another device to numpy: use Tensor.cpu()")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def on_a_device(given):
    return given.cuda() if torch.cuda.is_available() else given.as_subclass(Elsewhere)


def test_seeds_on_a_device(quiet):
    """PyG takes them from wherever they are; those of two_types() have times below 100, so that these look odd."""
    times, pairs = torch.full((40,), 10**9), two_types()[FROM].edge_index[:, :40]
    with pytest.warns(DataWarning, match="those of .* around .*: they look like different units"):
        (batch,) = NeighborLoader(two_types(), [2], input_nodes=("user", on_a_device(torch.arange(40))),
                                  input_time=on_a_device(times), time_attr="time",
                                  **{**quiet, "batch_size": 40})  # fmt: skip
    assert batch["user"].seed_time.tolist() == times.tolist()
    with pytest.warns(DataWarning, match="those of .* around .*: they look like different units"):
        (batch,) = LinkNeighborLoader(two_types(), [2], edge_label_index=(FROM, pairs), time_attr="time",
                                      edge_label_time=on_a_device(times), **{**quiet, "batch_size": 40})  # fmt: skip
    assert batch[FROM].edge_label_time.tolist() == times.tolist()


def test_typed_links_in_time_as_in_temporal_link_pred_py(quiet):
    data = two_types()
    data["user"].x, data["item"].x = torch.eye(40), data["item"].x.float()
    del data["user"].num_nodes
    order = data[FROM].time.argsort()
    loader = LinkNeighborLoader(
        data, num_neighbors=[20, 10], time_attr="time", temporal_strategy="last", shuffle=True, **quiet,
        edge_label_index=(("user", "item"), data[FROM].edge_index[:, order[:200]]),
        edge_label=torch.arange(200) % 5, edge_label_time=data[FROM].time[order[:200]] - 1,
    )  # fmt: skip

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 8)

        def forward(self, x, edge_index):
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    encoder = to_hetero(Encoder(), data.metadata(), aggr="sum")
    batch = next(iter(loader))  # as examples do to set lazy parameters
    encoder(batch.x_dict, batch.edge_index_dict)
    for _ in range(2):
        num_pairs = 0
        for batch in loader:
            z = encoder(batch.x_dict, batch.edge_index_dict)
            row, col = batch["user", "item"].edge_label_index
            score = (z["user"][row] * z["item"][col]).sum(1)
            F.mse_loss(score, batch["user", "item"].edge_label.float()).backward()
            num_pairs += len(score)
        assert num_pairs == 200


def test_what_was_prepared_is_known_again_and_a_change_is_noticed(quiet):
    data = one_type()

    def batches(**options):
        loader = NeighborLoader(data, [3, 2], input_nodes=data.train_mask, **{**quiet, **options})
        return [batch.n_id.tolist() for batch in loader]

    first, made = batches(), folders(quiet)
    assert len(made) == 2
    assert (batches(), folders(quiet)) == (first, made)
    data.y += 1  # sliced in memory: nothing on disk depends on it
    assert (batches(), folders(quiet)) == (first, made)
    assert batches(seed=1) != first
    assert len(folders(quiet)) == 3  # the same graph
    data.x[7, 3] += 1
    assert batches() == first
    assert len(folders(quiet)) == 5


def test_the_last_smaller_batch_is_dropped_in_every_epoch(quiet):
    loader = NeighborLoader(one_type(), [2], input_nodes=torch.arange(40), drop_last=True, shuffle=True, **quiet)
    for _ in range(6):
        assert [batch.batch_size for batch in loader] == [16, 16]
    assert len(loader) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replace": True}, "replace: neighbours are drawn without replacement"),
        ({"subgraph_type": "induced"}, "'directional' and 'bidirectional' are"),
        ({"directed": False}, "'directional' and 'bidirectional' are"),
        ({"neighbor_sampler": object()}, "pass num_neighbors instead"),
        ({"sampler": [1, 2]}, "pass batch_size and shuffle"),
        ({"input_time": torch.arange(3)}, "input_time: expected time_attr, too"),
        ({"time_attr": "when", "input_time": torch.arange(3)}, "found 'when', which nothing has"),
        ({"weight_attr": "weight"}, "found 'weight', which nothing has"),
        ({"input_nodes": torch.tensor([1, 2, 1])}, "found 1 repeated ones; pass disjoint=True"),
        ({"temporal_strategy": "first", "disjoint": True}, "temporal: expected one of uniform, last"),
        ({"num_neighbors": []}, "fanouts"),
        ({"input_nodes": "train"}, "found 'train': splits are known by name of graph directories only"),
        ({"input_nodes": [], "shuffle": True}, "input_nodes: expected at least one"),
        ({"input_nodes": torch.zeros(120, dtype=torch.bool), "shuffle": True}, "input_nodes: expected at least one"),
        ({"time_attr": "time", "input_time": torch.arange(2)}, "input_time: expected 3, one for each"),
        ({"batch_size": 0}, "batch_size"),
    ],
)  # fmt: skip
def test_what_cannot_be_prepared_is_refused_with_the_way_round(quiet, options, message):
    arguments = {"num_neighbors": [3, 2], "input_nodes": torch.arange(3), **quiet, **options}
    with pytest.raises((ConfigError, ValueError), match=message):
        iter(NeighborLoader(one_type(), **arguments))
    if "cache" in quiet and quiet["cache"].exists():
        assert all(path.name.startswith("graph-") for path in quiet["cache"].iterdir())


def test_ids_that_no_node_has_are_refused(quiet):
    with pytest.raises(
        ConfigError, match=r"input_nodes: expected ids of the \d+ nodes of type 'node', found 0 to 99999"
    ):
        iter(NeighborLoader(one_type(), [2], input_nodes=torch.tensor([99999, 0]), **quiet))
    with pytest.raises(ConfigError, match=r"edge_label_index: expected ids of the .* found -1 to 1"):
        iter(LinkNeighborLoader(one_type(), [2], edge_label_index=torch.tensor([[0, 0], [1, -1]]), **quiet))


def test_pairs_that_may_draw_at_any_time_need_no_times_and_others_do(quiet):
    with pytest.raises(ConfigError, match="expected edge_label_time, too"):
        LinkNeighborLoader(two_types(), [2], edge_label_index=FROM, time_attr="time", **quiet)
    batch = next(iter(LinkNeighborLoader(two_types(), [2], edge_label_index=BACK, disjoint=True, **quiet)))
    assert batch[BACK].edge_label_index.shape == (2, 16)


@pytest.mark.parametrize("data", [None, np.ones((3, 2)), (1, 2, 3)])
def test_what_is_no_graph_is_refused(quiet, data):
    with pytest.raises(ConfigError, match=r"data: expected Data, HeteroData, .* found "):
        NeighborLoader(data, [2], **quiet)


def test_what_pyg_could_not_slice_is_refused_before_anything_is_made(quiet):
    pairs = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    with pytest.raises(ConfigError, match=r"edge_label: expected 4, .* found 3"):
        LinkNeighborLoader(one_type(), [2], edge_label_index=pairs, edge_label=torch.ones(3), **quiet)
    for attribute, length in (("word", 120), ("road", 900)):
        data = one_type()
        data[attribute] = ["a"] * length
        loader = NeighborLoader(data, [2], input_nodes=torch.arange(3), **quiet)
        with pytest.raises(ConfigError, match=f"found '{attribute}', a list of {length}: make it a tensor"):
            iter(loader)
    assert not quiet["cache"].exists()


def test_adjacency_that_batches_cannot_be_cut_from_is_refused_where_the_loader_is_made(quiet):
    for data, seeds in ((one_type(), None), (two_types(), "item")):
        for transform in (ToSparseTensor(attr=None), ToSparseTensor(attr=None, remove_edge_index=False)):
            with pytest.raises(ConfigError, match=r"found adj_t of torch.sparse_csr.* pass transform=T.ToSparseTensor"):
                NeighborLoader(transform(copy.copy(data)), [2], input_nodes=seeds, **quiet)
    assert not quiet["cache"].exists()


def test_batches_with_adjacency_by_a_transform(quiet):
    data = one_type()
    conv = SAGEConv(6, 4)
    options = {"num_neighbors": [3, 2], "input_nodes": data.train_mask, **quiet}
    sparse = NeighborLoader(data, transform=ToSparseTensor(attr=None), **options)
    for batch, other in zip(sparse, NeighborLoader(data, **options), strict=True):
        assert "edge_index" not in batch
        torch.testing.assert_close(conv(batch.x, batch.adj_t), conv(other.x, other.edge_index))


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_pickled_loader_says_what_to_send_instead(quiet, send):
    loader = NeighborLoader(one_type(), [2], **quiet)
    with pytest.raises(TypeError, match="cannot be pickled or copied: send its arguments, and make it"):
        send(loader)


class Stype(Enum):
    TOKENS = "text_tokenized"


class Frame(TensorFrame):
    """What PyG sees of a torch_frame.TensorFrame of tokens, with or without that package."""

    def __init__(self, columns: torch.Tensor) -> None:
        self.feat_dict, self.col_names_dict, self.y = {Stype.TOKENS: columns}, {Stype.TOKENS: ["words"]}, None

    def __len__(self) -> int:
        return len(self.feat_dict[Stype.TOKENS])

    num_rows, device = property(__len__), torch.device("cpu")

    def __getitem__(self, index: torch.Tensor) -> Frame:
        return Frame(self.feat_dict[Stype.TOKENS][index])


def test_what_stays_in_memory_is_told_with_its_size(quiet):
    data = two_types()
    data["user"].tf = Frame(torch.randn(40, 8))
    loader = NeighborLoader(data, [2], input_nodes="item", **quiet)
    with pytest.warns(
        DataWarning, match=r"tf of node type user, a Frame, stays in memory \(1\.2 KiB\), as columns .* width: PyG"
    ):
        batches = list(loader)
    for batch in batches:
        expected = data["user"].tf[batch["user"].n_id].feat_dict[Stype.TOKENS]
        assert torch.equal(batch["user"].tf.feat_dict[Stype.TOKENS], expected)
    plain = one_type()
    plain.x = plain.x.double()
    with pytest.warns(DataWarning, match=r"x of node type node, a Tensor of float64 \[120, 6\], stays in .*5\.6 KiB"):
        NeighborLoader(plain, [2], **quiet).prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)  # told once
        NeighborLoader(one_type(), [2], **quiet).prepare()
        ids = one_type()
        ids.x = torch.arange(120)  # of an embedding
        NeighborLoader(ids, [2], **quiet).prepare()


def test_lightning_s_trainer_takes_the_loaders(quiet, tmp_path):
    lightning = pytest.importorskip("pytorch_lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.conv, self.trained, self.validated = SAGEConv(6, 3), [], []

        def training_step(self, batch, _):
            self.trained += batch.input_id.tolist()
            y_hat = self.conv(batch.x, batch.edge_index)[: batch.batch_size]
            return F.cross_entropy(y_hat, batch.y[: batch.batch_size])

        def validation_step(self, batch, _):
            self.validated += batch.input_id.tolist()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    data, model = one_type(), Model()
    train = NeighborLoader(data, [3, 2], input_nodes=data.train_mask, shuffle=True, **quiet)
    valid = NeighborLoader(data, [3, 2], input_nodes=~data.train_mask, **quiet)
    lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=tmp_path,
    ).fit(model, train, valid)  # fmt: skip
    assert sorted(model.trained) == data.train_mask.nonzero().repeat(2, 1).flatten().sort().values.tolist()
    assert model.validated == (~data.train_mask).nonzero().flatten().tolist() * 2


CLOSING = """
import gc, sys, torch
from torch_geometric.data import Data
from diskgnn.pyg import NeighborLoader

def mebibytes():
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) / 1024

data = Data(x=torch.zeros(100_000, 128), edge_index=torch.randint(0, 100_000, (2, 1_000_000)))
loader = NeighborLoader(data, [10, 10], input_nodes=torch.arange(16_384), batch_size=1024, shuffle=True,
                        prepared_epochs=int(sys.argv[1]), cache=sys.argv[2], progress=False)
before = mebibytes()
for _ in range(2):
    for batch in loader:
        pass
del batch
looped = mebibytes()
loader.close()
print(before, looped, mebibytes())
next(iter(loader))  # goes on
loader.close()
"""


@pytest.mark.parametrize("prepared_epochs", [0, 1])
def test_closing_gives_memory_back(tmp_path, prepared_epochs):
    given = ["-c", CLOSING, prepared_epochs, tmp_path / "cache"]
    done = run_python(*given, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    before, looped, closed = map(float, done.stdout.split())
    assert looped - before > 100
    assert closed - before < (looped - before) / 2
