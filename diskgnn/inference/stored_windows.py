"""The rows that passes leave for one another: a file for each window of what an `InferencePlan` stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.inference.plan import InferencePlan, Stored
from diskgnn.inference.scratch import Scratch, Traffic

Rows = npt.NDArray[np.float32]


class StoredWindows:
    """Windows of what `plan` stores, in files of `scratch`."""

    def __init__(self, plan: InferencePlan, scratch: Scratch) -> None:
        self._plan, self._scratch = plan, scratch

    @property
    def traffic(self) -> Traffic:
        """What was moved."""
        return self._scratch.traffic

    def is_whole(self, stored: Stored, window: int) -> bool:
        """Whether a window is finished, and still what it was then: all of it is read."""
        return self._scratch.is_whole(_file(stored, window))

    def write(self, stored: Stored, window: int, rows: npt.NDArray[Any]) -> None:
        """Make a window of [n, columns] `rows`, durably, unless it is there."""
        if not self.is_whole(stored, window):
            self._scratch.write(_file(stored, window), rows)

    def read(self, stored: Stored, window: int, dtype: npt.DTypeLike = np.float32) -> Rows:
        """[n, columns] the rows of a window."""
        first, last = self._plan.window(stored.node_type, window)
        return self._scratch.rows(_file(stored, window), last - first, stored.columns, dtype)

    def fill(self, stored: Stored, window: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Read a window's bytes to the start of `buffer`: page-aligned, with room to the next page."""
        first, last = self._plan.window(stored.node_type, window)
        self._scratch.read(_file(stored, window), (last - first) * stored.row_bytes, buffer)

    def remove(self, stored: Stored, window: int) -> None:
        """A window is of no use any more."""
        self._scratch.remove(_file(stored, window))


def _file(stored: Stored, window: int) -> str:
    return f"{stored.name}-{window:05d}"
