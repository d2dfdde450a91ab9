"""The native core (native/bindings.cpp). Arrays are C-contiguous; the GIL is released while they are worked on."""

from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]
from typing import Any

import numpy as np
import numpy.typing as npt

def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of `data`, continuing `crc`."""

# csc_builder: node ids (src, dst, edges, indices) are int32 or int64

def count_edges(
    src: npt.NDArray[Any], dst: npt.NDArray[Any], num_nodes: int, shift: int, bin_edges: npt.NDArray[np.int64]
) -> int:
    """Add 1 to bin_edges[dst >> shift] per edge; how many edges precede the first with an id out of range."""

def scatter_edges(
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    first: int,
    shift: int,
    bucket_of_bin: npt.NDArray[np.int32],
    buffer: npt.NDArray[Any],
    cursors: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> int:
    """Append edges from `first` on to their buckets in buffer [edges, 2]; number of the first without room."""

def sort_bucket(
    edges: npt.NDArray[Any],
    first_node: int,
    self_loops: bool,
    drop_duplicates: bool,
    degrees: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
) -> int:
    """Sort edges [n, 2] into columns; fills degrees and indices, returns the number of indices."""
