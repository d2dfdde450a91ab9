"""Edges in any order to in-neighbour lists (CSC) on disk, within a memory budget.

An external bucket sort by destination. The first pass over the edges checks them and counts how many end in each
bin of consecutive nodes; bins are cut into buckets that fit the budget. The second pass appends every edge to its
bucket, at a place in one scratch file that is known by then (or in memory, if all edges fit there). Then each
bucket is sorted by (destination, source) and appended to the output, which depends on nothing but the edges.
No array here has an element per node or per edge of the whole graph, except in memory when everything fits.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import count_edges, scatter_edges, sort_bucket
from diskgnn.errors import ConfigError, InputError
from diskgnn.progress import SILENT, Reporter
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.system.memory import available_cores
from diskgnn.units import format_size

# src and dst [number of edges in this chunk], both int32 or both int64.
EdgeChunk = tuple[npt.NDArray[Any], npt.NDArray[Any]]
# May be called more than once and must yield the same edges every time.
EdgeSource = Callable[[], Iterator[EdgeChunk]]

_MAX_BINS = 1 << 18
_MAX_BUCKETS = 256  # unless the budget asks for more: enough to keep all threads busy with cache-sized buckets
_MIN_SHARE_BYTES = 1 << 20
_MAX_BUFFER_BYTES = 1 << 20  # of one bucket: a larger write is no faster
_SCRATCH = "edges.scratch"
_CHANGED = "the edges changed between two readings; convert again when they are at rest"


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """dtype of node ids in `indices`: int32 while they fit."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)


def write_csc(
    writer: ArtifactWriter,
    edges: EdgeSource,
    num_nodes: int,
    *,
    memory_bytes: int,
    reverse: bool = False,
    self_loops: bool = False,
    drop_duplicates: bool = False,
    num_input_edges: int = 0,
    threads: int | None = None,
    reporter: Reporter = SILENT,
) -> int:
    """Write indptr.npy int64 [N+1] and indices.npy int32|int64 [E] of a graph; return E.

    In-neighbours of a node are in ascending order, so the files do not depend on the order of the edges, on
    `memory_bytes` or on `threads`.

    Args:
        writer: of the graph directory.
        edges: yields (src, dst) chunks; read twice.
        num_nodes: N; ids are in [0, N).
        memory_bytes: what this may allocate, beside the chunks that `edges` yields.
        reverse: add (dst, src) for every edge, self-loops included.
        self_loops: add (v, v) for every node that has none.
        drop_duplicates: keep one of equal edges.
        num_input_edges: how many edges `edges` yields, if known; only for the progress bar.
        threads: sorting threads; None means one per core that this process may use.
        reporter: told about three stages, in edges.

    Raises:
        InputError: an id outside [0, N); names the first such edge.
        ConfigError: `memory_bytes` cannot hold the in-edges of the node (or few nodes) that has the most.
        DiskFullError: the disk cannot hold the scratch file and the output.
    """
    threads = threads or available_cores()
    # Bins of 2^shift nodes, few enough to count all of them at once.
    shift = max(0, (max(num_nodes, 1) - 1).bit_length() - (_MAX_BINS.bit_length() - 1))
    bin_edges = _count(edges, num_nodes, shift, reverse, num_input_edges, reporter)
    plan = plan_buckets(bin_edges, shift, num_nodes, memory_bytes, threads, self_loops)
    edge_bytes = 2 * plan.dtype.itemsize
    scratch_bytes = 0 if plan.in_memory else plan.num_edges * edge_bytes
    output_bytes = (plan.num_edges + self_loops * num_nodes) * plan.dtype.itemsize + (num_nodes + 1) * 8
    artifacts.require_free_bytes(writer.staging, scratch_bytes + output_bytes, "sorting the edges")

    read_bucket = _scatter(writer, edges, plan, reverse, reporter)
    sort = partial(_sort, plan=plan, read_bucket=read_bucket, self_loops=self_loops, drop_duplicates=drop_duplicates)
    exact = not (self_loops or drop_duplicates)
    with (
        writer.array_file(artifacts.INDPTR, np.int64, num_nodes + 1) as indptr,
        writer.array_file(artifacts.INDICES, plan.dtype, plan.num_edges if exact else None) as indices,
        reporter.stage("sort edges", plan.num_edges, "edges") as advance,
    ):
        indptr.write(np.zeros(1, np.int64))
        for bucket, (degrees, columns) in enumerate(_in_order(sort, plan, threads)):
            indptr.write(indices.rows_written + np.cumsum(degrees, dtype=np.int64))
            indices.write(columns)
            advance(int(plan.edge_starts[bucket + 1] - plan.edge_starts[bucket]))
            del degrees, columns  # before the next bucket is sorted
    writer.path(_SCRATCH).unlink(missing_ok=True)
    return indices.rows_written


@dataclass(frozen=True)
class BucketPlan:
    """How nodes are cut into K buckets of consecutive ids, and how much is held at once."""

    dtype: np.dtype[Any]  # of node ids in edges and indices
    shift: int  # a bin is 2^shift nodes
    bucket_of_bin: npt.NDArray[np.int32]  # [bins]
    node_starts: npt.NDArray[np.int64]  # [K+1]
    edge_starts: npt.NDArray[np.int64]  # [K+1], in the scratch file or in memory
    in_memory: bool  # all edges are held in memory; there is no scratch file
    buffer_edges: int  # per bucket while scattering, unless in_memory
    buckets_at_once: int  # sorted, or waiting to be written

    @property
    def num_buckets(self) -> int:
        """K."""
        return len(self.node_starts) - 1

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.node_starts[-1])

    @property
    def num_edges(self) -> int:
        """Edges in all buckets."""
        return int(self.edge_starts[-1])


def plan_buckets(
    bin_edges: npt.NDArray[np.int64], shift: int, num_nodes: int, memory_bytes: int, threads: int, self_loops: bool
) -> BucketPlan:
    """Cut the nodes into buckets of which `threads` + 1 can be sorted at once within `memory_bytes`.

    Raises:
        ConfigError: one bin alone does not fit.
    """
    dtype = index_dtype(num_nodes)
    edge_bytes = 2 * dtype.itemsize
    bin_nodes = np.minimum(num_nodes - (np.arange(len(bin_edges), dtype=np.int64) << shift), 1 << shift)
    # Sorting a bucket holds its edges, its indices, and per node a degree and a sum of degrees.
    bin_bytes = bin_edges * (edge_bytes + dtype.itemsize) + bin_nodes * (16 + self_loops * dtype.itemsize)
    all_edges_bytes = int(bin_edges.sum()) * edge_bytes
    in_memory = all_edges_bytes <= memory_bytes // 2
    sort_bytes = memory_bytes - all_edges_bytes if in_memory else memory_bytes
    largest_bytes = int(bin_bytes.max(initial=1))
    if largest_bytes > sort_bytes:
        largest = int(bin_bytes.argmax())
        first, last = largest << shift, min((largest + 1) << shift, num_nodes) - 1
        raise ConfigError(
            f"nodes {first} to {last} have {bin_edges[largest]} in-edges, and sorting them needs {largest_bytes} "
            f"bytes of memory; found {memory_bytes}. Pass --memory "
            f"{format_size(2 * largest_bytes).replace(' ', '')} or more"
        )
    sums = np.concatenate([[0], np.cumsum(bin_bytes)])
    share_bytes = min(sort_bytes // (threads + 1), max(int(sums[-1]) // _MAX_BUCKETS, _MIN_SHARE_BYTES))
    starts = [0]
    while starts[-1] < len(bin_edges):
        fitting = int(np.searchsorted(sums, sums[starts[-1]] + share_bytes, side="right")) - 1
        starts.append(min(max(fitting, starts[-1] + 1), len(bin_edges)))
    bounds = np.array(starts, np.int64)
    bucket_bytes = int(np.diff(sums[bounds]).max(initial=1))
    buffer_bytes = min(_MAX_BUFFER_BYTES, memory_bytes // max(len(starts) - 1, 1))
    return BucketPlan(
        dtype=dtype,
        shift=shift,
        bucket_of_bin=np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(bounds)),
        node_starts=np.minimum(bounds << shift, num_nodes),
        edge_starts=np.concatenate([[0], np.cumsum(bin_edges)])[bounds],
        in_memory=in_memory,
        buffer_edges=max(1, buffer_bytes // edge_bytes),
        buckets_at_once=max(1, min(threads + 1, sort_bytes // bucket_bytes)),
    )


def _count(
    edges: EdgeSource, num_nodes: int, shift: int, reverse: bool, num_input_edges: int, reporter: Reporter
) -> npt.NDArray[np.int64]:
    """Edges per bin of destinations [number of bins]; checks every id."""
    bin_edges = np.zeros(((num_nodes - 1) >> shift) + 1 if num_nodes else 0, np.int64)
    position = 0
    with reporter.stage("count edges", num_input_edges, "edges") as advance:
        for src, dst in edges():
            src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
            for tail, head in ((src, dst), (dst, src)) if reverse else ((src, dst),):
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


ReadBucket = Callable[[int], npt.NDArray[Any]]  # bucket -> edges [number, 2]: src, dst


def _scatter(
    writer: ArtifactWriter, edges: EdgeSource, plan: BucketPlan, reverse: bool, reporter: Reporter
) -> ReadBucket:
    """Bring every edge to its bucket; returns how to get a bucket's edges."""
    sizes = np.diff(plan.edge_starts)
    capacities = sizes if plan.in_memory else np.minimum(sizes, plan.buffer_edges)
    buffer_starts = np.concatenate([[0], np.cumsum(capacities)])
    buffer = np.empty((int(buffer_starts[-1]), 2), plan.dtype)
    cursors, ends = buffer_starts[:-1].copy(), buffer_starts[1:].copy()
    # Where the next flush of each bucket goes in the scratch file, in edges.
    flushed = plan.edge_starts[:-1].copy()
    scratch = None if plan.in_memory else os.open(writer.path(_SCRATCH), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def flush(bucket: int) -> None:
        content = buffer[buffer_starts[bucket] : cursors[bucket]]
        if scratch is None or flushed[bucket] + len(content) > plan.edge_starts[bucket + 1] or not len(content):
            raise IndexError("more edges than were counted")
        _write_at(scratch, content, int(flushed[bucket]) * content.strides[0])
        flushed[bucket] += len(content)
        cursors[bucket] = buffer_starts[bucket]

    try:
        with reporter.stage("scatter edges", plan.num_edges, "edges") as advance:
            for src, dst in edges():
                src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
                for tail, head in ((src, dst), (dst, src)) if reverse else ((src, dst),):
                    _scatter_chunk(tail, head, plan, buffer, cursors, ends, flush)
                advance(len(src) * (2 if reverse else 1))
        if scratch is None:
            complete = bool((cursors == ends).all())
        else:
            for bucket in np.flatnonzero(cursors > buffer_starts[:-1]).tolist():
                flush(bucket)
            complete = bool((flushed == plan.edge_starts[1:]).all())
    except IndexError as error:
        raise InputError(_CHANGED) from error
    finally:
        if scratch is not None:
            os.close(scratch)
    if not complete:
        raise InputError(_CHANGED)
    if plan.in_memory:
        return lambda bucket: buffer[plan.edge_starts[bucket] : plan.edge_starts[bucket + 1]]
    return partial(_read_bucket, writer.path(_SCRATCH), plan)


def _scatter_chunk(
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    plan: BucketPlan,
    buffer: npt.NDArray[Any],
    cursors: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    flush: Callable[[int], None],
) -> None:
    first = 0
    while True:
        first = scatter_edges(src, dst, first, plan.num_nodes, plan.shift, plan.bucket_of_bin, buffer, cursors, ends)
        if first == len(src):
            return
        flush(int(plan.bucket_of_bin[dst[first] >> plan.shift]))


def _write_at(descriptor: int, content: npt.NDArray[Any], offset_bytes: int) -> None:
    view = content.reshape(-1).view(np.uint8).data
    while view:
        written = os.pwrite(descriptor, view, offset_bytes)
        view, offset_bytes = view[written:], offset_bytes + written
    os.posix_fadvise(descriptor, offset_bytes - content.nbytes, content.nbytes, os.POSIX_FADV_DONTNEED)


def _read_bucket(path: os.PathLike[str], plan: BucketPlan, bucket: int) -> npt.NDArray[Any]:
    start, stop = (int(edge) for edge in plan.edge_starts[bucket : bucket + 2])
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        offset_bytes = start * 2 * plan.dtype.itemsize
        file.seek(offset_bytes)
        edges = np.fromfile(file, plan.dtype, 2 * (stop - start))
        os.posix_fadvise(file.fileno(), offset_bytes, edges.nbytes, os.POSIX_FADV_DONTNEED)
    assert len(edges) == 2 * (stop - start)
    return edges.reshape(-1, 2)


Columns = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]  # degrees [nodes of a bucket], indices


def _sort(
    bucket: int, *, plan: BucketPlan, read_bucket: ReadBucket, self_loops: bool, drop_duplicates: bool
) -> Columns:
    edges = read_bucket(bucket)
    first_node, last_node = (int(node) for node in plan.node_starts[bucket : bucket + 2])
    degrees = np.empty(last_node - first_node, np.int64)
    indices = np.empty(len(edges) + self_loops * len(degrees), plan.dtype)
    written = sort_bucket(edges, first_node, self_loops, drop_duplicates, degrees, indices)
    return degrees, indices[:written]


def _in_order(sort: Callable[[int], Columns], plan: BucketPlan, threads: int) -> Iterator[Columns]:
    """Sorted buckets in order, `buckets_at_once` of them sorted or waiting at any time."""
    waiting: deque[Future[Columns]] = deque()
    with ThreadPoolExecutor(min(threads, plan.buckets_at_once)) as pool:
        try:
            for bucket in range(plan.num_buckets):
                if len(waiting) == plan.buckets_at_once:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(sort, bucket))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
