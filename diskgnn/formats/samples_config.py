"""What the manifest of a samples directory says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.formats.manifest_document import typed
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import EdgeType, edge_type_name, parse_edge_type
from diskgnn.specs.shard import Shard
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.specs.targets import LinkTarget, NodeTarget, Target
from diskgnn.specs.user_sampler import UserSampler


@dataclass(frozen=True)
class SequenceSize:
    """How many minibatches one split's sequence has."""

    epochs: int  # prepared ones
    batches_per_epoch: int

    @property
    def num_batches(self) -> int:
        """T, minibatches in the sequence."""
        return self.epochs * self.batches_per_epoch


@dataclass(frozen=True)
class SamplesLayout:
    """Which optional columns the minibatches have."""

    trees: bool = False
    pairs: bool = False
    positions: tuple[EdgeType, ...] = ()  # the edge types whose edges say where they lie
    places: bool = False  # where seeds stand among those that were given: these have labels of their own

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        positions = [edge_type_name(edge_type) for edge_type in self.positions]
        places = {"places": True} if self.places else {}
        return {"trees": self.trees, "pairs": self.pairs, "positions": positions, **places}

    @staticmethod
    def parse(config: Mapping[str, Any]) -> SamplesLayout:
        """Raises ValueError or KeyError for what `to_json` would not have written."""
        positions = tuple(parse_edge_type(name) for name in typed(config["positions"], list))
        places = typed(config.get("places", False), bool)
        return SamplesLayout(typed(config["trees"], bool), typed(config["pairs"], bool), positions, places)


@dataclass(frozen=True)
class EvalEdges:
    """How many of valid's and test's seed edges are edges of the graph, or their reverses are."""

    seed_edges: Mapping[str, tuple[int, int]]  # by split: how many there are, and how many of them are edges
    edges: Mapping[EdgeType, int]  # of the graph, of each type that has them or reverses; parallel ones count each

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return {
            "seed_edges": {
                split: {"all": count, "in_graph": found} for split, (count, found) in self.seed_edges.items()
            },
            "edges": {edge_type_name(edge_type): count for edge_type, count in self.edges.items()},
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> EvalEdges:
        """Raises ValueError or KeyError for what `to_json` would not have written."""
        return EvalEdges(
            {split: (typed(each["all"], int), typed(each["in_graph"], int))
             for split, each in typed(config["seed_edges"], dict).items()},
            {parse_edge_type(name): typed(count, int) for name, count in typed(config["edges"], dict).items()},
        )  # fmt: skip


@dataclass(frozen=True)
class SamplesConfig:
    """All that the content of a samples directory depends on, beside the graph. The number of a type is its position
    in `num_nodes` or `num_edges`.
    """

    spec: SamplingSpec  # its epochs and splits are those of `splits`, its target names a type
    num_nodes: Mapping[str, int]  # of each node type of the graph, in its order
    num_edges: Mapping[EdgeType, int]  # of each edge type of the graph, in its order
    splits: Mapping[str, SequenceSize]
    layout: SamplesLayout = SamplesLayout()
    eval_edges: EvalEdges | None = field(default=None, compare=False)  # of links; it follows from the rest

    @staticmethod
    def of(
        spec: SamplingSpec,
        num_nodes: Mapping[str, int],
        num_edges: Mapping[EdgeType, int],
        splits: Mapping[str, SequenceSize],
        layout: SamplesLayout,
    ) -> SamplesConfig:
        """With those of the splits that `spec` asks for that the graph has."""
        epochs = splits["train"].epochs if "train" in splits else 1
        return SamplesConfig(replace(spec, epochs=epochs, splits=tuple(splits)), num_nodes, num_edges, splits, layout)

    @property
    def node_types(self) -> tuple[str, ...]:
        """T names."""
        return tuple(self.num_nodes)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """In the order of the graph."""
        return tuple(self.num_edges)

    def ends(self, edge_type: EdgeType) -> tuple[int, int]:
        """(number of the source type, number of the destination type)."""
        return self.node_types.index(edge_type[0]), self.node_types.index(edge_type[2])

    def minibatch_layout(self, node_dtypes: Sequence[str | None]) -> MinibatchLayout:
        """Columns of a shard, whose input nodes have `node_dtypes` [T]: all int32 or all int64."""
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
                np.dtype(position_dtype(number)).name if edge_type in self.layout.positions else None
                for edge_type, number in self.num_edges.items()
            ),
            has_trees=self.layout.trees,
            has_pairs=self.layout.pairs,
            has_places=self.layout.places,
        )

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return {
            **spec_to_json(self.spec),
            "num_nodes": dict(self.num_nodes),
            "num_edges": {edge_type_name(edge_type): number for edge_type, number in self.num_edges.items()},
            "splits": {
                split: {"epochs": size.epochs, "batches_per_epoch": size.batches_per_epoch}
                for split, size in self.splits.items()
            },
            **self.layout.to_json(),
            **({} if self.eval_edges is None else {"eval_edges": self.eval_edges.to_json()}),
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> SamplesConfig:
        """Raises ValueError or KeyError for what `to_json` would not have written."""
        splits = {
            split: SequenceSize(typed(size["epochs"], int), typed(size["batches_per_epoch"], int))
            for split, size in typed(config["splits"], dict).items()
        }
        num_nodes = {name: typed(number, int) for name, number in typed(config["num_nodes"], dict).items()}
        num_edges = {
            parse_edge_type(name): typed(number, int) for name, number in typed(config["num_edges"], dict).items()
        }
        if unknown := {end for source, _, destination in num_edges for end in (source, destination)} - set(num_nodes):
            raise ValueError(f"edge types between unknown node types {sorted(unknown)}")
        spec, layout = parse_spec(config), SamplesLayout.parse(config)
        target = spec.target
        known = target.edge_type in num_edges if isinstance(target, LinkTarget) else target.node_type in num_nodes
        if not known:
            raise ValueError(f"seeds of a type that is not there: {target}")
        if not set(layout.positions) <= set(num_edges) or (spec.edge_ids and len(layout.positions) < len(num_edges)):
            raise ValueError(f"positions of edges of types {layout.positions}")
        if not splits:
            raise ValueError("no split has minibatches")
        found = SamplesConfig.of(spec, num_nodes, num_edges, splits, layout)
        return replace(found, eval_edges=EvalEdges.parse(config["eval_edges"])) if "eval_edges" in config else found


def spec_to_json(spec: SamplingSpec) -> dict[str, Any]:
    """`spec` but its epochs and splits."""
    return {
        "fanouts": fanouts_to_json(spec.fanouts),
        "eval_fanouts": fanouts_to_json(spec.eval_fanouts or spec.fanouts),
        "batch_size": spec.batch_size,
        "seed": spec.seed,
        "first_epoch": spec.first_epoch,
        "draws": spec.draws,
        "draw_period": spec.draw_period,
        "group_seeds": spec.group_seeds,
        "target": target_to_json(spec.target),
        "temporal": spec.temporal,
        "strict_time": spec.strict_time,
        "weighted": spec.weighted,
        "edge_ids": spec.edge_ids,
        **({"expand_once": True} if spec.expand_once else {}),
        **({} if spec.shuffle else {"shuffle": False}),
        **({} if spec.sampler is None else {"sampler": _sampler_to_json(spec.sampler)}),
        **({} if spec.shard.world_size == 1 else {"shard": asdict(spec.shard)}),
    }


_DRAWN = (
    "fanouts", "eval_fanouts", "draws", "draw_period", "group_seeds", "target", "temporal", "strict_time", "weighted",
    "edge_ids", "expand_once", "sampler",
)  # fmt: skip


def drawing_to_json(spec: SamplingSpec) -> dict[str, Any]:
    """What checkpoints record of how minibatches were drawn: all of `spec_to_json` that is not a matter of chance."""
    return {name: value for name, value in spec_to_json(spec).items() if name in _DRAWN}


def parse_spec(config: Mapping[str, Any]) -> SamplingSpec:
    """Raises ValueError or KeyError for what `spec_to_json` would not have written."""
    return SamplingSpec(
        fanouts=parse_fanouts(config["fanouts"]),
        eval_fanouts=parse_fanouts(config["eval_fanouts"]),
        batch_size=typed(config["batch_size"], int),
        seed=typed(config["seed"], int),
        first_epoch=typed(config["first_epoch"], int),
        draws=typed(config["draws"], str),
        draw_period=typed(config["draw_period"], int),
        group_seeds=typed(config["group_seeds"], int),
        target=parse_target(typed(config["target"], dict)),
        temporal=None if config["temporal"] is None else typed(config["temporal"], str),
        strict_time=typed(config["strict_time"], bool),
        weighted=typed(config["weighted"], bool),
        edge_ids=typed(config["edge_ids"], bool),
        expand_once=typed(config.get("expand_once", False), bool),
        shuffle=typed(config.get("shuffle", True), bool),
        sampler=_parse_sampler(config["sampler"]) if "sampler" in config else None,
        shard=_parse_shard(config["shard"]) if "shard" in config else Shard(),
    )


def _sampler_to_json(sampler: UserSampler) -> dict[str, str]:
    return {"name": sampler.name, "version": sampler.version}


def _parse_sampler(config: Any) -> UserSampler:
    return UserSampler(typed(config["name"], str), typed(config["version"], str))


def _parse_shard(config: Any) -> Shard:
    return Shard(typed(config["rank"], int), typed(config["world_size"], int))


def fanouts_to_json(fanouts: Fanouts) -> list[int] | dict[str, list[int]]:
    """One list, or one for each edge type."""
    if isinstance(fanouts, Mapping):
        return {edge_type_name(edge_type): list(each) for edge_type, each in fanouts.items()}
    return list(fanouts)


def parse_fanouts(fanouts: Any) -> Fanouts:
    """Raises ValueError for what `fanouts_to_json` would not have written."""
    if isinstance(fanouts, dict):
        return {parse_edge_type(name): parse_fanouts(each) for name, each in fanouts.items()}  # type: ignore[misc]
    return [typed(fanout, int) for fanout in typed(fanouts, list)]


def target_to_json(target: Target) -> dict[str, Any]:
    """What the seeds are. Of those that were given it has the digest."""
    given = {name: arrays.digest for name, arrays in given_arrays(target).items()}
    classes: dict[str, Any] = {} if target.num_classes is None else {"num_classes": target.num_classes}
    classes |= {} if target.classes is None else {"classes": list(target.classes)}
    if isinstance(target, NodeTarget):
        return {"node_type": target.node_type, **given, **classes}
    return {
        "edge_type": edge_type_name(target.edge_type),
        "negatives": target.negatives,
        "eval_negatives": target.eval_negatives,
        **({} if target.negatives_by == "uniform" else {"negatives_by": target.negatives_by}),
        "message_edges": target.message_edges,
        "exclude": target.exclude,
        "reverse_edge_type": target.reverse_edge_type and edge_type_name(target.reverse_edge_type),
        **({} if target.avoid == "seeds" else {"avoid": target.avoid}),
        **given,
        **classes,
    }


def given_arrays(target: Target) -> dict[str, SplitArrays]:
    """`seeds`, `times` and `labels`, where they were given."""
    found = {"seeds": target.seeds, "times": target.times, "labels": target.labels}
    return {name: arrays for name, arrays in found.items() if isinstance(arrays, SplitArrays)}


def parse_target(config: Mapping[str, Any]) -> Target:
    """What the seeds are; of those that were given only the digest is known.

    Raises ValueError or KeyError for what `target_to_json` would not have written.
    """
    given = {name: SplitArrays({}, typed(config[name], str)) for name in ("seeds", "times", "labels") if name in config}
    num_classes = typed(config["num_classes"], int) if "num_classes" in config else None
    classes = tuple(typed(config["classes"], list)) if "classes" in config else None
    if "node_type" in config:
        return NodeTarget(typed(config["node_type"], str), **given, num_classes=num_classes, classes=classes)
    reverse = config["reverse_edge_type"]
    return LinkTarget(
        parse_edge_type(config["edge_type"]), typed(config["negatives"], int), typed(config["eval_negatives"], int),
        typed(config["exclude"], str), None if reverse is None else parse_edge_type(reverse),
        avoid=typed(config.get("avoid", "seeds"), str),
        negatives_by=typed(config.get("negatives_by", "uniform"), str), **given, num_classes=num_classes,
        classes=classes,
        message_edges=typed(config.get("message_edges", "all"), str),
    )  # fmt: skip


def position_dtype(num_edges: int) -> npt.DTypeLike:
    """Of CSC positions in an edge type of so many edges."""
    return np.int32 if num_edges < 1 << 31 else np.int64
