"""What seeds are: nodes (`NodeTarget`), or the ends of edges to predict (`LinkTarget`)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import combinations
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.specs.schema import ClassValue, EdgeType, are_class_values, check_type_name, parse_edge_type
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.units import whole_number

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NEGATIVES_BY = ("uniform", "popularity")
SEED_TASKS = ("class", "multilabel", "regression")  # what labels in a table of seeds are
EXCLUSIONS = ("none", "self", "reverse")
MESSAGE_EDGES = ("train", "all")
AVOIDED = ("seeds", "known", "none")
_MOST_PAIR_CLASSES = 1 << 24  # files have the label of a pair as float32


@dataclass(frozen=True)
class NodeTarget:
    """Seeds are nodes: those of a type's splits, or those that are given. Given ones need no labels.

    A node is a seed once, however often it is given, unless draws are temporal: then it may be asked at several times,
    and have another label each time.

    Attributes:
        node_type: of the seeds; None is the only node type that has a split.
        seeds: numbers of nodes [n] of each split, in place of the graph's own splits: rows, also where the graph keeps
            ids of your own. `diskgnn.read_target` looks such ids up.
        times: [n] of each: what temporal draws go by, in place of the nodes' own.
        labels: [n] or [n, C] of each, in place of the nodes' own: whole numbers are classes, 0 and 1 [n, C] are several
            labels, floats are to be regressed.
        num_classes: of labels that are classes; the largest one plus 1 by default.
        classes: what classes 0, 1, ... are called, all text, all whole numbers or all truth values; `predict` and
            `infer` write that. By default these numbers.

    Warns of nodes that are given twice, and of those in two splits; with times, of nodes at the same time.

    Raises:
        ConfigError: not the name of a type; ids that are none; times or labels of other seeds, or of none.

    Example:
        >>> NodeTarget("user", seeds={"train": [7, 7]}, times={"train": [2019, 2020]}, labels={"train": [0, 1]})
    """

    node_type: str | None = None
    seeds: Mapping[str, Any] | None = None
    times: Mapping[str, Any] | None = None
    labels: Mapping[str, Any] | None = None
    num_classes: int | None = None
    classes: tuple[ClassValue, ...] | None = None

    def __post_init__(self) -> None:
        if self.node_type is not None:
            check_type_name(self.node_type, "target")
        is_given = self.seeds is not None and not isinstance(self.seeds, SplitArrays)
        _keep_seeds(self, ())
        _keep_labels(self)
        if is_given and isinstance(self.seeds, SplitArrays):
            _warn_of_repeated("node", self.seeds, self.times)


@dataclass(frozen=True)
class LinkTarget:
    """Seeds are the two ends of edges, and of pairs without an edge: link prediction. Or, with `labels`, the ends of
    pairs that each have a class or a number to be regressed: there are no negatives then.

    Warns of pairs that are given twice, and of those in two splits; with times, of pairs at the same time.

    Raises:
        ConfigError: a value that makes no sense.

    Example:
        >>> LinkTarget("user:rates:film", seeds={"train": [[7, 1], [7, 2]]}, labels={"train": [4.5, 2.0]})
    """

    edge_type: EdgeType  # whose splits of seed edges are the positive pairs
    negatives: int = 1  # per positive pair in training; 0: only those that the task finds in the batch
    eval_negatives: int = 100  # per positive pair in the other splits, the same ones in every epoch
    exclude: str = "reverse"  # of a train minibatch's neighbourhood: 'none', its seed edges 'self', 'reverse' ones too
    reverse_edge_type: EdgeType | None = None  # None: 'rev_NAME' if the graph has it, else the same type if it can be
    seeds: Mapping[str, Any] | None = None  # (source, destination) [n, 2] of each split, in place of the graph's own
    times: Mapping[str, Any] | None = None  # [n] of each: what temporal draws go by, in place of their ends' times
    # What negatives are not: seed edges of any split ('seeds'), nor edges of the type in the graph ('known'), which
    # makes ranks 'filtered' as in benchmarks of knowledge graphs; 'none' is uniform over all nodes, as in PyG
    avoid: str = "seeds"
    negatives_by: str = "uniform"  # or 'popularity': in proportion to how many train edges a destination has
    labels: Mapping[str, Any] | None = None  # [n] of each pair given: whole numbers are classes, floats are numbers
    num_classes: int | None = None  # of labels that are classes; the largest one plus 1 by default
    classes: tuple[ClassValue, ...] | None = None  # what classes 0, 1, ... are called; by default these numbers
    # What neighbourhoods of all splits are drawn from (PyG: message passing edges). 'train': the graph without the seed
    # edges of valid and test and their reverses, those that `exclude` would leave out; 'all': the whole graph
    message_edges: str = "train"

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_type", parse_edge_type(self.edge_type, "target"))
        is_given = self.seeds is not None and not isinstance(self.seeds, SplitArrays)
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
        if self.message_edges not in MESSAGE_EDGES:
            raise ConfigError(
                f"message_edges: expected one of {', '.join(MESSAGE_EDGES)}, found {self.message_edges!r}"
            )
        if self.avoid not in AVOIDED:
            raise ConfigError(f"avoid: expected one of {', '.join(AVOIDED)}, found {self.avoid!r}")
        if self.negatives_by not in NEGATIVES_BY:
            raise ConfigError(f"negatives_by: expected one of {', '.join(NEGATIVES_BY)}, found {self.negatives_by!r}")
        _keep_labels(self)
        if self.labels is not None:
            self._keep_no_negatives()
        object.__setattr__(self, "negatives", whole_number("negatives", self.negatives, least=0))
        object.__setattr__(self, "eval_negatives", whole_number("eval_negatives", self.eval_negatives, least=0))
        if is_given and isinstance(self.seeds, SplitArrays):
            _warn_of_repeated("pair", self.seeds, self.times)

    @property
    def is_own_negatives(self) -> bool:
        """Returns True if the other edges of a train minibatch are an edge's negatives."""
        return self.negatives == 0 and self.labels is None

    def _keep_no_negatives(self) -> None:
        """The label of each pair is what it was given, so no pairs are drawn beside them."""
        assert self.labels is not None
        for split, labels in self.labels.items():
            if labels.ndim != 1:
                raise ConfigError(
                    f"labels[{split!r}]: expected one label for each pair [n], found {list(labels.shape)}; predict "
                    "several one after the other"
                )
            if labels.dtype.kind == "i" and labels.max() >= _MOST_PAIR_CLASSES:
                raise ConfigError(f"labels[{split!r}]: expected classes below 2^24, found {labels.max()}")
        for field in fields(self):
            if field.name in ("negatives", "eval_negatives"):
                if getattr(self, field.name) not in (0, field.default):
                    raise ConfigError(f"{field.name}: expected none for pairs that have labels; leave it out")
                object.__setattr__(self, field.name, 0)


Target = NodeTarget | LinkTarget


def as_target(given: object) -> Target:
    """Returns a target, or the name of one: of a node type, 'paper', or of an edge type, 'author:writes:paper'.

    Raises:
        ConfigError: neither.
    """
    if isinstance(given, NodeTarget | LinkTarget):
        return given
    if isinstance(given, str):
        return LinkTarget(parse_edge_type(given, "target")) if ":" in given else NodeTarget(given)
    raise ConfigError(
        "target: expected NodeTarget(...), LinkTarget(...), or a type as 'paper' or 'author:writes:paper', found "
        f"{type(given).__name__}"
    )


def _warn_of_repeated(kind: str, seeds: SplitArrays, times: Mapping[str, Any] | None) -> None:
    """Warns of seeds that are given twice: nodes or pairs, or with times, which may ask again, these at a time.

    Args:
        kind: what seeds are, 'node' or 'pair'.
        seeds: [n] or [n, 2] of each split.
        times: [n] of each; None: they have none.
    """
    import numpy as np  # the command line imports this module, and starts without NumPy

    given = {
        split: [*ids.reshape(len(ids), -1).T, *([] if times is None else [times[split]])]
        for split, ids in seeds.items()
    }
    asked = {split: _distinct(columns) for split, columns in given.items()}
    what = f"{kind}s" if times is None else "pairs of a node and a time" if kind == "node" else "pairs at a time"
    of_train, remedy = f"of the {what}", "each is a seed of its own, so that these count more than others"
    if kind == "node" and times is None:
        what, remedy = "node ids", "each node is one seed"
    told = [
        f"seeds[{split!r}]: {repeated} of {len(seeds[split])} {what} occur before; {remedy}"
        for split, (ids, *_) in asked.items()
        if (repeated := len(seeds[split]) - len(ids))
    ]
    for one, other in combinations(asked, 2):
        both = [np.concatenate(pair) for pair in zip(asked[one], asked[other], strict=True)]
        if shared := len(both[0]) - len(_distinct(both)[0]):
            told.append(
                f"seeds: {shared} {of_train} of {one} are in {other}, too: what is measured on {other} is too good; "
                f"take them out of one of the two"
            )
    for each in told:
        warnings.warn(each, DataWarning, stacklevel=callers_level())


def _distinct(columns: list[npt.NDArray[np.int64]]) -> list[npt.NDArray[np.int64]]:
    """Returns the different rows of `columns` [n] each, in ascending order."""
    import numpy as np

    order = np.lexsort(columns[::-1])
    ordered = [each[order] for each in columns]
    del order
    is_new = np.ones(len(ordered[0]), np.bool_)
    is_new[1:] = np.any([each[1:] != each[:-1] for each in ordered], axis=0)
    return ordered if is_new.all() else [each[is_new] for each in ordered]


def _keep_seeds(target: Target, row_shape: tuple[int, ...]) -> None:
    """Turn what was given into `SplitArrays`."""
    if target.seeds is not None:
        object.__setattr__(target, "seeds", SplitArrays.of("seeds", target.seeds, row_shape))
    if target.times is None:
        return
    times = SplitArrays.of_times(target.times)
    _require_for_seeds("times", times, target.seeds)
    object.__setattr__(target, "times", times)


def _keep_labels(target: Target) -> None:
    """Turn what was given into `SplitArrays`, one for each seed, and check the number of classes."""
    if target.labels is not None:
        labels = SplitArrays.of_labels(target.labels)
        _require_for_seeds("labels", labels, target.seeds)
        object.__setattr__(target, "labels", labels)
    if target.classes is not None:
        if not are_class_values(target.classes, len(target.classes)) or len(target.classes) < 2:
            raise ConfigError(f"classes: expected two different names or more, found {target.classes!r:.80}")
        if target.num_classes not in (None, len(target.classes)):
            raise ConfigError(f"num_classes: expected {len(target.classes)}, as `classes`, found {target.num_classes}")
        object.__setattr__(target, "classes", tuple(target.classes))
        object.__setattr__(target, "num_classes", len(target.classes))
    if target.num_classes is None:
        return
    num_classes = whole_number("num_classes", target.num_classes, least=2)
    if target.labels is None:
        raise ConfigError("num_classes: expected the `labels` that these are of, found none")
    for split, each in target.labels.items():
        if each.dtype.kind != "i" or each.max() >= num_classes:
            raise ConfigError(
                f"num_classes: expected labels[{split!r}] to be classes below {num_classes}, found {each.dtype} up to "
                f"{each.max()}"
            )


def _require_for_seeds(name: str, given: SplitArrays, seeds: Mapping[str, Any] | None) -> None:
    """Checks that there is one for each seed."""
    if seeds is None:
        raise ConfigError(f"{name}: expected the seeds that they are of, found no seeds")
    sizes, found = ({split: len(each) for split, each in arrays.items()} for arrays in (seeds, given))
    if sizes != found:
        raise ConfigError(f"{name}: expected one for each seed ({sizes}), found {found}")
