"""A sample of what minibatches need, in bounded memory, from which rows on disk are predicted.

If there are too many accesses, only those of some nodes are kept, chosen by a hash of the node. A cache that is smaller
by the same factor then misses the same share of them (SHARDS: Waldspurger et al., Efficient MRC Construction with
SHARDS, FAST 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.formats.graph_config import id_dtype

_GOLDEN_RATIO = 0.6180339887498949
_MAX_PRODUCT = 1 << 62


@dataclass
class Run:
    """Consecutive minibatches of a sequence."""

    minibatches: dict[int, npt.NDArray[Any]] = field(default_factory=dict)  # by position: the nodes that are kept
    requested_rows: dict[int, int] = field(default_factory=dict)  # by position: how many nodes it needs, kept or not

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Positions in the sequence of the minibatches, [n] ascending."""
        return np.array(sorted(self.minibatches), np.int64)

    def nodes(self, positions: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        """Returns the kept nodes of each minibatch."""
        return [self.minibatches[position] for position in positions.tolist()]

    def requested(self, positions: npt.NDArray[np.int64]) -> int:
        """Returns how many rows these minibatches need, kept or not."""
        return sum(self.requested_rows[position] for position in positions.tolist())


class AccessSample:
    """The accesses of one run of each of several sequences, either to all nodes or to the same part of them."""

    def __init__(self, num_nodes: int, num_sequences: int, max_accesses: int) -> None:
        """Starts an empty sample that keeps at most about `max_accesses` accesses, of 4 to 8 bytes each."""
        self.runs = [Run() for _ in range(num_sequences)]
        self.num_nodes = num_nodes  # that are kept; the nodes in `runs` are numbered from 0
        self._all_nodes, self._max_accesses, self._kept_accesses = num_nodes, max_accesses, 0
        self._multiplier = _coprime(max(1, num_nodes))  # an edge type may have no edges, and so no rows

    @property
    def share(self) -> float:
        """Returns the share of the nodes whose accesses are kept."""
        return self.num_nodes / self._all_nodes if self._all_nodes else 1.0

    def add(self, sequence: int, position: int, nodes: npt.NDArray[Any]) -> None:
        """Adds the minibatch at `position` of a sequence, which needs the distinct `nodes`."""
        run = self.runs[sequence]
        run.requested_rows[position] = len(nodes)
        kept = np.array(nodes) if self.num_nodes == self._all_nodes else self._kept(self._hashed(nodes))
        run.minibatches[position] = kept
        self._kept_accesses += len(kept)
        while self._kept_accesses > self._max_accesses and self.num_nodes > 1:
            self._thin()

    def _thin(self) -> None:
        """Drops the half of the nodes with the larger hashes."""
        number = self._hashed if self.num_nodes == self._all_nodes else np.asarray
        self.num_nodes = -(-self.num_nodes // 2)
        for run in self.runs:
            run.minibatches = {position: self._kept(number(nodes)) for position, nodes in run.minibatches.items()}
        self._kept_accesses = sum(len(nodes) for run in self.runs for nodes in run.minibatches.values())

    def _hashed(self, nodes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Permutes all nodes by steps of the golden ratio, so that every range of ids is spread evenly."""
        hashed: npt.NDArray[np.int64] = nodes.astype(np.int64) * self._multiplier % self._all_nodes
        return hashed

    def _kept(self, hashed: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return hashed[hashed < self.num_nodes].astype(id_dtype(self.num_nodes), copy=False)


def _coprime(num_nodes: int) -> int:
    """Returns about `num_nodes` times the golden ratio, coprime to it so that multiplying by it permutes the nodes."""
    multiplier = max(1, min(int(num_nodes * _GOLDEN_RATIO), _MAX_PRODUCT // num_nodes))
    while math.gcd(multiplier, num_nodes) > 1:
        multiplier -= 1
    return multiplier
