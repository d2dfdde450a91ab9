"""Groups of near seeds, so that minibatches need fewer rows: seeds in an order in which neighbours are side by side.

Labels spread along edges while the topology passes by a few times, front to back: label propagation (Raghavan, Albert
and Kumara, Phys. Rev. E 2007) with labels of limited size (Meyerhenke, Sanders and Schulz, SEA 2014). That blocks of
near seeds, shuffled as wholes, save reads is COMM-RAND's idea (Balaji et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import MOST_LABEL_NEIGHBORS, propagate_labels
from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.storage.checked_files import npy_data_offset
from diskgnn.storage.file_reading import read_array
from diskgnn.storage.verification import verify_input

# Each sweep lets labels grow by this factor, from the size of a group on: small labels first, which larger ones hold.
_GROWTH = 4
_SWEEPS = 3
_CHUNK_NODES, _CHUNK_EDGES = 1 << 18, 1 << 20  # that are in memory at a time: 10 MiB at most

# (first node, offsets [n + 1] int64 in the third, in-neighbours)
_Chunk = tuple[int, npt.NDArray[np.int64], npt.NDArray[Any]]


def nearness_order(
    graph: Graph,
    nodes: npt.NDArray[np.int64],
    group_nodes: int,
    *,
    chunk_nodes: int = _CHUNK_NODES,
    chunk_edges: int = _CHUNK_EDGES,
) -> npt.NDArray[np.int64]:
    """[n] positions in `nodes`, in an order where every `group_nodes` consecutive ones are near each other in `graph`.

    A pure function of the graph, the nodes and the size. The topology is checked, then read three times, a chunk at a
    time. Memory is 8 bytes per node of the graph (12 from 2^31 nodes on), and that of a chunk.

    Args:
        chunk_nodes, chunk_edges: read at a time; no fewer edges than `MOST_LABEL_NEIGHBORS`.

    Raises:
        ArtifactError: the topology is damaged.
        OSError: the disk failed.

    Example:
        >>> nodes = graph.splits["train"]
        >>> groups = np.array_split(nodes[nearness_order(graph, nodes, 32)], range(32, len(nodes), 32))
    """
    assert chunk_edges >= MOST_LABEL_NEIGHBORS, chunk_edges
    for name in graph.only_edges("grouping seeds").topology_files:
        verify_input(graph.manifest, name)
    labels = np.arange(graph.num_nodes, dtype=graph.id_dtype)
    sizes = np.ones(graph.num_nodes, np.int32)
    found = []
    for sweep in range(_SWEEPS):
        most_nodes = min(group_nodes * _GROWTH**sweep, np.iinfo(np.int32).max)
        for first, offsets, neighbours in _neighbourhoods(graph, chunk_nodes, chunk_edges):
            try:
                propagate_labels(labels, sizes, most_nodes, first, offsets, neighbours)
            except IndexError as error:
                raise ArtifactError(f"{graph.manifest.path} is damaged ({error}); make it again") from error
        found.append(labels[nodes])
    return np.lexsort(found)  # by the last labels, which are the largest


def _neighbourhoods(graph: Graph, chunk_nodes: int, chunk_edges: int) -> Iterator[_Chunk]:
    """All nodes with their in-neighbours, front to back; of a list longer than a chunk, the beginning."""
    indptr, indices = (graph.manifest.local(name) for name in graph.only_edges("grouping seeds").topology_files)
    indptr_start, indices_start = npy_data_offset(indptr), npy_data_offset(indices)
    dtype = graph.id_dtype
    for first in range(0, graph.num_nodes, chunk_nodes):
        num_nodes = min(chunk_nodes, graph.num_nodes - first)
        edges = read_array(indptr, np.int64, num_nodes + 1, indptr_start + 8 * first)
        begin = 0
        while begin < num_nodes:
            end = max(begin + 1, int(np.searchsorted(edges, edges[begin] + chunk_edges, "right")) - 1)
            offsets = edges[begin : end + 1] - edges[begin]
            num_edges = min(int(offsets[-1]), chunk_edges)
            start = indices_start + int(edges[begin]) * dtype.itemsize
            neighbours = read_array(indices, dtype, num_edges, start)
            yield first + begin, np.minimum(offsets, len(neighbours)), neighbours
            begin = end
