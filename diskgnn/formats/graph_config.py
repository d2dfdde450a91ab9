"""What the manifest of a graph says of it: its types of nodes and edges, and what each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from diskgnn.formats.column_records import Columns, ColumnsMember, check_columns
from diskgnn.formats.column_statistics import ColumnStatistics, check_statistics
from diskgnn.formats.record_format import ROWS
from diskgnn.formats.records import INLINE, LEFT_OUT, Codec, Key, Record, or_none, typed
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.source_contents import NO_CONTENTS, SourceContents
from diskgnn.formats.value_counts import NOTHING_UNUSUAL, ValueCounts
from diskgnn.specs.schema import (
    ONE_EDGE_TYPE,
    ONE_NODE_TYPE,
    SPLITS,
    TARGET_KINDS,
    ClassValue,
    EdgeType,
    are_class_values,
    check_type_name,
)
from diskgnn.specs.time_windows import checked_time_unit

ALL_ROWS = "all"


def id_dtype(num_ids: int) -> np.dtype[Any]:
    """Returns the dtype of ids in [0, num_ids): int32 if they fit, otherwise int64."""
    return np.dtype(np.int32 if num_ids < 1 << 31 else np.int64)


def _read_until(said: Any) -> int | str:
    return ALL_ROWS if said == ALL_ROWS else typed(said, int)


@dataclass(frozen=True)
class TargetConfig(Record):
    """Says what nodes of a type are labelled with."""

    kind: str  # of TARGET_KINDS: "class", "multilabel" or "regression"
    num_outputs: int  # classes, labels, or columns
    # Of "class": what classes 0, 1, ... are called by the user, all of one type; None: by these numbers.
    classes: Annotated[tuple[ClassValue, ...] | None, LEFT_OUT] = None

    def check_parsed(self) -> None:
        """Refuses a kind that there is not, and classes that have no names of their own."""
        if self.kind not in TARGET_KINDS or self.num_outputs < 1:
            raise ValueError(f"a target of {self.num_outputs} outputs that is a {self.kind!r}")
        if self.classes is not None and (self.kind != "class" or not are_class_values(self.classes, self.num_outputs)):
            raise ValueError(f"{self.num_outputs} classes called {self.classes!r:.80}")


@dataclass(frozen=True)
class NodeTypeConfig(Record):
    """The nodes of one type, and what they have."""

    name: Annotated[str, Codec(str, check_type_name)]
    num_nodes: int
    rows: Annotated[RowFormat | None, INLINE, or_none(ROWS)]  # None: no features
    # That the features were made from; None: they were given as an array.
    columns: ColumnsMember = field(default=None, kw_only=True)
    values: Annotated[ValueCounts, LEFT_OUT] = field(default=NOTHING_UNUSUAL, kw_only=True)  # of the features
    # Of numbers, timestamps and truth values of records, in the rows by which features are scaled.
    statistics: Annotated[tuple[ColumnStatistics, ...] | None, LEFT_OUT] = field(default=None, kw_only=True)
    target: TargetConfig | None  # None: no labels
    has_times: bool = False
    # Of a table that keeps its columns and has none: x is a single 1, and nothing is stored.
    is_constant: Annotated[bool, LEFT_OUT, Key("constant")] = False

    @property
    def num_features(self) -> int | None:
        """Returns D, the width of x; None if there are no features."""
        if self.is_constant:
            return 1
        return None if self.rows is None else self.rows.num_features

    def check_parsed(self) -> None:
        """Refuses columns that are not those of the rows."""
        check_columns(self.columns, self.rows)
        check_statistics(self.statistics, self.rows)
        if self.is_constant and self.rows is not None:
            raise ValueError(f"a constant with rows of features, {self.rows.told}")


@dataclass(frozen=True)
class EdgeTypeConfig(Record):
    """The edges of one type, and what they have."""

    type: EdgeType
    num_edges: int
    rows: Annotated[RowFormat | None, INLINE] = field(default=None, kw_only=True)  # None: no features
    # That the features were made from; None: they were given as an array.
    columns: ColumnsMember = field(default=None, kw_only=True)
    values: Annotated[ValueCounts, LEFT_OUT] = field(default=NOTHING_UNUSUAL, kw_only=True)  # of the features
    has_ids: bool = False
    has_weights: bool = False
    has_times: bool = False
    link_splits: tuple[str, ...] = ()  # of SPLITS, in their order: seed edges for link prediction
    # Edges lead from rows of a table to the rows that they refer to.
    foreign_key: Annotated[bool, LEFT_OUT] = False
    # In-neighbours are in the order of edges' times, or without these of their sources' times; then of their hashes.
    by_time: Annotated[bool, LEFT_OUT] = False

    def check_parsed(self) -> None:
        """Refuses splits that there are not, and columns that are not those of the rows."""
        check_columns(self.columns, self.rows)
        if self.link_splits != tuple(split for split in SPLITS if split in self.link_splits):
            raise ValueError(f"link splits {self.link_splits}")


@dataclass(frozen=True)
class GraphConfig(Record):
    """The types of a graph, in the order in which they were given: the number of a type is its position."""

    node_types: tuple[NodeTypeConfig, ...]
    edge_types: tuple[EdgeTypeConfig, ...]
    time_unit: Annotated[str | None, LEFT_OUT] = None  # of TIME_UNITS: of times of nodes and edges; None: nobody said
    # Of the data set that it was made from.
    contents: Annotated[SourceContents, LEFT_OUT, Key("source_contents")] = NO_CONTENTS
    # Rows of tables later than this are in no statistics of records, nor counted in categories. ALL_ROWS: all rows are;
    # None: there are no records, or nobody said.
    statistics_until: Annotated[int | str | None, LEFT_OUT, Codec(lambda until: until, _read_until)] = None

    @staticmethod
    def of_one_type(num_nodes: int, num_edges: int, num_classes: int, rows: RowFormat) -> GraphConfig:
        """Returns the config of a graph that was made from plain edges."""
        target = TargetConfig("class", num_classes)
        return GraphConfig(
            (NodeTypeConfig(ONE_NODE_TYPE, num_nodes, rows, target),), (EdgeTypeConfig(ONE_EDGE_TYPE, num_edges),)
        )

    @property
    def known_columns(self) -> dict[str | EdgeType, Columns | None]:
        """Returns the columns of each type that has features; None where these were given as an array."""
        found: dict[str | EdgeType, Columns | None] = {}
        found.update((nodes.name, () if nodes.is_constant else nodes.columns) for nodes in self.node_types
                     if nodes.num_features is not None)  # fmt: skip
        found.update((edges.type, edges.columns) for edges in self.edge_types if edges.rows is not None)
        return found

    def to_json(self, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns it as it stands in the manifest, with the options that the graph was made with."""
        return {**super().to_json(), **(options or {})}

    def check_parsed(self) -> None:
        """Refuses types that are not all different, or that edges have no nodes of, and a unit that there is not."""
        checked_time_unit(self.time_unit)
        names = [nodes.name for nodes in self.node_types]
        types = [edges.type for edges in self.edge_types]
        if not names or not types or len({*names}) < len(names) or len({*types}) < len(types):
            raise ValueError(f"node types {names} and edge types {types}")
        if unknown := [edge_type for edge_type in types if not {edge_type[0], edge_type[2]} <= {*names}]:
            raise ValueError(f"edge types {unknown} between other nodes than {names}")
