"""What the manifest of a samples directory says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from diskgnn.formats.graph_config import id_dtype
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.records import INLINE, LEFT_OUT, MOST_64_BITS, Codec, Record, record_codec, typed, whole
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import ClassValue, EdgeType, edge_type_name, parse_edge_type
from diskgnn.specs.shard import Shard
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.specs.targets import LinkTarget, NodeTarget, Target
from diskgnn.specs.time_windows import Window, Windows
from diskgnn.specs.user_sampler import UserSampler

_NumNodes = Annotated[int, whole(0, MOST_64_BITS)]
_NumEdges = Annotated[int, whole(0, MOST_64_BITS)]


@dataclass(frozen=True)
class SequenceSize:
    """The minibatches of one split's sequence."""

    epochs: Annotated[int, whole(1)]  # prepared ones
    batches_per_epoch: Annotated[int, whole()]

    @property
    def num_batches(self) -> int:
        """Returns T, minibatches in the sequence."""
        return self.epochs * self.batches_per_epoch


@dataclass(frozen=True)
class SamplesLayout:
    """Which optional columns the minibatches have."""

    trees: bool = False
    pairs: bool = False
    positions: tuple[EdgeType, ...] = ()  # the edge types whose edges say where they lie
    # Where seeds stand among those that were given: these have labels of their own.
    places: Annotated[bool, LEFT_OUT] = False
    seed_times: Annotated[bool, LEFT_OUT] = False
    # The node types whose times headers keep; samples do not have them, since the graph does.
    times: Annotated[tuple[str, ...], LEFT_OUT] = ()


def _parse_counts(counts: Any) -> tuple[int, int]:
    count = whole(0, MOST_64_BITS)
    return count.read(typed(counts, dict)["all"]), count.read(counts["in_graph"])


_COUNTS = Codec[tuple[int, int]](lambda counts: {"all": counts[0], "in_graph": counts[1]}, _parse_counts)


@dataclass(frozen=True)
class EvalEdges:
    """Counts how many of valid's and test's seed edges are edges of the graph, or their reverses are."""

    # By split: how many there are, and how many of them are edges.
    seed_edges: Mapping[str, Annotated[tuple[int, int], _COUNTS]]
    edges: Mapping[
        EdgeType, _NumEdges
    ]  # of the graph, of each type that has them or reverses; parallel ones count each


def fanouts_to_json(fanouts: Fanouts) -> list[int] | dict[str, list[int]]:
    """Returns one list, or one for each edge type."""
    if isinstance(fanouts, Mapping):
        return {edge_type_name(edge_type): list(each) for edge_type, each in fanouts.items()}
    return list(fanouts)


def _parse_fanouts(fanouts: Any) -> Fanouts:
    if isinstance(fanouts, dict):
        return {parse_edge_type(name): _parse_fanouts(each) for name, each in fanouts.items()}  # type: ignore[misc]
    return [typed(fanout, int) for fanout in typed(fanouts, list)]


_FANOUTS = Annotated[Fanouts, Codec(fanouts_to_json, _parse_fanouts)]


def _parse_window(window: Any) -> Window:
    return window if isinstance(window, str) else typed(window, int)


def _parse_windows(windows: Any) -> Windows:
    if isinstance(windows, dict):
        return {parse_edge_type(name): _parse_window(each) for name, each in windows.items()}
    return _parse_window(windows)


def _windows_to_json(windows: Windows) -> Window | dict[str, Window]:
    if isinstance(windows, Mapping):
        return {edge_type_name(edge_type): each for edge_type, each in windows.items()}
    return windows


# Samples have the windows of edge types, in the unit of the graph.
_WINDOWS = Annotated[Windows | None, LEFT_OUT, Codec(_windows_to_json, _parse_windows)]
# Of arrays that a user gives, a config has the digest; they lie beside it (`work.seed_files`).
_GIVEN = Annotated[
    SplitArrays | None, LEFT_OUT,
    Codec[SplitArrays](lambda arrays: arrays.digest, lambda digest: SplitArrays({}, typed(digest, str))),
]  # fmt: skip
_CLASSES: dict[str, Any] = {
    "num_classes": Annotated[int | None, LEFT_OUT],
    "classes": Annotated[tuple[ClassValue, ...] | None, LEFT_OUT],
}
_NODE_TARGET = record_codec(NodeTarget, seeds=_GIVEN, times=_GIVEN, labels=_GIVEN, **_CLASSES)
_LINK_TARGET = record_codec(
    LinkTarget,
    ("edge_type", "negatives", "eval_negatives", "negatives_by", "message_edges", "exclude", "reverse_edge_type",
     "avoid", "seeds", "times", "labels", "num_classes", "classes"),
    negatives_by=Annotated[str, LEFT_OUT], avoid=Annotated[str, LEFT_OUT], seeds=_GIVEN, times=_GIVEN, labels=_GIVEN,
    **_CLASSES,
)  # fmt: skip


def _target_to_json(target: Target) -> Any:
    return _NODE_TARGET.write(target) if isinstance(target, NodeTarget) else _LINK_TARGET.write(target)


def _parse_target(config: Any) -> Target:
    if "node_type" in typed(config, dict):
        return _NODE_TARGET.read(config)
    return _LINK_TARGET.read({"message_edges": "all", **config})


_SPEC = record_codec(
    SamplingSpec,
    ("fanouts", "eval_fanouts", "batch_size", "seed", "first_epoch", "draws", "draw_period", "group_seeds", "target",
     "temporal", "temporal_window", "strict_time", "weighted", "edge_ids", "keep_times", "without", "expand_once",
     "shuffle", "sampler", "shard"),
    fanouts=_FANOUTS, eval_fanouts=_FANOUTS, target=Annotated[Target, Codec(_target_to_json, _parse_target)],
    temporal_window=_WINDOWS, strict_time=bool, keep_times=Annotated[bool, LEFT_OUT],
    without=Annotated[tuple[str, ...], LEFT_OUT],
    expand_once=Annotated[bool, LEFT_OUT],
    shuffle=Annotated[bool, LEFT_OUT],
    sampler=Annotated[UserSampler | None, LEFT_OUT, record_codec(UserSampler, ("name", "version"))],
    shard=Annotated[Shard, LEFT_OUT],
)  # fmt: skip
_DRAWN = (
    "fanouts", "eval_fanouts", "draws", "draw_period", "group_seeds", "target", "temporal", "temporal_window",
    "strict_time", "weighted", "edge_ids", "without", "expand_once", "sampler",
)  # fmt: skip


def spec_to_json(spec: SamplingSpec) -> dict[str, Any]:
    """Returns `spec` but its epochs and splits."""
    written: dict[str, Any] = _SPEC.write(spec)
    return written


def drawing_to_json(spec: SamplingSpec) -> dict[str, Any]:
    """Returns what checkpoints record of how minibatches were drawn: all but what is a matter of chance."""
    return {name: value for name, value in spec_to_json(spec).items() if name in _DRAWN}


def given_arrays(target: Target) -> dict[str, SplitArrays]:
    """Returns `seeds`, `times` and `labels`, where they were given."""
    found = {"seeds": target.seeds, "times": target.times, "labels": target.labels}
    return {name: arrays for name, arrays in found.items() if isinstance(arrays, SplitArrays)}


@dataclass(frozen=True)
class SamplesConfig(Record):
    """All that the content of a samples directory depends on, beside the graph. The number of a type is its position
    in `num_nodes` or `num_edges`.
    """

    # Its epochs and splits become those of `splits`, which the graph has; its target names a type.
    spec: Annotated[SamplingSpec, INLINE, _SPEC]
    num_nodes: Mapping[str, _NumNodes]  # of each node type of the graph, in its order
    num_edges: Mapping[EdgeType, _NumEdges]  # of each edge type of the graph, in its order
    splits: Mapping[str, SequenceSize]
    layout: Annotated[SamplesLayout, INLINE] = SamplesLayout()
    # Of links; it follows from the rest.
    eval_edges: Annotated[EvalEdges | None, LEFT_OUT] = field(default=None, compare=False)

    def __post_init__(self) -> None:
        epochs = self.splits["train"].epochs if "train" in self.splits else 1
        object.__setattr__(self, "spec", replace(self.spec, epochs=epochs, splits=tuple(self.splits)))

    @property
    def node_types(self) -> tuple[str, ...]:
        """Returns T names."""
        return tuple(self.num_nodes)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """Returns the edge types in the order of the graph."""
        return tuple(self.num_edges)

    def ends(self, edge_type: EdgeType) -> tuple[int, int]:
        """Returns (number of the source type, number of the destination type)."""
        return self.node_types.index(edge_type[0]), self.node_types.index(edge_type[2])

    def minibatch_layout(self, node_dtypes: Sequence[str | None]) -> MinibatchLayout:
        """Returns the columns of a shard, whose input nodes have `node_dtypes` [T]: all int32 or all int64."""
        target = self.spec.target
        return MinibatchLayout(
            num_layers=self.spec.num_layers,
            num_nodes=tuple(self.num_nodes.values()),
            edge_types=tuple(self.ends(edge_type) for edge_type in self.edge_types),
            target=(
                self.ends(target.edge_type)
                if isinstance(target, LinkTarget)
                else (self.node_types.index(str(target.node_type)),)
            ),
            node_dtypes=tuple(node_dtypes),
            position_dtypes=tuple(
                id_dtype(number).name if edge_type in self.layout.positions else None
                for edge_type, number in self.num_edges.items()
            ),
            has_trees=self.layout.trees,
            has_pairs=self.layout.pairs,
            has_places=self.layout.places,
            has_seed_times=self.layout.seed_times,
        )

    def check_parsed(self) -> None:
        """Refuses types that there are not, and a sequence without minibatches."""
        num_nodes, num_edges, target = self.num_nodes, self.num_edges, self.spec.target
        if unknown := {end for source, _, destination in num_edges for end in (source, destination)} - {*num_nodes}:
            raise ValueError(f"edge types between unknown node types {sorted(unknown)}")
        known = target.edge_type in num_edges if isinstance(target, LinkTarget) else target.node_type in num_nodes
        if not known:
            raise ValueError(f"seeds of a type that is not there: {target}")
        positions = self.layout.positions
        if not {*positions} <= {*num_edges} or (self.spec.edge_ids and len(positions) < len(num_edges)):
            raise ValueError(f"positions of edges of types {positions}")
        if not {*self.layout.times} <= {*num_nodes}:
            raise ValueError(f"times of nodes of types {self.layout.times}")
        if not self.splits:
            raise ValueError("no split has minibatches")
