"""What a synthetic graph with types is to look like: read from YAML or mappings, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from diskgnn.errors import ConfigError
from diskgnn.importers.graph_input import load_yaml, mapping_of
from diskgnn.paths import PathLike
from diskgnn.specs.schema import (
    SPLITS,
    TARGET_KINDS,
    EdgeType,
    check_type_name,
    edge_type_name,
    parse_edge_type,
    reverse_edge_type,
)
from diskgnn.stores.locations import local

DTYPES = ("float32", "float16", "bfloat16", "int8")

T = TypeVar("T")


@dataclass(frozen=True)
class NodeTypeSpec:
    """The nodes of one type."""

    num_nodes: int
    features: int = 0  # length of their rows; 0: none
    dtype: str = "float32"  # of DTYPES
    labels: str | None = None  # "class", "multilabel", "regression" or None
    train: float = 0.0  # share of the nodes in the split
    valid: float = 0.0
    test: float = 0.0
    times: tuple[int, int] | None = None  # first and last


@dataclass(frozen=True)
class EdgeTypeSpec:
    """The edges of one type."""

    num_edges: int
    homophily: float = 0.7  # share of edges between nodes of one class, about
    features: int = 0  # length of their rows; 0: none
    dtype: str = "float32"  # of DTYPES but bfloat16
    weights: bool = False
    times: tuple[int, int] | None = None  # first and last
    reverse: bool = False  # add the type of the opposite edges


@dataclass(frozen=True)
class TypedGraphSpec:
    """A synthetic graph with types.

    Raises:
        ConfigError: a value that makes no sense; names it.
    """

    classes: int  # that nodes of each type belong to
    nodes: Mapping[str, NodeTypeSpec]
    edges: Mapping[EdgeType, EdgeTypeSpec]

    def __post_init__(self) -> None:
        if not self.nodes or not self.edges or self.classes < 1:
            raise ConfigError("expected at least one type of nodes, one of edges, and one class")
        for name, nodes in self.nodes.items():
            where = f"node type {check_type_name(name)}"
            if nodes.num_nodes < 2 * self.classes:
                raise ConfigError(f"{where}: expected at least 2 nodes for each of {self.classes} classes, found "
                                  f"{nodes.num_nodes}")  # fmt: skip
            if nodes.labels is not None and nodes.labels not in TARGET_KINDS:
                raise ConfigError(f"{where}: labels: expected one of {', '.join(TARGET_KINDS)}, found {nodes.labels!r}")
            shares = [getattr(nodes, split) for split in SPLITS]
            if min(shares) < 0 or sum(shares) > 1 + 1e-9 or (nodes.labels is None and any(shares)):
                raise ConfigError(f"{where}: expected shares of labelled nodes from 0 to 1 in all, found {shares}")
            _check(where, nodes)
        for edge_type, edges in self.edges.items():
            where = f"edge type {edge_type_name(edge_type)}"
            if unknown := [end for end in (edge_type[0], edge_type[2]) if end not in self.nodes]:
                raise ConfigError(f"{where}: expected node types of {', '.join(self.nodes)}, found {unknown[0]!r}")
            if edges.reverse and reverse_edge_type(edge_type) in self.edges:
                raise ConfigError(f"{where}: reverse would add a type that is there already; leave out one of them")
            if edges.num_edges < 0 or not 0 <= edges.homophily <= 1 or edges.dtype == "bfloat16":
                raise ConfigError(
                    f"{where}: expected 0 edges or more, a homophily from 0 to 1, and another dtype than bfloat16"
                )
            _check(where, edges)

    def to_json(self) -> dict[str, Any]:
        """Returns what stands in the manifest."""
        return {
            "classes": self.classes,
            "nodes": {name: asdict(nodes) for name, nodes in self.nodes.items()},
            "edges": {edge_type_name(edge_type): asdict(edges) for edge_type, edges in self.edges.items()},
        }


def _check(where: str, given: NodeTypeSpec | EdgeTypeSpec) -> None:
    if given.dtype not in DTYPES or given.features < 0:
        raise ConfigError(f"{where}: expected a dtype of {', '.join(DTYPES)} and 0 features or more, found "
                          f"{given.features} x {given.dtype!r}")  # fmt: skip
    if given.times is not None and given.times[0] > given.times[1]:
        raise ConfigError(f"{where}: times: expected [first, last], found {list(given.times)}")


def read_spec(schema: PathLike | Mapping[str, Any]) -> TypedGraphSpec:
    """Returns the graph that a YAML file or mappings describe: `classes` (16 by default), `scale`, `nodes` and `edges`.

    All numbers of nodes and edges are multiplied by `scale` (1 by default), but two nodes of each class stay.

    Raises:
        ConfigError: it is none; names the key.
    """
    where = "schema" if isinstance(schema, Mapping) else str(schema)
    content = schema if isinstance(schema, Mapping) else load_yaml(local(schema, "schema"))
    parts = mapping_of(where, content, ("classes", "scale", "nodes", "edges"))
    scale, classes = parts.get("scale", 1), parts.get("classes", 16)
    if type(scale) not in (int, float) or scale <= 0 or type(classes) is not int:
        raise ConfigError(f"{where}: expected a scale above 0 and whole classes, found {scale!r} and {classes!r}")
    nodes, edges = dict[str, NodeTypeSpec](), dict[EdgeType, EdgeTypeSpec]()
    for name, given in mapping_of(f"{where}: nodes", parts.get("nodes")).items():
        found = _parse(f"{where}: node type {name}", given, NodeTypeSpec)
        least = min(found.num_nodes, 2 * classes)
        nodes[str(name)] = replace(found, num_nodes=max(least, round(found.num_nodes * scale)))
    for name, given in mapping_of(f"{where}: edges", parts.get("edges")).items():
        described = _parse(f"{where}: edge type {name}", given, EdgeTypeSpec)
        edges[parse_edge_type(name)] = replace(described, num_edges=round(described.num_edges * scale))
    try:
        return TypedGraphSpec(classes, nodes, edges)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _parse(where: str, content: Any, kind: type[T]) -> T:
    known = {member.name: str(member.type) for member in fields(kind)}  # type: ignore[arg-type]
    given = mapping_of(where, content, tuple(known))
    for name, value in given.items():
        expected = known[name]
        if expected.startswith("tuple"):
            valid = isinstance(value, list | tuple) and len(value) == 2 and all(type(each) is int for each in value)
            given[name] = tuple(value) if valid else value
        else:
            kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,)}
            valid = type(value) in kinds.get(expected, (str, type(None)))
        if not valid:
            raise ConfigError(f"{where}: {name}: expected {expected}, found {value!r:.80}")
    required = "num_nodes" if kind is NodeTypeSpec else "num_edges"
    if required not in given:
        raise ConfigError(f"{where}: expected {required}")
    return kind(**given)
