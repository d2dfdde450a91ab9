"""Which types that minibatches draw have times, and the choice that such a graph asks for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.graph.graph import Graph
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import EdgeType, type_words
from diskgnn.specs.targets import LinkTarget, Target


def reached_with_times(graph: Graph, target: Target, fanouts: Iterable[npt.NDArray[np.int32]]) -> list[str | EdgeType]:
    """Returns the types with times that draws reach from the seeds: types of edges, then of nodes.

    Args:
        graph: what is sampled.
        target: with every type named.
        fanouts: [layers, edge types] of each split.
    """
    edges, nodes = set(), set()
    for layers in fanouts:
        reached = set(_seed_types(target))
        for by_type in layers:
            followed = [
                each for each, fanout in zip(graph.edges, by_type, strict=True) if fanout and each[2] in reached
            ]
            edges |= {*followed}
            reached |= {source for source, _, _ in followed}
        nodes |= {source for source, _, _ in edges}
    if isinstance(target, LinkTarget) and (target.negatives or target.eval_negatives):
        nodes.add(target.edge_type[2])
    return [
        *(each for each in graph.edges if each in edges and graph.edges[each].config.has_times),
        *(name for name in graph.nodes if name in nodes and graph.nodes[name].config.has_times),
    ]


def timed_types(graph: Graph, target: Target, fanouts: Iterable[npt.NDArray[np.int32]]) -> list[str]:
    """Returns the words for `reached_with_times`."""
    return [type_words(each) for each in reached_with_times(graph, target, fanouts)]


def require_temporal(
    graph: Graph, spec: SamplingSpec, target: Target, fanouts: Iterable[npt.NDArray[np.int32]]
) -> None:
    """Refuse to draw from types with times as long as nobody has said what times are for.

    Where draws shall go by times and nothing that is drawn has some, there is a `DataWarning`.

    Raises:
        ConfigError: names these types, the choices, and what each does.
    """
    # A sampler of the user's own decides itself what it draws; negatives are drawn here all the same.
    found = timed_types(graph, target, () if spec.sampler is not None else fanouts)
    if found and spec.temporal is None:
        raise ConfigError(
            f"temporal: expected a choice, as {', '.join(found)} of {graph.manifest.path} have times; found none. "
            "With temporal='uniform' a seed draws among what is not later than itself, with temporal='last' the latest "
            "of that; with temporal='ignore' times do not count, so a seed sees what comes after it"
        )
    if not found and spec.temporal in ("uniform", "last") and spec.sampler is None:
        warnings.warn(
            f"nothing that is drawn from {graph.manifest.path} has times, so times of seeds leave nothing out: a seed "
            "sees what comes after it. Convert the graph again with times of its nodes or edges",
            DataWarning,
            stacklevel=callers_level(),
        )


def has_times(graph: Graph) -> bool:
    """Returns True if some nodes or edges have times."""
    of_nodes = any(nodes.config.has_times for nodes in graph.nodes.values())
    return of_nodes or any(edges.config.has_times for edges in graph.edges.values())


def require_times_to_ignore(graph: Graph) -> None:
    """Refuse to ignore the times of a graph that has none: whoever asks for that means another one.

    Raises:
        ConfigError: neither its nodes nor its edges have times.
    """
    if not has_times(graph):
        raise ConfigError(
            f"ignore_times: only for a graph with times, and {graph.manifest.path} has none; leave it out"
        )


def _seed_types(target: Target) -> tuple[str, ...]:
    if isinstance(target, LinkTarget):
        return target.edge_type[0], target.edge_type[2]
    assert target.node_type is not None
    return (target.node_type,)
