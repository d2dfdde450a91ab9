"""Labels whose numbers alone say what they are: whole ones stored as floats are told, at every door."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from commands import run
from torch_geometric.data import Data
from user_data import NUM_NODES

import diskgnn
from diskgnn.errors import DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert

CLASSES = torch.arange(NUM_NODES) % 4


def pyg_data(y: torch.Tensor, **more: Any) -> Data:
    ends = torch.stack([torch.arange(NUM_NODES), (torch.arange(NUM_NODES) + 1) % NUM_NODES])
    return Data(x=torch.ones(NUM_NODES, 2), y=y, edge_index=ends, **more)


def test_floats_of_pyg_that_look_like_classes(tmp_path: Path) -> None:
    torch.save(pyg_data(CLASSES.double()), tmp_path / "data.pt")
    told = run("convert", tmp_path / "graph", "--from", "pyg", tmp_path / "data.pt")
    assert "labels float32 [N], a regression target" in told.stdout
    found = r"only 4 different ones (0, 1, 2, 3): if they are classes, pass --set task=class"
    assert found in " ".join(told.stderr.split())
    again = run("convert", tmp_path / "classes", "--from", "pyg", tmp_path / "data.pt", "--set", "task=class")
    assert "num_classes 4" in again.stdout
    convert(tmp_path / "plain", source=pyg_data(CLASSES))
    assert Graph.open(tmp_path / "classes").manifest.digest == Graph.open(tmp_path / "plain").manifest.digest


@pytest.mark.parametrize(
    ("labels", "is_told"),
    [
        (CLASSES / 2, False),
        (torch.where(CLASSES == 3, torch.nan, CLASSES.float()), True),
        (CLASSES.float() - 1, True),
        (CLASSES.bfloat16(), True),
        (CLASSES.float()[:, None], True),
        (torch.arange(NUM_NODES).float(), False),
        (torch.full((NUM_NODES,), torch.nan), False),
        (torch.stack([CLASSES.float(), CLASSES.float()], 1), False),
    ],
)
def test_which_floats_look_like_classes(tmp_path: Path, labels: torch.Tensor, is_told: bool) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        report = convert(tmp_path / "graph", source=pyg_data(labels))
    assert any("if they are classes" in str(each.message) for each in seen) == is_told
    graph = Graph.open(tmp_path / "graph")
    np.testing.assert_array_equal(graph.labels, labels.float().squeeze(1 if labels.shape[1:] == (1,) else -1))
    assert str(report.details["labels"]).startswith("float32 [N")


def test_who_says_regression_is_not_asked(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(tmp_path / "graph", source=pyg_data(CLASSES.float()), options={"task": "regression"})


def test_several_labels_of_each_node_are_told(tmp_path: Path) -> None:
    report = convert(tmp_path / "graph", source=pyg_data(torch.nn.functional.one_hot(CLASSES).float()))
    assert report.details["labels"] == "uint8 [N, 4], 4 labels of 0 or 1 each"


@pytest.mark.parametrize(
    ("y", "task", "expected"),
    [
        (CLASSES / 2, "class", "expected a whole number; found 0.5 at 1"),
        (torch.stack([CLASSES / 2] * 2, 1), "multilabel", "expected 0 or 1; found 0.5 at 1"),
    ],
)
def test_fractions_are_not_cut_to_whole_numbers(tmp_path: Path, y: torch.Tensor, task: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        convert(tmp_path / "graph", source=pyg_data(y), options={"task": task})


def test_weights_and_times_of_bfloat16_are_numbers(tmp_path: Path) -> None:
    weights, times = torch.arange(NUM_NODES) % 7 / 4 + 0.25, torch.arange(NUM_NODES) % 5
    convert(tmp_path / "graph", source=pyg_data(CLASSES, edge_weight=weights.bfloat16(), time=times.bfloat16()))
    graph = Graph.open(tmp_path / "graph")
    (edges,) = graph.edges.values()
    np.testing.assert_array_equal(edges.weights, weights[np.array(edges.edge_ids)].numpy())
    np.testing.assert_array_equal(graph.nodes["node"].times, times.numpy())


def test_floats_of_dgl_that_look_like_classes(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    graph = dgl.graph((torch.arange(NUM_NODES - 1), torch.arange(1, NUM_NODES)), num_nodes=NUM_NODES)
    graph.ndata["label"] = CLASSES.float()
    with pytest.warns(DataWarning, match=r"node: label: .* if they are classes, pass `options` task=class"):
        convert(tmp_path / "graph", source=graph)


def test_floats_of_graphbolt_that_look_like_classes(tmp_path: Path) -> None:
    ids = np.arange(NUM_NODES)
    for name, array in {"seeds": ids, "labels": CLASSES.float().numpy(), "edges": np.stack([ids, ids[::-1]])}.items():
        np.save(tmp_path / f"{name}.npy", array)
    data = [{"name": name, "format": "numpy", "path": f"{name}.npy"} for name in ("seeds", "labels")]
    task = {"name": "nodes", "train_set": [{"data": data}]}
    edges = [{"format": "numpy", "path": "edges.npy"}]
    described = {"graph": {"nodes": [{"num": NUM_NODES}], "edges": edges}, "tasks": [task]}
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(described))
    with pytest.warns(DataWarning, match=r"labels of node: .* if they are classes, say num_classes in the metadata"):
        convert(tmp_path / "graph", source=tmp_path / "metadata.yaml")
    np.save(tmp_path / "labels.npy", CLASSES.numpy() / 2)
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(described | {"tasks": [task | {"num_classes": 4}]}))
    with pytest.raises(InputError, match=r"labels of node in .*: expected a whole number; found 0.5 at 1"):
        convert(tmp_path / "none", source=tmp_path / "metadata.yaml")


def test_labels_of_all_sets_of_graphbolt_are_of_one_task(tmp_path: Path) -> None:
    half, files = NUM_NODES // 2, {"edges": np.stack([np.arange(NUM_NODES)] * 2)}
    sets = {}
    for split, part in {"train_set": slice(half), "test_set": slice(half, None)}.items():
        files |= {f"{split}-seeds": np.arange(NUM_NODES)[part], f"{split}-labels": CLASSES.numpy()[part]}
        stored = {name: f"{split}-{name}.npy" for name in ("seeds", "labels")}
        sets[split] = [{"data": [{"name": name, "format": "numpy", "path": path} for name, path in stored.items()]}]
    graph = {"nodes": [{"num": NUM_NODES}], "edges": [{"format": "numpy", "path": "edges.npy"}]}
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump({"graph": graph, "tasks": [{"name": "nodes", **sets}]}))
    for name, array in (files | {"test_set-labels": np.full(NUM_NODES - half, np.nan)}).items():
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(InputError, match=rf"test: {NUM_NODES - half} of .* have no label \(-1\)"):  # no targets
        convert(tmp_path / "none", source=tmp_path / "metadata.yaml")
    np.save(tmp_path / "test_set-labels.npy", CLASSES.numpy()[half:] + 0.5)
    with pytest.raises(InputError, match=r"labels of node in .*: expected a whole number; found 1.5 at"):
        convert(tmp_path / "none", source=tmp_path / "metadata.yaml")


def test_fractions_of_ogb(tmp_path: Path) -> None:
    raw, labels = tmp_path / "arxiv" / "raw", CLASSES.numpy()[:, None] / 2
    raw.mkdir(parents=True)
    tables = {"edge": [[0, 1], [1, 2]], "num-node-list": [[NUM_NODES]], "num-edge-list": [[2]], "node-label": labels}
    for name, rows in tables.items():
        np.savetxt(raw / f"{name}.csv.gz", rows, "%g", delimiter=",")
    refused = run("convert", tmp_path / "none", "--from", "ogb", tmp_path / "arxiv", exit_code=3)
    assert "expected a whole number; found 0.5 at 1" in refused.stderr
    assert "for regression, pass --set task=regression" in " ".join(refused.stderr.split())
    report = convert(tmp_path / "graph", source=tmp_path / "arxiv", options={"task": "regression"})
    assert report.details["labels"] == "float32 [N], a regression target"
    np.savetxt(raw / "node-label.csv.gz", np.repeat(labels, 2, axis=1), "%g", delimiter=",")
    with pytest.raises(InputError, match=r"expected 0 or 1; found 0\.5 at 1"):
        convert(tmp_path / "none", source=tmp_path / "arxiv")


def test_floats_of_seeds_that_look_like_classes(tmp_path: Path) -> None:
    convert(tmp_path / "graph", source=pyg_data(CLASSES))
    (tmp_path / "seeds.csv").write_text("id,label,split\n0,1.0,train\n1,0.0,train\n2,,test\n3,1.0,test\n")
    with pytest.warns(DataWarning, match=r"2 different ones \(0, 1\): if they are classes, pass task='class'"):
        found = diskgnn.read_target(tmp_path / "graph", tmp_path / "seeds.csv")
    assert found.labels["train"].dtype == np.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diskgnn.read_target(tmp_path / "graph", tmp_path / "seeds.csv", task="class")
    assert found.labels["train"].tolist() == [1, 0]


def test_what_a_data_set_has_is_no_flag_that_was_given(tmp_path: Path) -> None:
    masks = {"train_mask": torch.arange(NUM_NODES) < 9}
    torch.save(pyg_data(CLASSES, **masks), tmp_path / "data.pt")
    command = ["convert", tmp_path / "graph", "--from", "pyg", tmp_path / "data.pt"]
    told = " ".join(run(*command, "--num-classes", 2, exit_code=3).stderr.split())
    assert "error: labels: expected 0 to 1" in told
    told = " ".join(run(*command, "--random-split", "0.5,0.2,0.3", exit_code=2).stderr.split())
    assert "--random-split: expected nodes that are in no split, found train; leave this out, or what says" in told
    assert "--exclude" not in told
