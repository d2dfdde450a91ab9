"""Cuts columns out of records: the bytes of those that stay, laid out as if the others had never been there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.record_format import RecordFormat
from diskgnn.specs.feature_columns import FeatureColumn


@dataclass(frozen=True)
class Projection:
    """Says which bytes of records stay.

    Args:
        stored: records as a file has them.
        kept: the same without some of their columns.
    """

    stored: RecordFormat
    kept: RecordFormat

    @cached_property
    def _ranges(self) -> list[tuple[int, int, int]]:
        """Returns (first byte in the file, first byte of what stays, bytes) of columns side by side in both."""
        offsets, found = {each.name: each.offset for each in self.stored.fields}, list[tuple[int, int, int]]()
        for each in self.kept.fields:
            begin = offsets[each.name]
            if found and found[-1][0] + found[-1][2] == begin:
                first, place, num_bytes = found.pop()
                found.append((first, place, num_bytes + each.num_bytes))
            else:
                found.append((begin, each.offset, each.num_bytes))
        return found

    @cached_property
    def _null_bits(self) -> npt.NDArray[np.int64]:
        """Returns the numbers in the file of the null bits that stay."""
        bits = {each.name: each.null_bit for each in self.stored.fields}
        kept = [bits[each.name] for each in self.kept.fields if each.null_bit is not None]
        return np.array(kept, np.int64)

    def kept_codes(self, quantisation: Quantisation) -> Quantisation | None:
        """Returns what the codes that stay mean, of what those in the file do; None if none stay."""
        kept, first, columns = {each.name for each in self.kept.fields}, 0, list[int]()
        for each in self.stored.fields:
            if each.quantised:
                columns += range(first, first + each.width) if each.name in kept else ()
                first += each.width
        return quantisation.of_columns(np.array(columns)) if columns else None

    def cut(self, data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Returns [n, bytes] of the records that begin at `places` [n] in `data`."""
        out = np.zeros((len(places), self.kept.row_bytes), np.uint8)
        for first, place, num_bytes in self._ranges:
            out[:, place : place + num_bytes] = _bytes_at(data, places + first, num_bytes)
        if len(self._null_bits):
            nulls = _bytes_at(data, places + self.stored.nulls_offset, -(-self.stored.num_nullable // 8))
            bits = np.unpackbits(nulls, axis=1, bitorder="little")[:, self._null_bits]
            packed = np.packbits(bits, axis=1, bitorder="little")
            begin = self.kept.nulls_offset
            out[:, begin : begin + packed.shape[1]] = packed
        return out

    def cut_all(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Returns [n, bytes] of the records that fill `data`."""
        return self.cut(data, np.arange(len(data) // self.stored.row_bytes) * self.stored.row_bytes)


def _bytes_at(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint8]:
    if not len(places):
        return np.empty((0, count), np.uint8)
    found: npt.NDArray[np.uint8] = np.lib.stride_tricks.sliding_window_view(data, count)[places]
    return found


def without_columns(
    rows: RecordFormat, features: tuple[FeatureColumn, ...], left_out: Collection[str]
) -> tuple[RecordFormat | None, tuple[FeatureColumn, ...]]:
    """Returns the format of records without some columns, None if there are no others, and what x then is made of."""
    fields = [each for each in rows.fields if each.name not in left_out]
    features = tuple(each for each in features if each.name not in left_out)
    if not fields:
        return None, ()
    return RecordFormat.of(fields, max(1, sum(each.width for each in features))), features
