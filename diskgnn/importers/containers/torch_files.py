"""What torch.save wrote: tensors, NumPy arrays and containers of them. No code that a pickle names is run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.files.file_reading import ReadableFile, raise_if_disk_failed
from diskgnn.importers.containers.mapped_files import mapped_rows
from diskgnn.importers.containers.rows import RowSource, of_array

_NUMPY = ("numpy.core", "numpy._core")  # before and from NumPy 2 on


class Record:
    """An object of a class that is not wanted here: only what it was made from."""

    def __init__(self, *arguments: Any) -> None:
        self.state: Any = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


def load(name: str, path: Path, *, records: tuple[str, ...] = ()) -> Any:
    """Returns what the file holds, its tensors memory-mapped.

    Args:
        name: for messages.
        path: of the file.
        records: full names of classes whose objects become a `Record`.

    Raises:
        InputError: it is damaged, or holds objects of other classes.
        ReadError: the disk failed.
    """
    import torch

    known = [np.ndarray, np.dtype, *(getattr(np.dtypes, kind) for kind in np.dtypes.__all__)]
    multiarray = np.empty(0).__reduce__()[0]  # its _reconstruct, wherever this NumPy has it
    scalar = np.float64(0).__reduce__()[0]
    for module in _NUMPY:
        known += [(multiarray, f"{module}.multiarray._reconstruct"), (scalar, f"{module}.multiarray.scalar")]
    known += [(Record, record) for record in records]
    try:
        with torch.serialization.safe_globals(known):
            return unpickled(path)
    except Exception as error:  # torch raises whatever the unpickler or the archive does
        raise_if_disk_failed(error, path)
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"{name}: {path} is nothing that torch.load(weights_only=True) reads ({reason})") from error


def unpickled(path: Path) -> Any:
    """Returns what torch.load(weights_only=True) finds. Its tensors are mapped, unless it has the former format."""
    import torch

    if is_zip(path):
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    with io.BufferedReader(ReadableFile(path)) as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def is_zip(path: Path) -> bool:
    """False for a file in torch.save's former format."""
    with ReadableFile(path) as file:
        return bool(file.read(2) == b"PK")


def tensor(name: str, path: Path) -> RowSource:
    """The one tensor or array that the file holds; bfloat16 as uint16.

    Raises:
        InputError: it is damaged, or holds something else.
    """
    found = as_array(load(name, path))
    if found is None:
        raise InputError(f"{name}: expected one tensor in {path}, found something else; save the one that is meant")
    return rows(name, path, found)


def rows(name: str, path: Path, found: npt.NDArray[Any]) -> RowSource:
    """An array that `load` found in the file; it is read from there, where it was mapped.

    Raises:
        InputError: it is a single number.
    """
    return mapped_rows(name, path, found) or of_array(name, found)


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """A tensor or an array as an array that shares its memory, bfloat16 as uint16; None for something else."""
    if isinstance(value, np.ndarray):
        return value
    import torch  # takes seconds: only where there is something to read with it

    if not isinstance(value, torch.Tensor):
        return None
    return of_tensor(value)


def of_tensor(value: Any) -> npt.NDArray[Any]:
    """A tensor on the CPU as an array that shares its memory, bfloat16 as uint16."""
    import torch

    value = value.detach()
    array: npt.NDArray[Any] = (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy()
    return array
