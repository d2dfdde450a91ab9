"""RelBench's loader of sources, positive and negative destinations, from disk: each part beside PyG's own batch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_frame")
pytest.importorskip("relbench")

from frames_beside import assert_same_batch
from pyg_samplers import NeighborsInTime
from relbench.modeling.graph import get_link_train_table_input, make_pkey_fkey_graph
from relbench_shop import Reviewed, Shop
from shop_columns import KINDS, Hashed
from torch_frame.config import TextEmbedderConfig
from torch_geometric.loader import NeighborLoader as PygLoader

from diskgnn import relbench
from diskgnn.errors import ConfigError, DataWarning


@pytest.fixture(scope="module")
def shop():
    return Shop()


@pytest.fixture(scope="module")
def data(shop):
    kinds = {name: dict(columns) for name, columns in KINDS.items()}
    return make_pkey_fkey_graph(shop.get_db(), kinds, TextEmbedderConfig(Hashed(), batch_size=64))[0]


@pytest.fixture(scope="module")
def table(shop):
    task = Reviewed(shop)
    return get_link_train_table_input(task.get_table("train"), task)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return {"time_attr": "time", "num_workers": 2, "cache": tmp_path_factory.mktemp("cache"), "progress": False}


def rows_of(table, types, num_rows=80):
    """The last rows of the task, between other types of nodes if these are asked for."""
    lists, times = table.dst_nodes[1], table.src_time[-num_rows:]
    if types == ("customer", "product"):
        starts = lists.crow_indices()[-num_rows - 1 :]
        found = lists.col_indices()[starts[0] :]
        lists = torch.sparse_csr_tensor(starts - starts[0], found, torch.ones(len(found)), (num_rows, lists.shape[1]))
        return (types[0], table.src_nodes[1][-num_rows:]), (types[1], lists), table.num_dst_nodes, times
    some = torch.arange(num_rows)
    starts, found = 2 * torch.arange(num_rows + 1), torch.stack([some % 20, (some + 7) % 20], 1).flatten()
    lists = torch.sparse_csr_tensor(starts, found, torch.ones(len(found), dtype=bool), (num_rows, 20))
    return (types[0], some % 25), (types[1], lists), 20, times


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional"])
@pytest.mark.parametrize("types", [("customer", "product"), ("product", "customer"), ("customer", "customer")])
def test_each_part_is_a_batch_of_pyg(data, table, options, types, subgraph_type):
    src, dst, count, time = rows_of(table, types)
    loader = relbench.LinkNeighborLoader(data, [-1, -1], src, dst, count, time, subgraph_type=subgraph_type,
                                         batch_size=32, shuffle=True, **options)  # fmt: skip
    wanted = {(int(node), int(until), int(to))
              for node, until, start, stop in zip(src[1], time, dst[1].crow_indices(), dst[1].crow_indices()[1:],
                                                  strict=False)
              for to in dst[1].col_indices()[start:stop]}  # fmt: skip
    sampler, num_rows, negatives = NeighborsInTime(data, [-1, -1], subgraph_type), 0, []
    for batch in loader:
        nodes = [part[kind].input_id for part, kind in zip(batch, (types[0], types[1], types[1]), strict=True)]
        times = batch[0][types[0]].seed_time
        assert {*zip(*(each.tolist() for each in (nodes[0], times, nodes[1])), strict=True)} <= wanted
        negatives += nodes[2].tolist()
        num_rows += len(times)
        for part, kind, ids in zip(batch, (types[0], types[1], types[1]), nodes, strict=True):
            expected = next(iter(PygLoader(data, [-1, -1], input_nodes=(kind, ids), input_time=times, time_attr="time",
                                           batch_size=len(ids), neighbor_sampler=sampler)))  # fmt: skip
            expected[kind].input_id = ids
            assert_same_batch(part, expected)
    loader.close()
    assert num_rows == len(time)
    assert len({*negatives}) > count / 2


def test_minibatches_of_one_time_drop_what_fills_none_and_epochs_differ(data, table, options):
    src, dst, count, times = rows_of(table, ("customer", "product"), 48)
    loader = relbench.LinkNeighborLoader(
        data, [2], src, dst, count, times, share_same_time=True, batch_size=8, shuffle=False, **options
    )
    epochs = []
    for _ in range(2):
        epochs.append([])
        for source, _positive, _negative in loader:
            assert len({*source["customer"].seed_time.tolist()}) == 1
            epochs[-1].append((int(source["customer"].seed_time[0]), source["customer"].input_id.tolist()))
        assert len(epochs[-1]) == len(loader)
    loader.close()
    assert epochs[0] != epochs[1]
    counts = torch.unique(times, return_counts=True)
    assert any(count > 8 and count % 8 for count in counts[1].tolist())
    for time, count in zip(*(each.tolist() for each in counts), strict=True):
        for epoch in epochs:
            seen = [node for until, nodes in epoch if until == time for node in nodes]
            assert len(seen) == len({*seen}) == count // 8 * 8


def test_times_that_look_like_another_unit_are_told(data, table, options):
    src, dst, count, time = rows_of(table, ("customer", "product"))
    with pytest.warns(DataWarning, match="times of the seeds are around .*: they look like different units"):
        next(iter(relbench.LinkNeighborLoader(data, [2], src, dst, count, time * 1000, batch_size=32, **options)))


def test_rows_that_cannot_be_drawn_are_refused(data, table, options):
    src, dst, count, time = rows_of(table, ("customer", "product"))
    with pytest.raises(ConfigError, match="src_time: expected the time of each row"):
        relbench.LinkNeighborLoader(data, [2], src, dst, count, batch_size=8, **options)
    with pytest.raises(ConfigError, match="fill a minibatch of 4000, found at most"):
        relbench.LinkNeighborLoader(data, [2], src, dst, count, time, True, batch_size=4000, **options)
    nowhere = torch.sparse_csr_tensor(torch.tensor([0, 1, 1]), torch.tensor([0]), torch.ones(1, dtype=bool), (2, count))
    with pytest.raises(ConfigError, match="found a row with none"):
        relbench.LinkNeighborLoader(data, [2], (src[0], src[1][:2]), (dst[0], nowhere), count, time[:2], **options)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [({"time_window": 3}, TypeError, "time_window: expected batch_size, shuffle, drop_last, or what is for worker"),
     ({"num_dst_nodes": 26}, ConfigError, "num_dst_nodes: expected 1 to 25, the nodes of type 'product', found 26"),
     ({"src_nodes": "custmer"}, ConfigError, "src_nodes: expected a type of nodes of customer, .*, found 'custmer'"),
     ({"src_nodes": "product"}, ConfigError, "expected ids of the 25 nodes of type 'product', found 0 to 29")],
)  # fmt: skip
def test_arguments_that_have_no_meaning_are_refused(data, table, options, changed, error, message):
    given = {"src_nodes": table.src_nodes, "dst_nodes": table.dst_nodes, "num_dst_nodes": table.num_dst_nodes,
             "src_time": table.src_time}  # fmt: skip
    for name, value in changed.items():
        given[name] = (value, given[name][1]) if isinstance(value, str) else value
    with pytest.raises(error, match=message):
        relbench.LinkNeighborLoader(data, [2], **given, batch_size=8, **options)


def test_drop_last_drops_the_last(data, table, options):
    rows = rows_of(table, ("product", "customer"), 50)
    loader = relbench.LinkNeighborLoader(data, [1], *rows, batch_size=32, drop_last=True, **options)
    assert [len(source["product"].input_id) for source, _, _ in loader] == [32] == [32] * len(loader)
    loader.close()


@pytest.mark.filterwarnings("error::diskgnn.errors.DataWarning")
@pytest.mark.parametrize("is_link", [False, True])
def test_draws_follow_the_seed_of_torch(data, table, options, is_link):
    src, dst, count, time = rows_of(table, ("customer", "product"))

    def first(of_torch, **given):
        torch.manual_seed(of_torch)
        given |= {"batch_size": 16, "shuffle": True, **options}
        if is_link:
            loader = relbench.LinkNeighborLoader(data, [2], src, dst, count, time, **given)
        else:
            loader = relbench.NeighborLoader(data, [2], input_nodes=src, input_time=time, **given)
        batch = next(iter(loader))
        loader.close()
        return [ids.tolist() for part in (batch if is_link else [batch]) for ids in part.n_id_dict.values()]

    assert first(1) == first(1) == first(2, seed=1)
    assert first(1) != first(2)


@pytest.mark.parametrize("shuffle", [False, True])
def test_preparing_leaves_torchs_generator_to_the_loop(data, table, options, shuffle, monkeypatch):
    """Threads prepare minibatches while the loop draws dropout: a seed set there would be drawn from here."""
    src, _, _, time = rows_of(table, ("customer", "product"))
    loader = relbench.NeighborLoader(data, [2], input_nodes=src, input_time=time, batch_size=16, shuffle=shuffle,
                                     **options)  # fmt: skip
    seen = []
    monkeypatch.setattr(torch, "manual_seed", seen.append)
    monkeypatch.setattr(torch, "set_rng_state", seen.append)
    monkeypatch.setattr(torch.random, "set_rng_state", seen.append)
    assert sum(batch["customer"].batch_size for batch in loader) == len(time)
    loader.close()
    assert not seen
