"""Which rows each hop needs: the seeds, and the in-neighbours of what the next hop needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn._native import RANKED_BLOCK_COUNTS, RANKED_BLOCK_NODES, count_members, mark_sources, row_ranks
from diskgnn.errors import ArtifactError
from diskgnn.files.traffic import Traffic
from diskgnn.graph.graph import Graph
from diskgnn.progress.reporter import Advance, Reporter
from diskgnn.propagation.hop_tree import HopTree
from diskgnn.propagation.topology_pieces import KEPT_PAGES_BYTES, TopologyReader
from diskgnn.specs.schema import EdgeType
from diskgnn.system.allocators import pages_kept

_WORD_NODES = 64
_BLOCK_BYTES = RANKED_BLOCK_NODES // 8 + 8 * RANKED_BLOCK_COUNTS  # bits, and counts before them


@dataclass(frozen=True, eq=False)
class RankedNodes:
    """Some of N nodes, numbered by rank: their place among the members in ascending order."""

    words: npt.NDArray[np.uint64]  # bits, in whole blocks
    counts: npt.NDArray[np.int64]  # [2 * blocks + 1] of members, before each block and its words
    num_nodes: int  # N

    @staticmethod
    def of(words: npt.NDArray[np.uint64], num_nodes: int) -> RankedNodes:
        """Counts the members whose bits are set."""
        blocks = len(words) * _WORD_NODES // RANKED_BLOCK_NODES
        counts = np.empty(RANKED_BLOCK_COUNTS * blocks + 1, np.int64)
        count_members(words, counts)
        return RankedNodes(words, counts, num_nodes)

    @property
    def native(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], int]:
        """Returns the form in which the native core takes it."""
        return self.words, self.counts, self.num_nodes

    def __len__(self) -> int:
        return int(self.counts[-1])

    def ranks(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns how many members are before each node."""
        found = np.empty(len(nodes), np.int64)
        row_ranks(self.native, nodes, found)
        return found

    def members(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Returns [last - first] which of the nodes from `first`, a multiple of 64, on are members."""
        words = self.words[first // _WORD_NODES : -(-last // _WORD_NODES)]
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        return bits[: last - first].view(np.bool_)


@dataclass(frozen=True, eq=False)
class EdgeNeed:
    """Edges that a hop reads: the lists of some rows, whose sources are all among others."""

    edge_type: EdgeType
    rows: RankedNodes
    sources: RankedNodes
    num_edges: int
    most_edges: int  # of a piece of the topology


@dataclass(frozen=True)
class HopRows:
    """The rows of each tree node, and the edges that lead to them."""

    sets: Sequence[RankedNodes]  # of each tree node: those of features that are needed, those that a hop makes
    edges: Sequence[EdgeNeed]  # those that several tree nodes read are there once
    edges_of: Sequence[int | None]  # of each tree node, which of these it reads; None: features
    sweeps: Mapping[EdgeType, int]  # over all edges of each type that is used, that found them

    @property
    def num_edges(self) -> list[int]:
        """Returns how many edges each tree node reads; 0 of features."""
        return [0 if number is None else self.edges[number].num_edges for number in self.edges_of]


def sets_bytes(tree: HopTree, graph: Graph) -> int:
    """Returns the memory that `find_rows` takes for sets."""
    num_nodes = (graph.nodes[node.node_type].num_nodes for node in tree.nodes)
    return sum((-(-count // RANKED_BLOCK_NODES) + 1) * _BLOCK_BYTES for count in num_nodes)


def find_rows(
    tree: HopTree, graph: Graph, seeds: Iterable[npt.NDArray[np.int64]], reporter: Reporter, traffic: Traffic
) -> HopRows:
    """Finds the rows that each tree node needs: the seeds if it is kept, and the in-neighbours of what its children
    need. Longest paths come first; of one length, edges of a type are swept once.

    Raises:
        ArtifactError: the topology is damaged; the first sweep of each edge type compares it with its checksums.
    """
    finding = _Finding(tree, graph, _seed_words(graph.nodes[tree.target].num_nodes, seeds), traffic)
    total = sum(graph.edges[edge_type].num_edges for level in finding.levels for edge_type in level)
    with reporter.stage("find the rows of hops", total, "edges") as advance:
        for length in range(tree.hops, -1, -1):
            finding.find(length, advance)
    return finding.found()


def _seed_words(num_nodes: int, seeds: Iterable[npt.NDArray[np.int64]]) -> npt.NDArray[np.uint64]:
    words = _no_words(num_nodes)
    for nodes in seeds:
        bits = np.left_shift(np.uint64(1), (nodes % _WORD_NODES).astype(np.uint64))
        np.bitwise_or.at(words, nodes // _WORD_NODES, bits)
    return words


def _no_words(num_nodes: int) -> npt.NDArray[np.uint64]:
    return np.zeros(-(-num_nodes // RANKED_BLOCK_NODES) * (RANKED_BLOCK_NODES // _WORD_NODES), np.uint64)


_Key = tuple[str, bool, frozenset[tuple[EdgeType, int]]]  # what a set follows from: type, seeds, in-neighbours of sets


class _Finding:
    """Sets of rows that are found, from the longest paths on. Equal ones are one."""

    def __init__(self, tree: HopTree, graph: Graph, seeds: npt.NDArray[np.uint64], traffic: Traffic) -> None:
        self._tree, self._graph, self._seeds, self._traffic = tree, graph, seeds, traffic
        self._sets: dict[int, RankedNodes] = {}  # by tree node
        self._made: dict[_Key, RankedNodes] = {}
        self._num_edges: dict[tuple[EdgeType, int], tuple[int, int]] = {}  # into a set, by its number: in all, and most
        self._distinct: dict[str, list[RankedNodes]] = {name: [] for name in graph.nodes}
        self._sweeps: dict[EdgeType, int] = {}
        self.levels = [  # by length: the edge types that lead to paths that are one longer
            {tree.nodes[child].edge_type for number in self._of_length(length) for child in tree.children[number]}
            for length in range(tree.hops + 1)
        ]

    def _of_length(self, length: int) -> list[int]:
        return [number for number, node in enumerate(self._tree.nodes) if len(node.path) == length]

    def find(self, length: int, advance: Advance) -> None:
        """Finds the sets of the tree nodes of this length, those of the next being there."""
        tree, marked = self._tree, dict[_Key, npt.NDArray[np.uint64]]()
        keys, wanted = dict[int, _Key](), dict[EdgeType, list[tuple[RankedNodes, npt.NDArray[np.uint64]]]]()
        for number in self._of_length(length):
            node, children = tree.nodes[number], tree.children[number]
            needs = {(tree.nodes[child].edge_type, id(self._sets[child])): self._sets[child] for child in children}
            keys[number] = key = node.node_type, node.is_kept, frozenset(needs)
            if key in self._made or key in marked:  # tree nodes that need the same
                continue
            num_nodes = self._graph.nodes[node.node_type].num_nodes
            if node.is_kept:
                marked[key] = self._seeds.copy() if needs else self._seeds
            else:
                marked[key] = _no_words(num_nodes)
            for (edge_type, _), rows in needs.items():
                wanted.setdefault(edge_type, []).append((rows, marked[key]))
        for edge_type in sorted(self.levels[length]):
            if edge_type in wanted:
                self._sweep(edge_type, wanted[edge_type], advance)
            else:
                advance(self._graph.edges[edge_type].num_edges)
        for key, words in marked.items():
            self._made[key] = self._distinct_set(key[0], words)
        for number, key in keys.items():
            self._sets[number] = self._made[key]

    @pages_kept(KEPT_PAGES_BYTES)
    def _sweep(
        self, edge_type: EdgeType, wanted: Sequence[tuple[RankedNodes, npt.NDArray[np.uint64]]], advance: Advance
    ) -> None:
        edges, sweeps = self._graph.edges[edge_type], self._sweeps.get(edge_type, 0)
        num_sources, counts = self._graph.nodes[edge_type[0]].num_nodes, [(0, 0)] * len(wanted)
        for piece in TopologyReader(edges, self._traffic, weighted=False).pieces(check=sweeps == 0):
            for number, (rows, marked) in enumerate(wanted):
                try:
                    found = mark_sources(
                        piece.first_node, piece.offsets, piece.begin, piece.sources, rows.native, marked, num_sources
                    )
                except (IndexError, ValueError) as error:
                    raise ArtifactError(f"{edges.manifest.path} is damaged: {error}; make it again") from error
                total, most = counts[number]
                counts[number] = total + found, max(most, found)
            advance(len(piece.sources))
        self._sweeps[edge_type] = sweeps + 1
        for (rows, _), count in zip(wanted, counts, strict=True):
            self._num_edges[edge_type, id(rows)] = count

    def _distinct_set(self, node_type: str, words: npt.NDArray[np.uint64]) -> RankedNodes:
        there = self._distinct[node_type]
        for rows in there:
            if np.array_equal(rows.words, words):
                return rows
        there.append(RankedNodes.of(words, self._graph.nodes[node_type].num_nodes))
        return there[-1]

    def found(self) -> HopRows:
        """Returns what was found of all tree nodes."""
        needs, edges_of = dict[tuple[EdgeType, int, int], EdgeNeed](), list[int | None]()
        for number, node in enumerate(self._tree.nodes):
            if node.parent is None:
                edges_of.append(None)
                continue
            rows, sources = self._sets[number], self._sets[node.parent]
            key = node.edge_type, id(rows), id(sources)
            needs.setdefault(key, EdgeNeed(node.edge_type, rows, sources, *self._num_edges[node.edge_type, id(rows)]))
            edges_of.append([*needs].index(key))
        sets = [self._sets[number] for number in range(len(self._tree.nodes))]
        return HopRows(sets, [*needs.values()], edges_of, self._sweeps)
