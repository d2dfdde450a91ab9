"""Looks up int64 numbers of a graph that headers keep, such as ids of edges: in memory, or in their file on disk."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import npy_parts
from diskgnn.files.traffic import Traffic
from diskgnn.formats.manifest import Manifest

INT_BYTES = 8
# Of a lookup in a file: its position, in int64 at most, where that stands in the order of the file, and the number.
LOOKUP_BYTES = 3 * INT_BYTES
_PIECE = 1 << 16  # lookups that are answered at once: a part of the file may answer any number of them
BUFFER_BYTES = 6 << 20  # of a part of the file, and of such a piece
_Ints = npt.NDArray[np.int64]


class StoredInts:
    """The numbers [n] of a file of a graph.

    Args:
        manifest: of the graph.
        name: of the file.
        in_memory: load all of them. Otherwise each call of `at` reads the file, from front to back: it takes
            `BUFFER_BYTES`, and `LOOKUP_BYTES` for each position.
        traffic: gets the bytes that are read.

    Raises:
        ArtifactError: they are loaded, and damaged.
        ReadError: the disk failed.
    """

    def __init__(self, manifest: Manifest, name: str, *, in_memory: bool, traffic: Traffic) -> None:
        self._manifest, self._name, self._traffic = manifest, name, traffic
        self._loaded: _Ints | None = None
        if in_memory:
            self._loaded = manifest.checked_array(name)
            self._count_file()

    @property
    def is_loaded(self) -> bool:
        """Returns True if lookups read nothing."""
        return self._loaded is not None

    def at(self, wanted: Sequence[npt.NDArray[Any]]) -> list[_Ints]:
        """Returns for each array of positions [m], which are in any order, the numbers [m] there.

        What is read from the file for it was compared with the file's checksum.

        Raises:
            ArtifactError: the numbers are damaged, or positions are none of theirs.
            ReadError: the disk failed.
        """
        self._require_positions(wanted)
        if self._loaded is not None:
            return [self._loaded[positions] for positions in wanted]
        bounds = list(itertools.accumulate(map(len, wanted), initial=0))
        found = self._read(wanted) if bounds[-1] else np.empty(0, np.int64)
        return [found[first:end] for first, end in itertools.pairwise(bounds)]

    def _require_positions(self, wanted: Sequence[npt.NDArray[Any]]) -> None:
        num_rows = self._manifest.num_rows(self._name)
        for positions in wanted:
            if len(positions) and not 0 <= positions.min() <= positions.max() < num_rows:
                raise ArtifactError(
                    f"the samples refer to numbers that {self._manifest.file(self._name)} does not have: expected "
                    f"positions in [0, {num_rows}); sample again"
                )

    def _read(self, wanted: Sequence[npt.NDArray[Any]]) -> _Ints:
        """Returns the numbers at all positions, at least one, in one pass over the file."""
        positions = np.concatenate(wanted)
        order = np.argsort(positions)
        positions = positions[order]
        found = np.empty(len(order), np.int64)
        first = begin = crc = 0  # of the part, of the lookups that are left, of the file up to there
        # Of a store, the copy that is made once: the next lookups read it again.
        for part, crc in npy_parts(self._manifest.local(self._name)):  # noqa: B007
            # In the dtype of the positions, or NumPy would convert all of them for each part.
            last = positions.dtype.type(first + len(part) - 1)
            end = int(np.searchsorted(positions, last, "right"))
            for start in range(begin, end, _PIECE):
                piece = slice(start, min(start + _PIECE, end))
                found[order[piece]] = part[positions[piece] - first]
            first, begin = first + len(part), end
        self._manifest.check(self._name, crc)
        self._count_file()
        return found

    def _count_file(self) -> None:
        self._traffic.add(read=self._manifest.files[self._name].bytes)
