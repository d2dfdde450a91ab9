"""What tests of the partition buffer share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from diskgnn.baselines.partitions import Partitions
from diskgnn.graph.graph import Graph


def adjacency(graph: Graph) -> sp.csr_matrix:
    """[N, N]: row v has the in-neighbours of v."""
    return sp.csr_matrix((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr), (graph.num_nodes,) * 2)


def partition_of(graph: Graph, path: Path) -> np.ndarray:
    """[N] the partition of each node."""
    found = Partitions.open(path, graph)
    partition = np.empty(graph.num_nodes, np.int64)
    for q in range(found.config.num_partitions):
        partition[found.nodes[found.starts[q] : found.starts[q + 1]]] = q
    return partition
