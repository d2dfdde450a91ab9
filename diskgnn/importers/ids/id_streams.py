"""Ids of nodes as they come from a table or array, a chunk at a time, as Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from diskgnn.errors import InputError
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.importers.ids.id_types import id_keys, id_kind


def no_line(_: int) -> str:
    """Returns a place in a source that has no lines."""
    return ""


@dataclass(frozen=True)
class IdColumns:
    """Ids of nodes in one column, or of the ends of edges in two."""

    name: str  # of the table or array, for messages
    row_name: str  # what has an id there: "row" or "edge"
    columns: tuple[str, ...]  # what messages call each
    kinds: tuple[pa.DataType, ...]  # as the source has them
    num_rows: int
    from_table: bool  # or a stream of sparse ids; elsewhere whole numbers are dense ids
    # About so many rows at a time, from a row on, each column as `id_keys`.
    chunks: Callable[[int, int], Iterator[tuple[pa.Array, ...]]]
    numbered: int | None = None  # which column has numbers of rows, whatever ids the nodes have
    skips_unknown: bool = False  # edges to ids that no node has are left out, with a warning, and no error
    path: str | None = None  # of the table
    line: Callable[[int], str] = no_line  # says where a row is in its file, for the end of a message
    may_lack: bool = False  # null is no error, but the id of a node that nobody names

    def place(self, row: int) -> str:
        """Names the place of an id, for messages."""
        return f"{self.row_name} {row} (counted from 0){self.line(row)}"

    @property
    def told(self) -> str:
        """Returns what messages call it, with its path."""
        return self.name if self.path is None or self.path in self.name else f"{self.name} ({self.path})"

    @property
    def key_kinds(self) -> tuple[pa.DataType, ...]:
        """Returns the kinds of keys of the chunks."""
        kinds = tuple(map(id_kind, self.kinds))
        assert None not in kinds
        return kinds

    def edges(self) -> Iterator[EdgeChunk]:
        """Both ends as arrays, where they are dense ids."""
        for sources, destinations in self.chunks(1 << 20, 0):
            yield np.asarray(sources), np.asarray(destinations)

    def count_rows(self) -> bool:
        """Returns whether the ids of the first column are 0, 1, 2, ...: then they are the dense ones already."""
        if not pa.types.is_integer(self.kinds[0]):
            return False
        position = 0
        for ids, *_ in self.chunks(1 << 20, 0):
            if ids.null_count or (np.asarray(ids) != np.arange(position, position + len(ids))).any():
                return False
            position += len(ids)
        return True


def checked_keys(
    name: str,
    row_name: str,
    columns: Sequence[str],
    read: Callable[[int, int], Iterator[tuple[pa.Array, ...]]],
    chunk_rows: int,
    first: int,
    line: Callable[[int], str] = no_line,
    may_lack: bool = False,
) -> Iterator[tuple[pa.Array, ...]]:
    """Yields what `read` does, about so many rows at a time from the `first` on, as keys.

    Raises:
        InputError: null, unless keys `may_lack`; names the first.
    """
    position = first
    for arrays_found in read(chunk_rows, first):
        for column, array in zip(columns, arrays_found, strict=True):
            if array.null_count and not may_lack:
                row = position + int(np.asarray(array.is_null()).argmax())
                raise InputError(
                    f"{name}: expected an id in {column}, found null in {row_name} {row} (counted from 0){line(row)}; "
                    f"fill it in, or leave the {row_name} out"
                )
        yield tuple(id_keys(array) for array in arrays_found)
        position += len(arrays_found[0])


def in_parts(chunks: Iterator[tuple[pa.Array, ...]], part_rows: int) -> Iterator[tuple[pa.Array, ...]]:
    """Yields the same rows, `part_rows` at a time but for the last."""
    held, num_held = list[tuple[pa.Array, ...]](), 0
    for chunk in chunks:
        start = 0
        while start < len(chunk[0]):
            taken = tuple(array.slice(start, part_rows - num_held) for array in chunk)
            held.append(taken)
            start, num_held = start + len(taken[0]), num_held + len(taken[0])
            if num_held == part_rows:
                yield _joined(held)
                held, num_held = [], 0
    if held:
        yield _joined(held)


def _joined(chunks: Sequence[tuple[pa.Array, ...]]) -> tuple[pa.Array, ...]:
    return chunks[0] if len(chunks) == 1 else tuple(map(pa.concat_arrays, zip(*chunks, strict=True)))


def skipping(chunks: Iterator[tuple[pa.Array, ...]], first: int) -> Iterator[tuple[pa.Array, ...]]:
    """Yields `chunks`, but for the `first` rows."""
    for found in chunks:
        if first < len(found[0]):
            yield tuple(array[first:] for array in found) if first else found
        first = max(0, first - len(found[0]))
