"""Rows that a packed sequence will hold, predicted from a sample of its accesses and without reading a feature."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import belady_misses, count_nodes
from diskgnn.packing.access_sample import AccessSample
from diskgnn.packing.accesses import hottest_nodes
from diskgnn.packing.reuse_model import cyclic_interval_rates, extended, interval_rates, missed_rows, next_uses

_MODEL_SHARE = 0.02  # of the rows needed: where the model reads fewer, its part of what is planned says nothing
_PARTS = 4  # of the nodes that are kept, to tell how far they differ

Minibatches = Sequence[npt.NDArray[Any]]


@dataclass(frozen=True)
class RowForecast:
    """Rows of one sequence, of all its minibatches together."""

    requested: int
    disk: int
    disk_error: float  # of `disk`, as a share: about one standard deviation; 0 where all accesses were counted
    cpu: int  # slots that have a use

    @property
    def admitted(self) -> int:
        """Of those from disk, the most that can get a slot: each is used from there once at least."""
        return min(self.disk, self.requested - self.disk)


class SequenceForecast:
    """Predicts one sequence from a run of its minibatches.

    Where the run is the whole sequence, rows are counted as `prepare` counts them. Otherwise the reuse model says how
    many there are, corrected by what it says of the run alone, for which the count is known.
    """

    def __init__(self, sample: AccessSample, sequence: int, num_seeds: npt.NDArray[np.int64]) -> None:
        """`num_seeds` [B]: of each minibatch of the sequence."""
        run = sample.runs[sequence]
        self._share, self._num_nodes, self._num_batches = sample.share, sample.num_nodes, len(num_seeds)
        positions, scale = run.positions, 1.0
        self.is_whole = len(positions) == len(num_seeds)
        if not self.is_whole:  # the shorter minibatches that end epochs count for more in a run than in all
            positions = positions[num_seeds[positions] == num_seeds.max()]
            scale = float(num_seeds.sum() / num_seeds.max()) / len(positions)
        self._scale = scale / self._share  # accesses of the sequence for each of the run
        self._minibatches = run.nodes(positions)
        self.requested = round(run.requested(positions) * scale)

    def hottest(self, num_rows: int) -> npt.NDArray[np.int64]:
        """What would be the `num_rows` static rows: of those nodes that the sample keeps, by their numbers there."""
        counts: npt.NDArray[np.int32] = np.zeros(self._num_nodes, np.int32)
        for nodes in self._minibatches:
            count_nodes(counts, nodes)
        return hottest_nodes(counts, round(num_rows * self._share))

    def rows(self, static_nodes: npt.NDArray[np.int64], cpu_rows: int) -> RowForecast:
        """What is read where these nodes are static, and the cpu tier has `cpu_rows` slots."""
        is_static = np.zeros(self._num_nodes, bool)
        is_static[static_nodes] = True
        minibatches = [nodes[~is_static[nodes]] for nodes in self._minibatches]
        slots, num = cpu_rows * self._share, len(minibatches)
        counted = _counted(minibatches, slots)
        error = _node_error(minibatches, slots) * (1 - self._share) ** 0.5 if self._share < 1 else 0.0
        if self.is_whole:
            needed = len(np.unique(np.concatenate(minibatches)))
            return RowForecast(
                self.requested, round(counted * self._scale), error, min(cpu_rows, round(needed * self._scale))
            )
        disk = self._modelled(minibatches, slots, counted)
        error = math.hypot(error, self._run_error(minibatches, slots))
        return RowForecast(self.requested, round(disk * num * self._scale), error, cpu_rows)

    def _modelled(self, minibatches: Minibatches, slots: float, counted: int | None = None) -> float:
        """Rows a minibatch from disk in the sequence; `counted` are those of this run of it by itself."""
        num = len(minibatches)
        rows = sum(map(len, minibatches)) / num
        rates = extended(interval_rates(minibatches), rows, self._num_batches, self._num_nodes)
        missed, longest = missed_rows(rates, rows, slots)
        if counted is not None and 2 * longest <= num:
            alone, _ = missed_rows(cyclic_interval_rates(minibatches), rows, slots)
            missed *= counted / num / alone if alone > _MODEL_SHARE * rows else 1.0
        return missed

    def _run_error(self, minibatches: Minibatches, slots: float) -> float:
        """What parts of the run say differently, as a share: its inner half, and half of how its ends differ."""
        num = len(minibatches)
        parts = [slice(None), slice(num // 4, num - num // 4), slice(num // 2), slice(num // 2, None)]
        whole, inner, left, right = (self._modelled(minibatches[each], slots) for each in parts)
        return math.hypot(inner - whole, (left - right) / 2) / max(1.0, whole)


def _counted(minibatches: Minibatches, slots: float) -> int:
    """The rows that Belady's MIN reads in a cycle of just these minibatches."""
    num = len(minibatches)
    starts, uses = next_uses(minibatches)
    arcs, rows = np.unique(starts * (2 * num) + uses, return_counts=True)
    bounds = np.searchsorted(arcs, np.arange(num + 1) * (2 * num))
    pairs = np.stack([arcs % (2 * num), rows], axis=1).astype(np.int32).ravel()
    return int(belady_misses(bounds.astype(np.int64), pairs, round(slots)).sum(dtype=np.int64))


def _node_error(minibatches: Minibatches, slots: float) -> float:
    """The standard error of `_counted`, as a share, for nodes that are some of many: how parts of them differ."""
    parts = [
        _counted([nodes[nodes % _PARTS == part] for nodes in minibatches], slots / _PARTS) for part in range(_PARTS)
    ]
    return statistics.stdev(parts) / max(1.0, statistics.mean(parts)) / math.sqrt(_PARTS)
