"""A number for each access of a sequence: those of the first minibatches in memory, the rest in a scratch file.

Number i has its place in the file, whether it is there or not: so what memory has can be saved there, and be found by
a run that goes on after a kill.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import page_memory
from diskgnn.storage import cache_hints
from diskgnn.storage.file_reading import fill, opened

INT32 = np.dtype(np.int32)
_READ_AHEAD = 4  # pieces
_CHECK_BYTES = 1 << 20  # read at once for a checksum: what the nearest caches hold


class ScratchMemory:
    """What columns may keep in memory, all of them together."""

    def __init__(self, most_bytes: int = 0) -> None:
        self.left_bytes = max(0, most_bytes)

    def claim(self, num_bytes: int) -> bool:
        """Whether there are so many left; then they are taken."""
        fits = num_bytes <= self.left_bytes
        self.left_bytes -= num_bytes * fits
        return fits


class AccessColumn:
    """One number for each access, minibatch after minibatch. Those of a minibatch are together, here or in the file.

    Copies to and from files would take longer than much of what is done with the numbers.
    """

    def __init__(self, path: Path, memory: ScratchMemory) -> None:
        """Empty. `path` is the scratch file; `memory` is what may be kept, of this and of others."""
        self.path, self._memory = path, memory
        self.dtype: np.dtype[Any] = INT32  # or that of the first numbers
        self.read_bytes = 0  # from the file so far
        # Room for all that might be kept: pages that nobody writes to take nothing.
        self._kept: npt.NDArray[Any] = page_memory(memory.left_bytes // 8 * 8, sparse=True).view(INT32)
        self._num_kept, self._end = 0, 0
        path.touch()

    def reserve(self, count: int, dtype: np.dtype[Any]) -> int:
        """A place for `count` numbers, those of the next minibatch, for `write`: that of the first one."""
        if self._end == 0:
            self._set_dtype(dtype)
        first, self._end = self._end, self._end + count
        fits = self._num_kept == first and self._end <= len(self._kept)
        if fits and self._memory.claim(count * self.dtype.itemsize):
            self._num_kept = self._end
        return first

    def resize(self, ends: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> None:
        """Numbers of any value, for `write`: those of each minibatch up to `ends` [B]."""
        self._set_dtype(dtype)
        for end in ends[ends <= len(self._kept)].tolist():
            if not self._memory.claim((end - self._num_kept) * self.dtype.itemsize):
                break
            self._num_kept = end
        self._end = int(ends[-1]) if len(ends) else 0
        os.truncate(self.path, self._end * self.dtype.itemsize)

    def write(self, first: int, numbers: npt.NDArray[Any]) -> None:
        """Set numbers from `first` on, of one minibatch. Threads may, each in places of its own: the first to write to
        fresh memory waits until it is cleared."""
        if first < self._num_kept:
            self._kept[first : first + len(numbers)] = numbers
        elif len(numbers):
            self._write_file(first, numbers)

    def read(self, pieces: Sequence[tuple[int, int]]) -> Iterator[npt.NDArray[Any]]:
        """Numbers from one to another, of one minibatch each; valid until the next ones. They must not be changed.

        The next few are asked for in advance: backwards, the kernel does not read ahead by itself.
        """
        size, kept = self.dtype.itemsize, self._num_kept
        in_file = [piece for piece in pieces if piece[0] >= kept]
        buffer = page_memory(size * max((last - first for first, last in in_file), default=0)).view(self.dtype)
        with opened(self.path) as descriptor:
            position = 0  # in `in_file`
            for first, last in pieces:
                if first < kept:
                    yield self._kept[first:last]
                    continue
                for begin, end in in_file[position + _READ_AHEAD :][:1] if position else in_file[: _READ_AHEAD + 1]:
                    cache_hints.read_soon(descriptor, begin * size, (end - begin) * size)
                position += 1
                values = buffer[: last - first]
                fill(descriptor, first * size, values.view(np.uint8).data, self.path)
                yield values
        self.read_bytes += sum(last - first for first, last in in_file) * size

    def remove(self) -> None:
        """Delete the file, and forget what is in memory."""
        self._kept = self._kept[:0].copy()
        self.path.unlink()

    def _set_dtype(self, dtype: np.dtype[Any]) -> None:
        self.dtype, self._kept = dtype, self._kept.view(dtype)

    def _write_file(self, first: int, numbers: npt.NDArray[Any]) -> None:
        view, offset = numbers.view(np.uint8).data, first * self.dtype.itemsize
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
        finally:
            os.close(descriptor)
