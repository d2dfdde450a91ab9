"""How bytes get to an object store: a file at a time, or one that is made there of the parts of a local one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.storage import faults
from diskgnn.storage.disk_space import DiskBudget, punch
from diskgnn.storage.file_reading import fill, opened, read_into, reading
from diskgnn.storage.object_stores import Location, StoredPath
from diskgnn.storage.store_drivers import named_errors

_PIECE_BYTES = 8 << 20


def copy_file(source: Location, target: StoredPath) -> int:
    """Send a file; CRC-32C of what was read of it."""
    filesystem, path = target.locate()
    crc, offset, view = 0, 0, memoryview(bytearray(_PIECE_BYTES))
    with reading(source) as file, filesystem.open_output_stream(path) as stream:
        while read := read_into(file, offset, view, source):
            crc, offset = crc32c(view[:read], crc), offset + read
            stream.write(view[:read])
    return crc


def write_file(target: StoredPath, data: bytes) -> None:
    """Write a small file of a store."""
    filesystem, path = target.locate()
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


class ExtentsStream:
    """One file of a store, made of the parts of a local file, in order; what was sent of that takes no space any more.

    The driver sends it in parts (S3's multipart upload), and shows it when it is closed.
    """

    def __init__(self, target: StoredPath, disk: DiskBudget) -> None:
        self._target, self._disk = target, disk
        filesystem, path = target.locate()
        with named_errors(f"writing {target}"):
            self._stream = filesystem.open_output_stream(path)
        self.num_bytes = self.crc32c = 0

    def append(self, path: Path, end: int) -> None:
        """Send the local file up to byte `end`, and give its space back.

        Raises:
            StoreError: the store failed, also when the driver tried again.
        """
        begin, view = self.num_bytes, memoryview(bytearray(_PIECE_BYTES))
        with opened(path) as file, named_errors(f"writing {self._target}"):
            while self.num_bytes < end:
                piece = fill(file, self.num_bytes, view[: end - self.num_bytes], path)
                self.crc32c = crc32c(piece, self.crc32c)
                self._stream.write(piece)
                self.num_bytes += len(piece)
        faults.point("push.part")
        punch(path, begin, end - begin)
        self._disk.look()

    def close(self, expected_crc32c: int) -> None:
        """Make it appear.

        Raises:
            ArtifactError: what was sent has another checksum.
        """
        if self.crc32c != expected_crc32c:
            raise ArtifactError(f"what was sent to {self._target} is not what was made: the disk does not keep it")
        with named_errors(f"writing {self._target}"):
            self._stream.close()

    def abandon(self) -> None:
        """End it: what appears is not whole, and the record does not say that it is. Idempotent."""
        with suppress(OSError):
            self._stream.close()
