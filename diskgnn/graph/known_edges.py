"""Reads the edges of one type of a graph, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.file_reading import read_array
from diskgnn.formats.verification import verify_input
from diskgnn.graph.type_data import EdgeSet

_CHUNK_NODES, CHUNK_EDGES = 1 << 16, 1 << 17
Edges = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # (sources, destinations)


def known_edges(edges: EdgeSet) -> Iterator[Edges]:
    """Yields all edges of one type of a graph, a chunk at a time, read front to back.

    Raises:
        ArtifactError: the topology is damaged.
    """
    for name in edges.topology_files:
        verify_input(edges.manifest, name)
    indptr, indices = (edges.manifest.local(name) for name in edges.topology_files)
    starts = npy_data_offset(indptr)
    for first in range(0, edges.num_destinations, _CHUNK_NODES):
        num_nodes = min(_CHUNK_NODES, edges.num_destinations - first)
        bounds = read_array(indptr, np.int64, num_nodes + 1, starts + 8 * first)
        for begin in range(int(bounds[0]), int(bounds[-1]), CHUNK_EDGES):
            num_edges = min(CHUNK_EDGES, int(bounds[-1]) - begin)
            start = npy_data_offset(indices) + begin * edges.id_dtype.itemsize
            sources = read_array(indices, edges.id_dtype, num_edges, start).astype(np.int64)
            yield sources, first + np.searchsorted(bounds, np.arange(begin, begin + num_edges), side="right") - 1
