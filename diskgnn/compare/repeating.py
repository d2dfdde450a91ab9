"""Short measurements again: a few tens of milliseconds say little, and how far they spread says how little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diskgnn.compare.comparison_record import EpochCost

ENOUGH_SECONDS = 1.0  # measured in all
MOST_SECONDS = 10.0  # of opening and measuring: who takes longer with another one is not measured again
FEWEST, MOST = 3, 15  # measurements of what is short


@dataclass(frozen=True)
class Measured:
    """One measurement of one epoch, and what else came of it."""

    cost: EpochCost
    open_seconds: float
    epochs: Sequence[dict[str, Any]] = ()  # records of those that were trained
    number: int = 0

    @property
    def seconds(self) -> float:
        """Returns the seconds of opening, and of all epochs."""
        return self.open_seconds + self.cost.seconds * max(len(self.epochs), 1)


def measure_repeatedly(measure: Callable[[int], Measured], forget: Callable[[], None]) -> Measured:
    """Returns the median of as many calls of `measure` (with their numbers) as short ones need, with the seconds of
    all.

    `forget` is called before each but the first, and has to make the next as cold as that. Where there are more than
    FEWEST, the first only warms up what the process warms up once, and does not count.
    """
    measured: list[Measured] = []
    while True:
        measured.append(measure(len(measured)))
        spent = sum(one.seconds for one in measured)
        enough = len(measured) > FEWEST and spent >= ENOUGH_SECONDS
        if enough or len(measured) == MOST or spent + measured[-1].seconds > MOST_SECONDS:
            break
        forget()
    counted = measured[1:] if len(measured) > FEWEST else measured
    median = sorted(counted, key=lambda one: one.cost.seconds)[(len(counted) - 1) // 2]
    return replace(median, cost=replace(median.cost, repeats_seconds=tuple(one.cost.seconds for one in counted)))
