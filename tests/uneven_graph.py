"""A graph for inference: one node without neighbours, one with thousands, edges that are there twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from graphs import write_graph

from diskgnn.graph.graph import Graph

NUM_NODES, WIDTH, CLASSES = 9000, 20, 5  # two windows of 4,096 rows and a part of one


def uneven_graph(folder: Path) -> Graph:
    """Node 0 has no neighbours, node 5 has 3,000; some edges are there twice."""
    random = np.random.default_rng(0)
    degrees = random.integers(0, 9, NUM_NODES)
    degrees[[0, 5]] = 0, 3000
    indptr = np.cumsum([0, *degrees])
    indices = random.integers(0, NUM_NODES, indptr[-1]).astype(np.int32)
    features = random.standard_normal((NUM_NODES, WIDTH)).astype(np.float32)
    return write_graph(folder / "graph", indptr, indices, features, {"train": np.arange(9)}, num_classes=CLASSES)
