"""Packs a part of a packed directory again: some files, and some extents of its extents files.

A split of which anything is wanted is placed whole, since the places of rows follow from all of its minibatches. Only
what is wanted is written, and only its rows are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diskgnn.files.checked_files import checksum_of
from diskgnn.files.file_reading import forget, opened
from diskgnn.formats import artifacts
from diskgnn.packing.pack_folder import STAGE
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.pack_run import PackRun
from diskgnn.packing.placed import PlacedSplit
from diskgnn.packing.row_packing import RowPacking, pack_rows, save_index
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Work
from diskgnn.work.writer import ArtifactWriter


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


def pack_part(request: PackRequest, part: Part, writer: ArtifactWriter, resources: Resources) -> None:
    """Writes and registers the files of `part`. If only some extents of a file are wanted, its index describes just
    these.

    Args:
        request: the packed directory, its `static_nodes` included. Its samples have the splits of which something is
            wanted.
        part: the files and extents that are wanted.
        writer: gets the files, and scratch.
        resources: what packing may spend.

    Raises:
        ArtifactError: the graph or the samples are damaged.
        DiskFullError: the files do not fit.
    """
    run, names = PackRun.of(request, resources), [row_set.config.name for row_set in request.row_sets]
    with run.placing(Work(writer, STAGE), writer) as placer:
        splits = []
        for split in request.samples.splits:
            if split in part.whole:
                splits.append(placed := placer.place(split, is_written=False))
                _save_index(writer, placed, part.whole[split])
            elif part.wants_places(split, names):
                splits.append(placer.place(split, numbers=part.extents.get(split, ())))
        pack_rows(RowPacking(placer.folder, placer.placed(splits, part.files)))


def _save_index(writer: ArtifactWriter, split: PlacedSplit, path: Path) -> None:
    """Writes the index of an extents file that is whole. Checksums of rows are computed from that file."""
    index = split.index
    with opened(path) as file:
        for records, num_bytes, (header, *parts) in zip(
            index.rows, index.extent_bytes.tolist(), index.parts.by_extent(), strict=True
        ):
            for record, part in zip(records, parts, strict=True):
                record["rows_crc32c"] = checksum_of(file, path, part.offset, part.num_bytes)
            forget(file, header.offset, num_bytes)
    save_index(writer, split)
