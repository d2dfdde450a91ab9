"""Batches of `diskgnn.pyg` beside those of PyG's own loaders, which draw with pyg-lib; skipped without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch_geometric.loader
from pyg_graphs import BACK, FROM, one_type, two_types
from torch_geometric.data import Data, HeteroData

import diskgnn.pyg

pytest.importorskip("pyg_lib", exc_type=ImportError)

LOADERS = ["NeighborLoader", "LinkNeighborLoader"]


@pytest.fixture
def quiet(tmp_path):
    return {"cache": tmp_path / "cache", "progress": False}


def both(name: str, data: Any, quiet: dict[str, Any], *args: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
    """(ours, PyG's) batch after batch."""
    ours = getattr(diskgnn.pyg, name)(data, *args, **options, **quiet)
    theirs = getattr(torch_geometric.loader, name)(data, *args, **options)
    assert len(ours) == len(theirs)
    return zip(ours, theirs, strict=True)


def described(value: Any) -> Any:
    """What does not depend on draws: dtype and width of tensors; the value of what is none."""
    if isinstance(value, torch.Tensor):
        is_pairs = value.dim() == 2 and value.dtype == torch.int64 and len(value) == 2
        return value.dtype, value.device, value.dim(), 2 if is_pairs else tuple(value.shape[1:])
    if isinstance(value, list):
        return list, len(value), {type(each) for each in value}
    return type(value), value


def stores(batch: Data | HeteroData) -> dict[Any, Any]:
    return {None: batch._store} if isinstance(batch, Data) else {
        None: batch._global_store, **dict(zip(batch.node_types + batch.edge_types, batch.stores[1:], strict=True))
    }  # fmt: skip


def check_attributes(ours: Data | HeteroData, theirs: Data | HeteroData) -> None:
    """The same stores, with the same attributes, of the same kinds."""
    assert type(ours) is type(theirs)
    assert list(stores(ours)) == list(stores(theirs))
    for name, expected in stores(theirs).items():
        found = stores(ours)[name]
        assert set(found.keys()) == set(expected.keys()), name
        for key in expected:
            if key == "num_nodes":  # a count of what was drawn
                assert isinstance(found[key], type(expected[key]))
                continue
            assert described(found[key]) == described(expected[key]), (name, key)


def hops_of(ids: torch.Tensor, counts: list[int]) -> list[list[int]]:
    return [sorted(part.tolist()) for part in ids.split(counts)]


def check_equal(ours: Data | HeteroData, theirs: Data | HeteroData) -> None:
    """Where all neighbours are taken: the same nodes and edges in each hop, and what hangs on them."""
    for name, expected in stores(theirs).items():
        found = stores(ours)[name]
        for key in ("input_id", "batch_size", "seed_time", "num_sampled_nodes", "num_sampled_edges", "edge_label"):
            if key in expected:
                same = torch.equal if isinstance(expected[key], torch.Tensor) else lambda one, other: one == other
                assert same(found[key], expected[key]), (name, key)
        if "n_id" in expected:
            counts = expected["num_sampled_nodes"]
            assert hops_of(found["n_id"], counts) == hops_of(expected["n_id"], counts), name
            assert torch.equal(found["n_id"][: counts[0]], expected["n_id"][: counts[0]])
        if "e_id" in expected:
            counts = expected["num_sampled_edges"]
            assert hops_of(found["e_id"], counts) == hops_of(expected["e_id"], counts), name


OPTIONS: list[dict[str, Any]] = [
    {},
    {"disjoint": True},
    {"subgraph_type": "bidirectional"},
    {"time_attr": "time"},
    {"time_attr": "time", "input_time": torch.arange(48) % 31},
    {"weight_attr": "edge_weight"},
    {"input_nodes": None},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2]])
def test_nodes_of_one_type(quiet, options, fanouts):
    data = one_type()
    options = {"input_nodes": torch.arange(60, 108), "batch_size": 20} | options
    for ours, theirs in both("NeighborLoader", data, quiet, fanouts, **options):
        check_attributes(ours, theirs)
        if fanouts[0] < 0 and "subgraph_type" not in options:
            check_equal(ours, theirs)


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"time_attr": "time"}])
@pytest.mark.parametrize("fanouts", [[-1, -1], {FROM: [3, 2], BACK: [2, 0]}])
def test_nodes_of_several_types(quiet, options, fanouts):
    data = two_types()
    if "time_attr" in options:
        options = options | {"input_time": torch.arange(5, 35)}
    options = {"input_nodes": ("item", torch.arange(30)), "batch_size": 20} | options
    for ours, theirs in both("NeighborLoader", data, quiet, fanouts, **options):
        check_attributes(ours, theirs)
        if isinstance(fanouts, list):
            check_equal(ours, theirs)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"neg_sampling": "binary"}, {"neg_sampling_ratio": 2.0}, {"disjoint": True},
                {"neg_sampling": {"mode": "triplet", "amount": 2}}, {"time_attr": "time"}]
)  # fmt: skip
def test_links_of_one_type(quiet, options, labelled):
    data = one_type()
    if labelled and isinstance(options.get("neg_sampling"), dict):
        pytest.skip("PyG refuses labels of triplets")
    if "time_attr" in options:
        options = options | {"edge_label_time": torch.arange(48) % 31}
    options = options | ({"edge_label": torch.arange(48) % 3} if labelled else {})
    pairs = data.edge_index[:, 100:148]
    for ours, theirs in both(
        "LinkNeighborLoader", data, quiet, [-1, -1], edge_label_index=pairs, batch_size=20, **options
    ):
        check_attributes(ours, theirs)
        if not {"neg_sampling", "neg_sampling_ratio"} & set(options):
            check_equal(ours, theirs)


@pytest.mark.parametrize(
    "options", [{}, {"neg_sampling": "binary"}, {"neg_sampling": "triplet"}, {"time_attr": "time"}]
)
def test_links_of_several_types(quiet, options):
    data = two_types()
    if "time_attr" in options:
        options = options | {"edge_label_time": data[FROM].time[:50] - 1}
    pairs = (FROM, data[FROM].edge_index[:, :50])
    for ours, theirs in both(
        "LinkNeighborLoader", data, quiet, [-1, -1], edge_label_index=pairs, batch_size=20, **options
    ):
        check_attributes(ours, theirs)
        if "neg_sampling" not in options:
            check_equal(ours, theirs)


def drawn_often(name: str, data: Any, quiet: dict[str, Any], edge_type: Any, rounds: int, **options: Any) -> list[Any]:
    """Of our loader and of PyG's: in how many of so many epochs each edge was drawn, and each two of them together."""
    found = []
    for module, more in ((diskgnn.pyg, quiet | {"prepared_epochs": rounds}), (torch_geometric.loader, {})):
        loader = getattr(module, name)(data, **options, **more)
        num_edges = (data if edge_type is None else data[edge_type]).num_edges
        counts = np.zeros((num_edges, num_edges))
        for _ in range(rounds):
            (batch,) = loader
            ids = (batch if edge_type is None else batch[edge_type]).e_id.unique().numpy()
            counts[np.ix_(ids, ids)] += 1
        found.append(counts[np.triu_indices(num_edges)])
    return found


def small(edge_times: bool = False) -> Data:
    edges = [[1, 2, 3, 0, 2, 0, 3, 1, 4, 5, 0, 4, 5, 1, 2], [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 2, 1, 5, 5]]
    return Data(x=torch.randn(6, 2), edge_index=torch.tensor(edges), weight=torch.arange(1.0, 16.0),
                time=torch.arange(15) % 7 if edge_times else torch.tensor([0, 4, 2, 1, 5, 3]))  # fmt: skip


@pytest.mark.parametrize(
    ("options", "edge_times"),
    [({}, False), ({"disjoint": True}, False), ({"weight_attr": "weight"}, False), ({"time_attr": "time"}, False),
     ({"time_attr": "time", "temporal_strategy": "last"}, False), ({"time_attr": "time"}, True),
     ({"time_attr": "time", "temporal_strategy": "last"}, True)],
)  # fmt: skip
def test_draws_are_distributed_as_pyg_s(quiet, options, edge_times):
    torch.manual_seed(1)
    if "time_attr" in options:
        options = options | {"input_time": torch.tensor([4, 3])}
    rounds = 400
    ours, theirs = drawn_often(
        "NeighborLoader", small(edge_times), quiet, None, rounds, num_neighbors=[2, 1, 1], batch_size=2,
        input_nodes=torch.tensor([0, 2]), shuffle=True if "input_time" not in options else None, **options,
    )  # fmt: skip
    check_as_often(ours, theirs, rounds)


def check_as_often(ours: np.ndarray, theirs: np.ndarray, rounds: int) -> None:
    often = (ours + theirs) >= 20
    tables = [[[a, rounds - a], [b, rounds - b]] for a, b in zip(ours[often], theirs[often], strict=True)]
    values = [scipy.stats.fisher_exact(table).pvalue for table in tables]
    assert len(values) > 3
    assert min(values) * len(values) > 1e-4
