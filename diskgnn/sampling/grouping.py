"""Groups of near seeds, so that minibatches need fewer rows: seeds in an order in which neighbours are side by side.

Labels spread along edges while the topology passes by a few times, front to back: label propagation (Raghavan, Albert
and Kumara, Phys. Rev. E 2007) with labels of limited size (Meyerhenke, Sanders and Schulz, SEA 2014). That blocks of
near seeds, shuffled as wholes, save reads is COMM-RAND's idea (Balaji et al. 2025).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import MOST_LABEL_NEIGHBORS, propagate_labels
from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.file_reading import read_array
from diskgnn.formats.graph_config import id_dtype
from diskgnn.formats.verification import verify_input
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet
from diskgnn.specs.schema import EdgeType

# Each sweep lets labels grow by this factor, from the size of a group on: small labels first, which larger ones hold.
_GROWTH = 4
_SWEEPS = 3
_CHUNK_NODES, _CHUNK_EDGES = 1 << 18, 1 << 20  # that are in memory at a time: 10 MiB at most

# (first node, offsets [n + 1] int64 in the third, in-neighbours), nodes numbered over all types
_Chunk = tuple[int, npt.NDArray[np.int64], npt.NDArray[Any]]
Ends = Sequence[tuple[str, npt.NDArray[np.int64]]]  # of seeds: (node type, [n] ids), and the same of the other ends


def nearness_order(
    graph: Graph,
    seeds: Ends,
    group_size: int,
    *,
    edge_types: Collection[EdgeType] | None = None,
) -> npt.NDArray[np.int64]:
    """Returns [n] positions of seeds, in an order where every `group_size` consecutive ones are near each other in
    `graph`.

    A pure function of the graph, the seeds and the size. The topology is checked, then read three times, a chunk at a
    time. Memory is 8 bytes per node of all types (12 from 2^31 nodes on), and that of a chunk. Nodes of all types have
    labels in common, and a node takes that of most of its neighbours through all edge types together.

    Args:
        graph: what is sampled.
        seeds: the type and ids of seed nodes; of seed edges both ends, and those are near whose sources are, and among
            these whose destinations are.
        group_size: seeds.
        edge_types: along which labels spread; all by default.

    Raises:
        ArtifactError: the topology is damaged.
        OSError: the disk failed.

    Example:
        >>> nodes = graph.splits["train"]
        >>> groups = np.array_split(nodes[nearness_order(graph, [("node", nodes)], 32)], range(32, len(nodes), 32))
    """
    followed = [edges for name, edges in graph.edges.items() if edge_types is None or name in edge_types]
    for edges in followed:
        for name in edges.topology_files:
            verify_input(graph.manifest, name)
    sizes_of_types = [nodes.num_nodes for nodes in graph.nodes.values()]
    first_nodes = dict(zip(graph.nodes, np.cumsum([0, *sizes_of_types]).tolist(), strict=False))
    num_nodes = sum(sizes_of_types)
    labels = np.arange(num_nodes, dtype=id_dtype(num_nodes))
    sizes = np.ones(num_nodes, np.int32)
    found = []
    for sweep in range(_SWEEPS):
        most_nodes = min(group_size * _GROWTH**sweep, np.iinfo(np.int32).max)
        for chunk in _neighbourhoods(followed, first_nodes, labels.dtype):
            try:
                propagate_labels(labels, sizes, most_nodes, *chunk)
            except IndexError as error:
                raise ArtifactError(f"{graph.manifest.path} is damaged ({error}); make it again") from error
        found += [labels[first_nodes[node_type] + nodes] for node_type, nodes in reversed(seeds)]
    return np.lexsort(found)  # by the last labels, which are the largest


def _neighbourhoods(
    followed: Sequence[EdgeSet], first_nodes: Mapping[str, int], dtype: np.dtype[Any]
) -> Iterator[_Chunk]:
    """Yields all nodes that edges lead to, front to back, with their in-neighbours of all types: of a long list, of
    each edge type, the beginning.
    """
    chunk_nodes, chunk_edges = faults.reading("chunk.nodes", _CHUNK_NODES), faults.reading("chunk.edges", _CHUNK_EDGES)
    assert chunk_edges >= MOST_LABEL_NEIGHBORS, chunk_edges
    for node_type, first_node in first_nodes.items():
        into = [_Lists(edges, first_nodes[edges.type[0]]) for edges in followed if edges.type[2] == node_type]
        num_destinations = into[0].num_destinations if into else 0
        for first in range(0, num_destinations, chunk_nodes):
            num_nodes = min(chunk_nodes, num_destinations - first)
            bounds = [each.bounds(first, num_nodes) for each in into]  # each [num_nodes + 1]
            together = np.sum(bounds, axis=0)
            found = np.sum([np.diff(each) > 0 for each in bounds], axis=0)  # lists of a node that are not empty
            most_neighbors = np.maximum(1, MOST_LABEL_NEIGHBORS // np.maximum(1, found))
            begin = 0
            while begin < num_nodes:
                end = max(begin + 1, int(np.searchsorted(together, together[begin] + chunk_edges, "right")) - 1)
                lists = [
                    each.read(of_type[begin : end + 1], chunk_edges, most_neighbors[begin:end], dtype)
                    for each, of_type in zip(into, bounds, strict=True)
                ]
                yield first_node + first + begin, *_merged(lists)
                begin = end


class _Lists:
    """The in-neighbours through one edge type, whose sources are numbered from `first_source` on."""

    def __init__(self, edges: EdgeSet, first_source: int) -> None:
        self.num_destinations, self._dtype, self._first_source = edges.num_destinations, edges.id_dtype, first_source
        self._edges = edges
        self._indptr, self._indices = (edges.manifest.local(name) for name in edges.topology_files)
        self._starts = npy_data_offset(self._indptr), npy_data_offset(self._indices)

    def bounds(self, first: int, num_nodes: int) -> npt.NDArray[np.int64]:
        """Returns [num_nodes + 1] where the lists of these destinations begin and end."""
        found = read_array(self._indptr, np.int64, num_nodes + 1, self._starts[0] + 8 * first)
        return self._edges.checked_offsets(found)

    def read(
        self,
        bounds: npt.NDArray[np.int64],
        most_edges: int,
        most_neighbors: npt.NDArray[np.int64],
        dtype: np.dtype[Any],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Returns (lengths [n], sources) of these lists, no more than `most_edges` read and `most_neighbors` [n]
        kept."""
        offsets = np.clip(bounds - bounds[0], 0, most_edges)
        start = self._starts[1] + int(bounds[0]) * self._dtype.itemsize
        sources = read_array(self._indices, self._dtype, int(offsets[-1]), start)
        lengths = np.diff(offsets)
        if (lengths > most_neighbors).any():
            place = np.arange(len(sources)) - np.repeat(offsets[:-1], lengths)
            sources, lengths = sources[place < np.repeat(most_neighbors, lengths)], np.minimum(lengths, most_neighbors)
        return lengths, sources.astype(dtype) + dtype.type(self._first_source)


def _merged(
    lists: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Returns (offsets [n + 1], neighbours): the lists of each node one after the other."""
    lengths = np.stack([each for each, _ in lists])  # [edge types, n]
    offsets = np.concatenate([[0], np.cumsum(lengths.sum(axis=0))])
    merged = np.empty(int(offsets[-1]), lists[0][1].dtype)
    starts = offsets[:-1] + np.cumsum(lengths, axis=0) - lengths
    for (of_type, sources), start in zip(lists, starts, strict=True):
        shift = start - (np.cumsum(of_type) - of_type)
        merged[np.arange(len(sources)) + np.repeat(shift, of_type)] = sources
    return offsets, merged
