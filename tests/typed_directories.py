"""The small graph of `typed_batches` as a graph directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from graphs import chunk_checksums
from typed_batches import CLASSES, EDGE_WIDTHS, NODES, NUM_EDGES, WIDTHS, WRITES, TypedGraph

from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file, node_file
from diskgnn.formats.graph_config import EdgeTypeConfig, GraphConfig, NodeTypeConfig, TargetConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import SPLITS
from diskgnn.work.writer import ArtifactWriter

PAPER_SPLITS = dict(zip(SPLITS, np.split(np.random.default_rng(5).permutation(NODES["paper"]), [24, 32]), strict=True))


def paper_labels(graph: TypedGraph, kind: str) -> np.ndarray:
    """Of some kind, as features say."""
    x = graph.x["paper"].numpy()
    return {
        "class": lambda: x[:, :CLASSES].argmax(1).astype(np.int64),
        "multilabel": lambda: (x[:, :4] > 0.3).astype(np.uint8),
        "regression": lambda: (x[:, :2] * 5 + 3).astype(np.float32),
    }[kind]()


def seed_edges(graph: TypedGraph) -> dict[str, np.ndarray]:
    """Edges from authors to papers: [n, 2] of each split."""
    edges = np.unique(graph.edges[WRITES].numpy().T, axis=0)
    order = np.random.default_rng(6).permutation(len(edges))
    return dict(zip(SPLITS, np.split(edges[order], [40, 52]), strict=True))


def write_typed_graph(path: Path, graph: TypedGraph, kind: str = "class") -> Graph:
    """Papers have labels of `kind` and splits; edges from authors to papers have splits, too."""
    labels, links = paper_labels(graph, kind), seed_edges(graph)
    outputs = CLASSES if kind == "class" else labels.shape[1]
    config = GraphConfig(
        tuple(
            NodeTypeConfig(name, nodes, None if WIDTHS[name] is None else RowFormat("float32", WIDTHS[name]),
                           TargetConfig(kind, outputs) if name == "paper" else None)
            for name, nodes in NODES.items()
        ),
        tuple(
            EdgeTypeConfig(edge_type, number, link_splits=tuple(links) if edge_type == WRITES else (),
                           rows=None if EDGE_WIDTHS[edge_type] is None else RowFormat("float32", 2))
            for edge_type, number in NUM_EDGES.items()
        ),
    )  # fmt: skip
    with ArtifactWriter(path, artifacts.GRAPH, config=config.to_json({})) as writer:

        def save_rows(name: str, checksums: str, rows: np.ndarray) -> None:
            writer.save_array(name, rows.astype(np.float32))
            writer.save_array(checksums, chunk_checksums(writer.path(name)))

        for name, x in graph.x.items():
            save_rows(node_file(artifacts.FEATURES, name), node_file(artifacts.FEATURE_CHECKSUMS, name), x.numpy())
        writer.save_array(node_file(artifacts.LABELS, "paper"), labels)
        for split, nodes in PAPER_SPLITS.items():
            writer.save_array(node_file(split, "paper"), nodes.astype(np.int64))
        for edge_type, edges in graph.edges.items():
            degrees = np.bincount(edges[1].numpy(), minlength=NODES[edge_type[2]])
            writer.save_array(edge_file(artifacts.INDPTR, edge_type), np.concatenate([[0], degrees.cumsum()]))
            writer.save_array(edge_file(artifacts.INDICES, edge_type), edges[0].numpy().astype(np.int32))
        for edge_type, x in graph.edge_x.items():
            save_rows(edge_file(artifacts.EDGE_FEATURES, edge_type),
                      edge_file(artifacts.EDGE_FEATURE_CHECKSUMS, edge_type), x.numpy())  # fmt: skip
        for split, pairs in links.items():
            writer.save_array(edge_file(split, WRITES), pairs.astype(np.int64))
        writer.publish()
    return Graph.open(path)
