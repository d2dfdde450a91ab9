"""Looks up the user's own ids of sampled edges, for headers that keep them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.formats.artifacts import EDGE_IDS
from diskgnn.graph.graph import Graph
from diskgnn.packing.stored_ints import INT_BYTES, StoredInts


class EdgeIds:
    """The ids of all edge types of a graph.

    Args:
        graph: the graph that was sampled.
        in_memory: see `StoredInts`.

    Raises:
        ArtifactError: they are damaged.
        ReadError: the disk failed.
    """

    def __init__(self, graph: Graph, *, in_memory: bool) -> None:
        self._ids = [
            StoredInts(edges.manifest, edges.file(EDGE_IDS), in_memory=in_memory) if edges.config.has_ids else None
            for edges in graph.edges.values()
        ]

    @staticmethod
    def num_bytes(graph: Graph) -> int:
        """Returns the memory that the ids of all edge types take when they are loaded."""
        return sum(INT_BYTES * edges.num_edges for edges in graph.edges.values() if edges.config.has_ids)

    def of(self, number: int, positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Returns the ids [E] of the edges at `positions` [E] of edge type `number`; the positions if the user gave no
        ids.

        Raises:
            ReadError: the disk failed.
        """
        ids = self._ids[number]
        return positions.astype(np.int64) if ids is None else ids.at(positions)
