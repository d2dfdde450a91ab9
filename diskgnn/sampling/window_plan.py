"""Some consecutive minibatches of training, of one epoch or of several, as a plan of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diskgnn.formats.samples_config import SequenceSize
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch


class WindowPlan(SamplingPlan):
    """The train minibatches of `plan` at the positions of `window`, as one epoch: what `sample_plan` takes.

    Minibatch n of epoch e is at position e * B + n, where an epoch has B minibatches. So a window may begin and end
    anywhere, and every minibatch is the one that `plan` has there.

    Args:
        plan: with a train split.
        window: positions, ascending without gaps; at least one.
    """

    def __init__(self, plan: SamplingPlan, window: range) -> None:
        assert len(window) > 0, window
        assert window.step == 1, window
        batches_per_epoch = plan.sizes["train"].batches_per_epoch
        self.graph, self.parts, self.layout, self._seeds = plan.graph, plan.parts, plan.layout, plan._seeds
        self.spec = replace(plan.spec, epochs=1, splits=("train",), first_epoch=window[0] // batches_per_epoch)
        self.splits, self.fanouts = ("train",), plan.fanouts
        self.sizes = {"train": SequenceSize(1, len(window))}
        self.held_out = plan.held_out
        self._plan, self._window, self._batches_per_epoch = plan, window, batches_per_epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return WindowPlan, (self._plan, self._window)

    def minibatches(self, split: str, epoch: int) -> list[PlannedMinibatch]:
        """Returns those of the window; there is one epoch."""
        assert (split, epoch) == ("train", self.spec.first_epoch), (split, epoch)
        return self.planned()

    def planned(self) -> list[PlannedMinibatch]:
        """Returns the minibatches of the window."""
        first, last, size = self._window[0], self._window[-1], self._batches_per_epoch
        found: list[PlannedMinibatch] = []
        for number in range(first // size, last // size + 1):
            planned = self._plan.minibatches("train", number)
            found += planned[max(0, first - number * size) : last + 1 - number * size]
        return found
