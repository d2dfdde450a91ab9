"""Edges from rows that are read in order: pairs, or two lists of ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.graph.edge_buckets import EdgeChunk, EdgesFrom
from diskgnn.importers.containers.rows import CHUNK_EDGES, EdgeStream, RowReader, RowSource, as_signed


def of_rows(rows: RowSource) -> EdgeStream:
    """Makes edges of an array [2, E] or [E, 2] of any dtype; [2, 2] is taken as [2, E].

    Raises:
        InputError: another shape.
    """
    if len(rows.row_shape) != 1 or 2 not in rows.shape:
        raise InputError(f"{rows.name}: expected shape [2, E] or [E, 2], found {rows.shape}")
    if rows.num_rows != 2:
        return _stream(rows.name, rows.num_rows, partial(_columns, rows), rows.stored_bytes, rows.origin)
    apart = rows.apart or partial(_row, rows.name, rows.load())
    first, second = apart(0), apart(1)
    return _stream(rows.name, first.num_rows, partial(_side_by_side, first, second), rows.stored_bytes, rows.origin)


def of_pairs(pairs: RowSource) -> EdgeStream:
    """Makes edges of rows [E, 2].

    Raises:
        InputError: another shape, or ids that are not whole numbers.
    """
    require_ids(pairs, (2,))
    return signed(_stream(pairs.name, pairs.num_rows, partial(_columns, pairs), pairs.stored_bytes, pairs.origin))


def of_ends(sources: RowSource, destinations: RowSource, num_nodes: int | None = None) -> EdgeStream:
    """Makes edges of two lists [E], which are read side by side.

    Raises:
        InputError: other shapes, or ids that are not whole numbers.
    """
    for ends in (sources, destinations):
        require_ids(ends, ())
    if sources.num_rows != destinations.num_rows:
        raise InputError(
            f"{destinations.name}: expected {sources.num_rows} ids, one for each of {sources.name}, found "
            f"{destinations.num_rows}"
        )
    stored_bytes = sources.stored_bytes + destinations.stored_bytes
    read = partial(_side_by_side, sources, destinations)
    known = sources.origin is not None and destinations.origin is not None
    origin = (sources.origin, destinations.origin) if known else None
    return signed(replace(_stream(sources.name, sources.num_rows, read, stored_bytes, origin), num_nodes=num_nodes))


def signed(edges: EdgeStream) -> EdgeStream:
    """Returns the same edges, their ids as int32 or int64; one past int64, which no node has, is an InputError."""

    def read(first: int) -> Iterator[EdgeChunk]:
        for ends in edges.chunks_from(first):
            for side, ids in zip(("source", "destination"), ends, strict=True):
                if ids.dtype == np.uint64 and (past := ids > np.iinfo(np.int64).max).any():
                    place = int(past.argmax())
                    raise InputError(
                        f"{edges.name}: expected ids of nodes, found {side} {ids[place]} in edge {first + place} "
                        f"(counted from 0)"
                    )
            yield as_signed(ends[0]), as_signed(ends[1])
            first += len(ends[0])

    return replace(edges, chunks=partial(read, 0), seek=read)


def turned(edges: EdgeStream) -> EdgeStream:
    """Returns the edges the other way round. They have no `origin`: that names edges as they were."""

    def read(first: int) -> Iterator[EdgeChunk]:
        return ((dst, src) for src, dst in edges.chunks_from(first))

    return replace(edges, chunks=partial(read, 0), seek=read, num_nodes=None, origin=None)


def require_ids(rows: RowSource, row_shape: tuple[int, ...]) -> None:
    """Refuse rows of another shape, or of other numbers than whole ones.

    Raises:
        InputError: they are.
    """
    if rows.row_shape != row_shape or rows.dtype.kind not in "iu":
        expected = "pairs of node ids" if row_shape else "node ids"
        raise InputError(f"{rows.name}: expected {expected}, whole numbers; found {rows.dtype} {rows.shape}")


def _stream(name: str, num_edges: int, read: EdgesFrom, stored_bytes: int, origin: object) -> EdgeStream:
    return EdgeStream(name, num_edges, partial(read, 0), stored_bytes=stored_bytes, seek=read, origin=origin)


def _row(name: str, array: npt.NDArray[Any], row: int) -> RowSource:
    return RowSource(name, array.shape[1], (), array.dtype, lambda: iter([array[row]]))


def _columns(pairs: RowSource, first: int) -> Iterator[EdgeChunk]:
    return ((chunk[:, 0], chunk[:, 1]) for chunk in pairs.chunks_from(first))


def _side_by_side(sources: RowSource, destinations: RowSource, first: int) -> Iterator[EdgeChunk]:
    src, dst = RowReader(sources, first), RowReader(destinations, first)
    for start in range(first, sources.num_rows, CHUNK_EDGES):
        count = min(CHUNK_EDGES, sources.num_rows - start)
        yield src.take(count), dst.take(count)
