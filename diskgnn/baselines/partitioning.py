"""A graph in p partitions on disk, and its edges in p^2 buckets: what `partition_buffer` reads. Written and read here.

| file | dtype and shape | content |
|---|---|---|
| `nodes.npy` | as the graph's indices, [N] | node ids, partition after partition, ascending in each |
| `starts.npy` | int64 [p + 1] | partition q has nodes[starts[q]:starts[q + 1]] |
| `features.bin` | | partition q's rows from q * stride * row_bytes on, then zeros up to the next partition |
| `edges.bin` | int32 [E, 2] | (destination, source) as positions in their partitions, bucket after bucket |
| `buckets.npy` | int64 [p, p + 1] | edges[buckets[j, i]:buckets[j, i + 1]] go from partition i to j; by destination |
| `train.npy` | int64 [n, 2] | partition and position of each train node, in the order of the graph's train.npy |
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.baselines.row_runs import RowRun, RunFile, copy_runs
from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.progress import SILENT, Advance, Reporter, StageReport
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter, Manifest
from diskgnn.storage.extents import align
from diskgnn.storage.manifest import PARTITIONS
from diskgnn.storage.row_reading import ALIGNMENT
from diskgnn.system.memory import available_cores, memory_budget

NODES, STARTS, FEATURES, EDGES, BUCKETS, TRAIN = (
    "nodes.npy", "starts.npy", "features.bin", "edges.bin", "buckets.npy", "train.npy",
)  # fmt: skip
MAX_PARTITIONS = 256  # buckets are numbered in 16 bits
EDGE_BYTES = 8
_BYTES_PER_EDGE = 64  # in passing, while edges are sorted into buckets


def prepare_partitions(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    num_partitions: int = 16,
    train_first: bool = False,
    seed: int = 0,
    memory: int | str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
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
        overwrite: replace an existing `out`.
        reporter: told of rows and edges.

    Raises:
        ConfigError: a number of partitions that cannot work.
        InputError: no train nodes.
        ArtifactError, OutputExistsError, DiskFullError: see `diskgnn.storage.artifacts`.
    """
    began = time.perf_counter()
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    if not 1 <= num_partitions <= min(MAX_PARTITIONS, graph.num_nodes):
        raise ConfigError(
            f"num_partitions: expected 1 to {min(MAX_PARTITIONS, graph.num_nodes)}, found {num_partitions}"
        )
    if len(graph.splits.get("train", ())) == 0:
        raise InputError(f"{graph.manifest.path} has no train nodes: nothing to iterate over")
    features, memory_bytes = graph.feature_file, memory_budget(memory)
    stride = partition_rows(graph.num_nodes, num_partitions, features.row_bytes)
    config = {
        "num_partitions": num_partitions, "train_first": train_first, "seed": seed, "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges, "row_bytes": features.row_bytes, "stride": stride,
    }  # fmt: skip
    features_bytes = num_partitions * stride * features.row_bytes
    with ArtifactWriter(out, PARTITIONS, config=config, source=graph.manifest, overwrite=overwrite) as writer:
        artifacts.require_free_bytes(writer.staging, features_bytes + graph.num_edges * EDGE_BYTES, f"writing {out}")
        nodes, starts, place = _deal_nodes(graph, num_partitions, train_first, seed)
        writer.save_array(NODES, nodes)
        writer.save_array(STARTS, starts)
        train = place[np.asarray(graph.splits["train"])].astype(np.int64)
        partition = np.searchsorted(starts, train, side="right") - 1
        writer.save_array(TRAIN, np.stack([partition, train - starts[partition]], axis=1))
        with reporter.stage("sort edges into buckets", 2 * graph.num_edges, "edges") as advance:
            writer.save_array(BUCKETS, _write_edges(writer.path(EDGES), graph, starts, place, memory_bytes, advance))
        del place
        runs = [
            RowRun(q * stride * features.row_bytes, nodes[starts[q] : starts[q + 1]]) for q in range(num_partitions)
        ]
        with reporter.stage("copy features", graph.num_nodes, "rows") as advance:
            read_bytes = copy_runs(
                features, [RunFile(writer.path(FEATURES), features_bytes, runs)], memory_bytes=memory_bytes,
                threads=available_cores() if threads is None else threads, advance=advance,
            )  # fmt: skip
        writer.add(EDGES)
        writer.add(FEATURES)
        manifest = writer.publish()
    read_bytes += 2 * graph.topology_bytes
    return StageReport("partition", time.perf_counter() - began, read_bytes, manifest.total_bytes,
                       {"partitions": num_partitions})  # fmt: skip


def partition_rows(num_nodes: int, num_partitions: int, row_bytes: int) -> int:
    """Rows from one partition to the next, which starts on a page, in the file and in memory: reads go into place."""
    return align(-(-num_nodes // num_partitions), ALIGNMENT // math.gcd(row_bytes, ALIGNMENT))


def _deal_nodes(
    graph: Graph, num_partitions: int, train_first: bool, seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[Any]]:
    """(nodes [N] partition after partition, starts [p + 1], place [N] where each node stands in `nodes`)."""
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
    memory_bytes: int,
    advance: Advance,
) -> npt.NDArray[np.int64]:
    """Write all buckets; where they start, [p, p + 1]. One pass over the edges counts, one writes."""
    p = len(starts) - 1
    counts = np.zeros(p * p, np.int64)
    for bucket, _ in _bucketed(graph, starts, place, memory_bytes):
        counts += np.bincount(bucket, minlength=p * p)
        advance(len(bucket))
    ends = np.cumsum(counts)
    cursors = ends - counts
    buckets = np.concatenate([cursors.reshape(p, p), ends.reshape(p, p)[:, -1:]], axis=1)
    with path.open("wb", buffering=0) as file:
        for bucket, edges in _bucketed(graph, starts, place, memory_bytes):
            by_bucket = np.argsort(bucket, kind="stable")  # a radix sort: destinations stay in order
            in_order = edges[by_bucket]
            found = np.bincount(bucket, minlength=p * p)
            last = np.cumsum(found)
            for number in np.flatnonzero(found):
                data = in_order[last[number] - found[number] : last[number]]
                _write_fully(file.fileno(), data, int(cursors[number]) * EDGE_BYTES)
                cursors[number] += found[number]
            advance(len(bucket))
    assert (cursors == ends).all()
    return buckets


def _bucketed(
    graph: Graph, starts: npt.NDArray[np.int64], place: npt.NDArray[Any], memory_bytes: int
) -> Iterator[tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]]:
    """(bucket [n], edges [n, 2]) of consecutive destinations, as many as the budget holds; buckets are j * p + i."""
    p = len(starts) - 1
    window_edges = max(1, memory_bytes // _BYTES_PER_EDGE)
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


def _write_fully(descriptor: int, data: npt.NDArray[Any], offset: int) -> None:
    view = memoryview(np.ascontiguousarray(data).data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


@dataclass(frozen=True)
class Partitions:
    """An opened directory of partitions."""

    manifest: Manifest
    nodes: npt.NDArray[Any]  # [N] memory map
    starts: npt.NDArray[np.int64]  # [p + 1]
    buckets: npt.NDArray[np.int64]  # [p, p + 1]
    train: npt.NDArray[np.int64]  # [n, 2]
    stride: int  # rows from one partition to the next
    row_bytes: int

    @staticmethod
    def open(path: PathLike, graph: Graph) -> Partitions:
        """Open the partitions of `graph`.

        Raises:
            ArtifactError: see `artifacts.open_artifact`; or those of another graph, or damaged.
        """
        manifest = artifacts.open_artifact(path, PARTITIONS)
        again = f"partition {graph.manifest.path} again (prepare_partitions)"
        if manifest.source != {"format": artifacts.GRAPH, "digest": graph.manifest.digest}:
            raise ArtifactError(f"{manifest.path} has the partitions of another graph; {again}")
        for name in (STARTS, BUCKETS, TRAIN):  # wrong ones would give wrong rows
            artifacts.verify_file(manifest, name)
        found = Partitions(
            manifest, manifest.array(NODES), manifest.array(STARTS, mmap=False), manifest.array(BUCKETS, mmap=False),
            manifest.array(TRAIN, mmap=False), int(manifest.config["stride"]), int(manifest.config["row_bytes"]),
        )  # fmt: skip
        features_bytes = found.num_partitions * found.stride * found.row_bytes
        if (
            manifest.files[FEATURES].bytes != features_bytes
            or manifest.files[EDGES].bytes != int(found.buckets[-1, -1]) * EDGE_BYTES
            or found.starts[-1] != len(found.nodes)
        ):
            raise ArtifactError(f"{manifest.path}: its files do not fit each other; {again}")
        return found

    @property
    def num_partitions(self) -> int:
        """p."""
        return len(self.starts) - 1

    @property
    def partition_bytes(self) -> int:
        """Of one partition's features, padding included."""
        return self.stride * self.row_bytes
