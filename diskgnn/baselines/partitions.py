"""A graph in p partitions on disk, and its edges in p^2 buckets: `partitioning` writes it, `partition_buffer` reads it.

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
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.errors import ArtifactError
from diskgnn.formats import artifacts
from diskgnn.formats.extents import align
from diskgnn.formats.manifest import Manifest, open_pinned
from diskgnn.formats.records import Record
from diskgnn.formats.verification import verify_file
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike

NODES, STARTS, FEATURES, EDGES, BUCKETS, TRAIN = (
    "nodes.npy", "starts.npy", "features.bin", "edges.bin", "buckets.npy", "train.npy",
)  # fmt: skip
EDGE_BYTES = 8


def partition_rows(num_nodes: int, num_partitions: int, row_bytes: int) -> int:
    """Returns the rows from one partition to the next, which starts on a page, in the file and in memory: reads go
    into place."""
    return align(-(-num_nodes // num_partitions), DIRECT_ALIGNMENT // math.gcd(row_bytes, DIRECT_ALIGNMENT))


@dataclass(frozen=True)
class PartitionsConfig(Record):
    """Says how a graph was partitioned."""

    num_partitions: int  # p
    train_first: bool  # whether training nodes fill the first partitions
    seed: int
    num_nodes: int  # N
    num_edges: int  # E
    row_bytes: int
    stride: int  # rows from one partition to the next


@dataclass(frozen=True)
class Partitions:
    """An opened directory of partitions."""

    manifest: Manifest
    nodes: npt.NDArray[Any]  # [N] memory map
    starts: npt.NDArray[np.int64]  # [p + 1]
    buckets: npt.NDArray[np.int64]  # [p, p + 1]
    train: npt.NDArray[np.int64]  # [n, 2]

    @staticmethod
    def open(path: PathLike, graph: Graph) -> Partitions:
        """Open the partitions of `graph`.

        Raises:
            ArtifactError: see `manifest.open_pinned`; or those of another graph, or damaged.
        """
        manifest = open_pinned(path, artifacts.DERIVED)
        again = f"partition {graph.manifest.path} again (write_partitions)"
        if manifest.source != {"format": artifacts.GRAPH, "digest": graph.manifest.digest}:
            raise ArtifactError(f"{manifest.path} has the partitions of another graph; {again}")
        for name in (STARTS, BUCKETS, TRAIN):  # wrong ones would give wrong rows
            verify_file(manifest, name)
        found = Partitions(
            manifest, manifest.array(NODES), manifest.array(STARTS, mmap=False), manifest.array(BUCKETS, mmap=False),
            manifest.array(TRAIN, mmap=False),
        )  # fmt: skip
        p, num_edges = found.config.num_partitions, found.config.num_edges
        if (
            (found.starts.shape, found.buckets.shape, found.starts[-1]) != ((p + 1,), (p, p + 1), len(found.nodes))
            or manifest.files[FEATURES].bytes != p * found.partition_bytes
            or manifest.files[EDGES].bytes != int(found.buckets[-1, -1]) * EDGE_BYTES
            or num_edges != int(found.buckets[-1, -1])
        ):
            raise ArtifactError(f"{manifest.path}: its files do not fit each other; {again}")
        return found

    @cached_property
    def config(self) -> PartitionsConfig:
        """Returns how they were made."""
        return self.manifest.parsed(PartitionsConfig.parse)

    @property
    def partition_bytes(self) -> int:
        """Returns the bytes of one partition's features, padding included."""
        return self.config.stride * self.config.row_bytes
