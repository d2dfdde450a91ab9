"""The second half of packing: writes every window of a feature file to its places in all extents.

One row set comes after another. Its feature file is read once, front to back, in windows that fit the memory budget.
Rows of an extent are sorted by node, so the rows of a window are one contiguous run in it. Extents are appended to in
turn, a whole page at a time, past the page cache.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.files import faults
from diskgnn.files.disk_space import reserve
from diskgnn.formats import artifacts
from diskgnn.formats.feature_scan import WINDOWS_IN_MEMORY, scan_needed_rows
from diskgnn.packing.pack_folder import STAGE, PackFolder
from diskgnn.packing.placed import Placed, PlacedSplit
from diskgnn.packing.row_files import (
    ExtentRowsFile,
    InitialCpuRowsFile,
    RowFile,
    StaticFile,
)
from diskgnn.progress.reporter import Advance
from diskgnn.system.resources import Resources
from diskgnn.work.fold import Output
from diskgnn.work.required_space import require_space, spare_bytes
from diskgnn.work.step_file import SavedArray, StepFile
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

MIN_WINDOW_BYTES = 1 << 20  # whatever the budget
# Where the budget allows it, a window adds this much to an extent on average: worth a write of its own. More would
# only take memory that has to be found first, and keep the disk from writing while the first window is read.
MEAN_RUN_BYTES = 2 << 20
_ROW_OVERHEAD_BYTES = 72
ENOUGH_WINDOW_BYTES = 16 << 20
_MANIFEST_BYTES, _MANIFEST_ENTRY_BYTES = 8 << 10, 512  # at most, about: of the config, and of each file


def pack_rows(packing: RowPacking) -> None:
    """Writes the rows of all extents, of the static file and of each cpu tier's start, and registers all files.

    Raises:
        ArtifactError: features are damaged.
        DiskFullError: the files do not fit; names the bytes missing.
        DamagedStepError: what a killed run left is not what it wrote.
    """
    folder, placed, writer = packing.folder, packing.placed, packing.folder.writer
    wanted = [split for split in placed.splits if placed.wants(artifacts.extents_file(split.name))]
    extents = [] if placed.by_reference else wanted
    needed = [packing.needed(number, extents) for number in range(len(placed.row_sets))]
    needed_bytes = sum(
        int(np.count_nonzero(each)) * row_set.row_bytes for each, row_set in zip(needed, placed.row_sets, strict=True)
    )
    writer.disk.look()
    sizes = packing.sizes() | (packing.note_sizes() if writer.is_resumable else {})
    require_space(writer, sizes, f"packing {writer.final}", exact=True)
    for split in wanted:
        reserve(writer.path(artifacts.extents_file(split.name)), split.index.num_bytes, writer.disk.claim)
    faults.point("pack.rows")
    with folder.resources.reporter.stage("pack", needed_bytes, "B") as advance:
        for number, each in enumerate(needed):
            packing.pack(number, extents, each, advance)
    for split in wanted:
        writer.add(artifacts.extents_file(split.name), crc32c=split.index.file_crc32c())
        save_index(writer, split)


def save_index(writer: ArtifactWriter, split: PlacedSplit) -> None:
    """Writes the index of a split, once the checksums of all rows are known."""
    for file in _index_files(writer, split):
        file.close()


def _index_files(writer: ArtifactWriter, split: PlacedSplit) -> list[SavedArray]:
    arrays = {artifacts.index_file: split.index.extents, artifacts.rows_file: split.index.rows}
    return [SavedArray(writer, name(split.name), array) for name, array in arrays.items()]


@dataclass(frozen=True)
class RowPacking:
    """Writes rows of one row set after the other: each is a step that reads its features once.

    Args:
        folder: the packed directory.
        placed: the places of all rows.
    """

    folder: PackFolder
    placed: Placed

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each file of the directory; an upper bound for the manifest."""
        splits, numbers = self.placed.splits, range(len(self.placed.row_sets))
        files: list[StepFile] = [file for split in splits for file in _index_files(self.folder.writer, split)]
        files += [file for number in numbers for file in (*self._memory_files(number), *self._arrays(number))]
        sizes = {file.name: file.num_bytes for file in files}
        sizes |= {artifacts.extents_file(split.name): split.index.num_bytes for split in splits}
        sizes = {name: size for name, size in sizes.items() if self.placed.wants(name)}
        return sizes | {artifacts.MANIFEST: _MANIFEST_BYTES + len(sizes) * _MANIFEST_ENTRY_BYTES}

    def note_sizes(self) -> dict[str, int]:
        """Returns the most that notes take which say how far placing and packing are, by the beginning of their
        names."""
        note_bytes = self.placed.note_bytes
        for number in range(len(self.placed.row_sets)):
            files = [ExtentRowsFile(self.folder, split, number) for split in self.placed.splits]
            note_bytes += self.folder.work.note_bytes({}, [*files, *self._memory_files(number)])
        return {f"{STAGE}.": note_bytes}

    def fits_disk(self) -> bool:
        """Returns True if the whole directory has room here at once."""
        self.folder.writer.disk.look()
        return spare_bytes(self.folder.writer, self.sizes() | self.note_sizes()) >= 0

    def needed(self, number: int, extents: Sequence[PlacedSplit], *, with_memory: bool = True) -> npt.NDArray[np.bool_]:
        """Returns [N] bool: which rows of a row set some extents have, and static files and cpu tiers `with_memory`."""
        placed, config = self.placed, self.placed.row_sets[number].config
        needed: npt.NDArray[np.bool_] = np.zeros(placed.row_sets[number].num_rows, np.bool_)
        for split in extents:
            split.row_sets[number].mark(needed)
            self.folder.traffic.add(read=2 * split.row_sets[number].num_bytes)  # now, and with the windows
        if with_memory:
            if placed.wants(artifacts.static_file(config.name)):
                needed[placed.static_nodes[number]] = True
            for split in placed.splits:
                if placed.wants(artifacts.initial_cpu_rows_file(split.name, config.name)):
                    needed[split.row_sets[number].initial_cpu_nodes] = True
        return needed

    def pack(
        self,
        number: int,
        extents: Sequence[PlacedSplit],
        needed: npt.NDArray[np.bool_],
        advance: Advance,
        *,
        with_memory: bool = True,
    ) -> None:
        """Writes rows of one row set that no killed run has written.

        Args:
            number: of the row set.
            extents: splits, or some extents of a split, whose rows are written.
            needed: [N] whether any file needs a node's row. Becomes False for rows that a killed run has written.
            advance: told of the bytes of rows, those that a killed run has written first.
            with_memory: write the static rows and those that cpu tiers start with, too.
        """
        folder, placed, row_set = self.folder, self.placed, self.placed.row_sets[number]
        of_extents = [ExtentRowsFile(folder, split, number) for split in extents]
        files = [*of_extents, *(self._memory_files(number) if with_memory else [])]
        arrays = self._arrays(number) if with_memory else []
        needed_bytes = int(np.count_nonzero(needed)) * row_set.row_bytes
        found_bytes = window_bytes_for(placed, number, needed_bytes, folder.resources)
        window_bytes = faults.reading("window.bytes", found_bytes)

        def write(state: State, output: Output) -> Generator[int, None, None]:
            needed[: int(state["next_node"])] = False
            scan = scan_needed_rows(row_set.features, row_set.data.feature_checksums, needed, window_bytes)
            with closing(scan) as windows:
                for window in windows:
                    faults.point("pack.window")
                    for file in files:
                        file.write(window)
                    state["next_node"][...] = window.last
                    folder.traffic.add(read=window.read_bytes)
                    rows_bytes = len(window.nodes) * row_set.row_bytes
                    output.advance(rows_bytes)
                    yield rows_bytes

        state = folder.work.fold(
            _step(number), write, {"next_node": 0}, files=[*files, *arrays],
            after=placed.steps if number == 0 else [_step(number - 1)], advance=advance,
        )  # fmt: skip
        for split, rows in zip(extents, of_extents, strict=True):
            split.index.rows["rows_crc32c"][:, number] = rows.rows_crc32c(state)

    def _memory_files(self, number: int) -> list[RowFile]:
        """Returns the files of rows that are in memory when training begins."""
        placed, config = self.placed, self.placed.row_sets[number].config
        files: list[RowFile] = [StaticFile(self.folder, placed.static_nodes[number], config)]
        files += [InitialCpuRowsFile(self.folder, split, number, config) for split in placed.splits]
        return [file for file in files if placed.wants(file.name)]

    def _arrays(self, number: int) -> list[SavedArray]:
        """Returns the arrays that a row set has beside its rows."""
        placed, row_set = self.placed, self.placed.row_sets[number]
        name, quantisation = row_set.config.name, row_set.features.quantisation
        arrays: dict[str, npt.NDArray[Any]] = {
            artifacts.next_cycle_slots_file(split.name, name): split.row_sets[number].next_cycle_slots
            for split in placed.splits
        }
        if quantisation is not None:
            arrays[artifacts.packed_codes_file(name)] = quantisation.to_array()
        return [SavedArray(self.folder.writer, file, array) for file, array in arrays.items() if placed.wants(file)]


def _step(number: int) -> str:
    return f"rows-{number}"


def window_bytes_for(placed: Placed, number: int, needed_bytes: int, resources: Resources) -> int:
    """Returns how many bytes of the features of a row set to read at once, of which `needed_bytes` are needed.

    WINDOWS_IN_MEMORY of them are at most half of the budget together: the other half stays for blocks, page cache and
    the interpreter.
    """
    row_bytes = placed.row_sets[number].row_bytes
    num_extents = sum(len(split.index) for split in placed.splits)
    num_rows = sum(int(split.row_sets[number].bounds[-1]) for split in placed.splits)
    mean_extent_bytes = 1 + num_rows * row_bytes // max(1, num_extents)
    enough_bytes = max(ENOUGH_WINDOW_BYTES, needed_bytes * MEAN_RUN_BYTES // mean_extent_bytes)
    # What is known of each row of a window takes memory, too.
    share_bytes = resources.divided(WINDOWS_IN_MEMORY, part=2) * row_bytes // (row_bytes + _ROW_OVERHEAD_BYTES)
    return max(MIN_WINDOW_BYTES, min(share_bytes, enough_bytes))
