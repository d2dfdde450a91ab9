"""The topology of a graph as native samplers take it: in memory, or on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn._native import GraphFiles, NeighborSampler, Relation
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.formats.artifacts import INDICES, INDPTR, TIMES, WEIGHTS, edge_file, node_file
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet
from diskgnn.ordered import Threads

_LOADED_AT_ONCE = 2  # files: while one waits for the disk, the kernel clears memory for the other


@dataclass(frozen=True)
class TopologyParts:
    """Holds what sampling reads of a graph: offsets and neighbours of each edge type, and what draws depend on beside
    them.

    Weights and times are those of the types that have them.
    """

    graph: Graph
    weights: bool = False  # of edges
    times: bool = False  # of edges and nodes

    @property
    def is_wide(self) -> bool:
        """Returns True if sampled node ids are int64: where the neighbours of some edge type are."""
        return any(edges.id_dtype == np.int64 for edges in self.graph.edges.values())

    @property
    def id_dtype(self) -> npt.DTypeLike:
        """Returns the dtype of sampled node ids."""
        return np.int64 if self.is_wide else np.int32

    @property
    def edge_bytes(self) -> int:
        """Returns what all edge types take in memory."""
        files = self.graph.manifest.files
        return self.graph.topology_bytes + sum(files[name].bytes for name in self._edge_data_files())

    @property
    def num_bytes(self) -> int:
        """Returns what all of it takes in memory."""
        return self.edge_bytes + self.node_bytes

    @property
    def node_bytes(self) -> int:
        """Returns what times of nodes take, which are in memory wherever the edges are: they are looked up at
        random."""
        files = self.graph.manifest.files
        return sum(files[name].bytes for name in self._node_data_files())

    def files(self) -> list[str]:
        """Returns the names of the files of all of it."""
        topology = [name for edges in self.graph.edges.values() for name in edges.topology_files]
        return [*topology, *self._edge_data_files(), *self._node_data_files()]

    def _edge_data_files(self) -> list[str]:
        return [
            edge_file(kind, edges.type)
            for edges in self.graph.edges.values()
            for kind, wanted in ((WEIGHTS, self._has_weights(edges)), (TIMES, self._has_times(edges)))
            if wanted
        ]

    def _node_data_files(self) -> list[str]:
        nodes = self.graph.nodes.values() if self.times else ()
        return [node_file(TIMES, each.name) for each in nodes if each.config.has_times]

    def _has_weights(self, edges: EdgeSet) -> bool:
        return self.weights and edges.config.has_weights

    def _has_times(self, edges: EdgeSet) -> bool:
        return self.times and edges.config.has_times

    def _ends(self, edges: EdgeSet) -> tuple[int, int]:
        source, _, destination = edges.type
        return self.graph.nodes[source].number, self.graph.nodes[destination].number

    def _num_nodes(self) -> list[int]:
        return [nodes.num_nodes for nodes in self.graph.nodes.values()]

    def _node_times(self) -> list[npt.NDArray[np.int64] | None]:
        """Returns the times of each node type, loaded."""
        wanted = self._node_data_files()
        files = [node_file(TIMES, name) for name in self.graph.nodes]
        return [self.graph.manifest.checked_array(file) if file in wanted else None for file in files]

    def mapped(self) -> NeighborSampler:
        """Returns a sampler with offsets and neighbours in memory maps that read no more than what is touched.

        Weights and times of edges are mapped, too; times of nodes are in memory.
        """
        relations = [
            Relation(
                *self._ends(edges), *edges.topology_at_random(),
                edges.weights if self._has_weights(edges) else None,
                edges.times if self._has_times(edges) else None,
                edges.config.by_time,
            )
            for edges in self.graph.edges.values()
        ]  # fmt: skip
        return self._sampler(relations)

    def load(self) -> NeighborSampler:
        """Returns a sampler with all of it in memory.

        Raises:
            ArtifactError: a file is damaged.
        """
        names = [name for name in self.files() if name not in self._node_data_files()]
        with Threads(_LOADED_AT_ONCE) as pool:
            loaded = dict(zip(names, pool.map(self.graph.manifest.checked_array, names), strict=True))
        relations = [
            Relation(
                *self._ends(edges),
                loaded[edge_file(INDPTR, edges.type)], loaded[edge_file(INDICES, edges.type)],
                loaded.get(edge_file(WEIGHTS, edges.type)), loaded.get(edge_file(TIMES, edges.type)),
                edges.config.by_time,
            )
            for edges in self.graph.edges.values()
        ]  # fmt: skip
        return self._sampler(relations)

    def _sampler(self, relations: list[Relation]) -> NeighborSampler:
        return NeighborSampler(num_nodes=self._num_nodes(), relations=relations, node_times=self._node_times())

    def open_files(self) -> GraphFiles:
        """Returns all of it on disk, but times of nodes.

        Raises:
            ArtifactError: these are damaged.
        """
        files = GraphFiles(self._num_nodes(), self._node_times())
        for edges in self.graph.edges.values():
            files.add_relation(
                *self._ends(edges), num_edges=edges.num_edges,
                indptr=self._column(INDPTR, edges, 8), indices=self._column(INDICES, edges, edges.id_dtype.itemsize),
                weights=self._column(WEIGHTS, edges, 4) if self._has_weights(edges) else None,
                times=self._column(TIMES, edges, 8) if self._has_times(edges) else None,
                by_time=edges.config.by_time,
            )  # fmt: skip
        return files

    def _column(self, kind: str, edges: EdgeSet, item_bytes: int) -> tuple[str, int, int]:
        path = self.graph.manifest.local(edge_file(kind, edges.type))
        return os.fspath(path), npy_data_offset(path), item_bytes
