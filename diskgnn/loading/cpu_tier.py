"""The cpu tier: C slots in host memory, under the schedule that was planned offline.

While minibatches come in order, the pipeline keeps the slots up to date. Where they start somewhere else, `restore`
fills the slots with what the schedule has in them there. In a pause, the memory of some slots can be lent: those rows
that are cheap to read again, of the last minibatches, are forgotten, and others move to their slots meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c, drop_pages
from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.files.file_reading import fill, reading
from diskgnn.files.row_reading import read_rows, row_buffer
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.manifest import made_again
from diskgnn.formats.packed import Packed
from diskgnn.loading.row_file_check import does_not_fit, open_row_file

_WINDOW_BYTES = 16 << 20
_COPIED_BYTES = 1 << 20
_INITIAL = -1  # in place of the number of an extent: the initial rows


@dataclass(frozen=True)
class _Forgotten:
    """Rows of one extent, or initial ones, that are to be read again."""

    extent: int
    rows: npt.NDArray[np.int64]  # [n] ascending, of those of the extent
    slots: npt.NDArray[np.int64]  # [n]
    crc: int


@dataclass(frozen=True)
class _Lent:
    """Slots whose memory is lent: the first ones, whatever they held."""

    forgotten: Sequence[_Forgotten]
    places: npt.NDArray[np.int64]  # [n] where rows of such slots are meanwhile: slots of rows that were forgotten
    slots: npt.NDArray[np.int64]  # [n] their own


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
        self._lent: _Lent | None = None

    def lend(self, index: ExtentIndex, position: int, num_bytes: int) -> int:
        """Free the memory of slots, up to `num_bytes`, until `take_back` or `restore`; returns bytes that are free.

        Args:
            index: of the sequence.
            position: of the minibatch that comes next, for which the slots are filled.
            num_bytes: how much to free at most.

        Raises:
            ArtifactError: an extent is damaged.
            ReadError: the disk failed.
        """
        left, by_slot, forgotten = num_bytes // self._row_bytes, self._by_slot, list[_Forgotten]()
        if left == 0 or self._lent is not None or self._packed.config.by_reference:
            return 0
        is_free = np.zeros(len(by_slot), bool)
        for extent, rows, slots in self._latest(index, position):
            if left == 0:
                break
            chosen = np.flatnonzero(~is_free[slots])[:left]
            left -= len(chosen)
            is_free[slots[chosen]] = True
            for part in self._parts(chosen):
                crc = crc32c(by_slot[slots[part]].ravel())
                forgotten.append(_Forgotten(extent, rows[part], slots[part], crc))
        count = int(np.count_nonzero(is_free))
        slots, places = np.flatnonzero(~is_free[:count]), count + np.flatnonzero(is_free[count:])
        self._move(slots, places)
        drop_pages(self.slots[: count * self._row_bytes])
        self._lent = _Lent(forgotten, places, slots)
        return count * self._row_bytes

    def take_back(self, index: ExtentIndex) -> int:
        """Fill the slots again whose memory was lent; returns bytes read.

        Raises:
            ArtifactError, ReadError: see `restore`.
        """
        if (lent := self._lent) is None:
            return 0
        read_bytes, self._lent = 0, None
        self._move(lent.places, lent.slots)
        for each in lent.forgotten:
            read_bytes += self._copy_rows(each.extent, index, each.rows, each.slots, verify=False)
            if crc32c(self._by_slot[each.slots].ravel()) != each.crc:
                raise self._damage_error(each.extent, "its rows are not those that were read before")
        return read_bytes

    def _move(self, slots: npt.NDArray[np.int64], to: npt.NDArray[np.int64]) -> None:
        """Copies the rows of `slots` [n] to others [n]."""
        for part in self._parts(np.arange(len(slots))):
            self._by_slot[to[part]] = self._by_slot[slots[part]]

    def _parts(self, numbers: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Yields numbers of rows, as many at a time as may be copied."""
        step = max(1, _COPIED_BYTES // self._row_bytes)
        return (numbers[first : first + step] for first in range(0, len(numbers), step))

    @property
    def _by_slot(self) -> npt.NDArray[np.uint8]:
        """Returns [C, row_bytes], a view of `slots`."""
        return self.slots.reshape(-1, self._row_bytes)

    def _latest(
        self, index: ExtentIndex, position: int
    ) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yields extents, rows of them in ascending order, and the slots that these were put in: the last extent before
        `position` first, the initial rows at the end. A slot of several has the first row that is said of it.
        """
        for number in range(position - 1, -1, -1):
            (admissions,) = self._admissions(index, range(number, number + 1), verify=False)
            rows, slots = admissions[np.argsort(admissions[:, 0])].astype(np.int64).T
            yield number, rows, slots
        initial = np.arange(self.initial_rows)
        yield _INITIAL, initial, initial

    def restore(self, index: ExtentIndex, position: int) -> int:
        """Fill the slots with what the schedule has in them before minibatch `position`; returns bytes read.

        A slot holds the row that was admitted last: it is read from that extent, or from the initial rows.

        Raises:
            ArtifactError: an extent, or the initial rows, are damaged.
            ReadError: the disk failed.
        """
        self._lent = None
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
        numbers = range(position if len(self.next_cycle_slots) else 0)
        for number, admissions in enumerate(self._admissions(index, numbers, verify=self._verify)):
            last_extent[admissions[:, 1]], last_row[admissions[:, 1]] = number, admissions[:, 0]
            read_bytes += admissions.nbytes
        slots = np.flatnonzero(last_extent >= 0)
        slots = slots[np.lexsort((last_row[slots], last_extent[slots]))]
        bounds = np.flatnonzero(np.diff(last_extent[slots], prepend=-1, append=-1))
        for begin, end in itertools.pairwise(bounds):
            of_extent = slots[begin:end]
            number = int(last_extent[of_extent[0]])
            read_bytes += self._copy_rows(number, index, last_row[of_extent], of_extent, verify=self._verify)
        return read_bytes

    def _admissions(self, index: ExtentIndex, numbers: range, *, verify: bool) -> Iterator[npt.NDArray[np.int32]]:
        """Returns [A, 2] extent row and slot, of each of these extents."""
        path = self._packed.extents(self._split)
        with reading(path) as file:
            for number in numbers:
                extent, record = index.extents[number], index.rows[number, self._number]
                offset, length = int(record["admissions_offset"]), 8 * int(record["num_admissions"])
                first, last = (0, int(extent["header_bytes"])) if verify else (offset, offset + length)
                data = fill(file, int(extent["offset"]) + first, bytearray(last - first), path)
                if verify and crc32c(data) != extent["header_crc32c"]:
                    raise self._damage_error(number, "its header does not have the checksum that was written")
                admissions = np.frombuffer(data, np.int32, length // 4, offset - first).reshape(-1, 2)
                limits = (int(record["num_rows"]), len(self.next_cycle_slots))
                if ((admissions < 0) | (admissions >= limits)).any():
                    raise self._damage_error(number, "an admission is out of range")
                yield admissions

    def _copy_rows(
        self,
        number: int,
        index: ExtentIndex,
        rows: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
        *,
        verify: bool,
    ) -> int:
        """Copy `rows` (ascending) of extent `number`, or initial ones, to `slots`; to verify, all rows are read.

        Returns bytes read.
        """
        assert not self._packed.config.by_reference  # these are read from the first minibatch on
        path, record = self._packed.extents(self._split), index.rows[number, self._number]
        data_offset = int(index.extents["offset"][number] + record["rows_offset"])
        num_rows = int(record["num_rows"])
        if number == _INITIAL:
            path, data_offset = self._initial.file.local_path, self._initial.file.data_offset_bytes
            num_rows = self.initial_rows
        window_bytes = faults.reading("window.bytes", _WINDOW_BYTES)
        window_rows = min(max(1, window_bytes // self._row_bytes), num_rows)
        buffer, by_slot = row_buffer(window_rows, self._row_bytes), self._by_slot
        read_bytes = crc = 0
        for first in range(0, num_rows, window_rows):
            begin, end = np.searchsorted(rows, [first, first + window_rows])
            wanted = np.arange(first, min(first + window_rows, num_rows)) if verify else rows[begin:end]
            if len(wanted) == 0:
                continue
            data, was_read = read_rows(path, data_offset, self._row_bytes, wanted, buffer, engine=self._engine)
            by_slot[slots[begin:end]] = data.reshape(-1, self._row_bytes)[rows[begin:end] - wanted[0]]
            read_bytes += was_read
            crc = crc32c(data, crc) if verify else 0
        if verify and crc != record["rows_crc32c"]:
            raise self._damage_error(number, "its rows do not have the checksum that was written")
        return read_bytes

    def _damage_error(self, number: int, what: str) -> ArtifactError:
        where = f"extent {number} of {self._packed.extents(self._split)}"
        if number == _INITIAL:
            where = str(self._packed.location / self._initial.name)
        return ArtifactError(f"{where} is damaged: {what}; {made_again(self._packed.manifest)}")


def _next_cycle_slots(packed: Packed, name: str) -> npt.NDArray[np.int32]:
    """Returns [C], compared with its checksum: a wrong one would give wrong rows."""
    entry = packed.manifest.files.get(name)
    if entry is None or entry.dtype != "<i4" or entry.shape is None or len(entry.shape) != 1:
        raise does_not_fit(packed)
    return packed.manifest.checked_array(name)
