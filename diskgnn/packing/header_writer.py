"""Writes the headers of one split, extent after extent, and records what each extent consists of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import compress, count
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, ROW_ALIGNMENT, PageWriter, crc32c, mark_nodes, start_extent
from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ROW_NUMBER, ExtentIndex, align
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.formats.samples import Samples
from diskgnn.packing.header_encoder import HeaderEncoder
from diskgnn.packing.placed import PlacedHeaders, PlacedSplit
from diskgnn.packing.placement import Placement, Schedule
from diskgnn.work.writer import ArtifactWriter


class HeaderWriter:
    """Writes the headers of one split.

    Args:
        writer, pages: writers of the packed directory.
        samples: the samples that are placed.
        encoder: encoder of the split.
        split: train, valid or test.
        nodes_paths: [K] scratch files that get the nodes of rows.
        row_bytes: [K] bytes of a row in an extent.
        num_static: [K] number of static rows.
        needed: [K] each [N] bool; the rows that extents contain are set to True.
        tails: [T * 4096] gets the last page of each extent, which is not full yet.
        by_reference: write the numbers of rows, too; then extents are complete.
        numbers: the minibatches that get an extent, ascending; all by default.
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        pages: PageWriter,
        samples: Samples,
        encoder: HeaderEncoder,
        split: str,
        *,
        nodes_paths: Sequence[Path],
        row_bytes: Sequence[int],
        num_static: Sequence[int],
        needed: Sequence[npt.NDArray[np.bool_]],
        tails: npt.NDArray[np.uint8],
        by_reference: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> None:
        num_batches = samples.config.splits[split].num_batches if numbers is None else len(numbers)
        self._numbers = numbers
        self._disk = writer.disk
        self.split, self._samples, self._encoder, self._pages = split, samples, encoder, pages
        self._needed, self._num_static, self._tails = needed, num_static, tails
        self._by_reference = by_reference
        self._path = str(writer.path(artifacts.extents_file(split)))
        self._index = ExtentIndex.empty(num_batches, row_bytes)
        self._nodes_paths = nodes_paths
        self._node_bytes = np.full(len(nodes_paths), 4, np.int64)
        self._nodes_crc32c = np.zeros(len(nodes_paths), np.uint32)
        self._static_accesses = np.zeros(len(nodes_paths), np.int64)
        self._number = self._offset = 0  # of the next extent

    def __enter__(self) -> HeaderWriter:
        with ExitStack() as opening:
            self._nodes_files: list[BinaryIO] = [opening.enter_context(path.open("wb")) for path in self._nodes_paths]
            # Again, in the thread that writes.
            minibatches = self._samples.read(self.split)
            opening.callback(minibatches.close)
            self._minibatches: Iterator[SampledMinibatch] = minibatches
            if self._numbers is not None:
                self._minibatches = compress(minibatches, map(set(self._numbers).__contains__, count()))
            self._opened = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def write(self, placements: Sequence[Placement]) -> int:
        """Writes the header of the next extent; `placements` [K] are by row set. Returns the bytes written."""
        minibatch = next(self._minibatches)
        faults.point("pack.header")
        number = self._number
        header = self._encoder.encode(minibatch, placements)
        num_rows = [len(placement.disk_nodes) for placement in placements]
        num_bytes = self._index.describe(number, self._offset, header, num_rows)
        message = np.frombuffer(header.message, np.uint8)
        rows_bytes = (
            self._write_numbers(message, placements) if self._by_reference else self._start(message, placements)
        )
        for k, placement in enumerate(placements):
            if self._num_static[k] > 0:
                self._static_accesses[k] += int(np.count_nonzero(placement.addresses < self._num_static[k]))
        self._offset += num_bytes
        self._number += 1
        return len(message) + rows_bytes

    def _start(self, message: npt.NDArray[np.uint8], placements: Sequence[Placement]) -> int:
        """Writes the header, and notes which rows follow it. Returns the bytes of the rows' nodes in scratch files."""
        disk_nodes_bytes = sum(placement.disk_nodes.nbytes for placement in placements)
        self._disk.claim(align(len(message), DIRECT_ALIGNMENT) + disk_nodes_bytes)
        self._index.extents["header_crc32c"][self._number] = self._write(message, align(len(message), ROW_ALIGNMENT))
        for k, placement in enumerate(placements):
            self._nodes_files[k].write(placement.disk_nodes.data)
            self._node_bytes[k] = placement.disk_nodes.itemsize
            self._nodes_crc32c[k] = crc32c(placement.disk_nodes.view(np.uint8), int(self._nodes_crc32c[k]))
            mark_nodes(self._needed[k], placement.disk_nodes)
        return disk_nodes_bytes

    def _write_numbers(self, message: npt.NDArray[np.uint8], placements: Sequence[Placement]) -> int:
        """Writes the header and the numbers of the rows. Returns the bytes of these numbers."""
        records = self._index.rows[self._number]
        numbers = [placement.disk_nodes.astype(ROW_NUMBER).view(np.uint8) for placement in placements]
        ends = [int(record["rows_offset"]) + len(each) for record, each in zip(records, numbers, strict=True)]
        extent = np.zeros(max([len(message), *ends]), np.uint8)
        self._disk.claim(align(len(extent), DIRECT_ALIGNMENT))
        extent[: len(message)] = message
        for record, each, end in zip(records, numbers, ends, strict=True):
            extent[end - len(each) : end] = each
            record["rows_crc32c"] = crc32c(each)
        self._write(extent, len(extent))
        self._index.extents["header_crc32c"][self._number] = crc32c(message)
        return sum(map(len, numbers))

    def _write(self, data: npt.NDArray[np.uint8], rows_offset: int) -> int:
        """Writes `data` at the start of the next extent, then zeros up to `rows_offset`. Returns the checksum of
        `data`.
        """
        tail = self._tails[self._number * DIRECT_ALIGNMENT :][:DIRECT_ALIGNMENT]
        return start_extent(self._pages, self._path, self._offset, data, rows_offset, tail, True)

    def placed(self, schedules: Sequence[Schedule]) -> PlacedSplit:
        """Returns the placed split, after the headers of all extents are written. Its rows are still to be packed."""
        assert self._number == len(self._index), (self._number, len(self._index))
        tiers = [(schedule.initial_cpu_nodes, schedule.next_cycle_slots) for schedule in schedules]
        headers = PlacedHeaders(self._index, self._static_accesses, self._node_bytes, self._nodes_crc32c)
        return PlacedSplit.of(self.split, headers, self._tails, self._nodes_paths, tiers, adopted=False)
