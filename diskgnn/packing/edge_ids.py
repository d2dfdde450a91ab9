"""Looks up the user's own ids of sampled edges, for headers that keep them: in memory, or in the file on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.files.row_reading import GAP_BYTES, read_ranges_of, row_buffer
from diskgnn.formats.artifacts import EDGE_IDS
from diskgnn.formats.verification import verify_input
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet

_ID_BYTES = 8
_RANGE_BYTES = 1 << 20  # that are read at once, at most
BUFFER_BYTES = 4 * _RANGE_BYTES  # of ranges that are on their way
_Ints = npt.NDArray[np.int64]


class EdgeIds:
    """The ids of all edge types of a graph. They are compared with their checksums before the first lookup.

    Args:
        graph: the graph that was sampled.
        in_memory: load all ids. Otherwise lookups read them from disk and need `BUFFER_BYTES`.

    Raises:
        ArtifactError: they are damaged.
        ReadError: the disk failed.
    """

    def __init__(self, graph: Graph, *, in_memory: bool) -> None:
        self._edges = list(graph.edges.values())
        self._loaded: list[_Ints | None] = [None] * len(self._edges)
        for number, edges in enumerate(self._edges):
            if not edges.config.has_ids:
                continue
            if in_memory:
                self._loaded[number] = edges.manifest.checked_array(edges.file(EDGE_IDS))
            else:
                verify_input(edges.manifest, edges.file(EDGE_IDS))

    @staticmethod
    def num_bytes(graph: Graph) -> int:
        """Returns the memory that the ids of all edge types take when they are loaded."""
        return sum(_ID_BYTES * edges.num_edges for edges in graph.edges.values() if edges.config.has_ids)

    def of(self, number: int, positions: npt.NDArray[Any]) -> _Ints:
        """Returns the ids [E] of the edges at `positions` [E] of edge type `number`; the positions if the user gave no
        ids.

        Raises:
            ReadError: the disk failed.
        """
        edges, loaded = self._edges[number], self._loaded[number]
        if not edges.config.has_ids or not len(positions):
            return positions.astype(np.int64)
        if loaded is not None:
            found: _Ints = loaded[positions]
            return found
        distinct, places = np.unique(positions, return_inverse=True)
        return np.concatenate(list(_read(edges, distinct.astype(np.int64))))[places]


def _read(edges: EdgeSet, positions: _Ints) -> Iterator[_Ints]:
    """Yields the ids at ascending `positions`, some at a time. Positions that lie near each other share a request."""
    name = edges.file(EDGE_IDS)
    path, offsets = edges.manifest.local(name), edges.manifest.data_offset_bytes(name) + positions * _ID_BYTES
    # A range ends before a gap, and at multiples of _RANGE_BYTES, so that each fits the buffer.
    is_first = (np.diff(offsets) > GAP_BYTES) | (np.diff(offsets // _RANGE_BYTES) > 0)
    firsts = np.flatnonzero(np.concatenate([[True], is_first]))
    starts = offsets[firsts]
    lengths = offsets[np.append(firsts[1:], len(offsets)) - 1] + _ID_BYTES - starts
    skews = starts % DIRECT_ALIGNMENT
    taken = -(-(skews + lengths) // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT  # of the buffer, by ranges that are widened
    ends = np.cumsum(taken)
    buffer = row_buffer(1, int(min(ends[-1], BUFFER_BYTES)))
    begin = 0
    while begin < len(firsts):
        before = int(ends[begin] - taken[begin])
        end = int(np.searchsorted(ends, before + BUFFER_BYTES, "right"))
        part, first = slice(begin, end), firsts[begin]
        last = len(offsets) if end == len(firsts) else firsts[end]
        places = ends[part] - taken[part] - before + skews[part]
        read_ranges_of(path, starts[part], lengths[part], places, buffer)
        shifts = np.repeat(places - starts[part], np.diff(np.append(firsts[part], last)))
        yield buffer[: len(buffer) // _ID_BYTES * _ID_BYTES].view(np.int64)[(offsets[first:last] + shifts) // _ID_BYTES]
        begin = end
