"""Chooses how long windows of fresh minibatches are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from diskgnn.files.disk_space import free_bytes

_DISK_PART = 2  # of the free disk space, a window takes one part in so many at most


class WindowSizes:
    """Chooses windows, as ranges of positions; minibatch n of epoch e is at position e * num_batches + n.

    Training waits for the first window, so that one is short. Packing reads more than it needs, the more so for a short
    window: each is longer than the one before, up to an epoch. None is followed by one of less than half its length,
    which would cost nearly as much.

    Args:
        folder: where windows are written.
        num_batches: minibatches in an epoch.
        fixed: minibatches in each window, instead.
        end: position after the last minibatch, if there is one.
        shortest: how many of the minibatches at these positions make a window that is worth preparing, and how many
            times as long as the one before a window may be.
    """

    def __init__(
        self,
        folder: Path,
        num_batches: int,
        fixed: int | None,
        end: int | None,
        shortest: Callable[[range], tuple[int, int]],
    ) -> None:
        self.end = end
        self._folder, self._num_batches, self._fixed, self._shortest = folder, num_batches, fixed, shortest
        self._last, self._growth = range(-1, -1), 1
        self._batch_bytes = 0.0  # what a minibatch takes on the disk; 0 before one was prepared

    def window(self, position: int) -> range:
        """Returns the window that starts at `position`."""
        most = self._num_batches if self._fixed is None else self._fixed
        if self.end is not None and position < self.end:
            most = min(most, self.end - position)
        self._last = range(position, position + (most if self._fixed is not None else self._length(position, most)))
        return self._last

    def _length(self, position: int, most: int) -> int:
        if position == self._last.stop:
            length = self._growth * len(self._last)
        else:
            length, self._growth = self._shortest(range(position, position + most))
        if length * 3 > most * 2:
            length = most
        if self._batch_bytes:
            length = min(length, int(free_bytes(self._folder) / _DISK_PART / self._batch_bytes))
        return max(1, length)

    def prepared(self, window: range, written_bytes: int) -> None:
        """Note what preparing `window` has put on the disk."""
        self._batch_bytes = written_bytes / len(window)
