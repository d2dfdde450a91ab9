"""A described graph, opened as a whole, and written into a graph directory type by type."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file, node_file
from diskgnn.formats.graph_config import GraphConfig, NodeTypeConfig, TargetConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.source_contents import SourceContents
from diskgnn.formats.value_counts import ValueCounts
from diskgnn.graph.bucket_layout import index_dtype
from diskgnn.graph.csc import EdgeList, write_csc
from diskgnn.graph.edge_records import EdgeColumn, record_dtype
from diskgnn.importers import node_data
from diskgnn.importers.containers.rows import EdgeStream
from diskgnn.importers.graph_input import GraphInput
from diskgnn.importers.graph_sources import (
    OpenEdges,
    OpenNodes,
    open_edges,
    open_nodes,
    open_topology,
    rows_of,
    type_owner,
)
from diskgnn.importers.quantising import quantised_format, write_quantised
from diskgnn.importers.source_listing import SourceListing, warn_of_left_out
from diskgnn.importers.value_scan import ValueScan
from diskgnn.progress.reporter import Reporter
from diskgnn.specs.schema import EdgeType, edge_type_name
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Work
from diskgnn.work.writer import ArtifactWriter

Details = dict[str, int | float | str]


@dataclass(frozen=True)
class OpenGraph:
    """All types of a graph, to be streamed."""

    typed: bool  # described by types; otherwise made from plain edges, which messages and reports need no names for
    nodes: Mapping[str, OpenNodes]
    edges: Mapping[EdgeType, OpenEdges]
    stored_rows: Mapping[str, RowFormat | None]  # of the features of each node type, as they will be stored
    contents: SourceContents = field(default_factory=SourceContents)  # of tables

    @property
    def needed_bytes(self) -> int:
        """Disk space for the graph, before edges are dropped."""
        needed_bytes = 0
        for name, nodes in self.nodes.items():
            rows = self.stored_rows[name]
            needed_bytes += 0 if rows is None or nodes.given.reference_features else nodes.num_nodes * rows.row_bytes
            needed_bytes += sum(0 if small is None else small.total_bytes for small in (nodes.labels, nodes.times))
        for edges in self.edges.values():
            given = edges.list
            num_edges = given.num_input_edges * (1 + given.options.reverse) + given.num_nodes * given.options.self_loops
            item_bytes = index_dtype(given.num_sources).itemsize + record_dtype(given.columns).itemsize
            needed_bytes += num_edges * item_bytes + (given.num_nodes + 1) * 8
        return needed_bytes

    @property
    def read_bytes(self) -> int:
        """Of all files that will be read."""
        read_bytes = sum(2 * edges.stored_bytes for edges in self.edges.values())
        for name, nodes in self.nodes.items():
            rows = self.stored_rows[name]
            passes = 2 if rows is not None and nodes.given.quantise in ("int8", "int4") else 1
            read_bytes += 0 if nodes.features is None else passes * nodes.features.stored_bytes
            read_bytes += sum(0 if small is None else small.stored_bytes for small in (nodes.labels, nodes.times))
        return read_bytes


def open_graph(given: GraphInput, *, typed: bool, topologies: Mapping[EdgeType, EdgeStream] | None = None) -> OpenGraph:
    """Open all sources and compare them.

    Args:
        given: the graph.
        typed: messages and reports name the types.
        topologies: of edges whose ids were replaced, which are read instead of what is given.

    Raises:
        ConfigError: what is given does not go together.
        InputError: what is given is no graph.
    """
    owners = {edge_type: type_owner("edge", edge_type) if typed else "" for edge_type in given.edges}
    replaced = topologies or {}
    topologies = {
        edge_type: replaced.get(edge_type) or open_topology(edges, owners[edge_type])
        for edge_type, edges in given.edges.items()
    }
    nodes, listing = {}, SourceListing()
    for name, described in given.nodes.items():
        counted = {
            f"indptr of {owners[edge_type]}" if typed else "indptr": topology.num_nodes
            for edge_type, topology in topologies.items()
            if edge_type[2] == name and topology.num_nodes is not None
        }
        nodes[name] = open_nodes(
            described, type_owner("node", name) if typed else "", counted, name, listing, given.encoding
        )
    stored_rows = {name: _stored_rows(opened) for name, opened in nodes.items()}
    num_nodes = {name: opened.num_nodes for name, opened in nodes.items()}
    edges = {}
    for edge_type, edges_given in given.edges.items():
        opening = open_edges(
            edge_type, edges_given, topologies[edge_type], owners[edge_type], num_nodes, listing, given.encoding
        )
        for opened_edges in opening:
            edges[opened_edges.list.type] = opened_edges
            if not topologies[edge_type].num_edges:
                warnings.warn(
                    f"{type_owner('edge', opened_edges.list.type) if typed else 'the graph'} has no edges",
                    DataWarning,
                    stacklevel=callers_level(),
                )
    contents = listing.contents()
    warn_of_left_out(contents)
    return OpenGraph(typed, nodes, edges, stored_rows, contents)


def _stored_rows(nodes: OpenNodes) -> RowFormat | None:
    given, features, rows = nodes.given, nodes.features, nodes.row_format
    where = nodes.owner and nodes.owner + ": "
    if features is None or rows is None:
        if given.reference_features or given.quantise is not None:
            raise ConfigError(f"{where}expected features to store or refer to, found none")
        return None
    if given.reference_features and features.path is None:
        raise ConfigError(
            f"{where}reference_features: features can stay where they are only as a .npy file in C order, or as "
            "raw:DTYPE:WIDTH:PATH without a header, in native byte order and a dtype that is stored as it is (float32, "
            "float16, int8, bfloat16 as uint16): save np.ascontiguousarray(features, np.float32), or leave it out"
        )
    if given.reference_features and given.quantise is not None:
        raise ConfigError(f"{where}quantise: quantised features are written anew; leave out reference_features=True")
    return rows if given.quantise is None else quantised_format(given.quantise, rows)


@dataclass(frozen=True)
class WrittenGraph:
    """What the files of a graph directory hold."""

    config: GraphConfig
    details: Details  # for the report


def write_graph(writer: ArtifactWriter, graph: OpenGraph, resources: Resources) -> WrittenGraph:
    """Write all files of a graph, those of small data first: what is wrong with them is found before the long passes.

    Raises:
        InputError: data that is no graph; says where.
        DiskFullError: too little disk space.
    """
    targets, details = dict[str, TargetConfig | None](), Details()
    sizes = {name: _write_small(writer, name, nodes, targets) for name, nodes in graph.nodes.items()}
    for edges in graph.edges.values():
        for split, pairs in edges.splits.items():
            writer.save_array(edge_file(split, edges.list.type), pairs)
    edge_configs = []
    for edge_type, edges in graph.edges.items():
        num_edges, values = _write_edges(writer, edges, resources)
        edge_configs.append(edges.config(num_edges, values))
        details[f"num_edges of {edge_type_name(edge_type)}" if graph.typed else "num_edges"] = num_edges
    node_configs = []
    for name, nodes in graph.nodes.items():
        found, values = _write_features(writer, name, nodes, graph.stored_rows[name], resources.reporter)
        target = targets[name]
        node_configs.append(
            NodeTypeConfig(
                name, nodes.num_nodes, graph.stored_rows[name], target, nodes.times is not None, values=values,
                columns=None if nodes.features is None else nodes.features.columns,
            )
        )  # fmt: skip
        facts: Details = {"num_nodes": nodes.num_nodes}
        if target is not None:
            facts |= _target_facts(target)
        facts |= sizes[name] | found
        details |= {f"{fact} of {name}": value for fact, value in facts.items()} if graph.typed else facts
    return WrittenGraph(GraphConfig(tuple(node_configs), tuple(edge_configs)), details)


def _target_facts(target: TargetConfig) -> Details:
    """Returns what a report says of labels: that they are no classes is seen before a model is trained on them."""
    count = target.num_outputs
    if target.kind == "class":
        return {"num_classes": count}
    if target.kind == "multilabel":
        told = f"uint8 [N, {count}], {count} labels of 0 or 1 each"
    else:
        told = "float32 [N], a regression target" if count == 1 else f"float32 [N, {count}], {count} regression targets"
    return {"num_outputs": count, "labels": told}


def _write_edges(writer: ArtifactWriter, edges: OpenEdges, resources: Resources) -> tuple[int, ValueCounts]:
    """Writes all files of an edge type.

    Returns:
        The number of its edges; what their features hold that training fails on, which is warned of.
    """
    given = edges.list
    features = next((column for column in given.columns if column.kind == artifacts.EDGE_FEATURES), None)
    if features is None:
        num_edges, values = write_csc(writer, given, resources), ValueCounts()
    else:
        num_edges, values = _write_with_features(writer, given, features, resources)
    return num_edges, values


def _write_with_features(
    writer: ArtifactWriter, given: EdgeList, features: EdgeColumn, resources: Resources
) -> tuple[int, ValueCounts]:
    work = Work(writer, f"edge_features-{'.'.join(given.type)}")
    scan = ValueScan(rows_of(features))
    if found := work.state_of("values"):
        scan = ValueScan(rows_of(features), given.num_input_edges, found["counts"])
    scanned = replace(features, chunks_from=scan.following(features.chunks_from))
    columns = tuple(scanned if column is features else column for column in given.columns)
    num_edges = write_csc(writer, replace(given, columns=columns), resources)
    scan.finish(features.chunks_from, given.num_input_edges)
    scan.warn(features.name, "edge")
    work.note("values", {"counts": scan.found})
    return num_edges, scan.counts


def _write_small(
    writer: ArtifactWriter, name: str, nodes: OpenNodes, targets: dict[str, TargetConfig | None]
) -> dict[str, int]:
    """Labels, times and splits of a node type; nodes in each split."""
    targets[name] = None
    if nodes.times is not None:
        node_data.write_rows(writer, node_file(artifacts.TIMES, name), nodes.times)
    if nodes.labels is None:
        return {}
    file = node_file(artifacts.LABELS, name)
    if nodes.given.task == "class":
        num_classes = nodes.given.num_classes if nodes.classes is None else len(nodes.classes)
        targets[name] = TargetConfig(
            "class", node_data.write_labels(writer, name, nodes.labels, num_classes), nodes.classes
        )
    else:
        node_data.write_rows(writer, file, nodes.labels)
        targets[name] = TargetConfig(nodes.given.task, nodes.labels.row_shape[0] if nodes.labels.row_shape else 1)
    return node_data.write_splits(writer, name, nodes.splits, nodes.num_nodes, nodes.owner, nodes.split_origin)


def _write_features(
    writer: ArtifactWriter, name: str, nodes: OpenNodes, stored: RowFormat | None, reporter: Reporter
) -> tuple[Details, ValueCounts]:
    """The features of a node type; what quantising them changed, and what they hold that training fails on."""
    if nodes.features is None:
        return {}, ValueCounts()
    given_format = nodes.row_format
    assert given_format is not None
    assert stored is not None
    if nodes.given.quantise is not None:
        details = write_quantised(writer, name, nodes.features, given_format, stored, reporter).details()
        return details, ValueCounts()
    reference, rows = nodes.given.reference_features, nodes.features

    values = node_data.write_features(writer, name, rows, given_format, reference=reference, reporter=reporter)
    return {}, values
