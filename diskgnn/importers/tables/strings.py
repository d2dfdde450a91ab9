"""Text of Arrow as the native core takes it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def string_content(strings: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Returns where each of n large strings begins, and where the last one ends, [n + 1], in the bytes of all."""
    if not len(strings):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    _, offsets, content = strings.buffers()
    starts = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return starts, np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
