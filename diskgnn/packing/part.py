"""Packs a part of a packed directory again: some files, and some extents of its extents files.

A split of which anything is wanted is placed whole, since the places of rows follow from all of its minibatches. Only
what is wanted is written, and only its rows are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn._native import PageWriter, crc32c
from diskgnn.files.file_reading import fill, forget, opened
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.samples import Samples
from diskgnn.graph.source_schema import label_target
from diskgnn.packing.adopting import STAGE
from diskgnn.packing.header_encoder import HeaderEncoder
from diskgnn.packing.header_writer import HeaderWriter
from diskgnn.packing.memory_division import (
    COPIES,
    edge_ids_within,
    for_packing,
    minibatch_bytes_of,
    scratch_memory_bytes,
)
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.placed import Placed, PlacedSplit
from diskgnn.packing.placement import Placement, Schedule
from diskgnn.packing.reserving import scratch_pages
from diskgnn.packing.row_packing import pack_rows
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.split_scheduler import SplitScheduler
from diskgnn.packing.static_choice import Nodes
from diskgnn.progress.reporter import Advance
from diskgnn.system.allocators import pages_kept
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Work
from diskgnn.work.seed_files import read_given, write_given
from diskgnn.work.writer import ArtifactWriter

_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class Part:
    """The files and extents that are wanted."""

    files: frozenset[str]
    extents: Mapping[str, Sequence[int]]  # by split: those that its extents file gets, back to back; ascending
    whole: Mapping[str, Path]  # by split: an extents file that is whole, where only its index is wanted

    def wants_places(self, split: str, row_sets: Sequence[str]) -> bool:
        """Returns True if the split has to be placed."""
        of_rows = (artifacts.initial_cpu_rows_file, artifacts.next_cycle_slots_file)
        names = {name(split, row_set) for row_set in row_sets for name in of_rows}
        return split in self.extents or split in self.whole or not names.isdisjoint(self.files)


def pack_part(
    request: PackRequest, part: Part, static_nodes: Sequence[Nodes], writer: ArtifactWriter, resources: Resources
) -> None:
    """Writes and registers the files of `part`. If only some extents of a file are wanted, its index describes just
    these.

    Args:
        request: the packed directory. Its samples have the splits of which something is wanted.
        part: the files and extents that are wanted.
        static_nodes: [K] each [S] hottest first.
        writer: gets the files, and scratch.
        resources: what packing may spend.

    Raises:
        ArtifactError: the graph or the samples are damaged.
        DiskFullError: the files do not fit.
    """
    packing = _PartPacking(request, part, static_nodes, writer, resources)
    write_given(writer, read_given(request.samples.manifest, request.samples.config.spec))
    with closing(PageWriter()) as pages, pages_kept(COPIES * minibatch_bytes_of(request.samples)):
        packing.pack(pages)


class _PartPacking:
    def __init__(
        self,
        request: PackRequest,
        part: Part,
        static_nodes: Sequence[Nodes],
        writer: ArtifactWriter,
        resources: Resources,
    ) -> None:
        self._request, self._part, self._static_nodes, self._writer = request, part, static_nodes, writer
        samples = request.samples
        self._target = read_given(samples.manifest, samples.config.spec).target
        self._config = request.config(label_target(request.graph, self._target))
        resources = for_packing(request.graph, samples.config, self._target, minibatch_bytes_of(samples), resources)
        self._edge_ids, self._resources = edge_ids_within(resources, request.graph, samples.config)
        self._scheduler = SplitScheduler(
            writer, samples, request.row_sets, self._resources,
            scratch_memory_bytes=scratch_memory_bytes(self._resources),
        )  # fmt: skip
        self._needed: tuple[npt.NDArray[np.bool_], ...] = tuple(
            np.zeros(row_set.num_rows, np.bool_) for row_set in request.row_sets
        )

    def pack(self, pages: PageWriter) -> None:
        request, files = self._request, self._part.files
        names = [row_set.config.name for row_set in request.row_sets]
        splits = [
            self._place(split, pages) for split in request.samples.splits if self._part.wants_places(split, names)
        ]
        for needed, nodes, name in zip(self._needed, self._static_nodes, names, strict=True):
            if artifacts.static_file(name) in files:
                needed[nodes] = True
        placed = Placed(request.row_sets, tuple(self._static_nodes), self._needed, splits, {}, 0, files=files)
        pack_rows(Work(self._writer, STAGE), self._writer, pages, placed, self._resources)

    def _place(self, split: str, pages: PageWriter) -> PlacedSplit:
        """Places the split, and writes the headers of the extents that are wanted, if any."""
        num_batches = self._request.samples.config.splits[split].num_batches
        with self._resources.reporter.stage(f"place {split}", 2 * num_batches, "minibatches") as advance:
            found = self._scheduler.schedules_of(split, self._request.tiers, lambda _: self._static_nodes, advance)
            names = [row_set.config.name for row_set in self._request.row_sets]
            for needed, schedule, name in zip(self._needed, found.schedules, names, strict=True):
                if artifacts.initial_cpu_rows_file(split, name) in self._part.files:
                    needed[schedule.initial_cpu_nodes] = True
            with self._header_writer(split, pages) as headers:
                index = self._write_headers(split, headers, found.schedules, advance)
        if index is not None:
            self._save_index(split, index)
        placed = headers.placed(found.schedules)
        self._scheduler.remove(split)
        return placed

    def _header_writer(self, split: str, pages: PageWriter) -> HeaderWriter:
        request, numbers = self._request, self._part.extents.get(split, ())
        names = [row_set.config.name for row_set in request.row_sets]
        tails_path = self._writer.path(f"{split}.tails")
        return HeaderWriter(
            self._writer, pages, request.samples, self._encoder(split), split, numbers=numbers,
            nodes_paths=[self._writer.path(f"{split}-{name}.nodes") for name in names],
            row_bytes=self._config.stored_row_bytes, num_static=[len(nodes) for nodes in self._static_nodes],
            needed=self._needed,
            tails=scratch_pages(tails_path, len(numbers), self._writer.disk) if numbers else np.empty(0, np.uint8),
        )  # fmt: skip

    def _encoder(self, split: str) -> HeaderEncoder:
        request = self._request
        labels = SplitLabels.of(request.graph, self._target, split)
        return HeaderEncoder(self._config, request.row_sets, labels, self._edge_ids)

    def _write_headers(
        self, split: str, headers: HeaderWriter, schedules: Sequence[Schedule], advance: Advance
    ) -> ExtentIndex | None:
        """Writes the headers that are wanted. Returns the index of all extents if that is wanted, without checksums of
        rows.
        """
        wanted, is_indexed = set(self._part.extents.get(split, ())), split in self._part.whole
        indexing = _Indexing(self._request.samples, self._encoder(split), split, self._config.stored_row_bytes)
        num_batches = self._request.samples.config.splits[split].num_batches
        for number, *placements in zip(range(num_batches), *schedules, strict=True):
            if number in wanted:
                headers.write(placements)
            elif is_indexed:
                indexing.add(placements)
            advance(1)
        return indexing.index if is_indexed else None

    def _save_index(self, split: str, index: ExtentIndex) -> None:
        """Writes the index of an extents file that is whole. Checksums of rows are computed from that file."""
        path = self._part.whole[split]
        with opened(path) as file:
            for number, start in enumerate(index.extents["offset"].tolist()):
                for record, part in zip(index.rows[number], list(index.parts(number))[1:], strict=True):
                    record["rows_crc32c"] = _checksum(file, path, start + part.offset, part.num_bytes)
                forget(file, start, int(index.extent_bytes[number]))
        self._writer.save_array(artifacts.index_file(split), index.extents)
        self._writer.save_array(artifacts.rows_file(split), index.rows)


class _Indexing:
    """Finds where all extents of a split lie, by encoding their headers without writing them."""

    def __init__(self, samples: Samples, encoder: HeaderEncoder, split: str, row_bytes: Sequence[int]) -> None:
        self._minibatches, self._encoder = samples.read(split), encoder
        self.index = ExtentIndex.empty(samples.config.splits[split].num_batches, row_bytes)
        self._number = self._offset = 0

    def add(self, placements: Sequence[Placement]) -> None:
        header = self._encoder.encode(next(self._minibatches), placements)
        num_rows = [len(placement.disk_nodes) for placement in placements]
        num_bytes = self.index.describe(self._number, self._offset, header, num_rows)
        self.index.extents["header_crc32c"][self._number] = crc32c(np.frombuffer(header.message, np.uint8))
        self._number, self._offset = self._number + 1, self._offset + num_bytes


def _checksum(file: int, path: Path, offset: int, num_bytes: int) -> int:
    crc, buffer = 0, memoryview(bytearray(min(_READ_BYTES, num_bytes)))
    for start in range(0, num_bytes, _READ_BYTES):
        crc = crc32c(fill(file, offset + start, buffer[: num_bytes - start], path), crc)
    return crc
