"""Seeds that are nodes of one type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.sampling.seed_checks import check_nodes, check_times, require_known, require_splits
from diskgnn.sampling.seeds import SeedBatch, Seeds
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import require_node_type
from diskgnn.specs.targets import NodeTarget


class NodeSeeds(Seeds):
    """The nodes of one type's splits, each once, in the order in which it comes first. Those given with `temporal`
    stay as they are given.
    """

    target: NodeTarget

    def __init__(self, graph: Graph, spec: SamplingSpec, target: NodeTarget) -> None:
        self._graph, self._nodes = graph, _target_nodes(graph, spec, target)
        self.target = replace(target, node_type=self._nodes.name)
        given = self._nodes.splits if target.seeds is None else target.seeds
        self.splits = tuple(split for split in spec.splits if len(given.get(split, ())))
        require_splits(graph, spec, self.splits, "nodes", given=target.seeds is not None)
        for split in self.splits:
            check_nodes(graph, split, given[split], self._nodes, given=target.seeds is not None)
        self._is_timed, self._strict = spec.is_temporal, bool(spec.strict_time)
        check_times(graph, spec, target)
        if self._is_timed and not self._nodes.config.has_times and target.times is None:
            raise ConfigError(
                f"temporal: the seeds, nodes of type {self._nodes.name!r}, have no times; give `seeds` with their "
                "times, or convert with times"
            )
        # With times, each seed has a tree of its own, so it may be there several times.
        keeps_all = self._is_timed and target.seeds is not None
        self.nodes = {split: given[split] if keeps_all else _distinct(given[split]) for split in self.splits}
        self._times = {split: self._moments(split) for split in self.splits} if self._is_timed else {}
        if target.labels is not None:
            for split, nodes in self.nodes.items():
                _require_once(self._nodes, split, len(nodes), given[split])

    def count(self, split: str) -> int:
        """Counts the distinct nodes of a split, or all that were given with times."""
        return len(self.nodes[split])

    def listed(self, split: str) -> npt.NDArray[np.int64]:
        """Returns [n] distinct nodes of a split."""
        return self.nodes[split]

    def _moments(self, split: str) -> npt.NDArray[np.int64]:
        if self.target.times is not None:
            return np.asarray(self.target.times[split], np.int64)
        found = self._nodes.times_of(self.nodes[split])
        require_known(found, split, lambda seed: self._nodes.called(int(self.nodes[split][seed])))
        return found

    def batch(self, split: str, epoch: int, positions: npt.NDArray[np.int64]) -> SeedBatch:
        """Returns the same in every epoch."""
        seeds = self.nodes[split][positions]
        counts = tuple(len(seeds) if nodes is self._nodes else 0 for nodes in self._graph.nodes.values())
        times = self._times[split][positions] - int(self._strict) if self._is_timed else None
        return SeedBatch(seeds, counts, times, places=None if self.target.labels is None else positions)


def _target_nodes(graph: Graph, spec: SamplingSpec, target: NodeTarget) -> NodeSet:
    if target.node_type is not None:
        require_node_type("target", target.node_type, graph.nodes)
        return graph.nodes[target.node_type]
    if len(graph.nodes) == 1:
        return next(iter(graph.nodes.values()))
    trained = [nodes for nodes in graph.nodes.values() if len(nodes.splits.get("train", ()))]
    found = trained or [nodes for nodes in graph.nodes.values() if any(map(nodes.splits.get, spec.splits))]
    if not found:
        require_splits(graph, spec, (), "nodes")
    if len(found) != 1:
        raise ConfigError(
            f"target: {', '.join(nodes.name for nodes in found)} have seeds of a train split; name one of them"
        )
    return found[0]


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
    """Returns `nodes` without repetitions, in the order in which each comes first."""
    _, first = np.unique(nodes, return_index=True)
    return np.asarray(nodes)[np.sort(first)].astype(np.int64)
