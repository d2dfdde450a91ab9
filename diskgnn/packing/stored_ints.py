"""Looks up int64 numbers of a graph that headers keep, such as ids of edges: in memory, or in their file on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.files.row_reading import GAP_BYTES, read_ranges_of, row_buffer
from diskgnn.formats.manifest import Manifest
from diskgnn.formats.verification import verify_input

INT_BYTES = 8
_RANGE_BYTES = 1 << 20  # that are read at once, at most
BUFFER_BYTES = 4 * _RANGE_BYTES  # of ranges that are on their way
_Ints = npt.NDArray[np.int64]


class StoredInts:
    """The numbers [n] of a file of a graph. They are compared with their checksum before the first lookup.

    Args:
        manifest: of the graph.
        name: of the file.
        in_memory: load all of them. Otherwise lookups read them from disk and need `BUFFER_BYTES`.

    Raises:
        ArtifactError: they are damaged.
        ReadError: the disk failed.
    """

    def __init__(self, manifest: Manifest, name: str, *, in_memory: bool) -> None:
        self._manifest, self._name = manifest, name
        self._loaded: _Ints | None = None
        if in_memory:
            self._loaded = manifest.checked_array(name)
        else:
            verify_input(manifest, name)

    def at(self, positions: npt.NDArray[Any]) -> _Ints:
        """Returns the numbers [m] at `positions` [m], in any order.

        Raises:
            ReadError: the disk failed.
        """
        if not len(positions):
            return np.empty(0, np.int64)
        if self._loaded is not None:
            found: _Ints = self._loaded[positions]
            return found
        distinct, places = np.unique(positions, return_inverse=True)
        return np.concatenate(list(self._read(distinct.astype(np.int64))))[places]

    def _read(self, positions: _Ints) -> Iterator[_Ints]:
        """Yields the numbers at ascending `positions`, some at a time. Positions that lie near each other share a
        request."""
        manifest, name = self._manifest, self._name
        path, offsets = manifest.local(name), manifest.data_offset_bytes(name) + positions * INT_BYTES
        # A range ends before a gap, and at multiples of _RANGE_BYTES, so that each fits the buffer.
        is_first = (np.diff(offsets) > GAP_BYTES) | (np.diff(offsets // _RANGE_BYTES) > 0)
        firsts = np.flatnonzero(np.concatenate([[True], is_first]))
        starts = offsets[firsts]
        lengths = offsets[np.append(firsts[1:], len(offsets)) - 1] + INT_BYTES - starts
        skews = starts % DIRECT_ALIGNMENT
        taken = (
            -(-(skews + lengths) // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
        )  # of the buffer, by ranges that are widened
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
            yield buffer[: len(buffer) // INT_BYTES * INT_BYTES].view(np.int64)[
                (offsets[first:last] + shifts) // INT_BYTES
            ]
            begin = end
