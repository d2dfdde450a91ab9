"""The cpu tier: C slots in host memory, under the schedule that was planned offline.

While minibatches come in order, the pipeline keeps the slots up to date. Where they start somewhere else, `restore`
fills the slots with what the schedule has in them there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.files.file_reading import fill, reading
from diskgnn.files.row_reading import read_rows, row_buffer
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.manifest import made_again
from diskgnn.formats.packed import Packed
from diskgnn.loading.row_file_check import does_not_fit, open_row_file

_RESTORE_WINDOW_BYTES = 16 << 20


class CpuTier:
    """Holds the slots of one row set in one split's sequence. Takes their memory; `restore` must fill it before it is
    used.

    Attributes:
        slots: [C * row_bytes] uint8, rows in slot order.
        next_cycle_slots: [C] int32: when the sequence starts over, slot i takes what was in slot next_cycle_slots[i].
        initial_rows: slots that are filled when the sequence starts.

    Args:
        packed: the directory.
        split: of the sequence.
        number: of the row set.
        engine: what reads rows.
        verify: compare what `restore` reads of extents with their checksums, which takes reading them as a whole. The
            initial rows are compared always.

    Raises:
        ArtifactError: the files do not fit what the config says, or do not have their checksums.
    """

    def __init__(self, packed: Packed, split: str, number: int, *, engine: str, verify: bool) -> None:
        self._packed, self._split, self._number, self._engine, self._verify = packed, split, number, engine, verify
        row_set, size = packed.config.row_sets[number], packed.sequence(split).row_sets[number]
        self.initial_rows = size.initial_rows
        initial_name = artifacts.initial_cpu_rows_file(split, row_set.name)
        self._initial = open_row_file(packed, initial_name, row_set.rows, self.initial_rows)
        self._row_bytes = self._initial.file.row_bytes
        self.next_cycle_slots = _next_cycle_slots(packed, artifacts.next_cycle_slots_file(split, row_set.name))
        if not self.initial_rows <= len(self.next_cycle_slots) == size.cpu_rows:
            raise does_not_fit(packed)
        # The initial rows are read straight into place, so slot 0 lies where row 0 lies in the file.
        num_slots, offset = len(self.next_cycle_slots), self._initial.file.data_offset_bytes
        self._memory = row_buffer(num_slots + -(-offset // self._row_bytes), self._row_bytes)
        self.slots = self._memory[offset : offset + num_slots * self._row_bytes]

    def restore(self, index: ExtentIndex, position: int, *, window_bytes: int = _RESTORE_WINDOW_BYTES) -> int:
        """Fill the slots with what the schedule has in them before minibatch `position`; returns bytes read.

        A slot holds the row that was admitted last: it is read from that extent, or from the initial rows.

        Args:
            index: of the sequence.
            window_bytes: rows of an extent are read at most so many at a time.

        Raises:
            ArtifactError: an extent, or the initial rows, are damaged.
            ReadError: the disk failed.
        """
        read_bytes, initial, initial_crc = 0, self._initial.file, self._initial.header_crc32c
        if self.initial_rows:
            data, read_bytes = read_rows(
                initial.local_path, initial.data_offset_bytes, self._row_bytes, np.arange(self.initial_rows),
                self._memory, engine=self._engine,
            )  # fmt: skip
            initial_crc = crc32c(data, initial_crc)
        self._initial.check(initial_crc)
        last_extent = np.full(len(self.next_cycle_slots), -1, np.int64)
        last_row = np.zeros(len(self.next_cycle_slots), np.int64)
        for number, admissions in enumerate(self._admissions(index, position)):
            last_extent[admissions[:, 1]], last_row[admissions[:, 1]] = number, admissions[:, 0]
            read_bytes += admissions.nbytes
        slots = np.flatnonzero(last_extent >= 0)
        slots = slots[np.lexsort((last_row[slots], last_extent[slots]))]
        bounds = np.flatnonzero(np.diff(last_extent[slots], prepend=-1, append=-1))
        for begin, end in itertools.pairwise(bounds):
            of_extent = slots[begin:end]
            number = int(last_extent[of_extent[0]])
            read_bytes += self._copy_rows(number, index, last_row[of_extent], of_extent, window_bytes)
        return read_bytes

    def _admissions(self, index: ExtentIndex, position: int) -> Iterator[npt.NDArray[np.int32]]:
        """[A, 2] extent row and slot, of each extent before `position`; none where the tier has no slots."""
        numbers = range(position) if len(self.next_cycle_slots) else range(0)
        path = self._packed.extents(self._split)
        with reading(path) as file:
            for number in numbers:
                extent, record = index.extents[number], index.rows[number, self._number]
                offset, length = int(record["admissions_offset"]), 8 * int(record["num_admissions"])
                first, last = (0, int(extent["header_bytes"])) if self._verify else (offset, offset + length)
                data = fill(file, int(extent["offset"]) + first, bytearray(last - first), path)
                if self._verify and crc32c(data) != extent["header_crc32c"]:
                    raise self._damaged(number, "its header does not have the checksum that was written")
                admissions = np.frombuffer(data, np.int32, length // 4, offset - first).reshape(-1, 2)
                limits = (int(record["num_rows"]), len(self.next_cycle_slots))
                if ((admissions < 0) | (admissions >= limits)).any():
                    raise self._damaged(number, "an admission is out of range")
                yield admissions

    def _copy_rows(
        self,
        number: int,
        index: ExtentIndex,
        rows: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
        window_bytes: int,
    ) -> int:
        """Copy `rows` (ascending) of extent `number` to `slots`; to verify, all rows are read. Returns bytes read."""
        assert not self._packed.config.by_reference  # these are read from the first minibatch on
        path, record = self._packed.extents(self._split), index.rows[number, self._number]
        data_offset = int(index.extents["offset"][number] + record["rows_offset"])
        num_rows = int(record["num_rows"])
        window_rows = min(max(1, window_bytes // self._row_bytes), num_rows)
        buffer = row_buffer(window_rows, self._row_bytes)
        by_slot = self.slots.reshape(-1, self._row_bytes)
        read_bytes = crc = 0
        for first in range(0, num_rows, window_rows):
            begin, end = np.searchsorted(rows, [first, first + window_rows])
            wanted = np.arange(first, min(first + window_rows, num_rows)) if self._verify else rows[begin:end]
            if len(wanted) == 0:
                continue
            data, was_read = read_rows(path, data_offset, self._row_bytes, wanted, buffer, engine=self._engine)
            by_slot[slots[begin:end]] = data.reshape(-1, self._row_bytes)[rows[begin:end] - wanted[0]]
            read_bytes += was_read
            crc = crc32c(data, crc) if self._verify else 0
        if self._verify and crc != record["rows_crc32c"]:
            raise self._damaged(number, "its rows do not have the checksum that was written")
        return read_bytes

    def _damaged(self, number: int, what: str) -> ArtifactError:
        return ArtifactError(
            f"extent {number} of {self._packed.extents(self._split)} is damaged: {what}; "
            f"{made_again(self._packed.manifest)}"
        )


def _next_cycle_slots(packed: Packed, name: str) -> npt.NDArray[np.int32]:
    """[C], compared with its checksum: a wrong one would give wrong rows."""
    entry = packed.manifest.files.get(name)
    if entry is None or entry.dtype != "<i4" or entry.shape is None or len(entry.shape) != 1:
        raise does_not_fit(packed)
    return packed.manifest.checked_array(name)
