"""What the manifest of a packed directory says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Annotated, Any

from diskgnn.errors import ConfigError
from diskgnn.formats.column_records import ColumnsMember, check_columns
from diskgnn.formats.extents import ROW_NUMBER
from diskgnn.formats.graph_config import TargetConfig, id_dtype
from diskgnn.formats.minibatch_columns import LABEL_DTYPES, MinibatchLayout, RowSetLayout
from diskgnn.formats.record_format import ROWS, RecordFormat
from diskgnn.formats.records import INLINE, LEFT_OUT, MOST_64_BITS, Codec, Record, one_of, typed, whole
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.formats.value_counts import NOTHING_UNUSUAL, ValueCounts
from diskgnn.specs.schema import NO_LABELS, EdgeType, SourceSchema, edge_type_name, parse_edge_type
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.specs.time_windows import checked_time_unit

_Count = Annotated[int, whole()]  # what 32 bits address: rows in memory, bytes of a header
_RowCount = Annotated[int, whole(most=MOST_64_BITS)]  # of rows on disk, and of reads of them


@dataclass(frozen=True)
class TierRowCounts:
    """Input rows of one cycle of a sequence, by the tier that serves them."""

    requested: _RowCount
    static: _RowCount
    cpu: _RowCount
    disk: _RowCount

    def __add__(self, other: TierRowCounts) -> TierRowCounts:
        return TierRowCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def _type_to_json(of: str | EdgeType) -> dict[str, str]:
    return {"node_type": of} if isinstance(of, str) else {"edge_type": edge_type_name(of)}


def _parse_type(config: Any) -> str | EdgeType:
    node_type = config.get("node_type")
    return parse_edge_type(config["edge_type"]) if node_type is None else typed(node_type, str)


def _rows_to_json(rows: RowFormat) -> dict[str, Any]:
    return {**ROWS.write(rows), "row_bytes": rows.row_bytes}


def _parse_rows(config: Any) -> RowFormat:
    rows = ROWS.read(config)
    if typed(config["row_bytes"], int) != rows.row_bytes:
        raise ValueError(f"row_bytes is {config['row_bytes']}, expected {rows.row_bytes}")
    return rows


@dataclass(frozen=True)
class RowSetConfig(Record):
    """The feature rows of one type of nodes or of edges."""

    type: Annotated[str | EdgeType, INLINE, Codec(_type_to_json, _parse_type)]  # a node type, or an edge type
    rows: Annotated[RowFormat, INLINE, Codec(_rows_to_json, _parse_rows)]
    num_rows: _RowCount  # nodes or edges of the graph
    num_static: _Count  # S, rows in the device and pinned tiers
    values: Annotated[ValueCounts, LEFT_OUT] = NOTHING_UNUSUAL  # as the graph counted them
    columns: ColumnsMember = None  # as in the graph
    values_digest: Annotated[str | None, LEFT_OUT] = None  # of records: of what their codes stand for

    @property
    def name(self) -> str:
        """Returns the name as files carry it: no dot is in the name of a node type."""
        return self.type if isinstance(self.type, str) else ".".join(self.type)

    def check_parsed(self) -> None:
        """Refuses columns that are not those of the rows."""
        check_columns(self.columns, self.rows)


@dataclass(frozen=True)
class PackedRows:
    """One row set in the sequence of one split."""

    cpu_rows: _Count  # C, slots of its cpu tier
    initial_rows: _Count  # of these, filled when the sequence starts
    rows: TierRowCounts
    max_inputs: _Count  # rows that a minibatch needs, at most


@dataclass(frozen=True)
class PackedSplit:
    """The sequence of one split. What it says of rows is of all row sets together, but for `row_sets`."""

    epochs: Annotated[int, whole(1)]  # prepared ones
    batches_per_epoch: _Count
    max_header_bytes: _Count
    row_sets: tuple[PackedRows, ...]  # [K]

    @property
    def num_batches(self) -> int:
        """Returns T, minibatches in the sequence."""
        return self.epochs * self.batches_per_epoch

    @property
    def rows(self) -> TierRowCounts:
        """Returns the input rows of one cycle."""
        return sum((each.rows for each in self.row_sets), TierRowCounts(0, 0, 0, 0))

    @property
    def cpu_rows(self) -> int:
        """Returns how many slots the cpu tiers have."""
        return sum(each.cpu_rows for each in self.row_sets)

    @property
    def initial_rows(self) -> int:
        """Returns how many of these are filled when the sequence starts."""
        return sum(each.initial_rows for each in self.row_sets)

    @property
    def max_inputs(self) -> int:
        """Returns the input rows of a minibatch, at most."""
        return sum(each.max_inputs for each in self.row_sets)


@dataclass(frozen=True)
class PackedConfig(Record):
    """Says what a packed directory was made from, and how."""

    samples: SamplesConfig  # of the samples that it was made from
    target: TargetConfig | None  # what labels are; None of link prediction, and of seeds that have none
    node_dtypes: tuple[Annotated[str, one_of("int32", "int64")], ...]  # [T] of the ids of each node type
    row_sets: tuple[RowSetConfig, ...]  # [K] of node types, then of edge types
    keep_input_nodes: bool
    graph: str  # its digest
    splits: Mapping[str, PackedSplit]
    # Extents have numbers of rows, which stay in the graph: for windows of `FreshEpochs`.
    by_reference: Annotated[bool, LEFT_OUT] = False
    constants: Annotated[tuple[str, ...], LEFT_OUT] = ()  # node types without rows whose x is a single 1
    time_unit: Annotated[str | None, LEFT_OUT] = None  # of the times of seeds, where these are kept, as in the graph

    @staticmethod
    def before_placing(
        samples: SamplesConfig,
        target: TargetConfig | None,
        row_sets: Sequence[RowSetConfig],
        *,
        keep_input_nodes: bool,
        graph: str,
        by_reference: bool = False,
        constants: Sequence[str] = (),
        time_unit: str | None = None,
    ) -> PackedConfig:
        """Returns what is known before rows have their places: no sizes of splits."""
        node_dtypes = tuple(id_dtype(number).name for number in samples.num_nodes.values())
        return PackedConfig(
            samples, target, node_dtypes, tuple(row_sets), keep_input_nodes, graph, {}, by_reference=by_reference,
            constants=tuple(constants), time_unit=time_unit if samples.layout.seed_times else None,
        )  # fmt: skip

    @property
    def stored_row_bytes(self) -> tuple[int, ...]:
        """Returns [K] the bytes that a row takes in an extent."""
        return tuple(ROW_NUMBER.itemsize if self.by_reference else each.rows.row_bytes for each in self.row_sets)

    @property
    def is_typed(self) -> bool:
        """Returns True if the graph has several types of nodes or edges."""
        return len(self.samples.num_nodes) > 1 or len(self.samples.num_edges) > 1

    @property
    def one_row_set(self) -> RowSetConfig:
        """Returns the rows of the nodes of a graph of one type.

        Raises:
            ConfigError: it has several row sets, or none.
        """
        if len(self.row_sets) != 1:
            found = ", ".join(row_set.name for row_set in self.row_sets) or "none"
            raise ConfigError(f"expected a packed directory with the features of one type, found {found}")
        return self.row_sets[0]

    @property
    def num_static(self) -> int:
        """Returns S, static rows of all row sets."""
        return sum(row_set.num_static for row_set in self.row_sets)

    def schema(self) -> SourceSchema:
        """Returns what its minibatches are."""
        widths: dict[str | EdgeType, int] = dict.fromkeys(self.constants, 1)
        widths |= {row_set.type: row_set.rows.num_features for row_set in self.row_sets}
        sampled = self.samples.spec.target
        unlabelled = "link" if isinstance(sampled, LinkTarget) else NO_LABELS
        return SourceSchema(
            node_types=tuple((name, number, widths.get(name)) for name, number in self.samples.num_nodes.items()),
            edge_types=tuple((edge_type, widths.get(edge_type)) for edge_type in self.samples.num_edges),
            target=sampled.edge_type if isinstance(sampled, LinkTarget) else str(sampled.node_type),
            target_kind=unlabelled if self.target is None else self.target.kind,
            num_outputs=1 if self.target is None else self.target.num_outputs,
            classes=None if self.target is None else self.target.classes,
            columns=(
                *((each.type, each.columns) for each in self.row_sets if each.columns is not None),
                *((name, ()) for name in self.constants),
            ),
            tables=tuple(
                (each.type, each.rows.columns(each.columns, each.values_digest))
                for each in self.row_sets if isinstance(each.type, str) and isinstance(each.rows, RecordFormat)
            ),
            timed=self.samples.layout.times if self.samples.layout.seed_times else None,
            time_unit=self.time_unit,
        )  # fmt: skip

    def header_layout(self) -> MinibatchLayout:
        """Returns the columns of the extents' headers."""
        samples, target = self.samples, self.target
        kept = {*self.constants, *(row_set.type for row_set in self.row_sets)}
        node_dtypes = [
            dtype if self.keep_input_nodes or name not in kept else None
            for name, dtype in zip(samples.node_types, self.node_dtypes, strict=True)
        ]
        return replace(
            samples.minibatch_layout(node_dtypes),
            position_dtypes=(None,) * len(samples.edge_types),
            row_sets=tuple(
                RowSetLayout(samples.node_types.index(row_set.type), is_edges=False, has_spread=samples.layout.trees)
                if isinstance(row_set.type, str)
                else RowSetLayout(samples.edge_types.index(row_set.type), is_edges=True, has_spread=True)
                for row_set in self.row_sets
            ),
            label_dtype=None if samples.layout.pairs or target is None else LABEL_DTYPES[target.kind],
            num_outputs=1 if target is None or target.kind == "class" else target.num_outputs,
            has_edge_ids=samples.spec.edge_ids,
            has_places=False,
            timed=tuple(samples.node_types.index(name) for name in samples.layout.times),
        )

    def check_parsed(self) -> None:
        """Refuses what contradicts itself."""
        samples, target = self.samples, self.samples.spec.target
        if len(self.node_dtypes) != len(samples.num_nodes):
            raise ValueError(f"{len(self.node_dtypes)} node_dtypes, expected {len(samples.num_nodes)}")
        if isinstance(target, LinkTarget) and (
            not samples.layout.pairs or (self.target is None) != (target.labels is None)
        ):
            raise ValueError("seeds are links: expected pairs, and a target only if these have labels")
        if isinstance(target, NodeTarget) and (samples.layout.pairs or (self.target is None and target.seeds is None)):
            raise ValueError("target: expected one unless links are predicted, or seeds were given")
        types = [row_set.type for row_set in self.row_sets]
        sizes: dict[Any, int] = {**samples.num_nodes, **samples.num_edges}
        if any(sizes.get(each.type) != each.num_rows for each in self.row_sets) or len({*types}) < len(types):
            raise ValueError(f"row sets of {types}, which are not all types of the graph, each once")
        if not {*self.constants} <= {*samples.num_nodes} or {*self.constants} & {*types}:
            raise ValueError(f"constants {self.constants} that are no types of the graph, or have rows")
        if {*self.splits} != {*samples.splits} or any(
            len(split.row_sets) != len(types) for split in self.splits.values()
        ):
            raise ValueError("its splits are not those that were sampled, with every row set")
        checked_time_unit(self.time_unit)
        assert self.header_layout()  # raises ValueError for types that are none
