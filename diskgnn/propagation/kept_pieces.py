"""Pieces that panels write for records: some columns of the records of one window."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

HEADER_BYTES = 16


def empty_piece(place: int, num_rows: int, width: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Returns a piece, and a view [rows, width] of it to be filled with the values of records from number `place` on.

    So that no copy of them is made.
    """
    content = np.empty(HEADER_BYTES + 4 * num_rows * width, np.uint8)
    content[:HEADER_BYTES].view(np.int64)[:] = place, width
    return content, content[HEADER_BYTES:].view(np.float32).reshape(num_rows, width)


def unpacked(content: npt.NDArray[np.uint8]) -> tuple[int, npt.NDArray[Any]]:
    """Returns the place and the values of a piece."""
    place, width = content[:HEADER_BYTES].view(np.int64).tolist()
    return place, content[HEADER_BYTES:].view(np.float32).reshape(-1, width)
