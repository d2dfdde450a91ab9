"""Describes the types of a graph, for `diskgnn inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diskgnn.formats import artifacts
from diskgnn.formats.record_format import RecordFormat
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.specs.schema import edge_type_name


def is_plain(graph: Graph) -> bool:
    """Returns True if there is no schema to draw.

    That is a graph with one type of nodes, which have features and classes, and one type of edges, which carry nothing.
    """
    if graph.is_typed:
        return False
    nodes, edges = graph.only_nodes("inspect").config, graph.only_edges("inspect").config
    carried = edges.rows is not None or edges.has_weights or edges.has_times or edges.has_ids or edges.link_splits
    is_class = nodes.target is not None and nodes.target.kind == "class"
    return is_class and nodes.rows is not None and not nodes.has_times and not carried


def schema_facts(graph: Graph) -> dict[str, Any]:
    """Returns counts, and `node_types` and `edge_types` in their order, each a dictionary of plain values."""
    return {
        "nodes": sum(nodes.num_nodes for nodes in graph.nodes.values()),
        "edges": sum(edges.num_edges for edges in graph.edges.values()),
        "node_types": [_node_facts(nodes) for nodes in graph.nodes.values()],
        "edge_types": [_edge_facts(edges) for edges in graph.edges.values()],
        **(
            {"kept_columns": kept}
            if (kept := [each for nodes in graph.nodes.values() for each in _kept_columns(nodes)])
            else {}
        ),
    }


def _kept_columns(nodes: NodeSet) -> Iterator[dict[str, Any]]:
    """Yields the columns that rows of a table keep."""
    rows = nodes.config.rows
    for field in rows.fields if isinstance(rows, RecordFormat) else ():
        yield {
            "of": nodes.name,
            "name": field.name,
            "kind": field.kind,
            "dtype": field.dtype,
            "width": field.width,
            "offset": field.offset,
            "may_be_null": field.null_bit is not None,
            "values": field.num_values,
            "quantised": field.quantised,
        }


def _node_facts(nodes: NodeSet) -> dict[str, Any]:
    target, rows = nodes.config.target, nodes.config.rows
    return {
        "type": nodes.name,
        "nodes": nodes.num_nodes,
        "features": "1, always 1" if nodes.config.is_constant else _row(rows),
        "feature_bytes": 0 if rows is None else rows.row_bytes * nodes.num_nodes,
        "unusual_values": str(nodes.config.values),
        "labels": "" if target is None else f"{target.kind} ({target.num_outputs})",
        "class_values": "" if target is None or target.classes is None else list(target.classes),
        "times": nodes.config.has_times,
        "user_ids": artifacts.ids_file(nodes.name) in nodes.manifest.files,
        **{split: len(nodes.splits.get(split, ())) for split in ("train", "valid", "test")},
    }


def _edge_facts(edges: EdgeSet) -> dict[str, Any]:
    config = edges.config
    carried = {"ids": config.has_ids, "weights": config.has_weights, "times": config.has_times,
               "by_time": config.by_time}  # fmt: skip
    return {
        "type": edge_type_name(edges.type),
        "edges": edges.num_edges,
        "mean_in_degree": edges.num_edges / max(1, edges.num_destinations),
        "features": _row(config.rows),
        "feature_bytes": 0 if config.rows is None else config.rows.row_bytes * edges.num_edges,
        "unusual_values": str(config.values),
        **carried,
        **{f"{split}_links": len(edges.splits.get(split, ())) for split in ("train", "valid", "test")},
    }


def _row(rows: RowFormat | None) -> str:
    return "" if rows is None else rows.told
