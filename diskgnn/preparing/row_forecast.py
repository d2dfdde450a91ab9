"""Predicts the rows of a packed sequence from a sample of its accesses, without reading features: static rows, and with
cpu tiers that are divided among row sets as packing divides them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import belady_misses, count_nodes
from diskgnn.formats.row_format import FeatureFile
from diskgnn.packing.accesses import count_histogram, hottest_nodes
from diskgnn.packing.space import RowForecast
from diskgnn.packing.tiers import Demand, divide_cpu_rows, divide_static_rows
from diskgnn.preparing.access_sample import AccessSample
from diskgnn.preparing.reuse_model import (
    Floats,
    cyclic_interval_rates,
    extended,
    interval_rates,
    missed_rows,
    next_uses,
)

_MODEL_SHARE = 0.02  # of the rows needed: where the model reads fewer, its part of what is planned says nothing
_PARTS = 4  # of the nodes that are kept, to tell how far they differ

Minibatches = Sequence[npt.NDArray[Any]]


class SequenceForecast:
    """Predicts what one sequence needs of one row set from a run of its minibatches.

    If the run is the whole sequence, rows are counted as `prepare` counts them. Otherwise the reuse model predicts how
    many there are. It is corrected by what it predicts for the run alone, for which the count is known.
    """

    def __init__(self, sample: AccessSample, sequence: int, num_seeds: npt.NDArray[np.int64]) -> None:
        """Takes the run of `sequence` in `sample`.

        `num_seeds` [B] are the seeds of each minibatch of the whole sequence.
        """
        run = sample.runs[sequence]
        self.share, self._num_nodes, self.num_batches = sample.share, sample.num_nodes, len(num_seeds)
        positions, scale = run.positions, 1.0
        self.is_whole = len(positions) == len(num_seeds)
        if not self.is_whole:  # the shorter minibatches that end epochs count for more in a run than in all
            positions = positions[num_seeds[positions] == num_seeds.max()]
            scale = float(num_seeds.sum() / num_seeds.max()) / len(positions)
        self.scale = scale / self.share  # accesses of the sequence for each of the run
        self._minibatches = run.nodes(positions)
        self.requested = round(run.requested(positions) * scale)

    @property
    def is_exact(self) -> bool:
        """Returns True if all accesses are known."""
        return self.is_whole and self.share == 1

    @cached_property
    def _counts(self) -> npt.NDArray[np.int32]:
        counts: npt.NDArray[np.int32] = np.zeros(self._num_nodes, np.int32)
        for nodes in self._minibatches:
            count_nodes(counts, nodes)
        return counts

    def histogram(self) -> npt.NDArray[np.int64]:
        """Returns how many rows the run needs 0, 1, 2, ... times."""
        return np.round(count_histogram(self._counts) / self.share).astype(np.int64)

    def hottest(self, num_rows: int) -> npt.NDArray[np.int64]:
        """Returns which of the sampled nodes would be among `num_rows` static rows, by their numbers in the sample."""
        return hottest_nodes(self._counts, round(num_rows * self.share))

    def without(self, static_nodes: npt.NDArray[np.int64]) -> UncachedForecast:
        """Returns what is left to the cpu tier and the disk if these nodes are static."""
        is_static = np.zeros(self._num_nodes, bool)
        is_static[static_nodes] = True
        return UncachedForecast(self, [nodes[~is_static[nodes]] for nodes in self._minibatches], self._num_nodes)

    def rows(self, static_nodes: npt.NDArray[np.int64], cpu_rows: int) -> RowForecast:
        """Predicts what is read if these nodes are static and the cpu tier has `cpu_rows` slots."""
        return self.without(static_nodes).rows(cpu_rows)


class UncachedForecast:
    """The accesses of a sequence that no static row serves. Predicts how many of them a cpu tier leaves to the disk."""

    def __init__(self, of: SequenceForecast, minibatches: Minibatches, num_nodes: int) -> None:
        """Takes the `minibatches` of the run; the sample keeps `num_nodes` nodes."""
        self._of, self._minibatches, self._num_nodes = of, minibatches, num_nodes
        self._run, self._model = _Run(minibatches), _Model(minibatches, of.num_batches, num_nodes)

    @cached_property
    def num_rows(self) -> int:
        """Returns the number of different rows that are needed, as far as the run shows."""
        needed = len(np.unique(np.concatenate(self._minibatches)))
        return round(needed * self._of.scale if self._of.is_whole else needed / self._of.share)

    def total_misses(self, cache_rows: int) -> int:
        """Predicts the rows that a cycle of the sequence reads with `cache_rows` slots."""
        return round(self._disk(cache_rows * self._of.share))

    def rows(self, cpu_rows: int) -> RowForecast:
        """Predicts the same with its error."""
        share, slots = self._of.share, cpu_rows * self._of.share
        error = _node_error(self._minibatches, slots) * (1 - share) ** 0.5 if share < 1 else 0.0
        if self._of.is_whole:
            cpu_rows = min(cpu_rows, self.num_rows)
        else:
            error = math.hypot(error, self._run_error(slots))
        return RowForecast(self._of.requested, round(self._disk(slots)), error, cpu_rows)

    def _disk(self, slots: float) -> float:
        counted = self._run.misses(slots)
        if self._of.is_whole:
            return counted * self._of.scale
        return self._modelled(slots, counted) * len(self._minibatches) * self._of.scale

    def _modelled(self, slots: float, counted: int) -> float:
        """Returns the rows that a minibatch of the sequence reads; `counted` are those of this run by itself."""
        num = len(self._minibatches)
        missed, longest = self._model.missed(slots)
        # The run by itself says how wrong the model is only about intervals that are short beside the run.
        if 2 * longest <= num:
            alone, _ = missed_rows(self._run.rates, self._model.rows, slots)
            missed *= counted / num / alone if alone > _MODEL_SHARE * self._model.rows else 1.0
        return missed

    def _run_error(self, slots: float) -> float:
        """Returns how differently parts of the run predict, as a share: its inner half, and half of how much its ends
        differ.
        """
        num = len(self._minibatches)
        parts = [slice(None), slice(num // 4, num - num // 4), slice(num // 2), slice(num // 2, None)]
        models = (_Model(self._minibatches[each], self._of.num_batches, self._num_nodes) for each in parts)
        whole, inner, left, right = (model.missed(slots)[0] for model in models)
        return math.hypot(inner - whole, (left - right) / 2) / max(1.0, whole)


def predict_static_rows(
    forecasts: Sequence[SequenceForecast], features: Sequence[FeatureFile], budget_bytes: int
) -> tuple[int, ...]:
    """Returns [K] static rows of each row set, by the first sequence.

    If that sequence is not known completely, static rows may include some that no sampled minibatch needs: what is left
    of the budget goes to all row sets alike.
    """
    widths = [file.row_bytes for file in features]
    counted = [(each.histogram(), width) for each, width in zip(forecasts, widths, strict=True)]
    rows = divide_static_rows(counted, budget_bytes).rows
    if all(each.is_exact for each in forecasts):
        return rows
    unseen = [file.num_rows - found for file, found in zip(features, rows, strict=True)]
    left_bytes = budget_bytes - sum(found * width for found, width in zip(rows, widths, strict=True))
    unseen_bytes = sum(found * width for found, width in zip(unseen, widths, strict=True))
    if unseen_bytes > left_bytes:
        unseen = [found * left_bytes // unseen_bytes for found in unseen]
    return tuple(found + more for found, more in zip(rows, unseen, strict=True))


def predict_rows(
    forecasts: Sequence[UncachedForecast], features: Sequence[FeatureFile], budget_bytes: int, *, threads: int = 1
) -> list[RowForecast]:
    """Returns [K] rows of each row set of one sequence, whose cpu tier has `budget_bytes`."""
    if len(forecasts) == 1:  # nothing to divide, and to count for it
        slots = tuple(min(budget_bytes // file.row_bytes, file.num_rows) for file in features)
    else:
        demands = [Demand(each, file.row_bytes) for each, file in zip(forecasts, features, strict=True)]
        slots = divide_cpu_rows(demands, budget_bytes, threads=threads).rows
    return [each.rows(num_rows) for each, num_rows in zip(forecasts, slots, strict=True)]


class _Run:
    """A sequence that repeats just these minibatches."""

    def __init__(self, minibatches: Minibatches) -> None:
        self._minibatches = minibatches

    @cached_property
    def rates(self) -> Floats:
        return cyclic_interval_rates(self._minibatches)

    @cached_property
    def _arcs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        num = len(self._minibatches)
        starts, uses = next_uses(self._minibatches)
        arcs, rows = np.unique(starts * (2 * num) + uses, return_counts=True)
        bounds = np.searchsorted(arcs, np.arange(num + 1) * (2 * num))
        return bounds.astype(np.int64), np.stack([arcs % (2 * num), rows], axis=1).astype(np.int32).ravel()

    def misses(self, slots: float) -> int:
        """Returns the rows that Belady's MIN reads in a cycle."""
        bounds, pairs = self._arcs
        return int(belady_misses(bounds, pairs, round(slots)).sum(dtype=np.int64))


class _Model:
    """The reuse model of a sequence of `num_batches` minibatches, fitted to a run of it."""

    def __init__(self, minibatches: Minibatches, num_batches: int, num_nodes: int) -> None:
        self._minibatches, self._num_batches, self._num_nodes = minibatches, num_batches, num_nodes
        self.rows = sum(map(len, minibatches)) / len(minibatches)  # a minibatch

    @cached_property
    def _rates(self) -> Floats:
        return extended(interval_rates(self._minibatches), self.rows, self._num_batches, self._num_nodes)

    def missed(self, slots: float) -> tuple[float, int]:
        return missed_rows(self._rates, self.rows, slots)


def _node_error(minibatches: Minibatches, slots: float) -> float:
    """Returns the standard error of a run's misses due to sampling nodes, as a share, from how parts of the nodes
    differ.
    """
    parts = [
        _Run([nodes[nodes % _PARTS == part] for nodes in minibatches]).misses(slots / _PARTS) for part in range(_PARTS)
    ]
    return statistics.stdev(parts) / max(1.0, statistics.mean(parts)) / math.sqrt(_PARTS)
