"""Scratch files that grow side by side, and that a killed run leaves to the next one as far as it recorded them."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.storage import cache_hints, faults
from diskgnn.storage.checked_files import checksum_file
from diskgnn.storage.disk_space import DiskBudget, allocated_bytes, file_bytes
from diskgnn.storage.file_reading import opened, read_array, read_into

State = Mapping[str, npt.NDArray[Any]]


class DamagedScratchError(ArtifactError):
    """A scratch file does not hold what was written to it: the disk does not keep it, or somebody changed it."""


class ScratchFiles:
    """Files 0 to `count` - 1 in a folder, which is made here.

    Args:
        folder: of the files.
        count: how many there may be.
        disk: of which they are claimed.
        state: what `so_far` said in a killed run with which this one goes on, or nothing.
    """

    def __init__(self, folder: Path, count: int, disk: DiskBudget, state: State) -> None:
        self.folder, self._disk = folder, disk
        self.sizes = state.get("sizes", np.zeros(count, np.int64)).copy()  # in bytes
        self._crcs = state.get("crcs", np.zeros(count, np.uint32)).copy()
        self._changed: set[int] = set()
        self._drop_unrecorded(keeps=bool(state))

    def _drop_unrecorded(self, *, keeps: bool) -> None:
        """Give back what a killed run left beyond what it recorded."""
        there_bytes = allocated_bytes(self.folder)
        if not keeps:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.stat().st_size > (size := int(self.sizes[int(path.name)])):
                os.truncate(path, size)
        self._disk.release(there_bytes - allocated_bytes(self.folder))

    def path(self, number: int) -> Path:
        """Of a file."""
        return self.folder / str(number)

    def append(self, number: int, content: npt.NDArray[Any]) -> None:
        """Let a file go on with the bytes of contiguous `content`."""
        content, size = content.reshape(-1).view(np.uint8), int(self.sizes[number])
        self._disk.claim(file_bytes(size + len(content)) - file_bytes(size))
        descriptor = os.open(self.path(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_at(descriptor, content, size)
        finally:
            os.close(descriptor)
        self._crcs[number] = crc32c(content, int(self._crcs[number]))
        self.sizes[number] += len(content)
        self._changed.add(number)

    def so_far(self) -> dict[str, npt.NDArray[Any]]:
        """What a run needs to know that goes on from here."""
        return {"sizes": self.sizes.copy(), "crcs": self._crcs.copy()}

    def claims(self) -> list[Path]:
        """What has to be durable before `so_far` is, and was not asked for before."""
        changed = [self.path(number) for number in sorted(self._changed)]
        self._changed.clear()
        return [*changed, self.folder]

    def front_to_back(self) -> FrontToBack:
        """Reads them from here on, each front to back."""
        return FrontToBack(self.path, self.sizes, self._crcs)

    def require_whole(self) -> None:
        """Compare all files with their checksums.

        Raises:
            DamagedScratchError: they are not what was written.
        """
        for number in np.flatnonzero(self.sizes).tolist():
            path = self.path(number)
            try:
                whole = checksum_file(path) == self._crcs[number]
            except FileNotFoundError:
                whole = False
            if not whole:
                raise DamagedScratchError(f"{path} is not what was written")

    def drop(self, number: int) -> None:
        """Remove a file."""
        if (path := self.path(number)).exists():
            self._disk.remove(path, allocated_bytes(path))

    def add_batches(self, ranges: npt.NDArray[np.uint16], batch: pa.RecordBatch) -> None:
        """Append each row of a batch to the file of its range, as a message of Arrow's."""
        faults.point("ids.spill")
        counts = np.bincount(ranges)
        by_range = batch.take(pa.array(np.argsort(ranges, kind="stable"))) if len(counts) > 1 else batch
        start = 0
        for number in np.flatnonzero(counts).tolist():
            rows = by_range.slice(start, int(counts[number]))
            self.append(number, np.frombuffer(rows.serialize(), np.uint8))
            start += rows.num_rows

    def batches(self, number: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """What `add_batches` appended to a file.

        Raises:
            DamagedScratchError: (at the end, too) it is not what was written.
            ReadError: the disk failed.
        """
        size = int(self.sizes[number])
        if not size:
            return
        try:
            with _Checked(self.path(number), size) as file:
                stream = pa.PythonFile(file, mode="r")
                while file.position < size:
                    yield pa.ipc.read_record_batch(pa.ipc.read_message(stream), schema)
        except (FileNotFoundError, EOFError, pa.ArrowException) as error:
            raise DamagedScratchError(f"{self.path(number)} is not what was written ({error})") from error
        if file.crc32c != self._crcs[number]:
            raise DamagedScratchError(f"{self.path(number)} is not what was written")


class FrontToBack:
    """One pass over files, each of which is compared with its checksum when its last number is read.

    Args:
        path: of a file.
        sizes: of the files, in bytes.
        crcs: their checksums.
    """

    def __init__(self, path: Callable[[int], Path], sizes: npt.NDArray[np.int64], crcs: npt.NDArray[np.uint32]) -> None:
        self._path, self._sizes, self._crcs = path, sizes, crcs
        self._positions, self._found = np.zeros_like(sizes), np.zeros_like(crcs)  # so far

    def read(self, number: int, dtype: npt.DTypeLike, count: int, first: int) -> npt.NDArray[Any]:
        """[count] numbers of a file from number `first` on. A file that is begun elsewhere than in front is not
        compared: a run that goes on there did that before (`ScratchFiles.require_whole`).

        Raises:
            DamagedScratchError: they are not there, or the file, which ends with them, is not what was written.
            ReadError: the disk failed.
        """
        path, start = self._path(number), first * np.dtype(dtype).itemsize
        try:
            found = read_array(path, dtype, count, start)
        except (ArtifactError, FileNotFoundError) as error:
            raise DamagedScratchError(str(error)) from error
        if start == self._positions[number]:
            self._found[number] = crc32c(found.view(np.uint8), int(self._found[number]))
            self._positions[number] += found.nbytes
            if self._positions[number] == self._sizes[number] and self._found[number] != self._crcs[number]:
                raise DamagedScratchError(f"{path} is not what was written; run the same command again")
        return found


class _Checked(io.RawIOBase):
    """The first `size` bytes of a file, read front to back."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__()
        self._path, self._size, self.position, self.crc32c = path, size, 0, 0
        self._opened = opened(path)
        self._descriptor = self._opened.__enter__()

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with what follows."""
        view = memoryview(buffer)[: self._size - self.position]
        if (read := read_into(self._descriptor, self.position, view, self._path)) != len(view):
            raise DamagedScratchError(f"{self._path} ends early")
        self.crc32c = crc32c(view[:read], self.crc32c)
        self.position += read
        return read

    def close(self) -> None:
        """Close the file. Idempotent."""
        if not self.closed:
            self._opened.__exit__(None, None, None)
        super().close()


def write_at(descriptor: int, content: npt.NDArray[Any], offset_bytes: int) -> None:
    """Write contiguous `content` to a file, all of it, without keeping it in the page cache."""
    view = content.reshape(-1).view(np.uint8).data
    while view:
        written = os.pwrite(descriptor, view, offset_bytes)
        view, offset_bytes = view[written:], offset_bytes + written
    cache_hints.forget(descriptor, offset_bytes - content.nbytes, content.nbytes)


def prefixed(prefix: str, state: State) -> dict[str, npt.NDArray[Any]]:
    """A state as a part of another."""
    return {f"{prefix}/{key}": array for key, array in state.items()}


def within(prefix: str, state: State) -> dict[str, npt.NDArray[Any]]:
    """The part of a state that `prefixed` made."""
    return {key.removeprefix(f"{prefix}/"): array for key, array in state.items() if key.startswith(f"{prefix}/")}
