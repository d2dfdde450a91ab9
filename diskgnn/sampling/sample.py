"""The offline sampler: graph/ -> samples/, the neighbourhoods of all minibatches of all prepared epochs.

Every random draw is a pure function of (seed, split, epoch, minibatch, layer, node), and a coordinated one of fewer of
them. So the bytes do not depend on the number of threads, and a killed run goes on with the shards that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diskgnn.engines.engine import Engine, LocalEngine
from diskgnn.engines.sent import Sent
from diskgnn.files.destination import Destination
from diskgnn.formats import artifacts
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.graph.graph import Graph
from diskgnn.ordered import Threads, in_order
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch, Sampler
from diskgnn.sampling.sample_units import (
    MINIBATCHES_PER_SHARD,
    SampledUnit,
    SampleUnit,
    sample_units,
    write_units,
)
from diskgnn.sampling.sampling_need import loads_topology, sampling_need
from diskgnn.sampling.sweeping import SweepingSampler
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.sampling import SamplingOptions, SamplingSpec
from diskgnn.specs.schema import SPLITS
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.resources import Resources
from diskgnn.work.publishing import published
from diskgnn.work.runner import UnitFiles, Work
from diskgnn.work.seed_files import write_given
from diskgnn.work.writer import ArtifactWriter

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TASKS_PER_WORKER = 4  # with topology in memory, so that workers end at nearly the same time


@published(artifacts.SAMPLES)
@freed_memory_returned()
@takes_options(SamplingOptions, SamplingSpec)
def sample(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    first_epoch: int = 0,
    splits: Sequence[str] = SPLITS,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
    **sampling: Unpack[SamplingOptions],
) -> StageReport:
    """Sample `epochs` epochs of the train split, and one of each other split, into the samples directory `out`.

    Args:
        graph: graph directory, or an opened one.
        out: the samples directory to write. A killed run with the same arguments goes on where it stopped.
        first_epoch: the train epochs sampled are `first_epoch` and those that follow.
        splits: which splits to sample; those that the graph lacks are left out.
        sampling: `fanouts`, `batch_size`, `epochs` and what else `SamplingSpec` says of minibatches.
        memory: budget in bytes or as '2GiB'; topology is loaded when it fits, and
            otherwise read front to back, again and again, for as many minibatches at a time as fit.
        disk: what files may take at any time, as '100GiB'; what is free by default.
        threads: sampling threads; all cores by default.
        overwrite: replace an existing `out`.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about every stage, in place of the bars; see `diskgnn.progress`.

    Raises:
        ConfigError: arguments that make no sense; types, weights or times that the graph does not have.
        InputError: the graph has no training nodes.
        ArtifactError, OutputExistsError, DiskFullError: see `diskgnn.work.writer`.

    Example:
        >>> diskgnn.sample("graph", "samples", fanouts=[10, 10], batch_size=1024, epochs=4)
    """
    spec = SamplingSpec.of(splits, first_epoch, **sampling)
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    plan = SamplingPlan(graph, spec)
    out, told = Destination.of(out), reporter_for(reporter, progress)
    resources = Resources.of(memory, threads, told, sending_bytes=out.sending_bytes)
    resources = replace(resources, disk=out.budget(disk))
    with graph.manifest.copies_claimed_of(resources.disk):
        plan.warn()
        return sample_plan(plan, out, resources, overwrite=overwrite)


def sample_plan(
    plan: SamplingPlan,
    out: PathLike,
    resources: Resources,
    *,
    overwrite: bool = False,
    shard_minibatches: int = MINIBATCHES_PER_SHARD,
    sampler: Sampler | None = None,
    verify: bool = True,
    once: bool = False,
    engine: Engine | None = None,
) -> StageReport:
    """Samples with arguments that `sample` checked.

    Args:
        shard_minibatches: consecutive minibatches in one file, the unit that a kill may cost; more where an epoch would
            have more than MAX_SHARDS_PER_EPOCH files.
        sampler: of the graph's topology, if it is in memory already.
        verify: compare topology that is swept with its checksums before, which takes reading it once more.
        once: what is written is used by this process, and then deleted: a killed run begins again.
        engine: that does it, and whose processes may spend `resources` each; this process by default.
    """
    started = time.perf_counter()
    graph = plan.graph
    if sampler is None:
        resources.within(sampling_need(plan, resources))  # refuses before there is anything
    plan.hold_out(resources.reporter)
    config = replace(plan.config(), eval_edges=plan.held_out.eval_edges)
    writer = ArtifactWriter(out, artifacts.SAMPLES, config=config.to_json(), source=graph.manifest,
                            overwrite=overwrite, resumable=not once, durable=not once, disk=resources.disk)  # fmt: skip
    num_batches = sum(size.num_batches for size in plan.sizes.values())
    with writer:
        edges, read_bytes = write_shards(
            writer, plan, resources, shard_minibatches=shard_minibatches, sampler=sampler, verify=verify, engine=engine
        )
        write_given(writer, plan.config().spec)
        manifest = writer.publish()
    details = {"minibatches": num_batches, "edges": edges, "epochs": plan.spec.epochs}
    return StageReport("sample", time.perf_counter() - started, read_bytes, manifest.total_bytes, details)


def write_shards(
    writer: ArtifactWriter,
    plan: SamplingPlan,
    resources: Resources,
    *,
    shard_minibatches: int = MINIBATCHES_PER_SHARD,
    only: Collection[str] | None = None,
    sampler: Sampler | None = None,
    verify: bool = True,
    engine: Engine | None = None,
) -> tuple[int, int]:
    """Writes and registers the shards of `plan`, or those that `only` names.

    Returns:
        Edges sampled by this run, and bytes read.
    """
    engine, edges, read_bytes = engine or LocalEngine(), 0, 0
    units = [unit for unit in sample_units(plan, shard_minibatches) if only is None or unit.name in only]
    sent = send_sampling(engine, plan)
    make = partial(write_units, sampler=sampler, verify=verify)
    with resources.reporter.stage("sample", sum(unit.amount for unit in units), "minibatches") as advance:

        def run(missing: Iterator[SampleUnit]) -> Generator[tuple[SampleUnit, UnitFiles], None, None]:
            nonlocal edges, read_bytes

            def made() -> Generator[SampledUnit, None, None]:
                nonlocal read_bytes
                num_tasks = _num_tasks(engine, plan, resources)
                read_bytes = sum((yield from engine.made(make, sent, writer, missing, resources, advance, num_tasks)))

            for each in made():
                edges += each.edges
                yield each.unit, each.checksums

        Work(writer, "sample").map(units, run, files=lambda unit: unit.files, adopted=lambda unit: advance(unit.amount))
    return edges, read_bytes


def send_sampling(engine: Engine, value: Any) -> Sent:
    """Sends a plan, or what has one, to the processes of an engine.

    Raises:
        ConfigError: its sampler cannot be sent.
    """
    expected = "sampler: expected a function that can be pickled"
    return engine.send(value, expected, "give it by its name 'module:function', of a module that workers can import")


def _num_tasks(engine: Engine, plan: SamplingPlan, resources: Resources) -> int:
    """Returns how many tasks sample one rank: some for each worker that it has; one where each sweeps the topology."""
    workers = -(-engine.num_workers(resources) // plan.spec.shard.world_size)
    return max(1, workers * (_TASKS_PER_WORKER if loads_topology(plan, resources) else 1))


def sample_a_few(
    plan: SamplingPlan, minibatches: Iterable[PlannedMinibatch], resources: Resources
) -> Iterator[SampledMinibatch]:
    """Yields each of the minibatches of `plan` as `sample` makes it. `minibatches` may be asked for more of them at any
    time until it ends.
    """
    if loads_topology(plan, resources):
        sampler = plan.load_sampler()
        with Threads(resources.threads) as pool:
            yield from in_order(pool, (partial(each.draw, sampler) for each in minibatches), 2 * resources.threads)
    else:
        with SweepingSampler(plan.parts, resources) as sweeping:
            yield from sweeping.sample(minibatches)
