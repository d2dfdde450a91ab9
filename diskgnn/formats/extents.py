"""The extent: all that one minibatch needs from disk, contiguous. How its parts lie in it, and the index of them.

An extent starts on a multiple of DIRECT_ALIGNMENT in <split>.bin. It has a header (`extent_headers`), then the rows of
each row set that only disk has, sorted by number, row_bytes each, back to back. The rows of a row set start on a
multiple of ROW_ALIGNMENT; zeros are in between. <split>-index.npy and <split>-rows.npy say where all parts are.

Extents by reference have the number of each row in its place, an int64, and the rows stay in the graph's feature files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, crc32c, crc32c_combine
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


ROW_ALIGNMENT = 64  # bytes: where the rows of a row set start
ROW_NUMBER = np.dtype(np.int64)  # what an extent by reference has of a row
Bytes = TypeVar("Bytes", int, npt.NDArray[np.int64])
_EXTENTS_AT_ONCE = 1024  # as numbers of Python
_NOWHERE = np.iinfo(np.int64).max


class Part(NamedTuple):
    """A part of an extent that has a checksum: the header, or the rows of one row set."""

    offset: int  # in the file, bytes
    num_bytes: int
    padding_bytes: int  # zeros behind it, see `Parts`
    crc32c: int


class Parts(NamedTuple):
    """The parts of T extents: the header, then the rows of each of K row sets.

    Those that are not empty fill the extent, each with the zeros behind it, which reach to the next such part, or to
    the end of the extent.
    """

    offsets: npt.NDArray[np.int64]  # [1 + K, T] in the file, bytes
    num_bytes: npt.NDArray[np.int64]  # [1 + K, T]
    padding_bytes: npt.NDArray[np.int64]  # [1 + K, T] zeros behind it; 0 of an empty one
    crc32c: npt.NDArray[np.int64]  # [1 + K, T]

    def by_extent(self) -> Iterator[list[Part]]:
        """Yields [1 + K] the parts of each extent, in the order in which they lie there."""
        for first in range(0, self.offsets.shape[1], _EXTENTS_AT_ONCE):
            lists = (each.T[first : first + _EXTENTS_AT_ONCE].tolist() for each in self)
            for columns in zip(*lists, strict=True):
                yield list(map(Part, *columns))


@dataclass(frozen=True, eq=False)
class ExtentIndex:
    """Says where the parts of T extents are, with the rows of K row sets in each."""

    extents: npt.NDArray[Any]  # [T] EXTENT_DTYPE
    rows: npt.NDArray[Any]  # [T, K] ROWS_DTYPE
    row_bytes: tuple[int, ...]  # [K] that a row takes in an extent

    @staticmethod
    def empty(num_extents: int, row_bytes: Sequence[int]) -> ExtentIndex:
        """Makes an index to be filled by `describe`."""
        rows = np.zeros((num_extents, len(row_bytes)), ROWS_DTYPE)
        return ExtentIndex(np.zeros(num_extents, EXTENT_DTYPE), rows, tuple(row_bytes))

    def __len__(self) -> int:
        return len(self.extents)

    def __getitem__(self, numbers: slice | Sequence[int]) -> ExtentIndex:
        """Returns the index of some extents; of a slice, its arrays are views of the same memory."""
        wanted = numbers if isinstance(numbers, slice) else list(numbers)  # a tuple would be a place
        return ExtentIndex(self.extents[wanted], self.rows[wanted], self.row_bytes)

    @property
    def parts(self) -> Parts:
        """Returns the parts of all extents: all that reads or writes extents goes by these."""
        extents, rows = self.extents, self.rows.T
        offsets = np.vstack([extents["offset"], extents["offset"] + rows["rows_offset"]])
        rows_bytes = rows["num_rows"] * np.array(self.row_bytes, np.int64)[:, None]
        num_bytes = np.vstack([extents["header_bytes"], rows_bytes])
        # Where the next one begins that is not empty, or the extent ends: the least of those behind it.
        begins = np.vstack([np.where(rows_bytes > 0, offsets[1:], _NOWHERE), extents["offset"] + self.extent_bytes])
        begins = np.minimum.accumulate(begins[::-1])[::-1]
        padding_bytes = np.where(num_bytes > 0, begins - offsets - num_bytes, 0)
        checksums = np.vstack([extents["header_crc32c"], rows["rows_crc32c"]])
        return Parts(*map(np.ascontiguousarray, (offsets, num_bytes, padding_bytes, checksums)))

    @property
    def extent_bytes(self) -> npt.NDArray[np.int64]:
        """Returns [T] bytes of each extent, its padding included."""
        used: npt.NDArray[np.int64] = self.extents["header_bytes"]
        if self.row_bytes:
            used = self.rows["rows_offset"][:, -1] + self.rows["num_rows"][:, -1] * self.row_bytes[-1]
        return align(used, DIRECT_ALIGNMENT)

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

    def file_crc32c(self) -> int:
        """Returns the CRC-32C of the extents file, from those of all parts."""
        crc, zeros = 0, bytes(DIRECT_ALIGNMENT)
        for parts in self.parts.by_extent():
            for part in parts:
                crc = crc32c_combine(crc, part.crc32c, part.num_bytes)
                crc = crc32c(zeros[: part.padding_bytes], crc)
        return crc

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
        return int(align(end, DIRECT_ALIGNMENT))


def align(num_bytes: Bytes, alignment: int) -> Bytes:
    """Returns `num_bytes` rounded up to a multiple of `alignment`."""
    return -(-num_bytes // alignment) * alignment
