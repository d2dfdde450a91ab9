"""Edges, features, labels and splits from .npy files or arrays in memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.edge_buckets import EdgeChunk, EdgeSource
from diskgnn.importers.rows import CHUNK_BYTES, CHUNK_EDGES, RowSource, as_signed
from diskgnn.storage.checked_files import npy_data_offset
from diskgnn.storage.row_format import FEATURE_STORAGE, dtype_stored_as

Source = str | os.PathLike[str] | npt.ArrayLike  # a path, or anything that NumPy takes as an array


def load(name: str, source: Source) -> npt.NDArray[Any]:
    """`source` as an array; a .npy file is memory-mapped.

    Raises:
        InputError: the file is not there or is no .npy file, or the value is no array of numbers.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.is_file():
            raise InputError(f"{name}: expected a .npy file, found no file {path}")
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise InputError(f"{name}: {path} is not a complete .npy file ({error}); save it with np.save") from error
        if not isinstance(array, np.ndarray):
            raise InputError(f"{name}: {path} holds several arrays (.npz); save the one that is meant with np.save")
    else:
        try:
            array = np.asarray(source)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name}: expected a path or an array, found {type(source).__name__} ({error}); "
                f"for a torch.bfloat16 tensor pass tensor.view(torch.uint16).numpy() and bfloat16=True"
            ) from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: expected numbers, found dtype {array.dtype}")
    return np.asanyarray(array)


def whole_numbers(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`array` itself, if its dtype is an integer one.

    Raises:
        InputError: fractional (any float dtype, whole values too) or boolean.
    """
    if array.dtype.kind not in "iu":
        found = "fractional numbers" if array.dtype.kind == "f" else "truth values"
        raise InputError(
            f"{name}: expected whole numbers, found {found} (dtype {array.dtype}); "
            f"save array.astype(np.int64) if the values are what is meant"
        )
    return array


def edge_source(edges: Source, name: str = "edges") -> tuple[EdgeSource, int]:
    """Stream of an edge list [2, E] or [E, 2], and E. An array [2, 2] is taken as [2, E].

    Raises:
        InputError: another shape, or ids that are not whole numbers.
    """
    array = load(name, edges)
    if array.ndim != 2 or 2 not in array.shape:
        raise InputError(f"{name}: expected shape [2, E] or [E, 2], found {list(array.shape)}")
    whole_numbers(name, array)
    src, dst = array if array.shape[0] == 2 else array.T

    def stream() -> Iterator[EdgeChunk]:
        for start in range(0, len(src), CHUNK_EDGES):
            yield as_signed(src[start : start + CHUNK_EDGES]), as_signed(dst[start : start + CHUNK_EDGES])

    return stream, len(src)


def csc_source(indptr: Source, indices: Source, owner: str = "") -> tuple[EdgeSource, int, int]:
    """Stream of the edges of a CSC matrix (in-neighbours of v: indices[indptr[v]:indptr[v+1]]), E, and N.

    Raises:
        InputError: indptr does not start with 0, decreases, or does not end with the number of indices.
    """
    name, indices_name = named("indptr", owner, indptr), named("indices", owner, indices)
    starts, sources = whole_numbers(name, load(name, indptr)), whole_numbers(indices_name, load(indices_name, indices))
    if starts.ndim != 1 or len(starts) < 1 or sources.ndim != 1:
        raise InputError(
            f"expected {name} [N+1] and {indices_name} [E], found shapes {list(starts.shape)} and {list(sources.shape)}"
        )
    if starts[0] != 0:
        raise InputError(f"{name}: expected 0 at the start, found {starts[0]}; rows are counted from 0")
    for start in range(0, len(starts) - 1, CHUNK_EDGES):
        chunk = starts[start : start + CHUNK_EDGES + 1]
        if (decreasing := chunk[1:] < chunk[:-1]).any():
            node = start + int(decreasing.argmax())
            raise InputError(
                f"{name}: expected non-decreasing numbers, found {starts[node]} and then {starts[node + 1]} "
                f"at node {node}"
            )
    if starts[-1] != len(sources):
        raise InputError(
            f"{name}: expected the number of indices, {len(sources)}, at the end, found {starts[-1]}; "
            f"are the two files of the same graph?"
        )
    return partial(_csc_edges, starts, sources), len(sources), len(starts) - 1


def _csc_edges(starts: npt.NDArray[Any], sources: npt.NDArray[Any]) -> Iterator[EdgeChunk]:
    for first in range(0, len(starts) - 1, CHUNK_EDGES):
        bounds = starts[first : first + CHUNK_EDGES + 1].astype(np.int64)
        nodes = np.arange(first, first + len(bounds) - 1, dtype=np.int64)
        for start in range(int(bounds[0]), int(bounds[-1]), CHUNK_EDGES):
            stop = min(start + CHUNK_EDGES, int(bounds[-1]))
            src = as_signed(sources[start:stop])
            clipped = np.clip(bounds, start, stop)
            yield src, np.repeat(nodes, clipped[1:] - clipped[:-1]).astype(src.dtype)


def features(source: Source, *, bfloat16: bool, name: str = "features") -> RowSource:
    """Rows of a feature matrix [N, D], in the dtype that they are stored in.

    float64 and values in another byte order become float32, or native, on the way (a DataWarning for float64).

    Raises:
        InputError: no matrix, or a dtype that features cannot have.
        ConfigError: uint16 without `bfloat16`, or `bfloat16` with something else.
    """
    array = load(name, source)
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(f"{name}: expected shape [N, D] with D of at least 1, found {list(array.shape)}")
    dtype = array.dtype.newbyteorder("=")
    if bfloat16 != (dtype_stored_as(dtype) == "bfloat16"):
        stored = np.dtype(FEATURE_STORAGE["bfloat16"])
        raise ConfigError(
            f"{name}: bfloat16 is stored as {stored}, found {dtype}; leave out bfloat16=True"
            if bfloat16
            else f"{name}: found {stored}; pass bfloat16=True if these are bfloat16 bits, otherwise save "
            "features.astype(np.float32)"
        )
    if dtype == np.float64:
        warnings.warn(
            f"{name} are float64 and become float32 here; save features.astype(np.float32) to do without this",
            DataWarning,
            stacklevel=4,
        )
        dtype = np.dtype(np.float32)
    elif dtype_stored_as(dtype) is None:
        raise InputError(
            f"{name}: expected float32, float16, int8 or bfloat16 (as uint16), found {dtype}; "
            f"save features.astype(np.float32)"
        )
    rows = RowSource(name, len(array), (array.shape[1],), dtype, partial(_slices, array, dtype))
    if not isinstance(source, (str, os.PathLike)) or not array.flags.c_contiguous:
        return rows
    path = Path(source)
    rows = replace(rows, stored_bytes=path.stat().st_size)
    return rows if dtype != array.dtype else replace(rows, path=path, chunks=partial(read_rows, path, rows))


def _slices(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> Iterator[npt.NDArray[Any]]:
    step = max(1, CHUNK_BYTES // max(array.itemsize * int(np.prod(array.shape[1:])), 1))
    for start in range(0, len(array), step):
        with np.errstate(over="ignore"):  # what becomes infinite is counted with what was
            yield array[start : start + step].astype(dtype, order="C", copy=False)


def read_rows(path: Path, rows: RowSource) -> Iterator[npt.NDArray[Any]]:
    """The rows of a .npy file in C order, read front to back without keeping the file in the page cache.

    Raises:
        InputError: the file is shorter than it says.
    """
    chunk_rows = max(1, CHUNK_BYTES // rows.row_bytes)
    buffer = np.empty((chunk_rows, *rows.row_shape), rows.dtype)
    with path.open("rb", buffering=0) as file:
        offset_bytes = file.seek(npy_data_offset(path))
        for start in range(0, rows.num_rows, chunk_rows):
            chunk = buffer[: min(chunk_rows, rows.num_rows - start)]
            view = chunk.reshape(-1).view(np.uint8).data
            while view:
                read = file.readinto(view)
                if not read:
                    raise InputError(f"{rows.name}: {path} ends before its last row; was the download complete?")
                os.posix_fadvise(file.fileno(), offset_bytes, read, os.POSIX_FADV_DONTNEED)
                offset_bytes, view = offset_bytes + read, view[read:]
            yield chunk


def labels(source: Source, name: str = "labels") -> RowSource:
    """Labels [N] as int64, -1 where a node has none.

    Raises:
        InputError: another shape, or labels that are not whole numbers.
    """
    array = load(name, source)
    if array.ndim != 1:
        raise InputError(f"{name}: expected shape [N], found {list(array.shape)}; save labels.reshape(-1)")
    if array.dtype.kind == "f":
        raise InputError(
            f"{name}: expected whole numbers with -1 for none, found dtype {array.dtype}; save "
            f"np.where(np.isnan(labels), -1, labels).astype(np.int64)"
        )
    whole_numbers(name, array)
    stored_bytes = array.nbytes if isinstance(source, (str, os.PathLike)) else 0

    def chunks() -> Iterator[npt.NDArray[np.int64]]:
        for start in range(0, len(array), CHUNK_EDGES):
            yield as_signed(array[start : start + CHUNK_EDGES]).astype(np.int64, copy=False)

    return RowSource(name, len(array), (), np.dtype(np.int64), chunks, stored_bytes=stored_bytes)


def numbers(name: str, source: Source) -> RowSource:
    """Whatever numbers an array [N, ...] holds, in its dtype.

    Raises:
        InputError: no array of numbers.
    """
    array = load(name, source)
    if array.ndim == 0:
        raise InputError(f"{name}: expected an array, found a single number")
    dtype = array.dtype.newbyteorder("=")
    stored_bytes = array.nbytes if isinstance(source, (str, os.PathLike)) else 0
    chunks = partial(_slices, array, dtype)
    return RowSource(name, len(array), array.shape[1:], dtype, chunks, stored_bytes=stored_bytes)


def seed_edges(name: str, source: Source, num_sources: int, num_nodes: int) -> npt.NDArray[np.int64]:
    """[n, 2] (source, destination) of an edge list [2, n] or [n, 2]; [2, 2] is taken as [2, n].

    Raises:
        InputError: another shape, ids that are not whole numbers or out of range, or no edge.
    """
    stream, num_edges = edge_source(source, name)
    if not num_edges:
        raise InputError(f"{name}: expected seed edges, found none; leave it out if there are none")
    pairs = np.concatenate([np.stack(chunk, axis=1).astype(np.int64) for chunk in stream()])
    wrong = (pairs < 0) | (pairs >= np.array([num_sources, num_nodes]))
    if wrong.any():
        edge, side = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"{name}: expected node ids from 0 to {(num_sources, num_nodes)[side] - 1}, found "
            f"{('source', 'destination')[side]} {pairs[edge, side]} in edge {edge} (counted from 0)"
        )
    return pairs


def named(what: str, owner: str, source: object) -> str:
    """How messages call `what` of type `owner`: with the file that it comes from. Without an owner: just that."""
    if not owner:
        return what
    return f"{what} of {owner}" + (f" ({source})" if isinstance(source, (str, os.PathLike)) else "")


def split_ids(split: str, source: Source, num_nodes: int) -> npt.NDArray[np.int64]:
    """Node ids of a split given as ids [any number] or as a mask [N] of truth values.

    Raises:
        InputError: another shape, fractional ids, or a mask of another length than N.
    """
    array = load(split, source)
    if array.ndim != 1:
        raise InputError(f"{split}: expected node ids or a mask, one-dimensional, found shape {list(array.shape)}")
    if array.dtype.kind == "b":
        if len(array) != num_nodes:
            raise InputError(f"{split}: expected a mask of {num_nodes} nodes, found one of {len(array)}")
        return np.flatnonzero(array).astype(np.int64)
    if len(array) == 0:  # np.asarray([]) is float64
        return np.empty(0, np.int64)
    return np.array(as_signed(whole_numbers(split, array)), np.int64)
