"""Edges in any order to in-neighbour lists (CSC) on disk, within a memory budget.

An external bucket sort by destination. The first pass over the edges checks them and counts how many end in each
bin of consecutive nodes; bins are cut into buckets that fit the budget. The second pass brings every edge to its
bucket. Then each bucket is sorted by (destination, hash of the source) and appended to the output, which depends on
nothing but the edges. What edges carry follows them (`edge_records`). No array here has an element per node or per
edge of the whole graph, except in memory when everything fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import count_edges, sort_bucket, sort_bucket_with_order
from diskgnn.errors import InputError
from diskgnn.graph.bucket_layout import index_dtype, lay_out_buckets
from diskgnn.graph.edge_buckets import (
    DamagedScratchError,
    EdgeBuckets,
    EdgeChunk,
    EdgesFrom,
    EdgeSource,
    edges_from,
)
from diskgnn.graph.edge_progress import EdgeProgress, State
from diskgnn.graph.edge_records import EdgeColumn, EdgeRecords, RecordFiles, record_dtype, record_files, require_weights
from diskgnn.ordered import in_order
from diskgnn.progress import Reporter
from diskgnn.schema import EdgeType
from diskgnn.storage import artifacts, faults
from diskgnn.storage.array_file import ArrayFile
from diskgnn.storage.artifacts import edge_file
from diskgnn.storage.disk_space import allocated_bytes, file_bytes, require_free_bytes
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

_MAX_BINS = 1 << 16
_TABLES = 8  # of 8 bytes for each bin, while buckets are laid out
_COUNTED = ("bin_edges", "counted", "all_counted")  # of a record: what does not depend on memory
_SCRATCH, _RECORDS = "edges.scratch", "records.scratch"


@dataclass(frozen=True)
class EdgeOptions:
    """Which edges a graph has beside, or instead of, those that it was given."""

    reverse: bool = False  # (dst, src) is added for every edge, self-loops included
    self_loops: bool = False  # (v, v) is added for every node that has none
    drop_duplicates: bool = False  # one of equal edges is kept


@dataclass(frozen=True)
class EdgeList:
    """The edges of one type on their way to a graph directory, from S source nodes to N destination nodes."""

    type: EdgeType
    edges: EdgeSource  # yields (src, dst) chunks; read twice
    num_sources: int  # S; sources are in [0, S)
    num_nodes: int  # N; destinations are in [0, N)
    options: EdgeOptions = field(default_factory=EdgeOptions)  # which edges are added and dropped
    columns: tuple[EdgeColumn, ...] = ()  # what edges carry; then none may be added or dropped, but by `reverse`
    num_input_edges: int = 0  # how many edges `edges` yields, if known; only for the progress bar
    name: str = ""  # for messages
    seek: EdgesFrom | None = None  # as `edges`, from one on, without making those before it

    def edges_from(self, first: int) -> Iterator[EdgeChunk]:
        """`edges`, without the first `first`."""
        return edges_from(self.edges, self.seek, first)


def edge_files(given: EdgeList) -> list[str]:
    """Names of the files that `write_csc` writes."""
    topology = [edge_file(kind, given.type) for kind in (artifacts.INDPTR, artifacts.INDICES)]
    return topology + record_files(given.type, given.columns)


def _bin_shift(num_nodes: int) -> int:
    """Bins of 2^shift nodes are few enough to count all of them at once."""
    return max(0, (max(num_nodes, 1) - 1).bit_length() - (_MAX_BINS.bit_length() - 1))


def _num_bins(num_nodes: int, shift: int) -> int:
    return ((num_nodes - 1) >> shift) + 1 if num_nodes else 0


def least_memory_bytes(num_nodes: int) -> int:
    """Of `write_csc`, for tables of bins, whatever the edges are. Those into one bin may need more."""
    return _TABLES * 8 * _num_bins(num_nodes, _bin_shift(num_nodes))


def write_csc(writer: ArtifactWriter, given: EdgeList, resources: Resources) -> int:
    """Write `indptr` int64 [N+1], `indices` int32|int64 [E] and what edges carry, of one edge type; return E.

    In-neighbours of a node are in the order of their hashes (docs/FORMAT.md), as coordinated draws need them; equal
    edges that carry something are in the order given, each before its reverse. So the files do not depend on
    `resources`, and what carries nothing does not depend on the order of the edges.

    Args:
        writer: of the graph directory.
        given: the edges.
        resources: what this may allocate, beside the chunks that `given` yields; threads to sort with; a reporter of
            three stages, in edges.

    Raises:
        InputError: an id out of range; names the first such edge. Or in-edges of a node whose weights are all 0.
        ConfigError: the memory cannot hold the in-edges of the node (or few nodes) that has the most.
        DiskFullError: the disk cannot hold the scratch file and the output.
    """
    num_nodes, options = given.num_nodes, given.options
    assert not given.columns or not (options.self_loops or options.drop_duplicates)
    shift = _bin_shift(num_nodes)
    resources = resources.within("to sort edges", least_bytes=least_memory_bytes(num_nodes))
    progress = EdgeProgress(writer, given.type, given.num_input_edges, record_dtype(given.columns).itemsize)
    try:
        return _go_on(writer, given, shift, resources, progress)
    except DamagedScratchError:  # of a killed run, or of this one: once more
        progress.forget()
        return _go_on(writer, given, shift, resources, progress)


def _go_on(writer: ArtifactWriter, given: EdgeList, shift: int, resources: Resources, progress: EdgeProgress) -> int:
    reporter, num_nodes, options = resources.reporter, given.num_nodes, given.options
    record_bytes = record_dtype(given.columns).itemsize
    layout = lay_out_buckets(
        _count(given, shift, reporter, progress), shift, num_nodes, resources, options.self_loops,
        num_sources=given.num_sources, record_bytes=record_bytes, node_starts=progress.state.get("node_starts"),
    )  # fmt: skip
    if not np.array_equal(layout.node_starts, progress.state.get("node_starts", layout.node_starts)):
        progress.forget(but=_COUNTED)  # less memory than there was
    if "flushed" in progress.state:
        layout = replace(layout, in_memory=False)
    progress.state["node_starts"] = layout.node_starts
    scratch_bytes = layout.num_edges * (record_bytes + (0 if layout.in_memory else 2 * layout.dtype.itemsize))
    index_bytes = index_dtype(given.num_sources).itemsize
    output_bytes = (layout.num_edges + options.self_loops * num_nodes) * index_bytes + (num_nodes + 1) * 8
    output_bytes += layout.num_edges * record_bytes
    names = edge_files(given)
    paths = [writer.path(name) for name in (_SCRATCH, _RECORDS, *names)]
    needed_bytes = max(0, scratch_bytes + output_bytes - sum(map(allocated_bytes, paths)))
    if writer.outbox is not None:
        writer.outbox.drain()  # edges of other types go
    require_free_bytes(writer.staging, needed_bytes, "sorting the edges", disk=writer.disk)
    claimed_bytes = file_bytes(max(0, scratch_bytes - sum(map(allocated_bytes, paths[:2]))))
    writer.disk.claim(claimed_bytes)

    buckets = EdgeBuckets(layout, writer.path(_SCRATCH))
    records = None
    if given.columns:
        records = EdgeRecords(layout, given.columns, writer.path(_RECORDS), resources.memory_bytes, progress.state)
    source = given.edges_from if records is None else records.following(given.edges_from, options.reverse)
    buckets.fill(source, options.reverse, reporter, progress, records)
    num_edges = _write_sorted(writer, given, buckets, records, resources, progress)
    writer.keep(names)  # before what they are made from goes
    scratch_bytes = sum(map(allocated_bytes, paths[:2]))
    for path in paths[:2]:
        path.unlink(missing_ok=True)
    writer.disk.release(scratch_bytes)
    return num_edges


def _write_sorted(
    writer: ArtifactWriter,
    given: EdgeList,
    buckets: EdgeBuckets,
    records: EdgeRecords | None,
    resources: Resources,
    progress: EdgeProgress,
) -> int:
    layout, options = buckets.layout, given.options
    first = progress.number("sorted")

    def begun(name: str) -> State | None:
        return _of_file(progress.state, name) if first else None

    indptr_name, indices_name = (edge_file(kind, given.type) for kind in (artifacts.INDPTR, artifacts.INDICES))
    exact = not (options.self_loops or options.drop_duplicates)
    num_indices, dtype = layout.num_edges if exact else None, index_dtype(given.num_sources)
    with (
        ThreadPoolExecutor(min(resources.threads, layout.buckets_at_once)) as pool,
        writer.array_file(indptr_name, np.int64, given.num_nodes + 1, begun=begun(indptr_name)) as indptr,
        writer.array_file(indices_name, dtype, num_indices, begun=begun(indices_name)) as indices,
        RecordFiles(writer, given.type, given.columns, layout.num_edges, begun) as carried,
        resources.reporter.stage("sort edges", layout.num_edges, "edges") as advance,
    ):
        files = [indptr, indices, *carried.files]
        if first and not all(file.found for file in files):
            raise DamagedScratchError(f"{writer.staging} does not hold what was written")
        if not first:
            indptr.write(np.zeros(1, np.int64))
        advance(int(layout.edge_starts[first]))
        sorts = (
            partial(_sort, each, buckets, options, records is not None) for each in range(first, layout.num_buckets)
        )
        for bucket, column in enumerate(in_order(pool, sorts, ahead=layout.buckets_at_once - 1), first):
            indptr.write(indices.rows_written + np.cumsum(column.degrees, dtype=np.int64))
            indices.write(column.indices.astype(dtype, copy=False))
            if records is not None:
                parts = records.of_bucket(bucket, column.order)
                first_node = int(layout.node_starts[bucket])
                for part in require_weights(parts, column.degrees, first_node, given.name):
                    carried.write(part)
            num_edges = int(layout.edge_starts[bucket + 1] - layout.edge_starts[bucket])
            advance(num_edges)
            progress.done(num_edges, partial(_sorted_so_far, bucket + 1, files), [file.name for file in files])
            del column  # before the next bucket is sorted
    return indices.rows_written


def _sorted_so_far(num_buckets: int, files: Sequence[ArrayFile]) -> dict[str, npt.NDArray[Any]]:
    """What a run needs to know that goes on after so many buckets."""
    found = {f"{file.name}/{key}": array for file in files for key, array in file.done().items()}
    return {"sorted": np.array(num_buckets), **found}


def _of_file(state: State, name: str) -> dict[str, npt.NDArray[Any]]:
    return {key.removeprefix(f"{name}/"): array for key, array in state.items() if key.startswith(f"{name}/")}


def _count(given: EdgeList, shift: int, reporter: Reporter, progress: EdgeProgress) -> npt.NDArray[np.int64]:
    """Edges per bin of destinations [number of bins]; checks every id."""
    num_sources, num_nodes = given.num_sources, given.num_nodes
    bin_edges = progress.state.get("bin_edges", np.zeros(_num_bins(num_nodes, shift), np.int64))
    position = progress.number("counted")
    if "all_counted" in progress.state:
        return bin_edges
    with reporter.stage("count edges", given.num_input_edges, "edges") as advance:
        advance(position)
        for src, dst in given.edges_from(position):
            src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
            for tail, head in ((src, dst), (dst, src)) if given.options.reverse else ((src, dst),):
                valid = count_edges(tail, head, num_sources, num_nodes, shift, bin_edges)
                if valid < len(src):
                    raise InputError(_out_of_range(given, position + valid, src[valid], dst[valid]))
            position += len(src)
            advance(len(src))
            progress.counted(len(src), partial(_counted, bin_edges, position))
    progress.record(_counted(bin_edges, position) | {"all_counted": np.array(1)})
    return bin_edges


def _counted(bin_edges: npt.NDArray[np.int64], position: int) -> dict[str, npt.NDArray[Any]]:
    return {"bin_edges": bin_edges.copy(), "counted": np.array(position)}


def _out_of_range(given: EdgeList, edge: int, src: int, dst: int) -> str:
    outside = not 0 <= src < given.num_sources
    found = f"source {src}" if outside else f"destination {dst}"
    limit = given.num_sources if outside else given.num_nodes
    return (
        f"{given.name and given.name + ': '}expected node ids from 0 to {limit - 1}, found {found} in edge {edge} "
        f"(counted from 0); there are {limit} nodes, counted by their rows or as given: number them from 0 "
        f"without gaps, or give their ids"
    )


@dataclass(frozen=True)
class _Sorted:
    """A bucket as it goes to the files."""

    degrees: npt.NDArray[np.int64]  # [nodes of the bucket]
    indices: npt.NDArray[Any]  # [edges]
    order: npt.NDArray[np.int64]  # [edges] the number of each in the bucket; [0] unless they carry something


def _sort(bucket: int, buckets: EdgeBuckets, options: EdgeOptions, with_order: bool) -> _Sorted:
    faults.point("csc.sort")
    edges = buckets.read(bucket)
    first_node, last_node = (int(node) for node in buckets.layout.node_starts[bucket : bucket + 2])
    degrees = np.empty(last_node - first_node, np.int64)
    indices = np.empty(len(edges) + options.self_loops * len(degrees), buckets.layout.dtype)
    order = np.empty(len(edges) if with_order else 0, np.int64)
    if with_order:
        sort_bucket_with_order(edges, first_node, degrees, indices, order)
        return _Sorted(degrees, indices, order)
    written = sort_bucket(edges, first_node, options.self_loops, options.drop_duplicates, degrees, indices)
    return _Sorted(degrees, indices[:written], order)
