"""Graphs of DGL: a DGLGraph in memory, or a file that dgl.save_graphs wrote, which DGL itself reads into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError, UnavailableError
from diskgnn.importers.containers import edge_lists, torch_files
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.rows import EdgeStream, of_array
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType

_MASKS = {"train": ("train_mask",), "valid": ("val_mask", "valid_mask"), "test": ("test_mask",)}


def recognises(source: object) -> bool:
    """Whether this is a DGLGraph, or the path of a file with some."""
    if isinstance(source, Path):
        return kind_of(source) == "dgl"
    return type(source).__module__.split(".")[0] == "dgl" and hasattr(source, "canonical_etypes")


def read(
    source: Any, *, number: int | None = None, features: str = "feat", labels: str = "label",
    weights: str | None = None, times: str | None = None, task: str | None = None,
) -> GraphInput:  # fmt: skip
    """The graph with its data: features, labels, and the masks `train_mask`, `val_mask` and `test_mask` of nodes.

    Args:
        source: a DGLGraph, or the path of a file.
        number: of the graph in the file, from 0 on; needed if there are several.
        features: their name in ndata, and in edata.
        labels: their name in ndata.
        weights: their name in edata.
        times: their name in ndata or edata.
        task: what the labels are; None: several columns are "multilabel", fractions "regression".

    Raises:
        InputError: it is none.
        UnavailableError: dgl is not installed.
    """
    graph = _load(source, number) if isinstance(source, Path) else source
    one_type = len(graph.ntypes) == 1 and len(graph.canonical_etypes) == 1
    nodes = {}
    for name in graph.ntypes:
        data = graph.nodes[name].data
        found: dict[str, Any] = {"num_nodes": graph.num_nodes(name), "features": _rows(data, features)}
        found |= {"times": _array(data, times)} | _labelled(_array(data, labels), task)
        for split, masks in _MASKS.items():
            if found.get("labels") is not None and (mask := next((m for m in masks if m in data), None)):
                found[split] = np.asarray(_array(data, mask)).astype(bool)
        nodes[ONE_NODE_TYPE if one_type else name] = NodeInput(**found)
    edges: dict[EdgeType, EdgeInput] = {}
    for edge_type in graph.canonical_etypes:
        data = graph.edges[edge_type].data
        edges[ONE_EDGE_TYPE if one_type else edge_type] = EdgeInput(
            edges=_edges(graph, edge_type), features=_rows(data, features), weights=_array(data, weights),
            times=_array(data, times),
        )  # fmt: skip
    return GraphInput(nodes, edges)


def _load(path: Path, number: int | None) -> Any:
    if kind_of(path) != "dgl":
        raise InputError(f"expected a file that dgl.save_graphs wrote, found {describe(path)}")
    try:
        import dgl
    except ImportError as error:
        raise UnavailableError(
            "source: graphs of DGL are read by dgl, which cannot be imported here; install it, or save the edges with "
            "np.save where it is"
        ) from error
    graphs, _ = dgl.load_graphs(str(path))
    if number is None and len(graphs) != 1:
        raise InputError(
            f"{path}: expected one graph, found {len(graphs)}; pass `options` number=K, from 0 to {len(graphs) - 1}"
        )
    if not 0 <= (number or 0) < len(graphs):
        raise InputError(f"{path}: expected a graph number {number}, found {len(graphs)} graphs")
    return graphs[number or 0]


def _edges(graph: Any, edge_type: EdgeType) -> EdgeStream:
    name = f"edges of {':'.join(edge_type)}"
    src, dst = (of_array(name, ends.numpy()) for ends in graph.edges(etype=edge_type, order="eid"))
    return edge_lists.of_ends(src, dst)


def _array(data: Any, name: str | None) -> npt.NDArray[Any] | None:
    return torch_files.as_array(data[name]) if name is not None and name in data else None


def _rows(data: Any, name: str) -> npt.NDArray[Any] | None:
    found = _array(data, name)
    return found.reshape(len(found), -1) if found is not None and found.ndim == 1 else found


def _labelled(labels: npt.NDArray[Any] | None, task: str | None) -> dict[str, Any]:
    if labels is None:
        return {}
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if task is None:
        fractional = labels.dtype.kind == "f"
        task = "regression" if fractional and labels.ndim == 1 else "multilabel" if labels.ndim == 2 else "class"
    if task == "multilabel" and labels.dtype.kind == "f":
        labels = labels.astype(np.int64)
    return {"labels": labels, "task": task}
