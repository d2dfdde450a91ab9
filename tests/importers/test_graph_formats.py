"""Graphs in the formats of GraphBolt, DGL, the original DiskGNN and SNAP, against what they were made from."""

from __future__ import annotations

import gzip
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from commands import run
from user_data import NUM_NODES, WIDTH, small_data

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.specs.schema import ONE_EDGE_TYPE

SPLITS = ("train", "valid", "test")


@pytest.fixture
def data() -> dict[str, Any]:
    return small_data()


def same(one: Path, other: Path) -> None:
    assert Graph.open(one).manifest.files == Graph.open(other).manifest.files


def save(path: Path, array: Any, kind: str) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "csv":
        np.savetxt(path, np.asarray(array).T, "%d", delimiter=",")
    elif kind == "torch":
        torch.save(torch.as_tensor(np.ascontiguousarray(array)), path)
    else:
        np.save(path.with_suffix(".npy"), array)
        path = path.with_suffix(".npy")
    return {"format": kind, "path": str(path.relative_to(path.parents[1])), "in_memory": False}


@pytest.mark.parametrize(("edges_as", "data_as"), [("csv", "torch"), ("numpy", "numpy")])
def test_graphbolt(tmp_path: Path, data: dict[str, Any], edges_as: str, data_as: str) -> None:
    folder, label = tmp_path / "set", data["labels"]
    sets = {"train_set": "train", "validation_set": "valid", "test_set": "test"}
    described = {
        "dataset_name": "small",
        "graph": {"nodes": [{"num": NUM_NODES}], "edges": [save(folder / "edges" / "e.csv", data["edges"], edges_as)]},
        "feature_data": [
            {"domain": "node", "type": None, "name": "feat", **save(folder / "data" / "x", data["features"], data_as)},
            {"domain": "node", "type": None, "name": "other", **save(folder / "data" / "other", label, data_as)},
        ],
        "tasks": [{"name": "node_classification", "num_classes": 4, **{
            key: [{"type": None, "data": [
                {"name": "seeds", **save(folder / "set" / f"{split}-seeds", data[split], data_as)},
                {"name": "labels", **save(folder / "set" / f"{split}-labels", label[data[split]], data_as)},
            ]}] for key, split in sets.items()
        }}],
    }  # fmt: skip
    (folder / "metadata.yaml").write_text(yaml.safe_dump(described))
    convert(tmp_path / "plain", **data, num_classes=4, reverse=True)
    convert(tmp_path / "out", source=folder, reverse=True, memory="1MiB")
    same(tmp_path / "out", tmp_path / "plain")
    described["tasks"].append({"name": "link_prediction"})
    (folder / "metadata.yaml").write_text(yaml.safe_dump(described))
    with pytest.raises(ConfigError, match="expected the option task, one of node_classification, link_prediction"):
        convert(tmp_path / "two", source=folder / "metadata.yaml")
    convert(tmp_path / "one", source=folder / "metadata.yaml", options={"task": "node_classification"}, reverse=True)
    same(tmp_path / "one", tmp_path / "plain")
    del described["graph"]["nodes"][0]["num"]
    (folder / "metadata.yaml").write_text(yaml.safe_dump(described))
    with pytest.raises(InputError, match="expected num: int in"):
        convert(tmp_path / "none", source=folder)


def test_graphbolt_with_types_and_links(tmp_path: Path) -> None:
    folder, rng = tmp_path / "set", np.random.default_rng(2)
    writes = np.stack([rng.integers(0, 8, 50), rng.integers(0, 20, 50)])
    x, weights = rng.standard_normal((20, 3), np.float32), rng.random(50, np.float32)
    pairs = {split: rng.permutation(160)[:12] for split in SPLITS}
    pairs = {split: np.stack([ids // 20, ids % 20], axis=1) for split, ids in pairs.items()}
    labels = np.array([1, 0, 0] * 4)  # of valid and test two of three are negatives
    sets = {"train_set": "train", "validation_set": "valid", "test_set": "test"}
    described = {
        "graph": {"nodes": [{"type": "user", "num": 8}, {"type": "item", "num": 20}],
                  "edges": [{"type": "user:writes:item", **save(folder / "edges" / "w", writes, "numpy")}]},
        "feature_data": [
            {"domain": "node", "type": "item", "name": "vectors", **save(folder / "data" / "x", x, "torch")},
            {"domain": "edge", "type": "user:writes:item", "name": "w",
             **save(folder / "data" / "w", weights, "numpy")},
            {"domain": "edge", "type": "user:writes:item", "name": "feat",
             **save(folder / "data" / "f", weights[:, None], "numpy")},
        ],
        "tasks": [{"name": "links", **{
            key: [{"type": "user:writes:item", "data": [
                {"name": "seeds", **save(folder / "set" / f"{split}", pairs[split], "numpy")},
                *[{"name": "labels", **save(folder / "set" / f"{split}-l", labels, "numpy")}] * (split != "train"),
            ]}] for key, split in sets.items()
        }}],
    }  # fmt: skip
    (folder / "metadata.yaml").write_text(yaml.safe_dump(described))
    convert(tmp_path / "out", source=folder, options={"weights": "w"}, reverse=True)
    seeds = {split: edges if split == "train" else edges[::3] for split, edges in pairs.items()}
    convert(tmp_path / "plain", schema={
        "nodes": {"user": {"num_nodes": 8}, "item": {"features": x}},
        "edges": {"user:writes:item": {"edges": writes, "weights": weights, "features": weights[:, None],
                                       "reverse": True, **seeds}},
    })  # fmt: skip
    same(tmp_path / "out", tmp_path / "plain")


def fill(graph: Any, data: dict[str, Any]) -> Any:
    graph.ndata["feat"], graph.ndata["label"] = torch.as_tensor(data["features"]), torch.as_tensor(data["labels"])
    for split, name in zip(SPLITS, ("train_mask", "val_mask", "test_mask"), strict=True):
        graph.ndata[name] = torch.zeros(NUM_NODES, dtype=torch.bool)
        graph.ndata[name][torch.as_tensor(data[split].copy())] = True
    return graph


def test_dgl(tmp_path: Path, data: dict[str, Any]) -> None:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    src, dst = (torch.as_tensor(ends) for ends in data["edges"])
    graph = fill(dgl.graph((src, dst), num_nodes=NUM_NODES), data)
    graph.edata["w"] = torch.rand(300)
    dgl.save_graphs(str(tmp_path / "graphs.bin"), [graph, dgl.graph(([0], [1]))])
    edges = {"node:to:node": {"edges": data["edges"], "weights": graph.edata["w"].numpy()}}
    nodes = {name: data[name] for name in ("features", "labels")} | {split: np.sort(data[split]) for split in SPLITS}
    convert(tmp_path / "plain", schema={"nodes": {"node": nodes}, "edges": edges})
    for number, source in enumerate((graph, tmp_path / "graphs.bin")):
        options = {"weights": "w"} | ({"number": "0"} if number else {})
        diskgnn.convert(tmp_path / str(number), source=source, options=options)
        same(tmp_path / str(number), tmp_path / "plain")
    with pytest.raises(InputError, match="expected one graph, found 2; pass `options` number=K, from 0 to 1"):
        convert(tmp_path / "none", source=tmp_path / "graphs.bin")
    refused = run("convert", tmp_path / "none", "--from", "dgl", tmp_path / "graphs.bin", exit_code=3)
    assert "pass --set number=K, from 0 to 1" in " ".join(refused.stderr.split())
    with pytest.raises(InputError, match="expected a graph number 2, found 2 graphs"):
        convert(tmp_path / "none", source=tmp_path / "graphs.bin", options={"number": "2"})


def test_dgl_with_types(tmp_path: Path) -> None:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    pairs = np.random.default_rng(3).integers(0, 6, (2, 40))
    ends = tuple(torch.as_tensor(side) for side in pairs)
    graph = dgl.heterograph({("a", "to", "b"): ends, ("b", "to", "a"): ends[::-1]}, {"a": 6, "b": 7})
    graph.nodes["b"].data["feat"] = torch.rand(7, 3)
    graph.nodes["b"].data["label"] = torch.arange(7) % 2
    graph.nodes["b"].data["train_mask"] = torch.ones(7, dtype=torch.uint8)
    diskgnn.convert(tmp_path / "out", source=graph)
    nodes = {"features": graph.nodes["b"].data["feat"].numpy(), "labels": np.arange(7) % 2, "train": np.arange(7)}
    convert(tmp_path / "plain", schema={
        "nodes": {"a": {"num_nodes": 6}, "b": nodes},
        "edges": {"a:to:b": {"edges": pairs}, "b:to:a": {"edges": pairs[::-1]}},
    })  # fmt: skip
    same(tmp_path / "out", tmp_path / "plain")


@pytest.mark.parametrize("offset", [0, 10])
def test_the_original_diskgnn(
    tmp_path: Path, data: dict[str, Any], offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its prepare_dataset.py saves it; GraphBolt's classes are stood in for by empty ones of the same names."""
    convert(tmp_path / "plain", **{**data, "labels": np.where(np.arange(NUM_NODES) < offset, -1, data["labels"]),
                                   "train": data["train"][:10]}, num_classes=4)  # fmt: skip
    plain, folder = Graph.open(tmp_path / "plain"), tmp_path / "small-offgs"
    folder.mkdir()
    script = type("ScriptObject", (), {"__module__": "torch._C"})
    of_graphbolt = type("FusedCSCSamplingGraph", (), {"__module__": "dgl.graphbolt.impl.fused_csc_sampling_graph"})
    script.__getstate__ = lambda self: (  # type: ignore[attr-defined]
        {"independent_tensors": {"version_number": torch.tensor([1]), "indptr": torch.as_tensor(np.array(plain.indptr)),
                                 "indices": torch.as_tensor(np.array(plain.indices)),
                                 "type_per_edge": torch.zeros(300)}},
        "__torch__.torch.classes.graphbolt.FusedCSCSamplingGraph",
    )  # fmt: skip
    graph = of_graphbolt()
    graph._c_csc_graph = script()
    with monkeypatch.context() as patch:
        module = types.ModuleType(of_graphbolt.__module__)
        module.FusedCSCSamplingGraph = of_graphbolt  # type: ignore[attr-defined]
        for name in ("dgl.graphbolt", "dgl.graphbolt.impl", of_graphbolt.__module__):
            patch.setitem(sys.modules, name, module)
        patch.setitem(sys.modules, "dgl", module)
        patch.setattr(torch._C, "ScriptObject", script)
        torch.save(graph, folder / "graph.pth")
    data["features"].tofile(folder / "features.bin")
    labels = np.where(data["labels"] < 0, 404.0, data["labels"])[offset:]
    torch.save(torch.as_tensor(labels), folder / "labels.pth")
    torch.save({split: torch.as_tensor(plain.splits[split]) for split in SPLITS}, folder / "split_idx.pth")
    conf = {"num_nodes": NUM_NODES, "features_shape": [NUM_NODES, WIDTH], "features_dtype": "torch.float32",
            "num_classes": 4, "label_offset": offset}  # fmt: skip
    (folder / "conf.json").write_text(json.dumps(conf))
    with pytest.warns(DataWarning, match="graph.pth: type_per_edge of node:to:node"):
        convert(tmp_path / "out", source=folder)
    same(tmp_path / "out", tmp_path / "plain")
    torch.save({"x": types.SimpleNamespace}, folder / "graph.pth")
    with pytest.raises(InputError, match=r"graph: .* is nothing that torch\.load\(weights_only=True\) reads"):
        convert(tmp_path / "no", source=folder)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("delimiter", ["\t", " ", ","])
def test_snap(tmp_path: Path, data: dict[str, Any], compressed: bool, delimiter: str) -> None:
    edges = data["edges"]
    text = f"# Directed graph\n# Nodes: {NUM_NODES} Edges: 300\n# FromNodeId\tToNodeId\n"
    text += "".join(f"{src}{delimiter}{dst}\n" + "# in between\n" * int(src == 7) for src, dst in edges.T)
    path = tmp_path / ("edges.txt.gz" if compressed else "edges.txt")
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    rest = {name: value for name, value in data.items() if name != "edges"}
    convert(tmp_path / "plain", **data)
    convert(tmp_path / "out", source=path, format="snap", **rest)
    same(tmp_path / "out", tmp_path / "plain")


def test_snap_with_sparse_ids_and_weights(tmp_path: Path, data: dict[str, Any]) -> None:
    ids = np.sort(np.random.default_rng(4).permutation(10_000)[:NUM_NODES])
    mentioned = np.unique(data["edges"])
    lines = [f"{ids[src]}\t{ids[dst]}\t{number}.5" for number, (src, dst) in enumerate(data["edges"].T)]
    (tmp_path / "edges.txt").write_text(f"# Nodes: {len(mentioned)}\n" + "\n".join(lines) + "\n")
    convert(tmp_path / "out", source=tmp_path / "edges.txt", options={"weights": True})
    graph = Graph.open(tmp_path / "out")
    assert graph.nodes["node"].num_nodes == len(mentioned)
    assert graph.nodes["node"].user_ids is not None
    kept = graph.nodes["node"].user_ids.read().column("id").to_numpy()
    np.testing.assert_array_equal(kept, ids[mentioned])
    dense = {"edges": np.searchsorted(mentioned, data["edges"]), "weights": np.arange(300) + 0.5}
    convert(
        tmp_path / "plain", schema={"nodes": {"node": {"num_nodes": len(mentioned)}}, "edges": {"node:to:node": dense}}
    )
    plain = Graph.open(tmp_path / "plain")
    np.testing.assert_array_equal(graph.indices, plain.indices)
    np.testing.assert_array_equal(graph.edges[ONE_EDGE_TYPE].weights, plain.edges[ONE_EDGE_TYPE].weights)


def test_snap_without_edges_or_numbers(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    for text, message in (("# nothing\n", "expected rows of numbers, found none"), ("one\ttwo\n", "int64 numbers"),
                          ("1\n2\n", "expected at least 2 columns"), ("1\t2\n3\n", "Expected 2 columns")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            convert(tmp_path / "out", source=path, format="snap")
    assert not (tmp_path / "out").exists()
