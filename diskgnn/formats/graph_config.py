"""What the manifest of a graph says of it: its types of nodes and edges, and what each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diskgnn.formats.column_records import Columns, columns_to_json, parse_columns
from diskgnn.formats.manifest_document import typed
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.source_contents import SourceContents
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
    edge_type_name,
    parse_edge_type,
)


@dataclass(frozen=True)
class TargetConfig:
    """What nodes of a type are labelled with."""

    kind: str  # of TARGET_KINDS: "class", "multilabel" or "regression"
    num_outputs: int  # classes, labels, or columns
    # Of "class": what classes 0, 1, ... are called by the user, all of one type; None: by these numbers.
    classes: tuple[ClassValue, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        named = {} if self.classes is None else {"classes": list(self.classes)}
        return {"kind": self.kind, "num_outputs": self.num_outputs, **named}

    @staticmethod
    def parse(config: Mapping[str, Any]) -> TargetConfig:
        """Raises ValueError or KeyError for what no graph's manifest says."""
        classes = tuple(typed(config["classes"], list)) if "classes" in config else None
        target = TargetConfig(typed(config["kind"], str), typed(config["num_outputs"], int), classes)
        if classes is not None and (target.kind != "class" or not are_class_values(classes, target.num_outputs)):
            raise ValueError(f"{target.num_outputs} classes called {classes!r:.80}")
        if target.kind not in TARGET_KINDS or target.num_outputs < 1:
            raise ValueError(f"a target of {target.num_outputs} outputs that is a {target.kind!r}")
        return target


@dataclass(frozen=True)
class NodeTypeConfig:
    """The nodes of one type, and what they have."""

    name: str
    num_nodes: int
    rows: RowFormat | None  # None: no features
    target: TargetConfig | None  # None: no labels
    has_times: bool = False
    values: ValueCounts = NOTHING_UNUSUAL  # of the features
    columns: Columns | None = None  # that the features were made from; None: they were given as an array

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return {
            "name": self.name,
            "num_nodes": self.num_nodes,
            **({} if self.rows is None else self.rows.to_json()),
            **columns_to_json(self.columns),
            **self.values.to_json(),
            "target": None if self.target is None else self.target.to_json(),
            "has_times": self.has_times,
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> NodeTypeConfig:
        """Raises ValueError or KeyError for what no graph's manifest says."""
        rows = _parse_rows(config)
        return NodeTypeConfig(
            check_type_name(config["name"]),
            typed(config["num_nodes"], int),
            rows,
            None if config["target"] is None else TargetConfig.parse(typed(config["target"], dict)),
            typed(config["has_times"], bool),
            ValueCounts.parse(config),
            parse_columns(config, rows),
        )


@dataclass(frozen=True)
class EdgeTypeConfig:
    """The edges of one type, and what they have."""

    type: EdgeType
    num_edges: int
    has_ids: bool = False
    rows: RowFormat | None = None  # None: no features
    has_weights: bool = False
    has_times: bool = False
    link_splits: tuple[str, ...] = ()  # of SPLITS, in their order: seed edges for link prediction
    values: ValueCounts = NOTHING_UNUSUAL  # of the features
    columns: Columns | None = None  # that the features were made from; None: they were given as an array

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return {
            "type": edge_type_name(self.type),
            "num_edges": self.num_edges,
            **({} if self.rows is None else self.rows.to_json()),
            **columns_to_json(self.columns),
            **self.values.to_json(),
            "has_ids": self.has_ids,
            "has_weights": self.has_weights,
            "has_times": self.has_times,
            "link_splits": list(self.link_splits),
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> EdgeTypeConfig:
        """Raises ValueError or KeyError for what no graph's manifest says."""
        link_splits, rows = tuple(typed(config["link_splits"], list)), _parse_rows(config)
        if link_splits != tuple(split for split in SPLITS if split in link_splits):
            raise ValueError(f"link splits {link_splits}")
        return EdgeTypeConfig(
            parse_edge_type(typed(config["type"], str)),
            typed(config["num_edges"], int),
            typed(config["has_ids"], bool),
            rows,
            typed(config["has_weights"], bool),
            typed(config["has_times"], bool),
            link_splits,
            ValueCounts.parse(config),
            parse_columns(config, rows),
        )


def _parse_rows(config: Mapping[str, Any]) -> RowFormat | None:
    return RowFormat.parse(config) if "feature_dtype" in config else None


@dataclass(frozen=True)
class GraphConfig:
    """The types of a graph, in the order in which they were given: the number of a type is its position."""

    node_types: tuple[NodeTypeConfig, ...]
    edge_types: tuple[EdgeTypeConfig, ...]
    contents: SourceContents = field(default_factory=SourceContents)  # of the data set that it was made from

    @staticmethod
    def of_one_type(num_nodes: int, num_edges: int, num_classes: int, rows: RowFormat) -> GraphConfig:
        """That of a graph made from plain edges."""
        target = TargetConfig("class", num_classes)
        return GraphConfig(
            (NodeTypeConfig(ONE_NODE_TYPE, num_nodes, rows, target),), (EdgeTypeConfig(ONE_EDGE_TYPE, num_edges),)
        )

    @property
    def known_columns(self) -> dict[str | EdgeType, Columns | None]:
        """The columns of each type that has features; None where these were given as an array."""
        found: dict[str | EdgeType, Columns | None] = {}
        found.update((nodes.name, nodes.columns) for nodes in self.node_types if nodes.rows is not None)
        found.update((edges.type, edges.columns) for edges in self.edge_types if edges.rows is not None)
        return found

    def to_json(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """As it stands in the manifest, with the options that the graph was made with."""
        return {
            "node_types": [nodes.to_json() for nodes in self.node_types],
            "edge_types": [edges.to_json() for edges in self.edge_types],
            **({} if self.contents == SourceContents() else {"source_contents": self.contents.to_json()}),
            **options,
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> GraphConfig:
        """Raises ValueError or KeyError for what no graph's manifest says."""
        parsed = GraphConfig(
            tuple(NodeTypeConfig.parse(typed(nodes, dict)) for nodes in typed(config["node_types"], list)),
            tuple(EdgeTypeConfig.parse(typed(edges, dict)) for edges in typed(config["edge_types"], list)),
            SourceContents.parse(typed(config["source_contents"], dict))
            if "source_contents" in config
            else SourceContents(),
        )
        names = [nodes.name for nodes in parsed.node_types]
        types = [edges.type for edges in parsed.edge_types]
        if not names or not types or len({*names}) < len(names) or len({*types}) < len(types):
            raise ValueError(f"node types {names} and edge types {types}")
        if unknown := [edge_type for edge_type in types if not {edge_type[0], edge_type[2]} <= {*names}]:
            raise ValueError(f"edge types {unknown} between other nodes than {names}")
        return parsed
