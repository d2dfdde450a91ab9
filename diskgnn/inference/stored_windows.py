"""The rows that passes leave for one another: a file for each window of what an `InferencePlan` stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c, read_ranges
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.files.disk_space import UNLIMITED, DiskBudget
from diskgnn.files.row_reading import row_buffer
from diskgnn.files.traffic import Traffic
from diskgnn.inference.pass_schedule import InferencePlan, Stored
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.runner import SOME_UNITS

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StoredFiles:
    """Files that passes have stored. Picklable."""

    folder: Path
    checksums: Mapping[str, int]  # by name, the CRC-32C of each


class StoredWindows:
    """Windows of what `plan` stores, in a file each. Threads may share it.

    Args:
        plan: says what they are of.
        files: those of passes before.
        traffic: is told what is read and written.
        made: gets those that are made; None where none are.
        disk: of which these are claimed.
    """

    def __init__(
        self,
        plan: InferencePlan,
        files: StoredFiles,
        traffic: Traffic,
        *,
        made: Path | None = None,
        disk: DiskBudget = UNLIMITED,
    ) -> None:
        self._plan, self._files, self.traffic = plan, files, traffic
        self._made, self._disk = made, disk

    def write(self, stored: Stored, window: int, rows: npt.NDArray[Any]) -> int:
        """Makes the file of a window of [n, columns] `rows`; returns its CRC-32C.

        Raises:
            DiskFullError: it is more than may be taken.
        """
        assert self._made is not None
        with ChecksummedFile(self._made / window_file(stored, window), disk=self._disk) as file:
            file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))
        self.traffic.add(written=rows.nbytes)
        return file.crc32c

    def read(self, stored: Stored, window: int, dtype: npt.DTypeLike = np.float32) -> Rows:
        """Returns [n, columns] the rows of a window."""
        first, last = self._plan.window(stored.node_type, window)
        num_bytes = (last - first) * stored.row_bytes
        buffer = row_buffer(1, num_bytes)
        self.fill(stored, window, buffer)
        return buffer[:num_bytes].view(dtype).reshape(last - first, stored.columns)

    def fill(self, stored: Stored, window: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Reads a window's bytes to the start of `buffer`: page-aligned, with room to the next page.

        Raises:
            DamagedStepError: they are not what was written.
        """
        first, last = self._plan.window(stored.node_type, window)
        name, num_bytes = window_file(stored, window), (last - first) * stored.row_bytes
        if not num_bytes:
            return
        zero, path = np.zeros(1, np.int64), self._files.folder / name
        try:
            read_ranges(str(path), "auto", zero, np.array([num_bytes]), zero, buffer)
        except (ArtifactError, FileNotFoundError) as error:
            raise DamagedStepError(SOME_UNITS, str(error)) from error
        if crc32c(buffer[:num_bytes]) != self._files.checksums[name]:
            raise DamagedStepError(SOME_UNITS, f"{path} is not what was written")
        self.traffic.add(read=num_bytes)


def window_file(stored: Stored, window: int) -> str:
    """Returns the name of the file of a window."""
    return f"{stored.name}-{window:05d}"


def window_files(stored: Iterable[Stored], windows: Iterable[int]) -> list[str]:
    """Returns those of some windows of all of `stored`."""
    numbers = list(windows)
    return [window_file(each, window) for each in stored for window in numbers]
