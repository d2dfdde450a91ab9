"""Decides beforehand what propagation takes: panels, bytes that are moved, memory, disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import accumulate

from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.files.disk_space import file_bytes
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import node_file
from diskgnn.formats.hops_config import ALL_NODES, VALUE_BYTES, HopsConfig
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet
from diskgnn.propagation.hop_edges import GATHERED_BYTES, LISTS_BYTES, PIECES_HELD, SCALE_BYTES, WITH_OWN, scaled
from diskgnn.propagation.hop_features import HopFeatures
from diskgnn.propagation.hop_tree import HopTree
from diskgnn.propagation.kept_pieces import HEADER_BYTES as KEPT_BYTES
from diskgnn.propagation.needed_rows import EdgeNeed, HopRows, sets_bytes
from diskgnn.propagation.record_order import RecordOrder, RecordWindow, window_rows
from diskgnn.propagation.stripes import (
    COLUMNS,
    STRIPES_AT_A_TIME,
    first_rows,
    stripes_of,
)
from diskgnn.propagation.topology_pieces import OFFSET_BYTES, PIECE_EDGES, WEIGHT_BYTES, WINDOW_NODES
from diskgnn.propagation.tree_walk import Walk, walk
from diskgnn.specs.schema import EdgeType
from diskgnn.system.resources import Need, Resources
from diskgnn.work.shuffle import PIECE_BYTES, PLACE_BYTES

_SPANS_HELD = 4  # windows of records: two that are read or put together, one in use, its copies
_SMALL_BYTES = 128 << 10  # of disk: headers and last pages of files, statistics, the manifest
_KEEPING_BYTES = 2 * 8 + 1  # of a record: its node, its rank, and whether it has a scale
_SEED_BYTES = 40  # of a record: its node, and what sorting them takes for the labels
_LINE_BYTES = 64  # of the processor's cache
_READ_MEANWHILE_BYTES = 16  # while a line of a row is fetched at random, for all threads: measured, roughly
_LOADING_PART = 16  # of the memory that is left beside the least, for threads that load stripes


@dataclass(frozen=True)
class SourcePlan:
    """Says how the features of one node type go through their part of the tree, one panel of columns at a time."""

    features: HopFeatures
    root: int  # of the tree
    walk: Walk
    most_columns: int  # of a panel
    loaded_rows: int  # of each panel's features, for all operators: those that others overwrote are loaded again

    @property
    def name(self) -> str:
        """Returns the node type."""
        return self.features.nodes.name

    @property
    def num_features(self) -> int:
        """Returns how many columns the features have."""
        return self.features.num_features

    def panel(self, first: int) -> range:
        """Returns the columns of the panel that begins with column `first`: panels are about as wide."""
        left, most = self.num_features - first, self.most_columns
        width = -(-left // -(-left // most))
        if most % COLUMNS == 0:
            width = -(-width // COLUMNS) * COLUMNS
        return range(first, min(first + width, self.num_features))

    @cached_property
    def panels(self) -> list[range]:
        """Returns all of them, if none is there yet."""
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
    pruning_threads: int = 1  # which prune pieces of edges for several hops
    loading_threads: int = 1
    read_bytes: int = 0  # in all
    written_bytes: int = 0
    output_bytes: int = 0  # of the artifact
    disk_bytes: int = 0  # at most at any time
    memory_bytes: int = 0  # of the whole process

    @property
    def num_panels(self) -> int:
        """Returns how many panels all sources have."""
        return sum(len(source.panels) for source in self.sources)

    @property
    def num_summed_edges(self) -> int:
        """Returns how many edges have rows that are added up, once for each panel and operator."""
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
    edge_types = [node.edge_type for node in tree.nodes if node.parent is not None]
    num_places = _num_edge_pieces(graph, edge_types, len(scaled(config.operators)))
    num_places += sum(map(_num_stripe_pieces, sources_of(graph, tree)))
    held_bytes = sets_bytes(tree, graph) + _seed_bytes(order, config.operators) + PLACE_BYTES * num_places
    piece_bytes = 2 * _piece_bytes(graph, tree)  # as many lists, too, as one thread that prunes has in memory
    return Need("to propagate", held_bytes, max(piece_bytes, _span_bytes(graph, tree, order, config)))


def _num_edge_pieces(graph: Graph, needed: Sequence[EdgeType], num_scaled: int) -> int:
    """Returns how many pieces the lists of needed edges have at most, and the scales of so many operators."""

    def pieces(edge_type: EdgeType) -> int:
        edges = graph.edges[edge_type]
        return edges.num_destinations // WINDOW_NODES + edges.num_edges // PIECE_EDGES + 1

    return sum(map(pieces, needed)) + num_scaled * max(map(pieces, needed), default=0)


def _num_stripe_pieces(features: HopFeatures) -> int:
    """Returns how many pieces the stripes of the features of some nodes have at most."""
    num_windows = features.nodes.num_nodes // features.window_rows + 1
    return len(stripes_of(0, features.num_features)) * num_windows


def _edge_types(tree: HopTree) -> set[EdgeType]:
    return {node.edge_type for node in tree.nodes if node.parent is not None}


def sources_of(graph: Graph, tree: HopTree) -> list[HopFeatures]:
    """Returns the features that hops begin with, of each root of the tree."""
    return [HopFeatures(graph.nodes[tree.nodes[root].node_type]) for root in tree.roots]


def _piece_bytes(graph: Graph, tree: HopTree) -> int:
    """Returns the bytes of pieces of edges, in each step that reads the topology."""
    return PIECES_HELD * max(
        3 * OFFSET_BYTES * min(WINDOW_NODES, edges.num_destinations)
        + _edge_bytes_each(edges) * min(PIECE_EDGES, edges.num_edges)
        for edges in map(graph.edges.__getitem__, _edge_types(tree))
    )


def _list_bytes(graph: Graph, rows: HopRows, *, has_own: bool) -> int:
    """Returns the bytes of pieces of lists that hops read."""

    def of(need: EdgeNeed, all_bytes: int) -> int:
        edge_bytes = _edge_bytes_each(graph.edges[need.edge_type])
        num_rows = min(WINDOW_NODES, len(need.rows))
        last_bytes = (OFFSET_BYTES + has_own * edge_bytes) * num_rows + edge_bytes * need.most_edges
        return min(last_bytes + GATHERED_BYTES // len(rows.edges), all_bytes)

    return PIECES_HELD * max(map(of, rows.edges, _edge_bytes(graph, rows, has_own=has_own)), default=0)


def _edge_bytes_each(edges: EdgeSet) -> int:
    return edges.id_dtype.itemsize + WEIGHT_BYTES * edges.config.has_weights


def _span_bytes(graph: Graph, tree: HopTree, order: RecordOrder, config: HopsConfig) -> int:
    """Returns the bytes of windows of features, then of records, while no slice is in memory."""
    records_bytes = _SPANS_HELD * config.row_bytes * min(window_rows(config.row_bytes), order.num_records)
    return max(records_bytes, *(features.most_bytes for features in sources_of(graph, tree)))


def _loading_bytes(graph: Graph, tree: HopTree) -> int:
    """Returns the bytes of a thread that loads stripes: some pieces, and the values of one."""

    def of(features: HopFeatures) -> int:
        rows = features.rows
        num_rows = min(features.window_rows, features.nodes.num_nodes)
        stored_bytes = -(-rows.row_bytes * min(COLUMNS, rows.num_features) // rows.num_features)
        num_pieces = min(STRIPES_AT_A_TIME, len(stripes_of(0, rows.num_features)))
        return num_rows * (num_pieces * stored_bytes + VALUE_BYTES * COLUMNS * (rows.dtype != "float32"))

    return max(map(of, sources_of(graph, tree)))


def _seed_bytes(order: RecordOrder, operators: Sequence[str]) -> int:
    seeds = 0 if order.chosen == ALL_NODES else _SEED_BYTES * order.num_records
    return seeds + SCALE_BYTES * len(scaled(operators)) * order.num_records


@dataclass(frozen=True)
class _PanelNeed:
    """The memory that a panel of one source takes, beside what is fixed."""

    num_features: int
    piece_bytes: int  # of edges, whose buffers stay for all panels
    loading_bytes: int  # of a thread that loads a stripe
    keeping_bytes: int  # of a window of records that is kept
    keeping_column_bytes: int  # of each of its columns
    kept_pieces: int  # that a panel adds for records

    def places_bytes(self, columns: int) -> int:
        """Returns the bytes of where the pieces are that all panels of so many columns keep for records."""
        return PLACE_BYTES * self.kept_pieces * -(-self.num_features // columns)

    def panel_bytes(self, columns: int, num_rows: int, loading_threads: int = 1) -> int:
        """Returns what the last panel takes, with slices of so many rows in all: no other one takes more."""
        kept_bytes = self.keeping_bytes + columns * self.keeping_column_bytes
        beside_bytes = self.piece_bytes + max(loading_threads * self.loading_bytes, kept_bytes)
        return beside_bytes + columns * VALUE_BYTES * num_rows + self.places_bytes(columns)


def _panel_need(
    graph: Graph, tree: HopTree, order: RecordOrder, config: HopsConfig, rows: HopRows, features: HopFeatures, root: int
) -> _PanelNeed:  # fmt: skip
    num_rows = min(window_rows(config.row_bytes), order.num_records)
    num_kept = len(config.operators) * sum(tree.nodes[number].is_kept for number in tree.below(root))
    return _PanelNeed(
        features.num_features, _list_bytes(graph, rows, has_own=WITH_OWN in config.operators),
        _loading_bytes(graph, tree),
        KEPT_BYTES + _KEEPING_BYTES * num_rows, VALUE_BYTES * num_rows,
        len(order.windows(config.row_bytes)) * num_kept,
    )  # fmt: skip


def _least_bytes(needs: Mapping[int, _PanelNeed], walks: Mapping[int, Walk]) -> int:
    """Returns the least memory in which the panels of all sources have room, one after the other."""
    least_bytes = places_bytes = 0
    for root, panel in needs.items():
        sizes = {
            width: panel.panel_bytes(width, sum(walks[root].place_rows)) for width in range(1, panel.num_features + 1)
        }
        width = min(sizes, key=sizes.__getitem__)
        least_bytes = max(least_bytes, places_bytes + sizes[width])
        places_bytes += panel.places_bytes(width)
    return least_bytes


def make_plan(
    graph: Graph, tree: HopTree, order: RecordOrder, config: HopsConfig, rows: HopRows, resources: Resources
) -> PropagationPlan:
    """Decides how wide panels are, and counts what will be moved.

    Raises:
        SmallBudgetError: the memory does not hold the slices of one column; names the smallest budget that does.
    """
    need = fixed_need(graph, tree, order, config)
    resources = resources.within(need)
    walks = {root: walk(tree, root, [len(each) for each in rows.sets]) for root in tree.roots}
    needs = {
        root: _panel_need(graph, tree, order, config, rows, features, root)
        for root, features in zip(tree.roots, sources_of(graph, tree), strict=True)
    }
    widest = max(walks.values(), key=lambda each: sum(each.place_rows))
    at_a_time = " and ".join(f"{count} rows" for count in widest.place_rows)
    least_bytes = _least_bytes(needs, walks)
    resources.require(f"{need.what} a column at a time, {VALUE_BYTES} for each of {at_a_time}", least_bytes)
    spare_bytes = resources.memory_bytes - least_bytes
    loading_bytes = _loading_bytes(graph, tree)
    loading_threads = min(2 * resources.threads, 1 + spare_bytes // _LOADING_PART // max(1, loading_bytes))
    list_bytes = _piece_bytes(graph, tree) // PIECES_HELD
    room = 1 + (resources.memory_bytes - need.least_bytes) // max(1, list_bytes)  # one thread is in the need
    pruning_threads = max(1, min(resources.threads, len(rows.edges), room))
    edge_bytes = _edge_bytes(graph, rows, has_own=WITH_OWN in config.operators)
    num_operators, num_scaled = len(config.operators), len(scaled(config.operators))
    used_bytes = need.least_bytes + (pruning_threads - 1) * list_bytes
    sources, places_bytes = list[SourcePlan](), 0  # of the sources before

    def fits(panel: _PanelNeed, columns: int, num_rows: int) -> bool:
        return places_bytes + panel.panel_bytes(columns, num_rows, loading_threads) <= resources.memory_bytes

    def plans_of(features: HopFeatures, root: int) -> Iterator[SourcePlan]:
        """Yields those whose panels fit, the widest first: wide ones read edges less often, others share no stripes or
        have rows that lie in fewer lines of the cache."""
        slices, num_rows = walks[root], len(rows.sets[root])
        loaded_rows = max(1, num_scaled) * num_rows
        if num_operators > num_scaled:  # until one scales them, features are there but for what is overwritten
            again_rows = first_rows(features, rows.sets[root], slices.overwritten_rows)
            loaded_rows += (num_operators - num_scaled - (num_scaled == 0)) * again_rows
        for width in range(needs[root].num_features, 0, -1):
            if fits(needs[root], width, sum(slices.place_rows)):
                yield SourcePlan(features, root, slices, width, loaded_rows)

    for features, root in zip(sources_of(graph, tree), walks, strict=True):
        lists = _lists_below(root, tree, rows)
        cost = partial(
            _cost, num_edges=sum(rows.edges[each].num_edges for each in lists),
            list_bytes=sum(edge_bytes[each] for each in lists), num_operators=num_operators,
        )  # fmt: skip
        source = min(plans_of(features, root), key=cost)
        width, num_rows = max(map(len, source.panels)), sum(source.walk.place_rows)
        used_bytes = max(used_bytes, places_bytes + needs[root].panel_bytes(width, num_rows, loading_threads))
        places_bytes += needs[root].places_bytes(width)
        sources.append(source)
    plan = PropagationPlan(
        tree, rows, config.operators, order.windows(config.row_bytes), _first_values(tree, config), sources,
        resources.threads, pruning_threads, loading_threads,
        memory_bytes=resources.held_bytes + max(used_bytes, need.least_bytes + places_bytes),
    )  # fmt: skip
    return _with_bytes(plan, graph, order, config, edge_bytes)


def _lists_below(root: int, tree: HopTree, rows: HopRows) -> list[int]:
    """Returns the number of the lists that each tree node below `root` reads."""
    return [each for number in tree.below(root) if (each := rows.edges_of[number]) is not None]


def _cost(source: SourcePlan, num_edges: int, list_bytes: int, num_operators: int) -> int:
    """Returns the bytes that panels read, with what could be read while lines of the cache are fetched."""
    num_lines = num_operators * num_edges * sum(_row_lines(len(columns)) for columns in source.panels)
    return round(_READ_MEANWHILE_BYTES * num_lines) + _panels_bytes(source, list_bytes, num_operators)


@cache
def _row_lines(num_columns: int) -> float:
    """Returns in how many lines of the cache a row of a slice lies: as many as it fills or one more, by its number."""
    row_bytes = VALUE_BYTES * num_columns
    begins = [number * row_bytes % _LINE_BYTES for number in range(_LINE_BYTES)]
    return sum(-(-(begin + row_bytes) // _LINE_BYTES) for begin in begins) / len(begins)


def _panels_bytes(source: SourcePlan, list_bytes: int, num_operators: int) -> int:
    """Returns the bytes that the panels of a source read, of lists that take `list_bytes`."""
    return _loaded_bytes(source) + num_operators * len(source.panels) * list_bytes


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
        read += sum(features.read_bytes(*bounds) for bounds in features.windows(needed)) + features.checksums_bytes
        list_bytes = sum(edge_bytes[each] for each in _lists_below(source.root, plan.tree, rows))
        read += _panels_bytes(source, list_bytes, len(config.operators))
        stripe_bytes += len(needed) * features.rows.row_bytes
    scratch_bytes = sum(edge_bytes) + scale_bytes + stripe_bytes + record_bytes
    links_bytes = _links_bytes(plan, graph, config)
    return replace(
        plan, read_bytes=read, written_bytes=scratch_bytes + output_bytes, output_bytes=output_bytes,
        disk_bytes=file_bytes(max(scratch_bytes, record_bytes + output_bytes) + links_bytes) + _SMALL_BYTES,
    )  # fmt: skip


def _links_bytes(plan: PropagationPlan, graph: Graph, config: HopsConfig) -> int:
    """Returns what shuffles take at most beside what is in their pieces."""
    edge_types = [each.edge_type for each in plan.rows.edges]
    edge_pieces = _num_edge_pieces(graph, edge_types, len(scaled(config.operators)))
    stripe_pieces = kept_pieces = 0
    for source in plan.sources:
        stripe_pieces += _num_stripe_pieces(source.features)
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
        num_edges = need.num_edges + has_own * len(need.rows)
        found.append(OFFSET_BYTES * len(need.rows) + _edge_bytes_each(graph.edges[need.edge_type]) * num_edges)
    return found


def _loaded_bytes(source: SourcePlan) -> int:
    """Returns the bytes of stripes that are loaded for all panels: a panel of fewer columns reads a whole one."""
    features, total = source.features, 0
    for columns in source.panels:
        stripes = stripes_of(columns.start, columns.stop)  # counted for each width that panels may have: not one by one
        width = min(COLUMNS * stripes.stop, features.rows.num_features) - COLUMNS * stripes.start
        total += source.loaded_rows * features.rows.row_bytes * width // features.num_features
    return total
