"""Files of artifacts: checksummed on the way to the disk, kept out of the page cache; the header of .npy files."""

from __future__ import annotations

import io
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, crc32c, crc32c_chunks
from diskgnn.errors import ArtifactError
from diskgnn.files import cache_hints
from diskgnn.files.disk_space import UNLIMITED, DiskBudget, allocated_bytes, file_bytes
from diskgnn.files.file_reading import Opened, fill, forget, read_into, reading, size_of
from diskgnn.files.row_reading import read_span
from diskgnn.stores.locations import Location

# A scan that skips rows compares what it reads in pieces of this size: no smaller ones can be read past the page cache.
CHECKSUM_CHUNK_BYTES = DIRECT_ALIGNMENT
_READ_BYTES = 4 << 20
_LARGE_BYTES = 16 << 20  # of an array that is loaded past the page cache, which takes a third of the time
_parsing_headers = threading.Lock()
_MAX_HEADER_BYTES = 1 << 20  # of .npy files; NumPy writes some hundred, and of records some 30 for each column
_USUAL_HEADER_BYTES = 4 << 10


def checksum_file(path: Location, advance: Callable[[int], None] = lambda _: None, *, keep_cached: bool = False) -> int:
    """Returns the CRC-32C of a whole file, read once front to back. It does not stay in the page cache, unless
    `keep_cached`.

    Raises:
        ReadError: the disk failed.
    """
    crc = 0
    with reading(path, front_to_back=True) as file:
        view = np.empty(_READ_BYTES, np.uint8).data  # a short file touches few of its pages
        offset = 0
        while read := read_into(file, offset, view, path):
            crc = crc32c(view[:read], crc)
            if not keep_cached:
                forget(file, offset, read)
            offset += read
            advance(read)
    return crc


def checksum_of(file: Opened, path: Location, begin: int, num_bytes: int, crc: int = 0) -> int:
    """Returns the CRC-32C of bytes of an open file, continuing `crc`. Many of them do not stay in the page cache.

    Raises:
        ReadError, ArtifactError: see `fill`.
    """
    view = np.empty(max(0, min(_READ_BYTES, num_bytes)), np.uint8).data
    for offset in range(begin, begin + num_bytes, _READ_BYTES):
        piece = fill(file, offset, view[: begin + num_bytes - offset], path)
        crc = crc32c(piece, crc)
        if len(piece) == _READ_BYTES:
            forget(file, offset, len(piece))
    return crc


class ChunkChecksums:
    """CRC-32C of data that come front to back: of all (`crc32c`), and of each CHECKSUM_CHUNK_BYTES (`chunks`)."""

    def __init__(self) -> None:
        self.crc32c = 0
        self._finished: list[npt.NDArray[np.uint32]] = []
        self.num_finished = 0  # chunks that are full and not taken
        self._chunk, self._chunk_bytes = 0, 0  # the one that is not full yet

    def add(self, data: Any) -> None:
        """Continue with `data` (bytes-like, contiguous)."""
        view = memoryview(data).cast("B")
        begun = -self._chunk_bytes % CHECKSUM_CHUNK_BYTES  # bytes missing of the chunk that is not full yet
        self._add_part(view[:begun])
        view = view[begun:]
        whole_bytes = len(view) // CHECKSUM_CHUNK_BYTES * CHECKSUM_CHUNK_BYTES
        chunks, self.crc32c = crc32c_chunks(view[:whole_bytes], CHECKSUM_CHUNK_BYTES, self.crc32c)
        self._finished.append(chunks)
        self.num_finished += len(chunks)
        self._add_part(view[whole_bytes:])

    def _add_part(self, part: memoryview) -> None:
        """Continue with a part of one chunk."""
        self.crc32c = crc32c(part, self.crc32c)
        self._chunk, self._chunk_bytes = crc32c(part, self._chunk), self._chunk_bytes + len(part)
        if self._chunk_bytes == CHECKSUM_CHUNK_BYTES:
            self._finished.append(np.array([self._chunk], np.uint32))
            self.num_finished += 1
            self._chunk = self._chunk_bytes = 0

    def chunks(self) -> npt.NDArray[np.uint32]:
        """Returns [ceil(bytes / CHECKSUM_CHUNK_BYTES)]; the last chunk may be shorter."""
        last = np.array([self._chunk] if self._chunk_bytes else [], np.uint32)
        return np.concatenate([*self._finished, last])

    def take(self) -> npt.NDArray[np.uint32]:
        """Returns those of chunks that are full, and not yet taken; `chunks` does not have them any more."""
        taken = np.concatenate([*self._finished, np.empty(0, np.uint32)])
        self._finished.clear()
        self.num_finished = 0
        return taken

    def state(self) -> npt.NDArray[np.int64]:
        """Returns what `after` needs to go on from here, beside what was taken."""
        assert not self._finished
        return np.array([self._chunk, self._chunk_bytes, self.crc32c])

    @staticmethod
    def after(state: npt.NDArray[np.int64]) -> ChunkChecksums:
        """Returns checksums that go on where they had this `state`."""
        checksums = ChunkChecksums()
        checksums._chunk, checksums._chunk_bytes, checksums.crc32c = state.tolist()
        return checksums


class ChecksummedFile(io.RawIOBase):
    """A file that is written front to back while its CRC-32C is computed (`crc32c`), for `ArtifactWriter.add`.

    What is written is claimed of `disk`, sent to the disk soon, and does not stay in the page cache unless
    `keeps_pages`. What was there of the file, and is written over, counts as free.
    """

    _PIECE_BYTES = 16 << 20

    def __init__(
        self, path: Path, *, kept_bytes: int = 0, crc32c: int = 0, disk: DiskBudget = UNLIMITED,
        keeps_pages: bool = False,
    ) -> None:  # fmt: skip
        """Goes on after the first `kept_bytes` of a file that is there, whose checksum is `crc32c`."""
        super().__init__()
        there = allocated_bytes(path)
        self._file = path.open("r+b" if kept_bytes else "wb", buffering=0)
        self._file.seek(kept_bytes)
        self._file.truncate()
        disk.release(there - allocated_bytes(path))
        self._written_bytes = self._dropped_bytes = kept_bytes
        self.crc32c, self._disk, self._keeps_pages = crc32c, disk, keeps_pages

    def writable(self) -> bool:
        """Returns True."""
        return True

    def write(self, data: Any) -> int:
        """Append all of `data`."""
        view = memoryview(data).cast("B")
        self._disk.claim(file_bytes(self._written_bytes + len(view)) - file_bytes(self._written_bytes))
        for start in range(0, len(view), self._PIECE_BYTES):
            self._write_piece(view[start : start + self._PIECE_BYTES])
        return len(view)

    def _write_piece(self, view: memoryview) -> None:
        self.crc32c = crc32c(view, self.crc32c)
        while view:
            written = self._file.write(view)
            view = view[written:]
            self._written_bytes += written
        if not self._keeps_pages and self._written_bytes - self._dropped_bytes >= 2 * self._PIECE_BYTES:
            # This starts writing dirty pages and drops those that an earlier call started on.
            length = self._written_bytes - self._dropped_bytes
            cache_hints.forget(self._file.fileno(), self._dropped_bytes, length)
            self._dropped_bytes = self._written_bytes - self._PIECE_BYTES

    def close(self) -> None:
        """Close the file; `crc32c` stays."""
        self._file.close()
        super().close()


def npy_header(path: Location) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype (as `numpy.dtype.str`, or the list of fields as JSON) and shape of a .npy file.

    Raises:
        ArtifactError: no .npy file, in Fortran order, of object dtype, or of another length than its header says.
        ReadError: the disk failed.
    """
    dtype, shape, _ = _read_npy_header(path)
    return npy_dtype(dtype), shape


def npy_dtype(dtype: np.dtype[Any]) -> str:
    """Returns a dtype as `npy_header` says it."""
    return dtype.str if dtype.names is None else json.dumps(dtype.descr)


def npy_data_offset(path: Location) -> int:
    """Returns where the data of a .npy file starts, in bytes."""
    return _read_npy_header(path)[2]


def _header_bytes(start: bytearray) -> int:
    """Returns how long a .npy header says that it is, with its magic bytes, version and length."""
    length_bytes = 2 if start[6:7] == b"\x01" else 4
    return 8 + length_bytes + int.from_bytes(start[8 : 8 + length_bytes], "little")


def _read_npy_header(path: Location) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    with reading(path) as opened_file:
        start = bytearray(_USUAL_HEADER_BYTES)
        start = start[: read_into(opened_file, 0, start, path)]
        if (header_bytes := _header_bytes(start)) > len(start):  # of a table with hundreds of columns
            rest = bytearray(min(header_bytes, _MAX_HEADER_BYTES) - len(start))
            start += rest[: read_into(opened_file, len(start), rest, path)]
        file_bytes = size_of(opened_file)
    header = bytes(start[:header_bytes])
    try:
        parse = _parsed_header if len(header) <= _USUAL_HEADER_BYTES else _parsed_header.__wrapped__
        shape, fortran, dtype = parse(header)
        if dtype.names is not None:  # who renames the fields of an array must not rename those of later ones
            _, _, dtype = _parsed_header.__wrapped__(header)
    except Exception as error:  # a damaged header makes NumPy's parser raise nearly anything
        raise ArtifactError(f"{path} is damaged or another file: its header is no .npy header") from error
    if fortran and len(shape) > 1:
        raise ArtifactError(f"{path} is stored column by column (Fortran order); save np.ascontiguousarray(array)")
    if dtype.hasobject:
        raise ArtifactError(f"{path} holds Python objects; expected numbers")
    expected_bytes = header_bytes + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or file_bytes != expected_bytes:
        raise ArtifactError(
            f"{path} has {file_bytes} bytes, but {expected_bytes} by its own header (shape {list(shape)}): it is "
            f"truncated or was changed"
        )
    return dtype, shape, header_bytes


@lru_cache  # a stage reads those of its few files again and again: NumPy's parser compiles them as Python
def _parsed_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns shape, Fortran order and dtype."""
    file = io.BytesIO(header)
    # CPython 3.11 miscounts its recursion when several threads parse literals at once, and raises an error.
    with _parsing_headers:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(file, max_header_size=_MAX_HEADER_BYTES)


def map_npy(path: Path) -> npt.NDArray[Any]:
    """Returns the array in a .npy file as a read-only memory map.

    Raises:
        ArtifactError, ReadError: see `npy_header`.
    """
    dtype, shape, offset = _read_npy_header(path)
    return np.memmap(path, dtype, "r", offset, shape) if math.prod(shape) else np.empty(shape, dtype)


def load_npy(path: Location) -> tuple[npt.NDArray[Any], int]:
    """Returns the array in a .npy file, and the CRC-32C of the file, in one read.

    Raises:
        ArtifactError: see `npy_header`; it ends early.
        ReadError: the disk failed.
    """
    dtype, shape, offset = _read_npy_header(path)
    num_bytes = offset + dtype.itemsize * math.prod(shape)
    if num_bytes >= _LARGE_BYTES and isinstance(path, Path):
        content = read_span(path, 0, num_bytes)
        return content[offset:].view(dtype).reshape(shape), crc32c(content)
    loaded = np.empty(shape, dtype)
    data = loaded.reshape(-1).view(np.uint8).data
    with reading(path, front_to_back=True) as file:
        crc = crc32c(fill(file, 0, bytearray(offset), path))
        for start in range(0, len(data), _READ_BYTES):
            crc = crc32c(fill(file, offset + start, data[start : start + _READ_BYTES], path), crc)
    return loaded, crc


def npy_parts(path: Location) -> Iterator[tuple[npt.NDArray[Any], int]]:
    """Yields the elements (rows, if there are more dimensions) of a .npy file, front to back: (some of them, which are
    valid until the next are asked for; the CRC-32C of the file up to there). An empty array comes as one empty part.

    Raises:
        ArtifactError, ReadError: see `load_npy`.
    """
    dtype, (length, *row_shape), offset = _read_npy_header(path)
    row_bytes = dtype.itemsize * math.prod(row_shape)
    buffer = np.empty((min(max(1, _READ_BYTES // max(row_bytes, 1)), length), *row_shape), dtype)
    with reading(path, front_to_back=True) as file:
        crc = crc32c(fill(file, 0, bytearray(offset), path))
        for first in range(0, max(length, 1), max(len(buffer), 1)):
            part = buffer[: length - first]
            crc = crc32c(fill(file, offset + first * row_bytes, part.reshape(-1).view(np.uint8).data, path), crc)
            yield part, crc


def npy_header_bytes(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """Returns the header that starts a .npy file of this dtype and shape; its length is a multiple of 64."""
    return _header_of(np.dtype(dtype), tuple(shape))


@lru_cache  # what a step may write is counted before each of them
def _header_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(buffer, {"descr": description, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npy_file_bytes(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> int:
    """Returns the bytes of a .npy file of this dtype and shape, the header included."""
    return len(npy_header_bytes(dtype, shape)) + math.prod(shape) * np.dtype(dtype).itemsize


def write_at(descriptor: int, offset: int, data: Any) -> None:
    """Write all of `data` from byte `offset` of an open file on."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
