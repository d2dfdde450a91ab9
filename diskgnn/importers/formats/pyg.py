"""Graphs of PyTorch Geometric, as the importers have them (`pyg_graphs` says what is in them, `pyg_files` reads)."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.containers.arrays import Source
from diskgnn.importers.containers.file_kinds import kind_of
from diskgnn.importers.containers.rows import RowSource
from diskgnn.importers.formats.pyg_files import of_file
from diskgnn.importers.formats.pyg_graphs import as_source, is_bfloat16, stored_graph
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput

MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
_MARK = b"torch_geometric"  # in what pickles of its classes say of them


def recognises(source: object) -> bool:
    """Whether this is a graph of PyG, or the path of a file that torch has saved one to."""
    if isinstance(source, Path):
        return kind_of(source) == "torch" and _names_pyg(source)
    if "torch_geometric" not in sys.modules:
        return False
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

    is_pair = isinstance(source, tuple) and len(source) == 2 and not isinstance(source[0], Path)
    return isinstance(source, Data | HeteroData) or (
        is_pair and isinstance(source[0], FeatureStore) and isinstance(source[1], GraphStore)  # type: ignore[index]
    )


def read(
    source: Any,
    *,
    features: str | None = "x",
    labels: str | None = "y",
    times: str | None = "time",
    edge_times: str | None = "edge_time",
    edge_features: str | None = "edge_attr",
    weights: str | None = "edge_weight",
    task: str | None = None,
    split: int | None = None,
) -> GraphInput:
    """A graph of PyG. Arguments name attributes; one that a type lacks is left out, and so is one that is None.

    Args:
        source: `Data`, `HeteroData`, (FeatureStore, GraphStore), or the path of a .pt file with one of the first two,
            as torch.save or a data set's folder `processed` has it.
        features: of nodes, [N, D].
        labels: of nodes. Whole numbers [N] or [N, 1] are classes, 0 and 1 [N, C] are labels, other numbers are for
            regression.
        times: of nodes and of edges.
        edge_times: of edges that have none of `times`.
        edge_features: of edges, [E, D] or [E].
        weights: of edges.
        task: 'class', 'multilabel' or 'regression', where that is not what the labels look like.
        split: which column of masks [N, several] to take.

    Raises:
        InputError: it is no such graph.
        UnavailableError: a file needs torch_geometric to be read.
    """
    found = of_file(source) if isinstance(source, Path) else stored_graph(source)
    nodes = {}
    for name, stored in found.nodes.items():
        known = stored.attributes
        labelled: dict[str, Any] = (
            {} if labels is None or labels not in known else _labels(f"{name}: {labels}", known[labels], task)
        )
        masks = _masks(name, known, split) if labelled else {}
        nodes[name] = NodeInput(
            stored.num_rows, times=_source(known, times), **_features(known, features), **labelled, **masks
        )
    edges = {}
    for edge_type, stored in found.edges.items():
        known = stored.attributes
        when = _source(known, times if times in known else edge_times)
        edges[edge_type] = EdgeInput(
            **stored.topology, times=when, weights=_source(known, weights),
            **_features(known, edge_features), keep_ids=True,
        )  # fmt: skip
    return GraphInput(nodes, edges)


def _source(known: Mapping[str, Any], name: str | None) -> Source | None:
    return as_source(known[name]) if name is not None and known.get(name) is not None else None


def _features(known: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """`features` and `bfloat16` of NodeInput and EdgeInput."""
    source = _source(known, name)
    if source is None:
        return {}
    if isinstance(source, np.ndarray) and source.ndim == 1:
        source = source[:, None]
    if isinstance(source, RowSource) and not source.row_shape:
        column = source.mapped((1,), source.dtype, lambda chunk: chunk[:, None])
        source = replace(column, origin=source.origin)  # whose shape says so
    return {"features": source, "bfloat16": is_bfloat16(known[str(name)])}


def _labels(name: str, value: Any, task: str | None) -> dict[str, Any]:
    """`labels` and `task` of NodeInput."""
    source = as_source(value)
    if isinstance(source, RowSource):
        source = source.load()
    labels = np.asarray(source)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim > 2:
        raise InputError(f"{name}: expected labels [N] or [N, C], found {list(labels.shape)}; pass labels=None")
    if task is None:
        is_binary = labels.ndim == 2 and bool(np.isin(labels, (0, 1)).all())
        is_whole = labels.ndim == 1 and labels.dtype.kind in "iub"
        task = "multilabel" if is_binary else "class" if is_whole else "regression"
    if task != "regression" and labels.dtype.kind in "fb":
        labels = np.where(np.isnan(labels), -1, labels).astype(np.int64)
    return {"labels": labels, "task": task}


def _masks(owner: str, known: Mapping[str, Any], split: int | None) -> dict[str, Any]:
    """`train`, `valid` and `test` of NodeInput; masks of no node are left out."""
    found = {}
    for name, mask in MASKS.items():
        if mask in known:
            source = as_source(known[mask])
            column = _column(f"{owner}: {mask}", np.asarray(source.load() if isinstance(source, RowSource) else source),
                             split)  # fmt: skip
            if column.any():
                found[name] = column
    return found


def _column(name: str, masks: npt.NDArray[Any], split: int | None) -> npt.NDArray[Any]:
    if masks.ndim == 1:
        return masks
    if split is None or not 0 <= split < masks.shape[1]:
        raise ConfigError(f"{name} has {masks.shape[1]} columns: pass split=0 for the first one, and so on")
    return masks[:, split]


def _names_pyg(path: Path) -> bool:
    if not zipfile.is_zipfile(path):  # as torch.save wrote them formerly
        return False
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
        return any(_MARK in archive.read(name) for name in pickles)
