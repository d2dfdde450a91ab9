"""Which rows each hop needs: the seeds, and the in-neighbours of what the next hop needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn._native import ROW_SET_BLOCK_NODES, count_before, mark_sources, row_ranks
from diskgnn.errors import ArtifactError
from diskgnn.files.traffic import Traffic
from diskgnn.graph.type_data import EdgeSet
from diskgnn.progress.reporter import Reporter
from diskgnn.propagation.topology_pieces import TopologyReader

_WORD_NODES = 64
_BLOCK_BYTES = ROW_SET_BLOCK_NODES // 8 + 8  # bits, and the members before them


@dataclass(frozen=True, eq=False)
class RowSet:
    """Some of N nodes, numbered by rank: their place among the members in ascending order."""

    words: npt.NDArray[np.uint64]  # bits, in whole blocks
    before: npt.NDArray[np.int64]  # [blocks + 1] members before each block
    num_nodes: int  # N

    @staticmethod
    def of(words: npt.NDArray[np.uint64], num_nodes: int) -> RowSet:
        """Counts the members whose bits are set."""
        before = np.empty(len(words) * _WORD_NODES // ROW_SET_BLOCK_NODES + 1, np.int64)
        count_before(words, before)
        return RowSet(words, before, num_nodes)

    @property
    def native(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], int]:
        """The form in which the native core takes it."""
        return self.words, self.before, self.num_nodes

    def __len__(self) -> int:
        return int(self.before[-1])

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


@dataclass(frozen=True)
class HopRows:
    """The rows of each hop, and the edges that lead to them."""

    sets: Sequence[RowSet]  # [hops + 1]: number k has the rows of hop k, number 0 the features that are needed
    num_edges: Sequence[int]  # [hops + 1] into the rows of hop k; 0 of the features
    sweeps: int  # over all edges, that found them

    @property
    def hops(self) -> int:
        """K."""
        return len(self.sets) - 1


def sets_bytes(num_nodes: int, hops: int) -> int:
    """Returns the memory that `find_rows` takes for sets."""
    return (hops + 1) * (-(-num_nodes // ROW_SET_BLOCK_NODES) + 1) * _BLOCK_BYTES


def find_rows(
    edges: EdgeSet, seeds: Iterable[npt.NDArray[np.int64]], hops: int, reporter: Reporter, traffic: Traffic
) -> HopRows:
    """Finds the rows that `hops` hops of `seeds` need, by a sweep over the edges for each, back from the last one.

    Raises:
        ArtifactError: the topology is damaged; the first sweep compares all of it with its checksums.
    """
    num_nodes = edges.num_destinations
    words = np.zeros(-(-num_nodes // ROW_SET_BLOCK_NODES) * (ROW_SET_BLOCK_NODES // _WORD_NODES), np.uint64)
    for nodes in seeds:
        bits = np.left_shift(np.uint64(1), (nodes % _WORD_NODES).astype(np.uint64))
        np.bitwise_or.at(words, nodes // _WORD_NODES, bits)
    sets, counts = [RowSet.of(words, num_nodes)], list[int]()
    reader = TopologyReader(edges, traffic, weighted=False)
    with reporter.stage("find the rows of hops", hops * edges.num_edges, "edges") as advance:
        for sweep in range(hops):
            wanted, marked, num_edges = sets[-1], words.copy(), 0
            for piece in reader.pieces(check=sweep == 0):
                try:
                    num_edges += mark_sources(
                        piece.first_node, piece.offsets, piece.begin, piece.sources, wanted.native, marked
                    )
                except (IndexError, ValueError) as error:
                    raise ArtifactError(f"{edges.manifest.path} is damaged: {error}; make it again") from error
                advance(len(piece.sources))
            sets.append(RowSet.of(marked, num_nodes))
            counts.append(num_edges)
            if len(sets[-1]) == len(wanted):  # hops before this one need the same
                break
        sweeps, left = len(counts), hops - len(counts)
        advance(left * edges.num_edges)
    sets += sets[-1:] * left
    counts += counts[-1:] * left
    return HopRows(sets[::-1], [0, *counts[::-1]], sweeps)
