"""Copies of files that lie on a store but have to be here: they are mapped, read at random, or more than once."""

from __future__ import annotations

import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

from diskgnn._native import crc32c
from diskgnn.errors import callers_level
from diskgnn.files.disk_space import require_free_bytes
from diskgnn.files.file_reading import pieces_of, reading
from diskgnn.stores.locations import StoredPath
from diskgnn.units import format_size


class LocalCopies:
    """Copies in a folder of TMPDIR, each made when it is first asked for; gone when this is dropped."""

    def __init__(self, artifact: StoredPath) -> None:
        self._artifact = artifact
        self._copying = threading.Lock()
        self._folder: Path | None = None
        self._checksums: dict[str, int] = {}  # of what is copied

    def __reduce__(self) -> tuple[type[LocalCopies], tuple[StoredPath]]:
        return LocalCopies, (self._artifact,)  # another process makes its own

    def copy(
        self, source: StoredPath, num_bytes: int, advance: Callable[[int], None] = lambda _: None
    ) -> tuple[Path, int]:
        """Returns where the copy of a file of `num_bytes` lies, and the CRC-32C of what came.

        Raises:
            DiskFullError: there is no room for it.
            StoreError: the store failed.
        """
        with self._copying:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="diskgnn-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            path = self._folder / source.name
            if source.name in self._checksums:
                advance(num_bytes)
                return path, self._checksums[source.name]
            require_free_bytes(self._folder, num_bytes, f"a copy of {source}")
            if num_bytes >= 1 << 30:
                warnings.warn(
                    f"{source} ({format_size(num_bytes)}) is copied to {self._folder} first: what is read more than "
                    f"once, or not from front to back, has to be here; TMPDIR says where",
                    stacklevel=callers_level(),
                )
            self._checksums[source.name] = _copy(source, path, advance)
            return path, self._checksums[source.name]


def _copy(source: StoredPath, path: Path, advance: Callable[[int], None]) -> int:
    """Copies a file. Returns the CRC-32C of what came."""
    crc = 0
    with reading(source, front_to_back=True) as file, path.open("wb") as copy:
        for piece in pieces_of(file, source):
            crc = crc32c(piece, crc)
            copy.write(piece)
            advance(len(piece))
    return crc
