"""Deals a graph out to partitions on disk: what `partition_buffer` reads. `partitions` has the format."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.baselines.partitions import (
    BUCKETS,
    EDGE_BYTES,
    EDGES,
    FEATURES,
    NODES,
    STARTS,
    TRAIN,
    PartitionsConfig,
    partition_rows,
)
from diskgnn.baselines.row_runs import RowRun, RunFile, copy_runs
from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ConfigError, InputError
from diskgnn.files.checked_files import write_at
from diskgnn.formats import artifacts
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.progress.reporter import Advance, StageReport
from diskgnn.system.resources import Resources
from diskgnn.work.required_space import require_space
from diskgnn.work.writer import ArtifactWriter

MAX_PARTITIONS = 256  # buckets are numbered in 16 bits
_BYTES_PER_EDGE = 64  # in passing, while edges are sorted into buckets


def write_partitions(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    num_partitions: int = 16,
    train_first: bool = False,
    seed: int = 0,
    memory: int | str = "auto",
    threads: int | None = None,
) -> StageReport:
    """Write the directory that `PartitionBuffer` reads.

    Nodes are dealt out to partitions of equal size at random, as MariusGNN's preprocessing does. Features and topology
    are read front to back; memory beside the budget is 40 bytes per node, at most.

    Args:
        graph: graph directory, or an opened one.
        out: the directory to write.
        num_partitions: p, at most 256.
        train_first: training nodes fill the first partitions, for `order='cached'`.
        seed: same seed, same partitions.
        memory: budget in bytes or as '2GiB'.
        threads: of copying features; all cores by default.

    Raises:
        ConfigError: a number of partitions that cannot work.
        InputError: no train nodes.
        ArtifactError, OutputExistsError, DiskFullError: see `work.writer`.
    """
    began = time.perf_counter()
    resources = Resources.beside(memory, threads)
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    if not 1 <= num_partitions <= min(MAX_PARTITIONS, graph.num_nodes):
        raise ConfigError(
            f"num_partitions: expected 1 to {min(MAX_PARTITIONS, graph.num_nodes)}, found {num_partitions}"
        )
    if len(graph.splits.get("train", ())) == 0:
        raise InputError(f"{graph.manifest.path} has no train nodes: nothing to iterate over")
    row_bytes = graph.feature_file.row_bytes
    stride = partition_rows(graph.num_nodes, num_partitions, row_bytes)
    config = PartitionsConfig(num_partitions, train_first, seed, graph.num_nodes, graph.num_edges, row_bytes, stride)
    with ArtifactWriter(out, artifacts.DERIVED, config=config.to_json(), source=graph.manifest) as writer:
        needed_bytes = num_partitions * stride * row_bytes + graph.num_edges * EDGE_BYTES
        require_space(writer, needed_bytes, f"writing {out}")
        read_bytes = _write_files(writer, graph, config, resources)
        manifest = writer.publish()
    return StageReport("partition", time.perf_counter() - began, read_bytes, manifest.total_bytes,
                       {"partitions": num_partitions})  # fmt: skip


def _write_files(writer: ArtifactWriter, graph: Graph, config: PartitionsConfig, resources: Resources) -> int:
    """Returns all files of the directory; bytes read."""
    p, reporter = config.num_partitions, resources.reporter
    nodes, starts, place = _deal_nodes(graph, p, config.train_first, config.seed)
    writer.save_array(NODES, nodes)
    writer.save_array(STARTS, starts)
    train = place[np.asarray(graph.splits["train"])].astype(np.int64)
    partition = np.searchsorted(starts, train, side="right") - 1
    writer.save_array(TRAIN, np.stack([partition, train - starts[partition]], axis=1))
    with reporter.stage("sort edges into buckets", 2 * graph.num_edges, "edges") as advance:
        buckets = _write_edges(writer.path(EDGES), graph, starts, place, resources, advance)
    writer.save_array(BUCKETS, buckets)
    del place
    partition_bytes = config.stride * config.row_bytes
    runs = [RowRun(q * partition_bytes, nodes[starts[q] : starts[q + 1]]) for q in range(p)]
    features = RunFile(writer.path(FEATURES), p * partition_bytes, runs)
    with reporter.stage("copy features", graph.num_nodes, "rows") as advance:
        read_bytes = copy_runs(graph, [features], resources, advance)
    writer.add(EDGES)
    writer.add(FEATURES)
    return read_bytes + 2 * graph.topology_bytes


def _deal_nodes(
    graph: Graph, num_partitions: int, train_first: bool, seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Returns (nodes [N] partition after partition, starts [p + 1], place [N] where each node stands in `nodes`)."""
    num_nodes = graph.num_nodes
    order = permutation(num_nodes, batch_key(seed, "partitions", 0))
    if train_first:
        is_train = np.zeros(num_nodes, np.bool_)
        is_train[np.asarray(graph.splits["train"])] = True
        order = np.concatenate([order[is_train[order]], order[~is_train[order]]])
    starts = num_nodes * np.arange(num_partitions + 1, dtype=np.int64) // num_partitions
    nodes = order.astype(graph.indices.dtype)
    del order
    for q in range(num_partitions):
        nodes[starts[q] : starts[q + 1]].sort()
    place = np.empty_like(nodes)
    place[nodes] = np.arange(num_nodes, dtype=nodes.dtype)
    return nodes, starts, place


def _write_edges(
    path: Path,
    graph: Graph,
    starts: npt.NDArray[np.int64],
    place: npt.NDArray[Any],
    resources: Resources,
    advance: Advance,
) -> npt.NDArray[np.int64]:
    """Write all buckets; where they start, [p, p + 1]. One pass over the edges counts, one writes."""
    p = len(starts) - 1
    counts = np.zeros(p * p, np.int64)
    for bucket, _ in _bucketed(graph, starts, place, resources):
        counts += np.bincount(bucket, minlength=p * p)
        advance(len(bucket))
    ends = np.cumsum(counts)
    cursors = ends - counts
    buckets = np.concatenate([cursors.reshape(p, p), ends.reshape(p, p)[:, -1:]], axis=1)
    with path.open("wb", buffering=0) as file:
        for bucket, edges in _bucketed(graph, starts, place, resources):
            by_bucket = np.argsort(bucket, kind="stable")  # a radix sort: destinations stay in order
            in_order = edges[by_bucket]
            found = np.bincount(bucket, minlength=p * p)
            last = np.cumsum(found)
            for number in np.flatnonzero(found):
                data = in_order[last[number] - found[number] : last[number]]
                write_at(file.fileno(), int(cursors[number]) * EDGE_BYTES, data)
                cursors[number] += found[number]
            advance(len(bucket))
    assert (cursors == ends).all()
    return buckets


def _bucketed(
    graph: Graph, starts: npt.NDArray[np.int64], place: npt.NDArray[Any], resources: Resources
) -> Iterator[tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]]:
    """Yields (bucket [n], edges [n, 2]) of consecutive destinations, as many as the budget holds; buckets are j * p
    + i."""
    p = len(starts) - 1
    window_edges = max(1, resources.divided(1) // _BYTES_PER_EDGE)
    first = 0
    while first < graph.num_nodes:
        last = int(np.searchsorted(graph.indptr, graph.indptr[first] + window_edges, side="right")) - 1
        last = min(max(last, first + 1), graph.num_nodes)
        offsets = np.asarray(graph.indptr[first : last + 1])
        sources = place[graph.indices[offsets[0] : offsets[-1]]]
        destinations = np.repeat(place[first:last], np.diff(offsets))
        source_partition = np.searchsorted(starts, sources, side="right") - 1
        destination_partition = np.searchsorted(starts, destinations, side="right") - 1
        edges = np.empty((len(sources), 2), np.int32)
        edges[:, 0] = destinations - starts[destination_partition]
        edges[:, 1] = sources - starts[source_partition]
        yield (destination_partition * p + source_partition).astype(np.uint16), edges
        first = last
