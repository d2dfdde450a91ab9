"""Edges in any order to in-neighbour lists (CSC) on disk, within a memory budget.

An external bucket sort by destination. The first pass over the edges checks them and counts how many end in each
bin of consecutive nodes; bins are cut into buckets that fit the budget. The second pass brings every edge to its
bucket. Then each bucket is sorted by (destination, hash of the source) and appended to the output, which depends on
nothing but the edges. No array here has an element per node or per edge of the whole graph, except in memory when
everything fits.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import count_edges, sort_bucket
from diskgnn.errors import InputError
from diskgnn.graph.edge_buckets import EdgeBuckets, EdgeSource, directions, lay_out_buckets
from diskgnn.ordered import in_order
from diskgnn.progress import Reporter
from diskgnn.schema import EdgeType
from diskgnn.storage import artifacts, faults
from diskgnn.storage.artifacts import edge_file
from diskgnn.storage.disk_space import require_free_bytes
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

_MAX_BINS = 1 << 18
_SCRATCH = "edges.scratch"


@dataclass(frozen=True)
class EdgeOptions:
    """Which edges a graph has beside, or instead of, those that it was given."""

    reverse: bool = False  # (dst, src) is added for every edge, self-loops included
    self_loops: bool = False  # (v, v) is added for every node that has none
    drop_duplicates: bool = False  # one of equal edges is kept


def write_csc(
    writer: ArtifactWriter,
    edge_type: EdgeType,
    edges: EdgeSource,
    num_nodes: int,
    options: EdgeOptions,
    resources: Resources,
    *,
    num_input_edges: int = 0,
) -> int:
    """Write `indptr` int64 [N+1] and `indices` int32|int64 [E] of one edge type of a graph; return E.

    In-neighbours of a node are in the order of their hashes (docs/FORMAT.md), as coordinated draws need them. So the
    files depend neither on the order of the edges nor on `resources`.

    Args:
        writer: of the graph directory.
        edge_type: names the files.
        edges: yields (src, dst) chunks; read twice.
        num_nodes: N; ids are in [0, N).
        options: which edges are added and dropped.
        resources: what this may allocate, beside the chunks that `edges` yields; threads to sort with; a reporter of
            three stages, in edges.
        num_input_edges: how many edges `edges` yields, if known; only for the progress bar.

    Raises:
        InputError: an id outside [0, N); names the first such edge.
        ConfigError: the memory cannot hold the in-edges of the node (or few nodes) that has the most.
        DiskFullError: the disk cannot hold the scratch file and the output.
    """
    reporter = resources.reporter
    # Bins of 2^shift nodes, few enough to count all of them at once.
    shift = max(0, (max(num_nodes, 1) - 1).bit_length() - (_MAX_BINS.bit_length() - 1))
    bin_edges = _count(edges, num_nodes, shift, options.reverse, num_input_edges, reporter)
    layout = lay_out_buckets(bin_edges, shift, num_nodes, resources.memory_bytes, resources.threads, options.self_loops)
    edge_bytes = 2 * layout.dtype.itemsize
    scratch_bytes = 0 if layout.in_memory else layout.num_edges * edge_bytes
    output_bytes = (layout.num_edges + options.self_loops * num_nodes) * layout.dtype.itemsize + (num_nodes + 1) * 8
    require_free_bytes(writer.staging, scratch_bytes + output_bytes, "sorting the edges")

    buckets = EdgeBuckets(layout, writer.path(_SCRATCH))
    buckets.fill(edges, options.reverse, reporter)
    sorts = (partial(_sort, bucket, buckets, options) for bucket in range(layout.num_buckets))
    exact = not (options.self_loops or options.drop_duplicates)
    with (
        ThreadPoolExecutor(min(resources.threads, layout.buckets_at_once)) as pool,
        writer.array_file(edge_file(artifacts.INDPTR, edge_type), np.int64, num_nodes + 1) as indptr,
        writer.array_file(
            edge_file(artifacts.INDICES, edge_type), layout.dtype, layout.num_edges if exact else None
        ) as indices,
        reporter.stage("sort edges", layout.num_edges, "edges") as advance,
    ):
        indptr.write(np.zeros(1, np.int64))
        for bucket, (degrees, columns) in enumerate(in_order(pool, sorts, ahead=layout.buckets_at_once - 1)):
            indptr.write(indices.rows_written + np.cumsum(degrees, dtype=np.int64))
            indices.write(columns)
            advance(int(layout.edge_starts[bucket + 1] - layout.edge_starts[bucket]))
            del degrees, columns  # before the next bucket is sorted
    buckets.path.unlink(missing_ok=True)
    return indices.rows_written


def _count(
    edges: EdgeSource, num_nodes: int, shift: int, reverse: bool, num_input_edges: int, reporter: Reporter
) -> npt.NDArray[np.int64]:
    """Edges per bin of destinations [number of bins]; checks every id."""
    bin_edges = np.zeros(((num_nodes - 1) >> shift) + 1 if num_nodes else 0, np.int64)
    position = 0
    with reporter.stage("count edges", num_input_edges, "edges") as advance:
        for src, dst in edges():
            for tail, head in directions(src, dst, reverse):
                valid = count_edges(tail, head, num_nodes, shift, bin_edges)
                if valid < len(src):
                    raise InputError(_out_of_range(position + valid, src[valid], dst[valid], num_nodes))
            position += len(src)
            advance(len(src))
    return bin_edges


def _out_of_range(edge: int, src: int, dst: int, num_nodes: int) -> str:
    found = f"source {src}" if not 0 <= src < num_nodes else f"destination {dst}"
    return (
        f"expected node ids from 0 to {num_nodes - 1}, found {found} in edge {edge} (counted from 0): number the "
        f"nodes from 0 without gaps, or pass a larger number of nodes"
    )


Columns = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]  # degrees [nodes of a bucket], indices


def _sort(bucket: int, buckets: EdgeBuckets, options: EdgeOptions) -> Columns:
    faults.point("csc.sort")
    edges = buckets.read(bucket)
    first_node, last_node = (int(node) for node in buckets.layout.node_starts[bucket : bucket + 2])
    degrees = np.empty(last_node - first_node, np.int64)
    indices = np.empty(len(edges) + options.self_loops * len(degrees), buckets.layout.dtype)
    written = sort_bucket(edges, first_node, options.self_loops, options.drop_duplicates, degrees, indices)
    return degrees, indices[:written]
