"""Packs a part of a packed directory again: some files, and some extents of its extents files.

A split of which anything is wanted is placed whole, since the places of rows follow from all of its minibatches. Only
what is wanted is written, and only its rows are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from diskgnn._native import PageWriter, crc32c
from diskgnn.files.file_reading import fill, forget, opened
from diskgnn.formats import artifacts
from diskgnn.graph.source_schema import label_target
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.packing_need import COPIES, edge_ids_within, minibatch_bytes_of, packing_need
from diskgnn.packing.placed import STAGE, PlacedSplit
from diskgnn.packing.row_packing import pack_rows, save_index
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.split_placer import SplitPlacer
from diskgnn.packing.static_choice import Nodes
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
    graph, samples = request.graph, request.samples
    given, minibatch_bytes = read_given(samples.manifest, samples.config.spec), minibatch_bytes_of(samples)
    write_given(writer, given)
    resources = resources.within(packing_need(graph, samples.config, given.target, minibatch_bytes))
    edge_ids, resources = edge_ids_within(resources, graph, samples.config)
    work, names = Work(writer, STAGE), [row_set.config.name for row_set in request.row_sets]
    with closing(PageWriter()) as pages, pages_kept(COPIES * minibatch_bytes), work.scratch("tails") as tails:
        placer = SplitPlacer(
            work, writer, pages, tails, request, request.config(label_target(graph, given.target)), resources,
            static_nodes=static_nodes, labels=partial(SplitLabels.of, graph, given.target), edge_ids=edge_ids,
        )  # fmt: skip
        splits = []
        for split in samples.splits:
            if split in part.whole:
                splits.append(placed := placer.place(split, is_written=False))
                _save_index(writer, placed, part.whole[split])
            elif part.wants_places(split, names):
                splits.append(placer.place(split, numbers=part.extents.get(split, ())))
        pack_rows(work, writer, pages, placer.placed(splits, part.files), resources)


def _save_index(writer: ArtifactWriter, split: PlacedSplit, path: Path) -> None:
    """Writes the index of an extents file that is whole. Checksums of rows are computed from that file."""
    index = split.index
    with opened(path) as file:
        for number, start in enumerate(index.extents["offset"].tolist()):
            for record, part in zip(index.rows[number], list(index.parts(number))[1:], strict=True):
                record["rows_crc32c"] = _checksum(file, path, start + part.offset, part.num_bytes)
            forget(file, start, int(index.extent_bytes[number]))
    save_index(writer, split)


def _checksum(file: int, path: Path, offset: int, num_bytes: int) -> int:
    crc, buffer = 0, memoryview(bytearray(min(_READ_BYTES, num_bytes)))
    for start in range(0, num_bytes, _READ_BYTES):
        crc = crc32c(fill(file, offset + start, buffer[: num_bytes - start], path), crc)
    return crc
