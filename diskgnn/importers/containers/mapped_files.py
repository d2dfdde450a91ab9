"""The numbers that torch has mapped from a file, read from there: a disk that fails below a map ends the process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from diskgnn.importers.containers.file_rows import file_columns, file_rows
from diskgnn.importers.containers.rows import RowSource

_MAPS = Path("/proc/self/maps")


def mapped_rows(name: str, path: Path, array: npt.NDArray[Any]) -> RowSource | None:
    """Returns the rows of an array whose memory is a map of the file; None if it is none, or in pieces."""
    if not array.ndim or not array.size:
        return None
    in_rows = array.flags.c_contiguous
    offset_bytes = _offset(path, array.ctypes.data, array.nbytes)
    if offset_bytes is None or not (in_rows or array.flags.f_contiguous):
        return None
    read = file_rows if in_rows else file_columns
    rows = read(name, path, len(array), array.shape[1:], array.dtype, offset_bytes)
    return replace(rows, path=None)  # which holds more than these


def _offset(path: Path, address: int, num_bytes: int) -> int | None:
    """Returns where in the file these bytes of memory lie; None if they lie elsewhere, or if the system does not
    say."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return None
    file = os.path.realpath(path)
    for line in lines:
        addresses, _, offset, _, _, *rest = line.split(maxsplit=5)
        start, stop = (int(end, 16) for end in addresses.split("-"))
        if start <= address and address + num_bytes <= stop:
            return int(offset, 16) + address - start if rest == [file] else None
    return None
