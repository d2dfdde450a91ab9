"""Samples as many minibatches of several plans as there is time for, to predict what each would put on the disk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.formats.samples_config import SequenceSize
from diskgnn.graph.source_schema import label_target
from diskgnn.packing.row_sets import RowSet, row_sets_of
from diskgnn.preparing.access_sample import AccessSample
from diskgnn.preparing.row_forecast import SequenceForecast
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.sampling.sample import sample_a_few
from diskgnn.sampling.sample_units import damage_named
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources

LEAST_MINIBATCHES = 8  # of each sequence, however long they take
MAX_ACCESSES = 12_000_000  # in memory, of all sequences together: 50 to 100 MB


@dataclass(frozen=True)
class SequenceSample:
    """One split under one plan, as far as it was sampled."""

    size: SequenceSize
    forecasts: tuple[SequenceForecast, ...]  # [K] of each row set
    edges: float  # mean per minibatch
    samples_bytes: float  # mean per minibatch, of the arrays
    header_bytes: float  # the same, without addresses and admissions
    max_rows: tuple[int, ...]  # [K] of the largest minibatch
    sampled: int  # minibatches

    @property
    def requested(self) -> int:
        """Returns the rows that the sequence needs, of all row sets."""
        return sum(each.requested for each in self.forecasts)


def sample_sequences(
    plans: Sequence[SamplingPlan],
    resources: Resources,
    *,
    keep_input_nodes: bool,
    max_seconds: float,
    max_accesses: int = MAX_ACCESSES,
) -> tuple[list[Mapping[str, SequenceSample]], float]:
    """Returns each plan's splits that have any, and the seconds that sampling a minibatch took; all plans are of one
    graph.

    Takes `max_seconds`, or as long as the first few minibatches of each take. All get as many: a run that grows from
    the middle of the sequence.

    Raises:
        ArtifactError: the graph is damaged.
    """
    growing: dict[tuple[str, SamplingSpec], _Growing] = {}
    for plan in plans:
        for split in _splits_with_minibatches(plan):
            growing.setdefault(_same_minibatches(plan, split), _Growing(plan, split, len(growing)))
    row_sets = row_sets_of(plans[0].graph, plans[0].config())
    accesses = [AccessSample(each.num_rows, len(growing), max_accesses // max(1, len(row_sets))) for each in row_sets]
    samples_layout = plans[0].minibatch_layout()
    header_layout = header_layout_of(plans[0], row_sets, keep_input_nodes=keep_input_nodes)
    order: list[tuple[_Growing, int]] = []
    deadline = time.monotonic() + max_seconds

    def planned() -> Iterator[PlannedMinibatch]:
        for step in range(max(each.size.num_batches for each in growing.values())):
            if step >= LEAST_MINIBATCHES and time.monotonic() > deadline:
                return
            for sequence in growing.values():
                if step < sequence.size.num_batches:
                    middle = sequence.size.num_batches // 2
                    position = middle + (-(step + 1) // 2 if step % 2 else step // 2)
                    order.append((sequence, position))
                    yield sequence.minibatch(position)

    most = sum(each.size.num_batches for each in growing.values())
    seconds, started = 0.0, time.monotonic()
    with damage_named(plans[0].graph), resources.reporter.stage("sample some", most, "minibatches") as advance:
        for number, minibatch in enumerate(sample_a_few(plans[0], planned(), resources)):
            sequence, position = order[number]
            needed = [each.needed(minibatch) for each in row_sets]
            sequence.add(minibatch, samples_layout.num_bytes(minibatch), header_layout.num_bytes(minibatch), needed)
            for of_set, nodes in zip(accesses, needed, strict=True):
                of_set.add(sequence.number, position, nodes)
            seconds = (time.monotonic() - started) / (number + 1)
            advance(1)
    samples = {key: sequence.sample(accesses) for key, sequence in growing.items()}
    return [
        {split: samples[_same_minibatches(plan, split)] for split in _splits_with_minibatches(plan)} for plan in plans
    ], seconds


def _splits_with_minibatches(plan: SamplingPlan) -> list[str]:
    """One of many ranks may have none of a small split."""
    return [split for split in plan.splits if plan.sizes[split].num_batches]


def header_layout_of(plan: SamplingPlan, row_sets: Sequence[RowSet], *, keep_input_nodes: bool) -> MinibatchLayout:
    """Returns what the headers of these minibatches will have."""
    config = plan.config()
    return PackedConfig.before_placing(
        config, label_target(plan.graph, config.spec.target), [row_set.config for row_set in row_sets],
        keep_input_nodes=keep_input_nodes, graph=plan.graph.manifest.digest,
        constants=plan.graph.constants,
    ).header_layout()  # fmt: skip


def _same_minibatches(plan: SamplingPlan, split: str) -> tuple[str, SamplingSpec]:
    """Returns what decides the minibatches of one split."""
    if split == "train":
        return split, plan.spec
    return split, replace(plan.spec, draw_period=1, group_seeds=1)


@dataclass
class _Growing:
    """One sequence while it is sampled."""

    plan: SamplingPlan
    split: str
    number: int
    epochs: dict[int, Sequence[PlannedMinibatch]] = field(default_factory=dict)
    edges: int = 0
    samples_bytes: int = 0
    header_bytes: int = 0
    max_rows: tuple[int, ...] = ()
    sampled: int = 0

    @property
    def size(self) -> SequenceSize:
        """Returns the size of the whole sequence."""
        return self.plan.sizes[self.split]

    def minibatch(self, position: int) -> PlannedMinibatch:
        """Returns the one at `position` of the sequence."""
        epoch, number = divmod(position, self.size.batches_per_epoch)
        if epoch not in self.epochs:
            prepared = self.plan.prepared_epochs(self.split)
            self.epochs[epoch] = self.plan.minibatches(self.split, prepared[epoch])
        return self.epochs[epoch][number]

    def add(
        self, minibatch: SampledMinibatch, samples_bytes: int, header_bytes: int, needed: Sequence[npt.NDArray[Any]]
    ) -> None:
        """Counts what it consists of; it needs the rows `needed` [K]."""
        self.edges += minibatch.num_edges
        self.samples_bytes += samples_bytes
        self.header_bytes += header_bytes
        self.max_rows = tuple(map(max, map(len, needed), self.max_rows or [0] * len(needed)))
        self.sampled += 1

    def sample(self, accesses: Sequence[AccessSample]) -> SequenceSample:
        """Returns what was found."""
        num_seeds = self._num_seeds()
        return SequenceSample(
            self.size, tuple(SequenceForecast(of_set, self.number, num_seeds) for of_set in accesses),
            self.edges / self.sampled, self.samples_bytes / self.sampled, self.header_bytes / self.sampled,
            self.max_rows, self.sampled,
        )  # fmt: skip

    def _num_seeds(self) -> npt.NDArray[np.int64]:
        """Returns [B] how many seeds each minibatch has."""
        num_seeds = np.full(self.size.batches_per_epoch, self.plan.spec.batch_size)
        num_seeds[-1] = self.plan.last_size(self.split)
        return np.tile(num_seeds, self.size.epochs)
