"""A graph by types, as its maker describes it: in a YAML file, as mappings, or as these dataclasses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from diskgnn.errors import ConfigError
from diskgnn.files.file_reading import raise_if_disk_failed, read_whole
from diskgnn.formats.source_contents import SourceContents
from diskgnn.importers.containers.arrays import Source
from diskgnn.importers.containers.raw_files import RawFile
from diskgnn.importers.containers.rows import EdgeStream
from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.random_splits import parse_shares
from diskgnn.importers.tables.table import TableColumns
from diskgnn.paths import PathLike
from diskgnn.specs.null_times import NULL_TIMES
from diskgnn.specs.schema import (
    ORDERS,
    TARGET_KINDS,
    ClassValue,
    EdgeType,
    are_class_values,
    check_type_name,
    edge_type_name,
    parse_edge_type,
    reverse_edge_type,
)
from diskgnn.specs.time_windows import checked_time_unit
from diskgnn.stores.locations import is_url, local

DESCRIPTION = "graph.yaml"  # in a folder that is given in its place

_SOURCES = {
    "table",
    "ids",
    "features",
    "labels",
    "times",
    "train",
    "valid",
    "test",
    "edges",
    "indptr",
    "indices",
    "weights",
}

T = TypeVar("T")


@dataclass(frozen=True)
class NodeInput:
    """The nodes of one type. A source is the path of a .npy file or of a tensor saved by torch, an array in memory, or
    a `RowSource`."""

    num_nodes: int | None = None  # N; None: as many as there are rows
    table: PathLike | None = None  # Parquet or CSV, one row per node, for what is None below
    ids: Source | IdColumns | None = None  # [N] your own ids, by which edges and splits name nodes; None: 0, 1, ...
    features: Source | None = None  # [N, D] float32, float16, int8, uint16 (see `bfloat16`), or float64
    labels: Source | None = None  # integers [N], -1: none; 0 and 1 [N, C]; numbers [N] or [N, C], NaN: none
    task: str = "class"  # what the labels are: "class", "multilabel" or "regression"
    num_classes: int | None = None  # of "class"; None: the largest label plus 1
    # Of "class": what classes 0, 1, ... are called. None: the values of text, truth values, and whole numbers of a
    # table that are not 0, 1, 2, ..., in ascending order; others are called by their numbers.
    classes: tuple[ClassValue, ...] | None = None
    train: Source | None = None  # node ids, or bool [N]
    valid: Source | None = None
    test: Source | None = None
    # Shares of train, valid and test that are drawn among the labelled nodes, in place of these three.
    random_split: str | Sequence[float] | None = None
    times: Source | None = None  # [N] integers or datetime64: when each node appears
    # What a missing time means: seen by no seed ("never"), or by every one ("always"). None: there shall be none.
    null_time: str | None = None
    columns: TableColumns = field(default_factory=TableColumns)  # of the table
    may_be_empty: bool = False  # N may be 0: a model knows the type
    constant: bool = False  # there are no features but a 1, which is not stored
    bfloat16: bool = False  # features stored as uint16 are bfloat16 bits
    reference_features: bool = False  # leave the feature file where it is, and refer to it
    quantise: str | None = None  # store the features in fewer bits: int8, int4, float16 or bfloat16

    def __post_init__(self) -> None:
        if self.random_split is not None:
            object.__setattr__(self, "random_split", parse_shares(self.random_split))
        _check_null_time(self.null_time)
        if self.task not in TARGET_KINDS:
            raise ConfigError(f"task: expected one of {', '.join(TARGET_KINDS)}, found {self.task!r}")
        if self.num_classes is not None and (self.task != "class" or self.num_classes < 1):
            expected = "at least 1" if self.task == "class" else f"none for task {self.task!r}"
            raise ConfigError(f"num_classes: expected {expected}, found {self.num_classes}")
        if self.classes is not None:
            if isinstance(self.classes, str) or not are_class_values(self.classes, len(self.classes)):
                raise ConfigError(f"classes: expected a list of different names, found {self.classes!r:.80}")
            if self.task != "class" or self.num_classes not in (None, len(self.classes)) or not self.classes:
                raise ConfigError(f"classes: found {len(self.classes)}, with {self.num_classes} of task {self.task!r}")
            object.__setattr__(self, "classes", tuple(self.classes))


@dataclass(frozen=True)
class EdgeInput:
    """The edges of one type: a list of them, or CSC. What they have is in the order of that list."""

    edges: Source | EdgeStream | IdColumns | None = (
        None  # integers [2, E] (sources, destinations) or [E, 2], or a table
    )
    indptr: Source | None = None  # integers [N+1], with `indices`
    indices: Source | None = None  # integers [E]
    features: Source | None = None  # [E, D], as those of nodes
    weights: Source | None = None  # [E] numbers, 0 or more
    times: Source | None = None  # [E] integers or datetime64: when each edge appears
    null_time: str | None = None  # what a missing time means, as of nodes
    # Edges lead from rows of a table to the rows that they refer to: one window of time for all is for these, not for
    # the reverse type.
    foreign_key: bool = False
    train: Source | EdgeStream | None = None  # seed edges for link prediction: integers [2, n] or [n, 2]
    valid: Source | EdgeStream | None = None
    test: Source | EdgeStream | None = None
    keep_ids: bool = False  # remember the position of each edge in the list
    reverse: bool = False  # add the type (destination, rev_name, source) of the same edges, with what they have
    symmetric: bool = False  # add the reverse of every edge to this very type
    self_loops: bool = False  # add (v, v) for every node that has none
    drop_duplicates: bool = False  # keep one of equal edges
    columns: TableColumns = field(default_factory=TableColumns)  # of tables
    bfloat16: bool = False  # features stored as uint16 are bfloat16 bits

    def __post_init__(self) -> None:
        _check_null_time(self.null_time)
        carried = [name for name in ("features", "weights", "times") if getattr(self, name) is not None]
        carried += ["keep_ids"] * self.keep_ids + ["columns"] * bool(
            self.columns.weight or self.columns.time or self.columns.features
        )
        changed = [name for name in ("self_loops", "drop_duplicates") if getattr(self, name)]
        if carried and changed:
            raise ConfigError(
                f"{changed[0]}: expected edges without data of their own, found "
                f"{' and '.join(f'`{name}`' for name in carried)}; leave that out, or add and drop edges, with their "
                f"data, before"
            )


@dataclass(frozen=True)
class GraphInput:
    """A graph by types of nodes and of edges, in the order that they will have.

    Raises:
        ConfigError: a name that a type cannot have, an edge type between unknown nodes, no types, or a `reverse` type
            that is there already.
    """

    nodes: Mapping[str, NodeInput]
    edges: Mapping[EdgeType, EdgeInput]
    contents: SourceContents = field(default_factory=SourceContents)  # of a data set that was read, for the report
    reading_bytes: int = 0  # of memory that reading the sources takes, beside the pieces that are read
    encoding: GivenEncoding | None = None  # of another graph, for the columns of tables; None: they say their own
    time_unit: str | None = None  # of `TIME_UNITS`: of all times; None: seconds if all are timestamps, or nobody knows

    order: str | None = None  # of in-neighbours, one of `ORDERS`; None: that of hashes
    dated: tuple[str, ...] = ()  # node types whose times were dates or timestamps, and are seconds now
    statistics_until: int | str | None = None  # of records: see `GraphConfig`

    def __post_init__(self) -> None:
        checked_time_unit(self.time_unit)
        if self.order is not None and self.order not in ORDERS:
            raise ConfigError(f"order: expected one of {', '.join(ORDERS)}, found {self.order!r}")
        if not self.nodes or not self.edges:
            raise ConfigError("expected at least one type of nodes and one type of edges")
        for name in self.nodes:
            check_type_name(name)
        for edge_type, given in self.edges.items():
            name = edge_type_name(parse_edge_type(edge_type))
            source, _, destination = edge_type
            if unknown := [end for end in (source, destination) if end not in self.nodes]:
                raise ConfigError(
                    f"edge type {name}: expected node types of {', '.join(self.nodes)}, found {unknown[0]!r}"
                )
            if given.reverse:
                parse_edge_type(reverse_edge_type(edge_type))
                if reverse_edge_type(edge_type) in self.edges:
                    raise ConfigError(
                        f"edge type {name}: reverse would add {edge_type_name(reverse_edge_type(edge_type))}, which is "
                        f"there already; leave out one of them"
                    )
            if source != destination and (changed := [
                option for option in ("symmetric", "self_loops") if getattr(given, option)
            ]):  # fmt: skip
                raise ConfigError(
                    f"edge type {name}: {changed[0]} needs edges within one node type; leave it out, or use reverse"
                )


def _check_null_time(null_time: str | None) -> None:
    if null_time is not None and null_time not in NULL_TIMES:
        raise ConfigError(f"null_time: expected one of {', '.join(NULL_TIMES)}, or None, found {null_time!r}")


def read_description(schema: PathLike | Mapping[str, Any] | GraphInput) -> GraphInput:
    """Returns a graph's description from a YAML file, from the folder that holds it as graph.yaml, or from mappings.

    Paths in a file are relative to its folder.

    Raises:
        ConfigError: it is none; names the key.
    """
    if isinstance(schema, GraphInput):
        return schema
    if isinstance(schema, Mapping):
        return parse_description("schema", schema, None)
    path = local(schema, "schema")
    if path.is_dir():
        path /= DESCRIPTION
    return parse_description(str(path), load_yaml(path), path.parent)


def load_yaml(path: Path) -> Any:
    """Returns what a YAML file says.

    Raises:
        ConfigError: there is none, or it is no YAML.
    """
    try:
        return yaml.safe_load(read_whole(path).decode())
    except OSError as error:
        raise_if_disk_failed(error, path)
        raise ConfigError(f"schema: expected a YAML file, found none at {path} ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"schema: {path} is no YAML: {error}") from error


def parse_description(where: str, content: Any, folder: Path | None) -> GraphInput:
    """Returns a graph's description from what a YAML file says. Relative paths are in `folder`.

    Args:
        where: it stands, for messages.
        content: {"nodes": {name: keys of NodeInput}, "edges": {"source:name:destination": keys of EdgeInput}}, and if
            they are said "time_unit" and "order".
        folder: None leaves paths as they are.

    Raises:
        ConfigError: it is none; names the key.
    """
    parts = mapping_of(where, content, ("nodes", "edges", "time_unit", "order"))
    if "nodes" not in parts:  # plain edges may do without names
        raise ConfigError(f"{where}: expected nodes and edges, found no nodes")
    nodes = {
        str(name): _parse(f"{where}: node type {name}", given, NodeInput, folder)
        for name, given in mapping_of(f"{where}: nodes", parts["nodes"]).items()
    }
    edges: dict[EdgeType, EdgeInput] = {}
    for name, given in mapping_of(f"{where}: edges", parts.get("edges") or {}).items():
        edge_type = parse_edge_type(name)
        edges[edge_type] = _parse(f"{where}: edge type {edge_type_name(edge_type)}", given, EdgeInput, folder)
    try:
        return GraphInput(nodes, edges, time_unit=parts.get("time_unit"), order=parts.get("order"))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def mapping_of(where: str, content: Any, keys: tuple[str, ...] | None = None) -> dict[Any, Any]:
    """Returns `content`, if it is a mapping whose keys are among `keys` (None: any); nothing is an empty mapping.

    Raises:
        ConfigError: it is not; says where.
    """
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where}: expected a mapping of names to what they mean, found {content!r:.80}")
    if keys is not None and (unknown := [key for key in content if key not in keys]):
        raise ConfigError(f"{where}: expected the keys {', '.join(keys)}; found {unknown[0]!r}")
    return dict(content)


def _parse(where: str, content: Any, kind: type[T], folder: Path | None) -> T:
    if isinstance(content, kind):
        return content
    known = {member.name: member for member in fields(kind)}  # type: ignore[arg-type]
    given = mapping_of(where, content, tuple(known))
    for name, value in given.items():
        expected = str(known[name].type)
        if name in _SOURCES:
            given[name] = _located(value, folder)
        elif name == "columns" and not isinstance(value, TableColumns):
            columns = mapping_of(f"{where}: columns", value, tuple(member.name for member in fields(TableColumns)))
            given[name] = TableColumns(**columns)
        elif name not in ("classes", "columns", "random_split") and not _is(value, expected):
            raise ConfigError(f"{where}: {name}: expected {expected}, found {value!r:.80}")
    try:
        return kind(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _is(value: Any, expected: str) -> bool:
    kinds = {"int": int, "bool": bool, "str": str, "None": type(None)}
    return type(value) in [kinds[name] for name in expected.split(" | ")]


def _located(value: Any, folder: Path | None) -> Any:
    if folder is None or not isinstance(value, (str, os.PathLike)) or is_url(value):
        return value
    raw = RawFile.parse(value)
    return folder / local(value, "a source") if raw is None else raw.within(folder)
