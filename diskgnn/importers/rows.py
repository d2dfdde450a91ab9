"""What the importers read node data from, whatever the container: rows in order, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 4 << 20
CHUNK_EDGES = 1 << 20


@dataclass(frozen=True)
class RowSource:
    """One row per node: features [N, D], labels [N]."""

    name: str  # for messages
    num_rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of the chunks
    chunks: Callable[[], Iterator[npt.NDArray[Any]]]  # each [some rows, *row_shape]; together num_rows
    path: Path | None = None  # the .npy file that holds exactly these rows, if there is one
    stored_bytes: int = 0  # in files, to be read

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes


def as_signed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whole numbers as int32 or int64 in native order; unsigned ones past int64 become its largest, which is out of
    every range."""
    if values.dtype in (np.int32, np.int64):
        return values
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        values = np.minimum(values, np.uint64(2**63 - 1))
    return values.astype(np.int64)
