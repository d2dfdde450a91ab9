"""A sparse adjacency matrix of SciPy, in memory or saved: an edge row -> column for each entry that it stores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diskgnn.errors import InputError
from diskgnn.importers.containers import edge_arrays, edge_lists, npz
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.rows import EdgeStream, RowSource, of_array
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_listing import SourceListing
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, edge_type_name

_ENDS = {"coo": ("row", "col"), "csr": ("indptr", "indices"), "csc": ("indptr", "indices")}


def recognises(source: object) -> bool:
    """Returns whether this is a sparse matrix or array, or the path of one."""
    if isinstance(source, Path):
        return kind_of(source) == "npz" and {"format", "shape"} <= npz.members("", source).keys()
    return _in_memory(source)


def _in_memory(source: object) -> bool:
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(source))


def read(source: Any, *, weights: bool | None = None) -> GraphInput:
    """Returns a graph of one type, without features.

    Args:
        source: a square matrix or array of scipy.sparse, whose rows and columns are expanded in memory if it is not in
            the format coo; or the path of an .npz file of one in coo, csr or csc, compressed or not.
        weights: the stored values are weights of the edges; None: they are left out, with a warning if not all are 1.

    Raises:
        InputError: it is none.
    """
    edges, data = _of_matrix(source) if _in_memory(source) else _of_file(source)
    listing, of = SourceListing(), edge_type_name(ONE_EDGE_TYPE)
    listing.read(of, "rows and columns", "edges")
    if weights:
        listing.read(of, "values", "weights")
    elif weights is False or all(bool((chunk == 1).all()) for chunk in data.chunks()):
        reason = "weights=false was asked for" if weights is False else "all are 1"
        listing.leave_out(of, "values", reason, expected=True)
    else:
        listing.leave_out(of, "values", "weights=true reads them")
    return GraphInput(
        {ONE_NODE_TYPE: NodeInput(num_nodes=edges.num_nodes)},
        {ONE_EDGE_TYPE: EdgeInput(edges=edges, weights=data if weights else None)},
        listing.contents(),
    )


def _of_matrix(matrix: Any) -> tuple[EdgeStream, RowSource]:
    _require_square("matrix", matrix.shape)
    matrix = matrix.tocoo(copy=False)
    edges = edge_lists.of_ends(of_array("edges", matrix.row), of_array("edges", matrix.col), matrix.shape[0])
    return edges, of_array("weights", matrix.data)


def _of_file(source: Any) -> tuple[EdgeStream, RowSource]:
    if not isinstance(source, Path):
        raise InputError(f"expected a matrix of scipy.sparse, found {type(source).__name__}")
    found = npz.members("edges", source) if kind_of(source) == "npz" else {}
    if not {"format", "shape", "data"} <= found.keys():
        raise InputError(f"expected a matrix saved by scipy.sparse.save_npz, found {describe(source)}")
    stored_as = _text(f"{source}: format", found["format"])
    if stored_as not in _ENDS:
        raise InputError(
            f"{source}: expected a matrix in coo, csr or csc format, found {stored_as}; save matrix.tocsr()"
        )
    num_rows = _require_square(str(source), _whole_numbers(f"{source}: shape", found["shape"]))
    first, second = (found[end] for end in _ENDS[stored_as])
    if stored_as == "coo":
        edges = edge_lists.of_ends(first, second)
    else:
        edges = edge_arrays.csc(first, second)
        if edges.num_nodes != num_rows:
            raise InputError(f"{source}: expected an indptr of {num_rows + 1} numbers, found {first.num_rows}")
        if stored_as == "csr":
            edges = edge_lists.turned(edges)
    return replace(edges, name=f"edges ({source})", num_nodes=num_rows), found["data"]


def _text(name: str, rows: RowSource) -> str:
    if rows.dtype.kind not in "SU" or rows.num_rows != 1 or rows.row_shape:
        raise InputError(f"{name}: expected a word, found {rows.dtype} {rows.shape}")
    word = rows.load().item()
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)


def _whole_numbers(name: str, rows: RowSource) -> Sequence[int]:
    if rows.dtype.kind not in "iu" or rows.num_rows != 2 or rows.row_shape:
        raise InputError(f"{name}: expected two whole numbers, found {rows.dtype} {rows.shape}")
    found: Sequence[int] = rows.load().tolist()
    return found


def _require_square(name: str, shape: Sequence[int]) -> int:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(f"{name}: expected a square matrix, found one of shape {list(shape)}")
    return int(shape[0])
