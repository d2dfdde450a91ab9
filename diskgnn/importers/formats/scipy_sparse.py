"""An adjacency matrix saved by scipy.sparse.save_npz: an edge row -> column for each entry that it stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from diskgnn.errors import InputError
from diskgnn.importers.containers import edge_arrays, edge_lists, npz
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE

_ENDS = {"coo": ("row", "col"), "csr": ("indptr", "indices"), "csc": ("indptr", "indices")}


def recognises(source: object) -> bool:
    """Whether this is the path of a sparse matrix."""
    return (
        isinstance(source, Path) and kind_of(source) == "npz" and {"format", "shape"} <= npz.members("", source).keys()
    )


def read(source: Path, *, weights: bool = False) -> GraphInput:
    """A graph of one type, without features.

    Args:
        source: an .npz file of a square matrix in the formats coo, csr or csc, compressed or not.
        weights: the stored values are weights of the edges.

    Raises:
        InputError: it is none.
    """
    found = npz.members("edges", source) if kind_of(source) == "npz" else {}
    if not {"format", "shape", "data"} <= found.keys():
        raise InputError(f"expected a matrix saved by scipy.sparse.save_npz, found {describe(source)}")
    stored_as = next(found["format"].chunks()).item().decode(errors="replace")
    if stored_as not in _ENDS:
        raise InputError(
            f"{source}: expected a matrix in coo, csr or csc format, found {stored_as}; save matrix.tocsr()"
        )
    num_rows, num_columns = next(found["shape"].chunks()).tolist()
    if num_rows != num_columns:
        raise InputError(f"{source}: expected a square matrix, found one of shape {[num_rows, num_columns]}")
    first, second = (found[end] for end in _ENDS[stored_as])
    if stored_as == "coo":
        edges = edge_lists.of_ends(first, second)
    else:
        edges = edge_arrays.csc(first, second)
        if edges.num_nodes != num_rows:
            raise InputError(f"{source}: expected an indptr of {num_rows + 1} numbers, found {first.num_rows}")
        if stored_as == "csr":
            edges = edge_lists.turned(edges)
    edges = replace(edges, name=f"edges ({source})", num_nodes=num_rows)
    return GraphInput(
        {ONE_NODE_TYPE: NodeInput(num_nodes=num_rows)},
        {ONE_EDGE_TYPE: EdgeInput(edges=edges, weights=found["data"] if weights else None)},
    )
