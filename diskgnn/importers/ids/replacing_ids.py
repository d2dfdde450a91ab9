"""A graph whose ids are the user's becomes one of dense ids: all that names nodes is read, and answered by type."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import DataWarning, InputError
from diskgnn.graph.edge_buckets import EdgeChunk, EdgeSource
from diskgnn.importers.containers.arrays import Source, named
from diskgnn.importers.containers.rows import EdgeStream, RowReader
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.ids import dense_ids
from diskgnn.importers.ids.dense_ids import IdFile, IdRanges, IdSample, Lookup, id_file_kind
from diskgnn.importers.ids.id_columns import end_ids, is_mask, node_ids
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.user_ids import UserIds
from diskgnn.importers.tables import table_rows
from diskgnn.importers.tables.table import Table, is_table
from diskgnn.schema import SPLITS, EdgeType
from diskgnn.storage import artifacts
from diskgnn.storage.disk_space import require_free_bytes
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

_SCRATCH = "ids.scratch"
_FIRST_CHUNK_IDS = 1 << 16  # before it is known how long ids are
_FIXED_BYTES = 24 << 20  # a sample of the ids, and groups of rows of their file
_ANSWER_BYTES = 8 + 2  # of each id that is replaced, beside its own

Owner = Callable[[str, str | EdgeType], str]


@dataclass(frozen=True)
class DenseGraph:
    """A graph of dense ids."""

    given: GraphInput
    topologies: Mapping[EdgeType, EdgeStream]  # of the edges whose ends were replaced


class _Ends(Protocol):
    """Ids given in pieces, and the dense ones in their place, in pieces of equal sizes."""

    def add(self, ids: pa.Array) -> None: ...
    def nodes(self) -> Iterator[npt.NDArray[np.int64]]: ...


class _Dense:
    """Ids that are dense already, kept beside others that are not."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        path.touch()

    def add(self, ids: pa.Array) -> None:
        """`ids` follow what was added before."""
        if not pa.types.is_integer(ids.type):
            raise InputError(f"{self._name}: expected numbers of rows, found ids of type {ids.type}")
        with self._path.open("ab") as file:
            np.asarray(ids).astype(np.int64).tofile(file)

    def nodes(self) -> Iterator[npt.NDArray[np.int64]]:
        """What was added."""
        with self._path.open("rb") as file:
            while len(nodes := np.fromfile(file, np.int64, dense_ids.NODES_AT_ONCE)):
                yield nodes


@dataclass
class _NodeType:
    """What is known of the ids of one type."""

    kind: pa.DataType  # of `id_keys`
    file_kind: pa.DataType
    ranges: IdRanges
    sample: IdSample
    hint: str  # for an id that no node has
    lookups: list[Lookup] = field(default_factory=list)
    mentions: list[Lookup] = field(default_factory=list)  # of `lookups`, if what they name is there


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
    return _Replacing(given, found, owner_of, writer, resources).run()


class _Replacing:
    def __init__(
        self, given: GraphInput, found: UserIds, owner_of: Owner, writer: ArtifactWriter, resources: Resources
    ) -> None:
        self._given, self._found, self._owner_of, self._writer = given, found, owner_of, writer
        resources = resources.within("to replace ids", _FIXED_BYTES, least_bytes=_FIXED_BYTES)
        self._memory_bytes, self._reporter = resources.memory_bytes, resources.reporter
        self._folder = writer.path(_SCRATCH)
        self._types: dict[str, _NodeType] = {}
        self._count = 0  # of scratch folders

    def run(self) -> DenseGraph:
        shutil.rmtree(self._folder, ignore_errors=True)  # of a run that failed or was killed
        self._folder.mkdir()
        self._find_ranges()
        self._require_disk()
        ends = {name: self._spread_edges(name, found) for name, found in self._found.ends.items()}
        edges = {name: self._with_seeds(name, edges) for name, edges in self._given.edges.items()}
        finish = {name: self._spread_nodes(name) for name in self._types}
        sizes = {name: self._answer(name) for name in self._types}
        nodes = {**self._given.nodes, **{name: finish[name](sizes[name]) for name in self._types}}
        topologies = {name: _topology(self._found.ends[name], *both) for name, both in ends.items()}
        return DenseGraph(GraphInput(nodes, edges), topologies)

    def _find_ranges(self) -> None:
        """A sample of the ids of each type; listed ones are copied into the graph directory."""
        samples: dict[str, IdSample] = {}
        kinds: dict[str, pa.DataType] = {}
        total = sum(found.num_rows for found in self._found.listed.values())
        mentioning = {
            name: found
            for name, found in self._found.ends.items()
            if {name[0], name[2]} & {*self._found.mentioned}
        }  # fmt: skip
        total += sum(found.num_rows for found in mentioning.values())
        with self._reporter.stage("read ids", total, "ids") as advance:
            for name, column in self._found.listed.items():
                samples[name] = IdSample(column.key_kinds[0])
                kinds[name] = id_file_kind(column.kinds[0])
                file = IdFile(self._writer.path(artifacts.ids_file(name)), kinds[name])
                for (ids,) in column.chunks(_FIRST_CHUNK_IDS):
                    samples[name].add(ids)
                    file.add(ids)
                    advance(len(ids))
                file.close()
            for name, kind in self._found.mentioned.items():
                samples[name], kinds[name] = IdSample(kind), id_file_kind(kind)
            for edge_type, found in mentioning.items():
                for chunk in found.chunks(_FIRST_CHUNK_IDS):
                    for end, ids in zip((edge_type[0], edge_type[2]), chunk, strict=True):
                        if end in self._found.mentioned:
                            samples[end].add(ids)
                    advance(len(chunk[0]))
        for name, sample in samples.items():
            listed = self._found.listed.get(name)
            hint = (
                "; expected those that edges mention" if listed is None else
                f"; the nodes are those of {listed.name}: add it there, or leave it out here"
            )  # fmt: skip
            ranges = sample.ranges(self._memory_bytes)
            self._types[name] = _NodeType(sample.kind, kinds[name], ranges, sample, hint)

    def _require_disk(self) -> None:
        needed_bytes = 0
        for name, of_type in self._types.items():
            mean_bytes = of_type.sample.total_bytes // max(of_type.sample.count, 1)
            needed_bytes += (mean_bytes + 8) * of_type.sample.count if name in self._found.listed else 0
            for edge_type, found in self._found.ends.items():
                needed_bytes += (edge_type[0], edge_type[2]).count(name) * found.num_rows * (mean_bytes + _ANSWER_BYTES)
        require_free_bytes(self._writer.staging, needed_bytes, "replacing the ids")

    def _lookup(self, node_type: str, name: str, row_name: str, skips_unknown: bool = False) -> _Ends:
        if node_type not in self._types:
            return self._dense(name)
        of_type, folder = self._types[node_type], self._new_path()
        lookup = Lookup(name, row_name, of_type.ranges, folder, of_type.kind, of_type.hint, skips_unknown)
        of_type.lookups.append(lookup)
        return lookup

    def _dense(self, name: str) -> _Ends:
        return _Dense(name, self._new_path())

    def _new_path(self) -> Path:
        self._count += 1
        return self._folder / str(self._count)

    def _chunk_ids(self, node_types: tuple[str, ...]) -> int:
        return min(self._types[name].sample.chunk_ids(self._memory_bytes) for name in node_types if name in self._types)

    def _spread_ends(self, edge_type: EdgeType, found: IdColumns, description: str) -> tuple[_Ends, _Ends]:
        ends = edge_type[0], edge_type[2]
        names = [f"{found.name}: {column}" for column in found.columns]
        lookups = tuple(
            self._dense(name)
            if side == found.numbered
            else self._lookup(end, name, found.row_name, found.skips_unknown)
            for side, (end, name) in enumerate(zip(ends, names, strict=True))
        )
        with self._reporter.stage(description, found.num_rows, "edges") as advance:
            for chunk in found.chunks(self._chunk_ids(ends)):
                for lookup, ids in zip(lookups, chunk, strict=True):
                    lookup.add(ids)
                advance(len(chunk[0]))
        return lookups[0], lookups[1]

    def _spread_edges(self, edge_type: EdgeType, found: IdColumns) -> tuple[_Ends, _Ends]:
        lookups = self._spread_ends(edge_type, found, "spread edges")
        for end, lookup in zip((edge_type[0], edge_type[2]), lookups, strict=True):
            if end in self._found.mentioned and isinstance(lookup, Lookup):
                self._types[end].mentions.append(lookup)
        return lookups

    def _with_seeds(self, edge_type: EdgeType, edges: EdgeInput) -> EdgeInput:
        if edge_type not in self._found.ends:
            return edges
        seeds: dict[str, Any] = {}
        for split in SPLITS:
            if (source := getattr(edges, split)) is not None:
                name = named(split, self._owner_of("edge", edge_type), source)
                found = end_ids(name, source, edges.columns)
                both = self._spread_ends(edge_type, found, f"spread {split}")
                seeds[split] = EdgeStream(name, found.num_rows, partial(_pairs, *both))
        return replace(edges, **seeds)

    def _spread_nodes(self, name: str) -> Callable[[int], NodeInput]:
        """Splits and labels of a type that are given by id; what makes dense ones of them when all is answered."""
        nodes, owner = self._given.nodes[name], self._owner_of("node", name)
        splits: dict[str, _Ends] = {}
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
                dense["labels"] = self._labels(name, labels, num_nodes)
            return replace(nodes, ids=None, num_nodes=num_nodes, **dense)

        return finish

    def _spread_column(self, node_type: str, name: str, source: Source) -> _Ends:
        found = node_ids(name, source, self._given.nodes[node_type].columns)
        lookup = self._lookup(node_type, f"{name}: {found.columns[0]}", found.row_name)
        for (ids,) in found.chunks(self._chunk_ids((node_type,))):
            lookup.add(ids)
        return lookup

    def _labels(self, node_type: str, lookup: _Ends, num_nodes: int) -> Path:
        """Labels of some nodes, in any order, as a .npy file of all of them."""
        nodes = self._given.nodes[node_type]
        name = named("labels", self._owner_of("node", node_type), nodes.labels)
        assert isinstance(nodes.labels, (str, Path))
        table = Table(name, nodes.labels, nodes.columns)
        if nodes.task == "multilabel":
            raise InputError(f"{name}: expected several labels of every node, in the order of the nodes; found a table")
        path, is_class = self._folder / f"labels-{node_type}.npy", nodes.task == "class"
        rows = (
            table_rows.labels(table, nodes.columns, name)
            if is_class
            else table_rows.numbers(table, nodes.columns.only_label, name)
        )
        reader, none = RowReader(rows), -1 if is_class else np.nan
        dtype = np.int64 if is_class else np.float64
        labels = np.lib.format.open_memmap(path, "w+", dtype, (num_nodes, *rows.row_shape))
        for start in range(0, num_nodes, dense_ids.NODES_AT_ONCE):
            labels[start : start + dense_ids.NODES_AT_ONCE] = none
        for chunk in lookup.nodes():
            labels[chunk] = reader.take(len(chunk))
        labels.flush()
        return path

    def _answer(self, name: str) -> int:
        """Look up all ids of a type; the number of its nodes."""
        of_type, listed = self._types[name], self._found.listed.get(name)
        path = self._writer.path(artifacts.ids_file(name))
        file = None
        if listed is not None:
            known = dense_ids.table_ranges(
                path, of_type.ranges, self._folder / f"known-{name}", listed.name, self._chunk_ids((name,))
            )
            num_nodes = of_type.sample.count
        else:
            file = IdFile(path, of_type.file_kind)
            known = dense_ids.mentioned_ranges(of_type.mentions, file, of_type.kind)
        with self._reporter.stage("join ids", of_type.ranges.count, "ranges") as advance:
            for number in range(of_type.ranges.count):
                there = known(number)
                for lookup in of_type.lookups:
                    lookup.answer(number, there)
                advance(1)
        if file is not None:
            file.close()
            num_nodes = file.count
        if file is not None and file.counts_rows:
            path.unlink()  # the ids are dense
        else:
            self._writer.add(artifacts.ids_file(name))
        return num_nodes


def _topology(found: IdColumns, sources: _Ends, destinations: _Ends) -> EdgeStream:
    edges = partial(_pairs, sources, destinations)
    if found.skips_unknown:
        unknown = sum(int(((src < 0) | (dst < 0)).sum()) for src, dst in edges())
        if unknown:
            warnings.warn(
                f"{found.name}: left out {unknown} of {found.num_rows} edges by {' and '.join(found.columns)}, to ids "
                f"that no node has",
                DataWarning,
                stacklevel=4,
            )
        return EdgeStream(found.name, found.num_rows - unknown, partial(_known_pairs, edges))
    return EdgeStream(found.name, found.num_rows, edges)


def _known_pairs(edges: EdgeSource) -> Iterator[EdgeChunk]:
    for src, dst in edges():
        known = (src >= 0) & (dst >= 0)
        yield src[known], dst[known]


def _pairs(sources: _Ends, destinations: _Ends) -> Iterator[EdgeChunk]:
    return zip(sources.nodes(), destinations.nodes(), strict=True)
