"""What a graph is made from, opened and compared: the edges, and the features, labels and splits of its nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.csc import EdgeOptions
from diskgnn.graph.edge_buckets import EdgeSource, index_dtype
from diskgnn.importers import arrays, parquet
from diskgnn.importers.arrays import Source
from diskgnn.importers.parquet import TableColumns
from diskgnn.importers.rows import RowSource
from diskgnn.specs import PathLike
from diskgnn.storage.row_format import RowFormat


@dataclass(frozen=True)
class Topology:
    """The edges of a graph, to be streamed."""

    edges: EdgeSource
    num_edges: int  # before any are added or dropped
    num_nodes: int | None  # where the source says so
    stored_bytes: int  # in files, read twice


def open_topology(
    edges: Source | None, indptr: Source | None, indices: Source | None, columns: TableColumns
) -> Topology:
    """Edges as a list, or as CSC.

    Raises:
        ConfigError: neither, or both.
        InputError: they are none; see `arrays` and `parquet`.
    """
    if (edges is None) == (indptr is None) or (indptr is None) != (indices is None):
        found = [
            name for name, given in (("edges", edges), ("indptr", indptr), ("indices", indices)) if given is not None
        ]
        raise ConfigError(f"expected either edges, or indptr and indices; found {' and '.join(found) or 'neither'}")
    stored_bytes = sum(map(_stored_bytes, (edges, indptr, indices)))
    if edges is None:
        assert indptr is not None
        assert indices is not None
        stream, num_edges, num_nodes = arrays.csc_source(indptr, indices)
        return Topology(stream, num_edges, num_nodes, stored_bytes)
    if isinstance(edges, (str, os.PathLike)) and parquet.is_parquet(edges):
        stream, num_edges = parquet.edge_source(edges, columns)
    else:
        stream, num_edges = arrays.edge_source(edges)
    return Topology(stream, num_edges, None, stored_bytes)


def _stored_bytes(source: Source | None) -> int:
    if not isinstance(source, (str, os.PathLike)):
        return 0
    path = Path(source)
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*.parquet")))


@dataclass(frozen=True)
class GivenNodeData:
    """Node data as the user names it: each of them by itself, or what is None from the table."""

    table: PathLike | None
    features: Source | None
    labels: Source | None
    splits: Mapping[str, Source | None]
    bfloat16: bool  # features stored as uint16 are bfloat16 bits


@dataclass(frozen=True)
class NodeData:
    """Node data, to be streamed."""

    features: RowSource
    row_format: RowFormat
    labels: RowSource
    splits: Mapping[str, Source]


def open_node_data(given: GivenNodeData, columns: TableColumns) -> NodeData:
    """What is given, and the rest from the table.

    Raises:
        ConfigError: something is missing, or cannot be what it is said to be.
        InputError: it is no node data; see `arrays` and `parquet`.
    """
    features: Source | RowSource | None = given.features
    labels: Source | RowSource | None = given.labels
    splits = {split: source for split, source in given.splits.items() if source is not None}
    if given.table is None:
        required = {"features": features, "labels": labels, "train": splits.get("train")}
        if missing := [name for name, source in required.items() if source is None]:
            raise ConfigError(
                f"expected features, labels and train, or a table of nodes; found no {' and no '.join(missing)}"
            )
    else:
        table = parquet.Table("nodes", given.table)
        parquet.check_ids(table, columns)
        if "train" not in splits:
            splits = {"train": np.empty(0, np.int64), **parquet.splits(table, columns), **splits}
        labels = parquet.labels(table, columns) if labels is None else labels
        if features is None:
            if given.bfloat16:
                raise ConfigError(
                    "bfloat16: such features come from a .npy file of uint16, not from Parquet; leave it out"
                )
            features = parquet.features(table, columns)
    assert features is not None
    assert labels is not None
    rows = features if isinstance(features, RowSource) else arrays.features(features, bfloat16=given.bfloat16)
    return NodeData(
        rows,
        RowFormat.stored_as(rows.dtype, rows.row_shape[0]),
        labels if isinstance(labels, RowSource) else arrays.labels(labels),
        splits,
    )


def common_num_nodes(topology: Topology, data: NodeData, num_nodes: int | None) -> int:
    """N, on which all sources must agree.

    Raises:
        InputError: they do not.
    """
    name, expected = next(
        (name, number)
        for name, number in (
            ("the number of nodes given", num_nodes),
            ("indptr", topology.num_nodes),
            ("features", data.features.num_rows),
        )
        if number is not None
    )
    counts = {"indptr": topology.num_nodes, "features": data.features.num_rows, "labels": data.labels.num_rows}
    for other, found in counts.items():
        if found is not None and found != expected:
            raise InputError(
                f"{other}: expected {expected} rows (one per node, as {name} says), found {found}; "
                f"are the files of the same graph?"
            )
    if expected < 1:
        raise InputError("expected at least one node, found none")
    return expected


def topology_bytes(topology: Topology, num_nodes: int, options: EdgeOptions) -> int:
    """Disk space for all of a graph but its features."""
    num_edges = topology.num_edges * (2 if options.reverse else 1) + num_nodes * options.self_loops
    return num_edges * index_dtype(num_nodes).itemsize + 2 * (num_nodes + 1) * np.dtype(np.int64).itemsize
