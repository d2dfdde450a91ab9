"""Seeds that are the ends of seed edges, and of pairs without an edge: link prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diskgnn.draws import batch_key
from diskgnn.errors import ConfigError
from diskgnn.formats import artifacts
from diskgnn.formats.sampled_minibatch import PairSample
from diskgnn.graph.graph import Graph
from diskgnn.graph.held_out import (
    HELD_OUT_SPLITS,
    Direction,
    HeldOut,
    find_held_out,
    held_out_bytes,
    reverse_type_in,
    warn_of_other_reverses,
)
from diskgnn.graph.known_edges import known_edges
from diskgnn.progress.reporter import Reporter
from diskgnn.sampling.negatives import (
    Appearing,
    AvoidedDestinations,
    NegativeDestinations,
    count_destinations,
    negative_bits,
)
from diskgnn.sampling.seed_checks import check_nodes, check_times, require_known, require_splits
from diskgnn.sampling.seeds import Excluded, SeedBatch, Seeds
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import EdgeType, edge_type_name, require_edge_type
from diskgnn.specs.targets import LinkTarget


class EdgeSeeds(Seeds):
    """The seed edges of one edge type's splits, and pairs without an edge: destinations drawn for their sources."""

    target: LinkTarget

    def __init__(self, graph: Graph, spec: SamplingSpec, target: LinkTarget) -> None:
        require_edge_type("target", target.edge_type, graph.edges)
        self._graph, self._spec = graph, spec
        edges = graph.edges[target.edge_type]
        self._ends = graph.nodes[target.edge_type[0]], graph.nodes[target.edge_type[2]]
        self.target = replace(target, reverse_edge_type=_reverse_type(graph, target))
        self._edges: Mapping[str, npt.NDArray[np.int64]] = edges.splits if target.seeds is None else target.seeds
        self.splits = tuple(split for split in spec.splits if len(self._edges.get(split, ())))
        require_splits(graph, spec, self.splits, "seed edges", given=target.seeds is not None)
        if target.negatives_by == "popularity" and not len(self._edges.get("train", ())):
            raise ConfigError("negatives_by: popularity is counted in the seed edges to train on, found none")
        for split, pairs in self._edges.items():
            for nodes, column in zip(self._ends, pairs.T, strict=True):
                check_nodes(graph, split, column, nodes, given=target.seeds is not None)
        check_times(graph, spec, target)
        if spec.is_temporal and target.times is None and not any(nodes.config.has_times for nodes in self._ends):
            raise ConfigError(
                f"temporal: the seeds, edges of type {edge_type_name(target.edge_type)}, have no times: neither of "
                "their ends has; give `seeds` with their times"
            )

    def count(self, split: str) -> int:
        """Returns the seed edges of a split."""
        return len(self._edges[split])

    def listed(self, split: str) -> npt.NDArray[np.int64]:
        """Returns [n, 2] seed edges of a split."""
        return self._edges[split]

    @property
    def negatives_bytes(self) -> int:
        """Returns the bytes of the lists of what negatives are not. Known edges are counted for it, which reads all of
        the type.
        """
        if not self._num_negatives:
            return 0
        num_nodes = self._ends[1].num_nodes
        of_times = Appearing.num_bytes(num_nodes) if self._have_destinations_times else 0
        if self.target.negatives_by != "popularity":
            return self._avoided.num_bytes + of_times
        return self._avoided.num_bytes + NegativeDestinations.num_bytes(self._avoided, num_nodes) + of_times

    @property
    def held_out_bytes(self) -> int:
        """Returns what `held_out` takes of memory, and finding it."""
        return held_out_bytes(
            sum(len(self._edges.get(split, ())) for split in HELD_OUT_SPLITS), self._held_out_directions
        )

    def held_out(self, reporter: Reporter) -> HeldOut:
        """Finds valid's and test's seed edges and their reverses that are edges of the graph, which is read for it."""
        directions = self._held_out_directions
        if self.target.message_edges == "train" and self.target.exclude != "self":
            warn_of_other_reverses(
                self._graph, self.target.edge_type, self._edges, directions, reporter, left_out=self._decided_by_time
            )
        return find_held_out(self._graph, self._edges, directions, reporter, keeps=self.target.message_edges == "all")

    @property
    def _held_out_directions(self) -> list[Direction]:
        return self._directions(with_reverse=self.target.exclude != "self")

    def _directions(self, *, with_reverse: bool) -> list[Direction]:
        """Returns the edge types that have the seed edges, where their times do not decide what is drawn anyway."""
        target = self.target
        found: list[Direction] = [(target.edge_type, False)]
        if with_reverse and target.reverse_edge_type is not None:
            found.append((target.reverse_edge_type, True))
        return [each for each in found if not self._decided_by_time(each[0])]

    def _decided_by_time(self, edge_type: EdgeType) -> bool:
        by_time = self._spec.is_temporal and bool(self._spec.strict_time) and self.target.times is not None
        return by_time and self._graph.edges[edge_type].config.has_times

    @property
    def _num_negatives(self) -> int:
        """Returns how many negatives an edge has at most."""
        return max(self.target.negatives if split == "train" else self.target.eval_negatives for split in self.splits)

    @property
    def _have_destinations_times(self) -> bool:
        return self._spec.is_temporal and self._ends[1].config.has_times

    @cached_property
    def _appearing(self) -> Appearing | None:
        nodes = self._ends[1]
        if not self._have_destinations_times:
            return None
        return Appearing(nodes.manifest.checked_array(nodes.file(artifacts.TIMES)))

    @cached_property
    def _avoided(self) -> AvoidedDestinations:
        num_nodes, edges = self._ends[1].num_nodes, self._graph.edges[self.target.edge_type]
        avoided = [] if self.target.avoid == "none" else list(self._edges.values())
        numbers = None if self._appearing is None else self._appearing.numbers()
        if self.target.avoid != "known":
            return AvoidedDestinations(avoided, num_nodes, numbers=numbers)
        return AvoidedDestinations(avoided, num_nodes, lambda: known_edges(edges), numbers)

    @cached_property
    def _negatives(self) -> NegativeDestinations:
        target = self.target
        self._avoided.fill()
        num_nodes, places = self._ends[1].num_nodes, None
        if target.negatives_by == "popularity":
            places = count_destinations(self._edges["train"], num_nodes)
        return NegativeDestinations(self._avoided, num_nodes, places, self._appearing)

    def batch(self, split: str, epoch: int, positions: npt.NDArray[np.int64]) -> SeedBatch:
        """Negatives of train are drawn for each epoch, those of other splits are the same in all."""
        is_train, seed = split == "train", self._spec.seed
        per_positive = self.target.negatives if is_train else self.target.eval_negatives
        sources, destinations = self._edges[split][positions].T
        negatives = np.empty((len(positions), 0), np.int64)
        if per_positive:
            key = batch_key(seed, f"{split}/negatives", epoch if is_train else 0)
            bits = negative_bits(key, positions, per_positive)
            pair_times = self._pair_times[split][positions] if self._spec.is_temporal else None
            negatives = self._negatives.draw(sources, bits, pair_times)
        ends = sources, np.concatenate([destinations, negatives.ravel()])
        rows = np.concatenate([np.arange(len(positions)), np.repeat(np.arange(len(positions)), per_positive)])
        if self.target.labels is None:
            label = (np.arange(len(rows)) < len(positions)).astype(np.float32)
        else:
            label = self.target.labels[split][positions].astype(np.float32)
        excluded = self._excluded(sources, destinations) if is_train else ()
        if not self._spec.is_temporal:
            seeds, (src, dst) = _by_first_appearance(ends, self._same_type)
            times = None
        else:
            # Each end has a tree of its own, so each is a seed, repeated or not.
            moments = self._pair_times[split][positions] - int(bool(self._spec.strict_time))
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
    def _pair_times(self) -> dict[str, npt.NDArray[np.int64]]:
        """Returns the time of each seed edge, by split: the one it was given with, or that of the later one of its
        ends."""
        given = self.target.times
        if given is not None:
            return {split: np.asarray(given[split], np.int64) for split in self.splits}
        return {split: self._later_ends(split) for split in self.splits}

    def _later_ends(self, split: str) -> npt.NDArray[np.int64]:
        pairs = self._edges[split]
        timed = [(nodes, ids) for nodes, ids in zip(self._ends, pairs.T, strict=True) if nodes.config.has_times]
        found: npt.NDArray[np.int64] = np.maximum.reduce([nodes.times_of(ids) for nodes, ids in timed])
        require_known(found, split, lambda seed: f"the edge {pairs[seed][0]} -> {pairs[seed][1]}")
        return found

    def _excluded(
        self, sources: npt.NDArray[np.int64], destinations: npt.NDArray[np.int64]
    ) -> tuple[Excluded | None, ...]:
        if self.target.exclude == "none":
            return ()
        found: dict[EdgeType, list[Excluded]] = {}
        for edge_type, turned in self._directions(with_reverse=self.target.exclude == "reverse"):
            found.setdefault(edge_type, []).append((destinations, sources) if turned else (sources, destinations))
        return tuple(
            (np.concatenate([src for src, _ in found[edge_type]]), np.concatenate([dst for _, dst in found[edge_type]]))
            if edge_type in found else None
            for edge_type in self._graph.edges
        )  # fmt: skip


def _by_first_appearance(
    ends: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], same_type: bool
) -> tuple[list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]]:
    """Returns the distinct nodes of both ends, together where they are of one type, and where each end is among
    them."""
    lists = [np.concatenate(ends)] if same_type else list(ends)
    seeds, places = [], []
    for nodes in lists:
        _, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        seeds.append(nodes[np.sort(first)])
        places.append(rank[inverse.ravel()])
    return seeds, np.split(places[0], [len(ends[0])]) if same_type else places


def _reverse_type(graph: Graph, target: LinkTarget) -> EdgeType | None:
    if target.reverse_edge_type is not None:
        require_edge_type("reverse_edge_type", target.reverse_edge_type, graph.edges)
        return target.reverse_edge_type
    return reverse_type_in(graph, target.edge_type)
