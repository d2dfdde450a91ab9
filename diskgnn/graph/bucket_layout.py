"""Cuts nodes into buckets of consecutive ids, so that several buckets can be sorted within a memory budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.formats.graph_config import id_dtype
from diskgnn.system.resources import Resources

_MAX_BUCKETS = 256  # unless the budget asks for more: enough to keep all threads busy with cache-sized buckets
_MIN_SHARE_BYTES = 1 << 20
_MAX_BUFFER_BYTES = 1 << 20  # of one bucket: a larger write is no faster


@dataclass(frozen=True)
class BucketLayout:
    """Says how nodes are cut into K buckets of consecutive ids, and how much is held in memory at once."""

    dtype: np.dtype[Any]  # of node ids in edges
    num_sources: int
    shift: int  # a bin is 2^shift nodes
    bucket_of_bin: npt.NDArray[np.int32]  # [bins]
    node_starts: npt.NDArray[np.int64]  # [K+1]
    edge_starts: npt.NDArray[np.int64]  # [K+1], in the scratch file or in memory
    in_memory: bool  # all edges, and what they carry, are held in memory; there is no scratch file
    buffer_edges: int  # per bucket while scattering, unless in_memory
    buckets_at_once: int  # sorted, or waiting to be written

    @property
    def num_buckets(self) -> int:
        """Returns K, the number of buckets."""
        return len(self.node_starts) - 1

    @property
    def num_nodes(self) -> int:
        """Returns N, the number of destination nodes."""
        return int(self.node_starts[-1])

    @property
    def num_edges(self) -> int:
        """Returns the number of edges in all buckets."""
        return int(self.edge_starts[-1])


def lay_out_buckets(
    bin_edges: npt.NDArray[np.int64],
    shift: int,
    num_nodes: int,
    resources: Resources,
    self_loops: bool,
    *,
    num_sources: int | None = None,
    record_bytes: int = 0,
    by_time: bool = False,
    node_starts: npt.NDArray[np.int64] | None = None,
) -> BucketLayout:
    """Cuts the nodes into buckets, so that one for each thread and one more can be sorted within the memory at once.

    Edges lead from `num_sources` nodes (None: `num_nodes`). If each carries a record of `record_bytes`, a quarter of
    the memory is kept for the records of one bucket, and another for copying them. With `by_time`, sorting a bucket
    takes the times of its edges, too. `node_starts` are those of an earlier layout, which is kept if it fits.

    Raises:
        ConfigError: one bin alone does not fit.
    """
    num_sources = num_nodes if num_sources is None else num_sources
    dtype = id_dtype(max(num_sources, num_nodes))
    edge_bytes = 2 * dtype.itemsize
    records_bytes = resources.divided(1, part=4) if record_bytes else 0  # of one bucket
    left, threads = resources.less(2 * records_bytes), resources.threads
    order_bytes = 8 * bool(record_bytes or by_time) + 8 * by_time
    bin_nodes = np.minimum(num_nodes - (np.arange(len(bin_edges), dtype=np.int64) << shift), 1 << shift)
    # Sorting a bucket holds its edges, its indices, their order if edges carry records or are sorted by times, these
    # times, and per node a degree and a sum of degrees.
    bin_bytes = bin_edges * (edge_bytes + dtype.itemsize + order_bytes) + bin_nodes * (16 + self_loops * dtype.itemsize)
    all_edges_bytes, largest_bytes = int(bin_edges.sum()) * (edge_bytes + record_bytes), int(bin_bytes.max(initial=1))
    in_memory = all_edges_bytes <= left.divided(1, part=2) and all_edges_bytes + largest_bytes <= left.memory_bytes
    sort_bytes = left.memory_bytes - (all_edges_bytes if in_memory else 0)
    if largest_bytes > sort_bytes:
        largest = int(bin_bytes.argmax())
        first, last = largest << shift, min((largest + 1) << shift, num_nodes) - 1
        resources.require(
            f"to sort the {bin_edges[largest]} in-edges of nodes {first} to {last}",
            largest_bytes * (2 if record_bytes else 1),
        )
    sums = np.concatenate([[0], np.cumsum(bin_bytes)])
    share_bytes = min(sort_bytes // (threads + 1), max(int(sums[-1]) // _MAX_BUCKETS, _MIN_SHARE_BYTES))
    starts = [0]
    if node_starts is not None and np.diff(sums[found := -(-node_starts >> shift)]).max(initial=0) <= sort_bytes:
        starts = found.tolist()
    edges = np.concatenate([[0], np.cumsum(bin_edges)])
    while starts[-1] < len(bin_edges):
        fitting = int(np.searchsorted(sums, sums[starts[-1]] + share_bytes, side="right")) - 1
        if record_bytes:
            most_edges = edges[starts[-1]] + records_bytes // record_bytes
            fitting = min(fitting, int(np.searchsorted(edges, most_edges, side="right")) - 1)
        starts.append(min(max(fitting, starts[-1] + 1), len(bin_edges)))
    bounds = np.array(starts, np.int64)
    bucket_bytes = int(np.diff(sums[bounds]).max(initial=1))
    buffer_bytes = left.divided(max(len(starts) - 1, 1), most_bytes=_MAX_BUFFER_BYTES)
    return BucketLayout(
        dtype=dtype,
        num_sources=num_sources,
        shift=shift,
        bucket_of_bin=np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(bounds)),
        node_starts=np.minimum(bounds << shift, num_nodes),
        edge_starts=edges[bounds],
        in_memory=in_memory,
        buffer_edges=max(1, buffer_bytes // edge_bytes),
        buckets_at_once=max(1, min(threads + 1, sort_bytes // bucket_bytes)),
    )
