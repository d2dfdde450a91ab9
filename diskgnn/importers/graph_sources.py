"""What a graph is made from, opened and compared: edges and what they carry, and what the nodes of each type have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import ConfigError, InputError
from diskgnn.formats import artifacts
from diskgnn.formats.graph_config import EdgeTypeConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.value_counts import ValueCounts
from diskgnn.graph.csc import EdgeList, EdgeOptions
from diskgnn.graph.edge_records import EdgeColumn
from diskgnn.importers.both_directions import noticing
from diskgnn.importers.class_labels import ClassLabels, KnownClasses, values_text
from diskgnn.importers.containers import arrays, edge_arrays, edge_lists, node_arrays, values
from diskgnn.importers.containers.arrays import Source, named
from diskgnn.importers.containers.rows import CHUNK_EDGES, EdgeStream, RowSource
from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.graph_input import EdgeInput, NodeInput
from diskgnn.importers.ids.id_columns import node_ids
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.node_data import GIVEN_APART, SplitOrigin
from diskgnn.importers.node_features import NodeFeatures
from diskgnn.importers.random_splits import random_splits
from diskgnn.importers.source_listing import EXCLUDED, SourceListing
from diskgnn.importers.tables import table_rows
from diskgnn.importers.tables.table import Table, TableColumns, is_table
from diskgnn.specs.schema import SPLITS, ClassValue, EdgeType, edge_type_name, reverse_edge_type


def open_topology(given: EdgeInput, owner: str = "") -> EdgeStream:
    """Opens edges, a list or CSC. `owner` is their type, for messages.

    Raises:
        ConfigError: neither, or both.
        InputError: they are none; see `edge_arrays` and `tables`.
    """
    edges, indptr, indices = given.edges, given.indptr, given.indices
    if (edges is None) == (indptr is None) or (indptr is None) != (indices is None):
        found = [name for name in ("edges", "indptr", "indices") if getattr(given, name) is not None]
        raise ConfigError(
            f"{owner and owner + ': '}expected either `edges`, or `indptr` and `indices`; found "
            f"{' and '.join(f'`{name}`' for name in found) or 'neither'}"
        )
    if edges is None:
        assert indptr is not None
        assert indices is not None
        return edge_arrays.csc(indptr, indices, owner)
    name = named("edges", owner, edges)
    if isinstance(edges, IdColumns):
        return EdgeStream(name, edges.num_rows, edges.edges)
    if is_table(edges):
        return table_rows.edges(edges, given.columns, name)
    return edge_arrays.edge_list(edges, name)


@dataclass(frozen=True)
class OpenNodes:
    """Holds what the nodes of one type have, to be streamed."""

    given: NodeInput
    owner: str  # the type, for messages; "" where there is one
    num_nodes: int
    features: NodeFeatures | None
    labels: RowSource | None
    times: RowSource | None
    splits: Mapping[str, npt.NDArray[np.int64]]
    classes: tuple[ClassValue, ...] | None = None  # what the classes of the labels are called; None: by their numbers
    split_origin: SplitOrigin = GIVEN_APART


def open_nodes(
    given: NodeInput,
    owner: str,
    counted: Mapping[str, int],
    node_type: str,
    listing: SourceListing,
    encoding: GivenEncoding | None = None,
) -> OpenNodes:
    """Returns what is given, and the rest from the table.

    Args:
        given: the nodes of one type.
        owner: their type, for messages; "" for a graph of one type.
        counted: what else says how many nodes there are.
        node_type: for the listing.
        listing: is told what became of the columns of the table.
        encoding: of another graph, to encode the table and number the classes alike.

    Raises:
        ConfigError: something is missing, or cannot be what it is said to be.
        InputError: it is no node data, or its parts differ in length; see `node_arrays` and `tables`.
    """
    table, taken = None, dict[str, str]()
    if given.table is not None:
        table = Table(named("nodes", owner, given.table), given.table, given.columns)
        _list_excluded(table, given.columns, node_type, listing)
        taken = _taken_columns(given, table)
    known = None
    if encoding is not None and ("labels" in taken or given.labels is not None):
        known = encoding.classes(node_type, given.task)
    if known is not None:
        given, known = _with_classes(given, known, owner)
    labels = _labels(given, table, taken.get("labels"), owner, known)
    if table is not None:
        _list_roles(taken, labels, node_type, listing)
    read = _NodeReading(given, owner, node_type, table, taken, listing)
    rows = read.features(encoding)
    times = _times(given, table, owner)
    rows_of_labels = None if labels is None else labels.rows
    num_nodes = _agree_on_nodes(given.num_nodes, {
        **counted, **{each.name: each.num_rows for each in (rows, rows_of_labels, times) if each is not None},
        **({} if table is None else {table.name: table.num_rows}),
    }, owner, may_be_empty=given.may_be_empty)  # fmt: skip
    splits = read.splits(num_nodes, rows_of_labels)
    classes = None if labels is None else labels.values
    origin = GIVEN_APART
    if table is not None:
        words = {use: f"column {column!r} of {table.path}" for use, column in taken.items()}
        in_column = [split for split in splits if getattr(given, split) is None and given.random_split is None]
        origin = SplitOrigin(dict.fromkeys(in_column, words.get("splits", "")), words.get("labels"))
    features = NodeFeatures.of(rows, given, owner)
    if given.constant and features is not None:
        raise ConfigError(
            f"{owner and owner + ': '}constant: expected no features beside a 1, found {features.rows.name}"
        )
    return OpenNodes(given, owner, num_nodes, features, rows_of_labels, times, splits, classes, origin)


@dataclass(frozen=True)
class _NodeReading:
    """The nodes of one type as they are given, and who is told of the columns of their table."""

    given: NodeInput
    owner: str
    node_type: str
    table: Table | None
    taken: Mapping[str, str]  # columns of the table that have a role but for features
    listing: SourceListing

    def features(self, encoding: GivenEncoding | None) -> RowSource | None:
        """Returns the features, or the columns of the table that become that."""
        given, table, owner, node_type, listing = self.given, self.table, self.owner, self.node_type, self.listing
        name = named("features", owner, given.features if given.features is not None else given.table)
        if given.features is not None:
            names = [] if table is None else table.schema.names
            for column in (each for each in names if each not in self.taken.values()):
                listing.leave_out(node_type, column, "the features are given beside the table", expected=True)
            return node_arrays.features(given.features, bfloat16=given.bfloat16, name=name)
        if table is None:
            return None
        if given.bfloat16:
            raise ConfigError("bfloat16: such features come from a .npy file of uint16, not from a table; leave it out")
        known = None if encoding is None else encoding.columns(node_type)
        rows = table_rows.features(table, given.columns, name, [*self.taken.values()], node_type, listing, known)
        if rows is None and not owner:
            left_out = {item.name: item.reason for item in listing.contents().left_out if item.of == node_type}
            found = "; ".join(f"{column!r} ({why})" for column, why in left_out.items())
            raise InputError(
                f"features: expected columns that can be features in {table.path}, found none: {found or 'no others'}; "
                f"say with `encode` how to read one, or pass `features`"
            )
        return rows

    def splits(self, num_nodes: int, labels: RowSource | None) -> dict[str, npt.NDArray[np.int64]]:
        """Returns the nodes of each split: those that are given, before those of the table; or drawn at random.

        Raises:
            ConfigError: there are no labels to learn.
            InputError: a column of splits has none.
        """
        given, table, owner, taken = self.given, self.table, self.owner, self.taken
        sources: dict[str, Source] = {name: each for name in SPLITS if (each := getattr(given, name)) is not None}
        if table is not None and given.train is None and "splits" in taken:
            if not (found := table_rows.splits(table, taken["splits"])):
                raise InputError(
                    f"splits: expected train, valid or test in some rows of column {taken['splits']!r}, found none; "
                    "leave the column out if there are no splits"
                )
            sources = {**found, **sources}
        splits = {
            split: _split_ids(named(split, owner, source), source, given.columns, num_nodes)
            for split, source in sources.items()
        }
        if given.random_split is not None:
            splits = _random_splits(given.random_split, splits, labels, owner, in_table=table is not None)
            self.listing.read(self.node_type, "random split", "splits", ", ".join(map(str, given.random_split)))
        if splits and labels is None:
            missing = "labels" if table is None else f"a column of labels in {table.path} (`columns`, label=NAME)"
            raise ConfigError(
                f"{owner and owner + ': '}expected {missing} for the nodes of {' and '.join(splits)}, found none; "
                f"leave the splits out if there is nothing to learn of nodes"
            )
        return splits


def _split_ids(split: str, source: Source, columns: TableColumns, num_nodes: int) -> npt.NDArray[np.int64]:
    """Returns the node ids of a split; of a table, the numbers in its id column."""
    if not is_table(source):
        return node_arrays.split_ids(split, source, num_nodes)
    found = node_ids(split, source, columns)
    if not pa.types.is_integer(found.kinds[0]):
        raise InputError(
            f"{split}: expected numbers of rows in {found.columns[0]} of {found.path}, as the nodes have no ids of "
            f"their own, found {found.kinds[0]}; give these ids in a table of the nodes, too"
        )
    chunks = [np.asarray(ids) for (ids,) in found.chunks(CHUNK_EDGES, 0)]
    return node_arrays.split_ids(split, np.concatenate([np.empty(0, np.int64), *chunks]), num_nodes)


def _random_splits(
    shares: Any, given: Mapping[str, npt.NDArray[np.int64]], labels: RowSource | None, owner: str, *, in_table: bool
) -> dict[str, npt.NDArray[np.int64]]:
    """Splits drawn among the nodes with labels.

    Raises:
        ConfigError: there are no labels, or splits already.
    """
    where = f"{owner and owner + ': '}random_split: "
    if labels is None:
        raise ConfigError(f"{where}expected labels, of which it draws the nodes, found none; pass `labels`")
    if given:
        raise ConfigError(
            f"{where}expected nodes that are in no split, found {' and '.join(given)}; leave this out, or "
            + ("these (a column of splits by `exclude`)" if in_table else "what says these, such as masks of the data")
        )
    return random_splits(labels, shares)


def _taken_columns(given: NodeInput, table: Table) -> dict[str, str]:
    """Returns the columns of a table of nodes that have a role but for features, by what they become.

    Raises:
        InputError: a column that was named is not there.
    """
    columns = given.columns
    found = {
        "ids": columns.id_in(table),
        "labels": columns.label_in(table) if given.labels is None else None,
        "splits": columns.split_in(table),
        "times": None if columns.time is None or given.times is not None else str(table.field(columns.time).name),
    }
    return {use: name for use, name in found.items() if name is not None}


def _list_excluded(table: Table, columns: TableColumns, of: str, listing: SourceListing) -> None:
    if unknown := [name for name in columns.exclude if name not in table.excluded]:
        raise ConfigError(
            f"columns: exclude: expected columns of {table.path}, of {', '.join(table.schema.names)}; found "
            f"{unknown[0]!r}"
        )
    for name in table.excluded:
        listing.leave_out(of, name, EXCLUDED, expected=True)


def _list_roles(
    taken: Mapping[str, str], labels: ClassLabels | None, node_type: str, listing: SourceListing
) -> None:  # fmt: skip
    for use, name in taken.items():
        if use == "labels" and labels is not None:
            how = "" if labels.values is None else f"{len(labels.values)} classes: {values_text(labels.values)}"
            listing.read(node_type, name, use, how, None, labels.null_share)
        else:
            listing.read(node_type, name, use)


def _with_classes(
    given: NodeInput, known: KnownClasses, owner: str
) -> tuple[NodeInput, KnownClasses | None]:  # fmt: skip
    """Returns what is given, with the classes of another graph; None in their place if the user said the same."""
    where = owner and owner + ": "
    if given.classes not in (None, known.values) or given.num_classes not in (None, known.num_classes):
        found = given.num_classes if given.classes is None else values_text(given.classes)
        has = known.num_classes if given.classes is None else values_text(known.values or (known.num_classes,))
        raise ConfigError(
            f"{where}{'num_classes' if given.classes is None else 'classes'}: {known.graph} has {has}, found {found}; "
            f"leave it out, `encoding_of` says it"
        )
    return replace(given, num_classes=known.num_classes), None if given.classes is not None else known


def _labels(
    given: NodeInput, table: Table | None, column: str | None, owner: str, known: KnownClasses | None
) -> ClassLabels | None:
    """Returns the labels; those of other tasks than classes have no values."""
    name = named("labels", owner, given.labels if given.labels is not None else given.table)
    num_classes = given.num_classes if given.classes is None else len(given.classes)
    if table is not None and column is not None:
        if given.task == "class":
            return table_rows.labels(table, column, name, num_classes, given.classes, known)
        rows = table_rows.numbers(table, column, name)
    elif given.labels is None:
        return None
    elif is_table(given.labels):
        raise InputError(
            f"{name}: expected an array with a label for each node, found the table {given.labels}, while the nodes "
            f"have no ids of their own to find its rows by; name the column of labels in the table of the nodes "
            f"(`nodes`, label=NAME), or give the nodes ids"
        )
    elif given.task == "class":
        return node_arrays.labels(given.labels, name, given.classes, known, num_classes)
    else:
        rows = arrays.numbers(name, given.labels)
    check = values.multilabel if given.task == "multilabel" else values.regression
    return ClassLabels(check(rows), None, None)


def _times(given: NodeInput | EdgeInput, table: Table | None, owner: str) -> RowSource | None:
    if given.times is not None:
        return values.times(arrays.items(named("times", owner, given.times), given.times), given.null_time)
    if given.columns.time is not None and table is not None:
        rows = table_rows.times(table, given.columns.time, named("times", owner, table.path))
        return values.times(rows, given.null_time)
    return None


def _agree_on_nodes(given: int | None, counts: Mapping[str, int], owner: str, *, may_be_empty: bool) -> int:
    """Returns the number of nodes of one type, on which all sources must agree."""
    known = {**({} if given is None else {"the number of nodes given": given}), **counts}
    if not known:
        raise ConfigError(f"{owner}: expected num_nodes, or something with a row per node; found neither")
    for name, found in known.items():
        if not found and any(known.values()):
            raise InputError(f"{name}: expected a row per node, found none; is it the file that was meant?")
    first, expected = next(iter(known.items()))
    for name, found in counts.items():
        if found != expected:
            raise InputError(
                f"{name}: expected {expected} rows (one per node, as {first} says), found {found}; "
                f"are the files of the same graph?"
            )
    if expected < 1 and not may_be_empty:
        where = f"{owner and owner + ': '}" if given is not None else f"{first}: "
        raise InputError(f"{where}expected at least one node, found none")
    return expected


@dataclass(frozen=True)
class OpenEdges:
    """The edges of one type and what they carry, to be streamed."""

    list: EdgeList
    splits: Mapping[str, npt.NDArray[np.int64]]  # seed edges [n, 2]
    stored_bytes: int  # in files
    foreign_key: bool = False

    @property
    def features(self) -> EdgeColumn | None:
        """Returns the column of their features, if they have some."""
        return next((column for column in self.list.columns if column.kind == artifacts.EDGE_FEATURES), None)

    def config(self, num_edges: int, values: ValueCounts) -> EdgeTypeConfig:
        """Returns what the manifest says of them, and of the `values` of their features."""
        kinds, features = {column.kind for column in self.list.columns}, self.features
        return EdgeTypeConfig(
            self.list.type,
            num_edges,
            has_ids=artifacts.EDGE_IDS in kinds,
            rows=None if features is None else rows_of(features),
            has_weights=artifacts.WEIGHTS in kinds,
            has_times=artifacts.TIMES in kinds,
            link_splits=tuple(split for split in SPLITS if split in self.splits),
            foreign_key=self.foreign_key,
            by_time=self.list.by_time,
            values=values,
            columns=None if features is None else features.columns,
        )


def rows_of(features: EdgeColumn) -> RowFormat:
    """Returns how the features of edges are stored."""
    return RowFormat.stored_as(features.dtype, features.row_shape[0])


def open_edges(
    edge_type: EdgeType,
    given: EdgeInput,
    topology: EdgeStream,
    owner: str,
    num_nodes: Mapping[str, int],
    listing: SourceListing,
    encoding: GivenEncoding | None = None,
) -> Iterator[OpenEdges]:
    """Yields the edges of a type, and where they are asked for those of the reverse type.

    Raises:
        ConfigError, InputError: they carry what they cannot, or as many items as there are no edges.
    """
    name = named("edges", owner, given.edges if given.edges is not None else given.indptr)
    num_sources, num_destinations = num_nodes[edge_type[0]], num_nodes[edge_type[2]]
    columns = tuple(_edge_columns(edge_type, given, topology, owner, name, listing, encoding))
    options = EdgeOptions(given.symmetric, given.self_loops, given.drop_duplicates)
    splits = {}
    for split in SPLITS:
        if (source := getattr(given, split)) is not None:
            splits[split] = edge_arrays.seed_edges(named(split, owner, source), source, num_sources, num_destinations)
    stream = topology.chunks
    if given.symmetric and not given.drop_duplicates:
        stream = noticing(stream, name)
    edges = EdgeList(
        edge_type, stream, num_sources, num_destinations, options, columns, topology.num_edges, name, topology.seek
    )
    yield OpenEdges(edges, splits, topology.stored_bytes, given.foreign_key)
    if given.reverse:
        reverse = reverse_edge_type(edge_type)
        turned = edge_lists.turned(topology)
        back = replace(edges, type=reverse, edges=turned.chunks, seek=turned.seek, num_sources=num_destinations,
                       num_nodes=num_sources, name=f"{name} (reverse)")  # fmt: skip
        yield OpenEdges(back, {}, topology.stored_bytes)


def _edge_columns(
    edge_type: EdgeType,
    given: EdgeInput,
    topology: EdgeStream,
    owner: str,
    name: str,
    listing: SourceListing,
    encoding: GivenEncoding | None,
) -> Iterator[EdgeColumn]:
    """Yields what edges carry, a column of each kind."""
    if given.keep_ids:
        yield EdgeColumn(artifacts.EDGE_IDS, name, np.dtype(np.int64), (), partial(_numbers, topology.num_edges))
    for kind, rows in _rows_of_edges(edge_type, given, owner, name, listing, encoding).items():
        if rows is None:
            continue
        if rows.num_rows != topology.num_edges:
            raise InputError(
                f"{rows.name}: expected {topology.num_edges}, one for each of {name}, found {rows.num_rows}; are the "
                f"files of the same edges?"
            )
        yield EdgeColumn(kind, rows.name, rows.dtype, rows.row_shape, rows.chunks_from, rows.columns)


def _rows_of_edges(
    edge_type: EdgeType,
    given: EdgeInput,
    owner: str,
    name: str,
    listing: SourceListing,
    encoding: GivenEncoding | None,
) -> dict[str, RowSource | None]:
    """Returns by kind what is given for each edge, or what its table has."""
    table = None
    if is_table(given.edges):
        table = Table(name, given.edges, given.columns)
        _list_excluded(table, given.columns, edge_type_name(edge_type), listing)
    columns, of, known = given.columns, edge_type_name(edge_type), None
    if encoding is not None and table is not None and given.features is None:
        known = encoding.columns(edge_type, wanted=columns.features is not None)
    takes_features = columns.features is not None or known is not None
    taken = dict[str, str]()  # columns of the table, by role
    if table is not None:
        roles = {"source": columns.src, "destination": columns.dst, "weights": columns.weight, "times": columns.time}
        taken = {use: str(table.field(column).name) for use, column in roles.items() if column is not None}
        for use, column in taken.items():
            listing.read(of, column, use)
    found: dict[str, RowSource | None] = {artifacts.WEIGHTS: None, artifacts.TIMES: _times(given, table, owner)}
    if given.weights is not None:
        found[artifacts.WEIGHTS] = values.weights(arrays.numbers(named("weights", owner, given.weights), given.weights))
    elif columns.weight is not None and table is not None:
        found[artifacts.WEIGHTS] = values.weights(
            table_rows.numbers(table, columns.weight, named("weights", owner, given.edges))
        )
    if given.features is not None:
        features_name = named("features", owner, given.features)
        found[artifacts.EDGE_FEATURES] = node_arrays.features(
            given.features, bfloat16=given.bfloat16, name=features_name
        )
    elif takes_features and table is not None:
        features_name = named("features", owner, given.edges)
        found[artifacts.EDGE_FEATURES] = table_rows.features(
            table, columns, features_name, [*taken.values()], of, listing, known
        )  # fmt: skip
    if table is not None and not takes_features:
        for column in [each for each in table.schema.names if each not in taken.values()]:
            reason = "nothing asks for it: name it as time, weight or features in `columns`"
            listing.leave_out(of, column, reason, expected=given.features is not None)
    return found


def _numbers(count: int, first: int) -> Iterator[npt.NDArray[np.int64]]:
    for start in range(first, count, CHUNK_EDGES):
        yield np.arange(start, min(start + CHUNK_EDGES, count))


def type_owner(kind: str, name: str | EdgeType) -> str:
    """Returns how messages call a type."""
    return f"{kind} type {name if isinstance(name, str) else edge_type_name(name)}"
