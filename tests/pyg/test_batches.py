"""Batches of `diskgnn.pyg` beside what PyG says of them: its filters, its documentation, its own functions."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest
import scipy.stats
import torch
import torch_geometric.loader
from pyg_graphs import BACK, FROM, one_type, two_types
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv
from torch_geometric.testing import MyFeatureStore, MyGraphStore
from torch_geometric.utils import k_hop_subgraph, trim_to_layer

import diskgnn
from diskgnn.errors import ConfigError, InputError
from diskgnn.pyg import LinkNeighborLoader, NeighborLoader

OURS = ["cache", "cache_limit", "cpu_cache", "prepared_epochs", "memory", "threads", "device", "seed", "progress",
        "time_window", "input_start_time"]  # fmt: skip


@pytest.fixture
def quiet(tmp_path):
    return {"cache": tmp_path / "cache", "progress": False, "prepared_epochs": 2, "batch_size": 16}


@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader])
def test_arguments_are_those_of_the_installed_pyg(loader):
    theirs = inspect.signature(getattr(torch_geometric.loader, loader.__name__)).parameters
    found = inspect.signature(loader).parameters
    assert [name for name in found if name not in OURS] == list(theirs)
    assert {name: found[name].default for name in theirs} == {name: each.default for name, each in theirs.items()}
    assert isinstance(loader, type)
    assert issubclass(loader, torch.utils.data.DataLoader)


def check_slices(batch: Data, data: Data) -> None:
    """Every attribute is that of the nodes and edges of the batch."""
    n_id, e_id = batch.n_id, batch.e_id
    assert torch.equal(n_id[batch.edge_index], data.edge_index[:, e_id])
    for name in ("x", "y", "train_mask", "token", "time"):
        assert torch.equal(batch[name], data[name][n_id]), name
    for name in ("edge_attr", "edge_weight"):
        assert torch.equal(batch[name], data[name][e_id]), name
    assert batch.name == "graph"
    assert set(batch.keys()) >= set(data.keys())
    assert "num_nodes" not in batch._store
    assert batch.num_nodes == len(n_id) == sum(batch.num_sampled_nodes)
    assert batch.num_edges == len(e_id) == sum(batch.num_sampled_edges)


def check_expansion(batch: Data, fanouts: list[int], degrees: torch.Tensor) -> None:
    """Each node draws once: in the hop after the one that found it, as many as the fanout and its list allow."""
    nodes, edges = [0, *np.cumsum(batch.num_sampled_nodes)], [0, *np.cumsum(batch.num_sampled_edges)]
    trees = torch.zeros(batch.num_nodes, dtype=torch.int64) if batch.batch is None else batch.batch
    assert len(torch.stack([trees, batch.n_id]).unique(dim=1)[0]) == batch.num_nodes
    for hop, fanout in enumerate(fanouts):
        row, col = batch.edge_index[:, edges[hop] : edges[hop + 1]]
        assert ((col >= nodes[hop]) & (col < nodes[hop + 1])).all()
        assert (row < nodes[hop + 2]).all()
        assert set(range(nodes[hop + 1], nodes[hop + 2])) <= set(row.tolist())  # whoever is new was drawn
        if degrees is not None:
            drawn = torch.bincount(col - nodes[hop], minlength=nodes[hop + 1] - nodes[hop])
            have = degrees[batch.n_id[nodes[hop] : nodes[hop + 1]]]
            assert drawn.tolist() == (have if fanout < 0 else have.clamp(max=fanout)).tolist()
    assert len(batch.e_id.unique()) == len(batch.e_id) or batch.batch is not None


@pytest.mark.parametrize("fanouts", [[3, 2], [2, 2, 2], [-1, 3], [4]])
def test_epochs_are_of_pyg_s_shape_and_hold_every_attribute(quiet, fanouts):
    data = one_type()
    degrees = torch.bincount(data.edge_index[1], minlength=120)
    loader = NeighborLoader(data, fanouts, input_nodes=data.train_mask, shuffle=True, num_workers=3, **quiet)
    assert len(loader) == -(-int(data.train_mask.sum()) // 16)
    epochs = [list(loader) for _ in range(3)]
    for batches in epochs:
        assert len(batches) == len(loader)
        for batch in batches:
            check_slices(batch, data)
            check_expansion(batch, fanouts, degrees)
            assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)  # of a mask: the nodes themselves
        ids = torch.cat([batch.input_id for batch in batches])
        assert ids.sort().values.tolist() == data.train_mask.nonzero().view(-1).tolist()
    one, other, again = (torch.cat([batch.n_id for batch in batches]).tolist() for batches in epochs)
    assert one != other
    assert one == again  # two epochs were prepared


def test_all_neighbours_are_the_k_hop_subgraph_and_trimming_changes_no_output(quiet):
    data = one_type()
    torch.manual_seed(0)
    convs = [SAGEConv(6, 8), SAGEConv(8, 4)]
    whole = convs[1](convs[0](data.x, data.edge_index).relu(), data.edge_index)
    for batch in NeighborLoader(data, [-1, -1], input_nodes=torch.arange(50), **quiet):
        seeds = batch.n_id[: batch.batch_size]
        nodes, _, _, mask = k_hop_subgraph(seeds, 2, data.edge_index, num_nodes=120)
        assert batch.n_id.sort().values.tolist() == nodes.tolist()
        assert set(batch.e_id.tolist()) <= set(mask.nonzero().view(-1).tolist())
        inner = set(batch.n_id[: sum(batch.num_sampled_nodes[:2])].tolist())  # all edges into what is expanded
        assert set(batch.e_id.tolist()) == {e for e, v in enumerate(data.edge_index[1].tolist()) if v in inner}
        plain, trimmed = (batch.x, batch.x)
        edges = batch.edge_index
        for layer, conv in enumerate(convs):
            trimmed, edges, _ = trim_to_layer(
                layer, batch.num_sampled_nodes, batch.num_sampled_edges, trimmed, edges, None
            )
            plain, trimmed = conv(plain, batch.edge_index), conv(trimmed, edges)
            plain, trimmed = (plain.relu(), trimmed.relu()) if layer == 0 else (plain, trimmed)
        torch.testing.assert_close(plain[: batch.batch_size], whole[seeds])
        torch.testing.assert_close(trimmed[: batch.batch_size], whole[seeds])


def draw_as_documented(
    random: np.random.Generator, edges: np.ndarray, seeds: list[int], fanouts: list[int]
) -> list[int]:
    """PyG's definition: each node that is new draws some of its in-edges, without replacement. Edges drawn."""
    known, new, drawn = set(seeds), list(seeds), []
    for fanout in fanouts:
        found = []
        for node in new:
            into = np.flatnonzero(edges[1] == node)
            found += random.choice(into, min(fanout, len(into)), replace=False).tolist()
        drawn += found
        new = [node for node in dict.fromkeys(edges[0, found].tolist()) if node not in known]
        known |= set(new)
    return drawn


@pytest.mark.parametrize("form", [np.asarray, torch.Tensor.tolist], ids=["numpy", "list"])
def test_a_mask_is_one_in_any_form(quiet, form):
    """PyG would take one that is no tensor for the ids 0 and 1."""
    data = one_type()
    mask = torch.arange(data.num_nodes) % 3 == 1
    seeds = [batch.n_id[: batch.batch_size] for batch in NeighborLoader(data, [2], input_nodes=form(mask), **quiet)]
    assert torch.cat(seeds).tolist() == mask.nonzero().flatten().tolist()


def test_draws_are_distributed_as_pyg_documents_them(quiet):
    """Edges that return to a seed, and edges that a second path leads to, appear as often as in a model of PyG."""
    edges = np.array([[1, 2, 3, 0, 2, 0, 3, 1, 4, 5, 0, 4, 5, 1, 2], [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 2, 1, 5, 5]])
    data = Data(x=torch.randn(6, 2), edge_index=torch.from_numpy(edges))
    loader = NeighborLoader(data, [2, 1, 1], input_nodes=[0, 2], **{**quiet, "prepared_epochs": 300, "batch_size": 2})
    random, rounds = np.random.default_rng(0), 300
    ours, theirs = np.zeros(len(edges[0])), np.zeros(len(edges[0]))
    pairs_ours, pairs_theirs = np.zeros((15, 15)), np.zeros((15, 15))
    for _ in range(rounds):
        (batch,) = loader
        found, expected = batch.e_id.numpy(), np.array(draw_as_documented(random, edges, [0, 2], [2, 1, 1]))
        ours[found] += 1
        theirs[expected] += 1
        pairs_ours[np.ix_(found, found)] += 1
        pairs_theirs[np.ix_(expected, expected)] += 1
    for one, other in ((ours, theirs), (pairs_ours[np.triu_indices(15, 1)], pairs_theirs[np.triu_indices(15, 1)])):
        often = (one + other) >= 20
        tables = [[[a, rounds - a], [b, rounds - b]] for a, b in zip(one[often], other[often], strict=True)]
        values = [scipy.stats.fisher_exact(table).pvalue for table in tables]
        assert min(values) * len(values) > 1e-4


@pytest.mark.parametrize(("time", "edge_times"), [(1, []), (2, [2]), (3, [2])])
def test_edges_of_the_future_where_edges_are_not_in_order_of_time(quiet, time, edge_times):
    # The example of PyG's issue 7794: node 1 is asked at time 1, and its only in-edge is of time 2.
    data = Data(x=torch.eye(3), edge_index=torch.tensor([[1, 0, 1, 1, 2], [0, 1, 2, 0, 0]]),
                edge_time=torch.tensor([1, 2, 3, 4, 5]))  # fmt: skip
    loader = NeighborLoader(data, [-1], input_nodes=torch.tensor([1]), input_time=torch.tensor([time]),
                            time_attr="edge_time", **quiet)  # fmt: skip
    (batch,) = loader
    assert batch.edge_time.tolist() == edge_times
    assert batch.n_id[batch.edge_index].tolist() == ([[0], [1]] if edge_times else [[], []])
    # Two hops: from node 0, which node 1 sees from time 2 on, an edge of time 1 leads back; those of 4 and 5 do not.
    (batch,) = NeighborLoader(data, [-1, -1], input_nodes=torch.tensor([1]), input_time=torch.tensor([time]),
                              time_attr="edge_time", **quiet)  # fmt: skip
    assert sorted(batch.edge_time.tolist()) == ([1, 2] if edge_times else [])


@pytest.mark.parametrize(
    "options", [{"disjoint": True}, {"time_attr": "time"}, {"time_attr": "time", "temporal_strategy": "last"}]
)
def test_trees_of_seeds_and_nothing_later_than_them(quiet, options):
    data = one_type()
    nodes = torch.tensor([5, 9, 9, 80, 3])
    times = torch.tensor([12, 3, 29, 7, 0]) if "time_attr" in options else None
    loader = NeighborLoader(data, [4, 3], input_nodes=nodes, input_time=times, **options, **quiet)
    (batch,) = loader
    check_slices(batch, data)
    check_expansion(batch, [4, 3], None)
    assert batch.n_id[:5].tolist() == nodes.tolist()
    assert batch.batch[:5].tolist() == [0, 1, 2, 3, 4]
    assert (batch.batch[batch.edge_index[0]] == batch.batch[batch.edge_index[1]]).all()
    if times is not None:
        assert torch.equal(batch.seed_time, times)
        later = torch.arange(batch.num_nodes) >= 5
        assert (batch.time <= times[batch.batch])[later].all()
        row, col = data.edge_index
        for tree in range(5):  # as many as may be drawn
            allowed = int(((col == nodes[tree]) & (data.time[row] <= times[tree])).sum())
            assert int((batch.edge_index[1] == tree).sum()) == min(4, allowed)


def test_windows_leave_out_what_is_older(quiet):
    data = one_type()
    nodes, times = torch.tensor([5, 9, 9, 80, 3]), torch.tensor([12, 3, 29, 7, 0])
    given = {"input_nodes": nodes, "input_time": times, "time_attr": "time", **quiet}
    drawn = []
    for window in (6, 12, None):
        (batch,) = NeighborLoader(data, [-1], **given, time_window=window)
        check_slices(batch, data)
        row, col = data.edge_index
        age = times[:, None] - data.time[row]
        passes = (col == nodes[:, None]) & (age >= 0) & (age < (window or 100))
        tree = batch.batch[batch.edge_index[1]]
        found = {*zip(tree.tolist(), batch.e_id.tolist(), strict=True)}
        assert found == {*map(tuple, passes.nonzero().tolist())}
        drawn.append(len(found))
    assert drawn[0] < drawn[1] < drawn[2]  # each was prepared for itself
    with pytest.raises(ConfigError, match="time_window: expected time_attr, too"):
        NeighborLoader(data, [-1], input_nodes=nodes, time_window=3, **quiet)
    with pytest.raises(
        ConfigError, match=r"time_window: found '30d', and nobody said what the numbers in 'time' count"
    ):
        next(iter(NeighborLoader(data, [-1], **given, time_window="30d")))


def test_each_seed_has_a_start_of_its_own(quiet):
    data = one_type()
    nodes, times = torch.tensor([5, 9, 9, 80, 3]), torch.tensor([12, 3, 29, 7, 20])
    starts = torch.tensor([2, -5, 28, 9, -(2**63)])  # one is after its seed, one leaves nothing out
    earlier = torch.tensor([-3, -5, 20, 0, -1])
    given = {"input_nodes": nodes, "input_time": times, "time_attr": "time", **quiet, "batch_size": 2}
    row, col = data.edge_index
    age = times[:, None] - data.time[row]
    drawn = []
    for window, start, epochs in ((None, starts, 1), (6, starts, 0), (None, earlier, 1)):
        options = {**given, "prepared_epochs": epochs}
        loader = NeighborLoader(data, [-1], **options, time_window=window, input_start_time=start)
        passes = (col == nodes[:, None]) & (age >= 0) & (age < (window or 100)) & (data.time[row] > start[:, None])
        found = set()
        for number, batch in enumerate(loader):
            check_slices(batch, data)
            tree = batch.batch[batch.edge_index[1]] + 2 * number
            found |= {*zip(tree.tolist(), batch.e_id.tolist(), strict=True)}
        assert found == {*map(tuple, passes.nonzero().tolist())}
        drawn.append(len(found))
        asked = loader([4, 0, 4])  # drawn now
        for tree, seed in enumerate((4, 0, 4)):
            of_tree = asked.e_id[asked.batch[asked.edge_index[1]] == tree]
            assert sorted(of_tree.tolist()) == passes[seed].nonzero().flatten().tolist()
    assert drawn[1] < drawn[0] < drawn[2]
    assert drawn[0] < int(((col == nodes[:, None]) & (age >= 0)).sum())
    with pytest.raises(ConfigError, match="input_start_time: expected time_attr, too"):
        NeighborLoader(data, [-1], input_nodes=nodes, input_start_time=starts, **quiet)
    with pytest.raises(ConfigError, match="input_start_time: expected 5, one for each to start from, found 3"):
        NeighborLoader(data, [-1], **given, input_start_time=starts[:3])


@pytest.mark.parametrize("room", ["diskgnn.pyg", "diskgnn.relbench"])
@pytest.mark.parametrize("epochs", [0, 1])
def test_starts_follow_their_seeds_whatever_input_id_is(quiet, room, epochs):
    """PyG makes the nodes of a mask their `input_id`, and takes other ones: no start is found by these."""
    if room == "diskgnn.relbench":
        pytest.importorskip("torch_frame")
    kind = importlib.import_module(room).NeighborLoader
    mask = torch.zeros(120, dtype=torch.bool)
    mask[[3, 17, 40, 99, 119]] = True
    nodes, times, starts = (
        mask.nonzero().flatten(),
        torch.tensor([12, 29, 20, 25, 28]),
        torch.tensor([2, 11, -5, 20, 3]),
    )
    data, typed = one_type(), HeteroData()
    typed["paper"].x, typed["paper"].time = data.x, data.time
    typed["paper", "cites", "paper"].edge_index = data.edge_index
    row, col = data.edge_index
    since = (data.time[row] <= times[:, None]) & (data.time[row] > starts[:, None])
    passes = [each.nonzero().flatten().tolist() for each in (col == nodes[:, None]) & since]
    assert len({*map(len, passes)}) > 2
    backwards = torch.tensor([4, 3, 2, 1, 0])
    for given, seeds, named in (
        (data, mask, nodes), (typed, ("paper", mask), nodes), (data, nodes, backwards), (data, nodes, backwards + 1000),
        (data, mask, backwards), (typed, ("paper", nodes), backwards),
    ):  # fmt: skip
        loader = kind(
            given, [-1], input_nodes=seeds, input_time=times, input_start_time=starts, time_attr="time",
            **quiet | {"batch_size": 2, "prepared_epochs": epochs},
            **{} if named is nodes else {"input_id": named},
            **{} if given is data else {"time_window": {("paper", "cites", "paper"): 1000}},
        )  # fmt: skip
        asked = [4, 0, 3]
        expected = [[0, 1], [2, 3], [4], asked]
        for positions, batch in zip(expected, [*loader, loader(asked)], strict=True):
            of_nodes = batch if given is data else batch["paper"]
            of_edges = batch if given is data else batch["paper", "cites", "paper"]
            assert of_nodes.input_id.tolist() == named[positions].tolist()
            trees = of_nodes.batch[of_edges.edge_index[1]]
            found = [sorted(of_edges.e_id[trees == tree].tolist()) for tree in range(len(positions))]
            assert found == [passes[position] for position in positions]


def test_starts_are_for_the_edges_that_a_window_is_for(quiet):
    """Rows that are referred to are looked up whatever their age; without a database, somebody has to say."""
    data = HeteroData()
    data["user"].x, data["user"].time = torch.eye(2), torch.zeros(2, dtype=torch.int64)
    data["order"].x, data["order"].time = torch.eye(30), torch.arange(30)
    keys = torch.stack([torch.arange(30), torch.arange(30) % 2])
    refers, referred = ("order", "f2p_user", "user"), ("user", "rev_f2p_user", "order")
    data[refers].edge_index, data[referred].edge_index = keys, keys.flip(0)
    given = {"input_nodes": ("user", torch.tensor([0, 1])), "input_time": torch.tensor([20, 9]), "time_attr": "time",
             "input_start_time": torch.tensor([14, 3]), "batch_size": 2, **quiet}  # fmt: skip
    (batch,) = NeighborLoader(data, [-1, -1], **given)
    trees = list(zip(batch["order"].batch.tolist(), batch["order"].time.tolist(), strict=True))
    assert sorted(trees) == [(0, 16), (0, 18), (0, 20), (1, 5), (1, 7), (1, 9)]
    assert batch[referred].edge_index.shape[1] == 6
    (batch,) = NeighborLoader(data, [-1, -1], time_window={referred: 5}, **given)
    assert len(batch["order"].time) == 11 + 5
    assert batch[referred].edge_index.shape[1] == 0
    other = HeteroData()
    for name in ("user", "order"):
        other[name].x, other[name].time = data[name].x, data[name].time
    other["order", "of", "user"].edge_index, other["user", "gave", "order"].edge_index = keys, keys.flip(0)
    with pytest.raises(ConfigError, match=r"Say for which edge types it is, as a mapping \(order:of:user=180d\)"):
        next(iter(NeighborLoader(other, [-1, -1], **given)))


def test_one_window_of_a_database_is_for_what_refers(quiet):
    """Both tables have times, and edge types are called as RelBench calls them."""
    data = HeteroData()
    data["user"].x, data["user"].time = torch.eye(2), torch.zeros(2, dtype=torch.int64)
    data["order"].x, data["order"].time = torch.eye(30), torch.arange(30)
    keys = torch.stack([torch.arange(30), torch.zeros(30, dtype=torch.int64)])
    refers, referred = ("order", "f2p_user", "user"), ("user", "rev_f2p_user", "order")
    data[refers].edge_index, data[referred].edge_index = keys, keys.flip(0)
    given = {"input_nodes": ("user", torch.tensor([0])), "input_time": torch.tensor([20]), "time_attr": "time", **quiet}
    for window, orders, users in ((5, [16, 17, 18, 19, 20], 5), ({referred: 5}, [*range(21)], 0)):
        (batch,) = NeighborLoader(data, [-1, -1], time_window=window, **given)
        assert batch["order"].time.sort().values.tolist() == orders
        assert batch[referred].edge_index.shape[1] == users


def test_bidirectional_has_both_directions_and_transforms_come_in_turn(quiet):
    data = one_type()
    data.edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], 1)
    data.edge_attr, data.edge_weight = torch.randn(1800, 2), torch.rand(1800)
    seen = []
    loader = NeighborLoader(
        data, [3, 2], input_nodes=torch.arange(20), subgraph_type="bidirectional", **quiet,
        transform_sampler_output=lambda out: seen.append(len(out.node)) or out,
        transform=lambda batch: seen.append(batch.x.shape[0]) or batch,
    )  # fmt: skip
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
        pairs = {tuple(pair) for pair in batch.edge_index.t().tolist()}
        assert pairs == {(b, a) for a, b in pairs}
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert seen[::2] == seen[1::2]
    assert len(seen) == 2 * len(loader)


def test_weights_of_zero_are_never_drawn(quiet):
    data = one_type()
    order = data.edge_index[1].argsort(stable=True)
    is_first = torch.ones(900, dtype=torch.bool)
    is_first[order[1:]] = data.edge_index[1][order].diff() > 0
    data.edge_weight[~is_first & (torch.arange(900) % 2 == 0)] = 0  # PyG, too, wants one above 0 in each list
    for batch in NeighborLoader(data, [2], input_nodes=torch.arange(120), weight_attr="edge_weight", **quiet):
        assert (batch.edge_weight > 0).all()
        assert batch.num_edges


@pytest.mark.parametrize(
    "negatives", [None, "binary", {"mode": "binary", "amount": 0.5}, {"mode": "triplet", "amount": 2}]
)
@pytest.mark.parametrize("disjoint", [False, True])
def test_links_start_from_pairs_and_from_pyg_s_negatives(quiet, negatives, disjoint):
    data = one_type()
    pairs = data.edge_index[:, 100:140]
    label = None if isinstance(negatives, dict) and negatives["mode"] == "triplet" else torch.arange(40) % 3
    loader = LinkNeighborLoader(
        data, [3, 2], edge_label_index=pairs, edge_label=label, neg_sampling=negatives, disjoint=disjoint, shuffle=True,
        **quiet,
    )  # fmt: skip
    negatives_seen = set()
    for _ in range(2):
        for batch in loader:
            n_id, expected = batch.n_id, pairs[:, batch.input_id]
            check_slices(batch, data)
            if label is None:
                assert torch.equal(n_id[batch.src_index], expected[0])
                assert torch.equal(n_id[batch.dst_pos_index], expected[1])
                assert batch.dst_neg_index.shape == (len(batch.input_id), 2)
                continue
            count = len(batch.input_id)
            assert torch.equal(n_id[batch.edge_label_index[:, :count]], expected)
            given = label[batch.input_id] + (negatives is not None)  # 0 means a negative then
            assert torch.equal(batch.edge_label[:count], given)
            assert (batch.edge_label[count:] == 0).all()
            more = {None: 0, "binary": count}.get(negatives if not isinstance(negatives, dict) else "", -(-count // 2))
            assert len(batch.edge_label) == count + more
            negatives_seen |= {tuple(pair) for pair in n_id[batch.edge_label_index[:, count:]].t().tolist()}
    assert len(negatives_seen) > 30 or negatives is None or label is None


def test_typed_batches_with_edge_times_and_features_of_both_kinds(quiet):
    data = two_types()
    nodes = torch.arange(10, 40)
    loader = NeighborLoader(data, {FROM: [3, 2], BACK: [2, 0]}, input_nodes=("item", nodes), **quiet)
    for batch in loader:
        assert torch.equal(batch["item"].x, data["item"].x[batch["item"].n_id])
        assert torch.equal(batch["item"].y, data["item"].y[batch["item"].n_id])
        assert batch["item"].n_id[: batch["item"].batch_size].tolist() == nodes[batch["item"].input_id].tolist()
        assert batch["user"].num_nodes == len(batch["user"].n_id)
        assert "x" not in batch["user"]
        assert torch.equal(batch[FROM].edge_attr, data[FROM].edge_attr[batch[FROM].e_id])
        for edge_type in (FROM, BACK):
            row, col = batch[edge_type].edge_index
            ends = torch.stack([batch[edge_type[0]].n_id[row], batch[edge_type[2]].n_id[col]])
            assert torch.equal(ends, data[edge_type].edge_index[:, batch[edge_type].e_id])
            assert sum(batch[edge_type].num_sampled_edges) == len(row)
        assert batch[BACK].num_sampled_edges[1] == 0
    pairs, when = data[FROM].edge_index[:, :30], data[FROM].time[:30] - 1
    links = LinkNeighborLoader(
        data, [4, 4], edge_label_index=(("user", "item"), pairs), edge_label_time=when, time_attr="time", **quiet
    )
    for batch in links:
        store = batch[FROM]
        found = torch.stack(
            [batch["user"].n_id[store.edge_label_index[0]], batch["item"].n_id[store.edge_label_index[1]]]
        )
        assert torch.equal(found, pairs[:, store.input_id])
        for edge_type in (FROM, BACK):
            tree = batch[edge_type[2]].batch[batch[edge_type].edge_index[1]]
            assert (batch[edge_type].time <= when[store.input_id][tree]).all()


def test_asked_for_some_inputs_it_samples_them_now(quiet):
    data = one_type()
    loader = NeighborLoader(data, [3, 2], input_nodes=torch.arange(60, 100), **quiet)
    batch, other = loader([4, 7]), loader(torch.tensor([4, 7]))
    for each in (batch, other):
        check_slices(each, data)
        check_expansion(each, [3, 2], torch.bincount(data.edge_index[1], minlength=120))
        assert each.n_id[:2].tolist() == [64, 67]
        assert each.input_id.tolist() == [4, 7]
    typed = two_types()
    found = LinkNeighborLoader(typed, [3, 2], edge_label_index=FROM, neg_sampling_ratio=1.0, **quiet)([1, 2, 3])
    assert torch.equal(found["item"].x, typed["item"].x[found["item"].n_id])
    assert torch.equal(found[FROM].edge_attr, typed[FROM].edge_attr[found[FROM].e_id])


def stores_of(data: HeteroData) -> tuple[MyFeatureStore, MyGraphStore]:
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(data["item"].x.float(), group_name="item", attr_name="x", index=None)
    features.put_tensor(data["item"].y, group_name="item", attr_name="y", index=None)
    features.put_tensor(torch.arange(40), group_name="user", attr_name="key", index=None)
    for edge_type, size in ((FROM, (40, 60)), (BACK, (60, 40))):
        graph.put_edge_index(data[edge_type].edge_index, edge_type=edge_type, layout="coo", size=size)
    return features, graph


@pytest.mark.parametrize(
    ("group", "attribute", "rows", "message"),
    [
        ("item", "y", 59, "node type item: expected 60 in both stores, as x of item says, found 59 by y of item"),
        ("user", "key", 41, "node type user: expected 41 in both .*, found 40 by size of user:rates:item"),
        (FROM, "weight", 499, "edge type user:rates:item: expected 500 in both stores, as the GraphStore says, found"),
        (("item", "likes", "item"), "weight", 9, "FeatureStore has attributes of edge type item:likes:item, the"),
        ("film", "x", 60, "FeatureStore has attributes of node type film, which no edge .* and none of user, which"),
    ],
)
def test_stores_of_different_graphs_are_refused(quiet, group, attribute, rows, message):
    features, graph = stores_of(two_types())
    if group == "film":
        features.remove_tensor(group_name="user", attr_name="key", index=None)
    features.put_tensor(torch.zeros(rows), group_name=group, attr_name=attribute, index=None)
    with pytest.raises(InputError, match=message):
        NeighborLoader((features, graph), [3, 2], input_nodes=("item", torch.arange(20)), **quiet).prepare()
    assert not [*quiet["cache"].glob("*")]


def test_stores_and_directories_are_data_too(quiet, tmp_path):
    typed, plain = two_types(), one_type()
    for batch in NeighborLoader(stores_of(typed), [3, 2], input_nodes=("item", torch.arange(20)), **quiet):
        assert torch.equal(batch["item"].x, typed["item"].x.float()[batch["item"].n_id])
        assert torch.equal(batch["item"].y, typed["item"].y[batch["item"].n_id])
        assert torch.equal(batch["user"].key, batch["user"].n_id)
        row, col = batch[FROM].edge_index
        ends = torch.stack([batch["user"].n_id[row], batch["item"].n_id[col]])
        assert torch.equal(ends, typed[FROM].edge_index[:, batch[FROM].e_id])
    diskgnn.convert(tmp_path / "graph", source=plain)
    loader = NeighborLoader(tmp_path / "graph", [3, 2], input_nodes="train", **quiet)
    for batch in loader:
        for name in ("x", "y", "time"):
            assert torch.equal(batch[name], plain[name][batch.n_id])
        assert torch.equal(batch.edge_attr, plain.edge_attr[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], plain.edge_index[:, batch.e_id])
        assert plain.train_mask[batch.n_id[: batch.batch_size]].all()


def test_links_draw_all_edges_of_the_data(quiet):
    """As PyG's: what must not be a message is not in the data that is given. So pairs that are edges are drawn."""
    data = one_type()
    pairs = data.edge_index[:, :40]
    for batch in LinkNeighborLoader(data, [-1], edge_label_index=pairs, **quiet):
        drawn = {*zip(*batch.n_id[batch.edge_index].tolist(), strict=True)}
        asked = batch.n_id[batch.edge_label_index]
        assert {*zip(*asked.tolist(), strict=True)} <= drawn
