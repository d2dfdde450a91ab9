"""Edges from arrays: a list of them, or CSC."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, InputError, callers_level
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.importers.containers import edge_lists
from diskgnn.importers.containers.arrays import Source, named, numbers
from diskgnn.importers.containers.rows import CHUNK_EDGES, EdgeStream, RowReader, RowSource, as_signed, require_whole

_CHUNK_NODES = CHUNK_EDGES // 8  # of a CSC matrix: several arrays of that length are held at once


def edge_list(source: Source | EdgeStream, name: str = "edges") -> EdgeStream:
    """Returns an edge list [2, E] or [E, 2]. An array [2, 2] is taken as [2, E]; a list gets a DataWarning.

    Raises:
        InputError: another shape, or ids that are not whole numbers.
    """
    if isinstance(source, EdgeStream):
        return source
    rows = numbers(name, source)
    if isinstance(source, (list, tuple)) and rows.shape == [2, 2]:
        warnings.warn(
            f"{name}: a list of shape [2, 2] is read as [2, E], the sources and then the destinations; for two pairs "
            f"of source and destination pass np.transpose(pairs)",
            DataWarning,
            stacklevel=callers_level(),
        )
    edges = edge_lists.of_rows(rows)
    require_whole(name, rows)
    return edge_lists.signed(edges)


def csc(indptr: Source, indices: Source, owner: str = "") -> EdgeStream:
    """Returns the edges of a CSC matrix (in-neighbours of v: indices[indptr[v]:indptr[v+1]]).

    Raises:
        InputError: indptr does not start with 0, decreases, or does not end with the number of indices.
    """
    name, indices_name = named("indptr", owner, indptr), named("indices", owner, indices)
    starts, sources = numbers(name, indptr), numbers(indices_name, indices)
    require_whole(name, starts)
    require_whole(indices_name, sources)
    if starts.row_shape or starts.num_rows < 1 or sources.row_shape:
        raise InputError(
            f"expected {name} [N+1] and {indices_name} [E], found shapes {starts.shape} and {sources.shape}"
        )
    _check_indptr(starts, sources.num_rows)
    read, stored_bytes = partial(_csc_edges, starts, sources), starts.stored_bytes + sources.stored_bytes
    return EdgeStream(name, sources.num_rows, partial(read, 0), starts.num_rows - 1, stored_bytes, seek=read)


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


def _csc_edges(starts: RowSource, sources: RowSource, first: int) -> Iterator[EdgeChunk]:
    """Yields edges from number `first` on."""
    bounds, reader = RowReader(starts), RowReader(sources, first)
    node, start, edge = 0, int(bounds.take(1)[0]), first
    while node < starts.num_rows - 1:
        ends = as_signed(bounds.take(min(_CHUNK_NODES, starts.num_rows - 1 - node))).astype(np.int64, copy=False)
        nodes = np.arange(node, node + len(ends), dtype=np.int64)
        while edge < ends[-1]:
            stop = min(edge + CHUNK_EDGES, int(ends[-1]))
            src = as_signed(reader.take(stop - edge))
            clipped = np.clip(np.concatenate([[start], ends]), edge, stop)
            yield src, np.repeat(nodes.astype(src.dtype), np.diff(clipped))
            edge = stop
        node, start = node + len(ends), int(ends[-1])


def seed_edges(name: str, source: Source | EdgeStream, num_sources: int, num_nodes: int) -> npt.NDArray[np.int64]:
    """Returns [n, 2] (source, destination) of an edge list [2, n] or [n, 2]; [2, 2] is taken as [2, n].

    Raises:
        InputError: another shape, ids that are not whole numbers or out of range, or no edge.
    """
    edges = edge_list(source, name)
    if not edges.num_edges:
        raise InputError(f"{name}: expected seed edges, found none; leave it out if there are none")
    pairs = np.concatenate([np.stack(chunk, axis=1).astype(np.int64) for chunk in edges.chunks()])
    wrong = (pairs < 0) | (pairs >= np.array([num_sources, num_nodes]))
    if wrong.any():
        edge, side = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"{name}: expected node ids from 0 to {(num_sources, num_nodes)[side] - 1}, found "
            f"{('source', 'destination')[side]} {pairs[edge, side]} in edge {edge} (counted from 0)"
        )
    return pairs
