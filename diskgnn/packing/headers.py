"""Writes the headers of one split, extent after extent, and records what each extent consists of."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, ROW_ALIGNMENT, crc32c, start_extent
from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.formats.extent_headers import EncodedHeader, encode_header
from diskgnn.formats.extents import ROW_NUMBER, ExtentIndex, align
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.sampled_minibatch import RowPlaces, SampledBlock, SampledMinibatch
from diskgnn.packing.edge_ids import EdgeIds
from diskgnn.packing.pack_folder import PackFolder
from diskgnn.packing.placement import Placement
from diskgnn.packing.row_sets import RowSet
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter
from diskgnn.work.written_spans import Span


class HeaderEncoder:
    """Encodes the headers of one split.

    Args:
        config: config of the packed directory, as far as it is known before placing.
        row_sets: [K].
        labels: labels of the split; None if its seeds have none.
        edge_ids: edge ids of the graph; None if headers do not keep them.
    """

    def __init__(
        self, config: PackedConfig, row_sets: Sequence[RowSet], labels: SplitLabels | None, edge_ids: EdgeIds | None
    ) -> None:
        self._row_sets, self._layout, self._labels = row_sets, config.header_layout(), labels
        self._edge_ids = edge_ids

    def encode(self, minibatch: SampledMinibatch, placements: Sequence[Placement]) -> EncodedHeader:
        """Returns the encoded header of a minibatch; `placements` [K] say where the rows of each row set are."""
        header = replace(
            minibatch,
            y=None if self._labels is None else self._labels.of_seeds(minibatch),
            rows=tuple(
                RowPlaces(placement.addresses, placement.admissions, row_set.spread(minibatch))
                for row_set, placement in zip(self._row_sets, placements, strict=True)
            ),
            blocks=minibatch.blocks if self._edge_ids is None else self._blocks_with_ids(minibatch, self._edge_ids),
        )
        return encode_header(header, self._layout)

    @staticmethod
    def _blocks_with_ids(minibatch: SampledMinibatch, edge_ids: EdgeIds) -> tuple[tuple[SampledBlock, ...], ...]:
        def with_ids(number: int, block: SampledBlock) -> SampledBlock:
            assert block.positions is not None  # samples have those of all types then
            return replace(block, edge_ids=edge_ids.of(number, block.positions))

        return tuple(tuple(with_ids(e, block) for e, block in enumerate(blocks)) for blocks in minibatch.blocks)


class HeadersFile(StepFile):
    """The extents file of a split, of which placing writes the headers. Rows follow: `row_files.ExtentRowsFile`.

    Args:
        tails: [T * 4096] has the last page of each extent, which is not full yet, when it is written or compared.
    """

    def __init__(self, writer: ArtifactWriter, split: str, tails: npt.NDArray[np.uint8]) -> None:
        super().__init__(writer, artifacts.extents_file(split), ends=False)
        self._tails = tails

    def tail(self, number: int) -> npt.NDArray[np.uint8]:
        """Returns the last page of an extent [4096]."""
        return self._tails[number * DIRECT_ALIGNMENT :][:DIRECT_ALIGNMENT]

    def written(self, state: State) -> Iterator[Span]:
        """Yields the headers, and the zeros behind those that no rows follow."""
        is_complete = state["rows"]["num_rows"].sum(1) == 0
        for number, (offset, num_bytes, crc) in enumerate(state["extents"].tolist()):
            end = offset + num_bytes
            yield Span(offset, num_bytes, crc, self.tail(number))
            if is_complete[number]:
                yield Span.of_zeros(end, align(end, DIRECT_ALIGNMENT))


class NodesFile(StepFile):
    """The nodes of the rows of row set `number`, extent after extent, from placing until these rows are packed."""

    def __init__(self, writer: ArtifactWriter, split: str, row_set: str, number: int) -> None:
        super().__init__(writer, f"{split}-{row_set}.nodes", ends=False)
        self._number = number

    def written(self, state: State) -> Iterator[Span]:
        """Yields all nodes."""
        node_bytes, crc = (int(state[key][self._number]) for key in ("node_bytes", "nodes_crc32c"))
        yield Span(0, int(state["rows"]["num_rows"][:, self._number].sum()) * node_bytes, crc)


class HeaderWriter:
    """Writes the headers of one split.

    Args:
        folder: the packed directory.
        config: the directory as far as it is known before placing. If it is by reference, the numbers of rows are
            written, too; then extents are complete.
        extents: gets the headers.
        nodes: [K] get the nodes of rows.
        minibatches: those of the split, in the order of their placements.
        encoder: encoder of the split.
        numbers: the minibatches that get an extent.
        num_static: [K] number of static rows.
        is_written: write the files; False if only the index is wanted.
    """

    def __init__(
        self,
        folder: PackFolder,
        config: PackedConfig,
        extents: HeadersFile,
        nodes: Sequence[NodesFile],
        minibatches: Generator[SampledMinibatch, None, None],
        encoder: HeaderEncoder,
        numbers: Collection[int],
        num_static: Sequence[int],
        *,
        is_written: bool,
    ) -> None:
        self._folder, self._by_reference, self._is_written = folder, config.by_reference, is_written
        self._extents, self._nodes, self._num_static = extents, nodes, num_static
        self._minibatches, self._encoder, self._numbers = minibatches, encoder, numbers
        self._index = ExtentIndex.empty(len(numbers), config.stored_row_bytes)
        self._node_bytes = np.full(len(nodes), 4, np.int64)
        self._nodes_crc32c = np.zeros(len(nodes), np.uint32)
        self._static_accesses = np.zeros(len(nodes), np.int64)
        self._placed = 0  # minibatches so far
        self._extent = self._offset = 0  # of the next one

    def __enter__(self) -> HeaderWriter:
        with ExitStack() as opening:
            self._nodes_files: list[BinaryIO] = [opening.enter_context(file.path.open("wb")) for file in self._nodes]
            opening.callback(self._minibatches.close)
            self._opened = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def write(self, placements: Sequence[Placement]) -> None:
        """Writes the header of the next minibatch's extent, if it gets one; `placements` [K] are by row set."""
        if not self._numbers:  # nor is any minibatch read
            return
        minibatch, number = next(self._minibatches), self._placed
        self._placed += 1
        if number not in self._numbers:
            return
        if self._is_written:
            faults.point("pack.header")
        header = self._encoder.encode(minibatch, placements)
        num_rows = [len(placement.disk_nodes) for placement in placements]
        num_bytes = self._index.describe(self._extent, self._offset, header, num_rows)
        message = np.frombuffer(header.message, np.uint8)
        if self._by_reference:
            self._write_numbers(message, placements)
        self._index.extents["header_crc32c"][self._extent] = (
            self._start(message, placements) if self._is_written and not self._by_reference else crc32c(message)
        )
        for k, placement in enumerate(placements):
            if self._num_static[k] > 0:
                self._static_accesses[k] += int(np.count_nonzero(placement.addresses < self._num_static[k]))
        self._offset += num_bytes
        self._extent += 1

    def _start(self, message: npt.NDArray[np.uint8], placements: Sequence[Placement]) -> int:
        """Writes the header, and notes which rows follow it. Returns its checksum."""
        nodes_bytes = sum(placement.disk_nodes.nbytes for placement in placements)
        self._folder.writer.disk.claim(align(len(message), DIRECT_ALIGNMENT) + nodes_bytes)
        crc = self._write(message, align(len(message), ROW_ALIGNMENT))
        for k, placement in enumerate(placements):
            self._nodes_files[k].write(placement.disk_nodes.data)
            self._node_bytes[k] = placement.disk_nodes.itemsize
            self._nodes_crc32c[k] = crc32c(placement.disk_nodes.view(np.uint8), int(self._nodes_crc32c[k]))
        return crc

    def _write_numbers(self, message: npt.NDArray[np.uint8], placements: Sequence[Placement]) -> None:
        """Writes the header and the numbers of the rows."""
        records = self._index.rows[self._extent]
        numbers = [placement.disk_nodes.astype(ROW_NUMBER).view(np.uint8) for placement in placements]
        ends = [int(record["rows_offset"]) + len(each) for record, each in zip(records, numbers, strict=True)]
        extent = np.zeros(max([len(message), *ends]), np.uint8)
        self._folder.writer.disk.claim(align(len(extent), DIRECT_ALIGNMENT))
        extent[: len(message)] = message
        for record, each, end in zip(records, numbers, ends, strict=True):
            extent[end - len(each) : end] = each
            record["rows_crc32c"] = crc32c(each)
        self._write(extent, len(extent))

    def _write(self, data: npt.NDArray[np.uint8], rows_offset: int) -> int:
        """Writes `data` at the start of the next extent, then zeros up to `rows_offset`. Returns its checksum."""
        tail, path = self._extents.tail(self._extent), str(self._extents.path)
        return start_extent(self._folder.pages, path, self._offset, data, rows_offset, tail, True)

    def state(self) -> State:
        """Returns what is known of all extents, after their headers are written: `extents` and `rows`, see
        `ExtentIndex`, and [K] `static_accesses` (addresses of static rows), `node_bytes` (4 or 8, of a node in its
        file) and `nodes_crc32c` (of these files).
        """
        assert self._extent == len(self._index), (self._extent, len(self._index))
        return {
            "extents": self._index.extents,
            "rows": self._index.rows,
            "static_accesses": self._static_accesses,
            "node_bytes": self._node_bytes,
            "nodes_crc32c": self._nodes_crc32c,
        }
