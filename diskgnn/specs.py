"""What a user asks for, checked once: how to sample (`SamplingSpec`), how much to cache (`CacheSpec`).

Public functions take keywords, build these in their first lines and hand them on.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from diskgnn.errors import ConfigError
from diskgnn.schema import EdgeType, check_type_name, edge_type_name, parse_edge_type
from diskgnn.split_arrays import SPLIT_NAMES, SplitArrays
from diskgnn.units import parse_size
from diskgnn.user_sampler import UserSampler

PathLike = str | os.PathLike[str]
SPLITS = SPLIT_NAMES
MAX_FANOUT = (1 << 31) - 1
ENGINES = ("local", "ray")
DRAWS = ("independent", "coordinated")
EXCLUSIONS = ("none", "self", "reverse")
TEMPORAL = ("uniform", "last")
# Per layer, from the seeds outwards; -1 takes all. Of each edge type, or one list for all of them.
Fanouts = Sequence[int] | Mapping[EdgeType, Sequence[int]]


@dataclass(frozen=True)
class NodeTarget:
    """Seeds are nodes: those of a type's splits, or those that are given. Given ones need no labels.

    A node is a seed once, however often it is given, unless draws are temporal: then it may be asked at several times.

    Raises:
        ConfigError: not the name of a type; ids that are none; times of other seeds, or of none.

    Example:
        >>> NodeTarget("paper", seeds={"test": [7, 7]}, times={"test": [2019, 2020]})
    """

    node_type: str | None = None  # None: the only node type that has a split
    seeds: Mapping[str, Any] | None = None  # node ids [n] of each split, in place of the graph's own splits
    times: Mapping[str, Any] | None = None  # [n] of each: what temporal draws go by, in place of the nodes' own

    def __post_init__(self) -> None:
        if self.node_type is not None:
            check_type_name(self.node_type, "target")
        _keep_seeds(self, ())


@dataclass(frozen=True)
class LinkTarget:
    """Seeds are the two ends of edges, and of pairs without an edge: link prediction.

    Raises:
        ConfigError: a value that makes no sense.
    """

    edge_type: EdgeType  # whose splits of seed edges are the positive pairs
    negatives: int = 1  # per positive pair in training; 0: only those that the task finds in the batch
    eval_negatives: int = 100  # per positive pair in the other splits, the same ones in every epoch
    exclude: str = "reverse"  # of a train minibatch's neighbourhood: 'none', its seed edges 'self', 'reverse' ones too
    reverse_edge_type: EdgeType | None = None  # None: 'rev_NAME' if the graph has it, else the same type if it can be
    seeds: Mapping[str, Any] | None = None  # (source, destination) [n, 2] of each split, in place of the graph's own
    times: Mapping[str, Any] | None = None  # [n] of each: what temporal draws go by, in place of their ends' times

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_type", parse_edge_type(self.edge_type, "target"))
        _keep_seeds(self, (2,))
        if self.reverse_edge_type is not None:
            source, name, destination = parse_edge_type(self.reverse_edge_type, "reverse_edge_type")
            if (source, destination) != (self.edge_type[2], self.edge_type[0]):
                raise ConfigError(
                    f"reverse_edge_type: expected one from {self.edge_type[2]!r} to {self.edge_type[0]!r}, found "
                    f"{self.reverse_edge_type!r}"
                )
            object.__setattr__(self, "reverse_edge_type", (source, name, destination))
        if self.exclude not in EXCLUSIONS:
            raise ConfigError(f"exclude: expected one of {', '.join(EXCLUSIONS)}, found {self.exclude!r}")
        object.__setattr__(self, "negatives", whole_number("negatives", self.negatives, least=0))
        object.__setattr__(self, "eval_negatives", whole_number("eval_negatives", self.eval_negatives, least=0))


Target = NodeTarget | LinkTarget


def _keep_seeds(target: Target, row_shape: tuple[int, ...]) -> None:
    """Turn what was given into `SplitArrays`."""
    if target.seeds is not None:
        object.__setattr__(target, "seeds", SplitArrays.of("seeds", target.seeds, row_shape))
    if target.times is None:
        return
    times = SplitArrays.of("times", target.times)
    if target.seeds is None:
        raise ConfigError("times: expected the seeds that they are of, found no seeds")
    sizes, found = ({split: len(each) for split, each in given.items()} for given in (target.seeds, times))
    if sizes != found:
        raise ConfigError(f"times: expected one for each seed ({sizes}), found {found}")
    object.__setattr__(target, "times", times)


@dataclass(frozen=True)
class Shard:
    """The minibatches of one of several ranks that train together: in each epoch, of each split, those whose numbers
    are `rank`, `rank + world_size`, `rank + 2 * world_size`, ... So step t of all ranks is what one rank has at
    positions t * world_size to (t + 1) * world_size - 1.

    Raises:
        ConfigError: no rank of so many.

    Example:
        >>> list(Shard(1, 4).numbers(10))
        [1, 5, 9]
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        world_size = whole_number("world_size", self.world_size)
        rank = whole_number("rank", self.rank, least=0)
        if rank >= world_size:
            raise ConfigError(f"rank: expected less than the world size {world_size}, found {rank}")
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "world_size", world_size)

    def numbers(self, num_batches: int) -> range:
        """Which of the `num_batches` minibatches of an epoch these are."""
        return range(self.rank, num_batches, self.world_size)


@dataclass(frozen=True)
class SamplingSpec:
    """How minibatches are sampled; with a graph, all that their content depends on.

    Raises:
        ConfigError: a value that makes no sense.
    """

    # Neighbours drawn per layer, from the seeds outwards; -1 takes all. A mapping has a list for each edge type, as a
    # triple or a name; there, 0 follows no edge of a type, as for the types that are left out.
    fanouts: Fanouts
    batch_size: int  # seeds per minibatch; the last one of an epoch may have fewer
    epochs: int = 1  # of the train split; other splits are sampled once
    eval_fanouts: Fanouts | None = None  # of the splits other than train; `fanouts` by default
    seed: int = 0  # same seed, same bytes
    first_epoch: int = 0  # the train epochs are this one and those that follow
    splits: Sequence[str] = SPLITS  # those that the graph lacks are left out
    draws: str = "independent"  # or 'coordinated': all nodes of a minibatch agree on which neighbours to draw
    draw_period: int = 1  # minibatches in which coordinated draws move round all neighbours once; 1: anew
    group_seeds: int = 1  # seeds of the train split that stay together: near ones, where they are more than one
    target: Target = NodeTarget()  # what the seeds are
    temporal: str | None = None  # nothing later than the seed: drawn 'uniform'ly, or the 'last' ones
    strict_time: bool = False  # nothing of the time of the seed either
    weighted: bool = False  # draw in proportion to weights, where edges have them
    edge_ids: bool = False  # keep where sampled edges lie; kept in any case where edges have features
    expand_once: bool = False  # a node draws once for all layers, when it is found, as in PyG: for `to_pyg` only
    shuffle: bool = True  # the train split, anew in every epoch; False: in the given order
    sampler: UserSampler | None = None  # draws in place of ours; or a function, or its name
    shard: Shard = field(default_factory=Shard)  # of all minibatches, those of one rank

    def __post_init__(self) -> None:
        fanouts = _checked("fanouts", self.fanouts)
        eval_fanouts = fanouts if self.eval_fanouts is None else _checked("eval_fanouts", self.eval_fanouts)
        if _num_layers(eval_fanouts) != _num_layers(fanouts):
            raise ConfigError(
                f"eval_fanouts has {_num_layers(eval_fanouts)} layers, fanouts has {_num_layers(fanouts)}: one model "
                "needs both"
            )
        self._check_choice()
        if self.sampler is not None:
            object.__setattr__(self, "sampler", UserSampler.of(self.sampler))
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
        checked = {
            "fanouts": fanouts,
            "eval_fanouts": eval_fanouts,
            "batch_size": whole_number("batch_size", self.batch_size),
            "epochs": whole_number("epochs", self.epochs),
            "first_epoch": whole_number("first_epoch", self.first_epoch, least=0),
            "seed": operator.index(self.seed),
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
        if self.strict_time and self.temporal is None:
            raise ConfigError("strict_time: draws have no times; pass temporal='uniform' or 'last' with it")
        if self.weighted and self.temporal == "last":
            raise ConfigError("weighted: temporal='last' takes the latest edges whatever they weigh; choose one")

    def _check_own_draws(self, *fanouts: CheckedFanouts) -> None:
        """What only our own sampler does is refused with another."""
        if any(fanout != -1 for each in fanouts for fanout in (each if isinstance(each, tuple) else (0,))):
            raise ConfigError("fanouts: a sampler of your own decides what it draws; pass -1 for each of its layers")
        usual = {"draws": "independent", "temporal": None, "weighted": False, "expand_once": False}
        for name, value in usual.items():
            if getattr(self, name) != value:
                raise ConfigError(f"{name}: a sampler of your own decides what it draws; leave it out")
        if isinstance(self.target, LinkTarget) and self.target.exclude != "none":
            raise ConfigError(
                "exclude: a sampler of your own is not told of the seed edges; pass exclude='none', and sample a graph "
                "without them"
            )

    @property
    def num_layers(self) -> int:
        """Blocks in each minibatch."""
        return _num_layers(self._fanouts("train"))

    def fanouts_of(self, split: str) -> tuple[int, ...]:
        """Fanouts of one split, the same for all edge types.

        Raises:
            ConfigError: they are not.
        """
        fanouts = self._fanouts(split)
        if isinstance(fanouts, dict):
            raise ConfigError("fanouts: expected one list for a graph of one type, found one for each edge type")
        return fanouts

    def fanouts_by_type(self, split: str, edge_types: Sequence[EdgeType]) -> list[list[int]]:
        """[layers, edge types] fanouts of one split.

        Raises:
            ConfigError: they are given for an edge type that is not among `edge_types`.
        """
        fanouts = self._fanouts(split)
        if isinstance(fanouts, tuple):
            return [[fanout] * len(edge_types) for fanout in fanouts]
        if unknown := set(fanouts) - set(edge_types):
            known = ", ".join(map(edge_type_name, edge_types))
            raise ConfigError(
                f"fanouts: the graph has no edge type {', '.join(sorted(map(edge_type_name, unknown)))}, only {known}"
            )
        return [[fanouts.get(each, (0,) * self.num_layers)[k] for each in edge_types] for k in range(self.num_layers)]

    def _fanouts(self, split: str) -> CheckedFanouts:
        found = self.fanouts if split == "train" else self.eval_fanouts
        assert isinstance(found, tuple | dict)
        return found


@dataclass(frozen=True)
class CacheSpec:
    """How much memory training may spend on feature rows: bytes, '2GiB', or a share of all rows such as '10%'."""

    cpu: int | str  # the cpu tier of the train split
    static: int | str = "auto"  # rows that stay: those of the device and pinned tiers; 'auto' is none without a GPU
    evaluation: int | str | None = None  # the cpu tier of each other split; a quarter of `cpu` by default


def cache_rows(cache: int | str, row_bytes: int, num_nodes: int) -> int:
    """Rows that a cache holds: given in bytes, as '2GiB', or as a share of all rows, '10%'.

    Raises:
        ConfigError: neither a size nor a share, or a size above 0 with no room for a row: "10" is not "10%".
    """
    if isinstance(cache, str) and cache.strip().endswith("%"):
        try:
            share = float(cache.strip()[:-1]) / 100
        except ValueError as error:
            raise ConfigError(f"expected a cache size such as 2GiB or 10%, found {cache!r}") from error
        if not 0 <= share <= 1:
            raise ConfigError(f"expected a share between 0% and 100%, found {cache!r}")
        return int(num_nodes * share)
    num_bytes = parse_size(cache)
    if 0 < num_bytes < row_bytes:
        raise ConfigError(
            f"expected a cache of 0 or of at least one row ({row_bytes} bytes), found {cache!r}, which is in bytes: "
            "write 10% for a share of all rows, or a size such as 2GiB"
        )
    return min(num_bytes // row_bytes, num_nodes)


def whole_number(name: str, value: SupportsIndex, least: int = 1) -> int:
    """`value` as an int: NumPy's numbers are welcome, but no JSON.

    Raises:
        ConfigError: no whole number, or less than `least`.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ConfigError(f"{name}: expected a whole number, found {value!r}") from error
    if number < least:
        raise ConfigError(f"{name}: expected at least {least}, found {number}")
    return number


CheckedFanouts = tuple[int, ...] | dict[EdgeType, tuple[int, ...]]


def _checked(name: str, fanouts: Fanouts) -> CheckedFanouts:
    if isinstance(fanouts, Mapping):
        by_type = {
            parse_edge_type(edge_type, name): checked_fanouts(f"{name} of {edge_type}", each, least=0)
            for edge_type, each in fanouts.items()
        }
        if len({len(each) for each in by_type.values()}) != 1:
            raise ConfigError(f"{name}: expected as many layers for each edge type, found {fanouts!r}")
        return by_type
    return checked_fanouts(name, fanouts)


def checked_fanouts(name: str, fanouts: Sequence[int], least: int = 1) -> tuple[int, ...]:
    """`fanouts` as ints.

    Raises:
        ConfigError: not one whole number per layer, each at least `least` or -1 for all.
    """
    try:
        numbers = tuple(operator.index(fanout) for fanout in fanouts)
    except TypeError:
        numbers = ()
    if not numbers or any(number != -1 and not least <= number <= MAX_FANOUT for number in numbers):
        raise ConfigError(
            f"{name}: expected one whole number per layer, each at least {least} or -1 for all, found {fanouts!r}"
        )
    return numbers


def _num_layers(fanouts: CheckedFanouts) -> int:
    return len(fanouts if isinstance(fanouts, tuple) else next(iter(fanouts.values())))
