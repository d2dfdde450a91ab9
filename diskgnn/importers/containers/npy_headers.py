"""The header of a .npy file that somebody else wrote, or of a member of an .npz archive."""

from __future__ import annotations

from typing import IO, Any

import numpy as np


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether it is in Fortran order, dtype), read from the start of a file.

    Raises:
        ValueError: it is none, or its shape has a length that no array has: NumPy takes any int, True and -6, too.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its header says that the shape is {shape}")
    return shape, fortran, dtype
