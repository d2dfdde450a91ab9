"""Edges of containers that are read in order: as pairs, or as two lists of ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from diskgnn.errors import InputError
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.importers.containers.rows import CHUNK_EDGES, EdgeStream, RowReader, RowSource, as_signed


def of_pairs(pairs: RowSource) -> EdgeStream:
    """Edges from rows [E, 2].

    Raises:
        InputError: another shape, or ids that are not whole numbers.
    """
    require_ids(pairs, (2,))
    return EdgeStream(pairs.name, pairs.num_rows, partial(_columns, pairs), stored_bytes=pairs.stored_bytes)


def of_ends(sources: RowSource, destinations: RowSource, num_nodes: int | None = None) -> EdgeStream:
    """Edges from two lists [E], which are read side by side.

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
    return EdgeStream(sources.name, sources.num_rows, read, num_nodes, stored_bytes)


def require_ids(rows: RowSource, row_shape: tuple[int, ...]) -> None:
    """Refuse rows of another shape, or of other numbers than whole ones.

    Raises:
        InputError: they are.
    """
    if rows.row_shape != row_shape or rows.dtype.kind not in "iu":
        expected = "pairs of node ids" if row_shape else "node ids"
        raise InputError(f"{rows.name}: expected {expected}, whole numbers; found {rows.dtype} {rows.shape}")


def _columns(pairs: RowSource) -> Iterator[EdgeChunk]:
    for chunk in map(as_signed, pairs.chunks()):
        yield chunk[:, 0], chunk[:, 1]


def _side_by_side(sources: RowSource, destinations: RowSource) -> Iterator[EdgeChunk]:
    src, dst = RowReader(sources), RowReader(destinations)
    for start in range(0, sources.num_rows, CHUNK_EDGES):
        count = min(CHUNK_EDGES, sources.num_rows - start)
        yield as_signed(src.take(count)), as_signed(dst.take(count))
