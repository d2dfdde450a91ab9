"""Writes the headers of one split, extent after extent, and records what each extent consists of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

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
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter
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


class NodesFile(StepFile):
    """The nodes of the rows of a row set, extent after extent, from placing until these rows are packed.

    State: `<name>` [3], the nodes so far, the bytes of each (4 or 8), and their CRC-32C.
    """

    def __init__(self, writer: ArtifactWriter, split: str, row_set: str) -> None:
        super().__init__(writer, f"{split}-{row_set}.nodes", ends=False)

    def first(self) -> State:
        """Returns that there are no nodes."""
        return {self.name: np.array([0, 4, 0])}

    def written(self, state: State) -> Iterator[Span]:
        """Yields all nodes."""
        num_nodes, node_bytes, crc = state[self.name].tolist()
        yield Span(0, num_nodes * node_bytes, crc)

    def dtype(self, state: State) -> np.dtype[Any]:
        """Returns the dtype of the nodes: int32 or int64."""
        return np.dtype(np.int32 if state[self.name][1] == 4 else np.int64)

    def open(self, state: State) -> None:
        """Begins the file."""
        self._state, self._file = state[self.name], self.path.open("wb")

    def write(self, nodes: npt.NDArray[Any]) -> None:
        """Appends the nodes of the rows of an extent."""
        self.writer.disk.claim(nodes.nbytes)
        self._file.write(nodes.data)
        crc = crc32c(nodes.view(np.uint8), int(self._state[2]))
        self._state[:] = self._state[0] + len(nodes), nodes.itemsize, crc

    def hand_over(self) -> None:
        """Writes what is in the buffer."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def abandon(self) -> None:
        """Closes the file."""
        self._file.close()


class HeaderWriter:
    """Writes the headers of minibatches of one split, one after the other.

    Args:
        config: the directory as far as it is known before placing. If it is by reference, the numbers of rows are
            written, too; then extents are complete.
        row_sets: [K].
        labels: labels of the split; None if its seeds have none.
        extents: gets the headers; None if only the index is wanted.
        nodes: [K] get the nodes of rows.
        minibatches: those that get an extent, with what `KeptNumbers` adds.
        num_extents: T, as many as there are.
        num_static: [K] number of static rows.
    """

    def __init__(
        self,
        config: PackedConfig,
        row_sets: Sequence[RowSet],
        labels: SplitLabels | None,
        extents: HeadersFile | None,
        nodes: Sequence[NodesFile],
        minibatches: Iterator[SampledMinibatch],
        num_extents: int,
        num_static: Sequence[int],
    ) -> None:
        self._layout, self._by_reference = config.header_layout(), config.by_reference
        self._row_sets, self._labels, self._extents, self._nodes = row_sets, labels, extents, nodes
        self._minibatches, self._num_static = minibatches, num_static
        self._index = ExtentIndex.empty(num_extents, config.stored_row_bytes)
        self._static_accesses = np.zeros(len(nodes), np.int64)
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
                file.write(placement.disk_nodes)
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
