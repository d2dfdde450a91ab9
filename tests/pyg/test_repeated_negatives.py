"""Negative pairs of prepared epochs that come again: the same nodes and edges, the ends of negatives joined anew."""

from __future__ import annotations

from collections import Counter

import pytest
import scipy.stats
import torch
from pyg_graphs import FROM, one_type, two_types
from torch_geometric.data import Data

from diskgnn.pyg import LinkNeighborLoader

KINDS = ["binary", {"mode": "binary", "amount": 0.5}, "triplet", {"mode": "triplet", "amount": 3}]


@pytest.fixture
def quiet(tmp_path):
    return {"cache": tmp_path / "cache", "progress": False}


def pairs_of(batch: Data, kind: object, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(positives [2, P], negatives [2, n]) as node ids."""
    n_id = batch.n_id
    if "binary" in str(kind):
        found = n_id[batch.edge_label_index]
        assert batch.edge_label.tolist() == [1.0] * count + [0.0] * (found.shape[1] - count)
        return found[:, :count], found[:, count:]
    positives = torch.stack([n_id[batch.src_index], n_id[batch.dst_pos_index]])
    ends = n_id[batch.dst_neg_index].view(count, -1)
    sources = n_id[batch.src_index].repeat_interleave(ends.shape[1])
    return positives, torch.stack([sources, ends.flatten()])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_ends_of_negatives_are_joined_anew_in_every_round(quiet, kind):
    data, seeds = one_type(), torch.arange(60).view(2, 30)
    options = {"edge_label_index": seeds, "neg_sampling": kind, "batch_size": 30, "shuffle": True, "prepared_epochs": 1}
    loader, other = (LinkNeighborLoader(data, [3, 2], **options, **quiet) for _ in range(2))
    rounds = [next(iter(loader)) for _ in range(4)]
    found = [pairs_of(batch, kind, 30) for batch in rounds]
    for batch, (positives, negatives) in zip(rounds, found, strict=True):
        for name in ("x", "n_id", "e_id", "edge_index", "edge_attr", "input_id", "edge_label"):
            if name in rounds[0]:
                assert torch.equal(batch[name], rounds[0][name]), name
        assert torch.equal(positives, seeds[:, batch.input_id])
        for end in (0, 1):  # the same ends, each as often
            assert torch.equal(negatives[end].sort().values, found[0][1][end].sort().values)
    assert len({tuple(negatives.flatten().tolist()) for _, negatives in found}) == 4
    again = [pairs_of(next(iter(other)), kind, 30)[1] for _ in range(4)]
    assert all(torch.equal(negatives, mine) for negatives, (_, mine) in zip(again, found, strict=True))


@pytest.mark.parametrize("kind", ["binary", "triplet"])
def test_each_end_meets_each_other_equally_often(quiet, kind):
    data = Data(x=torch.eye(24), edge_index=torch.arange(48).view(2, 24) % 24)
    loader = LinkNeighborLoader(data, [1], edge_label_index=torch.arange(12).view(2, 6), neg_sampling=kind,
                                batch_size=6, **quiet)  # fmt: skip
    first = pairs_of(next(iter(loader)), kind, 6)[1]
    rounds, met = 600, Counter[tuple[int, int]]()
    for _ in range(rounds):
        (batch,) = loader
        met.update(tuple(pair) for pair in pairs_of(batch, kind, 6)[1].t().tolist())
    sources, ends = (Counter(end.tolist()) for end in first)
    pairs = [(source, end) for source in sources for end in ends]
    expected = [rounds * sources[source] * ends[end] / 6 for source, end in pairs]
    assert sum(met.values()) == rounds * 6 == round(sum(expected))
    # Rows and columns of the table have fixed sums: its statistic has as many degrees of freedom as in an
    # independence test, over n - 1 instead of n pairs per round.
    statistic = sum((met[pair] - often) ** 2 / often for pair, often in zip(pairs, expected, strict=True)) * 5 / 6
    assert scipy.stats.chi2.sf(statistic, (len(sources) - 1) * (len(ends) - 1)) > 1e-4


def test_typed_pairs_keep_their_types(quiet):
    data = two_types()
    loader = LinkNeighborLoader(data, [2, 2], edge_label_index=FROM, neg_sampling="binary", batch_size=100, **quiet)
    first, second = list(loader), list(loader)
    for one, other in zip(first, second, strict=True):
        (sources, ends), (sources_again, ends_again) = (batch[FROM].edge_label_index for batch in (one, other))
        assert torch.equal(sources, sources_again)
        assert torch.equal(ends[:100], ends_again[:100])
        assert not torch.equal(ends, ends_again)
        assert torch.equal(ends.sort().values, ends_again.sort().values)
        assert torch.equal(one["item"].n_id, other["item"].n_id)


def test_negatives_with_trees_of_their_own_keep_their_pairs(quiet):
    data = two_types()
    loader = LinkNeighborLoader(
        data, [2, 2], edge_label_index=FROM, edge_label_time=data[FROM].time, time_attr="time", neg_sampling="binary",
        batch_size=100, **quiet,
    )  # fmt: skip
    for one, other in zip(list(loader), list(loader), strict=True):
        assert torch.equal(one[FROM].edge_label_index, other[FROM].edge_label_index)
        assert torch.equal(one["item"].n_id, other["item"].n_id)


def test_what_becomes_of_negatives_is_said_where_the_loader_is_made(quiet, capsys):
    options = {"edge_label_index": torch.arange(8).view(2, 4), "cache": quiet["cache"]}
    LinkNeighborLoader(one_type(), [2], neg_sampling="binary", shuffle=True, **options)
    assert "negatives are drawn for 4 epochs; after these they are joined anew" in capsys.readouterr().err
    LinkNeighborLoader(one_type(), [2], neg_sampling="binary", disjoint=True, prepared_epochs=7, **options)
    assert "negatives are drawn for 7 epochs; after these they come again as they are" in capsys.readouterr().err
    LinkNeighborLoader(one_type(), [2], **options)
    LinkNeighborLoader(one_type(), [2], neg_sampling="binary", progress=False, **options)
    assert capsys.readouterr().err == ""
