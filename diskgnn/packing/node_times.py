"""Looks up the times of input nodes, for headers that keep them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diskgnn.formats.artifacts import TIMES
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.graph.graph import Graph
from diskgnn.packing.stored_ints import INT_BYTES, StoredInts


class NodeTimes:
    """The times of the nodes of some types of a graph.

    Args:
        graph: the graph that was sampled.
        types: names of node types that have times.
        in_memory: see `StoredInts`.

    Raises:
        ArtifactError: they are damaged.
        ReadError: the disk failed.
    """

    def __init__(self, graph: Graph, types: Sequence[str], *, in_memory: bool) -> None:
        self._times = [
            StoredInts(nodes.manifest, nodes.file(TIMES), in_memory=in_memory) if name in types else None
            for name, nodes in graph.nodes.items()
        ]

    @staticmethod
    def num_bytes(graph: Graph, types: Sequence[str]) -> int:
        """Returns the memory that they take when they are loaded."""
        return sum(INT_BYTES * graph.nodes[name].num_nodes for name in types)

    def of_inputs(self, minibatch: SampledMinibatch) -> tuple[npt.NDArray[np.int64] | None, ...]:
        """Returns by node type the times [U] of the input nodes of a minibatch; None of other types.

        Raises:
            ReadError: the disk failed.
        """
        return tuple(
            None if times is None else times.at(nodes)
            for times, nodes in zip(self._times, minibatch.input_nodes, strict=True)
        )
