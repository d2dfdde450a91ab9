"""Part of the topology in memory: the neighbours of the nodes that are worth most per byte (Ginex)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import NeighborSampler
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.specs.caches import cache_rows

CHUNK_EDGES = 1 << 23


def sampler_with_neighbor_cache(graph: Graph, neighbor_cache: int | str) -> NeighborSampler:
    """Returns a sampler with the offsets and `neighbor_cache` of neighbours in memory; it finds the others in a memory
    map.

    Nodes are cached in the order of (out-degree / in-degree), Ginex's score: how often a node is drawn is about
    proportional to the former, what its neighbours take in memory to the latter. Which are drawn does not change.

    Args:
        neighbor_cache: bytes, '512MiB', or '10%' of all edges; with '100%' the topology is simply loaded. A table of
            8 bytes a node comes on top.

    Raises:
        ConfigError: no such size.
    """
    capacity = cache_rows(neighbor_cache, graph.indices.itemsize, graph.num_edges, "neighbor_cache")
    if capacity == graph.num_edges:
        return NeighborSampler(*graph.topology())
    starts, neighbors = cached_neighbors(graph, capacity)
    _, indices = graph.topology_at_random()
    indptr, _ = graph.only_edges("a neighbour cache").topology_files
    sampler = NeighborSampler(graph.manifest.array(indptr, mmap=False), indices)
    sampler.cache_neighbors(starts, neighbors)
    return sampler


def cached_neighbors(graph: Graph, capacity: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Returns (starts [N], -1 for nodes without a place; at most `capacity` neighbours).

    Reads indices twice, in order, about CHUNK_EDGES at a time.
    """
    chunk_edges = faults.reading("chunk.edges", CHUNK_EDGES)
    in_degrees = np.diff(graph.indptr)
    out_degrees = np.zeros(graph.num_nodes, np.int64)
    for first in range(0, graph.num_edges, chunk_edges):
        out_degrees += np.bincount(graph.indices[first : first + chunk_edges], minlength=graph.num_nodes)
    score = (out_degrees / np.maximum(in_degrees, 1)).astype(np.float32)
    del out_degrees
    best_first = np.argsort(-score, kind="stable")
    count = int(np.searchsorted(np.cumsum(in_degrees[best_first]), capacity, side="right"))
    chosen = np.zeros(graph.num_nodes, bool)
    chosen[best_first[:count]] = True
    del score, best_first
    ends = np.cumsum(np.where(chosen, in_degrees, 0))
    starts = np.where(chosen, ends - in_degrees, -1)
    neighbors = np.empty(int(ends[-1]), graph.indices.dtype)
    filled = first = 0
    while first < graph.num_nodes:  # whole nodes, about chunk_edges of their edges at a time
        end = int(np.searchsorted(graph.indptr, graph.indptr[first] + chunk_edges, side="right")) - 1
        end = min(max(end, first + 1), graph.num_nodes)
        edges = graph.indices[graph.indptr[first] : graph.indptr[end]]
        kept = edges[np.repeat(chosen[first:end], in_degrees[first:end])]
        neighbors[filled : filled + len(kept)] = kept
        filled, first = filled + len(kept), end
    return starts, neighbors
