"""A minibatch before it is drawn: all that it depends on, beside the topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from diskgnn._native import DrawRequest, ExcludedEdges, NeighborSampler
from diskgnn.formats.sampled_minibatch import PairSample, SampledBlock, SampledMinibatch
from diskgnn.sampling.seeds import Excluded
from diskgnn.sampling.user_sampling import DrawnArrays, UserDraws

Sampler = NeighborSampler | UserDraws


@dataclass(frozen=True)
class DrawRules:
    """Says how all minibatches of a plan draw, beside their fanouts."""

    weighted: bool = False  # where an edge type has weights
    latest: bool = False  # the latest, where there are times
    positions: tuple[bool, ...] = ()  # by edge type: blocks say where their edges lie; (): none do
    expand_once: bool = False  # a node draws in the layer after the one that found it, and in no other
    # By edge type: only edges are drawn that are later than the time of a seed minus this; (): all that are not later.
    # The time is the one that is compared: with strict times, one before the seed's own.
    windows: tuple[int | None, ...] = ()
    # What is to be added to seeds' times for the column of them: draws take 1 off where they are strict. None: there is
    # no such column.
    seed_time_shift: int | None = None


@dataclass(frozen=True)
class PlannedMinibatch:
    """All that a minibatch depends on, beside the topology."""

    seeds: npt.NDArray[np.int64]  # [B] by node type in order
    fanouts: npt.NDArray[np.int32]  # [layers, edge types], from the seeds outwards
    key: int  # see `draws.batch_key`
    number: int  # position in the epoch
    slice_start: int | None = None  # see `draws.slice_start`; None for independent draws
    seed_counts: tuple[int, ...] = ()  # how many of the seeds are of each node type; (): there is one type
    times: npt.NDArray[np.int64] | None = None  # [B] nothing later is drawn for a seed; None: times do not matter
    excluded: tuple[Excluded | None, ...] = ()  # by edge type: edges that are not drawn; (): none
    held_out: tuple[ExcludedEdges | None, ...] = ()  # by edge type: others, which no minibatch draws; (): none
    pairs: PairSample | None = None  # of link prediction
    places: npt.NDArray[np.int64] | None = None  # [B] where seeds stand among the given ones, if these have labels
    rules: DrawRules = DrawRules()
    name: str = ""  # which minibatch it is, for people
    starts: npt.NDArray[np.int64] | None = None  # [B] see `SeedBatch`

    @property
    def num_layers(self) -> int:
        """Returns how many blocks it will have."""
        return len(self.fanouts)

    def request(self) -> DrawRequest:
        """Returns what native samplers take."""
        return DrawRequest(
            self._by_type(self.seeds), self.fanouts.ravel(), self.key, self.number, slice_start=self.slice_start,
            seed_times=None if self.times is None else self._by_type(self.times),
            seed_starts=None if self.starts is None else self._by_type(self.starts), excluded=self.excluded,
            held_out=self.held_out,
            weighted=self.rules.weighted, latest=self.rules.latest, positions=self.rules.positions,
            expand_once=self.rules.expand_once, windows=self.rules.windows,
        )  # fmt: skip

    def draw(self, sampler: Sampler) -> SampledMinibatch:
        """Draws its neighbourhood."""
        if isinstance(sampler, UserDraws):
            seeds = self._by_type(self.seeds)
            return self.drawn(sampler.draw(self.name, seeds, self.key, self.number, self.num_layers))
        return self.drawn(sampler.draw(self.request()))

    def drawn(self, arrays: DrawnArrays) -> SampledMinibatch:
        """Returns the minibatch that native samplers returned as `arrays`."""
        nodes, trees, layers, counts = arrays
        return SampledMinibatch(
            seeds=self.seeds,
            node_counts=counts.reshape(len(layers) + 1, len(nodes)),
            input_nodes=tuple(nodes),
            trees=None if trees is None else tuple(trees),
            seed_times=self._kept_times,
            pairs=self.pairs,
            places=self.places,
            blocks=tuple(tuple(SampledBlock(*block) for block in layer) for layer in layers),
        )

    def seeds_by_type(self) -> list[npt.NDArray[np.int64]]:
        """Returns the seeds of each node type."""
        return self._by_type(self.seeds)

    @property
    def _kept_times(self) -> npt.NDArray[np.int64] | None:
        shift = self.rules.seed_time_shift
        return None if shift is None or self.times is None else self.times + shift

    def _by_type(self, values: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        return np.split(values, np.cumsum(self.seed_counts)[:-1]) if self.seed_counts else [values]


class PlannedEpoch(Sequence[PlannedMinibatch]):
    """The minibatches of one epoch, or some that follow each other, each planned when it is asked for."""

    def __init__(self, plan: Callable[[int], PlannedMinibatch], numbers: range) -> None:
        self._plan, self._numbers = plan, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> PlannedMinibatch: ...
    @overload
    def __getitem__(self, index: slice) -> PlannedEpoch: ...
    def __getitem__(self, index: int | slice) -> PlannedMinibatch | PlannedEpoch:
        if isinstance(index, slice):
            return PlannedEpoch(self._plan, self._numbers[index])
        return self._plan(self._numbers[index])
