"""What torch.save wrote: tensors, NumPy arrays and containers of them. No code that a pickle names is run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.files.file_reading import ReadableFile, buffered, raise_if_disk_failed
from diskgnn.importers.containers.mapped_files import mapped_rows
from diskgnn.importers.containers.rows import RowSource, of_array, widen_bfloat16

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
    with buffered(path) as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def is_zip(path: Path) -> bool:
    """Returns False for a file in torch.save's former format."""
    with ReadableFile(path) as file:
        return bool(file.read(2) == b"PK")


def tensor(name: str, path: Path) -> RowSource:
    """Returns the one tensor or array that the file holds.

    Raises:
        InputError: it is damaged, or holds something else, or a tensor of a kind that `of_tensor` refuses.
    """
    found = load(name, path)
    if not isinstance(found, np.ndarray) and not is_tensor(found):
        raise InputError(f"{name}: expected one tensor in {path}, found something else; save the one that is meant")
    return rows(name, path, found)


def rows(name: str, path: Path, found: Any) -> RowSource:
    """Returns a tensor or an array that `load` found in the file; it is read from there, where it was mapped.

    Raises:
        InputError: it is a single number, or a tensor of a kind that `of_tensor` refuses.
    """
    array = found if isinstance(found, np.ndarray) else of_tensor(f"{name}: {path}", found)
    return replace(mapped_rows(name, path, array) or of_array(name, array), bfloat16=is_bfloat16(found))


def tensor_rows(name: str, value: Any) -> RowSource:
    """Returns the rows of a tensor on the CPU, which share its memory.

    Raises:
        InputError: it is a single number, or a tensor of a kind that `of_tensor` refuses.
    """
    return replace(of_array(name, of_tensor(name, value)), bfloat16=is_bfloat16(value))


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """Returns the numbers of a tensor or an array, bfloat16 as float32; None for something else. Others share its
    memory.

    Raises:
        InputError: a tensor of a kind that `of_tensor` refuses.
    """
    if isinstance(value, np.ndarray):
        return value
    if not is_tensor(value):
        return None
    array = of_tensor("tensor", value)
    return widen_bfloat16(array) if is_bfloat16(value) else array


def is_tensor(value: object) -> bool:
    """Returns True of a tensor of torch, which is not imported for it: that takes seconds."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_bfloat16(value: Any) -> bool:
    """Returns True of a tensor whose numbers NumPy has no type for: `of_tensor` returns their bits."""
    return str(getattr(value, "dtype", "")) == "torch.bfloat16"


def of_tensor(name: str, value: Any) -> npt.NDArray[Any]:
    """Returns a tensor on the CPU as an array that shares its memory; of bfloat16 the bits, as uint16.

    Raises:
        InputError: it is sparse, nested, on another device, quantised, or of a type that NumPy does not have.
    """
    import torch

    value = value.detach()
    try:
        bits = value.view(torch.uint16) if value.dtype == torch.bfloat16 else value
        array: npt.NDArray[Any] = bits.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{name}: {_refusal(value)}") from error
    return array


def _refusal(value: Any) -> str:
    """Returns what is wrong with a tensor that NumPy does not take, and what makes another of it."""
    import torch

    if value.layout != torch.strided:
        return f"expected a dense tensor, found one of layout {value.layout}; take tensor.to_dense()"
    if value.is_nested:
        return "expected one tensor of numbers, found a nested one; take tensor.to_padded_tensor(0)"
    if value.device.type != "cpu":
        return f"expected a tensor on the CPU, found one on {value.device}; take tensor.cpu()"
    if value.is_quantized:
        return f"expected a tensor of numbers, found a quantised one ({value.dtype}); take tensor.dequantize()"
    return f"expected numbers of a type that NumPy has, or bfloat16, found {value.dtype}; take tensor.float()"
