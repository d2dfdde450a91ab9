"""Edge lists of SNAP and their like: text, an edge per line, comments that begin with #, compressed or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.containers import text_numbers
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.rows import EdgeStream, RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_listing import UNDIRECTED, SourceListing
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, edge_type_name

_KINDS = ("text", "text.gz", "csv", "csv.gz")
_MOST_EXACT = 1 << 53  # whole number that a float64 holds
_SPARSE = 20  # ids for each edge: more are surely no count of nodes


def recognises(source: object) -> bool:
    """Returns whether this is the path of a text file whose first line holds two ids, and no comma."""
    if not isinstance(source, Path) or kind_of(source) not in ("text", "text.gz"):
        return False
    lines = (line for line in text_numbers.first_lines("edges", source) if not line.startswith("#"))
    return re.match(r"\d+[ \t;]+\d+\b", next(lines, "")) is not None


def read(
    source: Path,
    *,
    sparse: bool | None = None,
    weights: bool | int = False,
    times: bool | int = False,
    delimiter: str | None = None,
) -> GraphInput:
    """Returns a graph of one type, without features. The file is read once to count its edges and nodes.

    Sparse ids become dense ones, in ascending order; `user_ids` of the graph's nodes says which.

    Args:
        source: a text file; the first two columns are source and destination, whole numbers.
        sparse: the nodes are those that edges mention; None: if the ids reach beyond the number of nodes that a comment
            says, or far beyond the number of edges. Otherwise there are as many as the largest id plus 1.
        weights: the column, counted from 1, with the weights of the edges; True: the third.
        times: the column with the times of the edges; True: the third.
        delimiter: between columns; None: the one in the first line.

    Raises:
        ConfigError: there are no such columns.
        InputError: it is none.
    """
    if kind_of(source) not in _KINDS:
        raise InputError(f"expected a text file with an edge per line, found {describe(source)}")
    said, mark, is_undirected = _header(source)
    mark = delimiter or mark
    asked = {
        use: 3 if column is True else int(column)
        for use, column in (("weights", weights), ("times", times)) if column is not False
    }  # fmt: skip
    rows = text_numbers.rows(
        "edges", source, -1, np.float64 if "weights" in asked else np.int64, delimiter=mark, comment="#"
    )
    columns = rows.row_shape[0]
    if columns < 2:
        raise InputError(f"{rows.name}: expected at least 2 columns between {mark!r}, found {columns}")
    listing = _columns(rows.name, columns, asked)
    if is_undirected:
        listing.leave_out("", UNDIRECTED, "edges are read as they stand; `reverse` adds the other direction of each")
    num_edges, largest = _counted(rows, has_weights="weights" in asked)
    if sparse is None:
        sparse = largest >= (_SPARSE * (num_edges + 1) if said is None else said)
    edges = EdgeStream(
        rows.name,
        num_edges,
        lambda: ((chunk[:, 0].astype(np.int64), chunk[:, 1].astype(np.int64)) for chunk in rows.chunks()),
        stored_bytes=source.stat().st_size,
        sparse=sparse,
    )
    nodes = NodeInput(num_nodes=None if sparse else max(largest + 1, said or 0))
    whole = replace(rows, num_rows=num_edges)
    given = EdgeInput(
        edges=edges,
        weights=_column(whole, asked["weights"], np.float64) if "weights" in asked else None,
        times=_column(whole, asked["times"], np.int64) if "times" in asked else None,
    )
    return GraphInput({ONE_NODE_TYPE: nodes}, {ONE_EDGE_TYPE: given}, listing.contents())


def _counted(rows: RowSource, *, has_weights: bool) -> tuple[int, int]:
    """Returns the number of edges, and the largest id; -1: there are none.

    Raises:
        InputError: a line is none of an edge, or an id is too large for the numbers that weights are read as.
    """
    num_edges, largest = 0, -1
    try:
        for chunk in rows.chunks():
            num_edges, largest = num_edges + len(chunk), max(largest, int(chunk[:, :2].max(initial=-1)))
    except InputError as error:
        place = re.search(r"CSV column #(\d+)", str(error))  # Arrow counts from 0
        column = int(place[1]) + 1 if place else 3
        if 3 <= column <= rows.row_shape[0] and not has_weights:
            raise InputError(
                f"{error}; a column of fractions is read as weights: `options` weights={column}"
            ) from error
        raise
    if largest > _MOST_EXACT and has_weights:
        raise InputError(f"{rows.name}: expected ids up to {_MOST_EXACT} beside weights, found {largest}")
    return num_edges, largest


def _columns(name: str, columns: int, asked: Mapping[str, int]) -> SourceListing:
    """Notes what each column is read as.

    Raises:
        ConfigError: a column that was asked for is not there, or is asked for twice.
    """
    listing, of = SourceListing(), edge_type_name(ONE_EDGE_TYPE)
    for use, column in asked.items():
        if not 3 <= column <= columns:
            there = f"columns 3 to {columns}" if columns > 2 else "2 columns"
            raise ConfigError(f"options: {use}: expected a column of {name} after the ids ({there}), found {column}")
    if len({*asked.values()}) < len(asked):
        raise ConfigError(f"options: times: expected another column than that of the weights, {asked['weights']}")
    uses = {1: "sources of edges", 2: "destinations of edges", **{column: use for use, column in asked.items()}}
    for column in range(1, columns + 1):
        if column in uses:
            listing.read(of, f"column {column}", uses[column])
        else:
            listing.leave_out(of, f"column {column}", f"weights={column} or times={column} reads it")
    return listing


def _column(rows: RowSource, column: int, dtype: Any) -> RowSource:
    def values(chunk: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found = chunk[:, column - 1].astype(dtype)
        if not (found == chunk[:, column - 1]).all() and dtype is np.int64:
            raise InputError(f"{rows.name}: expected whole numbers as times in column {column}, found others")
        return found

    return rows.mapped((), np.dtype(dtype), values)


def _header(source: Path) -> tuple[int | None, str, bool]:
    """Returns the number of nodes that a comment says, what stands between columns, and if a comment says
    undirected."""
    said, is_undirected = None, False
    for line in text_numbers.first_lines("edges", source):
        if line.startswith("#"):
            if match := re.search(r"[Nn]odes:\s*(\d+)", line):
                said = int(match[1])
            is_undirected |= "undirected" in line.lower()
        elif line.strip():
            return said, next((mark for mark in "\t, ;" if mark in line.strip()), "\t"), is_undirected
    return said, "\t", is_undirected
