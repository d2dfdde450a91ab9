"""Writes the headers of one split, extent after extent, and records what each extent consists of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, crc32c, start_extent
from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.formats.extent_headers import EncodedHeader, encode_header
from diskgnn.formats.extents import ROW_ALIGNMENT, ROW_NUMBER, ExtentIndex, align
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.sampled_minibatch import RowPlaces, SampledMinibatch
from diskgnn.packing.pack_folder import PackFolder
from diskgnn.packing.placement import Placement
from diskgnn.packing.row_sets import RowSet
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import State
from diskgnn.work.written_spans import Span


class HeadersFile(StepFile):
    """The extents file of a split, of which placing writes the headers. Rows follow: `row_files.ExtentRowsFile`.

    Args:
        row_bytes: [K] that a row takes in an extent.
        tails: [T * 4096] has the last page of each extent, which is not full yet, when it is written or compared.
    """

    def __init__(
        self, folder: PackFolder, split: str, row_bytes: Sequence[int], tails: npt.NDArray[np.uint8]
    ) -> None:  # fmt: skip
        super().__init__(folder.writer, artifacts.extents_file(split), ends=False)
        self._pages, self._row_bytes, self._tails = folder.pages, tuple(row_bytes), tails

    def start(self, number: int, offset: int, data: npt.NDArray[np.uint8], padding_bytes: int) -> int:
        """Writes `data` at the start of an extent, and zeros behind it. Returns its checksum."""
        self.writer.disk.claim(align(len(data), DIRECT_ALIGNMENT))
        return start_extent(self._pages, str(self.path), offset, data, padding_bytes, self._tail(number))

    def hand_over(self) -> None:
        """Waits until all is written."""
        self._pages.finish()

    def close(self) -> None:
        """Waits until all is written."""
        self._pages.finish()

    def written(self, state: State) -> Iterator[Span]:
        """Yields the headers, with the zeros behind them."""
        index = ExtentIndex(state["extents"], state["rows"], self._row_bytes)
        for number, (header, *_) in enumerate(index.parts.by_extent()):
            yield Span(header.offset, header.num_bytes, header.crc32c, self._tail(number), header.padding_bytes)

    def _tail(self, number: int) -> npt.NDArray[np.uint8]:
        return self._tails[number * DIRECT_ALIGNMENT :][:DIRECT_ALIGNMENT]


@dataclass(frozen=True)
class WantedExtents:
    """The minibatches of a split that get an extent, and the files of what is known of these before their rows come."""

    split: str  # train, valid or test
    numbers: Collection[int]  # of minibatches
    headers: HeadersFile | None  # None if only the index is wanted
    nodes: Sequence[ArrayFile]  # [K] those of rows, extent after extent

    @property
    def files(self) -> list[StepFile]:
        """Returns all files, in the order in which they are opened."""
        return [*self.nodes, *([] if self.headers is None else [self.headers])]


class HeaderWriter:
    """Writes the headers of minibatches of one split, one after the other.

    Args:
        config: the directory as far as it is known before placing. If it is by reference, the numbers of rows are
            written, too; then extents are complete.
        row_sets: [K].
        labels: labels of the split; None if its seeds have none.
        wanted: T extents.
        minibatches: those that get an extent, with what `KeptNumbers` adds.
        num_static: [K] number of static rows.
    """

    def __init__(
        self,
        config: PackedConfig,
        row_sets: Sequence[RowSet],
        labels: SplitLabels | None,
        wanted: WantedExtents,
        minibatches: Iterator[SampledMinibatch],
        num_static: Sequence[int],
    ) -> None:
        self._layout, self._by_reference = config.header_layout(), config.by_reference
        self._row_sets, self._labels, self._extents, self._nodes = row_sets, labels, wanted.headers, wanted.nodes
        self._minibatches, self._num_static = minibatches, num_static
        self._index = ExtentIndex.empty(len(wanted.numbers), config.stored_row_bytes)
        self._static_accesses = np.zeros(len(row_sets), np.int64)
        self._extent = self._offset = 0  # of the next one

    def write(self, placements: Sequence[Placement]) -> None:
        """Writes the header of the next minibatch's extent; `placements` [K] are by row set."""
        minibatch = next(self._minibatches)
        if self._extents is not None:
            faults.point("pack.header")
        header = self._encoded(minibatch, placements)
        num_rows = [len(placement.disk_nodes) for placement in placements]
        num_bytes = self._index.describe(self._extent, self._offset, header, num_rows)
        message = np.frombuffer(header.message, np.uint8)
        if self._extents is None or self._by_reference:
            crc = crc32c(message)
            if self._extents is not None:
                extent = self._with_numbers(message, num_bytes, placements)
                self._extents.start(self._extent, self._offset, extent, 0)
        else:
            crc = self._extents.start(self._extent, self._offset, message, -len(message) % ROW_ALIGNMENT)
            for file, placement in zip(self._nodes, placements, strict=True):
                file.write(placement.disk_nodes.astype(file.dtype, copy=False))
        self._index.extents["header_crc32c"][self._extent] = crc
        for k, placement in enumerate(placements):
            if self._num_static[k] > 0:
                self._static_accesses[k] += int(np.count_nonzero(placement.addresses < self._num_static[k]))
        self._offset += num_bytes
        self._extent += 1

    def _encoded(self, minibatch: SampledMinibatch, placements: Sequence[Placement]) -> EncodedHeader:
        header = replace(
            minibatch,
            y=None if self._labels is None else self._labels.of_seeds(minibatch),
            rows=tuple(
                RowPlaces(placement.addresses, placement.admissions, row_set.spread(minibatch))
                for row_set, placement in zip(self._row_sets, placements, strict=True)
            ),
        )
        return encode_header(header, self._layout)

    def _with_numbers(
        self, message: npt.NDArray[np.uint8], num_bytes: int, placements: Sequence[Placement]
    ) -> npt.NDArray[np.uint8]:
        """Returns an extent of `num_bytes`: the header, and the numbers of the rows."""
        extent = np.zeros(num_bytes, np.uint8)
        extent[: len(message)] = message
        for record, placement in zip(self._index.rows[self._extent], placements, strict=True):
            numbers = placement.disk_nodes.astype(ROW_NUMBER).view(np.uint8)
            extent[record["rows_offset"] :][: len(numbers)] = numbers
            record["rows_crc32c"] = crc32c(numbers)
        return extent

    def state(self) -> State:
        """Returns what is known of all extents, after their headers are written: `extents` and `rows`, see
        `ExtentIndex`, and [K] `static_accesses`, addresses of static rows.
        """
        assert self._extent == len(self._index), (self._extent, len(self._index))
        index = self._index
        return {"extents": index.extents, "rows": index.rows, "static_accesses": self._static_accesses}
