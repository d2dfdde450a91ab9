"""Edges, features, labels and splits from .npy files or arrays in memory."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ConfigError, DataWarning, InputError
from diskgnn.graph.edge_buckets import EdgeChunk, EdgeSource
from diskgnn.importers.containers import torch_files
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.file_rows import file_rows
from diskgnn.importers.containers.raw_files import RawFile
from diskgnn.importers.containers.rows import CHUNK_BYTES, CHUNK_EDGES, EdgeStream, RowReader, RowSource, as_signed
from diskgnn.storage.checked_files import npy_data_offset, npy_header, npy_parts
from diskgnn.storage.file_reading import opened, read_into
from diskgnn.storage.local_copies import LocalCopies
from diskgnn.storage.object_stores import Location, StoredPath, bytes_of, located
from diskgnn.storage.row_format import FEATURE_STORAGE, dtype_stored_as

Source = str | os.PathLike[str] | npt.ArrayLike | RowSource  # a path, what NumPy takes as an array, or a stream
_CHUNK_NODES = CHUNK_EDGES // 8  # of a CSC matrix: several arrays of that length are held at once


def load(name: str, source: Source) -> npt.NDArray[Any]:
    """`source` as an array; a .npy file or a tensor saved by torch is memory-mapped.

    Raises:
        InputError: the file is not there or is none of these, or the value is no array of numbers.
    """
    if isinstance(source, RowSource):
        raise InputError(f"{name}: expected a path or an array, found rows that can only be read in order")
    if isinstance(source, (str, os.PathLike)):
        array = _load_file(name, located(source))
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


def _load_file(name: str, path: Location) -> npt.NDArray[Any]:
    if not path.is_file():
        raise InputError(f"{name}: expected a .npy file, found {describe(path)}")
    if isinstance(path, StoredPath):
        copies = LocalCopies(path.parent)  # mapped, the copy stays until the array goes
        return _load_file(name, copies.copy(path, bytes_of(path))[0])
    if kind_of(path) == "torch":
        return torch_files.tensor(name, path)
    with opened(path) as descriptor:  # a disk that fails is named, not taken for a file of another kind
        read_into(descriptor, 0, bytearray(64), path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        if "objects" in str(error).lower():
            raise InputError(
                f"{name}: {path} holds pickled Python objects, which are never unpickled; save numbers, for instance "
                "np.stack(rows).astype(np.float32)"
            ) from error
        reason = f" ({error}); save it with np.save" if kind_of(path) == "npy" else f", but {describe(path)}"
        raise InputError(f"{name}: {path} is not a complete .npy file{reason}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{name}: {path} holds several arrays (.npz); save the one that is meant with np.save")
    return array


def require_whole(name: str, dtype: np.dtype[Any]) -> None:
    """Refuse numbers of `dtype` that are not integers.

    Raises:
        InputError: fractional (any float dtype, whole values too) or boolean.
    """
    if dtype.kind not in "iu":
        found = "fractional numbers" if dtype.kind == "f" else "truth values"
        raise InputError(
            f"{name}: expected whole numbers, found {found} (dtype {dtype}); "
            f"save array.astype(np.int64) if the values are what is meant"
        )


def whole_numbers(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`array` itself, if its dtype is an integer one.

    Raises:
        InputError: fractional (any float dtype, whole values too) or boolean.
    """
    require_whole(name, array.dtype)
    return array


def edge_source(edges: Source | EdgeStream, name: str = "edges") -> tuple[EdgeSource, int]:
    """Stream of an edge list [2, E] or [E, 2], and E. An array [2, 2] is taken as [2, E].

    Raises:
        InputError: another shape, or ids that are not whole numbers.
    """
    if isinstance(edges, EdgeStream):
        return edges.chunks, edges.num_edges
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
    starts, sources = numbers(name, indptr), numbers(indices_name, indices)
    require_whole(name, starts.dtype)
    require_whole(indices_name, sources.dtype)
    if starts.row_shape or starts.num_rows < 1 or sources.row_shape:
        raise InputError(
            f"expected {name} [N+1] and {indices_name} [E], found shapes {starts.shape} and {sources.shape}"
        )
    _check_indptr(starts, sources.num_rows)
    return partial(_csc_edges, starts, sources), sources.num_rows, starts.num_rows - 1


def _check_indptr(starts: RowSource, num_edges: int) -> None:
    node, last = 0, 0
    for chunk in map(as_signed, starts.chunks()):
        if node == 0 and chunk[0] != 0:
            raise InputError(f"{starts.name}: expected 0 at the start, found {chunk[0]}; rows are counted from 0")
        before = np.concatenate([[last], chunk[:-1]])
        if (decreasing := chunk < before).any():
            first = int(decreasing.argmax())
            raise InputError(
                f"{starts.name}: expected non-decreasing numbers, found {before[first]} and then {chunk[first]} "
                f"at node {node + first - 1}"
            )
        node, last = node + len(chunk), int(chunk[-1])
    if last != num_edges:
        raise InputError(
            f"{starts.name}: expected the number of indices, {num_edges}, at the end, found {last}; "
            f"are the two files of the same graph?"
        )


def _csc_edges(starts: RowSource, sources: RowSource) -> Iterator[EdgeChunk]:
    bounds, reader = RowReader(starts), RowReader(sources)
    node, start = 0, int(bounds.take(1)[0])
    while node < starts.num_rows - 1:
        ends = as_signed(bounds.take(min(_CHUNK_NODES, starts.num_rows - 1 - node))).astype(np.int64, copy=False)
        nodes = np.arange(node, node + len(ends), dtype=np.int64)
        first = start
        while start < ends[-1]:
            stop = min(start + CHUNK_EDGES, int(ends[-1]))
            src = as_signed(reader.take(stop - start))
            clipped = np.clip(np.concatenate([[first], ends]), start, stop)
            yield src, np.repeat(nodes.astype(src.dtype), np.diff(clipped))
            start = stop
        node += len(ends)


def features(source: Source, *, bfloat16: bool, name: str = "features") -> RowSource:
    """Rows of a feature matrix [N, D], in the dtype that they are stored in.

    float64 and values in another byte order become float32, or native, on the way (a DataWarning for float64).

    Raises:
        InputError: no matrix, or a dtype that features cannot have.
        ConfigError: uint16 without `bfloat16`, or `bfloat16` with something else.
    """
    rows = numbers(name, source)
    if len(rows.row_shape) != 1 or rows.row_shape[0] == 0:
        raise InputError(f"{name}: expected shape [N, D] with D of at least 1, found {rows.shape}")
    dtype = rows.dtype
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
        return rows.mapped(rows.row_shape, np.dtype(np.float32), _narrowed)
    if dtype_stored_as(dtype) is None:
        raise InputError(
            f"{name}: expected float32, float16, int8 or bfloat16 (as uint16), found {dtype}; "
            f"save features.astype(np.float32)"
        )
    return rows


def _narrowed(chunk: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what becomes infinite is counted with what was
        return chunk.astype(np.float32)


def _slices(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    step = max(1, CHUNK_BYTES // max(array.itemsize * int(np.prod(array.shape[1:])), 1))
    for start in range(0, len(array), step):
        yield array[start : start + step].astype(array.dtype.newbyteorder("="), order="C", copy=False)


def labels(source: Source, name: str = "labels") -> RowSource:
    """Labels [N], or [N, 1], as int64 [N], -1 where a node has none.

    Raises:
        InputError: another shape, or labels that are not whole numbers.
    """
    rows = numbers(name, source)
    if rows.row_shape not in ((), (1,)):
        raise InputError(f"{name}: expected shape [N], found {rows.shape}; a class for each node, or another `task`")
    if rows.dtype.kind == "f":
        raise InputError(
            f"{name}: expected whole numbers with -1 for none, found dtype {rows.dtype}; save "
            f"np.where(np.isnan(labels), -1, labels).astype(np.int64)"
        )
    require_whole(name, rows.dtype)

    def whole(chunk: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return as_signed(chunk.reshape(-1)).astype(np.int64, copy=False)

    return rows.mapped((), np.dtype(np.int64), whole)


def numbers(name: str, source: Source) -> RowSource:
    """Whatever numbers a source [N, ...] holds, in its dtype and native byte order.

    A .npy file in C order is read front to back without filling the page cache.

    Raises:
        InputError: no array of numbers.
    """
    if isinstance(source, RowSource):
        return source
    if (raw := RawFile.parse(source)) is not None:
        return raw.rows(name)
    if (stored := _stored_rows(name, source)) is not None:
        return stored
    array = load(name, source)
    if array.ndim == 0:
        raise InputError(f"{name}: expected an array, found a single number")
    dtype = array.dtype.newbyteorder("=")
    rows = RowSource(name, len(array), array.shape[1:], dtype, partial(_slices, array))
    if not isinstance(source, (str, os.PathLike)):
        return rows
    path = Path(source)
    if dtype != array.dtype or not array.flags.c_contiguous or not rows.row_bytes or kind_of(path) != "npy":
        return replace(rows, stored_bytes=path.stat().st_size)
    return file_rows(name, path, rows.num_rows, rows.row_shape, dtype, npy_data_offset(path))


def _stored_rows(name: str, source: Source) -> RowSource | None:
    """The rows of a .npy file in C order on a store, streamed from there; None if it is none, which is copied."""
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


def seed_edges(name: str, source: Source | EdgeStream, num_sources: int, num_nodes: int) -> npt.NDArray[np.int64]:
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
    if isinstance(source, RowSource):
        return _streamed_ids(split, source, num_nodes)
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


def _streamed_ids(split: str, rows: RowSource, num_nodes: int) -> npt.NDArray[np.int64]:
    found, position = [np.empty(0, np.int64)], 0
    for chunk in rows.chunks():
        is_mask = rows.dtype.kind == "b"
        found.append(split_ids(split, np.flatnonzero(chunk) + position if is_mask else chunk, num_nodes))
        position += len(chunk)
    if rows.dtype.kind == "b" and position != num_nodes:
        raise InputError(f"{split}: expected a mask of {num_nodes} nodes, found one of {position}")
    return np.concatenate(found)
