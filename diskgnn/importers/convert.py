"""Make a graph directory from the user's own data: .npy files, arrays in memory, Parquet tables."""

from __future__ import annotations

import time
from dataclasses import asdict

import numpy as np

from diskgnn.errors import ConfigError
from diskgnn.graph.csc import EdgeOptions, write_csc
from diskgnn.importers import arrays, node_data
from diskgnn.importers.arrays import Source
from diskgnn.importers.graph_sources import (
    GivenNodeData,
    common_num_nodes,
    open_node_data,
    open_topology,
    topology_bytes,
)
from diskgnn.importers.parquet import TableColumns
from diskgnn.importers.quantising import quantised_format, write_quantised
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import node_file
from diskgnn.storage.disk_space import require_free_bytes
from diskgnn.storage.graph_config import GraphConfig
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

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
    quantise: str | None = None,
    memory: int | str = "auto",
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> StageReport:
    """Make a graph directory. N is the number of nodes, E of edges, D of features.

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
        quantise: store the features as 'int8' or 'int4', with a scale and a zero point per column found in a pass of
            its own, or as 'float16' or 'bfloat16'. The report says what that changes, in standard deviations.
        memory: what sorting the edges may allocate, in bytes or as '2GiB'; 'auto' means half of what is available.
        overwrite: replace `out` if it is an artifact.
        reporter: told about every pass over the data.

    Warns:
        DataWarning: NaN or infinite features (InputError if quantised), overlapping splits, repeated ids in a split,
            float64 features.

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
    resources = Resources.of(memory, reporter=reporter)
    columns = columns or TableColumns()
    options = EdgeOptions(reverse, self_loops, drop_duplicates)
    topology = open_topology(edges, indptr, indices, columns)
    splits = {"train": train, "valid": valid, "test": test}
    data = open_node_data(GivenNodeData(nodes, features, labels, splits, bfloat16), columns)
    if reference_features and data.features.path is None:
        raise ConfigError(
            "reference_features: features can stay where they are only as a .npy file in C order, native byte order "
            "and a dtype that is stored as it is (float32, float16, int8, bfloat16 as uint16): save "
            "np.ascontiguousarray(features, np.float32), or leave it out"
        )
    if reference_features and quantise is not None:
        raise ConfigError("quantise: quantised features are written anew; leave out reference_features=True")
    row_format = data.row_format if quantise is None else quantised_format(quantise, data.row_format)
    num_nodes = common_num_nodes(topology, data, num_nodes)
    if num_classes is not None and num_classes < 1:
        raise ConfigError(f"num_classes: expected at least 1, found {num_classes}")
    split_ids = {split: arrays.split_ids(split, source, num_nodes) for split, source in data.splits.items()}
    with ArtifactWriter(out, artifacts.GRAPH, config={}, overwrite=overwrite) as writer:
        needed_bytes = topology_bytes(topology, num_nodes, options)
        needed_bytes += 0 if reference_features else num_nodes * row_format.row_bytes
        require_free_bytes(writer.staging, needed_bytes, f"the graph {out}")
        # Small data first: what is wrong with it is found before the long passes over edges and features.
        num_classes = node_data.write_labels(writer, ONE_NODE_TYPE, data.labels, num_classes)
        stored_labels = np.load(writer.path(node_file(artifacts.LABELS, ONE_NODE_TYPE)), mmap_mode="r")
        split_sizes = node_data.write_splits(writer, ONE_NODE_TYPE, split_ids, stored_labels)
        num_edges = write_csc(
            writer, ONE_EDGE_TYPE, topology.edges, num_nodes, options, resources, num_input_edges=topology.num_edges
        )
        made_with, error = asdict(options), dict[str, int | float | str]()
        if quantise is None:
            node_data.write_features(
                writer, ONE_NODE_TYPE, data.features, data.row_format, reference=reference_features, reporter=reporter
            )
        else:
            made_with["quantise"] = quantise
            error = write_quantised(
                writer, ONE_NODE_TYPE, data.features, data.row_format, row_format, reporter
            ).details()
        writer.config = GraphConfig.of_one_type(num_nodes, num_edges, num_classes, row_format).to_json(made_with)
        manifest = writer.publish()
    passes = 2 if node_file(artifacts.FEATURE_CODES, ONE_NODE_TYPE) in manifest.files else 1
    return StageReport(
        "convert",
        time.perf_counter() - started,
        read_bytes=2 * topology.stored_bytes + passes * data.features.stored_bytes + data.labels.stored_bytes,
        written_bytes=sum(entry.bytes for name, entry in manifest.files.items() if name not in manifest.external),
        details={"num_nodes": num_nodes, "num_edges": num_edges, "num_classes": num_classes, **split_sizes, **error},
    )
