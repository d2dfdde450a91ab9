"""Compares batches of tables whatever the order of their nodes, and TensorFrames value by value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData


def assert_same_batch(found: HeteroData, expected: HeteroData) -> None:
    """The same trees of the same nodes, reached in the same hops, with the same rows and edges, by the same names."""
    assert {*found.node_types} == {*expected.node_types}
    assert {*found.edge_types} == {*expected.edge_types}
    order = {}
    for name in expected.node_types:
        one, other = found[name], expected[name]
        assert {*one.keys()} == {*other.keys()}, name
        assert one.num_nodes == other.num_nodes
        if "num_sampled_nodes" in other:
            assert one.num_sampled_nodes == other.num_sampled_nodes
        order[name] = [np.lexsort((store.n_id.numpy(), store.batch.numpy())) for store in (one, other)]
        for key in ("n_id", "batch", "time", "y"):
            if key in other and (key != "y" or len(other.y) == other.num_nodes):
                first, second = (store[key][places] for store, places in zip((one, other), order[name], strict=True))
                assert first.dtype == second.dtype
                assert torch.equal(first, second), (name, key)
        for key in ("input_id", "seed_time", "batch_size"):
            if key in other:
                assert torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])), key
        assert_same_frame(*(store.tf[torch.from_numpy(places)]
                            for store, places in zip((one, other), order[name], strict=True)))  # fmt: skip
    for edge_type in expected.edge_types:
        if "num_sampled_edges" in expected[edge_type]:
            assert found[edge_type].num_sampled_edges == expected[edge_type].num_sampled_edges
        assert _edges(found, edge_type) == _edges(expected, edge_type), edge_type


def _edges(batch: HeteroData, edge_type: tuple[str, str, str]) -> list[tuple[int, ...]]:
    source, _, destination = edge_type
    row, col = batch[edge_type].edge_index
    trees, ends = batch[source].batch[row], batch[destination].batch[col]
    assert torch.equal(trees, ends)
    columns = (trees, batch[source].n_id[row], batch[destination].n_id[col])
    return sorted(zip(*(each.tolist() for each in columns), strict=True))


def assert_same_frame(found: Any, expected: Any) -> None:
    """The same columns in the same order, with exactly the same values; lists of values in any order."""
    assert [*found.col_names_dict.items()] == [*expected.col_names_dict.items()]
    assert [*found.feat_dict] == [*expected.feat_dict]
    assert found.num_rows == expected.num_rows
    for stype, values in expected.feat_dict.items():
        other = found.feat_dict[stype]
        assert other.dtype == values.dtype, stype
        if stype.value == "multicategorical":
            assert torch.equal(other.offset, values.offset)
            for start, stop in zip(values.offset, values.offset[1:], strict=False):
                assert sorted(other.values[start:stop].tolist()) == sorted(values.values[start:stop].tolist())
        elif stype.value == "embedding":
            assert torch.equal(other.offset, values.offset)
            assert torch.equal(other.values, values.values)
        else:
            assert other.shape == values.shape, stype
            same = (other == values) | ((other != other) & (values != values))
            assert bool(same.all()), stype


def assert_same_statistics(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Statistics of columns by table, to 1e-9; counted values of the same types, in any order."""
    assert found.keys() == expected.keys()
    for name, columns in expected.items():
        assert found[name].keys() == columns.keys(), name
        for column, values in columns.items():
            assert found[name][column].keys() == values.keys(), (name, column)
            for statistic, value in values.items():
                other, where = found[name][column][statistic], f"{name}.{column}: {statistic}"
                if isinstance(value, tuple):
                    assert _typed(other) == _typed(value), where
                elif isinstance(value, torch.Tensor):
                    assert torch.equal(torch.as_tensor(other), value), where
                else:
                    np.testing.assert_allclose(
                        np.asarray(other, float), np.asarray(value, float), rtol=1e-9, err_msg=where
                    )


def _typed(counted: tuple[list[Any], list[int]]) -> list[tuple[str, str, int]]:
    """Values with their types and counts."""
    return sorted((str(value), type(value).__name__, count) for value, count in zip(*counted, strict=True))
