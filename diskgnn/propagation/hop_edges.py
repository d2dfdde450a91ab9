"""The edges that each hop reads, once for every panel: lists of the rows that it computes, sources by rank."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import add_weights, prune_edges
from diskgnn.errors import ArtifactError
from diskgnn.files.traffic import Traffic
from diskgnn.graph.type_data import EdgeSet
from diskgnn.ordered import Threads, in_order
from diskgnn.progress.reporter import Reporter
from diskgnn.propagation.needed_rows import HopRows
from diskgnn.propagation.topology_pieces import TopologyPiece, TopologyReader
from diskgnn.work.runner import Output
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.work_folder import State

_HEADER = 4  # of 8 bytes: rows, edges, and two flags
LISTS_BYTES = 8 * (_HEADER + 1)  # of a piece, beside an offset and the edges of each row
SCALED = ("symmetric", "gcn")  # operators that scale rows by the degrees of both ends
WITH_OWN = "gcn"  # the operator in which each node is a neighbour of itself
SCALE_BYTES = 4  # of a row, for each of these


@dataclass(frozen=True, eq=False)
class EdgePiece:
    """Lists of consecutive rows of a hop. The first may continue one of the piece before, the last may go on."""

    offsets: npt.NDArray[np.int64]  # [rows + 1]
    sources: npt.NDArray[Any]  # [edges] ranks
    weights: npt.NDArray[np.float32]  # [edges], or [0] where all are 1
    continues: bool
    goes_on: bool

    def packed(self) -> npt.NDArray[np.uint8]:
        """Returns it as `unpacked` takes it."""
        header = np.array([len(self.offsets) - 1, len(self.sources), self.continues, self.goes_on])
        parts = (header, self.offsets, self.sources, self.weights)
        return np.concatenate([part.view(np.uint8) for part in parts])

    @staticmethod
    def unpacked(content: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> EdgePiece:
        """Reads what `packed` returned, with sources of `dtype`."""
        num_rows, num_edges, continues, goes_on = content[: 8 * _HEADER].view(np.int64).tolist()
        ends = np.cumsum([8 * _HEADER, 8 * (num_rows + 1), dtype.itemsize * num_edges]).tolist()
        offsets, sources, weights = (
            content[begin:end].view(kind)
            for begin, end, kind in zip(ends, (*ends[1:], len(content)), (np.int64, dtype, np.float32), strict=True)
        )
        return EdgePiece(offsets, sources, weights, bool(continues), bool(goes_on))


class HopEdges:
    """The shuffle that the edges of hops are written to, and the scales of rows.

    Args:
        shuffle: a partition for each hop, then one for each scaled operator.
        edges: of the graph.
        rows: which each hop computes.
        operators: that read them.
        traffic: what is read and written is counted there.
    """

    def __init__(
        self, shuffle: Shuffle, edges: EdgeSet, rows: HopRows, operators: Sequence[str], traffic: Traffic
    ) -> None:
        self.shuffle, self._edges, self._rows, self._traffic = shuffle, edges, rows, traffic
        self._scaled = scaled(operators)
        self.has_own = WITH_OWN in operators

    @staticmethod
    def num_partitions(hops: int, operators: Sequence[str]) -> int:
        """Returns how many the shuffle has."""
        return hops + len(scaled(operators))

    def write(self, reporter: Reporter, state: State, output: Output) -> Generator[int, None, None]:
        """Writes them, in one pass over the edges of the graph.

        Raises:
            ArtifactError: the topology is damaged.
        """
        has_weights = self._edges.config.has_weights
        degrees = np.zeros(0)  # of the nodes of a window so far: their weights, added up in the order of edges
        window_bytes = 0
        with output.stage(reporter, "write the edges of hops", self._edges.num_edges, "edges") as advance:
            reader, first = TopologyReader(self._edges, self._traffic, weighted=has_weights), int(state["nodes"])
            for piece in reader.pieces(first):
                self._add_lists(piece)
                window_bytes += piece.num_bytes
                begin, count = piece.first_node - first, len(piece.offsets) - 1
                if len(degrees) < begin + count:
                    degrees = np.concatenate([degrees, np.zeros(begin + count - len(degrees))])
                window = degrees[begin : begin + count]
                if has_weights:
                    add_weights(piece.offsets, piece.begin, piece.weights, window)
                else:
                    window[...] = np.diff(piece.offsets)
                advance(len(piece.sources))
                if piece.ends_window:
                    self._add_scales(first, degrees)
                    first, degrees = first + len(degrees), np.zeros(0)
                    state["nodes"][...] = first
                    yield window_bytes
                    window_bytes = 0

    def _add_lists(self, piece: TopologyPiece) -> None:
        sets = self._rows.sets
        for hop in range(1, len(sets)):
            try:
                found = prune_edges(
                    piece.first_node, piece.offsets, piece.begin, piece.sources, piece.weights, sets[hop].native,
                    sets[hop - 1].native, self.has_own,
                )  # fmt: skip
            except (IndexError, ValueError) as error:
                raise ArtifactError(f"{self._edges.manifest.path} is damaged: {error}; make it again") from error
            if len(found[0]) > 1:
                self._add(hop - 1, EdgePiece(*found).packed())

    def _add_scales(self, first: int, degrees: npt.NDArray[np.float64]) -> None:
        """Takes degrees from the whole graph: a row that a hop needs may have in-neighbours that no hop needs."""
        needed = self._rows.sets[0].members(first, first + len(degrees))
        for number, operator in enumerate(self._scaled):
            total = degrees[needed] + (operator == WITH_OWN)
            with np.errstate(divide="ignore"):
                scales = np.where(total > 0, 1 / np.sqrt(total), 0)
            self._add(self._rows.hops + number, scales.astype(np.float32))

    def _add(self, partition: int, content: npt.NDArray[Any]) -> None:
        self._traffic.add(written=content.nbytes)
        self.shuffle.add(partition, content)

    def pieces(self, hop: int) -> Generator[EdgePiece, None, None]:
        """Yields the lists of a hop in order. The next piece is read meanwhile.

        Raises:
            DamagedStepError: see `Shuffle.pieces`.
        """
        dtype, pieces = self._edges.id_dtype, self.shuffle.pieces(hop - 1)
        reads = repeat(partial(next, pieces, None))
        with closing(pieces), Threads(1) as pool, closing(in_order(pool, reads, 1)) as contents:
            for content in contents:
                if content is None:
                    return
                self._traffic.add(edges=content.nbytes)
                yield EdgePiece.unpacked(content, dtype)

    def scales(self, operator: str) -> Generator[npt.NDArray[np.float32], None, None]:
        """Yields 1 / sqrt(degree) of the needed rows in order, some at a time; 0 where it is 0."""
        for piece in self.shuffle.pieces(self._rows.hops + self._scaled.index(operator)):
            self._traffic.add(read=piece.nbytes)
            yield piece.view(np.float32)


def scaled(operators: Sequence[str]) -> list[str]:
    """Returns those that scale rows, in their order."""
    return [operator for operator in operators if operator in SCALED]
