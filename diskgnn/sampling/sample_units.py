"""Sampling in units: each is one shard of a samples directory, and depends on nothing but the plan.

A unit is a few words, so whoever has the plan can make it: a thread, or another machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, tee
from pathlib import Path

import pyarrow as pa

from diskgnn.engines.work_units import MadeUnit
from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.files.disk_space import DiskBudget
from diskgnn.formats import artifacts
from diskgnn.formats.extent_headers import require_header_fits
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.formats.verification import verify_input
from diskgnn.graph.graph import Graph
from diskgnn.ordered import Threads, in_order
from diskgnn.progress.reporter import Advance
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch, Sampler
from diskgnn.sampling.sampling_need import loads_topology, sampling_need
from diskgnn.sampling.sweeping import SweepingSampler
from diskgnn.system.resources import Resources

MINIBATCHES_PER_SHARD = 32
MAX_SHARDS_PER_EPOCH = 4096


@dataclass(frozen=True)
class SampleUnit:
    """Consecutive minibatches of one epoch, which share a file: what a kill may cost; see `engines.work_units.Unit`."""

    name: str  # of the file
    split: str
    epoch: int  # the plan's
    numbers: range  # positions in the epoch

    @property
    def files(self) -> tuple[str]:
        """Returns its name."""
        return (self.name,)

    @property
    def amount(self) -> int:
        """Returns the number of minibatches."""
        return len(self.numbers)

    @property
    def disk_share(self) -> int:
        """Returns the number of minibatches: those of a plan take about as much each."""
        return len(self.numbers)


@dataclass(frozen=True)
class SampledUnit(MadeUnit[SampleUnit]):
    """A unit whose file is complete."""

    edges: int


def sample_units(plan: SamplingPlan, shard_minibatches: int = MINIBATCHES_PER_SHARD) -> list[SampleUnit]:
    """Returns all units of `plan`, in the order of training.

    Args:
        shard_minibatches: those of one unit; more where an epoch would have more than MAX_SHARDS_PER_EPOCH files.
    """
    units: list[SampleUnit] = []
    for split in plan.splits:
        size = plan.sizes[split].batches_per_epoch
        per_shard = max(shard_minibatches, -(-size // MAX_SHARDS_PER_EPOCH))
        for prepared, epoch in enumerate(plan.prepared_epochs(split)):
            for number, first in enumerate(range(0, size, per_shard)):
                name = artifacts.shard_file(split, prepared, number)
                units.append(SampleUnit(name, split, epoch, range(first, min(first + per_shard, size))))
    return units


def write_units(
    plan: SamplingPlan,
    units: Iterator[SampleUnit],
    folder: Path,
    resources: Resources,
    advance: Advance,
    *,
    sampler: Sampler | None = None,
    verify: bool = True,
) -> Generator[SampledUnit, None, int]:
    """Writes the files of `units`, yields each that is complete, and returns the bytes read.

    Their bytes depend on `plan` alone.

    Args:
        plan: what the units are of.
        units: asked for the next ones while the first are written.
        folder: where files are written, under their names.
        resources: for this; several units are written at a time where the topology fits in memory.
        advance: told of each minibatch.
        sampler: of the graph's topology, if it is in memory already.
        verify: compare topology that is swept with its checksums before, which takes reading it once more.

    Raises:
        ArtifactError: a file of the topology is damaged, or leads outside of it.
        DiskFullError: more than `resources.disk` would be taken.
        OSError: reading or writing failed.
    """
    timed = [number for number, name in enumerate(plan.graph.nodes) if name in plan.layout.times]
    fits = partial(require_header_fits, layout=plan.minibatch_layout(), batch_size=plan.spec.batch_size, timed=timed)
    write = partial(_write, folder, plan.minibatch_layout(), fits, advance, resources.disk)
    planned = _plan_units(plan, units)
    with damage_named(plan.graph):
        if sampler is not None:
            yield from _sample_in_memory(write, planned, sampler, resources.threads)
            return 0
        resources = resources.within(sampling_need(plan, resources))
        if loads_topology(plan, resources):
            yield from _sample_in_memory(write, planned, plan.load_sampler(), resources.threads)
            return plan.sampler_bytes
        # Sweeps skip what they do not need, so they cannot tell: one pass more says that the disk gives what was
        # written.
        checked_bytes = _check_topology(plan, resources) if verify else 0
        return checked_bytes + (yield from _sample_by_sweeping(write, planned, plan, resources))


_Planned = tuple[SampleUnit, Sequence[PlannedMinibatch]]
_Write = Callable[[SampleUnit, Iterator[SampledMinibatch]], SampledUnit]


def _plan_units(plan: SamplingPlan, units: Iterator[SampleUnit]) -> Iterator[_Planned]:
    """Yields each unit and its minibatches. An epoch is planned once for consecutive units."""
    for (split, epoch), same_epoch in groupby(units, lambda unit: (unit.split, unit.epoch)):
        minibatches = plan.minibatches(split, epoch)
        for unit in same_epoch:
            yield unit, minibatches[unit.numbers.start : unit.numbers.stop]


def _write(
    folder: Path,
    layout: MinibatchLayout,
    require_fits: Callable[[SampledMinibatch], None],
    advance: Advance,
    disk: DiskBudget,
    unit: SampleUnit,
    sampled: Iterator[SampledMinibatch],
) -> SampledUnit:
    """Writes the minibatches of `unit`, the next ones of `sampled`."""
    edges = 0
    path = folder / unit.name
    with ChecksummedFile(path, disk=disk) as sink, pa.ipc.new_file(sink, layout.schema) as file:
        for _ in unit.numbers:
            faults.point("sample.minibatch")
            minibatch = next(sampled)
            require_fits(minibatch)
            file.write_batch(layout.encode(minibatch))
            edges += minibatch.num_edges
            advance(1)
    return SampledUnit(unit, {unit.name: sink.crc32c}, edges)


def _sample_in_memory(
    write: _Write, planned: Iterator[_Planned], sampler: Sampler, threads: int
) -> Iterator[SampledUnit]:
    """Samples units in parallel, from topology that is loaded whole."""
    stopping = threading.Event()

    def sampled(minibatches: Sequence[PlannedMinibatch]) -> Iterator[SampledMinibatch]:
        for minibatch in minibatches:
            if stopping.is_set():
                raise CancelledError
            yield minibatch.draw(sampler)

    with Threads(threads) as pool:
        writes = (partial(write, unit, sampled(minibatches)) for unit, minibatches in planned)
        try:
            yield from in_order(pool, writes, 2 * threads)
        finally:
            stopping.set()  # whatever is under way


def _check_topology(plan: SamplingPlan, resources: Resources) -> int:
    """Compare all of it with its checksums; bytes read."""
    parts = plan.parts
    with resources.reporter.stage("check the topology", parts.num_bytes, "B") as advance:
        for name in parts.files():
            verify_input(parts.graph.manifest, name, advance)
    return parts.num_bytes


def _sample_by_sweeping(
    write: _Write, planned: Iterator[_Planned], plan: SamplingPlan, resources: Resources
) -> Generator[SampledUnit, None, int]:
    """Yields one unit after the other, from sweeps over topology that stays on disk; returns the bytes read."""
    ahead, to_write = tee(planned)
    with SweepingSampler(plan.parts, resources) as sampler:
        sampled = sampler.sample(minibatch for _, minibatches in ahead for minibatch in minibatches)
        for unit, _ in to_write:
            yield write(unit, sampled)
        return sampler.read_bytes


@contextmanager
def damage_named(graph: Graph) -> Iterator[None]:
    """Raise what the native samplers find wrong with the graph as an ArtifactError."""
    try:
        yield
    except IndexError as error:  # the native samplers'
        raise ArtifactError(
            f"{graph.manifest.path} is damaged ({error}); check with `diskgnn verify`, make it again"
        ) from error
