"""What inference keeps on disk until its output is there: files of rows, finished one by one, in a hidden folder.

The folder has a journal. Whoever is killed goes on with the files that the journal names.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import read_ranges
from diskgnn.errors import BusyError, OutputExistsError
from diskgnn.storage import faults
from diskgnn.storage.artifacts import JOURNAL
from diskgnn.storage.checked_files import ChecksummedFile, sync
from diskgnn.storage.destination import staging_of
from diskgnn.storage.disk_space import DiskBudget, allocated_bytes, file_bytes
from diskgnn.storage.journal import Journal
from diskgnn.storage.locks import FileLock
from diskgnn.storage.own_files import require_own_folder
from diskgnn.storage.replacing import refuse_inside_artifact
from diskgnn.storage.row_reading import row_buffer
from diskgnn.storage.write_errors import beginning, raise_write_error

_OUTPUT = "output"  # in the folder, until it is whole


@dataclass
class Traffic:
    """Bytes moved between disk and memory. Threads add to it."""

    read_bytes: int = 0
    written_bytes: int = 0
    edge_bytes: int = 0  # of those read: offsets and indices
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, read: int = 0, written: int = 0, edges: int = 0) -> None:
        """Count some; `edges` were read."""
        with self._lock:
            self.read_bytes += read + edges
            self.edge_bytes += edges
            self.written_bytes += written


class Scratch:
    """The folder beside `output`, and `output` itself once it is whole. A context manager.

    Args:
        output: the file that is made.
        making: what follows from nothing but the inputs; files of a run that made something else are removed.
        overwrite: replace `output` if it is there.
        disk: what the folder and the output may take, in bytes or as '2GiB'; None is no bound.

    Raises:
        OutputExistsError: `output` exists and `overwrite` is False, or is no file.
        BusyError: another process is making it.
        ConfigError: the folder cannot be written to.
    """

    def __init__(self, output: Path, making: Any, *, overwrite: bool, disk: int | str | None = None) -> None:
        self.output = output.resolve()
        self.traffic = Traffic()
        self.folder = staging_of(self.output)
        self._lock = FileLock(self.folder.with_suffix(".lock"))
        self._new_folders: list[Path] = []  # that were made for the output
        self._journal = Journal(self.folder / JOURNAL, making)
        check_output(self.output, overwrite=overwrite)
        self.disk = DiskBudget(disk, [self.folder])

    def __enter__(self) -> Scratch:
        try:
            with beginning(self.output):
                self._new_folders = [folder for folder in self.output.parents if not folder.exists()]
                self.output.parent.mkdir(parents=True, exist_ok=True)
                if not self._lock.acquire():
                    raise BusyError(f"another process is writing {self.output} now; wait for it or stop it")
                require_own_folder(self.folder)
                if not self._journal.read():
                    self.clear()
                for torn in (*self.folder.glob("*.tmp"), self.folder / _OUTPUT):
                    torn.unlink(missing_ok=True)
                self.disk.look()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        is_kept = self.folder.exists()
        kept = "what is complete was kept: the same command goes on with it" if is_kept else "nothing is left"
        raise_write_error(error, self.output, kept)

    def _release(self) -> None:
        self._lock.release()
        with suppress(OSError):  # something is in them
            for folder in self._new_folders:
                folder.rmdir()

    @property
    def stored_bytes(self) -> int:
        """That files of an earlier run take."""
        return allocated_bytes(self.folder)

    def clear(self) -> None:
        """Forget whatever an earlier run left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.disk.look()
        try:
            self._journal.begin()
        except OSError:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the folder: nothing in it is of use to another run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_whole(self, name: str) -> bool:
        """Whether file `name` is finished, and still what it was then: all of it is read."""
        return self._journal.checksum(name) is not None

    def write(self, name: str, rows: npt.NDArray[Any]) -> None:
        """Make file `name` of `rows`, durably.

        Raises:
            DiskFullError: it is more than may be taken.
        """
        self.disk.claim(file_bytes(rows.nbytes))
        temporary = self.folder / f"{name}.tmp"
        with ChecksummedFile(temporary) as file:
            file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))
        sync(temporary)
        faults.point("unit.written")
        temporary.rename(self.folder / name)
        faults.point("unit.renamed")
        self._journal.add(name, rows.nbytes, file.crc32c)
        self.traffic.add(written=rows.nbytes)

    def read(self, name: str, num_bytes: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Fill the first `num_bytes` of `buffer`: page-aligned, with room to the next page."""
        if num_bytes:
            zero = np.zeros(1, np.int64)
            read_ranges(str(self.folder / name), "auto", zero, np.array([num_bytes]), zero, buffer)
            self.traffic.add(read=num_bytes)

    def rows(self, name: str, num_rows: int, columns: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """[num_rows, columns] file `name`."""
        num_bytes = num_rows * columns * np.dtype(dtype).itemsize
        buffer = row_buffer(1, num_bytes)
        self.read(name, num_bytes, buffer)
        return buffer[:num_bytes].view(dtype).reshape(num_rows, columns)

    def remove(self, name: str) -> None:
        """File `name` is of no use any more."""
        path = self.folder / name
        with suppress(FileNotFoundError):
            self.disk.remove(path, file_bytes(path.stat().st_size))

    @contextmanager
    def publishing(self) -> Iterator[Path]:
        """Where to write the output, whose bytes are claimed; then it is in its place, and the folder is gone."""
        temporary = self.folder / _OUTPUT
        yield temporary
        sync(temporary)
        self.traffic.add(written=temporary.stat().st_size)
        temporary.replace(self.output)
        sync(self.output.parent)
        shutil.rmtree(self.folder, ignore_errors=True)


def check_output(output: Path, *, overwrite: bool) -> None:
    """Refuse an output that is there, would be in an artifact, or cannot be written.

    Raises:
        ConfigError: it lies inside of an artifact's directory, or of a folder that may not be written to.
        OutputExistsError: it is a file and `overwrite` is False, or it is something else.
    """
    refuse_inside_artifact(output)
    if output.is_dir():
        raise OutputExistsError(f"{output} is a directory; choose a file in it, ending in .npy, .parquet or .csv")
    if output.exists() and not overwrite:
        raise OutputExistsError(f"{output} exists already; pass overwrite=True to replace it")
    there = next(folder for folder in output.absolute().parents if folder.exists())
    with beginning(output), tempfile.TemporaryFile(prefix=f".{output.name}.", dir=there):
        pass
