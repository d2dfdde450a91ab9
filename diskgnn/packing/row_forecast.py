"""Rows that a packed sequence will hold, predicted from a sample of its accesses and without reading a feature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import BeladyPlanner, count_nodes, exchange_next_uses
from diskgnn.packing.access_sample import AccessSample
from diskgnn.packing.placement import CHEAP_ROUND_ACCESSES, MAX_WARM_UP_ROUNDS, hottest_nodes
from diskgnn.packing.reuse_model import cyclic_interval_rates, extended, interval_rates, missed_rows

_MODEL_SHARE = 0.02  # of the rows needed: where the model reads fewer, its part of what is planned says nothing


@dataclass(frozen=True)
class RowForecast:
    """Rows of one sequence, of all its minibatches together."""

    requested: int
    disk: int
    disk_error: float  # of `disk`, as a share: about one standard deviation; 0 where all accesses were counted
    admitted: int  # of those from disk, rows that get a slot
    cpu: int  # slots that have a use


@dataclass(frozen=True)
class _Planned:
    """What the schedule of a sequence of minibatches reads."""

    disk: int
    admitted: int
    slots: int
    variance: float  # of `disk`, if its nodes are some of many: sum of squares


class SequenceForecast:
    """Predicts one sequence from a run of its minibatches.

    Where the run is the whole sequence, rows are placed as `prepare` places them. Otherwise the reuse model is, times
    what the planner and the model say of the run if it were all.
    """

    def __init__(
        self, sample: AccessSample, sequence: int, periods: npt.NDArray[np.int64], num_seeds: npt.NDArray[np.int64]
    ) -> None:
        """Of each minibatch of the sequence: `periods` [B], that of coordinated draws; `num_seeds` [B]."""
        run = sample.runs[sequence]
        self._share, self._num_nodes = sample.share, sample.num_nodes
        self._positions, self._periods, self._num_batches = run.positions, periods, len(periods)
        self.is_whole = len(run.positions) == len(periods)
        scale = 1.0
        if not self.is_whole:  # the shorter minibatches that end epochs count for more in a run than in all
            is_full = num_seeds == num_seeds.max()
            self._positions = run.positions[is_full[run.positions]]
            scale = float(num_seeds.sum() / num_seeds.max()) / len(self._positions)
        self._scale = scale / self._share  # accesses of the sequence for each of the run
        self._minibatches = run.nodes(self._positions)
        self.requested = round(run.requested(self._positions) * scale)

    def hottest(self, num_rows: int) -> npt.NDArray[np.int64]:
        """What would be the `num_rows` static rows: of those nodes that the sample keeps, by their numbers there."""
        counts: npt.NDArray[np.int32] = np.zeros(self._num_nodes, np.int32)
        for nodes in self._minibatches:
            count_nodes(counts, nodes)
        return hottest_nodes(counts, round(num_rows * self._share))

    def rows(self, static_nodes: npt.NDArray[np.int64], cpu_rows: int) -> RowForecast:
        """What is read where these nodes are static, and the cpu tier has `cpu_rows` slots."""
        minibatches = self._minibatches
        if len(static_nodes):
            left = np.ones(self._num_nodes, bool)
            left[static_nodes] = False
            minibatches = [nodes[left[nodes]] for nodes in minibatches]
        slots = cpu_rows * self._share
        planned = _plan(minibatches, self._num_nodes, round(slots))
        error = (planned.variance * (1 - self._share)) ** 0.5 / max(1, planned.disk)
        disk, admitted = planned.disk * self._scale, planned.admitted * self._scale
        kept = planned.slots * self._scale if planned.slots < round(slots) else cpu_rows
        if not self.is_whole:
            in_run = self._modelled(minibatches, self._positions, slots, planned.disk)
            error = math.hypot(error, self._model_error(minibatches, slots))
            disk, kept = in_run * len(minibatches) * self._scale, cpu_rows
            admitted = min(disk, self.requested - disk) if cpu_rows else 0
        return RowForecast(self.requested, round(disk), error, round(admitted), round(kept))

    def _modelled(
        self,
        minibatches: Sequence[npt.NDArray[Any]],
        positions: npt.NDArray[np.int64],
        slots: float,
        planned: int | None = None,
    ) -> float:
        """Rows a minibatch from disk in the sequence; `planned` are those of this run of it, placed by itself."""
        num = len(minibatches)
        rows = sum(map(len, minibatches)) / num
        rates = interval_rates(minibatches, self._periods[positions], self._periods)
        missed, longest = missed_rows(extended(rates, rows, self._num_batches, self._num_nodes), rows, slots)
        if planned is not None and 2 * longest <= num:
            alone, _ = missed_rows(cyclic_interval_rates(minibatches), rows, slots)
            missed *= planned / num / alone if alone > _MODEL_SHARE * rows else 1.0
        return missed

    def _model_error(self, minibatches: Sequence[npt.NDArray[Any]], slots: float) -> float:
        """What parts of the run say differently, as a share: its inner half, and half of how its ends differ."""
        num = len(minibatches)
        parts = [slice(None), slice(num // 4, num - num // 4), slice(num // 2), slice(num // 2, None)]
        whole, inner, left, right = (self._modelled(minibatches[each], self._positions[each], slots) for each in parts)
        return math.hypot(inner - whole, (left - right) / 2) / max(1.0, whole)


def _plan(minibatches: Sequence[npt.NDArray[Any]], num_nodes: int, slots: int) -> _Planned:
    """Places a sequence as `placement.Schedule` does, in memory."""
    num_batches = len(minibatches)
    counts: npt.NDArray[np.int32] = np.zeros(num_nodes, np.int32)
    next_use = np.empty(num_nodes, np.int32)
    for batch in reversed(range(num_batches)):
        count_nodes(counts, minibatches[batch])
        exchange_next_uses(next_use, minibatches[batch], num_batches + batch)
    next_uses = [exchange_next_uses(next_use, minibatches[batch], batch) for batch in reversed(range(num_batches))]
    next_uses.reverse()
    slots = min(slots, int(np.count_nonzero(counts)))
    planner = BeladyPlanner(np.full(num_nodes, -1, np.int32), 0, slots, num_batches)
    rounds = MAX_WARM_UP_ROUNDS if int(counts.sum()) <= CHEAP_ROUND_ACCESSES else 1
    for _ in range(rounds if slots else 0):
        settled = any(planner.warm_up(*each) for each in zip(minibatches, next_uses, strict=True))
        planner.start_cycle()
        if settled:
            break
    counts[:] = 0
    admitted = 0
    for each in zip(minibatches, next_uses, strict=True):
        _, disk_nodes, admissions = planner.place(*each)
        count_nodes(counts, disk_nodes)
        admitted += len(admissions) // 2
    return _Planned(int(counts.sum()), admitted, slots, float(np.square(counts, dtype=np.int64).sum()))
