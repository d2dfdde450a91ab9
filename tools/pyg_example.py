"""Run an example program of PyG's repository on a graph directory, with PyG's loaders or with those of diskgnn.pyg.

    python datasets/debian_packages.py packages
    python tools/pyg_example.py pytorch_geometric/examples/reddit.py packages --loader pyg --seed 0
    python tools/pyg_example.py pytorch_geometric/examples/reddit.py packages --loader diskgnn --seed 0

The program runs as it is, but for the number of its epochs and its worker processes: the graph stands in place of the
data set that it imports from `torch_geometric.datasets`, and with `--loader diskgnn` our loaders in place of those that
it imports from `torch_geometric.loader`. PyG's loaders need pyg-lib. In a graph of several types the labelled one gets
the name that the program knows, `--calls`; a type that had this name gets that of the labelled one. A program that
starts from all edges takes long, and much disk space: `--part` gives it fewer. A program for users and items gets the
sources and the destinations of a graph of one type as such.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.datasets
import torch_geometric.loader
import torch_geometric.transforms
from torch_geometric.data import Data, HeteroData

import diskgnn.pyg
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet, NodeSet

DATASETS = ("Reddit", "Planetoid", "OGB_MAG")
BIPARTITE = "Taobao"


def main() -> None:
    """Run it; it prints."""
    options = _options()
    data = _data(options)
    for name in DATASETS:
        setattr(torch_geometric.datasets, name, partial(GraphDirectory, data))
    if isinstance(data, Data):
        setattr(torch_geometric.datasets, BIPARTITE, lambda *_, **__: [_users_and_items(data)])
    if options.loader == "diskgnn":
        ours = {"seed": options.seed, "prepared_epochs": options.prepared or options.epochs}
        for name in ("NeighborLoader", "LinkNeighborLoader"):
            setattr(torch_geometric.loader, name, partial(getattr(diskgnn.pyg, name), **ours))
    text = re.sub(r"range\(1, \d+\)", f"range(1, {options.epochs + 1})", options.program.read_text())
    text = re.sub(r"'num_workers': \d+, 'persistent_workers': True", "'num_workers': 0", text)
    torch.manual_seed(options.seed)
    sys.argv = [str(options.program)]
    with tempfile.TemporaryDirectory() as os.environ["XDG_CACHE_HOME"]:
        exec(compile(text, sys.argv[0], "exec"), {"__name__": "__main__", "__file__": sys.argv[0]})


class GraphDirectory:
    """The data of a graph directory, as the data sets of PyG are asked for theirs."""

    def __init__(self, data: Data | HeteroData, *_: Any, transform: Any = None, **__: Any) -> None:
        (target,) = (store for store in data.node_stores if "y" in store)
        self.num_classes, self.num_features = int(target.y.max()) + 1, target.x.shape[1]
        self.data = data if transform is None else transform(data)

    def __getitem__(self, number: int) -> Data | HeteroData:
        return self.data


def _data(options: argparse.Namespace) -> Data | HeteroData:
    graph = Graph.open(options.graph)
    if not graph.is_typed:
        data = _plain(graph)
        kept = np.random.default_rng(0).permutation(data.num_nodes)[: options.part]
        return data if options.part is None else data.subgraph(torch.from_numpy(np.sort(kept)))
    if options.part is not None:
        raise SystemExit("error: --part: expected a graph without types")
    (target,) = (name for name, nodes in graph.nodes.items() if nodes.config.target is not None)
    return _typed(graph, {} if options.calls is None else {target: options.calls, options.calls: target})


def _plain(graph: Graph) -> Data:
    (nodes,), (edges,) = graph.nodes.values(), graph.edges.values()
    return Data(edge_index=_edge_index(edges), **_attributes(nodes))


def _typed(graph: Graph, names: dict[str, str]) -> HeteroData:
    data = HeteroData()
    for name, nodes in graph.nodes.items():
        for attribute, value in _attributes(nodes).items():
            data[names.get(name, name)][attribute] = value
    for (source, relation, destination), edges in graph.edges.items():
        data[names.get(source, source), relation, names.get(destination, destination)].edge_index = _edge_index(edges)
    return data


def _users_and_items(data: Data) -> HeteroData:
    """Nodes with out-edges are users, nodes with in-edges items. The program deletes the rest of what Taobao has."""
    found = HeteroData()
    users, row = data.edge_index[0].unique(return_inverse=True)
    items, col = data.edge_index[1].unique(return_inverse=True)
    found["user"].num_nodes, found["item"].num_nodes, found["category"].num_nodes = len(users), len(items), 1
    found["user", "to", "item"].edge_index = torch.stack([row, col])
    found["user", "to", "item"].time = found["user", "to", "item"].behavior = torch.zeros(len(row))
    found["item", "to", "category"].edge_index = torch.empty((2, 0), dtype=torch.int64)
    return found


def _attributes(nodes: NodeSet) -> dict[str, Any]:
    found: dict[str, Any] = {"num_nodes": nodes.num_nodes}
    if nodes.feature_file is not None:
        found["x"] = nodes.feature_file.x(nodes.feature_file.rows.as_tensor(np.array(nodes.features)))
    else:
        found["x"] = torch.ones(nodes.num_nodes, 1)
    if nodes.labels is not None:
        found["y"] = torch.from_numpy(np.array(nodes.labels_of(np.arange(nodes.num_nodes)))).long()
    for split, name in (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask")):
        if split in nodes.splits:
            found[name] = torch.zeros(nodes.num_nodes, dtype=torch.bool)
            found[name][torch.from_numpy(np.array(nodes.splits[split]))] = True
    return found


def _edge_index(edges: EdgeSet) -> torch.Tensor:
    indptr, sources = np.array(edges.indptr, np.int64), np.array(edges.indices, np.int64)
    return torch.from_numpy(np.stack([sources, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="an example of PyG's repository")
    parser.add_argument("graph", type=Path, help="a graph directory")
    parser.add_argument("--loader", choices=("pyg", "diskgnn"), required=True, help="whose loaders it imports")
    parser.add_argument("--epochs", type=int, default=10, help="of training (default 10)")
    parser.add_argument("--prepared", type=int, help="epochs that diskgnn.pyg prepares (default: all of them)")
    parser.add_argument("--seed", type=int, default=0, help="of the model and of draws (default 0)")
    parser.add_argument("--calls", help="what the program calls the labelled node type")
    parser.add_argument("--part", type=int, metavar="NODES", help="only so many nodes, at random, and edges among them")
    return parser.parse_args()


if __name__ == "__main__":
    main()
