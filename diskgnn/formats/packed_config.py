"""What the manifest of a packed directory says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.formats.column_records import Columns, columns_to_json, parse_columns
from diskgnn.formats.extents import ROW_NUMBER
from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.manifest_document import typed
from diskgnn.formats.minibatch_columns import LABEL_DTYPES, MinibatchLayout, RowSetLayout
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.formats.value_counts import NOTHING_UNUSUAL, ValueCounts
from diskgnn.specs.schema import NO_LABELS, EdgeType, SourceSchema, edge_type_name, parse_edge_type
from diskgnn.specs.targets import LinkTarget, NodeTarget

_MOST = (1 << 31) - 1  # of what 32 bits address: rows in memory, bytes of a header
_MOST_ROWS = (1 << 63) - 1


@dataclass(frozen=True)
class TierRowCounts:
    """Input rows of one cycle of a sequence, by the tier that serves them."""

    requested: int
    static: int
    cpu: int
    disk: int

    def __add__(self, other: TierRowCounts) -> TierRowCounts:
        return TierRowCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class RowSetConfig:
    """The feature rows of one type of nodes or of edges."""

    type: str | EdgeType  # a node type, or an edge type
    rows: RowFormat
    num_rows: int  # nodes or edges of the graph
    num_static: int  # S, rows in the device and pinned tiers
    values: ValueCounts = NOTHING_UNUSUAL  # as the graph counted them
    columns: Columns | None = None  # as in the graph

    @property
    def name(self) -> str:
        """As files carry it: no dot is in the name of a node type."""
        return self.type if isinstance(self.type, str) else ".".join(self.type)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        of = {"node_type": self.type} if isinstance(self.type, str) else {"edge_type": edge_type_name(self.type)}
        return {
            **of,
            **self.rows.to_json(),
            "row_bytes": self.rows.row_bytes,
            "num_rows": self.num_rows,
            "num_static": self.num_static,
            **self.values.to_json(),
            **columns_to_json(self.columns),
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> RowSetConfig:
        """Raises ValueError or KeyError for what `to_json` would not have written."""
        rows = RowFormat.parse(config)
        if typed(config["row_bytes"], int) != rows.row_bytes:
            raise ValueError(f"row_bytes is {config['row_bytes']}, expected {rows.row_bytes}")
        node_type = config.get("node_type")
        return RowSetConfig(
            type=parse_edge_type(config["edge_type"]) if node_type is None else typed(node_type, str),
            rows=rows,
            num_rows=within(config["num_rows"], most=_MOST_ROWS),
            num_static=within(config["num_static"]),
            values=ValueCounts.parse(config),
            columns=parse_columns(config, rows),
        )


@dataclass(frozen=True)
class PackedRows:
    """One row set in the sequence of one split."""

    cpu_rows: int  # C, slots of its cpu tier
    initial_rows: int  # of these, filled when the sequence starts
    rows: TierRowCounts
    max_inputs: int  # rows that a minibatch needs, at most

    @staticmethod
    def parse(config: Mapping[str, Any]) -> PackedRows:
        """Raises ValueError or KeyError for what the packer would not have written."""
        rows = typed(config["rows"], dict)
        return PackedRows(
            within(config["cpu_rows"]), within(config["initial_rows"]),
            TierRowCounts(*(within(rows[tier], most=_MOST_ROWS) for tier in ("requested", "static", "cpu", "disk"))),
            within(config["max_inputs"]),
        )  # fmt: skip


@dataclass(frozen=True)
class PackedSplit:
    """The sequence of one split. What it says of rows is of all row sets together, but for `row_sets`."""

    epochs: int  # prepared ones
    batches_per_epoch: int
    max_header_bytes: int
    row_sets: tuple[PackedRows, ...]  # [K]

    @property
    def num_batches(self) -> int:
        """T, minibatches in the sequence."""
        return self.epochs * self.batches_per_epoch

    @property
    def rows(self) -> TierRowCounts:
        """Input rows of one cycle."""
        return sum((each.rows for each in self.row_sets), TierRowCounts(0, 0, 0, 0))

    @property
    def cpu_rows(self) -> int:
        """Slots of the cpu tiers."""
        return sum(each.cpu_rows for each in self.row_sets)

    @property
    def initial_rows(self) -> int:
        """Of these, filled when the sequence starts."""
        return sum(each.initial_rows for each in self.row_sets)

    @property
    def max_inputs(self) -> int:
        """Input rows of a minibatch, at most."""
        return sum(each.max_inputs for each in self.row_sets)

    @staticmethod
    def parse(config: Mapping[str, Any]) -> PackedSplit:
        """Raises ValueError or KeyError for what the packer would not have written."""
        return PackedSplit(
            within(config["epochs"], 1), within(config["batches_per_epoch"]), within(config["max_header_bytes"]),
            tuple(PackedRows.parse(typed(rows, dict)) for rows in typed(config["row_sets"], list)),
        )  # fmt: skip


@dataclass(frozen=True)
class PackedConfig:
    """What a packed directory was made from, and how."""

    samples: SamplesConfig  # of the samples that it was made from
    target: TargetConfig | None  # what labels are; None of link prediction, and of seeds that have none
    node_dtypes: tuple[str, ...]  # [T] of the ids of each node type: int32 or int64
    row_sets: tuple[RowSetConfig, ...]  # [K] of node types, then of edge types
    keep_input_nodes: bool
    graph: str  # its digest
    splits: Mapping[str, PackedSplit]
    by_reference: bool = False  # extents have numbers of rows, which stay in the graph: for windows of `FreshEpochs`

    @staticmethod
    def before_placing(
        samples: SamplesConfig,
        target: TargetConfig | None,
        row_sets: Sequence[RowSetConfig],
        *,
        keep_input_nodes: bool,
        graph: str,
        by_reference: bool = False,
    ) -> PackedConfig:
        """What is known before rows have their places: no sizes of splits."""
        node_dtypes = tuple("int32" if number < 1 << 31 else "int64" for number in samples.num_nodes.values())
        return PackedConfig(
            samples, target, node_dtypes, tuple(row_sets), keep_input_nodes, graph, {}, by_reference=by_reference
        )

    @property
    def stored_row_bytes(self) -> tuple[int, ...]:
        """[K] that a row takes in an extent."""
        return tuple(ROW_NUMBER.itemsize if self.by_reference else each.rows.row_bytes for each in self.row_sets)

    @property
    def is_typed(self) -> bool:
        """Whether the graph has several types of nodes or edges."""
        return len(self.samples.num_nodes) > 1 or len(self.samples.num_edges) > 1

    @property
    def one_row_set(self) -> RowSetConfig:
        """The rows of the nodes of a graph of one type.

        Raises:
            ConfigError: it has several row sets, or none.
        """
        if len(self.row_sets) != 1:
            found = ", ".join(row_set.name for row_set in self.row_sets) or "none"
            raise ConfigError(f"expected a packed directory with the features of one type, found {found}")
        return self.row_sets[0]

    @property
    def num_static(self) -> int:
        """S, static rows of all row sets."""
        return sum(row_set.num_static for row_set in self.row_sets)

    def schema(self) -> SourceSchema:
        """What its minibatches are."""
        widths = {row_set.type: row_set.rows.num_features for row_set in self.row_sets}
        sampled = self.samples.spec.target
        unlabelled = "link" if isinstance(sampled, LinkTarget) else NO_LABELS
        return SourceSchema(
            node_types=tuple((name, number, widths.get(name)) for name, number in self.samples.num_nodes.items()),
            edge_types=tuple((edge_type, widths.get(edge_type)) for edge_type in self.samples.num_edges),
            target=sampled.edge_type if isinstance(sampled, LinkTarget) else str(sampled.node_type),
            target_kind=unlabelled if self.target is None else self.target.kind,
            num_outputs=1 if self.target is None else self.target.num_outputs,
            classes=None if self.target is None else self.target.classes,
            columns=tuple((each.type, each.columns) for each in self.row_sets if each.columns is not None),
        )

    def header_layout(self) -> MinibatchLayout:
        """Columns of the extents' headers."""
        samples, target = self.samples, self.target
        kept = {row_set.type for row_set in self.row_sets}
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
        )

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        found = {
            "samples": self.samples.to_json(),
            "target": None if self.target is None else self.target.to_json(),
            "node_dtypes": list(self.node_dtypes),
            "row_sets": [row_set.to_json() for row_set in self.row_sets],
            "keep_input_nodes": self.keep_input_nodes,
            "graph": self.graph,
            "splits": {split: asdict(sequence) for split, sequence in self.splits.items()},
        }
        return found | ({"by_reference": True} if self.by_reference else {})

    @staticmethod
    def parse(config: Mapping[str, Any]) -> PackedConfig:
        """Raises ValueError or KeyError for what `to_json` would not have written."""
        samples, target = SamplesConfig.parse(typed(config["samples"], dict)), config["target"]
        for number in samples.num_nodes.values():
            within(number, 1, _MOST_ROWS)
        node_dtypes = tuple(_one_of(dtype, ("int32", "int64")) for dtype in typed(config["node_dtypes"], list))
        row_sets = tuple(RowSetConfig.parse(typed(each, dict)) for each in typed(config["row_sets"], list))
        splits = {split: PackedSplit.parse(size) for split, size in typed(config["splits"], dict).items()}
        if len(node_dtypes) != len(samples.num_nodes):
            raise ValueError(f"{len(node_dtypes)} node_dtypes, expected {len(samples.num_nodes)}")
        if isinstance(samples.spec.target, LinkTarget) and (
            not samples.layout.pairs or (target is None) != (samples.spec.target.labels is None)
        ):
            raise ValueError("seeds are links: expected pairs, and a target only if these have labels")
        if isinstance(samples.spec.target, NodeTarget) and (
            samples.layout.pairs or (target is None and samples.spec.target.seeds is None)
        ):
            raise ValueError("target: expected one unless links are predicted, or seeds were given")
        types = [row_set.type for row_set in row_sets]
        sizes: dict[Any, int] = {**samples.num_nodes, **samples.num_edges}
        if any(sizes.get(row_set.type) != row_set.num_rows for row_set in row_sets) or len({*types}) < len(types):
            raise ValueError(f"row sets of {types}, which are not all types of the graph, each once")
        if {*splits} != {*samples.splits} or any(len(split.row_sets) != len(row_sets) for split in splits.values()):
            raise ValueError("its splits are not those that were sampled, with every row set")
        parsed = PackedConfig(
            samples=samples,
            target=None if target is None else TargetConfig.parse(typed(target, dict)),
            node_dtypes=node_dtypes,
            row_sets=row_sets,
            keep_input_nodes=typed(config["keep_input_nodes"], bool),
            graph=typed(config["graph"], str),
            splits=splits,
            by_reference=typed(config.get("by_reference", False), bool),
        )
        assert parsed.header_layout()  # raises ValueError for types that are none
        return parsed


def within(value: Any, least: int = 0, most: int = _MOST) -> int:
    """`value`, if JSON gave a whole number in [least, most].

    Raises:
        ValueError: it gave something else.
    """
    if not least <= typed(value, int) <= most:
        raise ValueError(f"expected a number from {least} to {most}, found {str(value)[:80]}")
    return int(value)


def _one_of(value: Any, choices: tuple[str, ...]) -> str:
    if typed(value, str) not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}, found {value[:80]!r}")
    return str(value)
