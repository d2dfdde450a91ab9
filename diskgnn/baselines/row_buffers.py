"""Memory for the rows that baselines deliver, used again and again, as our loader's is: fresh pages are dear."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn.graph.graph import Graph
from diskgnn.storage.row_format import FEATURE_STORAGE

MAX_FREE = 8  # buffers that nobody uses; a source has no more in flight, but for one thread per core
_SPARE = 4  # one part in so many is added to what is asked for: larger minibatches fit, too; untouched, it is free


class RowBuffers:
    """Hands out memory for x, and takes it back when the last tensor that lies there is dropped. Thread-safe.

    Example:
        buffers = RowBuffers(graph)
        x, x_bytes = buffers.take(1000)  # a tensor [1000, D] of the graph's dtype, and its bytes to be filled
    """

    def __init__(self, graph: Graph) -> None:
        features = graph.feature_file
        self._row_bytes, self._width, self._is_bfloat16 = (
            features.row_bytes,
            features.width,
            features.dtype == "bfloat16",
        )
        self._dtype = np.dtype(np.int16 if self._is_bfloat16 else FEATURE_STORAGE[features.dtype])
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self, num_rows: int) -> tuple[Tensor, npt.NDArray[np.uint8]]:
        """(tensor [num_rows, D] with any content, its bytes [num_rows * row_bytes])."""
        num_bytes = num_rows * self._row_bytes
        try:
            memory = self._free.pop()
        except IndexError:  # others may have taken it since one looked
            memory = np.empty(0, np.uint8)
        if memory.nbytes < num_bytes:
            memory = np.empty(num_bytes + num_bytes // _SPARE, np.uint8)
        rows: npt.NDArray[Any] = memory[:num_bytes].view(self._dtype).reshape(num_rows, self._width)
        # The tensor's storage holds `rows`, whoever else shares it; what is held nowhere any more may be overwritten.
        weakref.finalize(rows, _give_back, self._free, memory).atexit = False
        x = torch.from_numpy(rows)
        return x.view(torch.bfloat16) if self._is_bfloat16 else x, memory[:num_bytes]

    def clear(self) -> None:
        """Free what nobody uses."""
        self._free.clear()


def _give_back(free: list[npt.NDArray[np.uint8]], memory: npt.NDArray[np.uint8]) -> None:
    if len(free) < MAX_FREE:
        free.append(memory)
