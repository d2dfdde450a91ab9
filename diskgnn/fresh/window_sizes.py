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
        longest: minibatches in a window, unless `shortest` says more; None: those of an epoch.
    """

    def __init__(
        self,
        folder: Path,
        num_batches: int,
        fixed: int | None,
        end: int | None,
        shortest: Callable[[range], tuple[int, int]],
        longest: int | None = None,
    ) -> None:
        self.end = end
        self._longest = longest
        self._left: int | None = None  # the minibatch of an epoch before which the loop leaves it
        self._folder, self._num_batches, self._fixed, self._shortest = folder, num_batches, fixed, shortest
        self._last, self._growth, self._least = range(-1, -1), 1, 1  # and the shortest window worth preparing
        self._batch_bytes = 0.0  # what a minibatch takes on the disk; 0 before one was prepared

    def window(self, position: int) -> range:
        """Returns the window that starts at `position`."""
        most = self._num_batches if self._fixed is None else self._fixed
        if self.end is not None and position < self.end:
            most = min(most, self.end - position)
        number = position % self._num_batches
        if self._left is not None and number >= self._left:
            self._left = None
        if self._left is not None:
            most = min(most, self._left - number)
        self._last = range(position, position + (most if self._fixed is not None else self._length(position, most)))
        return self._last

    def leave(self, number: int) -> None:
        """Note that the loop left an epoch before its minibatch `number`: nothing after it is prepared any more, unless
        it is asked for."""
        self._left = number or None

    def after(self, window: range) -> int:
        """Returns where the window after `window` is expected to start."""
        epoch, number = divmod(window.stop, self._num_batches)
        return window.stop if number != self._left else (epoch + 1) * self._num_batches

    def _length(self, position: int, most: int) -> int:
        if position in (self._last.stop, self.after(self._last)):
            length = self._growth * len(self._last)
        else:
            length, self._growth = self._shortest(range(position, position + most))
            self._least = length
        if self._longest is not None:
            length = min(length, max(self._longest, self._least))
        if length * 3 > most * 2:
            length = most
        if self._batch_bytes:
            length = min(length, int(free_bytes(self._folder) / _DISK_PART / self._batch_bytes))
        return max(1, length)

    def note_prepared(self, window: range, written_bytes: int) -> None:
        """Note what preparing `window` has put on the disk."""
        self._batch_bytes = written_bytes / len(window)
