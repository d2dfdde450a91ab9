"""Step by step, what ranks do at the same time: pure arithmetic on counts and rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from counting import RankWork


@dataclass(frozen=True)
class Rates:
    """What one rank does per second beside the others of its machine, and what its steps wait for."""

    read_bytes: float  # of extents, per second
    assembled_bytes: float  # of x, per second
    edge_seconds: float  # forward, backward and optimizer, per sampled edge
    gradient_bytes: int  # that are summed over ranks in each step
    network_bytes: float = 12.5e9  # per second in each direction, of each rank
    latency_seconds: float = 20e-6  # of each message
    step_seconds: float = 0.0  # of each step of several ranks, beside computing and the network: DDP's and gloo's work
    cores: float = 0  # on which training computes beside assembly; 0: it computes elsewhere, as on a GPU

    def all_reduce_seconds(self, world_size: int) -> float:
        """Of a ring: every rank sends and receives 2 (W - 1) parts of the gradients, each 1 / W of them."""
        messages = 2 * (world_size - 1)
        return messages * (self.gradient_bytes / world_size / self.network_bytes + self.latency_seconds)


@dataclass(frozen=True)
class Epoch:
    """What replaying an epoch has found."""

    seconds: float
    load_seconds: float  # that loading alone takes the slowest rank, nothing else waited for
    compute_seconds: float  # the same of computing
    all_reduce_seconds: float  # with what else a step of several ranks costs
    steps: int

    @property
    def bound_by(self) -> str:
        """What takes the longest."""
        parts = {"loading": self.load_seconds, "computing": self.compute_seconds, "network": self.all_reduce_seconds}
        return max(parts, key=lambda name: parts[name])


def replay(ranks: Sequence[RankWork], rates: Rates, *, num_epochs: int = 1, prefetch: int = 1) -> Epoch:
    """One of the `num_epochs` epochs that the ranks have prepared, on average.

    A rank loads a minibatch in the time that its disk or its assembling thread takes, whichever is longer, into one of
    `prefetch` + 1 buffers. A step begins on each rank when its minibatch is there, and ends for all when the last one
    has computed and gradients are summed. Ranks without a minibatch in the last step of an epoch wait.
    """
    loads = [np.maximum(rank.read_bytes / rates.read_bytes, rank.x_bytes / rates.assembled_bytes) for rank in ranks]
    computes = [rank.edges * rates.edge_seconds + _assembling(rank, rates) for rank in ranks]
    reduce_seconds = rates.all_reduce_seconds(len(ranks)) + rates.step_seconds if len(ranks) > 1 else 0.0
    batches = [len(each) // num_epochs for each in loads]  # of each rank in each epoch
    loaded, ends, steps = np.zeros(len(ranks)), [0.0] * (prefetch + 1), 0
    for epoch in range(num_epochs):
        for step in range(max(batches)):
            at_hand = [rank for rank, count in enumerate(batches) if step < count]
            done = ends[-1]
            for rank in at_hand:
                position = epoch * batches[rank] + step
                loaded[rank] = max(loaded[rank], ends[-1 - prefetch]) + loads[rank][position]
                done = max(done, max(loaded[rank], ends[-1]) + computes[rank][position])
            ends.append(done + reduce_seconds)
            steps += 1
    return Epoch(
        seconds=ends[-1] / num_epochs,
        load_seconds=max(float(each.sum()) for each in loads) / num_epochs,
        compute_seconds=max(float(each.sum()) for each in computes) / num_epochs,
        all_reduce_seconds=steps * reduce_seconds / num_epochs,
        steps=steps // num_epochs,
    )


def _assembling(rank: RankWork, rates: Rates) -> npt.NDArray[np.float64]:
    """[b] seconds of the cores that assembling takes from computing."""
    if rates.cores == 0:
        return np.zeros(len(rank.x_bytes))
    return rank.x_bytes / rates.assembled_bytes / rates.cores
