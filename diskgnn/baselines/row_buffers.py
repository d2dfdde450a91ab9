"""Memory for the rows that baselines deliver, used again and again, as our loader's is: fresh pages are dear."""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
from torch import Tensor

from diskgnn.formats.row_format import RowFormat

MAX_FREE = 8  # buffers that nobody uses; a source has no more in flight, but for one thread per core
_SPARE = 4  # one part in so many is added to what is asked for: larger minibatches fit, too; untouched, it is free


class RowBuffers:
    """Hands out memory for x, and takes it back when the last tensor that lies there is dropped. Thread-safe.

    Example:
        buffers = RowBuffers(graph.feature_file.rows)
        x, x_bytes = buffers.take(1000)  # rows as the graph stores them, and their bytes to be filled
    """

    def __init__(self, rows: RowFormat) -> None:
        self._rows = rows
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self, num_rows: int) -> tuple[Tensor, npt.NDArray[np.uint8]]:
        """Returns (tensor [num_rows, stored_columns] with any content, its bytes [num_rows * row_bytes])."""
        num_bytes = num_rows * self._rows.row_bytes
        try:
            memory = self._free.pop()
        except IndexError:  # others may have taken it since one looked
            memory = np.empty(0, np.uint8)
        if memory.nbytes < num_bytes:
            memory = np.empty(num_bytes + num_bytes // _SPARE, np.uint8)
        # Every view of an array over a memoryview holds that very array, and so does the tensor's storage, whoever
        # else shares it: once the array is gone, nobody looks at the memory any more.
        lent = np.frombuffer(memory.data, np.uint8, num_bytes)
        weakref.finalize(lent, _give_back, self._free, memory).atexit = False
        return self._rows.as_tensor(lent), memory[:num_bytes]

    def clear(self) -> None:
        """Free what nobody uses."""
        self._free.clear()


def _give_back(free: list[npt.NDArray[np.uint8]], memory: npt.NDArray[np.uint8]) -> None:
    if len(free) < MAX_FREE:
        free.append(memory)
