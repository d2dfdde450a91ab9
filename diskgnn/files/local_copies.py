"""Copies of files that lie on a store but have to be here: they are mapped, read at random, or more than once."""

from __future__ import annotations

import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from diskgnn._native import crc32c
from diskgnn.errors import callers_level
from diskgnn.files.disk_space import DiskBudget, file_bytes, require_free_bytes
from diskgnn.files.file_reading import pieces_of, reading
from diskgnn.files.scratch_folders import ScratchFolder
from diskgnn.stores.locations import StoredPath
from diskgnn.units import format_size

_PREFIX = "diskgnn-copies-"  # of folders; what begins with `diskgnn-` alone is kept from run to run, see `scratch_of`


class LocalCopies:
    """Copies in a folder of TMPDIR, each made when it is first asked for; gone when this is dropped, and those of a
    process that was killed when another one makes copies."""

    def __init__(self, artifact: StoredPath) -> None:
        self._artifact = artifact
        self._copying = threading.Lock()
        self._folder: ScratchFolder | None = None
        self._disks: list[DiskBudget] = []
        self._checksums: dict[str, int] = {}  # of what is copied

    def __reduce__(self) -> tuple[type[LocalCopies], tuple[StoredPath]]:
        return LocalCopies, (self._artifact,)  # another process makes its own

    @contextmanager
    def claimed_of(self, disk: DiskBudget) -> Iterator[None]:
        """Claims copies of `disk` within the block, in which those that are there count. Blocks may be nested."""
        with self._copying:
            self._disks.append(disk)
            if self._folder is not None:
                disk.count(self._folder.path)
        try:
            yield
        finally:
            with self._copying:
                self._disks.remove(disk)

    def copy(
        self, source: StoredPath, num_bytes: int, advance: Callable[[int], None] = lambda _: None
    ) -> tuple[Path, int]:
        """Returns where the copy of a file of `num_bytes` lies, and the CRC-32C of what came.

        Raises:
            DiskFullError: there is no room for it, or a budget has none.
            StoreError: the store failed.
        """
        with self._copying:
            folder = self._made_folder()
            path = folder / source.name
            if source.name in self._checksums:
                advance(num_bytes)
                return path, self._checksums[source.name]
            what = f"a copy of {source}"
            with ExitStack() as undoing:
                undoing.callback(path.unlink, missing_ok=True)
                for disk in self._disks:
                    disk.claim(file_bytes(num_bytes), what)
                    undoing.callback(disk.release, file_bytes(num_bytes))
                require_free_bytes(folder, num_bytes, what)
                if num_bytes >= 1 << 30:
                    warnings.warn(
                        f"{source} ({format_size(num_bytes)}) is copied to {folder} first: what is read more than "
                        f"once, or not from front to back, has to be here; TMPDIR says where",
                        stacklevel=callers_level(),
                    )
                self._checksums[source.name] = _copy(source, path, advance)
                undoing.pop_all()
            return path, self._checksums[source.name]

    def _made_folder(self) -> Path:
        if self._folder is None:
            self._folder = ScratchFolder(Path(tempfile.gettempdir()), _PREFIX, "TMPDIR")
            weakref.finalize(self, self._folder.delete)
            for disk in self._disks:
                disk.count(self._folder.path)
        return self._folder.path


def _copy(source: StoredPath, path: Path, advance: Callable[[int], None]) -> int:
    """Copies a file. Returns the CRC-32C of what came."""
    crc = 0
    with reading(source, front_to_back=True) as file, path.open("wb") as copy:
        for piece in pieces_of(file, source):
            crc = crc32c(piece, crc)
            copy.write(piece)
            advance(len(piece))
    return crc
