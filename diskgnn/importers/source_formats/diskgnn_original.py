"""What prepare_dataset.py of the original DiskGNN writes: NAME-offgs, with a graph of GraphBolt and bare features."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.importers.containers import torch_files
from diskgnn.importers.containers.file_rows import headerless
from diskgnn.importers.containers.rows import CHUNK_EDGES, RowReader, RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_listing import SourceListing
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, SPLITS, edge_type_name

_FILES = ("conf.json", "features.bin", "graph.pth", "labels.pth", "split_idx.pth")
_CLASSES = (
    "dgl.graphbolt.impl.fused_csc_sampling_graph.FusedCSCSamplingGraph",
    "dgl.graphbolt.impl.csc_sampling_graph.CSCSamplingGraph",
    "torch._C.ScriptObject",
    "torch.ScriptObject",
)


def recognises(source: object) -> bool:
    """Returns whether this is the path of such a folder."""
    return isinstance(source, Path) and all((source / name).is_file() for name in _FILES)


def read(source: Path) -> GraphInput:
    """Returns a graph of one type.

    Args:
        source: the folder: conf.json, features.bin, graph.pth, labels.pth and split_idx.pth.

    Raises:
        InputError: a file is missing, or not what DiskGNN wrote.
    """
    if missing := [name for name in _FILES if not (source / name).is_file()]:
        raise InputError(f"expected a folder of DiskGNN with {', '.join(_FILES)}, found no {missing[0]} in {source}")
    try:
        conf = json.loads((source / "conf.json").read_text())
        num_nodes, width = (int(length) for length in conf["features_shape"])
        dtype = str(conf["features_dtype"]).removeprefix("torch.")
        num_classes, offset = int(conf["num_classes"]), int(conf.get("label_offset", 0))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{source / 'conf.json'}: expected the shape and dtype of features ({error!r})") from error
    bfloat16 = dtype == "bfloat16"
    features = headerless("features", source / "features.bin", (width,), "uint16" if bfloat16 else dtype)
    listing = SourceListing()
    indptr, indices = _topology(source / "graph.pth", listing)
    labels = torch_files.tensor("labels", source / "labels.pth")
    ids = torch_files.load("splits", source / "split_idx.pth")
    splits: dict[str, Any] = {split: torch_files.as_array(ids[split]) for split in SPLITS if split in ids}
    for split in ids:
        if split in SPLITS:
            listing.read(ONE_NODE_TYPE, f"split_idx.pth: {split}", split)
        else:
            listing.leave_out(ONE_NODE_TYPE, f"split_idx.pth: {split}", f"the splits are {', '.join(SPLITS)}")
    listing.read(ONE_NODE_TYPE, "features.bin", "features")
    listing.read(ONE_NODE_TYPE, "labels.pth", "labels")
    nodes = NodeInput(
        num_nodes=num_nodes, features=features, bfloat16=bfloat16, num_classes=num_classes,
        labels=_labels(labels, num_nodes, num_classes, offset),
        **splits,
    )  # fmt: skip
    return GraphInput(
        {ONE_NODE_TYPE: nodes}, {ONE_EDGE_TYPE: EdgeInput(indptr=indptr, indices=indices)}, listing.contents()
    )


def _topology(path: Path, listing: SourceListing) -> tuple[RowSource, RowSource]:
    """Returns indptr and indices, wherever in the objects of GraphBolt they are."""
    found = _find(torch_files.load("graph", path, records=_CLASSES))
    if found is None:
        raise InputError(
            f"{path}: expected a graph of GraphBolt, found something else; save a DGLGraph by dgl.save_graphs"
        )
    of = edge_type_name(ONE_EDGE_TYPE)
    listing.read(of, "graph.pth: indptr, indices", "edges")
    for name, value in found.items():
        if name not in ("indptr", "indices", "version_number") and value is not None:
            listing.leave_out(of, f"graph.pth: {name}", "of GraphBolt's graph, indptr and indices are read")
    indptr, indices = (torch_files.as_array(found[name]) for name in ("indptr", "indices"))
    assert indptr is not None
    assert indices is not None
    return torch_files.rows("indptr", path, indptr), torch_files.rows("indices", path, indices)


def _find(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict):
        if {"indptr", "indices"} <= value.keys():
            return value
        inner: Any = value.values()
    elif isinstance(value, torch_files.Record):
        inner = [value.state]
    elif isinstance(value, (tuple, list)):
        inner = value
    else:
        return None
    return next((found for part in inner if (found := _find(part)) is not None), None)


def _labels(labels: RowSource, num_nodes: int, num_classes: int, offset: int) -> RowSource:
    """Returns those of the nodes from `offset` on; what is no class is none."""

    def chunks() -> Iterator[npt.NDArray[np.int64]]:
        reader = RowReader(labels)
        for start in range(0, num_nodes, CHUNK_EDGES):
            stop = min(start + CHUNK_EDGES, num_nodes)
            found = np.full(stop - start, -1, np.int64)
            first, last = max(start, offset), min(stop, offset + labels.num_rows)
            if first < last:
                part = reader.take(last - first).reshape(-1)
                known = (part >= 0) & (part < num_classes)  # NaN is not; ogbn-papers100M has 404 there
                found[first - start : last - start][known] = part[known]
            yield found

    return RowSource("labels", num_nodes, (), np.dtype(np.int64), chunks)
