"""How far the schedule of one split is, noted durably: accesses that are sorted, next uses that are found, and where it
stands. A run that goes on after a kill begins there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c
from diskgnn.packing.adopting import DamagedScratchError, opened_scratch
from diskgnn.storage import faults
from diskgnn.storage.checked_files import ChecksummedFile
from diskgnn.storage.disk_space import allocated_bytes, file_bytes
from diskgnn.storage.file_reading import fill
from diskgnn.storage.writer import ArtifactWriter

RECORD = "schedule"
SUFFIXES = (".even", ".odd")  # of files that have an array each, which take turns
_SPLIT, _UNIT = "split", "unit_batches"


class ScheduleRecord:
    """What is known of the schedule of `split`. Names in it begin with that of a row set's scratch files."""

    def __init__(self, writer: ArtifactWriter, split: str, unit_batches: int) -> None:
        """Goes on with what a killed run noted of the same split in units of as many minibatches."""
        self._writer, self.unit_batches = writer, unit_batches
        self.claimed_bytes = 0  # of the disk
        found = writer.recorded(RECORD) or {}
        is_same = found.get(_SPLIT) == split and found.get(_UNIT) == unit_batches
        begun = {_SPLIT: np.array(split), _UNIT: np.array(unit_batches)}
        self._found: dict[str, npt.NDArray[Any]] = found if is_same else begun

    @staticmethod
    def split_in(writer: ArtifactWriter) -> str | None:
        """Which split a killed run was scheduling."""
        found = writer.recorded(RECORD)
        return None if found is None else str(found[_SPLIT])

    def get(self, name: str) -> npt.NDArray[Any] | None:
        """What was noted under `name`; None if nothing was."""
        return self._found.get(name)

    def note(self, done: Mapping[str, npt.NDArray[Any]], written: Collection[Path]) -> None:
        """Note durably what is `done`; the files `written` hold it."""
        faults.point("pack.scheduled")
        self._found |= done
        self._writer.record(RECORD, self._found, claims=[path.name for path in written])

    def save(self, path: Path, turn: int, array: npt.NDArray[Any]) -> tuple[Path, npt.NDArray[Any]]:
        """Write an array that is too large for a record; the file, and what to note of it, for `load`.

        `turn` counts up, so that the file of the last note stays as it is.
        """
        path = path.with_suffix(SUFFIXES[turn % 2])
        more_bytes = max(0, file_bytes(array.nbytes) - allocated_bytes(path))
        self._writer.disk.claim(more_bytes)
        self.claimed_bytes += more_bytes
        with ChecksummedFile(path) as file:
            file.write(array.view(np.uint8))
        return path, np.array([turn, file.crc32c], np.int64)

    def load(self, path: Path, name: str, into: npt.NDArray[Any]) -> None:
        """Read what `save` wrote, and `name` was noted of.

        Raises:
            DamagedScratchError: it is not what was written.
        """
        turn, expected = self._found[name].tolist()
        path = path.with_suffix(SUFFIXES[turn % 2])
        with opened_scratch(path) as descriptor:
            fill(descriptor, 0, into.view(np.uint8).data, path)
        if crc32c(into.view(np.uint8)) != expected:
            raise DamagedScratchError(f"{path} is not what was written")

    def forget(self) -> None:
        """The split is placed, and what this says is no more."""
        self._writer.forget(RECORD)
