"""The config in the manifest of a hops directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from diskgnn.formats.column_records import ColumnsMember, check_columns
from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.records import INLINE, LEFT_OUT, MOST_64_BITS, Record, one_of, whole
from diskgnn.formats.row_format import RowFormat
from diskgnn.specs.schema import SPLITS

OPERATORS = ("mean", "symmetric", "gcn")
ALL_NODES = "all"
CHOSEN_NODES = "nodes"  # in place of a split, where nodes were chosen
MOST_HOPS = 255  # rounding adds up, and beyond that neighbourhoods have long had all that they reach
VALUE_BYTES = 4  # records are float32

_Count = Annotated[int, whole(most=MOST_64_BITS)]


@dataclass(frozen=True)
class Segment(Record):
    """Some columns of a record that belong together."""

    name: str  # 'x', or operator/hop; of a typed graph a path, such as 'author:writes/institution:employs'
    width: Annotated[int, whole(1)]


@dataclass(frozen=True)
class FeatureSource(Record):
    """A node type whose features segments are made of, beside that of the seeds."""

    node_type: str
    num_nodes: _Count  # of the graph
    rows: Annotated[RowFormat, INLINE]
    columns: ColumnsMember = field(default=None, kw_only=True)  # as in the graph

    def check_parsed(self) -> None:
        """Refuses columns that are not those of the rows."""
        check_columns(self.columns, self.rows)


@dataclass(frozen=True)
class HopsConfig(Record):
    """The records of a hops directory, and what they were made with."""

    hops: Annotated[int, whole(1)]  # K; of a typed graph, the length of the longest path
    operators: tuple[Annotated[str, one_of(*OPERATORS)], ...]
    seed: int  # of the order of train records
    nodes: str | None  # 'all', or the digest of those that were chosen; None: the graph's splits
    node_type: str
    num_nodes: _Count  # of the graph
    # The features of the seeds' type, that they were made of; None: paths start without, in a typed graph.
    rows: Annotated[RowFormat | None, INLINE]
    columns: ColumnsMember = field(default=None, kw_only=True)  # as in the graph
    others: Annotated[tuple[FeatureSource, ...], LEFT_OUT] = field(default=(), kw_only=True)
    target: TargetConfig | None  # what y is, as in the graph
    segments: tuple[Segment, ...]  # of each record, in order
    row_bytes: Annotated[int, whole(1)]
    num_rows: Mapping[str, _Count]  # records of each split

    def check_parsed(self) -> None:
        """Refuses records that are not what they say."""
        check_columns(self.columns, self.rows)
        if self.row_bytes != VALUE_BYTES * self.num_values:
            raise ValueError(f"row_bytes is {self.row_bytes}, expected {VALUE_BYTES * self.num_values}")
        if not self.num_rows.keys() <= {*SPLITS, CHOSEN_NODES}:
            raise ValueError(f"records of {', '.join(self.num_rows)}")
        types = [self.node_type, *(each.node_type for each in self.others)]
        names = [segment.name for segment in self.segments]
        if len({*types}) < len(types) or len({*names}) < len(names):
            raise ValueError(f"features of {', '.join(types)} in segments {', '.join(names)}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Returns how many numbers each segment has; of one, if all have as many."""
        widths = tuple(segment.width for segment in self.segments)
        return widths[:1] if len({*widths}) == 1 else widths

    @property
    def num_values(self) -> int:
        """Returns how many numbers a record has."""
        return sum(segment.width for segment in self.segments)


def segments_of_hops(operators: tuple[str, ...], hops: int, width: int) -> tuple[Segment, ...]:
    """Returns the segments of records: features, then the hops of each operator."""
    names = ["x", *(f"{operator}/{hop}" for operator in operators for hop in range(1, hops + 1))]
    return tuple(Segment(name, width) for name in names)
