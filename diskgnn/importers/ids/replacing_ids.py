"""A graph whose ids are the user's becomes one of dense ids: all that names nodes is read, and answered by type.

What is done is recorded in units. A run that goes on after a kill makes the same lookups in the same order, and each
takes up what was recorded of it.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, InputError, callers_level
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.importers.class_labels import ClassLabels
from diskgnn.importers.containers.arrays import Source, named
from diskgnn.importers.containers.rows import EdgeStream, RowReader, RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.ids.id_columns import end_ids, is_mask, node_ids
from diskgnn.importers.ids.id_records import IdRecords
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.joining_ids import Joining, NodeIds
from diskgnn.importers.ids.lookups import DenseEnds, Ends, Lookup
from diskgnn.importers.ids.sampling_ids import sample_ids
from diskgnn.importers.ids.scratch_files import DamagedScratchError, State, prefixed, within
from diskgnn.importers.ids.user_ids import UserIds
from diskgnn.importers.tables import table_rows
from diskgnn.importers.tables.table import Table, is_table
from diskgnn.schema import SPLITS, ClassValue, EdgeType
from diskgnn.storage.disk_space import kept_bytes, require_free_bytes
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

SCRATCH = "ids.scratch"  # a folder beside the files of the graph
_FIXED_BYTES = 24 << 20  # a sample of the ids, and groups of rows of their file
LEAST_ID_BYTES = 2 * _FIXED_BYTES
_ANSWER_BYTES = 8 + 2  # of each id that is replaced, beside its own

Owner = Callable[[str, str | EdgeType], str]


@dataclass(frozen=True)
class DenseGraph:
    """A graph of dense ids."""

    given: GraphInput
    topologies: Mapping[EdgeType, EdgeStream]  # of the edges whose ends were replaced


def replace_user_ids(
    given: GraphInput, found: UserIds, owner_of: Owner, writer: ArtifactWriter, resources: Resources
) -> DenseGraph:
    """Number the nodes, write their ids into the graph directory, and replace them wherever they are given.

    Labels and splits of these nodes may be tables with an id column, of some of them and in any order.

    Args:
        given: the graph.
        found: which of its node types have ids of the user's.
        owner_of: what messages call a type of "node" or "edge".
        writer: of the graph directory; scratch lies there, too, until it is published.
        resources: what this may allocate; a reporter of three stages, in ids.

    Raises:
        InputError: a null id, an id twice in a table of nodes, or one that no node has; says where. The last may also
            be raised while the topologies are read.
        ConfigError: too little memory.
        DiskFullError: the disk cannot hold the ids on their way.
    """
    resources = resources.within("to replace ids", _FIXED_BYTES, least_bytes=LEAST_ID_BYTES - _FIXED_BYTES)
    try:
        return _Replacing(given, found, owner_of, writer, resources).run()
    except DamagedScratchError:  # of a killed run, or of this one: once more
        writer.restart()
        return _Replacing(given, found, owner_of, writer, resources).run()


class _Replacing:
    def __init__(
        self, given: GraphInput, found: UserIds, owner_of: Owner, writer: ArtifactWriter, resources: Resources
    ) -> None:
        self._given, self._found, self._owner_of, self._writer = given, found, owner_of, writer
        num_ids = sum(each.num_rows for each in (*found.listed.values(), *found.ends.values(), *found.ends.values()))
        self._records = IdRecords(writer, num_ids)
        self._memory_bytes, self._reporter = resources.memory_bytes, resources.reporter
        self._folder = writer.path(SCRATCH)
        self._types: dict[str, NodeIds] = {}
        self._count = 0  # of lookups

    def run(self) -> DenseGraph:
        sampled, generation = sample_ids(self._found, self._records, self._memory_bytes, self._reporter)
        self._records, scratch = self._records.of_ranges(generation), self._folder
        self._folder = scratch / str(generation)
        for other in scratch.iterdir() if scratch.exists() else ():
            if other != self._folder:
                shutil.rmtree(other)
        self._writer.disk.look()
        for name, each in sampled.items():
            listed = self._found.listed.get(name)
            self._types[name] = NodeIds(name, each, None if listed is None else listed.name)
        self._require_disk()
        ends = {name: self._spread_edges(name, found) for name, found in self._found.ends.items()}
        edges = {name: self._with_seeds(name, edges) for name, edges in self._given.edges.items()}
        finish = {name: self._spread_nodes(name) for name in self._types}
        sizes = {
            name: Joining(self._records, ids, self._folder / f"known-{name}", self._reporter).run()
            for name, ids in self._types.items()
        }
        nodes = {**self._given.nodes, **{name: finish[name](sizes[name]) for name in self._types}}
        topologies = {name: _topology(self._found.ends[name], *both) for name, both in ends.items()}
        return DenseGraph(GraphInput(nodes, edges, encoding=self._given.encoding), topologies)

    def _require_disk(self) -> None:
        needed_bytes = 0
        for name, ids in self._types.items():
            mean_bytes = ids.sampled.mean_bytes
            needed_bytes += (mean_bytes + 8) * ids.sampled.count if name in self._found.listed else 0
            for edge_type, found in self._found.ends.items():
                needed_bytes += (edge_type[0], edge_type[2]).count(name) * found.num_rows * (mean_bytes + _ANSWER_BYTES)
        needed_bytes -= kept_bytes(self._folder) if self._folder.exists() else 0
        require_free_bytes(self._writer.staging, max(0, needed_bytes), "replacing the ids", disk=self._writer.disk)

    def _spread(self, found: IdColumns, node_types: Sequence[str], names: Sequence[str], stage: str) -> list[Ends]:
        """Bring the ids of some columns, each of nodes of a type, to their ranges."""
        self._count += 1
        folder, record = self._folder / str(self._count), str(self._count)
        state = self._records.last(record)
        ends = [
            self._ends(node_type, name, found, folder / str(side), side, within(str(side), state))
            for side, (node_type, name) in enumerate(zip(node_types, names, strict=True))
        ]
        sampled = [self._types[name].sampled for name in node_types if name in self._types]
        row, pace = int(state.get("rows", 0)), self._records.pace(found.num_rows * len(ends))
        for end in ends if state else ():
            end.require_whole()
        with self._reporter.stage(stage, found.num_rows, "edges" if found.row_name == "edge" else "ids") as advance:
            advance(row)
            chunk_ids = min(each.chunk_ids for each in sampled)
            for chunk in found.chunks(chunk_ids, row) if row < found.num_rows else ():
                for end, ids in zip(ends, chunk, strict=True):
                    end.add(ids)
                row += len(chunk[0])
                advance(len(chunk[0]))
                if self._records.is_done(pace, len(chunk[0]) * len(ends)):
                    self._note(record, row, ends)
        if row > int(state.get("rows", -1)):
            self._note(record, row, ends)
        return ends

    def _note(self, record: str, row: int, ends: Sequence[Ends]) -> None:
        """Rows up to here are brought to their ranges, durably."""
        state: dict[str, npt.NDArray[Any]] = {"rows": np.array(row)}
        claims = [self._folder]
        for side, end in enumerate(ends):
            state |= prefixed(str(side), end.so_far())
            claims += end.claims()
        self._records.note(record, state, claims)

    def _ends(self, node_type: str, name: str, found: IdColumns, folder: Path, side: int, state: State) -> Ends:
        disk = self._writer.disk
        if node_type not in self._types or side == found.numbered:
            return DenseEnds(name, folder, disk, state)
        ids = self._types[node_type]
        lookup = Lookup(
            name, found.row_name, ids.sampled.ranges, folder, ids.sampled.kind, hint=ids.hint,
            skips_unknown=found.skips_unknown, disk=disk, state=state,
        )  # fmt: skip
        ids.lookups.append(lookup)
        return lookup

    def _spread_edges(self, edge_type: EdgeType, found: IdColumns, stage: str = "spread edges") -> list[Ends]:
        names = [f"{found.name}: {column}" for column in found.columns]
        both = self._spread(found, (edge_type[0], edge_type[2]), names, stage)
        if stage == "spread edges":  # others must name what is there
            for end, lookup in zip((edge_type[0], edge_type[2]), both, strict=True):
                if end in self._found.mentioned and isinstance(lookup, Lookup):
                    self._types[end].mentions.append(lookup)
        return both

    def _with_seeds(self, edge_type: EdgeType, edges: EdgeInput) -> EdgeInput:
        if edge_type not in self._found.ends:
            return edges
        seeds: dict[str, Any] = {}
        for split in SPLITS:
            if (source := getattr(edges, split)) is not None:
                name = named(split, self._owner_of("edge", edge_type), source)
                found = end_ids(name, source, edges.columns)
                seeds[split] = _stream(name, found.num_rows, self._spread_edges(edge_type, found, f"spread {split}"))
        return replace(edges, **seeds)

    def _spread_nodes(self, name: str) -> Callable[[int], NodeInput]:
        """Splits and labels of a type that are given by id; what makes dense ones of them when all is answered."""
        nodes, owner = self._given.nodes[name], self._owner_of("node", name)
        splits: dict[str, Ends] = {}
        for split in SPLITS:
            source = getattr(nodes, split)
            if source is not None and not is_mask(source):
                splits[split] = self._spread_column(name, named(split, owner, source), source)
        labels = None
        if is_table(nodes.labels):
            assert nodes.labels is not None
            labels = self._spread_column(name, named("labels", owner, nodes.labels), nodes.labels)

        def finish(num_nodes: int) -> NodeInput:
            dense: dict[str, Any] = {
                split: np.concatenate([np.empty(0, np.int64), *lookup.nodes()]) for split, lookup in splits.items()
            }
            if labels is not None:
                dense["labels"], dense["classes"] = self._labels(name, labels, num_nodes)
            return replace(nodes, ids=None, num_nodes=num_nodes, **dense)

        return finish

    def _spread_column(self, node_type: str, name: str, source: Source) -> Ends:
        found = node_ids(name, source, self._given.nodes[node_type].columns)
        (ends,) = self._spread(found, (node_type,), [f"{name}: {found.columns[0]}"], "spread ids")
        return ends

    def _labels(self, node_type: str, ends: Ends, num_nodes: int) -> tuple[RowSource, tuple[ClassValue, ...] | None]:
        """Labels of some nodes, in any order, as rows of all nodes; and what their classes are called."""
        nodes = self._given.nodes[node_type]
        name = named("labels", self._owner_of("node", node_type), nodes.labels)
        assert isinstance(nodes.labels, (str, Path))
        table = Table(name, nodes.labels, nodes.columns)
        if nodes.task == "multilabel":
            raise InputError(f"{name}: expected several labels of every node, in the order of the nodes; found a table")
        column = nodes.columns.only_label
        if nodes.task == "class":
            found = table_rows.labels(table, column, name, nodes.num_classes, nodes.classes)
        else:
            found = ClassLabels(table_rows.numbers(table, column, name), None, None)
        dtype = np.dtype(np.int64 if nodes.task == "class" else np.float64)
        return _scattered(found.rows, ends, num_nodes, dtype, self._memory_bytes // 4), found.values


def _scattered(rows: RowSource, ends: Ends, num_nodes: int, dtype: np.dtype[Any], memory_bytes: int) -> RowSource:
    """Rows of the nodes that `ends` name, in its order, as rows of all nodes; those of others are -1, or NaN.

    They are read once for each part of the nodes that fits the memory.
    """
    none = -1 if dtype.kind == "i" else np.nan
    row_bytes = dtype.itemsize * int(np.prod(rows.row_shape, dtype=np.int64))
    at_once = max(1, memory_bytes // row_bytes)

    def read(first: int) -> Iterator[npt.NDArray[Any]]:
        for start in range(first, num_nodes, at_once):
            found = np.full((min(at_once, num_nodes - start), *rows.row_shape), none, dtype)
            reader = RowReader(rows)
            for nodes in ends.nodes():
                values = reader.take(len(nodes))
                here = (nodes >= start) & (nodes < start + len(found))
                found[nodes[here] - start] = values[here]
            yield found

    return RowSource(rows.name, num_nodes, rows.row_shape, dtype, partial(read, 0), seek=read)


def _stream(name: str, num_edges: int, ends: Sequence[Ends]) -> EdgeStream:
    def read(first: int) -> Iterator[EdgeChunk]:
        sources, destinations = ends
        return zip(sources.nodes(first), destinations.nodes(first), strict=True)

    return EdgeStream(name, num_edges, partial(read, 0), seek=read)


def _topology(found: IdColumns, *ends: Ends) -> EdgeStream:
    edges = _stream(found.name, found.num_rows, ends)
    if not found.skips_unknown:
        return edges
    unknown = sum(int(((src < 0) | (dst < 0)).sum()) for src, dst in edges.chunks())
    if unknown:
        warnings.warn(
            f"{found.name}: left out {unknown} of {found.num_rows} edges by {' and '.join(found.columns)}, to ids "
            f"that no node has",
            DataWarning,
            stacklevel=callers_level(),
        )
    return EdgeStream(found.name, found.num_rows - unknown, partial(_known_pairs, edges))


def _known_pairs(edges: EdgeStream) -> Iterator[EdgeChunk]:
    for src, dst in edges.chunks():
        known = (src >= 0) & (dst >= 0)
        yield src[known], dst[known]
