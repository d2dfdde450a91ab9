"""A typed graph once more, with how many edges a node has among its features.

    python datasets/degrees.py GRAPH OUT

A mean over sampled neighbours cannot tell a node that many point to from one that few do, and which nodes are often
pointed to is half of predicting links. So each node type with features gets a column for each edge type that it is an
end of (reverse types left out): the logarithm of 1 + the degree, standardised. Only edges count, not the seeds of
splits: where links to be predicted are among the edges, as those of later papers in the graph of genes, their number
is a part of the answer, and this is of no use.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskgnn
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.specs.schema import edge_type_name


def load(graph: Graph) -> dict[str, Any]:
    """The graph with these columns as a description for `diskgnn.convert(..., schema=...)`."""
    return {
        "nodes": {name: _described_nodes(graph, nodes) for name, nodes in graph.nodes.items()},
        "edges": {edge_type_name(edges.type): _described_edges(edges) for edges in graph.edges.values()},
    }


def degrees(graph: Graph, name: str) -> list[npt.NDArray[np.float32]]:
    """[N] standardised logarithms of the degrees of a node type, by edge type and end."""
    found = []
    for (source, kind, destination), edges in graph.edges.items():
        if kind.startswith("rev_"):
            continue
        counts = {source: np.bincount(np.asarray(edges.indices), minlength=graph.nodes[source].num_nodes)}
        ends = [(source, counts[source]), (destination, np.diff(np.asarray(edges.indptr)))]
        found += [np.log1p(count) for end, count in ends if end == name]
    return [((each - each.mean()) / max(float(each.std()), 1e-9)).astype(np.float32) for each in found]


def _described_nodes(graph: Graph, nodes: NodeSet) -> dict[str, Any]:
    if nodes.config.rows is None:
        found: dict[str, Any] = {"num_nodes": nodes.num_nodes}
    else:
        columns = degrees(graph, nodes.name)
        found = {"features": np.concatenate([np.asarray(nodes.features), *(each[:, None] for each in columns)], axis=1)}
    if nodes.config.target is not None:
        found["task"] = nodes.config.target.kind
        found["labels"] = nodes.labels_of(np.arange(nodes.num_nodes))
    if nodes.config.has_times:
        found["times"] = nodes.times_of(np.arange(nodes.num_nodes))
    return found | dict(nodes.splits)


def _described_edges(edges: EdgeSet) -> dict[str, Any]:
    indptr = np.asarray(edges.indptr)
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    found: dict[str, Any] = {"edges": np.stack([np.asarray(edges.indices).astype(np.int64), destinations])}
    if edges.times is not None:
        found["times"] = np.asarray(edges.times)
    return found | {split: pairs.T for split, pairs in edges.splits.items()}


def main() -> None:
    """Write the graph directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("out", type=Path, help="graph directory to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    options = parser.parse_args()
    diskgnn.convert(options.out, schema=load(Graph.open(options.graph)), overwrite=options.overwrite)


if __name__ == "__main__":
    main()
