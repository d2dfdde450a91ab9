"""Replaces the user's ids of nodes, so that a graph is one of dense ids.

First the ids are sampled, and cut into ranges. All that names nodes is brought to these, column by column; then the
ranges of each type are joined with the ids that there are. What comes after that reads the nodes as it needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.formats import artifacts
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.importers.class_labels import ClassLabels
from diskgnn.importers.containers.arrays import Source, named
from diskgnn.importers.containers.rows import EdgeStream, RowReader, RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.ids.id_columns import end_ids, is_mask, node_ids
from diskgnn.importers.ids.id_streams import IdColumns, in_parts
from diskgnn.importers.ids.joining_ids import NodeIds, join_ids, join_step
from diskgnn.importers.ids.partition_join import DenseEnds, Ends, Lookup, Parts
from diskgnn.importers.ids.sampling_ids import ID_BYTES, sample_ids
from diskgnn.importers.ids.skipped_edges import known_edges
from diskgnn.importers.ids.user_ids import UserIds
from diskgnn.importers.tables import table_rows
from diskgnn.importers.tables.table import Table, is_table
from diskgnn.progress.reporter import Reporter
from diskgnn.specs.schema import SPLITS, ClassValue, EdgeType
from diskgnn.system.resources import Need, Resources
from diskgnn.work.fold import Output
from diskgnn.work.runner import Work
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

STAGE = "ids"  # what its own files beside those of the graph begin with
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
    work: Work, given: GraphInput, found: UserIds, owner_of: Owner, writer: ArtifactWriter, resources: Resources
) -> DenseGraph:
    """Numbers the nodes, writes their ids into the graph directory, and replaces them wherever they are given.

    Labels and splits of these nodes may be tables with an id column, of some of them and in any order.

    Args:
        work: a stage that ends when nobody reads the graph any more: what is read is compared with checksums only then.
        given: the graph.
        found: which of its node types have ids of the user's.
        owner_of: what messages call a type of "node" or "edge".
        writer: of the graph directory; scratch lies there, too, until it is published.
        resources: what this may allocate; a reporter of three stages, in ids.

    Raises:
        InputError: a null id, an id twice in a table of nodes, or one that no node has; says where.
        ConfigError: too little memory.
        DiskFullError: the disk cannot hold the ids on their way.
    """
    resources = resources.within(Need("to replace ids", _FIXED_BYTES, LEAST_ID_BYTES - _FIXED_BYTES))
    return _Replacing(work, given, found, owner_of, writer, resources).run()


class _Replacing:
    def __init__(
        self,
        work: Work,
        given: GraphInput,
        found: UserIds,
        owner_of: Owner,
        writer: ArtifactWriter,
        resources: Resources,
    ) -> None:
        self._work, self._given, self._found, self._owner_of, self._writer = work, given, found, owner_of, writer
        self._resources, self._reporter = resources, resources.reporter
        self._types: dict[str, NodeIds] = {}
        self._key = self._count = 0  # of the ranges; of columns that are read together

    def run(self) -> DenseGraph:
        sampled, self._key = sample_ids(self._work, self._found, self._writer, self._resources)
        for name, each in sampled.items():
            path = self._writer.path(artifacts.ids_file(name))
            self._types[name] = NodeIds(name, each, self._found.listed.get(name), path)
        self._work.require_space(self._most_bytes(), "replacing the ids")
        ends = {name: self._spread_edges(name, found) for name, found in self._found.ends.items()}
        edges = {name: self._with_seeds(name, edges) for name, edges in self._given.edges.items()}
        finish = {name: self._spread_nodes(name) for name in self._types}
        sizes = {
            name: join_ids(self._work, ids, self._writer, self._reporter, key=self._key)
            for name, ids in self._types.items()
        }
        nodes = {**self._given.nodes, **{name: finish[name](sizes[name]) for name in self._types}}
        topologies = {name: _topology(self._found.ends[name], *both) for name, both in ends.items()}
        return DenseGraph(replace(self._given, nodes=nodes, edges=edges), topologies)

    def _most_bytes(self) -> int:
        """Returns what ids and answers take, about."""
        needed_bytes = 0
        for name, ids in self._types.items():
            mean_bytes = ids.sampled.mean_bytes
            needed_bytes += (mean_bytes + 8) * ids.sampled.count if name in self._found.listed else 0
            for edge_type, found in self._found.ends.items():
                needed_bytes += (edge_type[0], edge_type[2]).count(name) * found.num_rows * (mean_bytes + _ANSWER_BYTES)
        return needed_bytes

    def _spread(self, found: IdColumns, node_types: Sequence[str], names: Sequence[str], stage: str) -> list[Ends]:
        """Brings the ids of some columns, each of nodes of a type, to their ranges."""
        self._count += 1
        step = f"spread-{self._count}"
        sampled = [self._types[name].sampled for name in node_types if name in self._types]
        parts = Parts(found.num_rows, min(each.part_ids for each in sampled))
        ends = [
            self._ends(step, side, node_type, name, found, parts)
            for side, (node_type, name) in enumerate(zip(node_types, names, strict=True))
        ]
        self._work.fold(
            step, partial(_spread, found, parts, ends, stage, self._reporter), {"rows": 0}, key=self._key
        )  # fmt: skip
        return ends

    def _ends(self, step: str, side: int, node_type: str, name: str, found: IdColumns, parts: Parts) -> Ends:
        if node_type not in self._types or side == found.numbered:
            return DenseEnds(name, parts, self._work.shuffle(step, f"{step}.{side}.nodes", parts.count))
        ids = self._types[node_type]
        lookup = Lookup(
            self._work, step, side, join_step(node_type), name=name, found=found, among=ids, parts=parts
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
            if nodes.num_nodes not in (None, num_nodes):
                raise InputError(
                    f"{name}: expected {nodes.num_nodes} nodes, as the number of nodes given says, found {num_nodes} "
                    f"ids; leave it out, or are the files of the same graph?"
                )
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
        return _scattered(found.rows, ends, num_nodes, dtype, self._resources.divided(1, part=4)), found.values


def _spread(
    found: IdColumns, parts: Parts, ends: Sequence[Ends], stage: str, reporter: Reporter, state: State, output: Output
) -> Generator[int, None, None]:
    """Adds what is `found`, part by part, to the ends that its columns are."""
    first = int(state["rows"])
    with output.stage(reporter, stage, found.num_rows, "edges" if found.row_name == "edge" else "ids") as advance:
        chunks = found.chunks(parts.part_rows, first) if first < found.num_rows else iter(())
        for part, columns in enumerate(in_parts(chunks, parts.part_rows), first // parts.part_rows):
            for end, ids in zip(ends, columns, strict=True):
                end.add(part, ids)
            state["rows"] += len(columns[0])
            advance(len(columns[0]))
            yield len(columns[0]) * len(ends) * ID_BYTES


def _scattered(rows: RowSource, ends: Ends, num_nodes: int, dtype: np.dtype[Any], memory_bytes: int) -> RowSource:
    """Returns the rows of the nodes that `ends` name, in its order, as rows of all nodes; those of others are -1, or
    NaN.

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

    def such_as() -> str:
        skipped = [end for end in ends if isinstance(end, Lookup) and end.skipped is not None]
        return f", such as {skipped[0].skipped!r}{skipped[0].hint_of_skipped}" if skipped else ""

    return known_edges(found, edges, such_as=such_as) if found.skips_unknown else edges
