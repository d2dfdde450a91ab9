"""Averages of parameters that ranks compute while they train on: for networks that are slower than steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed
from torch.distributed.algorithms.model_averaging.averagers import ModelAverager
from torch.nn.utils import parameters_to_vector

from diskgnn.units import whole_number


class OverlappedAverager(ModelAverager):
    """Begins a sum of all ranks' parameters every `period` steps, and takes over what it comes to `period` steps later:
    each rank then moves by the average less what it had itself (the idea of Sun et al., CO2: Efficient Distributed
    Training with Full Communication-Computation Overlap, ICLR 2024). So a step waits for the network only where a sum
    takes longer than `period` steps.

    Args:
        parameters: the same ones in all ranks.
        period: steps.

    Raises:
        ConfigError: the period is less than 1.
    """

    def __init__(self, parameters: Sequence[Tensor], period: int) -> None:
        super().__init__()  # of all ranks
        self.period, self._parameters = whole_number("averaging_period", period), parameters
        self._world_size = distributed.get_world_size()
        self._before: Tensor | None = None  # [n] parameters when the sum under way began
        self._sums: Tensor | None = None  # [n + 1] of parameters; of ranks that are to stop

    def average_parameters(self, params: object = None) -> None:
        """Does what `settle` does, by the name that torch calls."""
        self.settle()

    @torch.no_grad()
    def after_step(self, stopping: bool) -> bool:
        """Take over the sum that is under way, and begin another one; whether a rank was to stop when the former began.

        To be called every `period` steps.
        """
        stops = self._take_over()
        self._before = parameters_to_vector(self._parameters)
        self._sums = torch.cat([self._before, self._before.new_tensor([stopping])])
        self._work = distributed.all_reduce(self._sums, group=self.process_group, async_op=True)
        return stops

    @torch.no_grad()
    def settle(self) -> None:
        """Give all ranks the average of what they have now."""
        self._take_over()
        total = parameters_to_vector(self._parameters)
        distributed.all_reduce(total, group=self.process_group)
        self._set(total / self._world_size)

    def _take_over(self) -> bool:
        if self._sums is None or self._before is None:
            return False
        self._work.wait()
        average = self._sums[:-1] / self._world_size
        stops = bool(self._sums[-1] > 0)
        self._set(parameters_to_vector(self._parameters) + (average - self._before))
        self._sums = self._before = None
        return stops

    def _set(self, values: Tensor) -> None:
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, part in zip(self._parameters, torch.split(values, sizes), strict=True):
            parameter.copy_(part.view_as(parameter))
