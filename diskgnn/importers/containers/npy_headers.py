"""The header of a .npy file that somebody else wrote, or of a member of an .npz archive."""

from __future__ import annotations

import io
from typing import IO, Any

import numpy as np


def read_npy_header(file: IO[bytes] | io.RawIOBase) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns (shape, whether it is in Fortran order, dtype), read from the start of a file.

    Raises:
        ValueError: it is none, or its shape has a length that no array has: NumPy takes any int, True and -6, too.
        OSError: the file cannot be read.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, OSError):
        raise
    except Exception as error:  # the header is parsed as Python, which raises nearly anything
        raise ValueError(f"its header cannot be read: {error}") from error
    if not all(type(length) is int and 0 <= length < 1 << 63 for length in shape):
        raise ValueError(f"its header says that the shape is {shape}")
    return shape, fortran, dtype
