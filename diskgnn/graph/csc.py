"""Writes edges that come in any order as in-neighbour lists (CSC) on disk, within a memory budget.

This is an external bucket sort by destination. The first pass over the edges checks them and counts how many end in
each bin of consecutive nodes; bins are combined into buckets that fit the budget. The second pass brings every edge to
its bucket. Then each bucket is sorted by (destination, hash of the source) and appended to the output, which depends on
nothing but the edges. What edges carry follows them (`edge_records`). No array here has an element per node or per edge
of the whole graph, unless everything fits in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import count_edges, sort_bucket, sort_bucket_with_order
from diskgnn.errors import InputError
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file
from diskgnn.formats.graph_config import id_dtype
from diskgnn.graph.bucket_layout import BinnedEdges, BucketLayout, lay_out_buckets
from diskgnn.graph.edge_buckets import EdgeBuckets, EdgeChunk, EdgesFrom, EdgeSource, edges_from
from diskgnn.graph.edge_records import (
    EdgeColumn,
    EdgeRecords,
    record_dtype,
    record_files,
    require_weights,
)
from diskgnn.ordered import Threads, in_order
from diskgnn.progress.reporter import Reporter
from diskgnn.specs.schema import EdgeType
from diskgnn.system.resources import Need, Resources
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.fold import Output
from diskgnn.work.runner import Work
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

_MAX_BINS = 1 << 16
_TABLES = 8  # of 8 bytes for each bin, while buckets are laid out
EDGE_BYTES = 16  # that each pass handles for an edge, beside what that carries
# The times [n] of the edges [n, 2] of a bucket.
TimesOfEdges = Callable[[int, npt.NDArray[Any]], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class EdgeOptions:
    """Which edges are added to those that were given, and which are dropped."""

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
    # In-neighbours are in the order of edges' times, or without these of the times [S] that this returns.
    by_time: bool = False
    source_times: Callable[[], npt.NDArray[np.int64]] | None = None

    @property
    def has_times(self) -> bool:
        """Returns True if edges carry times."""
        return any(column.kind == artifacts.TIMES for column in self.columns)

    @property
    def source_time_bytes(self) -> int:
        """Returns what times of sources take of memory while edges are sorted by them."""
        return 8 * self.num_sources if self.by_time and not self.has_times else 0

    def edges_from(self, first: int) -> Iterator[EdgeChunk]:
        """Yields what `edges` does, without the first `first` edges."""
        return edges_from(self.edges, self.seek, first)


def _bin_shift(num_nodes: int) -> int:
    """Returns the shift of bins of 2^shift nodes, few enough that all of them are counted at once."""
    return max(0, (max(num_nodes, 1) - 1).bit_length() - (_MAX_BINS.bit_length() - 1))


def _num_bins(num_nodes: int, shift: int) -> int:
    return ((num_nodes - 1) >> shift) + 1 if num_nodes else 0


def least_memory_bytes(num_nodes: int) -> int:
    """Returns the memory that `write_csc` needs for tables of bins. The edges of one bin may need more."""
    return _TABLES * 8 * _num_bins(num_nodes, _bin_shift(num_nodes))


def write_csc(writer: ArtifactWriter, given: EdgeList, resources: Resources) -> int:
    """Writes `indptr` int64 [N+1], `indices` int32|int64 [E] and what edges carry, of one edge type. Returns E.

    In-neighbours of a node are in the order of their hashes (docs/FORMAT.md), as coordinated draws need them; with
    `by_time` in that of times, and of hashes where these are equal. Equal
    edges that carry something are in the order given, each before its reverse. So the files do not depend on
    `resources`, and the files of edges that carry nothing do not depend on the order of the edges.

    Args:
        writer: writer of the graph directory.
        given: the edges.
        resources: what this may allocate, beside the chunks that `given` yields; threads to sort with; a reporter of
            three stages, in edges.

    Raises:
        InputError: an id out of range; names the first such edge. Or in-edges of a node whose weights are all 0.
        ConfigError: the memory cannot hold the in-edges of the node (or few nodes) that has the most.
        DiskFullError: the disk cannot hold the scratch file and the output.
    """
    assert not (given.columns or given.by_time) or not (given.options.self_loops or given.options.drop_duplicates)
    resources = resources.within(Need("to sort edges", given.source_time_bytes, least_memory_bytes(given.num_nodes)))
    return Work(writer, f"edges-{'.'.join(given.type)}").run(lambda work: _write(work, writer, given, resources))


def _write(work: Work, writer: ArtifactWriter, given: EdgeList, resources: Resources) -> int:
    layout = _lay_out(work, given, resources)
    work.note("buckets", {"starts": layout.node_starts})
    files = _files(writer, given, layout)
    edges, records = (
        work.shuffle("scatter", name, layout.num_buckets, in_memory=layout.in_memory) for name in ("edges", "records")
    )
    buckets = _Buckets(given, layout, edges, EdgeRecords(layout, given.columns, records, resources), resources)
    starts = layout.node_starts
    if not work.is_finished("sort", key=starts):
        work.require_space(_most_bytes(given, layout), "sorting the edges", files)
        work.fold("scatter", buckets.scatter, {"edges": 0}, key=starts)
    done = work.fold(
        "sort", partial(buckets.sort, files), {"buckets": 0, "edges": 0},
        files=files, key=starts, consumes=(edges, records),
    )  # fmt: skip
    return int(done["edges"])


def _lay_out(work: Work, given: EdgeList, resources: Resources) -> BucketLayout:
    """Counts the edges, of which nothing but the layout stays in memory."""
    shift, num_nodes = _bin_shift(given.num_nodes), given.num_nodes
    bins = np.zeros(_num_bins(num_nodes, shift), np.int64)
    counted = work.fold("count", partial(_count, given, shift, resources.reporter), {"bins": bins, "edges": 0})["bins"]
    edges = BinnedEdges(
        counted, shift, given.num_sources, num_nodes, given.options.self_loops, _record_bytes(given), given.by_time
    )
    return lay_out_buckets(edges, resources, work.state_of("buckets").get("starts"))


def _most_bytes(given: EdgeList, layout: BucketLayout) -> int:
    """Returns the most that scratch and output take."""
    record_bytes, added_edges = _record_bytes(given), given.options.self_loops * given.num_nodes
    scratch_bytes = 0 if layout.in_memory else layout.num_edges * (record_bytes + 2 * layout.dtype.itemsize)
    index_bytes = (layout.num_edges + added_edges) * id_dtype(given.num_sources).itemsize
    return scratch_bytes + index_bytes + (given.num_nodes + 1) * 8 + layout.num_edges * record_bytes


def _record_bytes(given: EdgeList) -> int:
    return record_dtype(given.columns).itemsize


def _count(given: EdgeList, shift: int, reporter: Reporter, state: State, output: Output) -> Generator[int, None, None]:
    """Counts edges per bin of destinations, and checks every id."""
    num_sources, num_nodes = given.num_sources, given.num_nodes
    with output.stage(reporter, "count edges", given.num_input_edges, "edges") as advance:
        for src, dst in given.edges_from(int(state["edges"])):
            for tail, head in ((src, dst), (dst, src)) if given.options.reverse else ((src, dst),):
                valid = count_edges(tail, head, num_sources, num_nodes, shift, state["bins"])
                if valid < len(src):
                    raise InputError(_out_of_range(given, int(state["edges"]) + valid, src[valid], dst[valid]))
            state["edges"] += len(src)
            advance(len(src))
            yield len(src) * EDGE_BYTES


def _out_of_range(given: EdgeList, edge: int, src: int, dst: int) -> str:
    outside = not 0 <= src < given.num_sources
    found = f"source {src}" if outside else f"destination {dst}"
    limit = given.num_sources if outside else given.num_nodes
    return (
        f"{given.name and given.name + ': '}expected node ids from 0 to {limit - 1}, found {found} in edge {edge} "
        f"(counted from 0); there are {limit} nodes, counted by their rows or as given: number them from 0 "
        f"without gaps, or give their ids"
    )


def _files(writer: ArtifactWriter, given: EdgeList, layout: BucketLayout) -> list[ArrayFile]:
    """Returns indptr, indices, and a file for each column that edges carry."""
    exact = not (given.options.self_loops or given.options.drop_duplicates)
    indptr, indices = (edge_file(kind, given.type) for kind in (artifacts.INDPTR, artifacts.INDICES))
    return [
        ArrayFile(writer, indptr, np.int64, given.num_nodes + 1),
        ArrayFile(writer, indices, id_dtype(given.num_sources), layout.num_edges if exact else None),
        *record_files(writer, given.type, given.columns, layout.num_edges),
    ]


@dataclass(frozen=True)
class _Sorted:
    """A bucket in the form in which it is written."""

    degrees: npt.NDArray[np.int64]  # [nodes of the bucket]
    indices: npt.NDArray[Any]  # [edges]
    order: npt.NDArray[np.int64]  # [edges] the number of each in the bucket; [0] unless they carry something


@dataclass(frozen=True)
class _Buckets:
    """The edges on their way through buckets, and what they carry."""

    given: EdgeList
    layout: BucketLayout
    edges: Shuffle
    records: EdgeRecords
    resources: Resources

    def scatter(self, state: State, output: Output) -> Generator[int, None, None]:
        """Brings every edge, and what it carries, to its bucket."""
        given, first = self.given, int(state["edges"])
        reverse, edge_bytes = given.options.reverse, EDGE_BYTES + _record_bytes(given)
        buckets = EdgeBuckets(self.layout, self.edges)
        output.before_commit(buckets.hand_over)
        source = given.edges_from(first)
        if given.columns:
            source = self.records.following(source, first, reverse, output)
        with output.stage(self.resources.reporter, "scatter edges", self.layout.num_edges, "edges") as advance:
            for src, dst in source:
                buckets.add(src, dst, reverse)
                advance(len(src) * (1 + reverse))
                state["edges"] += len(src)
                yield len(src) * edge_bytes
        buckets.hand_over()
        buckets.require_all()

    def sort(self, files: Sequence[ArrayFile], state: State, output: Output) -> Generator[int, None, None]:
        """Sorts the buckets, several at once, and appends each in its turn."""
        given, layout, records, resources = self.given, self.layout, self.records, self.resources
        indptr, indices, *carried = files
        dtype = id_dtype(given.num_sources)
        if not indptr.rows_written:
            indptr.write(np.zeros(1, np.int64))
        times = self._times_of_edges()
        sorts = (partial(self._sort_bucket, each, times) for each in range(int(state["buckets"]), layout.num_buckets))
        with (
            Threads(min(resources.threads, layout.buckets_at_once)) as pool,
            output.stage(resources.reporter, "sort edges", layout.num_edges, "edges") as advance,
        ):
            for column in in_order(pool, sorts, ahead=layout.buckets_at_once - 1):
                bucket = int(state["buckets"])
                indptr.write(indices.rows_written + np.cumsum(column.degrees, dtype=np.int64))
                indices.write(column.indices.astype(dtype, copy=False))
                if carried:
                    parts = records.of_bucket(bucket, column.order)
                    first_node = int(layout.node_starts[bucket])
                    for part in require_weights(parts, column.degrees, first_node, given.name):
                        for carries, file in zip(given.columns, carried, strict=True):
                            file.write(np.ascontiguousarray(part[carries.kind]))
                num_edges = int(layout.edge_starts[bucket + 1] - layout.edge_starts[bucket])
                advance(num_edges)
                state["buckets"] += 1
                state["edges"][...] = indices.rows_written
                del column  # before the next bucket is sorted: `enumerate` would keep it
                yield num_edges * (EDGE_BYTES + _record_bytes(given))

    def _times_of_edges(self) -> TimesOfEdges | None:
        """Returns what says the times of a bucket's edges, whose number and ends are given; None if no order needs
        them."""
        if not self.given.by_time:
            return None
        if self.given.has_times:
            return lambda bucket, _: self.records.times_of_bucket(bucket)
        assert self.given.source_times is not None
        of_sources = self.given.source_times()
        return lambda _, edges: of_sources[edges[:, 0]]

    def _sort_bucket(self, bucket: int, times: TimesOfEdges | None) -> _Sorted:
        layout, options, with_order = self.layout, self.given.options, bool(self.given.columns)
        edges = self.edges.content(bucket, layout.dtype).reshape(-1, 2)
        first_node, last_node = (int(node) for node in layout.node_starts[bucket : bucket + 2])
        degrees = np.empty(last_node - first_node, np.int64)
        indices = np.empty(len(edges) + options.self_loops * len(degrees), layout.dtype)
        order = np.empty(len(edges) if with_order or times is not None else 0, np.int64)
        if with_order or times is not None:
            of_edges = None if times is None else times(bucket, edges)
            sort_bucket_with_order(edges, first_node, degrees, indices, order, of_edges)
            return _Sorted(degrees, indices, order if with_order else order[:0])
        written = sort_bucket(edges, first_node, options.self_loops, options.drop_duplicates, degrees, indices)
        return _Sorted(degrees, indices[:written], order)
