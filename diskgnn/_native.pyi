"""The native core (native/bindings.cpp). Arrays are C-contiguous; the GIL is released while they are worked on."""

from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]
from typing import Any

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of `data`, continuing `crc`."""

class NeighborSampler:
    """Uniform neighbour sampling without replacement over a CSC topology, which it keeps alive. Thread-safe."""

    def __init__(self, indptr: Int64, indices: npt.NDArray[Any]) -> None: ...
    def sample(
        self, seeds: Int64, fanouts: Int32, key: int, minibatch: int
    ) -> tuple[npt.NDArray[Any], list[tuple[Int32, Int32]]]:
        """(input_nodes [U] of indices' dtype, (indptr, indices) per block, outermost first).

        Raises:
            ValueError: a seed out of range or repeated, or a block of more than 2^31 - 1 edges.
        """
