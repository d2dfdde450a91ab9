"""What a conversion is of: the same arguments, files that were not changed, and equal arrays have the same name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import crc32c_chunks
from diskgnn.errors import InputError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.importers.containers import torch_files
from diskgnn.importers.containers.raw_files import RawFile
from diskgnn.importers.containers.rows import EdgeStream, RowSource
from diskgnn.stores.locations import Location, StoredPath, located

_PIECE_BYTES, _PIECE_OBJECTS = 4 << 20, 1 << 16


class _InMemoryError(TypeError):
    """Something that has no name."""


def identity(arguments: Mapping[str, Any]) -> str | None:
    """Names what is converted; None if something lies in memory that is no array or tensor, nor made from such.

    Files count by path, length and time of change, arrays by what is in them, which is read once for it.
    """
    try:
        document = json.dumps(_to_json(arguments), sort_keys=True)
    except _InMemoryError:
        return None
    return hashlib.blake2b(document.encode(), digest_size=16).hexdigest()


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, os.PathLike)):
        raw = RawFile.parse(value)
        return [os.fspath(value), file_states(located(value) if raw is None else raw.path)]
    if isinstance(value, np.ndarray):
        return _objects(value) if value.dtype.hasobject else _array(value)
    if (tensor := _tensor(value)) is not None:
        return [str(value.dtype), _array(tensor)]
    if isinstance(value, (RowSource, EdgeStream)) and value.origin is not None:
        origins = value.origin if isinstance(value.origin, tuple) else (value.origin,)
        is_bfloat16 = getattr(value, "bfloat16", False)
        return [type(value).__name__, value.name, is_bfloat16, [_to_json(origin) for origin in origins]]
    if isinstance(value, Mapping):
        return [[_to_json(key), _to_json(part)] for key, part in value.items()]
    if isinstance(value, (tuple, list)) and all(isinstance(part, (str, int, float, tuple, list)) for part in value):
        return [_to_json(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if any(callable(part) for part in parts.values()):  # a stream
            raise _InMemoryError
        return [type(value).__name__, _to_json(parts)]
    raise _InMemoryError


def _tensor(value: Any) -> npt.NDArray[Any] | None:
    """Returns the memory of a tensor of torch on the CPU, if it can be had."""
    if not torch_files.is_tensor(value) or value.device.type != "cpu":
        return None
    with suppress(InputError):  # convert will refuse it
        return torch_files.of_tensor("tensor", value)
    return None


def _objects(array: npt.NDArray[Any]) -> Any:
    """Returns a digest of strings or bytes, as Arrow has them."""
    digest, flat = hashlib.blake2b(digest_size=16), array.reshape(-1)
    for first in range(0, len(flat), _PIECE_OBJECTS):
        try:
            piece = pa.array(flat[first : first + _PIECE_OBJECTS])
        except (pa.ArrowException, TypeError) as error:
            raise _InMemoryError from error
        digest.update(pa.record_batch([piece], names=["piece"]).serialize())
        digest.update(str(piece.type).encode())
    return ["objects", array.shape, digest.hexdigest()]


def _array(array: npt.NDArray[Any]) -> Any:
    """Returns a mapped file, or the checksums of an array's bytes."""
    form = [array.dtype.str, array.shape, array.strides]
    if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.filename is not None:
        return [file_states(Path(array.filename)), array.offset, form]
    digest, rows = hashlib.blake2b(digest_size=16), np.atleast_1d(array)
    step = max(1, _PIECE_BYTES // max(1, rows[:1].nbytes))
    for first in range(0, len(rows), step):
        piece = np.ascontiguousarray(rows[first : first + step]).reshape(-1).view(np.uint8)
        digest.update(crc32c_chunks(piece.data, CHECKSUM_CHUNK_BYTES, 0)[0].data)
    return [form[:2], digest.hexdigest()]


def file_states(path: Location) -> list[tuple[str, int, int]]:
    """Returns (path, bytes, time of change) of a file, or of all in a folder; nothing for text that is no path."""
    if isinstance(path, StoredPath):
        return [(str(file), info.size, info.mtime_ns) for file, info in path.files().items()]
    try:
        found = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
        # What was written last to a file of SQLite or DuckDB may still lie beside it.
        logs = [path.with_name(f"{path.name}{end}") for end in ("-wal", ".wal")] if path.is_file() else []
        found += [log for log in logs if log.is_file() and log.stat().st_size]
        states = [(entry, entry.stat()) for entry in found]
    except OSError:
        return []
    return [(str(entry.resolve()), state.st_size, state.st_mtime_ns) for entry, state in states]
