"""What a user asks of sampling, checked once: `SamplingSpec`.

Public functions take its fields as keywords (`SamplingOptions`), make it in their first line and hand it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from diskgnn.errors import ConfigError
from diskgnn.specs.fanouts import CheckedFanouts, Fanouts, by_layer, checked_fanouts, num_layers
from diskgnn.specs.schema import SPLITS, EdgeType
from diskgnn.specs.shard import Shard
from diskgnn.specs.targets import LinkTarget, NodeTarget, Target, as_target
from diskgnn.specs.time_windows import Windows, checked_windows
from diskgnn.specs.user_sampler import AnySampler, UserSampler
from diskgnn.units import counted, seed_number, whole_number

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack

DRAWS = ("independent", "coordinated")
TEMPORAL = ("uniform", "last", "ignore")


class DrawingOptions(TypedDict, total=False):
    """Fields of `SamplingSpec` that say how minibatches are drawn, as keywords."""

    fanouts: Required[Fanouts]
    batch_size: int
    draws: str
    draw_period: int
    group_seeds: int
    target: Target | str | None
    temporal: str | None
    temporal_window: Windows | None
    strict_time: bool | None
    weighted: bool
    edge_ids: bool
    keep_times: bool
    without: Sequence[str]
    sampler: AnySampler | None
    seed: int


class SamplingOptions(DrawingOptions, total=False):
    """Fields of `SamplingSpec` that say which minibatches are prepared, too, as keywords."""

    epochs: int
    eval_fanouts: Fanouts | None
    expand_once: bool
    shuffle: bool


def _checked_columns(without: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns in an order of their own: what is prepared does not depend on how they are said."""
    found = [without] if isinstance(without, str) else without
    if not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"without: expected names of columns, TYPE.COLUMN each, found {without!r}")
    return tuple(sorted({*found}))


@dataclass(frozen=True)
class SamplingSpec:
    """Says how minibatches are sampled; with a graph, all that their content depends on.

    Attributes:
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all. With several edge types, one list
            for all of them, or a mapping from edge types (as triples or names) to lists. In these, 0 follows no edge,
            as for the types that are left out.
        batch_size: seeds per minibatch; the last one of an epoch may have fewer.
        epochs: epochs of the train split to prepare; other splits are sampled once.
        eval_fanouts: fanouts of the splits other than train; `fanouts` by default.
        seed: 0 to 2^64 - 1; same seed, same bytes.
        first_epoch: the train epochs are this one and those that follow.
        splits: which splits to sample; those that the graph lacks are left out.
        draws: 'independent', or 'coordinated': all nodes of a minibatch agree on which neighbours to draw, so that
            minibatches have fewer input nodes (docs/guide/fewer-rows.md has figures).
        draw_period: minibatches in which coordinated draws move round all neighbours once, so that consecutive ones
            draw nearly the same; 1 draws anew for every minibatch.
        group_seeds: train on seeds in groups of so many that are near each other, so that minibatches have fewer input
            nodes; the groups are shuffled every epoch. 1 shuffles seeds one by one.
        target: what the seeds are: `NodeTarget` names the type of the nodes, `LinkTarget` asks for seed edges and
            negatives; either may bring seeds of its own. The name of a type, 'paper' or 'author:writes:paper', will do.
            By default the nodes of the only type that has a train split.
        temporal: has to be said of graphs with times. With 'uniform' or 'last', nothing is drawn that is later than the
            seed, neither an edge nor the node at its other end: each seed has a tree of its own, and 'last' takes the
            latest edges. 'ignore' draws as if there were no times, so seeds see what comes after them.
        temporal_window: with `temporal`, a seed at time t draws only edges later than t minus this: a whole number in
            the unit of the graph's times, or text such as '180d' if the graph says its unit. It holds for edge types
            with times, and in a database for edges towards the row that is referred to; rows that are referred to are
            drawn whatever their age. A mapping from edge types to windows says for which it holds instead.
        strict_time: with `temporal`, nothing of the time of the seed either. By default so for links, because the edge
            that is asked for has this time, and not for nodes.
        weighted: draw in proportion to weights, where edge types have them, without replacement.
        edge_ids: keep which edges were drawn, for `Block.edge_ids`: rows of the user's list in a graph that was
            converted with `keep_ids`, as those of PyG are; otherwise places in the graph's CSC, with a DataWarning.
        keep_times: keep the times of input nodes, where their type has some, for `TypedMiniBatch.times`, and with
            `temporal` those of seeds, for `TypedMiniBatch.seed_times`: 8 bytes for each of them. Always so of
            a graph whose tables keep their columns.
        without: columns that tables keep and that minibatches shall not have, TYPE.COLUMN each, such as one that labels
            are made from.
        expand_once: a node draws neighbours once, when it is found, for all layers, as in PyG's NeighborLoader: for
            `to_pyg`. The blocks of such minibatches have no edges of nodes that were found earlier.
        shuffle: the train split, anew in every epoch; False takes it in the given order.
        sampler: a function `(seeds, rng)` that draws in place of ours, or its name 'module:function'; see
            `diskgnn.sampling.neighbourhood`. `fanouts` are then -1 for each layer. Its name and its attribute `version`
            are kept with the samples, its code is not: give it another version when you change it.
        shard: of all minibatches, those of one rank.

    Raises:
        ConfigError: a value that makes no sense.
    """

    fanouts: Fanouts
    batch_size: int = 1024
    epochs: int = 1
    eval_fanouts: Fanouts | None = None
    seed: int = 0
    first_epoch: int = 0
    splits: Sequence[str] = SPLITS
    draws: str = "independent"
    draw_period: int = 1
    group_seeds: int = 1
    target: Target = field(default_factory=NodeTarget)
    temporal: str | None = None
    temporal_window: Windows | None = None
    strict_time: bool | None = None
    weighted: bool = False
    edge_ids: bool = False
    keep_times: bool = False
    without: Sequence[str] = ()
    expand_once: bool = False
    shuffle: bool = True
    sampler: UserSampler | None = None
    shard: Shard = field(default_factory=Shard)

    @staticmethod
    def of(splits: Sequence[str] = SPLITS, first_epoch: int = 0, **options: Unpack[SamplingOptions]) -> SamplingSpec:
        """Returns what a user's keywords say.

        Raises:
            ConfigError: a value that makes no sense.
        """
        given: dict[str, Any] = {"splits": splits, "first_epoch": first_epoch, **options}
        return SamplingSpec(**given)

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", NodeTarget() if self.target is None else as_target(self.target))
        object.__setattr__(self, "sampler", UserSampler.of(self.sampler))
        fanouts = checked_fanouts("fanouts", self.fanouts)
        eval_fanouts = fanouts if self.eval_fanouts is None else checked_fanouts("eval_fanouts", self.eval_fanouts)
        if num_layers(eval_fanouts) != num_layers(fanouts):
            raise ConfigError(
                f"eval_fanouts has {counted(num_layers(eval_fanouts), 'layer')}, fanouts has {num_layers(fanouts)}: "
                "one model needs both"
            )
        object.__setattr__(self, "temporal_window", checked_windows("temporal_window", self.temporal_window))
        self._check_choice()
        if self.sampler is not None:
            self._check_own_draws(fanouts, eval_fanouts)
        if unknown := set(self.splits) - set(SPLITS):
            raise ConfigError(f"splits: expected some of {', '.join(SPLITS)}, found {sorted(unknown)}")
        draw_period = whole_number("draw_period", self.draw_period)
        if self.draws not in DRAWS:
            raise ConfigError(f"draws: expected one of {', '.join(DRAWS)}, found {self.draws!r}")
        if self.draws == "independent" and draw_period != 1:
            raise ConfigError(
                f"draw_period: independent draws have none, found {draw_period}; pass draws='coordinated' with it"
            )
        is_link = isinstance(self.target, LinkTarget)
        checked = {
            "without": _checked_columns(self.without),
            "strict_time": self.is_temporal and is_link if self.strict_time is None else self.strict_time,
            "fanouts": fanouts,
            "eval_fanouts": eval_fanouts,
            "batch_size": whole_number("batch_size", self.batch_size),
            "epochs": whole_number("epochs", self.epochs),
            "first_epoch": whole_number("first_epoch", self.first_epoch, least=0),
            "seed": seed_number(self.seed),
            "splits": tuple(split for split in SPLITS if split in self.splits),
            "draw_period": draw_period,
            "group_seeds": whole_number("group_seeds", self.group_seeds),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _check_choice(self) -> None:
        if not self.shuffle and self.group_seeds != 1:
            raise ConfigError("group_seeds: groups are what is shuffled; leave it out, or shuffle")
        if self.temporal is not None and self.temporal not in TEMPORAL:
            raise ConfigError(f"temporal: expected one of {', '.join(TEMPORAL)}, found {self.temporal!r}")
        if self.strict_time and not self.is_temporal:
            raise ConfigError("strict_time: draws have no times; pass temporal='uniform' or 'last' with it")
        if self.temporal_window is not None and not self.is_temporal:
            raise ConfigError("temporal_window: draws have no times; pass temporal='uniform' or 'last' with it")
        if self.weighted and self.temporal == "last":
            raise ConfigError("weighted: temporal='last' takes the latest edges whatever they weigh; choose one")

    def _check_own_draws(self, *fanouts: CheckedFanouts) -> None:
        """Refuses with another sampler what only our own one does."""
        if any(fanout != -1 for each in fanouts for fanout in (each if isinstance(each, tuple) else (0,))):
            raise ConfigError("fanouts: a sampler of your own decides what it draws; pass -1 for each of its layers")
        refused = {
            "draws": self.draws != "independent", "temporal": self.is_temporal, "weighted": self.weighted,
            "expand_once": self.expand_once,
        }  # fmt: skip
        for name, is_refused in refused.items():
            if is_refused:
                raise ConfigError(f"{name}: a sampler of your own decides what it draws; leave it out")
        if isinstance(self.target, LinkTarget):
            for name, value in {"exclude": "none", "message_edges": "all"}.items():
                if getattr(self.target, name) != value:
                    raise ConfigError(
                        f"{name}: a sampler of your own is not told of the seed edges; pass exclude='none' and "
                        "message_edges='all', and sample a graph without them"
                    )

    def __hash__(self) -> int:
        fields_of = (frozenset(each.items()) if isinstance(each, dict) else each for each in vars(self).values())
        return hash(tuple(fields_of))

    @property
    def is_temporal(self) -> bool:
        """Returns True if draws go by times."""
        return self.temporal in ("uniform", "last")

    @property
    def num_layers(self) -> int:
        """Returns how many blocks a minibatch has."""
        return num_layers(self.split_fanouts("train"))

    def fanouts_of(self, split: str) -> tuple[int, ...]:
        """Returns the fanouts of one split, the same for all edge types.

        Raises:
            ConfigError: they are not.
        """
        fanouts = self.split_fanouts(split)
        if isinstance(fanouts, dict):
            raise ConfigError("fanouts: expected one list for a graph of one type, found one for each edge type")
        return fanouts

    def fanouts_by_type(self, split: str, edge_types: Sequence[EdgeType]) -> list[list[int]]:
        """Returns [layers, edge types] fanouts of one split.

        Raises:
            ConfigError: they are given for an edge type that is not among `edge_types`.
        """
        return by_layer(self.split_fanouts(split), edge_types)

    def split_fanouts(self, split: str) -> CheckedFanouts:
        """Returns the fanouts of one split, as they were checked."""
        found = self.fanouts if split == "train" else self.eval_fanouts
        assert isinstance(found, tuple | dict)
        return found
