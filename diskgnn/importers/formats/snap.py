"""Edge lists of SNAP and their like: text, an edge per line, comments that begin with #, compressed or not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from diskgnn.errors import InputError
from diskgnn.importers.containers import text_numbers
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.rows import EdgeStream
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE

_KINDS = ("text", "text.gz", "csv", "csv.gz")
_SPARSE = 20  # ids for each edge: more are surely no count of nodes


def recognises(source: object) -> bool:
    """Whether this is the path of a text file whose first line holds two ids, and no comma."""
    if not isinstance(source, Path) or kind_of(source) not in ("text", "text.gz"):
        return False
    lines = (line for line in text_numbers.first_lines("edges", source) if not line.startswith("#"))
    return re.match(r"\d+[ \t;]+\d+\b", next(lines, "")) is not None


def read(
    source: Path, *, sparse: bool | None = None, weights: bool = False, delimiter: str | None = None
) -> GraphInput:
    """A graph of one type, without features. The file is read once to count its edges and nodes.

    Sparse ids become dense ones, in ascending order; `user_ids` of the graph's nodes says which.

    Args:
        source: a text file; the first two columns are source and destination, whole numbers.
        sparse: the nodes are those that edges mention; None: if the ids reach beyond the number of nodes that a comment
            says, or far beyond the number of edges. Otherwise there are as many as the largest id plus 1.
        weights: the third column has the weights of the edges.
        delimiter: between columns; None: the one in the first line.

    Raises:
        InputError: it is none.
    """
    if kind_of(source) not in _KINDS:
        raise InputError(f"expected a text file with an edge per line, found {describe(source)}")
    said, mark = _header(source)
    mark = delimiter or mark
    rows = text_numbers.rows("edges", source, -1, np.float64 if weights else np.int64, delimiter=mark, comment="#")
    columns = rows.row_shape[0]
    if columns < 2 + weights:
        raise InputError(f"{rows.name}: expected at least {2 + weights} columns between {mark!r}, found {columns}")
    num_edges, largest = 0, -1
    for chunk in rows.chunks():
        num_edges, largest = num_edges + len(chunk), max(largest, int(chunk[:, :2].max(initial=-1)))
    if sparse is None:
        sparse = largest >= (_SPARSE * (num_edges + 1) if said is None else said)
    edges = EdgeStream(
        rows.name,
        num_edges,
        lambda: ((chunk[:, 0].astype(np.int64), chunk[:, 1].astype(np.int64)) for chunk in rows.chunks()),
        stored_bytes=source.stat().st_size,
        sparse=sparse,
    )
    third = replace(rows, num_rows=num_edges).mapped((), rows.dtype, lambda chunk: chunk[:, 2]) if weights else None
    nodes = NodeInput(num_nodes=None if sparse else max(largest + 1, said or 0))
    return GraphInput({ONE_NODE_TYPE: nodes}, {ONE_EDGE_TYPE: EdgeInput(edges=edges, weights=third)})


def _header(source: Path) -> tuple[int | None, str]:
    """The number of nodes that a comment says, and what stands between columns."""
    said = None
    for line in text_numbers.first_lines("edges", source):
        if line.startswith("#"):
            if match := re.search(r"[Nn]odes:\s*(\d+)", line):
                said = int(match[1])
        elif line.strip():
            return said, next((mark for mark in "\t, ;" if mark in line.strip()), "\t")
    return said, "\t"
