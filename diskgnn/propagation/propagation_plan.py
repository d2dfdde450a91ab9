"""Decides beforehand what propagation takes: panels, bytes that are moved, memory, disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.files.disk_space import file_bytes
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import node_file
from diskgnn.formats.hops_config import ALL_NODES, VALUE_BYTES, HopsConfig
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.propagation.hop_edges import LISTS_BYTES, PIECES_HELD, SCALE_BYTES, WITH_OWN, scaled
from diskgnn.propagation.hop_tree import HopTree
from diskgnn.propagation.kept_pieces import HEADER_BYTES as KEPT_BYTES
from diskgnn.propagation.needed_rows import HopRows, sets_bytes
from diskgnn.propagation.record_order import RecordOrder, RecordWindow, window_rows
from diskgnn.propagation.stripes import COLUMNS, feature_windows, read_bytes, stripe_width, stripes_of
from diskgnn.propagation.topology_pieces import OFFSET_BYTES, PIECE_EDGES, WEIGHT_BYTES, WINDOW_NODES
from diskgnn.propagation.tree_walk import Walk, walk
from diskgnn.specs.schema import EdgeType
from diskgnn.system.resources import Need, Resources
from diskgnn.work.shuffle import PIECE_BYTES

_SPANS_HELD = 4  # windows of features or records: two that are read or put together, one in use, its copies
_SMALL_BYTES = 128 << 10  # of disk: headers and last pages of files, statistics, the manifest
_KEEPING_BYTES = 2 * 8 + 1  # of a record: its node, its rank, and whether it has a scale
_SEED_BYTES = 40  # of a record: its node, and what sorting them takes for the labels


@dataclass(frozen=True)
class SourcePlan:
    """Says how the features of one node type go through their part of the tree, one panel of columns at a time."""

    nodes: NodeSet
    root: int  # of the tree
    walk: Walk
    most_columns: int  # of a panel
    keeps_features: bool  # from one operator to the next one, until one scales them
    num_loads: int  # of each panel's features, for all operators

    @property
    def features(self) -> FeatureFile:
        """The file of the features."""
        found = self.nodes.feature_file
        assert found is not None
        return found

    @property
    def num_features(self) -> int:
        """Columns of the features."""
        return self.features.rows.num_features

    def panel(self, first: int) -> range:
        """Returns the columns of the panel that begins with column `first`: panels are about as wide."""
        left, most = self.num_features - first, self.most_columns
        width = -(-left // -(-left // most))
        if most % COLUMNS == 0:
            width = -(-width // COLUMNS) * COLUMNS
        return range(first, min(first + width, self.num_features))

    @property
    def panels(self) -> list[range]:
        """All of them, if none is there yet."""
        found = [self.panel(0)]
        while found[-1].stop < self.num_features:
            found.append(self.panel(found[-1].stop))
        return found


@dataclass(frozen=True)
class PropagationPlan:
    """All that follows from the graph, the rows that hops need, and the memory."""

    tree: HopTree
    rows: HopRows
    operators: tuple[str, ...]
    windows: Sequence[RecordWindow]
    first_values: Mapping[tuple[str, int], int]  # of records, by operator and tree node that they keep
    sources: Sequence[SourcePlan]
    threads: int
    loading_threads: int = 1
    read_bytes: int = 0  # in all
    written_bytes: int = 0
    output_bytes: int = 0  # of the artifact
    disk_bytes: int = 0  # at most at any time
    memory_bytes: int = 0  # of the whole process

    @property
    def num_panels(self) -> int:
        """Panels of all sources."""
        return sum(len(source.panels) for source in self.sources)

    @property
    def num_summed_edges(self) -> int:
        """Edges whose rows are added up, once for each panel and operator."""
        return len(self.operators) * sum(
            len(source.panels) * sum(self.rows.num_edges[number] for number in self.tree.below(source.root))
            for source in self.sources
        )


def _first_values(tree: HopTree, config: HopsConfig) -> dict[tuple[str, int], int]:
    """Returns where the segments of records begin."""
    widths = [segment.width for segment in config.segments]
    begins = dict(zip((segment.name for segment in config.segments), accumulate([0, *widths[:-1]]), strict=True))
    return {
        (operator, number): begins[tree.segment_name(number, operator)]
        for operator in config.operators for number, node in enumerate(tree.nodes) if node.is_kept
    }  # fmt: skip


def fixed_need(graph: Graph, tree: HopTree, order: RecordOrder, config: HopsConfig) -> Need:
    """Returns the memory that propagation takes whatever the rows that hops need."""
    held_bytes = sets_bytes(tree, graph) + _seed_bytes(order, config.operators)
    piece_bytes = 2 * _piece_bytes(graph, tree)  # pages that are kept for the next ones, too
    return Need("to propagate", held_bytes, max(piece_bytes, _span_bytes(graph, tree, order, config)))


def _edge_types(tree: HopTree) -> set[EdgeType]:
    return {node.edge_type for node in tree.nodes if node.parent is not None}


def _sources(graph: Graph, tree: HopTree) -> list[NodeSet]:
    return [graph.nodes[tree.nodes[root].node_type] for root in tree.roots]


def _piece_bytes(graph: Graph, tree: HopTree) -> int:
    """Returns the bytes of pieces of edges, in each step that reads some."""

    def of(edge_type: EdgeType) -> int:
        edges = graph.edges[edge_type]
        piece_edges, window_nodes = min(PIECE_EDGES, edges.num_edges), min(WINDOW_NODES, edges.num_destinations)
        edge_bytes = edges.id_dtype.itemsize + WEIGHT_BYTES * edges.config.has_weights
        return PIECES_HELD * (3 * OFFSET_BYTES * window_nodes + edge_bytes * piece_edges)

    return max(map(of, _edge_types(tree)))


def _span_bytes(graph: Graph, tree: HopTree, order: RecordOrder, config: HopsConfig) -> int:
    """Returns the bytes of windows of features, then of records, while no slice is in memory."""
    spans = [config.row_bytes * min(window_rows(config.row_bytes), order.num_records)]
    for nodes in _sources(graph, tree):
        assert nodes.config.rows is not None
        stored_bytes = nodes.config.rows.row_bytes
        spans.append(stored_bytes * min(window_rows(stored_bytes), nodes.num_nodes))
    return _SPANS_HELD * max(spans)


def _loading_bytes(graph: Graph, tree: HopTree) -> int:
    """Returns the bytes of a thread that loads a stripe: a piece, the next one, and their values."""

    def of(nodes: NodeSet) -> int:
        rows = nodes.config.rows
        assert rows is not None
        num_rows = min(-(-window_rows(rows.row_bytes) // 64) * 64, nodes.num_nodes)
        stored_bytes = -(-rows.row_bytes * min(COLUMNS, rows.num_features) // rows.num_features)
        return num_rows * (2 * stored_bytes + VALUE_BYTES * COLUMNS * (rows.dtype != "float32"))

    return max(map(of, _sources(graph, tree)))


def _keeping_bytes(order: RecordOrder, config: HopsConfig) -> tuple[int, int]:
    """Returns the bytes that keeping a window of records takes: fixed ones, and those of each column."""
    num_rows = min(window_rows(config.row_bytes), order.num_records)
    return KEPT_BYTES + _KEEPING_BYTES * num_rows, VALUE_BYTES * num_rows


def _seed_bytes(order: RecordOrder, operators: Sequence[str]) -> int:
    seeds = 0 if order.chosen == ALL_NODES else _SEED_BYTES * order.num_records
    return seeds + SCALE_BYTES * len(scaled(operators)) * order.num_records


def make_plan(
    graph: Graph, tree: HopTree, order: RecordOrder, config: HopsConfig, rows: HopRows, resources: Resources
) -> PropagationPlan:
    """Decides how wide panels are, and counts what will be moved.

    Raises:
        SmallBudgetError: the memory does not hold the slices of one column; names the smallest budget that does.
    """
    need = fixed_need(graph, tree, order, config)
    resources = resources.within(need)
    # Beside slices there are pieces of edges, stripes that are loaded, or a window of records that is kept.
    loading_bytes, (keeping_bytes, keeping_column_bytes) = _loading_bytes(graph, tree), _keeping_bytes(order, config)
    beside_bytes = max(_piece_bytes(graph, tree), loading_bytes)

    def panel_bytes(columns: int, num_rows: int) -> int:
        kept_bytes = keeping_bytes + columns * keeping_column_bytes
        return max(beside_bytes, kept_bytes) + columns * VALUE_BYTES * num_rows

    sources, used_bytes = list[SourcePlan](), need.least_bytes
    walks = {root: walk(tree, root, [len(each) for each in rows.sets]) for root in tree.roots}
    widest = max(walks.values(), key=lambda each: sum(each.place_rows))
    at_a_time = " and ".join(f"{count} rows" for count in widest.place_rows)
    resources.require(
        f"{need.what} a column at a time, {VALUE_BYTES} for each of {at_a_time}",
        panel_bytes(1, sum(widest.place_rows)),
    )
    edge_bytes = _edge_bytes(graph, rows, has_own=WITH_OWN in config.operators)
    num_operators, num_scaled = len(config.operators), len(scaled(config.operators))

    def plans_of(nodes: NodeSet, root: int) -> Iterator[SourcePlan]:
        """Yields those with features that are loaded for each operator, and with such that stay in a place of their
        own until one scales them."""
        kept = walk(tree, root, [len(each) for each in rows.sets], keeps_root=True)
        for slices, keeps in ((walks[root], False), (kept, True)):
            num_rows = max(1, sum(slices.place_rows))
            assert nodes.config.rows is not None
            columns = min(
                nodes.config.rows.num_features,
                (resources.memory_bytes - beside_bytes) // (VALUE_BYTES * num_rows),
                (resources.memory_bytes - keeping_bytes) // (VALUE_BYTES * num_rows + keeping_column_bytes),
            )
            # Whole stripes are loaded once. Wider panels, which share some, read edges less often.
            for width in dict.fromkeys([columns, columns // COLUMNS * COLUMNS or columns]) if columns > 0 else ():
                yield SourcePlan(nodes, root, slices, width, keeps, max(1, num_scaled) if keeps else num_operators)

    for nodes, root in zip(_sources(graph, tree), walks, strict=True):
        sources.append(
            min(plans_of(nodes, root), key=lambda plan: _panels_bytes(plan, tree, rows, edge_bytes, num_operators))
        )
        num_rows = max(1, sum(sources[-1].walk.place_rows))
        used_bytes = max(used_bytes, panel_bytes(max(map(len, sources[-1].panels)), num_rows))
    plan = PropagationPlan(
        tree, rows, config.operators, order.windows(config.row_bytes), _first_values(tree, config), sources,
        resources.threads, min(resources.threads, beside_bytes // max(1, loading_bytes)),
        memory_bytes=resources.held_bytes + used_bytes,
    )  # fmt: skip
    return _with_bytes(plan, graph, order, config, edge_bytes)


def _panels_bytes(
    source: SourcePlan, tree: HopTree, rows: HopRows, edge_bytes: Sequence[int], num_operators: int
) -> int:
    """Returns the bytes that the panels of a source read."""
    of_tree = sum(edge_bytes[each] for number in tree.below(source.root) if (each := rows.edges_of[number]) is not None)
    loaded_bytes = source.num_loads * _loaded_bytes(source, len(rows.sets[source.root]))
    return loaded_bytes + num_operators * len(source.panels) * of_tree


def _with_bytes(
    plan: PropagationPlan, graph: Graph, order: RecordOrder, config: HopsConfig, edge_bytes: Sequence[int]
) -> PropagationPlan:
    rows, files = plan.rows, graph.manifest.files
    scale_bytes = SCALE_BYTES * len(rows.sets[0]) * len(scaled(config.operators))
    record_bytes, stripe_bytes = order.num_records * config.row_bytes, 0
    labels_bytes = seeds_bytes = 0
    target = graph.nodes[plan.tree.target]
    if order.chosen != ALL_NODES:
        seeds_bytes = OFFSET_BYTES * order.num_records
    if order.chosen is None and (labels := files.get(node_file(artifacts.LABELS, target.name))) is not None:
        labels_bytes = labels.bytes
        seeds_bytes += order.num_records * (labels.bytes // max(1, target.num_nodes))
    checksums_bytes = 4 * (record_bytes // CHECKSUM_CHUNK_BYTES)
    output_bytes = record_bytes + checksums_bytes + seeds_bytes
    read = len(scaled(config.operators)) and (plan.num_panels + 1) * scale_bytes
    read += record_bytes + labels_bytes
    for edge_type, sweeps in rows.sweeps.items():
        edges = graph.edges[edge_type]
        weights_bytes = WEIGHT_BYTES * edges.config.has_weights * edges.num_edges
        topology_bytes = sum(files[name].bytes for name in edges.topology_files)
        read += (sweeps + 1) * topology_bytes + 2 * weights_bytes  # compared with its checksum, then used
    for source in plan.sources:
        features, needed = source.features, rows.sets[source.root]
        read += sum(read_bytes(features, *bounds) for bounds in feature_windows(features, needed))
        read += 4 * (features.num_bytes // CHECKSUM_CHUNK_BYTES)
        read += _panels_bytes(source, plan.tree, rows, edge_bytes, len(config.operators))
        stripe_bytes += len(needed) * features.row_bytes
    scratch_bytes = sum(edge_bytes) + scale_bytes + stripe_bytes + record_bytes
    links_bytes = _links_bytes(plan, graph, config)
    return replace(
        plan, read_bytes=read, written_bytes=scratch_bytes + output_bytes, output_bytes=output_bytes,
        disk_bytes=file_bytes(max(scratch_bytes, record_bytes + output_bytes) + links_bytes) + _SMALL_BYTES,
    )  # fmt: skip


def _links_bytes(plan: PropagationPlan, graph: Graph, config: HopsConfig) -> int:
    """Returns what shuffles take at most beside what is in their pieces."""
    edge_pieces = stripe_pieces = kept_pieces = 0

    def pieces(edge_type: EdgeType) -> int:
        edges = graph.edges[edge_type]
        return edges.num_destinations // WINDOW_NODES + edges.num_edges // PIECE_EDGES + 1

    edge_pieces += sum(pieces(each.edge_type) for each in plan.rows.edges)
    edge_pieces += len(scaled(config.operators)) * max(map(pieces, plan.rows.sweeps))
    for source in plan.sources:
        row_bytes, num_nodes = source.features.row_bytes, source.nodes.num_nodes
        stripe_pieces += len(stripes_of(0, source.num_features)) * (num_nodes // window_rows(row_bytes) + 1)
        kept = sum(plan.tree.nodes[number].is_kept for number in plan.tree.below(source.root))
        kept_pieces += len(plan.windows) * kept * len(config.operators) * len(source.panels)
    return (
        edge_pieces * (PIECE_BYTES + LISTS_BYTES)
        + stripe_pieces * PIECE_BYTES
        + kept_pieces * (PIECE_BYTES + KEPT_BYTES)
    )


def _edge_bytes(graph: Graph, rows: HopRows, *, has_own: bool) -> list[int]:
    """Returns the bytes of all needed lists."""
    found = []
    for need in rows.edges:
        edges = graph.edges[need.edge_type]
        bytes_each = edges.id_dtype.itemsize + WEIGHT_BYTES * edges.config.has_weights
        num_edges = need.num_edges + has_own * len(need.rows)
        found.append(OFFSET_BYTES * len(need.rows) + bytes_each * num_edges)
    return found


def _loaded_bytes(source: SourcePlan, num_rows: int) -> int:
    """Returns the bytes of stripes that are loaded for all panels: a panel of fewer columns reads a whole one."""
    features, total = source.features, 0
    for columns in source.panels:
        width = sum(stripe_width(features.rows, stripe) for stripe in stripes_of(columns.start, columns.stop))
        total += num_rows * features.row_bytes * width // features.rows.num_features
    return total
