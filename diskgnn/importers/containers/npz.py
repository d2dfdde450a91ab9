"""Arrays within an .npz archive, read a chunk at a time, compressed or not."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.files.file_reading import ReadableFile, raise_if_disk_failed
from diskgnn.importers.containers import edge_lists
from diskgnn.importers.containers.npy_headers import read_npy_header
from diskgnn.importers.containers.rows import CHUNK_BYTES, EdgeStream, RowSource


def members(name: str, path: str | os.PathLike[str]) -> dict[str, RowSource]:
    """Returns the arrays of an archive by their names. One in Fortran order is taken as its transpose.

    Raises:
        InputError: it is no archive of arrays.
    """
    path = Path(path)
    try:
        with ReadableFile(path) as file, zipfile.ZipFile(file) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            return {
                info.filename.removesuffix(".npy"): _member(f"{name} ({path}: {info.filename})", path, archive, info)
                for info in infos
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise_if_disk_failed(error, path)
        raise InputError(f"{name}: {path} is not a complete .npz archive ({error})") from error


def _member(name: str, path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> RowSource:
    with archive.open(info) as file:
        shape, fortran, dtype = read_npy_header(file)
    if fortran:
        shape = shape[::-1]
    rows, row_shape = (shape[0], shape[1:]) if shape else (1, ())
    read = partial(_chunks, name, path, info.filename, rows, row_shape, dtype)
    return RowSource(name, rows, row_shape, dtype.newbyteorder("="), read, stored_bytes=info.compress_size)


def _chunks(
    name: str, path: Path, member: str, rows: int, row_shape: tuple[int, ...], dtype: np.dtype[Any], skipped: int = 0
) -> Iterator[npt.NDArray[Any]]:
    """Yields `rows` rows after those `skipped`."""
    if dtype.hasobject:
        raise InputError(
            f"{name}: holds pickled Python objects, which are never unpickled; save numbers, for instance "
            "np.asarray(values, np.float32)"
        )
    row_bytes = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
    chunk_rows = max(1, CHUNK_BYTES // max(row_bytes, 1))
    try:
        with ReadableFile(path) as whole, zipfile.ZipFile(whole) as archive, archive.open(member) as file:
            read_npy_header(file)
            file.seek(skipped * row_bytes, os.SEEK_CUR)
            for start in range(0, rows, chunk_rows):
                count = min(chunk_rows, rows - start)
                data = bytearray(count * row_bytes)
                filled, view = 0, memoryview(data)
                while filled < len(data) and (read := file.readinto(view[filled:])):  # type: ignore[attr-defined]
                    filled += read
                if filled < len(data):
                    raise InputError(f"{name}: ends before its last row; was the download complete?")
                yield np.frombuffer(data, dtype).reshape(count, *row_shape).astype(dtype.newbyteorder("="), copy=False)
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        raise_if_disk_failed(error, path)
        raise InputError(f"{name}: is damaged ({error}); was the download complete?") from error


def edges(name: str, path: str | os.PathLike[str], member: str, pairs: RowSource) -> EdgeStream:
    """Returns the edge list [2, E] or [E, 2] that `members` found as `member`; [2, 2] is taken as [2, E].

    Raises:
        InputError: another shape, or ids that are not whole numbers.
    """
    if pairs.num_rows != 2 or len(pairs.row_shape) != 1:
        return edge_lists.of_pairs(pairs)
    num_edges = pairs.row_shape[0]
    sources, destinations = (
        RowSource(pairs.name, num_edges, (), pairs.dtype,
                  partial(_chunks, name, Path(path), f"{member}.npy", num_edges, (), pairs.dtype, skipped),
                  stored_bytes=pairs.stored_bytes)
        for skipped in (0, num_edges)
    )  # fmt: skip
    return edge_lists.of_ends(sources, destinations)
