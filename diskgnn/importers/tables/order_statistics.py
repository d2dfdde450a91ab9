"""The n-th smallest of numbers that do not fit in memory, exactly, by reading them a few times.

A pass keeps all numbers while there is room, and from then on a sample: of two sorted buffers of one weight, every
other number goes on with twice the weight (Munro and Paterson, Selection and sorting with limited storage, 1980). It
tells between which two numbers the wanted one lies. The next pass looks only there, where far fewer are: two or three
passes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]  # [n] int64, or float64 without NaN
_BUFFERS = 16  # that share the room of a sample: as many numbers are sampled as there are buffers of twice the weight
_LEAST_KEPT = 1 << 13


class _Sample:
    """Some of the numbers that were added, in which ranks are known to lie within `error`."""

    def __init__(self, kept: int) -> None:
        self._kept, self._buffer = kept, kept // _BUFFERS
        self._waiting: list[Numbers] = []
        self._num_waiting = 0
        self._levels: list[Numbers | None] = []  # sorted buffers; a number of level l stands for 2^l
        self.count = self.error = 0
        self.least: Any = None
        self.greatest: Any = None

    def add(self, numbers: Numbers) -> None:
        if not len(numbers):
            return
        self.count += len(numbers)
        least, greatest = numbers.min(), numbers.max()
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)
        self._waiting.append(numbers)
        self._num_waiting += len(numbers)
        if self._num_waiting > (self._buffer if self._levels else self._kept):
            self._put_away()

    def _put_away(self) -> None:
        waiting = np.concatenate(self._waiting)
        full = len(waiting) // self._buffer * self._buffer
        for start in range(0, full, self._buffer):
            self._carry(np.sort(waiting[start : start + self._buffer]))
        self._waiting, self._num_waiting = [waiting[full:]], len(waiting) - full

    def _carry(self, buffer: Numbers) -> None:
        for level, other in enumerate(self._levels):
            if other is None:
                self._levels[level] = buffer
                return
            # Of the numbers up to any one, the second of each pair counts for both: too few by one weight at most.
            buffer = np.sort(np.concatenate([other, buffer]))[1::2]
            self._levels[level] = None
            self.error += 1 << level
        self._levels.append(buffer)

    def finish(self) -> tuple[Numbers, Numbers]:
        """Returns the distinct sampled numbers, sorted, and how many of all are at most each: as many, or up to
        `error` more."""
        parts = [(each, 1) for each in self._waiting]
        parts += [(each, 1 << level) for level, each in enumerate(self._levels) if each is not None]
        numbers = np.concatenate([part for part, _ in parts])
        weights = np.concatenate([np.full(len(part), weight) for part, weight in parts])
        order = np.argsort(numbers)
        numbers, counts = numbers[order], np.cumsum(weights[order])
        is_last = np.append(numbers[1:] != numbers[:-1], True)
        return numbers[is_last], counts[is_last]


class _Interval:
    """Numbers above `low` and below `high`, and the ranks that are looked for there. Either end may be open.

    A wanted number is never `low`; it is `high` if there are not enough below."""

    def __init__(self, low: Any, high: Any, kept: int) -> None:
        self.low, self.high = low, high
        self.num_below = 0  # numbers up to `low`
        self.sample = _Sample(kept)

    def add(self, numbers: Numbers) -> None:
        if self.low is not None:
            is_above = numbers > self.low
            self.num_below += len(numbers) - int(np.count_nonzero(is_above))
            numbers = numbers[is_above]
        self.sample.add(numbers if self.high is None else numbers[numbers < self.high])


class Selection:
    """Finds numbers by their rank. Add all of them, call `finish_pass` with the ranks, and again until it is done.

    Args:
        kept: numbers that are in memory at a time for each rank, about.

    Attributes:
        found: the numbers, by rank.
    """

    def __init__(self, kept: int) -> None:
        self._kept = max(kept, _LEAST_KEPT)
        self._open = [(_Interval(None, None, self._kept), list[int]())]
        self.found: dict[int, Any] = {}

    @property
    def is_done(self) -> bool:
        """Returns True if all were found."""
        return not self._open

    def add(self, numbers: Numbers) -> None:
        """Takes some of the numbers, the same in each pass."""
        for interval, _ in self._open:
            interval.add(numbers)

    def finish_pass(self, ranks: Sequence[int] = ()) -> None:
        """Ends a pass over all numbers. `ranks`, from 0 on, are given in the first pass."""
        given, self._open = self._open, []
        wanted: dict[tuple[Any, Any], list[int]] = {}
        for interval, of_interval in given:
            sample = interval.sample
            numbers, counts = sample.finish() if sample.count else (None, None)
            for rank in of_interval or dict.fromkeys(ranks):
                place = rank - interval.num_below
                if numbers is None or counts is None or place >= sample.count:
                    self.found[rank] = interval.high
                elif place in (0, sample.count - 1):
                    self.found[rank] = sample.least if place == 0 else sample.greatest
                elif not sample.error:
                    self.found[rank] = numbers[np.searchsorted(counts, place + 1)]
                else:
                    below = int(np.searchsorted(counts, place - sample.error, side="right"))
                    above = int(np.searchsorted(counts, place + 1))
                    low = numbers[below - 1] if below else interval.low
                    high = numbers[above] if above < len(numbers) else interval.high
                    wanted.setdefault((low, high), []).append(rank)
        self._open = [(_Interval(*ends, self._kept), ranks_of) for ends, ranks_of in wanted.items()]


def quantile_ranks(count: int, shares: Sequence[float]) -> list[int]:
    """Returns the ranks between which `quantiles` interpolates."""
    return sorted({rank for share in shares for rank in _neighbour_ranks(share * (count - 1), count)})


def quantiles(found: dict[int, Any], count: int, shares: Sequence[float]) -> tuple[float, ...]:
    """Returns what `numpy.quantile` does of `count` numbers, by linear interpolation between those of these ranks."""
    result = []
    for share in shares:
        place = share * (count - 1)
        low, high = (found[rank].item() for rank in _neighbour_ranks(place, count))
        part = place - int(place)
        result.append(float(high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part))
    return tuple(result)


def _neighbour_ranks(place: float, count: int) -> tuple[int, int]:
    return int(place), min(int(place) + 1, count - 1)
