"""Nothing of a source vanishes: it is read as something, or left out with a reason, and names are of what is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from commands import run
from pyg_graphs import FROM, one_type, two_types
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit, ToSparseTensor

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import ONE_EDGE_TYPE


def read_as(report: Any) -> dict[tuple[str, str], str]:
    return {(item.of, item.name): item.use for item in report.contents.read}


def left_out(report: Any) -> dict[tuple[str, str], str]:
    return {(item.of, item.name): item.reason for item in report.contents.left_out}


def ends_of(graph: Graph) -> list[tuple[int, int]]:
    edges = graph.edges[ONE_EDGE_TYPE]
    indptr, sources = edges.topology()
    return list(zip(np.array(sources).tolist(), np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)).tolist(),
                    strict=True))  # fmt: skip


def test_every_attribute_is_read_or_left_out_and_inspect_says_it_again(tmp_path: Path) -> None:
    data = one_type()
    torch.save(data, tmp_path / "data.pt")
    with pytest.warns(DataWarning, match=r"left out of the graph: token of node \(no option names it.*; name \(it has"):
        report = diskgnn.convert(tmp_path / "graph", source=data)
    names = {name for _, name in (*read_as(report), *left_out(report))}
    assert names == set(data.keys())
    assert read_as(report) == {
        ("node", "x"): "features", ("node", "y"): "labels", ("node", "time"): "times",
        ("node", "train_mask"): "train", ("node:to:node", "edge_index"): "edges",
        ("node:to:node", "edge_attr"): "edge_features", ("node:to:node", "edge_weight"): "weights",
    }  # fmt: skip
    said = run("convert", tmp_path / "cli", "--from", "pyg", tmp_path / "data.pt")
    assert "warning: left out of the graph: token of node" in said.stderr
    assert "x as features" in said.stdout
    shown = run("inspect", tmp_path / "cli")
    assert "edge_weight as weights" in shown.stdout
    assert "it has no row for each node or edge" in shown.stdout
    document = json.loads(run("inspect", tmp_path / "cli", "--json").stdout)
    made = json.loads(run("convert", tmp_path / "json", "--from", "pyg", tmp_path / "data.pt", "--json").stdout)
    assert document["contents"] == made["contents"]
    assert {"of": "node", "name": "token"}.items() <= made["contents"]["left_out"][0].items()


def test_a_graph_of_arrays_has_no_list(tmp_path: Path) -> None:
    x = np.zeros((3, 2), np.float32)
    report = diskgnn.convert(tmp_path / "graph", edges=np.array([[0, 1, 2], [1, 2, 0]]), features=x)
    assert report.contents.read == report.contents.left_out == ()
    assert "source_contents" not in Graph.open(tmp_path / "graph").manifest.config


@pytest.mark.parametrize("option", ["features", "labels", "times", "edge_times", "edge_features", "weights"])
def test_a_name_that_nothing_in_pyg_has_is_an_error(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match=rf"options: {option}: found nothing called 'nosuch'.*node has .*x, .*token"):
        diskgnn.convert(tmp_path / "graph", source=one_type(), options={option: "nosuch"})
    assert not (tmp_path / "graph").exists()


def test_an_attribute_of_nodes_is_no_weight_of_edges(tmp_path: Path) -> None:
    torch.save(one_type(), tmp_path / "data.pt")
    refused = run("convert", tmp_path / "graph", "--from", "pyg", tmp_path / "data.pt", "--set", "weights=x",
                  exit_code=2)  # fmt: skip
    assert "--set: weights: found nothing called 'x' that can be that" in " ".join(refused.stderr.split())


def test_none_leaves_out_what_is_read_otherwise(tmp_path: Path) -> None:
    torch.save(one_type(), tmp_path / "data.pt")
    run("convert", tmp_path / "graph", "--from", "pyg", tmp_path / "data.pt", "--set", "weights=none")
    assert Graph.open(tmp_path / "graph").edges[ONE_EDGE_TYPE].weights is None


@pytest.mark.parametrize("saved", [False, True])
def test_values_of_a_sparse_csr_adjacency_are_weights(tmp_path: Path, saved: bool) -> None:
    ends, weights = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 0, 0, 1]]), torch.tensor([0.5, 2.0, 3.0, 4.0, 5.0])
    data = Data(x=torch.rand(4, 2), edge_index=ends, edge_weight=weights)
    sparse = ToSparseTensor(layout=torch.sparse_csr)(data.clone())
    torch.save(sparse, tmp_path / "data.pt")
    source = tmp_path / "data.pt" if saved else sparse
    report = diskgnn.convert(tmp_path / "graph", source=source)
    graph = Graph.open(tmp_path / "graph")
    found = dict(zip(ends_of(graph), np.array(graph.edges[ONE_EDGE_TYPE].weights).tolist(), strict=True))
    assert found == dict(zip(map(tuple, ends.T.tolist()), weights.tolist(), strict=True))
    assert ("node:to:node", "adj_t") in read_as(report)
    del data.edge_weight
    diskgnn.convert(tmp_path / "ones", source=ToSparseTensor(layout=torch.sparse_csr)(data.clone()))
    assert Graph.open(tmp_path / "ones").edges[ONE_EDGE_TYPE].weights is None
    with pytest.warns(DataWarning, match="values of adj_t of node:to:node"):
        diskgnn.convert(tmp_path / "none", source=sparse, options={"weights": None})


def link_data() -> Data:
    generator = torch.Generator().manual_seed(1)
    pairs = torch.randperm(20 * 20, generator=generator)[:80]
    return Data(x=torch.rand(20, 3, generator=generator), edge_index=torch.stack([pairs // 20, pairs % 20]))


@pytest.mark.parametrize("split_labels", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_what_random_link_split_makes_has_the_seed_edges_of_each_split(
    tmp_path: Path, saved: bool, split_labels: bool
) -> None:
    parts = RandomLinkSplit(split_labels=split_labels)(link_data())
    torch.save(parts, tmp_path / "parts.pt")
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "parts.pt" if saved else parts)
    graph = Graph.open(tmp_path / "graph")
    assert sorted(ends_of(graph)) == sorted(map(tuple, parts[0].edge_index.T.tolist()))
    for split, part in zip(("train", "valid", "test"), parts, strict=True):
        positive = part.pos_edge_label_index if split_labels else part.edge_label_index[:, part.edge_label == 1]
        np.testing.assert_array_equal(graph.edges[ONE_EDGE_TYPE].splits[split], positive.T.numpy())


def test_seed_edges_of_one_graph_need_the_name_of_their_split(tmp_path: Path) -> None:
    part = RandomLinkSplit()(link_data())[1]
    with pytest.warns(DataWarning, match="edge_label_index of node:to:node .*link_split=train"):
        report = diskgnn.convert(tmp_path / "without", source=part)
    assert ("node:to:node", "edge_label_index") in left_out(report)
    diskgnn.convert(tmp_path / "graph", source=part, options={"link_split": "valid"})
    (split,) = Graph.open(tmp_path / "graph").edges[ONE_EDGE_TYPE].splits
    assert split == "valid"
    with pytest.raises(ConfigError, match="link_split: expected one of train, valid, test, found 'val'"):
        diskgnn.convert(tmp_path / "no", source=part, options={"link_split": "val"})
    with pytest.raises(ConfigError, match="link_split=train: expected edge_label_index of edges, found none"):
        diskgnn.convert(tmp_path / "no", source=link_data(), options={"link_split": "train"})
    part.edge_label = torch.arange(len(part.edge_label))
    with pytest.raises(InputError, match=r"edge_label of 1 .edges. and 0 .negative pairs., found 2"):
        diskgnn.convert(tmp_path / "no", source=part, options={"link_split": "valid"})


def test_seed_edges_of_a_type(tmp_path: Path) -> None:
    parts = RandomLinkSplit(edge_types=[FROM])(two_types())
    diskgnn.convert(tmp_path / "graph", source=parts)
    splits = Graph.open(tmp_path / "graph").edges[FROM].splits
    assert {split: len(pairs) for split, pairs in splits.items()} == {
        split: int(part[FROM].edge_label.sum()) for split, part in zip(("train", "valid", "test"), parts, strict=True)
    }


class TensorFrame:
    """Stands in for torch_frame's, which is not installed."""

    num_rows = 60

    def __len__(self) -> int:
        return self.num_rows


def test_what_is_no_tensor_is_left_out_and_said(tmp_path: Path) -> None:
    data = two_types()
    data["item"].tf, data["item"].names = TensorFrame(), ["a"] * 60
    data.version = 3
    with pytest.warns(DataWarning, match=r"tf of item \(a TensorFrame is no tensor\).*names of item \(a list"):
        report = diskgnn.convert(tmp_path / "graph", source=data)
    assert ("", "version") in left_out(report)
    with pytest.raises(ConfigError, match="features: found nothing called 'tf' that can be that"):
        diskgnn.convert(tmp_path / "no", source=data, options={"features": "tf"})


def test_masks_of_nodes_without_labels_and_columns_that_were_not_chosen_are_listed(tmp_path: Path) -> None:
    data = Data(x=torch.rand(4, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), train_mask=torch.ones(4, dtype=bool))
    with pytest.warns(DataWarning, match="train_mask of node .the nodes have no labels"):
        diskgnn.convert(tmp_path / "graph", source=data)
    data.y, data.valid_mask = torch.arange(4) % 2, torch.eye(4, dtype=torch.bool)
    report = diskgnn.convert(tmp_path / "columns", source=data, options={"split": 1})
    assert read_as(report)["node", "valid_mask"] == "valid, column 1 of 4"
    assert Graph.open(tmp_path / "columns").splits["valid"].tolist() == [1]
    del data.valid_mask
    with pytest.raises(ConfigError, match="split=1: expected masks of several columns, found none"):
        diskgnn.convert(tmp_path / "no", source=data, options={"split": 1})


def test_labels_of_several_fractions_in_dgl_are_numbers(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    graph = dgl.graph(([0, 1, 2], [1, 2, 0]))
    graph.ndata["label"], graph.ndata["train_mask"] = torch.tensor([[0.5, 1.7]] * 3), torch.eye(3, dtype=torch.uint8)
    graph.ndata["feat"], graph.edata["kind"] = torch.rand(3, 2).bfloat16(), torch.arange(3)
    dgl.save_graphs(str(tmp_path / "graphs.bin"), [graph], {"toxic": torch.tensor([1])})
    with pytest.warns(DataWarning, match=r"kind of node:to:node \(no option names it"):
        report = diskgnn.convert(tmp_path / "graph", source=tmp_path / "graphs.bin", options={"split": 2})
    assert ("", "toxic") in left_out(report)
    found = Graph.open(tmp_path / "graph")
    assert np.asarray(found.labels).tolist() == graph.ndata["label"].tolist()
    assert found.splits["train"].tolist() == [2]
    assert found.nodes["node"].config.rows is not None
    assert found.nodes["node"].config.rows.dtype == "bfloat16"
    for option in ("features", "labels", "weights", "times"):
        with pytest.raises(ConfigError, match=f"options: {option}: found nothing called 'nosuch'.*kind"):
            diskgnn.convert(tmp_path / "no", source=graph, options={option: "nosuch", "split": 2})


def graphbolt(folder: Path, **more: Any) -> dict[str, Any]:
    """A graph of four edges, three nodes and what `more` says; arrays go to files."""
    folder.mkdir(exist_ok=True)

    def saved(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            path = folder / f"{len(list(folder.iterdir()))}.npy"
            np.save(path, value)
            return path.name
        if isinstance(value, dict):
            return {key: saved(part) for key, part in value.items()}
        return [saved(part) for part in value] if isinstance(value, list) else value

    edges = {"format": "numpy", "path": np.array([[0, 1, 2, 0], [1, 2, 0, 2]])}
    described = saved({"graph": {"nodes": [{"num": 3}], "edges": [edges], **more.pop("graph", {})}, **more})
    (folder / "metadata.yaml").write_text(yaml.safe_dump(described))
    return described


def test_sampling_attributes_of_graphbolt_are_weights_and_times(tmp_path: Path) -> None:
    def record(name: str, values: Any, domain: str = "edge", **more: Any) -> dict[str, Any]:
        return {"domain": domain, "name": name, "format": "numpy", "path": np.asarray(values), **more}

    graphbolt(tmp_path / "set", graph={"feature_data": [
        record("weights", [0.5, 1.5, 2.5, 3.5]), record("timestamp", [10, 20, 30, 40]), record("other", [1, 2, 3, 4]),
        record("timestamp", [1, 2, 3], "node"), record("feat", [[1.0]] * 3, "node", type="user"),
        record("all", [1], "graph"),
    ]}, feature_data=[record("probability", [4, 3, 2, 1])])  # fmt: skip
    with pytest.warns(DataWarning, match="other of node:to:node"):
        report = diskgnn.convert(tmp_path / "graph", source=tmp_path / "set", options={"edge_features": None})
    graph = Graph.open(tmp_path / "graph")
    edges, order = graph.edges[ONE_EDGE_TYPE], [(0, 1), (1, 2), (2, 0), (0, 2)]
    place = [order.index(ends) for ends in ends_of(graph)]
    np.testing.assert_array_equal(edges.weights, np.array([0.5, 1.5, 2.5, 3.5])[place])
    np.testing.assert_array_equal(edges.times, np.array([10, 20, 30, 40])[place])
    assert np.asarray(graph.nodes["node"].times).tolist() == [1, 2, 3]
    assert left_out(report)["user", "feat"] == "the graph has no such type"
    assert "'graph'" in left_out(report)["", "all"]
    # What is asked for is not taken for the only features there are.
    options = {"weights": "probability", "times": None}
    diskgnn.convert(tmp_path / "asked", source=tmp_path / "set", options=options)
    edges = Graph.open(tmp_path / "asked").edges[ONE_EDGE_TYPE]
    np.testing.assert_array_equal(edges.weights, np.array([4, 3, 2, 1])[place])
    assert edges.times is None
    assert edges.config.rows is None
    for option in ("features", "edge_features", "weights", "times"):
        with pytest.raises(ConfigError, match=f"options: {option}: found nothing called 'nosuch'.*probability"):
            diskgnn.convert(tmp_path / "no", source=tmp_path / "set", options={option: "nosuch"})


def test_features_of_graphbolt_with_one_number_each_are_a_column(tmp_path: Path) -> None:
    values = {"node": np.array([1, 2, 3], np.float32), "edge": np.array([4, 5, 6, 7], np.float32)}
    records = [{"domain": of, "name": "feat", "format": "numpy", "path": each} for of, each in values.items()]
    graphbolt(tmp_path / "set", feature_data=records)
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "set")
    graph, order = Graph.open(tmp_path / "graph"), [(0, 1), (1, 2), (2, 0), (0, 2)]
    np.testing.assert_array_equal(graph.features, values["node"][:, None])
    found = graph.edges[ONE_EDGE_TYPE].features
    np.testing.assert_array_equal(found, values["edge"][[order.index(ends) for ends in ends_of(graph)], None])


def test_other_data_of_seeds_of_graphbolt_are_listed(tmp_path: Path) -> None:
    seeds = [{"name": name, "format": "numpy", "path": np.array([0, 1])} for name in ("seeds", "labels", "timestamp")]
    described = graphbolt(
        tmp_path / "set", tasks=[{"name": "nodes", "train_set": [{"data": seeds}]}, {"name": "links"}]
    )
    with pytest.warns(DataWarning, match="timestamp of train_set of node"):
        report = diskgnn.convert(tmp_path / "graph", source=tmp_path / "set", options={"task": "nodes"})
    assert {("node", "seeds of train_set"), ("node", "labels of train_set")} <= set(read_as(report))
    assert ("", "task links") in left_out(report)
    assert described["tasks"]


def test_a_forged_list_is_refused(tmp_path: Path) -> None:
    from diskgnn.errors import ArtifactError
    from diskgnn.formats import artifacts
    from diskgnn.work.writer import ArtifactWriter

    diskgnn.convert(tmp_path / "graph", source=link_data())
    graph = Graph.open(tmp_path / "graph")
    for forged in ([], {"read": []}, {"read": [{}], "left_out": []}, {"read": [], "left_out": [7]}):
        config = {**graph.manifest.config, "source_contents": forged}
        with ArtifactWriter(tmp_path / "forged", artifacts.GRAPH, config=config, overwrite=True) as writer:
            for name in graph.manifest.files:
                writer.add_external(name, tmp_path / "graph" / name, crc32c=graph.manifest.files[name].crc32c)
            writer.publish()
        with pytest.raises(ArtifactError):
            Graph.open(tmp_path / "forged")


def test_columns_of_snap_are_times_and_weights(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# src dst time weight\n0 1 1082040961 5\n1 2 1082155839 6\n2 0 1082414391 7\n")
    of, order = "node:to:node", [(0, 1), (1, 2), (2, 0)]
    with pytest.warns(DataWarning, match="column 3 of .*weights=3 or times=3 reads it.*; column 4 of .*times=4"):
        report = diskgnn.convert(tmp_path / "without", source=path)
    assert list(left_out(report)) == [(of, "column 3"), (of, "column 4")]
    run("convert", tmp_path / "graph", "--from", "snap", path, "--set", "times=true", "--set", "weights=4")
    graph = Graph.open(tmp_path / "graph")
    edges, place = graph.edges[ONE_EDGE_TYPE], [order.index(ends) for ends in ends_of(graph)]
    np.testing.assert_array_equal(edges.times, np.array([1082040961, 1082155839, 1082414391])[place])
    np.testing.assert_array_equal(edges.weights, np.array([5, 6, 7])[place])
    with pytest.raises(ConfigError, match=r"options: times: expected a column .*columns 3 to 4\), found 5"):
        diskgnn.convert(tmp_path / "no", source=path, options={"times": 5})
    with pytest.raises(ConfigError, match="times: expected another column than that of the weights, 3"):
        diskgnn.convert(tmp_path / "no", source=path, options={"times": True, "weights": 3})
    path.write_text("0 1 0.5\n1 2 0.25\n")
    with pytest.raises(InputError, match="a column of fractions is read as weights: `options` weights=3"):
        diskgnn.convert(tmp_path / "no", source=path)
    path.write_text("0 1 7 0.5\n1 2 8 0.25\n")
    with pytest.raises(InputError, match="a column of fractions is read as weights: `options` weights=4"):
        diskgnn.convert(tmp_path / "no", source=path)
    path.write_text("0 1 0.5 1\n1 2 0.25 1\n")
    with pytest.raises(InputError, match="expected whole numbers as times in column 3"):
        diskgnn.convert(tmp_path / "no", source=path, options={"times": 3, "weights": 4})


@pytest.mark.parametrize("saved", [False, True])
def test_values_of_a_matrix_are_listed(tmp_path: Path, saved: bool) -> None:
    import scipy.sparse

    def source(values: list[float]) -> Any:
        matrix = scipy.sparse.csr_matrix((values, ([0, 1], [1, 0])))
        scipy.sparse.save_npz(tmp_path / "m.npz", matrix)
        return tmp_path / "m.npz" if saved else matrix

    with pytest.warns(DataWarning, match="values of node:to:node .weights=true reads them"):
        diskgnn.convert(tmp_path / "left", source=source([1, 2]))
    for name, values, options in (("ones", [1, 1], {}), ("asked", [1, 2], {"weights": False})):
        report = diskgnn.convert(tmp_path / name, source=source(values), options=options)
        assert [item.expected for item in report.contents.left_out] == [True]


def test_what_convert_is_given_beside_a_source_takes_the_place_of_its_own(tmp_path: Path) -> None:
    data = one_type()
    other = np.ones((120, 2), np.float32)
    with pytest.warns(DataWarning, match="token"):
        report = diskgnn.convert(tmp_path / "graph", source=data, features=other, train=[0])
    assert Graph.open(tmp_path / "graph").features.tolist() == other.tolist()
    assert left_out(report)["node", "x"] == "other features were given"
    assert left_out(report)["node", "train_mask"] == "other train were given"
    assert ("node", "x") not in read_as(report)


def test_an_undirected_list_of_snap_says_that_reverse_edges_are_not_added(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# Undirected graph: orkut.txt\n0\t1\n1\t2\n")
    with pytest.warns(DataWarning, match="the word undirected .edges are read as they stand; `reverse` adds"):
        diskgnn.convert(tmp_path / "one", source=path)
    report = diskgnn.convert(tmp_path / "both", source=path, reverse=True)
    assert (report.details["num_edges"], left_out(report)) == (4, {})
    said = run("convert", tmp_path / "cli", "--from", "snap", path)
    assert "--reverse adds the other direction" in " ".join(said.stderr.split())


def test_of_two_times_of_edges_one_is_read_and_the_other_named(tmp_path: Path) -> None:
    data = two_types()
    data[FROM].edge_time = torch.arange(500)
    with pytest.warns(DataWarning, match="edge_time of user:rates:item .the times of edges are read from time"):
        diskgnn.convert(tmp_path / "one", source=data)
    diskgnn.convert(tmp_path / "other", source=data, options={"times": None})
    assert sorted(np.asarray(Graph.open(tmp_path / "other").edges[FROM].times).tolist()) == list(range(500))


def test_attributes_of_stores_are_listed(tmp_path: Path) -> None:
    data = two_types()  # HeteroData is a FeatureStore and a GraphStore
    data["user"].x, data["item"].token = torch.rand(40, 2), torch.arange(60)
    with pytest.warns(DataWarning, match="left out of the graph: token of item"):
        report = diskgnn.convert(tmp_path / "graph", source=(data, data))
    assert read_as(report)["item", "y"] == "labels"
    with pytest.raises(ConfigError, match="options: weights: found nothing called 'token' that can be that"):
        diskgnn.convert(tmp_path / "no", source=(data, data), options={"weights": "token"})
