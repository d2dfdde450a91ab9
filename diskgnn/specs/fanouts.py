"""Neighbours drawn per layer, of all edge types alike or of each."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from diskgnn.errors import ConfigError
from diskgnn.specs.schema import EdgeType, parse_edge_type, require_edge_type

MAX_FANOUT = (1 << 31) - 1
# Per layer, from the seeds outwards; -1 takes all. Of each edge type, or one list for all of them.
Fanouts = Sequence[int] | Mapping[EdgeType, Sequence[int]]
CheckedFanouts = tuple[int, ...] | dict[EdgeType, tuple[int, ...]]


def checked_fanouts(name: str, fanouts: Fanouts) -> CheckedFanouts:
    """Returns `fanouts` as ints, by edge types as triples if by types.

    Args:
        name: of the argument, for messages.
        fanouts: as a user gives them; of edge types, which may be names, 0 follows no edge.

    Raises:
        ConfigError: not one whole number per layer, each at least 1 (of an edge type 0), or -1 for all; or not as many
            for each edge type.
    """
    if isinstance(fanouts, Mapping):
        by_type = {
            parse_edge_type(edge_type, name): _numbers(f"{name} of {edge_type}", each, least=0)
            for edge_type, each in fanouts.items()
        }
        if len({len(each) for each in by_type.values()}) != 1:
            raise ConfigError(f"{name}: expected as many layers for each edge type, found {fanouts!r}")
        return by_type
    return _numbers(name, fanouts, least=1)


def num_layers(fanouts: CheckedFanouts) -> int:
    """Returns how many blocks a minibatch has that is drawn with these."""
    return len(fanouts if isinstance(fanouts, tuple) else next(iter(fanouts.values())))


def by_layer(fanouts: CheckedFanouts, edge_types: Sequence[EdgeType]) -> list[list[int]]:
    """Returns [layers, edge types] numbers; 0 for an edge type that is left out.

    Raises:
        ConfigError: they are given for an edge type that is not among `edge_types`.
    """
    if isinstance(fanouts, tuple):
        return [[fanout] * len(edge_types) for fanout in fanouts]
    for each in fanouts:
        require_edge_type("fanouts", each, edge_types)
    layers = num_layers(fanouts)
    return [[fanouts.get(each, (0,) * layers)[layer] for each in edge_types] for layer in range(layers)]


def _numbers(name: str, fanouts: Sequence[int], least: int) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(fanout) for fanout in fanouts)
    except TypeError:
        numbers = ()
    if not numbers or any(number != -1 and not least <= number <= MAX_FANOUT for number in numbers):
        raise ConfigError(
            f"{name}: expected one whole number per layer, each from {least} to {MAX_FANOUT} or -1 for all, found "
            f"{fanouts!r}"
        )
    return numbers
