"""What panels keep for records: some values of the records of a window."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

HEADER_BYTES = 16


def packed(place: int, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Returns a piece with [rows, n] values, which are those of records from number `place` on."""
    content = np.empty(HEADER_BYTES + values.nbytes, np.uint8)
    content[:HEADER_BYTES].view(np.int64)[:] = place, values.shape[1]
    content[HEADER_BYTES:].view(np.float32)[:] = values.reshape(-1)
    return content


def unpacked(content: npt.NDArray[np.uint8]) -> tuple[int, npt.NDArray[Any]]:
    """Reads what `packed` returned."""
    place, width = content[:HEADER_BYTES].view(np.int64).tolist()
    return place, content[HEADER_BYTES:].view(np.float32).reshape(-1, width)
