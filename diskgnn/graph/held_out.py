"""Finds the seed edges of valid and test among the edges of the graph: a model must not see what it will be asked.

Minibatches of all splits are drawn without them and their reverses (`LinkTarget.message_edges`). So training learns
nothing of them, and evaluation does not find its own answers in the neighbourhoods.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn._native import ExcludedEdges
from diskgnn.errors import DataWarning, callers_level
from diskgnn.formats.samples_config import EvalEdges
from diskgnn.graph.graph import Graph
from diskgnn.graph.known_edges import CHUNK_EDGES, known_edges
from diskgnn.graph.type_data import EdgeSet
from diskgnn.progress.reporter import Reporter
from diskgnn.specs.schema import EdgeType, edge_type_name, reverse_edge_type
from diskgnn.system.resources import Resources

HELD_OUT_SPLITS = ("valid", "test")
# Of a pair and each type that it is looked for in: the pair itself, how pairs are sorted, and what is found of them.
_WORK_BYTES = 16 + 8 + 16
_CHUNK_BYTES = 64  # of an edge of the graph, while a chunk of them is looked at
_NO_NODES = np.empty(0, np.int64)
Direction = tuple[EdgeType, bool]  # an edge type, and whether its edges run from destinations to sources


@dataclass(frozen=True)
class HeldOut:
    """The edges that minibatches of no split draw, and how many they are.

    It can be pickled, so other processes need not read the graph again.
    """

    edges: tuple[ExcludedEdges | None, ...] = ()  # by edge type; (): none
    eval_edges: EvalEdges | None = None  # None: there are no seed edges of valid and test


def reverse_type_in(graph: Graph, edge_type: EdgeType) -> EdgeType | None:
    """Returns the type that has the reverse edges of `edge_type`: 'rev_NAME', or the type itself if both ends are
    alike.
    """
    if (expected := reverse_edge_type(edge_type)) in graph.edges:
        return expected
    return edge_type if edge_type[0] == edge_type[2] else None


def held_out_bytes(num_pairs: int, directions: Sequence[Direction]) -> int:
    """Returns the most memory that `find_held_out` takes, including what it returns."""
    if not num_pairs or not directions:
        return 0
    return num_pairs * (len(directions) + 1) * (ExcludedEdges.MOST_BYTES + _WORK_BYTES) + _CHUNK_BYTES * CHUNK_EDGES


def find_held_out(
    graph: Graph,
    splits: Mapping[str, npt.NDArray[np.int64]],
    directions: Sequence[Direction],
    reporter: Reporter,
    *,
    keeps: bool,
) -> HeldOut:
    """Looks for the seed edges of valid and test among the edges of the graph. Reads the edges of each type once.

    Args:
        graph: the graph whose edges they may be.
        splits: [n, 2] seed edges of each split.
        directions: the types to look in, and which way round.
        reporter: told of the edges that are read.
        keeps: only count the edges; minibatches still draw them.

    Raises:
        ArtifactError: the topology is damaged.
    """
    asked = {split: splits[split] for split in HELD_OUT_SPLITS if len(splits.get(split, ()))}
    if not asked or not directions:
        return HeldOut()
    pairs = np.concatenate(list(asked.values()))
    found, counts = dict[EdgeType, ExcludedEdges](), dict[EdgeType, int]()
    num_edges = sum(graph.edges[edge_type].num_edges for edge_type in dict(directions))
    with reporter.stage("look for valid's and test's edges", num_edges, "edges") as advance:
        for edge_type in dict(directions):
            wanted = _together([_ends_of(pairs, turned) for each, turned in directions if each == edge_type])
            found[edge_type], counts[edge_type] = _found_in(graph.edges[edge_type], wanted, advance)
            del wanted
    seed_edges = {}
    for split, of_split in asked.items():
        is_edge = np.zeros(len(of_split), np.bool_)
        for edge_type, turned in directions:
            is_edge |= found[edge_type].contains(*_ends_of(of_split, turned)).view(np.bool_)
        seed_edges[split] = (len(of_split), int(is_edge.sum()))
    edges = tuple(found[each] if each in found and len(found[each]) else None for each in graph.edges)
    return HeldOut(() if keeps or not any(edges) else edges, EvalEdges(seed_edges, counts))


def warn_of_other_reverses(
    graph: Graph,
    edge_type: EdgeType,
    splits: Mapping[str, npt.NDArray[np.int64]],
    directions: Sequence[Direction],
    reporter: Reporter,
    *,
    left_out: Callable[[EdgeType], bool] = lambda edge_type: False,
) -> None:
    """Warns of edge types that run the other way and have most of valid's and test's seed edges.

    Such a type has the reverse edges under a name that does not say so, and neighbourhoods keep them.

    Args:
        graph: the graph whose edges are read.
        edge_type: type of the seed edges.
        splits: [n, 2] seed edges of each split.
        directions: the types where they are found already.
        reporter: told of the edges that are read.
        left_out: returns True for types that are not looked in.

    Raises:
        ArtifactError: the topology is damaged.
    """
    asked = [splits[split] for split in HELD_OUT_SPLITS if len(splits.get(split, ()))]
    ends, known = (edge_type[2], edge_type[0]), {edge_type, *dict(directions)}
    others = [each for each in graph.edges if (each[0], each[2]) == ends and each not in known and not left_out(each)]
    if not asked or not directions or not others:
        return
    turned = _ends_of(np.concatenate(asked), True)
    wanted = _together([turned])
    num_edges = sum(graph.edges[each].num_edges for each in others)
    with reporter.stage("look for valid's and test's edges in other types", num_edges, "edges") as advance:
        for other in others:
            found, _ = _found_in(graph.edges[other], wanted, advance)
            num_found = int(found.contains(*turned).view(np.bool_).sum())
            if 2 * num_found > len(turned[0]):
                name = edge_type_name(other)
                warnings.warn(
                    f"{num_found:,} of {len(turned[0]):,} seed edges of valid and test are edges of {name}, from "
                    "destination to source, which neighbourhoods keep: if these are the reverse edges, the model sees "
                    f"what evaluation asks; prepare with reverse_edge_type='{name}' to leave them out",
                    DataWarning,
                    stacklevel=callers_level(),
                )


def told_of_graph(graph: Graph, resources: Resources) -> Iterator[str]:
    """Yields what people should know of each edge type with seed edges of valid and test, before anything is sampled.

    Args:
        graph: the graph whose edges are read.
        resources: a type that needs more memory is left to `prepare`; a reporter of the edges that are read.
    """
    for edges in graph.edges.values():
        if not any(split in edges.config.link_splits for split in HELD_OUT_SPLITS):
            continue
        reverse = reverse_type_in(graph, edges.type)
        directions = [(edges.type, False), *([] if reverse is None else [(reverse, True)])]
        num_pairs = sum(len(edges.splits.get(split, ())) for split in HELD_OUT_SPLITS)
        if held_out_bytes(num_pairs, directions) <= resources.memory_bytes:
            done = "`prepare` leaves them and their reverses out of all neighbourhoods, unless message_edges='all'"
            told_of = told(find_held_out(graph, edges.splits, directions, resources.reporter, keeps=True), done)
            yield f"{edge_type_name(edges.type)}: {told_of}"


def told(held_out: HeldOut, done: str | None = None) -> str:
    """Returns a sentence: how many seed edges of valid and test are edges of the graph, and what is `done` about it."""
    if held_out.eval_edges is None:
        return ""
    counts, edges = held_out.eval_edges.seed_edges, held_out.eval_edges.edges
    are = " and ".join(f"{found:,} of {split}'s {count:,}" for split, (count, found) in counts.items())
    if not sum(edges.values()):
        return f"{are} seed edges are edges of the graph: nothing has to be left out of neighbourhoods"
    types = ", ".join(f"{count:,} {edge_type_name(edge_type)}" for edge_type, count in edges.items() if count)
    done = done or (
        f"with their reverses ({types}) they are left out of all neighbourhoods"
        if held_out.edges
        else f"neighbourhoods have them and their reverses ({types}), so the model sees what evaluation asks"
    )
    return f"{are} seed edges are edges of the graph: {done}"


def _found_in(edges: EdgeSet, wanted: ExcludedEdges, advance: Callable[[int], None]) -> tuple[ExcludedEdges, int]:
    """Returns the `wanted` edges that are edges of a type, and how many edges these are, parallel ones counted."""
    hits, num_hits, count = [(_NO_NODES, _NO_NODES)], 0, 0
    for sources, destinations in known_edges(edges):
        is_wanted = wanted.contains(sources, destinations).view(np.bool_)
        hits.append((sources[is_wanted], destinations[is_wanted]))
        num_hits += len(hits[-1][0])
        count += len(hits[-1][0])
        if num_hits > len(wanted):  # of parallel edges, one is enough
            hits = [_together(hits).edges()]
            num_hits = len(hits[0][0])
        advance(len(sources))
    return _together(hits), count


def _ends_of(pairs: npt.NDArray[np.int64], turned: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns (sources [n], destinations [n]) of `pairs`, exchanged if `turned`."""
    sources, destinations = np.ascontiguousarray(pairs.T[::-1] if turned else pairs.T)
    return sources, destinations


def _together(parts: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]) -> ExcludedEdges:
    return ExcludedEdges(*(np.concatenate(ends) for ends in zip(*parts, strict=True)))
