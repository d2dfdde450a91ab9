"""The feature file read once, front to back, in windows, without the rows that nobody needs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.ordered import in_order
from diskgnn.storage.row_format import FeatureFile
from diskgnn.storage.row_reading import read_rows, row_buffer


@dataclass(frozen=True)
class Window:
    """Rows of neighbouring nodes, as bytes; those that were not needed may be garbage."""

    first: int  # node of row 0
    last: int  # node after the last row
    rows: npt.NDArray[np.uint8]  # [(last - first) * row_bytes], valid until the next window is asked for
    read_bytes: int


def scan_needed_rows(
    features: FeatureFile, needed: npt.NDArray[np.bool_], window_bytes: int
) -> Generator[Window, None, None]:
    """The rows of `needed` [N] nodes, ascending, in windows of at most `window_bytes`; the next is read meanwhile.

    Takes memory for two windows.

    Raises:
        OSError: the file cannot be read, or ends early.
    """
    window_rows = min(max(1, window_bytes // features.row_bytes), features.num_rows)
    bounds = list(_bounds(needed, window_rows))
    buffers = [row_buffer(window_rows, features.row_bytes) for _ in range(min(2, len(bounds)))]

    def read(first: int, last: int, buffer: npt.NDArray[np.uint8]) -> Window:
        nodes: npt.NDArray[Any] = first + np.flatnonzero(needed[first:last])
        rows, read_bytes = read_rows(features.path, features.data_offset_bytes, features.row_bytes, nodes, buffer)
        return Window(first, int(nodes[-1]) + 1, rows, read_bytes)

    with ThreadPoolExecutor(1) as reader:
        reads = (partial(read, *bound, buffers[number % 2]) for number, bound in enumerate(bounds))
        yield from in_order(reader, reads, ahead=1)


def _bounds(needed: npt.NDArray[np.bool_], window_rows: int) -> Iterator[tuple[int, int]]:
    """[first, last) of each window; the first node of each is needed."""
    first, num_rows = 0, len(needed)
    while first < num_rows:
        if not needed[first : first + window_rows].any():
            first += window_rows
            continue
        first += int(np.argmax(needed[first:]))
        last = min(first + window_rows, num_rows)
        yield first, last
        first = last
