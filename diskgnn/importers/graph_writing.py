"""A described graph, opened as a whole, and written into a graph directory type by type."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file, node_file
from diskgnn.formats.graph_config import GraphConfig, NodeTypeConfig, TargetConfig, id_dtype
from diskgnn.formats.source_contents import SourceContents
from diskgnn.formats.value_counts import ValueCounts
from diskgnn.graph.csc import write_csc
from diskgnn.graph.edge_records import record_dtype
from diskgnn.importers import node_data
from diskgnn.importers.containers.rows import EdgeStream, RowSource
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
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.skipped_edges import known_edges
from diskgnn.importers.source_listing import SourceListing, warn_of_left_out
from diskgnn.importers.value_scan import ValueScan
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
    contents: SourceContents = field(default_factory=SourceContents)  # of tables
    time_unit: str | None = None  # of all times; None: nobody said
    statistics_until: int | str | None = None  # see `GraphInput`

    @property
    def needed_bytes(self) -> int:
        """Returns the disk space for the graph, before edges are dropped."""
        needed_bytes = 0
        for nodes in self.nodes.values():
            needed_bytes += 0 if nodes.features is None else nodes.features.needed_bytes
            needed_bytes += sum(0 if small is None else small.total_bytes for small in (nodes.labels, nodes.times))
        for edges in self.edges.values():
            given = edges.list
            num_edges = given.num_input_edges * (1 + given.options.reverse) + given.num_nodes * given.options.self_loops
            item_bytes = id_dtype(given.num_sources).itemsize + record_dtype(given.columns).itemsize
            needed_bytes += num_edges * item_bytes + (given.num_nodes + 1) * 8
        return needed_bytes

    @property
    def read_bytes(self) -> int:
        """Returns the bytes of all files that will be read."""
        read_bytes = sum(2 * edges.stored_bytes for edges in self.edges.values())
        for nodes in self.nodes.values():
            read_bytes += 0 if nodes.features is None else nodes.features.read_bytes
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
    num_nodes = {name: opened.num_nodes for name, opened in nodes.items()}
    edges = {}
    for edge_type, edges_given in given.edges.items():
        found = edges_given.edges
        if isinstance(found, IdColumns) and found.skips_unknown and _has_numbers_as_ids(given, edge_type, found):
            both = num_nodes[edge_type[0]], num_nodes[edge_type[2]]
            topologies[edge_type] = known_edges(found, topologies[edge_type], both)
        opening = open_edges(
            edge_type, edges_given, topologies[edge_type], owners[edge_type], num_nodes, listing, given.encoding
        )
        for opened_edges in opening:
            source_times = nodes[opened_edges.list.type[0]].times
            in_order = _by_time(opened_edges, source_times) if given.order == "time" else opened_edges
            edges[opened_edges.list.type] = in_order
            if not topologies[edge_type].num_edges:
                warnings.warn(
                    f"{type_owner('edge', opened_edges.list.type) if typed else 'the graph'} has no edges",
                    DataWarning,
                    stacklevel=callers_level(),
                )
    contents = listing.contents()
    warn_of_left_out(contents)
    return OpenGraph(typed, nodes, edges, contents, given.time_unit, given.statistics_until)


def _has_numbers_as_ids(given: GraphInput, edge_type: EdgeType, found: IdColumns) -> bool:
    """Returns whether edges name nodes by ids that are their numbers already, so that nobody has looked them up."""
    return any(
        side != found.numbered and given.nodes[end].ids is not None
        for side, end in enumerate((edge_type[0], edge_type[2]))
    )


@dataclass(frozen=True)
class WrittenGraph:
    """Says what the files of a graph directory hold."""

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
        features, target, found, values = nodes.features, targets[name], Details(), ValueCounts()
        if features is not None:
            found, values = features.write(writer, name, resources)
        node_configs.append(
            NodeTypeConfig(
                name, nodes.num_nodes, None if features is None else features.stored, target, nodes.times is not None,
                is_constant=nodes.given.constant, values=values,
                columns=None if features is None else features.rows.columns,
                statistics=None if features is None else features.rows.statistics,
            )
        )  # fmt: skip
        facts: Details = {"num_nodes": nodes.num_nodes}
        if target is not None:
            facts |= _target_facts(target)
        facts |= sizes[name] | found
        details |= {f"{fact} of {name}": value for fact, value in facts.items()} if graph.typed else facts
    config = GraphConfig(
        tuple(node_configs), tuple(edge_configs), graph.time_unit, statistics_until=graph.statistics_until
    )
    return WrittenGraph(config, details)


def _by_time(edges: OpenEdges, source_times: RowSource | None) -> OpenEdges:
    """Returns the edges to be put into the order of time, where they or their sources have times."""
    given = edges.list
    changes = given.options.self_loops or given.options.drop_duplicates  # which looks for equal edges side by side
    if changes or not (given.has_times or source_times is not None):
        return edges
    read = None if source_times is None else partial(_all_of, source_times)
    return replace(edges, list=replace(given, by_time=True, source_times=read))


def _all_of(rows: RowSource) -> npt.NDArray[np.int64]:
    found, filled = np.empty(rows.num_rows, np.int64), 0
    for chunk in rows.chunks():
        found[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    return found


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
    given, features = edges.list, edges.features
    if features is None:
        return write_csc(writer, given, resources), ValueCounts()
    work = Work(writer, f"edge_features-{'.'.join(given.type)}")
    scanned_before = (given.num_input_edges, found["counts"]) if (found := work.state_of("values")) else ()
    scan = ValueScan(rows_of(features), *scanned_before)
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
    """Writes the labels, times and splits of a node type. Returns how many nodes each split has."""
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
