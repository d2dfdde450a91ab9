"""Models how many rows Belady's schedule reads from disk, from how soon the rows of a sequence are needed again.

A row that is kept between two of its accesses saves one read, and takes a slot for as many minibatches as lie between
them. The most reads are saved by keeping the shortest of these intervals until all slots are taken: with h(l) intervals
of l minibatches that begin in a minibatch, keeping those up to t fills sum of l h(l) slots, l <= t, and saves sum of
h(l) reads a minibatch. That is the optimum where slots are equally scarce at all times, as in a sequence that is
stationary. Otherwise the reads that it predicts are a lower bound for every schedule.

h is measured in some consecutive minibatches. Intervals longer than these are extrapolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_RELIABLE_SHARE = 0.75  # of a run: longer intervals have few places in it
_STEEPER = 0.02
_STEEPEST = 8.0


def interval_rates(minibatches: Sequence[npt.NDArray[Any]]) -> Floats:
    """Returns [n] h of a sequence from a run of its n minibatches: intervals of l < n, per place that the run has for
    them.
    """
    num = len(minibatches)
    _, lengths = _intervals(minibatches)
    rates: Floats = np.bincount(lengths, minlength=num) / (num - np.arange(num))
    return rates


def cyclic_interval_rates(minibatches: Sequence[npt.NDArray[Any]]) -> Floats:
    """Returns [n + 1] h of a sequence that repeats just these minibatches."""
    num = len(minibatches)
    starts, uses = next_uses(minibatches)
    result: Floats = np.bincount(uses - starts, minlength=num + 1) / num
    return result


def next_uses(minibatches: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns for each access its minibatch, and the next one that needs the node, counted on into the next cycle."""
    num = len(minibatches)
    starts, lengths = _intervals([*minibatches, *minibatches])
    first = starts < num
    return starts[first], (starts + lengths)[first]


def extended(rates: Floats, rows: float, num_batches: int, num_nodes: float) -> Floats:
    """Returns [B + 1] h of a sequence of B minibatches that need `rows` each, extrapolated from a shorter run.

    Accesses that are not repeated within l minibatches become fewer as a power of l. The exponent is that of the second
    half of the run, but steep enough that there are no more than `num_nodes` nodes. All rows come back when the
    sequence starts over.
    """
    waiting = np.minimum.accumulate(np.maximum(rows - np.cumsum(rates), 0.0))  # [n] not repeated within l minibatches
    last = max(1, int(len(rates) * _RELIABLE_SHARE) - 1)
    if last < len(waiting):
        middle = max(1, last // 2)
        known, later = waiting[: last + 1], np.arange(last + 1, num_batches) / last
        exponent = 0.0
        if 0 < known[last] < known[middle]:
            exponent = float(np.log(known[middle] / known[last]) / np.log(last / middle))
        waiting = np.concatenate([known, known[last] * later**-exponent])
        while waiting.sum() > num_nodes and exponent < _STEEPEST:
            exponent += _STEEPER
            waiting = np.concatenate([known, known[last] * later**-exponent])
    waiting = np.concatenate([waiting, np.full(num_batches - len(waiting), waiting[-1])])
    return np.concatenate([[0.0], -np.diff(waiting), waiting[-1:]])


def missed_rows(rates: Floats, rows: float, slots: float) -> tuple[float, int]:
    """Returns the rows that a minibatch reads with `slots`, and the longest interval that is always kept."""
    taken = np.cumsum(rates * np.arange(len(rates)))
    longest = int(np.searchsorted(taken, slots, side="right")) - 1
    if longest + 1 >= len(rates):
        return max(0.0, rows - float(rates.sum())), len(rates) - 1
    part = (slots - taken[longest]) / (longest + 1)  # of the intervals that are longer by one
    return max(0.0, rows - float(rates[: longest + 1].sum()) - float(part)), longest


def _intervals(minibatches: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the minibatch in which each interval between two accesses of a node begins, and its length."""
    nodes = np.concatenate(list(minibatches))
    times = np.repeat(np.arange(len(minibatches)), [len(each) for each in minibatches])
    order = np.argsort(nodes, kind="stable")
    nodes, times = nodes[order], times[order]
    again = np.flatnonzero(nodes[1:] == nodes[:-1])
    return times[again], times[again + 1] - times[again]
