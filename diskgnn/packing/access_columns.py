"""Columns of one number for each access of a sequence.

The numbers of the first minibatches stay in memory as far as the budget reaches, the others are in a scratch file.
Number i has the same offset in the file in either case, so the file begins with a hole where memory is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import page_memory
from diskgnn.files import cache_hints
from diskgnn.files.file_reading import fill, opened

INT32 = np.dtype(np.int32)
_READ_AHEAD = 4  # pieces
_CHECK_BYTES = 1 << 20  # read at once for a checksum: what the nearest caches hold


class ScratchMemory:
    """The bytes that several columns may keep in memory together."""

    def __init__(self, most_bytes: int = 0) -> None:
        self.left_bytes = max(0, most_bytes)

    def claim(self, num_bytes: int) -> bool:
        """Takes `num_bytes` if that many are left. Returns True if they were taken."""
        fits = num_bytes <= self.left_bytes
        self.left_bytes -= num_bytes * fits
        return fits


class AccessColumn:
    """One number for each access, minibatch after minibatch.

    All numbers of a minibatch are in memory, or all are in the file. Memory is used first: copying numbers to and from
    the file would take longer than much of what is done with them.
    """

    def __init__(self, path: Path, memory: ScratchMemory) -> None:
        """Starts an empty column in the new scratch file `path`. `memory` is shared with other columns."""
        self.path, self._memory = path, memory
        self.dtype: np.dtype[Any] = INT32  # or that of the first numbers
        self.read_bytes = 0  # from the file so far
        # Room for all that might be kept: pages that nobody writes to take nothing.
        self._kept: npt.NDArray[Any] = page_memory(memory.left_bytes // 8 * 8, sparse=True).view(INT32)
        self._num_kept, self._end = 0, 0
        path.touch()

    def reserve(self, count: int, dtype: np.dtype[Any]) -> int:
        """Reserves `count` places for the next minibatch, which `write` fills. Returns the first of them."""
        if self._end == 0:
            self._set_dtype(dtype)
        first, self._end = self._end, self._end + count
        # Only a front of the column is kept, so one number says where each minibatch is.
        fits = self._num_kept == first and self._end <= len(self._kept)
        if fits and self._memory.claim(count * self.dtype.itemsize):
            self._num_kept = self._end
        return first

    def resize(self, ends: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> None:
        """Reserves the places of all minibatches at once, which `write` fills in any order.

        The numbers of minibatch b end at `ends[b]` ([B]). They have any value until they are written.
        """
        self._set_dtype(dtype)
        for end in ends[ends <= len(self._kept)].tolist():
            if not self._memory.claim((end - self._num_kept) * self.dtype.itemsize):
                break
            self._num_kept = end
        self._end = int(ends[-1]) if len(ends) else 0
        os.truncate(self.path, self._end * self.dtype.itemsize)

    def write(self, first: int, numbers: npt.NDArray[Any]) -> None:
        """Sets the numbers from place `first` on, all of one minibatch.

        Threads may write to different places at the same time. Whoever first writes to fresh memory waits until the
        kernel has cleared it.
        """
        if first < self._num_kept:
            self._kept[first : first + len(numbers)] = numbers
        elif len(numbers):
            self._write_file(first, numbers)

    def read(self, pieces: Sequence[tuple[int, int]]) -> Iterator[npt.NDArray[Any]]:
        """Yields the numbers of each piece (first, last), where a piece lies in one minibatch.

        An array is valid until the next one, and must not be changed. The next few pieces are requested in advance, as
        the kernel does not read ahead by itself when a file is read backwards.
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
        """Deletes the file and drops the numbers in memory."""
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
