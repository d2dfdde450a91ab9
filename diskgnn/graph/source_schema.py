"""Derives the schema of minibatches from a graph and what is to be predicted."""

from __future__ import annotations

from dataclasses import replace

from diskgnn.errors import ConfigError
from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.record_format import RecordFormat
from diskgnn.graph.graph import Graph
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import SourceSchema, TablesByType
from diskgnn.specs.targets import LinkTarget, Target


def label_target(graph: Graph, target: Target) -> TargetConfig | None:
    """Returns what the y of seeds is. `target` names a type. Returns None for links to predict, and if seeds have no
    labels.
    """
    if target.labels is None:
        if isinstance(target, LinkTarget):
            return None
        return graph.nodes[str(target.node_type)].config.target
    first, *_ = arrays = list(target.labels.values())
    if first.dtype.kind == "i":
        num_classes = target.num_classes or max(2, 1 + max(int(each.max()) for each in arrays))
        return TargetConfig("class", num_classes, target.classes)
    return TargetConfig("multilabel" if first.dtype.kind == "u" else "regression", first.size // len(first))


def source_schema(graph: Graph, target: Target) -> SourceSchema:
    """Returns the schema of minibatches of `graph` whose seeds are those of `target`, which names a type.

    Raises:
        ConfigError: nodes of that type have no labels.
    """
    nodes = tuple((each.name, each.num_nodes, each.config.num_features) for each in graph.nodes.values())
    edges = tuple(
        (each.type, None if each.config.rows is None else each.config.rows.num_features)
        for each in graph.edges.values()
    )
    labels = label_target(graph, target)
    columns = tuple((name, each) for name, each in graph.config.known_columns.items() if each is not None)
    seeds = target.edge_type if isinstance(target, LinkTarget) else target.node_type
    assert seeds is not None
    if labels is not None:
        return SourceSchema(nodes, edges, seeds, labels.kind, labels.num_outputs, labels.classes, columns)
    if isinstance(target, LinkTarget):
        return SourceSchema(nodes, edges, seeds, "link", 1, columns=columns)
    raise ConfigError(f"{graph.manifest.path}: {seeds} nodes have no labels; convert with some")


def minibatch_schema(graph: Graph, spec: SamplingSpec) -> SourceSchema:
    """Returns the same of minibatches as a `Loader` reads them, with the columns and times that these have.

    Raises:
        ConfigError: see `source_schema`.
    """
    graph = graph.without(spec.without)
    timed = tuple(each.name for each in graph.nodes.values() if each.config.has_times)
    keeps_times = (spec.keep_times or graph.keeps_columns) and spec.is_temporal
    return replace(
        source_schema(graph, spec.target),
        tables=kept_tables(graph),
        timed=timed if keeps_times else None,
        time_unit=graph.config.time_unit if keeps_times else None,
    )


def kept_tables(graph: Graph) -> TablesByType:
    """Returns the columns of the node types whose tables kept them."""
    return tuple(
        (each.name, rows.columns(each.config.columns, each.values_digest))
        for each in graph.nodes.values() if isinstance(rows := each.config.rows, RecordFormat)
    )  # fmt: skip
