"""Graphs of PyG become graph directories: what was in the tensors is in the files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyg_graphs import FROM, one_type, two_types
from torch_geometric.data import Data, InMemoryDataset

from diskgnn import Graph, TableColumns, convert
from diskgnn.errors import ConfigError, InputError


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


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (TableColumns(label="y"), "columns: expected a table that has them"),
        (TableColumns(encode={"x": "number"}), "encode: expected a source with columns .*, found one of format pyg"),
    ],
)
def test_columns_of_no_table_are_refused(tmp_path, columns, told):
    """They were left unread."""
    with pytest.raises(ConfigError, match=told):
        convert(tmp_path / "graph", source=one_type(), columns=columns)
    nodes = pa.table({"y": np.arange(120) % 2, "x": np.arange(120.0), "split": ["train"] * 120})
    pq.write_table(nodes, tmp_path / "nodes.parquet")
    source = Data(edge_index=one_type().edge_index, num_nodes=120)
    convert(tmp_path / "graph", source=source, nodes=tmp_path / "nodes.parquet", columns=TableColumns(label="y"))
    np.testing.assert_array_equal(Graph.open(tmp_path / "graph").labels, np.arange(120) % 2)


def test_a_graph_that_was_used_before_it_was_saved(tmp_path):
    """PyG then keeps in it what kind each attribute is."""
    data = one_type()
    torch.save(data, tmp_path / "fresh.pt")
    assert data.is_node_attr("x")
    assert data.is_edge_attr("edge_attr")
    torch.save(data, tmp_path / "used.pt")
    convert(tmp_path / "fresh", source=tmp_path / "fresh.pt")
    convert(tmp_path / "used", source=tmp_path / "used.pt")
    assert Graph.open(tmp_path / "used").manifest.digest == Graph.open(tmp_path / "fresh").manifest.digest


def test_files_without_a_graph_are_called_what_they_are(tmp_path):
    (tmp_path / "empty.pt").touch()
    (tmp_path / "text.pt").write_text("0 1\n1 2\n")
    for source, found in (("empty.pt", "an empty file"), ("text.pt", "a text file"), ("", r"a folder \(empty.pt")):
        with pytest.raises(InputError, match=f"expected a graph of PyG that torch.save wrote, found {found}"):
            convert(tmp_path / "graph", source=tmp_path / source, format="pyg")


def test_empty_types_are_named(tmp_path):
    data = two_types()
    data["v"].num_nodes = 0
    with pytest.raises(InputError, match="node type v: expected at least one node, found none"):
        convert(tmp_path / "graph", source=data)
    with pytest.raises(InputError, match="node type node: expected at least one node, found none"):
        convert(tmp_path / "graph", source=Data(x=torch.randn(0, 3), edge_index=torch.empty(2, 0, dtype=torch.long)))


def test_times_of_edges_have_a_name_of_their_own(tmp_path):
    ends = torch.tensor([[0, 1, 2], [1, 2, 0]])
    both = Data(x=torch.rand(3, 2), edge_index=ends, time=torch.tensor([7, 8, 9]), edge_time=torch.tensor([1, 2, 3]))
    convert(tmp_path / "graph", source=both)
    graph = Graph.open(tmp_path / "graph")
    (edges,) = graph.edges.values()
    assert edges.times.tolist() == both.edge_time[torch.from_numpy(np.array(edges.edge_ids))].tolist()
    assert graph.nodes["node"].times.tolist() == [7, 8, 9]


class OneOf(InMemoryDataset):
    """Graphs in memory, as data sets of PyG have them."""

    def __init__(self, graphs):
        super().__init__()
        self.data, self.slices = self.collate(graphs)


@pytest.mark.parametrize("make", [one_type, two_types])
def test_a_data_set_of_one_graph_is_that_graph(tmp_path, make):
    data = make()
    convert(tmp_path / "graph", source=data)
    expected = Graph.open(tmp_path / "graph").manifest.digest
    collated, slices = InMemoryDataset.collate([make()])
    kind = type(data)
    given = {"none": (data, None), "slices": (collated, slices), "dict": (collated.to_dict(), slices, kind),
             "set": OneOf([make()])}  # fmt: skip
    if make is one_type:  # HeteroData is read as the two stores that it is
        given["both"] = (data, data)
    for name, source in given.items():
        convert(tmp_path / name, source=source)
        assert Graph.open(tmp_path / name).manifest.digest == expected, name


@pytest.mark.parametrize("make", [one_type, two_types])
def test_tuples_that_are_no_graph_say_what_they_hold(tmp_path, make):
    collated, slices = InMemoryDataset.collate([make(), make()])
    for source in ((collated, slices), (collated.to_dict(), slices, type(collated)), OneOf([make(), make()])):
        with pytest.raises(InputError, match="source: expected one graph, found a data set of several"):
            convert(tmp_path / "graph", source=source)
    torch.save((collated.to_dict(), slices, type(collated)), tmp_path / "several.pt")
    with pytest.raises(InputError, match="expected one graph, found a data set of several"):
        convert(tmp_path / "graph", source=tmp_path / "several.pt")
    for source in ((one_type(), make()), (make(), 1)):
        with pytest.raises(InputError, match=r"source: expected Data .*, found \(\w*Data, "):
            convert(tmp_path / "graph", source=source)
    torch.save(({"a": 1}, {"b": 2}, None), tmp_path / "others.pt")
    with pytest.raises(InputError, match=r"expected Data .*, found \(dict, dict, NoneType\)"):
        convert(tmp_path / "graph", source=tmp_path / "others.pt", format="pyg")
    for source in ((1, 2), (), (make(), None, None, None)):
        with pytest.raises(ConfigError, match="expected something that a format recognises"):
            convert(tmp_path / "graph", source=source)
