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


@dataclass(frozen=True)
class BinnedEdges:
    """Edges that are counted by bins of consecutive destinations, and what they take while they are sorted."""

    counts: npt.NDArray[np.int64]  # [bins]
    shift: int  # a bin is 2^shift nodes
    num_sources: int
    num_nodes: int  # N destinations
    self_loops: bool = False  # one may be added to every node
    record_bytes: int = 0  # that each carries
    by_time: bool = False  # they are sorted by their times

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the dtype of node ids."""
        return id_dtype(max(self.num_sources, self.num_nodes))

    @property
    def edge_bytes(self) -> int:
        """Returns the bytes of an edge, without what it carries."""
        return 2 * self.dtype.itemsize

    def sort_bytes(self) -> npt.NDArray[np.int64]:
        """Returns [bins] what it takes to sort each: its edges, its indices, their order if edges carry records or are
        sorted by times, these times, and per node a degree and a sum of degrees.
        """
        id_bytes, firsts = self.dtype.itemsize, np.arange(len(self.counts), dtype=np.int64) << self.shift
        order_bytes = 8 * bool(self.record_bytes or self.by_time) + 8 * self.by_time
        nodes = np.minimum(self.num_nodes - firsts, 1 << self.shift)
        found: npt.NDArray[np.int64] = self.counts * (self.edge_bytes + id_bytes + order_bytes)
        found += nodes * (16 + self.self_loops * id_bytes)
        return found


def lay_out_buckets(
    given: BinnedEdges, resources: Resources, node_starts: npt.NDArray[np.int64] | None = None
) -> BucketLayout:
    """Cuts the nodes into buckets, so that one for each thread and one more can be sorted within the memory at once.

    If edges carry records, a quarter of the memory is kept for the records of one bucket, and another for copying
    them. `node_starts` are those of an earlier layout, which is kept if it fits.

    Raises:
        ConfigError: one bin alone does not fit.
    """
    records_bytes = resources.divided(1, part=4) if given.record_bytes else 0  # of one bucket
    left, threads, bin_bytes = resources.less(2 * records_bytes), resources.threads, given.sort_bytes()
    edges_bytes = int(given.counts.sum()) * (given.edge_bytes + given.record_bytes)
    largest_bytes = int(bin_bytes.max(initial=1))
    in_memory = edges_bytes <= left.divided(1, part=2) and edges_bytes + largest_bytes <= left.memory_bytes
    sort_bytes = left.memory_bytes - (edges_bytes if in_memory else 0)
    if largest_bytes > sort_bytes:
        largest = int(bin_bytes.argmax())
        first, last = largest << given.shift, min((largest + 1) << given.shift, given.num_nodes) - 1
        what = f"to sort the {given.counts[largest]} in-edges of nodes {first} to {last}"
        resources.require(what, largest_bytes * (2 if given.record_bytes else 1))
    sums = np.concatenate([[0], np.cumsum(bin_bytes)])
    edges = np.concatenate([[0], np.cumsum(given.counts)])
    if node_starts is not None and np.diff(sums[found := -(-node_starts >> given.shift)]).max(initial=0) <= sort_bytes:
        bounds = found
    else:
        share_bytes = min(sort_bytes // (threads + 1), max(int(sums[-1]) // _MAX_BUCKETS, _MIN_SHARE_BYTES))
        most_edges = records_bytes // given.record_bytes if given.record_bytes else int(edges[-1])
        bounds = _cut(sums, share_bytes, edges, most_edges)
    bucket_bytes = int(np.diff(sums[bounds]).max(initial=1))
    num_buckets = len(bounds) - 1
    buffer_bytes = left.divided(max(num_buckets, 1), most_bytes=_MAX_BUFFER_BYTES)
    return BucketLayout(
        dtype=given.dtype,
        num_sources=given.num_sources,
        shift=given.shift,
        bucket_of_bin=np.repeat(np.arange(num_buckets, dtype=np.int32), np.diff(bounds)),
        node_starts=np.minimum(bounds << given.shift, given.num_nodes),
        edge_starts=edges[bounds],
        in_memory=in_memory,
        buffer_edges=max(1, buffer_bytes // given.edge_bytes),
        buckets_at_once=max(1, min(threads + 1, sort_bytes // bucket_bytes)),
    )


def _cut(
    sums: npt.NDArray[np.int64], most_bytes: int, edges: npt.NDArray[np.int64], most_edges: int
) -> npt.NDArray[np.int64]:
    """Returns [buckets + 1] where buckets of bins begin, of at most `most_bytes` and `most_edges`, or one bin.

    `sums` and `edges` [bins + 1] say how many bytes and edges all bins before have.
    """
    starts, num_bins = [0], len(sums) - 1
    while starts[-1] < num_bins:
        limits = ((sums, most_bytes), (edges, most_edges))
        fitting = min(int(np.searchsorted(each, each[starts[-1]] + most, side="right")) - 1 for each, most in limits)
        starts.append(min(max(fitting, starts[-1] + 1), num_bins))
    return np.array(starts, np.int64)
