"""Whatever numbers a source holds: a .npy file, a file without a header, a tensor saved by torch, an array in memory.

Files are read, front to back and a chunk at a time: a disk that fails below a memory map would end the process.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, InputError
from diskgnn.files.checked_files import npy_header, npy_parts
from diskgnn.files.file_reading import ReadableFile, opened, raise_if_disk_failed, read_into
from diskgnn.files.local_copies import LocalCopies
from diskgnn.importers.containers import torch_files
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.file_rows import file_columns, file_rows
from diskgnn.importers.containers.npy_headers import read_npy_header
from diskgnn.importers.containers.raw_files import RawFile
from diskgnn.importers.containers.rows import RowSource, of_array
from diskgnn.stores.locations import Location, StoredPath, bytes_of, located

Source = str | os.PathLike[str] | npt.ArrayLike | RowSource  # a path, what NumPy takes as an array, or a stream


def named(what: str, owner: str, source: object) -> str:
    """Returns how messages call `what` of type `owner`: with the file that it comes from. Without an owner: just
    that."""
    if not owner:
        return what
    return f"{what} of {owner}" + (f" ({source})" if isinstance(source, (str, os.PathLike)) else "")


def numbers(name: str, source: Source) -> RowSource:
    """Opens whatever numbers a source [N, ...] holds, in its dtype and native byte order.

    Raises:
        InputError: the file is not there or is none of these, or the value is no array of numbers.
    """
    return _numeric(items(name, source))


def stored_numbers(name: str, source: Source) -> RowSource:
    """Opens them as `numbers` does, but bfloat16 numbers stay the bits that they are stored in.

    Raises:
        InputError: see `numbers`.
    """
    return _numeric(stored(name, source))


def _numeric(rows: RowSource) -> RowSource:
    if rows.dtype.kind not in "biuf":
        fix = (
            "; save np.array(array.tolist(), np.float32), or np.int64 of whole numbers"
            if rows.dtype.kind == "O"
            else ""
        )
        raise InputError(f"{rows.name}: expected numbers, found dtype {rows.dtype}{fix}")
    return rows


def items(name: str, source: Source) -> RowSource:
    """Opens items as `numbers` does, of any dtype, such as strings of a fixed width.

    Raises:
        InputError: the file is not there or is none of these, or the value is no array.
    """
    return stored(name, source).widened()


def stored(name: str, source: Source) -> RowSource:
    """Opens them as `items` does, but bfloat16 numbers stay the bits that they are stored in.

    Raises:
        InputError: see `items`.
    """
    if isinstance(source, RowSource):
        return source
    if (raw := RawFile.parse(source)) is not None:
        return raw.rows(name)
    if (streamed := _stored_rows(name, source)) is not None:
        return streamed
    if isinstance(source, (str, os.PathLike)):
        return _file(name, located(source))
    if torch_files.is_tensor(source):
        return torch_files.tensor_rows(name, source)
    try:
        array = np.asanyarray(source)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected a path or an array, found {type(source).__name__} ({error})") from error
    return of_array(name, array)


def load(name: str, source: Source) -> npt.NDArray[Any]:
    """Returns what `numbers` finds, all of it in memory.

    Raises:
        InputError: see `numbers`; or rows that can only be read in order.
    """
    if isinstance(source, RowSource):
        raise InputError(f"{name}: expected a path or an array, found rows that can only be read in order")
    rows = numbers(name, source)
    return rows.origin if isinstance(rows.origin, np.ndarray) else rows.load()


def _file(name: str, path: Location) -> RowSource:
    if not path.is_file():
        raise InputError(f"{name}: expected a .npy file, found {describe(path)}")
    if isinstance(path, StoredPath):
        copies = LocalCopies(path.parent)
        rows = _file(name, copies.copy(path, bytes_of(path))[0])
        return replace(rows, held=copies)  # the copy is there as long as the rows
    if kind_of(path) == "torch":
        return torch_files.tensor(name, path)
    with opened(path) as descriptor:  # a disk that fails is named, not taken for a file of another kind
        read_into(descriptor, 0, bytearray(64), path)
    try:
        mapped = _mapped(path) if kind_of(path) == "npy" else np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise_if_disk_failed(error, path)
        if "objects" in str(error).lower():
            raise InputError(
                f"{name}: {path} holds pickled Python objects, which are never unpickled; save numbers, for instance "
                "np.stack(rows).astype(np.float32)"
            ) from error
        reason = f" ({error}); save it with np.save" if kind_of(path) == "npy" else f", but {describe(path)}"
        raise InputError(f"{name}: {path} is not a complete .npy file{reason}") from error
    if not isinstance(mapped, np.ndarray):
        raise InputError(f"{name}: {path} holds several arrays (.npz); save the one that is meant with np.save")
    if not isinstance(mapped, np.memmap) or not mapped.size or not mapped.ndim:
        return replace(of_array(name, mapped), stored_bytes=path.stat().st_size)
    read = file_rows if mapped.flags.c_contiguous else file_columns
    return read(name, path, len(mapped), mapped.shape[1:], mapped.dtype, mapped.offset)


def _mapped(path: Path) -> npt.NDArray[Any]:
    """Returns a .npy file as np.load maps it, but a failed read of the header is made again. Nothing of the map is
    touched."""
    with ReadableFile(path) as file:
        shape, fortran, dtype = read_npy_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def _stored_rows(name: str, source: Source) -> RowSource | None:
    """Returns the rows of a .npy file in C order on a store, streamed from there; None if it is none, which is
    copied."""
    path = located(source) if isinstance(source, (str, os.PathLike)) else None
    if not isinstance(path, StoredPath) or path.suffix != ".npy" or not path.is_file():
        return None
    try:
        dtype, shape = npy_header(path)
    except ArtifactError:
        return None
    native = np.dtype(dtype).newbyteorder("=") if not dtype.startswith("[") else None
    if native is None or native.str != dtype or native.kind not in "biuf" or not shape or not math.prod(shape[1:]):
        return None
    return RowSource(name, shape[0], shape[1:], native, lambda: (part for part, _ in npy_parts(path)),
                     stored_bytes=bytes_of(path))  # fmt: skip
