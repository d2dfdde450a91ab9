"""The extent: all that one minibatch needs from disk, contiguous. How its parts lie in it, and the index of them.

An extent starts on a multiple of DIRECT_ALIGNMENT in <split>.bin. It has a header (`extent_headers`), then the rows of
each row set that only disk has, sorted by number, row_bytes each, back to back. The rows of a row set start on a
multiple of ROW_ALIGNMENT; zeros are in between. <split>-index.npy and <split>-rows.npy say where all parts are.

Extents by reference have the number of each row in its place, an int64, and the rows stay in the graph's feature files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, ROW_ALIGNMENT
from diskgnn.formats.extent_headers import EncodedHeader

# One record per extent, and one per extent and row set; native/loading/extent_index.h has the same fields in the same
# order.
EXTENT_DTYPE = np.dtype(
    [
        ("offset", "<i8"),  # of the extent in the file, bytes
        ("header_bytes", "<i8"),
        ("header_crc32c", "<i8"),
    ]
)
ROWS_DTYPE = np.dtype(
    [
        ("rows_offset", "<i8"),  # of row 0, from the extent's start, bytes
        ("num_rows", "<i8"),  # R
        ("num_inputs", "<i8"),  # U, addresses
        ("addresses_offset", "<i8"),  # of the int32 [U] addresses, from the extent's start, bytes
        ("num_admissions", "<i8"),  # A
        ("admissions_offset", "<i8"),  # of the int32 [A, 2] admissions, from the extent's start, bytes
        ("rows_crc32c", "<i8"),
    ]
)


ROW_NUMBER = np.dtype(np.int64)  # what an extent by reference has of a row


class Part(NamedTuple):
    """A part of an extent that has a checksum: the header, or the rows of one row set."""

    offset: int  # from the extent's start, bytes
    num_bytes: int
    crc32c: int


@dataclass(frozen=True, eq=False)
class ExtentIndex:
    """Says where the parts of T extents are, with the rows of K row sets in each."""

    extents: npt.NDArray[Any]  # [T] EXTENT_DTYPE
    rows: npt.NDArray[Any]  # [T, K] ROWS_DTYPE
    row_bytes: tuple[int, ...]  # [K] that a row takes in an extent

    @staticmethod
    def empty(num_extents: int, row_bytes: Sequence[int]) -> ExtentIndex:
        """To be filled by `describe`."""
        rows = np.zeros((num_extents, len(row_bytes)), ROWS_DTYPE)
        return ExtentIndex(np.zeros(num_extents, EXTENT_DTYPE), rows, tuple(row_bytes))

    def __len__(self) -> int:
        return len(self.extents)

    @property
    def extent_bytes(self) -> npt.NDArray[np.int64]:
        """Returns [T] bytes of each extent, its padding included."""
        used = self.extents["header_bytes"]
        if self.row_bytes:
            used = self.rows["rows_offset"][:, -1] + self.rows["num_rows"][:, -1] * self.row_bytes[-1]
        return -(-used // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of all extents: of the file."""
        return int(self.extent_bytes.sum())

    @property
    def max_header_bytes(self) -> int:
        """Returns the bytes of the longest header."""
        return int(self.extents["header_bytes"].max(initial=0))

    @property
    def max_inputs(self) -> tuple[int, ...]:
        """Returns [K] the most addresses of a minibatch, by row set."""
        return tuple(self.rows["num_inputs"].max(0, initial=0).tolist())

    def parts(self, number: int) -> Iterator[Part]:
        """Yields the parts of one extent, in the order in which they lie there."""
        extent = self.extents[number]
        yield Part(0, int(extent["header_bytes"]), int(extent["header_crc32c"]))
        for rows, row_bytes in zip(self.rows[number], self.row_bytes, strict=True):
            yield Part(int(rows["rows_offset"]), int(rows["num_rows"]) * row_bytes, int(rows["rows_crc32c"]))

    def describe(self, number: int, offset: int, header: EncodedHeader, num_rows: Sequence[int]) -> int:
        """Fill all of an extent's records but the checksums; returns the extent's bytes.

        Args:
            number: of the extent.
            offset: of it in the file.
            header: what it starts with.
            num_rows: [K] of the row sets.
        """
        extent: Any = self.extents[number]
        extent["offset"], extent["header_bytes"] = offset, header.message.size
        end = header.message.size
        places = zip(header.addresses, header.admissions, num_rows, self.row_bytes, strict=True)
        for record, (addresses, admissions, rows, row_bytes) in zip(self.rows[number], places, strict=True):
            rows_offset = align(end, ROW_ALIGNMENT)
            record["rows_offset"], record["num_rows"] = rows_offset, rows
            record["addresses_offset"], record["num_inputs"] = addresses.offset, addresses.count
            record["admissions_offset"], record["num_admissions"] = admissions.offset, admissions.count
            end = rows_offset + rows * row_bytes
        return align(end, DIRECT_ALIGNMENT)


def align(num_bytes: int, alignment: int) -> int:
    """Returns `num_bytes` rounded up to a multiple of `alignment`."""
    return -(-num_bytes // alignment) * alignment
