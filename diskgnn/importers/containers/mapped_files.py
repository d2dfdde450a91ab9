"""The numbers that torch has mapped from a file, read from there: a disk that fails below a map ends the process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from diskgnn.importers.containers.file_rows import file_columns, file_rows, file_view, span_bytes
from diskgnn.importers.containers.rows import RowSource

_MAPS = Path("/proc/self/maps")


def mapped_rows(name: str, path: Path, array: npt.NDArray[Any]) -> RowSource | None:
    """Returns the rows of an array whose memory is a map of the file; None if it is none, or too far apart there."""
    if not array.ndim or not array.size:
        return None
    if min(array.strides) < 0:
        return None
    offset_bytes = _offset(path, array.ctypes.data, span_bytes(array.shape, array.strides, array.dtype))
    if offset_bytes is None:
        return None
    rows: RowSource | None
    if array.flags.c_contiguous or array.flags.f_contiguous:
        read = file_rows if array.flags.c_contiguous else file_columns
        rows = read(name, path, len(array), array.shape[1:], array.dtype, offset_bytes)
    else:
        rows = file_view(name, path, array.shape, array.strides, array.dtype, offset_bytes)
    return None if rows is None else replace(rows, path=None)  # which holds more than these


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
