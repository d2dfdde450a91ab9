"""Pieces that panels write for records: some columns of the records of one window."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.system.allocators import kept_memory

HEADER_BYTES = 16


def piece_bytes(num_rows: int, width: int) -> int:
    """Returns the bytes of a piece."""
    return HEADER_BYTES + 4 * num_rows * width


def empty_piece(place: int, num_rows: int, width: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Returns a piece, and a view [rows, width] of it to be filled with the values of records from number `place` on.

    So that no copy of them is made.
    """
    content = kept_memory(piece_bytes(num_rows, width))
    content[:HEADER_BYTES].view(np.int64)[:] = place, width
    return content, content[HEADER_BYTES:].view(np.float32).reshape(num_rows, width)


def unpacked(content: npt.NDArray[np.uint8]) -> tuple[int, npt.NDArray[Any]]:
    """Returns the place and the values of a piece."""
    place, width = content[:HEADER_BYTES].view(np.int64).tolist()
    return place, content[HEADER_BYTES:].view(np.float32).reshape(-1, width)
