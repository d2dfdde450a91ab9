"""Make a graph directory from the user's own data: .npy files, arrays in memory, Parquet tables."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.csc import EdgeSource, index_dtype, write_csc
from diskgnn.importers import arrays, node_data, parquet
from diskgnn.importers.arrays import Source
from diskgnn.importers.parquet import TableColumns
from diskgnn.importers.rows import RowSource
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.system.memory import memory_budget

__all__ = ["TableColumns", "convert"]


def convert(
    out: PathLike,
    *,
    edges: Source | None = None,
    indptr: Source | None = None,
    indices: Source | None = None,
    nodes: PathLike | None = None,
    features: Source | None = None,
    labels: Source | None = None,
    train: Source | None = None,
    valid: Source | None = None,
    test: Source | None = None,
    columns: TableColumns | None = None,
    num_nodes: int | None = None,
    num_classes: int | None = None,
    reverse: bool = False,
    self_loops: bool = False,
    drop_duplicates: bool = False,
    bfloat16: bool = False,
    reference_features: bool = False,
    memory: int | str = "auto",
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> StageReport:
    """Make a graph directory. N is the number of nodes, E of edges, D the feature width.

    Edges come either as a list or as CSC (in-neighbours). A source is the path of a .npy file or an array in
    memory; `edges` may also be the path of a Parquet file, or of a folder of them. Sources are read in pieces.

    Args:
        out: the directory to make.
        edges: integers [2, E] (sources, destinations) or [E, 2]; [2, 2] is taken as [2, E]. Or a Parquet table.
        indptr: integers [N+1], with `indices`: in-neighbours of v are indices[indptr[v]:indptr[v+1]].
        indices: integers [E].
        nodes: a Parquet table of one row per node, for whatever of features, labels and splits is not given.
        features: [N, D] float32, float16, int8, uint16 (see `bfloat16`), or float64, which becomes float32.
        labels: integers [N], -1 where a node has none.
        train: node ids, or bool [N].
        valid: as `train`; None if there is none.
        test: as `train`; None if there is none.
        columns: what the columns of Parquet tables are called.
        num_nodes: N; None means as many as there are feature rows.
        num_classes: labels are in [0, num_classes); None means the largest label plus 1.
        reverse: add the reverse of every edge, self-loops included.
        self_loops: add (v, v) for every node that has none.
        drop_duplicates: keep one of equal edges.
        bfloat16: features stored as uint16 are bfloat16 bits.
        reference_features: leave the feature file where it is (.npy in C order) and refer to it.
        memory: what sorting the edges may allocate, in bytes or as '2GiB'; 'auto' means half of what is available.
        overwrite: replace `out` if it is an artifact.
        reporter: told about every pass over the data.

    Warns:
        DataWarning: NaN or infinite features, overlapping splits, repeated ids in a split, float64 features.

    Raises:
        ConfigError: arguments that do not go together.
        InputError: data that is no graph; says where.
        OutputExistsError: `out` is there already.
        DiskFullError: too little disk space; nothing was written.

    Example:
        >>> diskgnn.convert("graph", edges="edges.npy", features="features.npy", labels="labels.npy",
        ...                 train="train.npy", valid="valid.npy", test="test.npy", reverse=True)
    """
    started = time.perf_counter()
    memory_bytes = memory_budget(memory)
    columns = columns or TableColumns()
    topology = _topology(edges, indptr, indices, columns)
    data = _node_data(nodes, features, labels, {"train": train, "valid": valid, "test": test}, columns, bfloat16)
    if reference_features and data.features.path is None:
        raise ConfigError(
            "features can stay where they are only as a .npy file in C order, native byte order and a dtype that "
            "is stored as it is (float32, float16, int8, bfloat16 as uint16): save np.ascontiguousarray(features, "
            "np.float32), or drop --reference-features"
        )
    num_nodes = _check_num_nodes(topology, data, num_nodes)
    if num_classes is not None and num_classes < 1:
        raise ConfigError(f"expected at least 1 class, found {num_classes}")
    splits = {split: arrays.split_ids(split, source, num_nodes) for split, source in data.splits.items()}
    feature_dtype = "bfloat16" if bfloat16 else data.features.dtype.name
    config = {
        "num_nodes": num_nodes,
        "feature_dtype": feature_dtype,
        "feature_width": data.features.row_shape[0],
        "reverse": reverse,
        "self_loops": self_loops,
        "drop_duplicates": drop_duplicates,
    }
    with ArtifactWriter(out, artifacts.GRAPH, config=config, overwrite=overwrite) as writer:
        needed_bytes = _output_bytes(topology, num_nodes, reverse, self_loops)
        needed_bytes += 0 if reference_features else data.features.total_bytes
        artifacts.require_free_bytes(writer.staging, needed_bytes, f"the graph {out}")
        # Small data first: what is wrong with it is found before the long passes over edges and features.
        num_classes = node_data.write_labels(writer, data.labels, num_classes)
        stored_labels = np.load(writer.path(artifacts.LABELS), mmap_mode="r")
        split_sizes = node_data.write_splits(writer, splits, stored_labels)
        num_edges = write_csc(
            writer,
            topology.edges,
            num_nodes,
            memory_bytes=memory_bytes,
            reverse=reverse,
            self_loops=self_loops,
            drop_duplicates=drop_duplicates,
            num_input_edges=topology.num_edges,
            reporter=reporter,
        )
        node_data.write_features(writer, data.features, feature_dtype, reference=reference_features, reporter=reporter)
        writer.config |= {"num_classes": num_classes, "num_edges": num_edges}
        manifest = writer.publish()
    return StageReport(
        "convert",
        time.perf_counter() - started,
        read_bytes=2 * topology.stored_bytes + data.features.stored_bytes + data.labels.stored_bytes,
        written_bytes=sum(entry.bytes for name, entry in manifest.files.items() if name not in manifest.external),
        details={"num_nodes": num_nodes, "num_edges": num_edges, "num_classes": num_classes, **split_sizes},
    )


@dataclass(frozen=True)
class _Topology:
    edges: EdgeSource
    num_edges: int  # before any are added or dropped
    num_nodes: int | None  # where the source says so
    stored_bytes: int  # in files, read twice


def _topology(edges: Source | None, indptr: Source | None, indices: Source | None, columns: TableColumns) -> _Topology:
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
        return _Topology(stream, num_edges, num_nodes, stored_bytes)
    if isinstance(edges, (str, os.PathLike)) and parquet.is_parquet(edges):
        stream, num_edges = parquet.edge_source(edges, columns)
    else:
        stream, num_edges = arrays.edge_source(edges)
    return _Topology(stream, num_edges, None, stored_bytes)


def _stored_bytes(source: Source | None) -> int:
    if not isinstance(source, (str, os.PathLike)):
        return 0
    path = Path(source)
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*.parquet")))


@dataclass(frozen=True)
class _NodeData:
    features: RowSource
    labels: RowSource
    splits: Mapping[str, Source]


def _node_data(
    table_path: PathLike | None,
    features: Source | RowSource | None,
    labels: Source | RowSource | None,
    splits: Mapping[str, Source | None],
    columns: TableColumns,
    bfloat16: bool,
) -> _NodeData:
    """What is given, and the rest from the node table."""
    given = {split: source for split, source in splits.items() if source is not None}
    if table_path is None:
        required = (("features", features), ("labels", labels), ("train", splits["train"]))
        if missing := [name for name, source in required if source is None]:
            raise ConfigError(
                f"expected features, labels and train, or a table of nodes; found no {' and no '.join(missing)}"
            )
    else:
        table = parquet.Table("nodes", table_path)
        parquet.check_ids(table, columns)
        if "train" not in given:
            given = {"train": np.empty(0, np.int64), **parquet.splits(table, columns), **given}
        labels = parquet.labels(table, columns) if labels is None else labels
        if features is None:
            if bfloat16:
                raise ConfigError(
                    "bfloat16 features come from a .npy file of uint16, not from Parquet; drop --bfloat16"
                )
            features = parquet.features(table, columns)
    assert features is not None
    assert labels is not None
    return _NodeData(
        features if isinstance(features, RowSource) else arrays.features(features, bfloat16=bfloat16),
        labels if isinstance(labels, RowSource) else arrays.labels(labels),
        given,
    )


def _check_num_nodes(topology: _Topology, data: _NodeData, num_nodes: int | None) -> int:
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


def _output_bytes(topology: _Topology, num_nodes: int, reverse: bool, self_loops: bool) -> int:
    """Disk space for everything but features."""
    num_edges = topology.num_edges * (2 if reverse else 1) + num_nodes * self_loops
    return num_edges * index_dtype(num_nodes).itemsize + 2 * (num_nodes + 1) * np.dtype(np.int64).itemsize
