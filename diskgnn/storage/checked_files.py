"""Files of artifacts: checksummed on the way to the disk, kept out of the page cache; the header of .npy files."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError


def checksum_file(path: Path, advance: Callable[[int], None] = lambda _: None) -> int:
    """CRC-32C of a whole file, read once front to back without keeping it in the page cache."""
    crc = 0
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(4 << 20)
        view = memoryview(buffer)
        offset = 0
        while read := file.readinto(buffer):
            crc = crc32c(view[:read], crc)
            os.posix_fadvise(file.fileno(), offset, read, os.POSIX_FADV_DONTNEED)
            offset += read
            advance(read)
    return crc


class ChecksummedFile(io.RawIOBase):
    """A file that is written front to back while its CRC-32C is computed (`crc32c`), for `ArtifactWriter.add`.

    What is written is sent to the disk soon and does not stay in the page cache.
    """

    _WINDOW_BYTES = 16 << 20

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb", buffering=0)
        self._written_bytes = self._dropped_bytes = 0
        self.crc32c = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Append all of `data`."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), self._WINDOW_BYTES):
            self._write_window(view[start : start + self._WINDOW_BYTES])
        return len(view)

    def _write_window(self, view: memoryview) -> None:
        self.crc32c = crc32c(view, self.crc32c)
        while view:
            written = self._file.write(view)
            view = view[written:]
            self._written_bytes += written
        if self._written_bytes - self._dropped_bytes >= 2 * self._WINDOW_BYTES:
            # DONTNEED starts writing dirty pages and drops those that an earlier call started on.
            length = self._written_bytes - self._dropped_bytes
            os.posix_fadvise(self._file.fileno(), self._dropped_bytes, length, os.POSIX_FADV_DONTNEED)
            self._dropped_bytes = self._written_bytes - self._WINDOW_BYTES

    def close(self) -> None:
        """Close the file; `crc32c` stays."""
        self._file.close()
        super().close()


def npy_header(path: Path) -> tuple[str, tuple[int, ...]]:
    """dtype (as `numpy.dtype.str`, or the list of fields as JSON) and shape of a .npy file.

    Raises:
        ArtifactError: no .npy file, in Fortran order, of object dtype, or of another length than its header says.
    """
    dtype, shape, _ = _read_npy_header(path)
    return (dtype.str if dtype.names is None else json.dumps(dtype.descr)), shape


def npy_data_offset(path: Path) -> int:
    """Where the data of a .npy file starts, in bytes."""
    return _read_npy_header(path)[2]


def _read_npy_header(path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset = file.tell()
    except Exception as error:  # a damaged header makes NumPy's parser raise nearly anything
        raise ArtifactError(f"{path} is not a readable .npy file: {error!r}") from error
    if fortran and len(shape) > 1:
        raise ArtifactError(f"{path} is stored column by column (Fortran order); save np.ascontiguousarray(array)")
    if dtype.hasobject:
        raise ArtifactError(f"{path} holds Python objects; expected numbers")
    expected_bytes = offset + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or path.stat().st_size != expected_bytes:
        raise ArtifactError(
            f"{path} has {path.stat().st_size} bytes, but {expected_bytes} by its own header (shape {list(shape)}): "
            f"it is truncated or was changed"
        )
    return dtype, shape, offset


def npy_header_bytes(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """The header that starts a .npy file of this dtype and shape; its length is a multiple of 64."""
    buffer = io.BytesIO()
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(buffer, {"descr": description, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
