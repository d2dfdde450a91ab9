"""The edges of a graph from front to back, in pieces of a bounded size, whatever the degrees."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.file_reading import fill, reading
from diskgnn.files.row_reading import read_span
from diskgnn.files.traffic import Traffic
from diskgnn.formats import artifacts
from diskgnn.graph.type_data import EdgeSet
from diskgnn.ordered import Threads, in_order

WINDOW_NODES = 1 << 16  # whose offsets are read at a time
PIECE_EDGES = 1 << 19  # at most
KEPT_PAGES_BYTES = 4 * 4 * PIECE_EDGES  # for those who read pieces, or make others of them, one after the other
_READ_AHEAD = 1
OFFSET_BYTES, WEIGHT_BYTES = 8, 4


@dataclass(frozen=True)
class TopologyPiece:
    """Some edges, and the destinations whose lists they are of; see `native/propagation/edge_pruning.h`."""

    first_node: int
    offsets: npt.NDArray[np.int64]  # [nodes + 1] of edges of the graph
    begin: int  # the first edge
    sources: npt.NDArray[Any]  # [edges]
    weights: npt.NDArray[np.float32]  # [edges], or [0] where all are 1
    ends_window: bool  # it is the last one of its window of nodes

    @property
    def num_bytes(self) -> int:
        """Returns the bytes that were read for it, beside offsets."""
        return self.sources.nbytes + self.weights.nbytes


class TopologyReader:
    """The files of the edges of one type.

    Args:
        edges: the edges.
        weighted: pieces have their weights.
        traffic: what is read is counted there.
    """

    def __init__(self, edges: EdgeSet, traffic: Traffic, *, weighted: bool) -> None:
        self._edges, self._traffic = edges, traffic
        manifest, names = edges.manifest, list(edges.topology_files)
        if weighted:
            names.append(edges.file(artifacts.WEIGHTS))
        self._names = names
        self._files = [(manifest.file(name), npy_data_offset(manifest.file(name))) for name in names]

    def pieces(self, first_node: int = 0, *, check: bool = False) -> Generator[TopologyPiece, None, None]:
        """Yields the edges into nodes from `first_node`, where a window begins, on. The next piece is read meanwhile.

        With `check`, all of the files have proved to be what was written when the generator is at its end.

        Raises:
            ArtifactError: they have not; or offsets do not ascend.
            ReadError: the disk failed.
        """
        assert not check or first_node == 0
        checksums = [self._checksum_of_header(number) for number in range(len(self._files))] if check else None
        reads = self._reads(first_node, checksums)
        with Threads(1) as pool, closing(in_order(pool, reads, _READ_AHEAD)) as pieces:
            for piece in pieces:
                if checksums is not None:
                    for number, values in enumerate((piece.sources, piece.weights)[: len(checksums) - 1], 1):
                        checksums[number] = crc32c(values.view(np.uint8), checksums[number])
                yield piece
        for name, checksum in zip(self._names, checksums or (), strict=False):
            self._edges.manifest.check(name, checksum)

    def _checksum_of_header(self, number: int) -> int:
        path, num_bytes = self._files[number]
        with reading(path) as file:
            return crc32c(fill(file, 0, bytearray(num_bytes), path))

    def _reads(self, first_node: int, checksums: list[int] | None) -> Iterator[Callable[[], TopologyPiece]]:
        num_nodes = self._edges.num_destinations
        if not num_nodes and checksums is not None:  # there is one offset all the same
            checksums[0] = crc32c(self._read(0, OFFSET_BYTES, 0, 1), checksums[0])
        for first in range(first_node, num_nodes, WINDOW_NODES):
            last = min(first + WINDOW_NODES, num_nodes)
            offsets = self._edges.checked_offsets(self._read(0, OFFSET_BYTES, first, last + 1).view(np.int64))
            if checksums is not None:  # of each offset once: the last one is the first of the next window
                once = offsets if last == num_nodes else offsets[:-1]
                checksums[0] = crc32c(once.view(np.uint8), checksums[0])
            row, edge, end = 0, int(offsets[0]), int(offsets[-1])
            while row < last - first:
                to = min(edge + PIECE_EDGES, end)
                finished = int(np.searchsorted(offsets[1:], to, "right"))  # lists that end there
                rows = finished + (finished < last - first and int(offsets[finished]) < to)
                bounds, ends_window = offsets[row : rows + 1], finished == last - first
                yield partial(self._piece, first + row, bounds, edge, to, ends_window=ends_window)
                row, edge = finished, to

    def _piece(
        self, first_node: int, offsets: npt.NDArray[np.int64], begin: int, end: int, *, ends_window: bool
    ) -> TopologyPiece:
        dtype = self._edges.id_dtype
        sources = self._read(1, dtype.itemsize, begin, end).view(dtype)
        weights = np.empty(0, np.float32)
        if len(self._files) > 2:
            weights = self._read(2, WEIGHT_BYTES, begin, end).view(np.float32)
        return TopologyPiece(first_node, offsets, begin, sources, weights, ends_window)

    def _read(self, number: int, item_bytes: int, first: int, last: int) -> npt.NDArray[np.uint8]:
        path, offset = self._files[number]
        if first == last:
            return np.empty(0, np.uint8)
        self._traffic.add(edges=(last - first) * item_bytes)
        return read_span(path, offset + first * item_bytes, (last - first) * item_bytes)
