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
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet
from diskgnn.ordered import Threads, in_order
from diskgnn.progress.reporter import Advance, Reporter
from diskgnn.propagation.needed_rows import HopRows
from diskgnn.propagation.topology_pieces import KEPT_PAGES_BYTES, TopologyPiece, TopologyReader
from diskgnn.specs.schema import EdgeType
from diskgnn.system.allocators import kept_memory, pages_kept
from diskgnn.work.fold import Output
from diskgnn.work.shuffle import Shuffle, piece_buffer
from diskgnn.work.work_folder import State

PIECES_HELD = 3  # at a time: one in use, one that waits, one that is read
# Of lists that wait for more of them, of all hops: short pieces cost as many calls as long ones.
GATHERED_BYTES = 1 << 21
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

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of its lists."""
        return self.offsets.nbytes + self.sources.nbytes + self.weights.nbytes

    @staticmethod
    def packed(pieces: Sequence[EdgePiece]) -> npt.NDArray[np.uint8]:
        """Returns pieces that follow each other as one, as `unpacked` takes it."""
        offsets, num_edges = [np.zeros(1, np.int64)], 0
        for piece in pieces:
            ends = piece.offsets[1:] + num_edges
            offsets.append(ends[:-1] if piece.goes_on and piece is not pieces[-1] else ends)
            num_edges += len(piece.sources)
        num_rows = sum(map(len, offsets)) - 1
        header = np.array([num_rows, num_edges, pieces[0].continues, pieces[-1].goes_on])
        arrays = [header, *offsets, *(piece.sources for piece in pieces), *(piece.weights for piece in pieces)]
        parts = [array.view(np.uint8) for array in arrays]
        return np.concatenate(parts, out=kept_memory(sum(map(len, parts))))

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
        shuffle: a partition for each of the edges that are needed, then one for each scaled operator.
        graph: whose edges these are.
        rows: which each hop computes.
        operators: that read them; scaled ones only where there is one type of edges.
        traffic: what is read and written is counted there.
        threads: that prune pieces for several needs: so many lists and two more, of a piece each, are in memory.
    """

    def __init__(
        self,
        shuffle: Shuffle,
        graph: Graph,
        rows: HopRows,
        operators: Sequence[str],
        traffic: Traffic,
        threads: int,
    ) -> None:
        self.shuffle, self._graph, self._rows, self._traffic = shuffle, graph, rows, traffic
        self._scaled = scaled(operators)
        self.has_own = WITH_OWN in operators
        self._buffers: list[npt.NDArray[np.uint8]] = []  # that pieces are read into in turns
        self._threads = threads
        self._gathered: list[list[EdgePiece]] = [[] for _ in rows.edges]  # lists that are not written yet

    @staticmethod
    def num_partitions(rows: HopRows, operators: Sequence[str]) -> int:
        """Returns how many the shuffle has."""
        return len(rows.edges) + len(scaled(operators))

    def write(self, reporter: Reporter, state: State, output: Output) -> Generator[int, None, None]:
        """Writes them, in one pass over the edges of each type.

        Raises:
            ArtifactError: the topology is damaged.
        """
        edge_types = [*self._rows.sweeps]
        total = sum(self._graph.edges[edge_type].num_edges for edge_type in edge_types)
        output.before_commit(self._write_gathered)
        with (
            Threads(self._threads) as pool,
            pages_kept(KEPT_PAGES_BYTES),
            output.stage(reporter, "write the edges of hops", total, "edges") as advance,
        ):
            while (number := int(state["edge_types"])) < len(edge_types):
                yield from self._write_type(edge_types[number], pool, state, advance)
                self._write_gathered()
                state["edge_types"] += 1
                state["nodes"][...] = 0

    def _write_type(
        self, edge_type: EdgeType, pool: Threads, state: State, advance: Advance
    ) -> Generator[int, None, None]:
        edges = self._graph.edges[edge_type]
        has_weights = edges.config.has_weights
        degrees = np.zeros(0)  # of the nodes of a window so far: their weights, added up in the order of edges
        reader, first, window_bytes = TopologyReader(edges, self._traffic, weighted=has_weights), int(state["nodes"]), 0
        for piece in reader.pieces(first):
            self._gather(edges, piece, pool)
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

    def _gather(self, edges: EdgeSet, piece: TopologyPiece, pool: Threads) -> None:
        """Takes what hops need of a piece; writes lists of which there are enough."""
        numbers = [number for number, need in enumerate(self._rows.edges) if need.edge_type == edges.type]
        calls = (partial(self._prune, number, edges, piece) for number in numbers)
        with closing(in_order(pool, calls, self._threads)) as pieces:
            for number, found in zip(numbers, pieces, strict=True):
                if len(found.offsets) > 1:
                    self._gathered[number].append(found)
                # Before the next one is asked for: there may be 255 needs, and a list may be as large as the piece.
                if sum(each.num_bytes for each in self._gathered[number]) >= GATHERED_BYTES // len(self._gathered):
                    self._write(number)

    def _prune(self, number: int, edges: EdgeSet, piece: TopologyPiece) -> EdgePiece:
        need = self._rows.edges[number]
        try:
            return EdgePiece(
                *prune_edges(
                    piece.first_node, piece.offsets, piece.begin, piece.sources, piece.weights, need.rows.native,
                    need.sources.native, self.has_own,
                )
            )  # fmt: skip
        except (IndexError, ValueError) as error:
            raise ArtifactError(f"{edges.manifest.path} is damaged: {error}; make it again") from error

    def _write_gathered(self) -> None:
        for number, pieces in enumerate(self._gathered):
            if pieces:
                self._write(number)

    def _write(self, number: int) -> None:
        self._add(number, EdgePiece.packed(self._gathered[number]))
        self._gathered[number].clear()

    def _add_scales(self, first: int, degrees: npt.NDArray[np.float64]) -> None:
        """Takes degrees from the whole graph: a row that a hop needs may have in-neighbours that no hop needs."""
        for number, operator in enumerate(self._scaled):
            needed = self._rows.sets[0].members(first, first + len(degrees))
            total = degrees[needed] + (operator == WITH_OWN)
            with np.errstate(divide="ignore"):
                scales = np.where(total > 0, 1 / np.sqrt(total), 0)
            self._add(len(self._rows.edges) + number, scales.astype(np.float32))

    def _add(self, partition: int, content: npt.NDArray[Any]) -> None:
        self._traffic.add(written=content.nbytes)
        self.shuffle.add(partition, content)

    def pieces(self, number: int) -> Generator[EdgePiece, None, None]:
        """Yields the lists of some needed edges in order, each piece valid until the next one. That is read
        meanwhile.

        Raises:
            DamagedStepError: see `Shuffle.pieces`.
        """
        dtype = self._graph.edges[self._rows.edges[number].edge_type].id_dtype
        pieces = self.shuffle.pieces(number, self._piece_buffers())
        reads = repeat(partial(next, pieces, None))
        with closing(pieces), Threads(1) as pool, closing(in_order(pool, reads, 1)) as contents:
            for content in contents:
                if content is None:
                    return
                self._traffic.add(edges=content.nbytes)
                yield EdgePiece.unpacked(content, dtype)

    def _piece_buffers(self) -> Sequence[npt.NDArray[np.uint8]]:
        if not self._buffers:
            places = (place for number in range(len(self._rows.edges)) for place in self.shuffle.places(number))
            most_bytes = max((place.num_bytes for place in places), default=0)
            self._buffers += [piece_buffer(most_bytes) for _ in range(PIECES_HELD)]
        return self._buffers

    def scales(self, operator: str) -> Generator[npt.NDArray[np.float32], None, None]:
        """Yields 1 / sqrt(degree) of the needed rows in order, some at a time; 0 where it is 0."""
        for piece in self.shuffle.pieces(len(self._rows.edges) + self._scaled.index(operator)):
            self._traffic.add(read=piece.nbytes)
            yield piece.view(np.float32)


def scaled(operators: Sequence[str]) -> list[str]:
    """Returns those that scale rows, in their order."""
    return [operator for operator in operators if operator in SCALED]
