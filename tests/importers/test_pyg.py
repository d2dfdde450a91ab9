"""Graphs of PyG become graph directories: what was in the tensors is in the files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyg_graphs import FROM, one_type, two_types

from diskgnn import Graph, convert
from diskgnn.errors import InputError


def test_data_in_memory_and_saved_are_one_graph(tmp_path):
    data = one_type()
    torch.save(data, tmp_path / "data.pt")
    convert(tmp_path / "one", source=data)
    convert(tmp_path / "two", source=tmp_path / "data.pt")
    graph = Graph.open(tmp_path / "one")
    assert Graph.open(tmp_path / "two").manifest.digest == graph.manifest.digest
    np.testing.assert_array_equal(graph.features, data.x.numpy())
    np.testing.assert_array_equal(graph.labels, data.y.numpy())
    assert sorted(graph.splits["train"]) == data.train_mask.nonzero().view(-1).tolist()
    (edges,) = graph.edges.values()
    ends = np.stack([edges.indices, np.repeat(np.arange(120), np.diff(edges.indptr))])
    np.testing.assert_array_equal(ends, data.edge_index[:, torch.from_numpy(np.array(edges.edge_ids))].numpy())
    np.testing.assert_array_equal(edges.features, data.edge_attr[np.array(edges.edge_ids)].numpy())


def test_types_keep_what_each_has(tmp_path):
    data = two_types()
    convert(tmp_path / "graph", source=data)
    graph = Graph.open(tmp_path / "graph")
    assert graph.nodes["user"].config.rows is None
    assert graph.nodes["item"].config.rows.dtype == "bfloat16"
    assert (graph.edges[FROM].config.has_times, graph.edges[FROM].config.rows.num_features) == (True, 3)


def test_what_is_no_graph_says_so(tmp_path):
    torch.save((one_type().to_dict(), {"x": torch.tensor([0, 60, 120])}), tmp_path / "several.pt")
    with pytest.raises(InputError, match="expected one graph, found a data set of several"):
        convert(tmp_path / "graph", source=tmp_path / "several.pt", format="pyg")
    assert not (tmp_path / "graph").exists()
