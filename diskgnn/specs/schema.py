"""Types of nodes and edges: their names, and what a source of minibatches says of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.near_names import near_name

EdgeType = tuple[str, str, str]  # (source type, name, destination type), as in PyG and DGL
ClassValue = str | int | bool  # what a class is called by the user
# By node or edge type, of those whose features were made from columns of a table: these columns.
ColumnsByType = tuple[tuple[str | EdgeType, tuple[FeatureColumn, ...]], ...]

ONE_NODE_TYPE = "node"  # of a graph made from plain edges
ONE_EDGE_TYPE: EdgeType = (ONE_NODE_TYPE, "to", ONE_NODE_TYPE)
SPLITS = ("train", "valid", "test")
TARGET_KINDS = ("class", "multilabel", "regression")
# Of in-neighbours in a graph: by a hash of theirs alone, or by time before that, where a type has times.
ORDERS = ("hash", "time")
NO_LABELS = "none"  # what seeds are for that have no labels: to be scored, not to be trained on

LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")


def check_type_name(name: object, what: str = "node type") -> str:
    """Returns `name`, if node types, or edge types' middle names, may be called so.

    Args:
        name: the name.
        what: it names, for the message.

    Raises:
        ConfigError: not 1 to 64 letters, digits, `_` or `-`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{what}: expected a name of 1 to 64 letters, digits, '_' or '-', found {name!r}")
    return name


def edge_type_name(edge_type: EdgeType) -> str:
    """Returns an edge type in JSON, YAML and on the command line.

    Example:
        >>> edge_type_name(("author", "writes", "paper"))
        'author:writes:paper'
    """
    return ":".join(edge_type)


def type_words(each: str | EdgeType) -> str:
    """Returns the words that messages have for a type: 'edges of type a:b:c', 'nodes of type d'."""
    return f"nodes of type {each}" if isinstance(each, str) else f"edges of type {edge_type_name(each)}"


def parse_edge_type(name: object, what: str = "edge type") -> EdgeType:
    """Returns the edge type of an `edge_type_name`, or of a sequence of three names; `what` it is, for the message.

    Example:
        >>> parse_edge_type("author:writes:paper")
        ('author', 'writes', 'paper')

    Raises:
        ConfigError: not three names.
    """
    parts = tuple(name.split(":")) if isinstance(name, str) else name
    if not isinstance(parts, tuple | list) or len(parts) != 3:
        raise ConfigError(f"{what}: expected 'source:name:destination', found {name!r}")
    source, middle, destination = parts
    what = f"{what} {name!r}" if what == "edge type" else what
    return check_type_name(source, what), check_type_name(middle, what), check_type_name(destination, what)


def require_node_type(argument: str, name: str, known: Collection[str]) -> None:
    """Checks that a graph has the node type that an `argument` names.

    Raises:
        ConfigError: it has not; says which ones it has.
    """
    if name not in known:
        raise ConfigError(
            f"{argument}: the graph has no node type {name!r}, only {', '.join(known)}{near_name(name, known)}"
        )


def require_edge_type(argument: str, edge_type: EdgeType, known: Collection[EdgeType]) -> None:
    """Checks that a graph has the edge type that an `argument` names.

    Raises:
        ConfigError: it has not; says which ones it has.
    """
    if edge_type not in known:
        name, names = edge_type_name(edge_type), [*map(edge_type_name, known)]
        raise ConfigError(
            f"{argument}: the graph has no edge type {name}, only {', '.join(names)}{near_name(name, names)}"
        )


def are_class_values(values: Sequence[object], num_classes: int) -> bool:
    """Returns True if these can be what as many classes are called: all different, and all text, all whole numbers or
    all truth values."""
    kinds = {type(value) for value in values}
    return (kinds <= {str} or kinds <= {int} or kinds <= {bool}) and len({*values}) == len(values) == num_classes


def reverse_edge_type(edge_type: EdgeType) -> EdgeType:
    """Returns the type of the same edges in the other direction.

    Example:
        >>> reverse_edge_type(("author", "writes", "paper"))
        ('paper', 'rev_writes', 'author')
    """
    source, name, destination = edge_type
    return destination, f"rev_{name}", source


def are_paths(segments: Iterable[tuple[str, int]]) -> bool:
    """Returns True if segments of hop features, (name, width), are of paths such as 'author:writes', not of hops."""
    return any(":" in name for name, _ in segments)


@dataclass(frozen=True)
class TableColumn:
    """A column that a table kept, as minibatches have it in `columns` and `nulls`."""

    name: str
    kind: str  # 'numerical', 'timestamp', 'categorical', 'boolean', 'multicategorical' or 'embedding'
    dtype: str  # of the values, as NumPy and torch call it
    width: int = 1  # values; above 1 of 'multicategorical' and 'embedding' only, which are [n, width]
    num_values: int | None = None  # of categories: codes are less
    may_be_null: bool = False
    values_digest: str | None = None  # names what the codes of categories stand for: other values have another one
    embedder: str | None = None  # of 'embedding': what made it of text; None: it was given


TablesByType = tuple[tuple[str, tuple[TableColumn, ...]], ...]


@dataclass(frozen=True)
class SourceSchema:
    """Says what a `BatchSource` yields: types of nodes and edges, and what the seeds are asked for.

    A source of one node type and one edge type yields `MiniBatch`es, any other source `TypedMiniBatch`es, and one with
    segments `HopBatch`es. Types are in the order of the graph; the number of a type is its position there.
    """

    node_types: tuple[tuple[str, int, int | None], ...]  # (name, nodes, features of each; None: has no features)
    edge_types: tuple[tuple[EdgeType, int | None], ...]  # (type, features of each edge; None: has no features)
    target: str | EdgeType  # the type of the seeds: of nodes, or of edges for link prediction
    target_kind: str  # one of TARGET_KINDS; "link" for link prediction; NO_LABELS
    num_outputs: int  # classes, labels, or columns of the regression; 1 for link prediction and without labels
    classes: tuple[ClassValue, ...] | None = None  # what classes 0, 1, ... are called; None: by these numbers
    columns: ColumnsByType = ()  # what features mean, where that is known
    segments: tuple[tuple[str, int], ...] = ()  # (name, width) of those of hop features, which come without blocks
    tables: TablesByType = ()  # what minibatches have in `columns`, by node type
    # Node types whose times minibatches have, beside those of the seeds; None: they do not have these.
    timed: tuple[str, ...] | None = None
    time_unit: str | None = None  # of these times, where the graph says it

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> SourceSchema:
        """Returns the schema that `dataclasses.asdict` made this of, as checkpoints keep it."""
        columns = [(name, tuple(map(FeatureColumn.of_record, each))) for name, each in record.get("columns", ())]
        segments = tuple((name, width) for name, width in record.get("segments", ()))
        tables = [(name, tuple(TableColumn(**column) for column in each)) for name, each in record.get("tables", ())]
        timed = record.get("timed")
        read = {"columns": tuple(columns), "segments": segments, "tables": tuple(tables)}
        return SourceSchema(**{**record, **read, "timed": None if timed is None else tuple(timed)})

    @property
    def known_columns(self) -> dict[str | EdgeType, tuple[FeatureColumn, ...] | None]:
        """Returns the columns of each type that has features; None where nobody knows them, as of an array."""
        columns = dict(self.columns)
        types: list[str | EdgeType] = [name for name, _, width in self.node_types if width is not None]
        types += [name for name, width in self.edge_types if width is not None]
        return {name: columns.get(name) for name in types}

    @property
    def has_paths(self) -> bool:
        """Returns True if the segments are of paths of edge types, in place of the hops of an operator."""
        return are_paths(self.segments)

    @property
    def is_typed(self) -> bool:
        """Returns True if there is more than one type of node or of edge."""
        return len(self.node_types) > 1 or len(self.edge_types) > 1

    @property
    def num_nodes(self) -> Mapping[str, int]:
        """Returns the nodes of each node type."""
        return {name: nodes for name, nodes, _ in self.node_types}

    @property
    def num_features(self) -> Mapping[str, int | None]:
        """Returns the length of the feature rows of each node type; None for a type without features."""
        return {name: features for name, _, features in self.node_types}

    @property
    def num_edge_features(self) -> Mapping[EdgeType, int | None]:
        """Returns the length of the feature rows of each edge type; None for a type without features."""
        return dict(self.edge_types)


def one_type_schema(num_nodes: int, num_features: int, num_classes: int) -> SourceSchema:
    """Returns the schema of a source of one node type and one edge type whose seeds are nodes with a class each."""
    return SourceSchema(
        ((ONE_NODE_TYPE, num_nodes, num_features),), ((ONE_EDGE_TYPE, None),), ONE_NODE_TYPE, "class", num_classes
    )
