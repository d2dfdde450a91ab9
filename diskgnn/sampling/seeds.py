"""What minibatches start from: nodes of a split, or the ends of seed edges and of pairs without an edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskgnn.draws import batch_key
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.sampling.negatives import (
    AvoidedDestinations,
    NegativeDestinations,
    count_destinations,
    known_edges,
    negative_bits,
)
from diskgnn.schema import EdgeType, edge_type_name, reverse_edge_type
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.storage.samples import PairSample

Excluded = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # (sources, destinations) of edges that are not drawn


@dataclass(frozen=True)
class SeedBatch:
    """The seeds of one minibatch."""

    seeds: npt.NDArray[np.int64]  # [B] by node type in order
    seed_counts: tuple[int, ...]  # how many are of each node type
    times: npt.NDArray[np.int64] | None = None  # [B] nothing later is drawn for a seed; None: times do not matter
    excluded: tuple[Excluded | None, ...] = ()  # by edge type; (): none
    pairs: PairSample | None = None
    places: npt.NDArray[np.int64] | None = None  # [B] positions among the seeds of the split, if these have labels


class Seeds(Protocol):
    """All that a plan can start minibatches from."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Those of the splits asked for that the graph has."""
        ...

    @property
    def target(self) -> NodeTarget | LinkTarget:
        """What was asked for, with every type named."""
        ...

    @property
    def negatives_bytes(self) -> int:
        """What drawing pairs without an edge takes of memory, whatever the minibatch."""
        ...

    def count(self, split: str) -> int:
        """Seed nodes or seed edges of a split."""
        ...

    def listed(self, split: str) -> npt.NDArray[np.int64]:
        """[n] these nodes, or [n, 2] these edges, in the order of their positions."""
        ...

    def batch(self, split: str, epoch: int, positions: npt.NDArray[np.int64]) -> SeedBatch:
        """The minibatch of those at these `positions` of the split."""
        ...


def seeds_of(graph: Graph, spec: SamplingSpec) -> Seeds:
    """What `spec.target` asks for.

    Raises:
        ConfigError: a type that the graph does not have, or no one type to choose.
        InputError: the graph has nothing in the splits asked for.
        ArtifactError: a split has nodes that are not in the graph.
    """
    if isinstance(spec.target, LinkTarget):
        return EdgeSeeds(graph, spec, spec.target)
    return NodeSeeds(graph, spec, spec.target)


class NodeSeeds:
    """The nodes of one type's splits, each once, in the order in which it comes first. Those given with `temporal`
    stay as they are given.
    """

    def __init__(self, graph: Graph, spec: SamplingSpec, target: NodeTarget) -> None:
        self._graph, self._nodes = graph, _target_nodes(graph, spec, target)
        self.target = replace(target, node_type=self._nodes.name)
        given = self._nodes.splits if target.seeds is None else target.seeds
        self.splits = tuple(split for split in spec.splits if len(given.get(split, ())))
        _require_splits(graph, spec, self.splits, "nodes", given=target.seeds is not None)
        for split in self.splits:
            _check_nodes(graph, split, given[split], self._nodes, given=target.seeds is not None)
        self._is_timed, self._strict = spec.temporal is not None, spec.strict_time
        _check_times(spec, target)
        if self._is_timed and not self._nodes.config.has_times and target.times is None:
            raise ConfigError(
                f"temporal: the seeds, nodes of type {self._nodes.name!r}, have no times; give `seeds` and `times`, or "
                "convert with times"
            )
        # With times, each seed has a tree of its own, so it may be there several times.
        keeps_all = self._is_timed and target.seeds is not None
        self.nodes = {split: given[split] if keeps_all else _distinct(given[split]) for split in self.splits}
        self._times = {split: self._moments(split) for split in self.splits} if self._is_timed else {}
        if target.labels is not None:
            for split, nodes in self.nodes.items():
                _require_once(self._nodes, split, len(nodes), given[split])

    @property
    def negatives_bytes(self) -> int:
        """Nothing: seeds are nodes."""
        return 0

    def count(self, split: str) -> int:
        """Distinct nodes of a split, or all that were given with times."""
        return len(self.nodes[split])

    def listed(self, split: str) -> npt.NDArray[np.int64]:
        """[n] distinct nodes of a split."""
        return self.nodes[split]

    def _moments(self, split: str) -> npt.NDArray[np.int64]:
        given = self.target.times
        return self._nodes.times_of(self.nodes[split]) if given is None else np.asarray(given[split], np.int64)

    def batch(self, split: str, epoch: int, positions: npt.NDArray[np.int64]) -> SeedBatch:
        """The same in every epoch."""
        seeds = self.nodes[split][positions]
        counts = tuple(len(seeds) if nodes is self._nodes else 0 for nodes in self._graph.nodes.values())
        times = self._times[split][positions] - int(self._strict) if self._is_timed else None
        return SeedBatch(seeds, counts, times, places=None if self.target.labels is None else positions)


class EdgeSeeds:
    """The seed edges of one edge type's splits, and pairs without an edge: destinations drawn for their sources."""

    def __init__(self, graph: Graph, spec: SamplingSpec, target: LinkTarget) -> None:
        if target.edge_type not in graph.edges:
            raise ConfigError(
                f"target: the graph has no edge type {edge_type_name(target.edge_type)}, only "
                f"{', '.join(map(edge_type_name, graph.edges))}"
            )
        self._graph, self._spec = graph, spec
        edges = graph.edges[target.edge_type]
        self._ends = graph.nodes[target.edge_type[0]], graph.nodes[target.edge_type[2]]
        self.target = replace(target, reverse_edge_type=_reverse_type(graph, target))
        self._edges: Mapping[str, npt.NDArray[np.int64]] = edges.splits if target.seeds is None else target.seeds
        self.splits = tuple(split for split in spec.splits if len(self._edges.get(split, ())))
        _require_splits(graph, spec, self.splits, "seed edges", given=target.seeds is not None)
        if target.negatives_by == "popularity" and not len(self._edges.get("train", ())):
            raise ConfigError("negatives_by: popularity is counted in the seed edges to train on, found none")
        for split, pairs in self._edges.items():
            for nodes, column in zip(self._ends, pairs.T, strict=True):
                _check_nodes(graph, split, column, nodes, given=target.seeds is not None)
        _check_times(spec, target)
        if (
            spec.temporal is not None
            and target.times is None
            and not any(nodes.config.has_times for nodes in self._ends)
        ):
            raise ConfigError(
                f"temporal: the seeds, edges of type {edge_type_name(target.edge_type)}, have no times: neither of "
                "their ends has; give `seeds` and `times`"
            )

    def count(self, split: str) -> int:
        """Seed edges of a split."""
        return len(self._edges[split])

    def listed(self, split: str) -> npt.NDArray[np.int64]:
        """[n, 2] seed edges of a split."""
        return self._edges[split]

    @property
    def negatives_bytes(self) -> int:
        """Of the lists of what negatives are not. Known edges are counted for it, which reads all of the type."""
        if not self._num_negatives:
            return 0
        if self.target.negatives_by != "popularity":
            return self._avoided.num_bytes
        return self._avoided.num_bytes + NegativeDestinations.num_bytes(self._avoided, self._ends[1].num_nodes)

    @property
    def _num_negatives(self) -> int:
        """Of an edge, at most."""
        return max(self.target.negatives if split == "train" else self.target.eval_negatives for split in self.splits)

    @cached_property
    def _avoided(self) -> AvoidedDestinations:
        num_nodes, edges = self._ends[1].num_nodes, self._graph.edges[self.target.edge_type]
        avoided = [] if self.target.avoid == "none" else list(self._edges.values())
        if self.target.avoid != "known":
            return AvoidedDestinations(avoided, num_nodes)
        return AvoidedDestinations(avoided, num_nodes, lambda: known_edges(edges))

    @cached_property
    def _negatives(self) -> NegativeDestinations:
        target = self.target
        self._avoided.fill()
        num_nodes, places = self._ends[1].num_nodes, None
        if target.negatives_by == "popularity":
            places = count_destinations(self._edges["train"], num_nodes)
        return NegativeDestinations(self._avoided, num_nodes, places)

    def batch(self, split: str, epoch: int, positions: npt.NDArray[np.int64]) -> SeedBatch:
        """Negatives of train are drawn for each epoch, those of other splits are the same in all."""
        is_train, seed = split == "train", self._spec.seed
        per_positive = self.target.negatives if is_train else self.target.eval_negatives
        sources, destinations = self._edges[split][positions].T
        negatives = np.empty((len(positions), 0), np.int64)
        if per_positive:
            key = batch_key(seed, f"{split}/negatives", epoch if is_train else 0)
            bits = negative_bits(key, positions, per_positive)
            negatives = self._negatives.draw(sources, bits)
        ends = sources, np.concatenate([destinations, negatives.ravel()])
        rows = np.concatenate([np.arange(len(positions)), np.repeat(np.arange(len(positions)), per_positive)])
        if self.target.labels is None:
            label = (np.arange(len(rows)) < len(positions)).astype(np.float32)
        else:
            label = self.target.labels[split][positions].astype(np.float32)
        excluded = self._excluded(sources, destinations) if is_train else ()
        if self._spec.temporal is None:
            seeds, (src, dst) = _by_first_appearance(ends, self._same_type)
            times = None
        else:
            # Each end has a tree of its own, so each is a seed, repeated or not.
            moments = self._moments[split][positions]
            seeds = [np.concatenate(ends)] if self._same_type else list(ends)
            src, dst = np.arange(len(sources)), np.arange(len(ends[1])) + (len(sources) if self._same_type else 0)
            times = [np.concatenate([moments, moments[rows]])] if self._same_type else [moments, moments[rows]]
        pairs = PairSample(src[rows].astype(np.int32), dst.astype(np.int32), label)
        return self._in_type_order(seeds, times, excluded, pairs)

    @property
    def _same_type(self) -> bool:
        return self._ends[0] is self._ends[1]

    def _in_type_order(
        self,
        seeds: list[npt.NDArray[np.int64]],
        times: list[npt.NDArray[np.int64]] | None,
        excluded: tuple[Excluded | None, ...],
        pairs: PairSample,
    ) -> SeedBatch:
        by_type = sorted(range(len(seeds)), key=lambda end: self._ends[end].number)
        counts = [0] * len(self._graph.nodes)
        for end in by_type:
            counts[self._ends[end].number] = len(seeds[end])
        return SeedBatch(
            np.concatenate([seeds[end] for end in by_type]), tuple(counts),
            None if times is None else np.concatenate([times[end] for end in by_type]), excluded, pairs,
        )  # fmt: skip

    @cached_property
    def _moments(self) -> dict[str, npt.NDArray[np.int64]]:
        """What the seed edges of each split may see. An edge is there when it was said to be, otherwise as soon as both
        of its ends are.
        """
        given, strict = self.target.times, int(self._spec.strict_time)
        if given is not None:
            return {split: np.asarray(given[split], np.int64) - strict for split in self.splits}
        return {
            split: np.maximum.reduce([
                nodes.times_of(ids)
                for nodes, ids in zip(self._ends, self._edges[split].T, strict=True)
                if nodes.config.has_times
            ]) - strict
            for split in self.splits
        }  # fmt: skip

    def _excluded(
        self, sources: npt.NDArray[np.int64], destinations: npt.NDArray[np.int64]
    ) -> tuple[Excluded | None, ...]:
        if self.target.exclude == "none":
            return ()
        found: dict[EdgeType, Excluded] = {self.target.edge_type: (sources, destinations)}
        reverse = self.target.reverse_edge_type
        if self.target.exclude == "reverse" and reverse is not None:
            before = found.get(reverse, (sources[:0], sources[:0]))
            found[reverse] = np.concatenate([before[0], destinations]), np.concatenate([before[1], sources])
        return tuple(
            None if edge_type not in found else (found[edge_type][0].copy(), found[edge_type][1].copy())
            for edge_type in self._graph.edges
        )


def _by_first_appearance(
    ends: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], same_type: bool
) -> tuple[list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]]:
    """The distinct nodes of both ends, together where they are of one type, and where each end is among them."""
    lists = [np.concatenate(ends)] if same_type else list(ends)
    seeds, places = [], []
    for nodes in lists:
        _, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        seeds.append(nodes[np.sort(first)])
        places.append(rank[inverse.ravel()])
    return seeds, np.split(places[0], [len(ends[0])]) if same_type else places


def _target_nodes(graph: Graph, spec: SamplingSpec, target: NodeTarget) -> NodeSet:
    if target.node_type is not None:
        if target.node_type not in graph.nodes:
            raise ConfigError(f"target: the graph has no node type {target.node_type!r}, only {', '.join(graph.nodes)}")
        return graph.nodes[target.node_type]
    if len(graph.nodes) == 1:
        return next(iter(graph.nodes.values()))
    trained = [nodes for nodes in graph.nodes.values() if len(nodes.splits.get("train", ()))]
    found = trained or [nodes for nodes in graph.nodes.values() if any(map(nodes.splits.get, spec.splits))]
    if not found:
        _require_splits(graph, spec, (), "nodes")
    if len(found) != 1:
        raise ConfigError(
            f"target: {', '.join(nodes.name for nodes in found)} have seeds of a train split; name one of them"
        )
    return found[0]


def _reverse_type(graph: Graph, target: LinkTarget) -> EdgeType | None:
    if target.reverse_edge_type is not None:
        if target.reverse_edge_type not in graph.edges:
            raise ConfigError(
                f"reverse_edge_type: the graph has no edge type {edge_type_name(target.reverse_edge_type)}, only "
                f"{', '.join(map(edge_type_name, graph.edges))}"
            )
        return target.reverse_edge_type
    if (expected := reverse_edge_type(target.edge_type)) in graph.edges:
        return expected
    return target.edge_type if target.edge_type[0] == target.edge_type[2] else None


def _require_splits(
    graph: Graph, spec: SamplingSpec, found: tuple[str, ...], what: str, *, given: bool = False
) -> None:
    if not found:
        asked = ", ".join(spec.splits) or "none"
        if given:
            raise ConfigError(f"seeds: expected some for the splits asked for ({asked}), found none")
        others = ", ".join(_with_seeds(graph, spec))
        raise InputError(
            f"{graph.manifest.path} has no {what} in the splits asked for ({asked}): nothing to sample"
            + (f"; give `target` one of {others}" if others else "")
        )


def _with_seeds(graph: Graph, spec: SamplingSpec) -> list[str]:
    """Types of nodes and edges that could be targets."""
    nodes = [name for name, each in graph.nodes.items() if _has_some(each.splits, spec)]
    edges = [edge_type_name(name) for name, each in graph.edges.items() if _has_some(each.splits, spec)]
    return nodes + edges


def _has_some(splits: Mapping[str, npt.NDArray[np.int64]], spec: SamplingSpec) -> bool:
    return any(len(splits.get(split, ())) for split in spec.splits)


def _check_times(spec: SamplingSpec, target: NodeTarget | LinkTarget) -> None:
    if target.times is not None and spec.temporal is None:
        raise ConfigError(
            "times: draws do not go by them; pass temporal='uniform' or 'last' with them, or leave them out: a column "
            "called time in a table of seeds is taken without being named, so call it otherwise"
        )


def _check_nodes(graph: Graph, split: str, ids: npt.NDArray[Any], nodes: NodeSet, *, given: bool = False) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= nodes.num_nodes):
        if given:
            raise ConfigError(
                f"seeds[{split!r}]: expected ids of the {nodes.num_nodes} nodes of type {nodes.name!r}, found "
                f"{ids.min()} to {ids.max()}"
            )
        raise ArtifactError(f"{graph.manifest.path}: {split} has nodes that are not in the graph; make it again")


def _require_once(node_set: NodeSet, split: str, num_nodes: int, given: npt.NDArray[np.int64]) -> None:
    """Refuse a node with several labels in one split where it would be one seed."""
    if num_nodes < len(given):
        nodes, counts = np.unique(given, return_counts=True)
        raise ConfigError(
            f"labels: expected each node once in seeds[{split!r}], found "
            f"{node_set.called(int(nodes[counts > 1][0]))} in {counts[counts > 1][0]} of them; keep one of these, or "
            f"give `times` and pass temporal='uniform' or 'last': then each seed has a neighbourhood of its own"
        )


def _distinct(nodes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """`nodes` without repetitions, in the order in which each comes first."""
    _, first = np.unique(nodes, return_index=True)
    return np.asarray(nodes)[np.sort(first)].astype(np.int64)
