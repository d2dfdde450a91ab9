"""Decides beforehand what propagation takes: panels, bytes that are moved, memory, disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.files.disk_space import file_bytes
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import node_file
from diskgnn.formats.hops_config import ALL_NODES, VALUE_BYTES, HopsConfig
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.propagation.hop_edges import LISTS_BYTES, SCALE_BYTES, WITH_OWN, scaled
from diskgnn.propagation.kept_pieces import HEADER_BYTES as KEPT_BYTES
from diskgnn.propagation.needed_rows import HopRows, sets_bytes
from diskgnn.propagation.record_order import RecordOrder, RecordWindow, window_rows
from diskgnn.propagation.stripes import COLUMNS, feature_windows, read_bytes, stripe_width, stripes_of
from diskgnn.propagation.topology_pieces import OFFSET_BYTES, PIECE_EDGES, WEIGHT_BYTES, WINDOW_NODES
from diskgnn.system.resources import Need, Resources
from diskgnn.work.shuffle import PIECE_BYTES

_PIECES_HELD = 3  # of edges: one in use, one that waits, one that is read
_SPANS_HELD = 4  # windows of features or records: two that are read or put together, one in use, its copies
_SMALL_BYTES = 128 << 10  # of disk: headers and last pages of files, statistics, the manifest
_KEEPING_BYTES = 2 * 8 + 1  # of a record: its node, its rank, and whether it has a scale
_SEED_BYTES = 40  # of a record: its node, and what sorting them takes for the labels


@dataclass(frozen=True)
class PropagationPlan:
    """All that follows from the graph, the rows that hops need, and the memory."""

    rows: HopRows
    operators: tuple[str, ...]
    windows: Sequence[RecordWindow]
    num_features: int
    most_columns: int  # of a panel
    threads: int
    loading_threads: int = 1
    read_bytes: int = 0  # in all
    written_bytes: int = 0
    output_bytes: int = 0  # of the artifact
    disk_bytes: int = 0  # at most at any time
    memory_bytes: int = 0  # of the whole process

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


def fixed_need(nodes: NodeSet, edges: EdgeSet, order: RecordOrder, config: HopsConfig) -> Need:
    """Returns the memory that propagation takes whatever the rows that hops need."""
    held_bytes = sets_bytes(nodes.num_nodes, config.hops) + _seed_bytes(order, config.operators)
    return Need("to propagate", held_bytes, max(_piece_bytes(nodes, edges), _span_bytes(nodes, order, config)))


def _piece_bytes(nodes: NodeSet, edges: EdgeSet) -> int:
    """Returns the bytes of pieces of edges, in each step that reads some."""
    piece_edges, window_nodes = min(PIECE_EDGES, edges.num_edges), min(WINDOW_NODES, nodes.num_nodes)
    edge_bytes = edges.id_dtype.itemsize + WEIGHT_BYTES * edges.config.has_weights
    return _PIECES_HELD * (3 * OFFSET_BYTES * window_nodes + edge_bytes * piece_edges)


def _span_bytes(nodes: NodeSet, order: RecordOrder, config: HopsConfig) -> int:
    """Returns the bytes of windows of features, then of records, while no slice is in memory."""
    stored_bytes, row_bytes = config.rows.row_bytes, config.row_bytes
    spans = [stored_bytes * min(window_rows(stored_bytes), nodes.num_nodes),
             row_bytes * min(window_rows(row_bytes), order.num_records)]  # fmt: skip
    return _SPANS_HELD * max(spans)


def _loading_bytes(nodes: NodeSet, config: HopsConfig) -> int:
    """Returns the bytes of a thread that loads a stripe: a piece, the next one, and their values."""
    rows = config.rows
    num_rows = min(-(-window_rows(rows.row_bytes) // 64) * 64, nodes.num_nodes)
    stored_bytes = -(-rows.row_bytes * min(COLUMNS, rows.num_features) // rows.num_features)
    return num_rows * (2 * stored_bytes + VALUE_BYTES * COLUMNS * (rows.dtype != "float32"))


def _keeping_bytes(order: RecordOrder, config: HopsConfig) -> tuple[int, int]:
    """Returns the bytes that keeping a window of records takes: fixed ones, and those of each column."""
    num_rows = min(window_rows(config.row_bytes), order.num_records)
    return KEPT_BYTES + _KEEPING_BYTES * num_rows, VALUE_BYTES * num_rows


def _seed_bytes(order: RecordOrder, operators: Sequence[str]) -> int:
    seeds = 0 if order.chosen == ALL_NODES else _SEED_BYTES * order.num_records
    return seeds + SCALE_BYTES * len(scaled(operators)) * order.num_records


def make_plan(
    nodes: NodeSet, edges: EdgeSet, order: RecordOrder, config: HopsConfig, rows: HopRows, resources: Resources
) -> PropagationPlan:
    """Decides how wide panels are, and counts what will be moved.

    Raises:
        SmallBudgetError: the memory does not hold two slices of one column; names the smallest budget that does.
    """
    need = fixed_need(nodes, edges, order, config)
    resources = resources.within(need)
    column_bytes = VALUE_BYTES * (len(rows.sets[0]) + len(rows.sets[1]))
    # Beside slices there are pieces of edges, stripes that are loaded, or a window of records that is kept.
    loading_bytes, (keeping_bytes, keeping_column_bytes) = _loading_bytes(nodes, config), _keeping_bytes(order, config)
    beside_bytes = max(_piece_bytes(nodes, edges), loading_bytes)

    def panel_bytes(columns: int) -> int:
        return max(beside_bytes, keeping_bytes + columns * keeping_column_bytes) + columns * column_bytes

    of_rows = f"{len(rows.sets[0])} rows of features and {len(rows.sets[1])} of a hop"
    resources.require(f"{need.what} a column at a time, {VALUE_BYTES} for each of {of_rows},", panel_bytes(1))
    num_features, memory_bytes = config.rows.num_features, resources.memory_bytes
    columns = min(
        num_features,
        (memory_bytes - beside_bytes) // column_bytes,
        (memory_bytes - keeping_bytes) // (column_bytes + keeping_column_bytes),
    )
    plans = list[PropagationPlan]()
    # Whole stripes are loaded once. Wider panels, which share some, read edges less often.
    for most_columns in dict.fromkeys([columns, columns // COLUMNS * COLUMNS or columns]):
        plan = PropagationPlan(
            rows, config.operators, order.windows(config.row_bytes), num_features, most_columns, resources.threads,
            min(resources.threads, beside_bytes // loading_bytes),
        )  # fmt: skip
        widest_bytes = panel_bytes(max(map(len, plan.panels)))
        used_bytes = resources.held_bytes + max(widest_bytes, need.least_bytes)
        plans.append(_with_bytes(replace(plan, memory_bytes=used_bytes), nodes, edges, order, config))
    return min(plans, key=lambda plan: plan.read_bytes)


def _with_bytes(
    plan: PropagationPlan, nodes: NodeSet, edges: EdgeSet, order: RecordOrder, config: HopsConfig
) -> PropagationPlan:
    rows, manifest = plan.rows, nodes.manifest
    features = nodes.feature_file
    assert features is not None
    weights = WEIGHT_BYTES * edges.config.has_weights
    weights_bytes = weights * edges.num_edges
    topology_bytes = sum(manifest.files[name].bytes for name in edges.topology_files)
    edge_bytes = _edge_bytes(rows, edges.id_dtype.itemsize + weights, has_own=WITH_OWN in config.operators)
    scale_bytes = SCALE_BYTES * len(rows.sets[0]) * len(scaled(config.operators))
    stripe_bytes, record_bytes = len(rows.sets[0]) * features.row_bytes, order.num_records * config.row_bytes
    labels_bytes = seeds_bytes = 0
    if order.chosen != ALL_NODES:
        seeds_bytes = OFFSET_BYTES * order.num_records
    if order.chosen is None and (labels := manifest.files.get(node_file(artifacts.LABELS, nodes.name))) is not None:
        labels_bytes = labels.bytes
        seeds_bytes += order.num_records * (labels.bytes // max(1, nodes.num_nodes))
    checksums_bytes = 4 * (record_bytes // CHECKSUM_CHUNK_BYTES)
    output_bytes = record_bytes + checksums_bytes + seeds_bytes
    read = (
        (rows.sweeps + 1) * topology_bytes + 2 * weights_bytes  # compared with its checksum, then used
        + sum(read_bytes(features, *bounds) for bounds in feature_windows(features, rows.sets[0]))
        + 4 * (features.num_bytes // CHECKSUM_CHUNK_BYTES)
        + len(config.operators) * (_loaded_bytes(plan, features) + len(plan.panels) * edge_bytes)
        + (len(plan.panels) + 1) * scale_bytes + record_bytes + labels_bytes
    )  # fmt: skip
    scratch_bytes = edge_bytes + scale_bytes + stripe_bytes + record_bytes
    links_bytes = _links_bytes(plan, nodes, edges, config)
    return replace(
        plan, read_bytes=read, written_bytes=scratch_bytes + output_bytes, output_bytes=output_bytes,
        disk_bytes=file_bytes(max(scratch_bytes, record_bytes + output_bytes) + links_bytes) + _SMALL_BYTES,
    )  # fmt: skip


def _links_bytes(plan: PropagationPlan, nodes: NodeSet, edges: EdgeSet, config: HopsConfig) -> int:
    """Returns what shuffles take at most beside what is in their pieces."""
    edge_pieces = nodes.num_nodes // WINDOW_NODES + edges.num_edges // PIECE_EDGES + 1
    stripe_pieces = nodes.num_nodes // window_rows(config.rows.row_bytes) + 1
    kept_pieces = len(plan.windows) * len(config.segments) * len(plan.panels)
    stripes = len(stripes_of(0, plan.num_features))
    return (
        (plan.rows.hops + len(scaled(config.operators))) * edge_pieces * (PIECE_BYTES + LISTS_BYTES)
        + stripes * stripe_pieces * PIECE_BYTES
        + kept_pieces * (PIECE_BYTES + KEPT_BYTES)
    )


def _edge_bytes(rows: HopRows, bytes_each: int, *, has_own: bool) -> int:
    """Returns the bytes of the lists of all hops."""
    total = 0
    for members, num_edges in zip(rows.sets[1:], rows.num_edges[1:], strict=True):
        total += OFFSET_BYTES * len(members) + bytes_each * (num_edges + has_own * len(members))
    return total


def _loaded_bytes(plan: PropagationPlan, features: FeatureFile) -> int:
    """Returns the bytes of stripes that one operator loads: a panel of fewer columns reads a whole one."""
    num_rows, row_bytes, total = len(plan.rows.sets[0]), features.row_bytes, 0
    for columns in plan.panels:
        width = sum(stripe_width(features.rows, stripe) for stripe in stripes_of(columns.start, columns.stop))
        total += num_rows * row_bytes * width // features.rows.num_features
    return total
