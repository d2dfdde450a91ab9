"""`compare`: every loader in processes of its own, under one memory cap, on the same minibatches."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial

from diskgnn.compare.comparison_record import Comparison, LoaderResult
from diskgnn.compare.given_seeds import classes_in, trained_seeds, training_target
from diskgnn.compare.limited_graph import make_training_graph, target_type
from diskgnn.compare.loader_runs import Job, count_rows, is_short, measure, measure_again, prepare_evaluation
from diskgnn.compare.loader_setup import LoaderInputs
from diskgnn.compare.machine import Rates, describe_graph, describe_machine, memory_bytes_per_second
from diskgnn.compare.metric import Metric
from diskgnn.compare.settings import ComparedRows, ComparisonSettings
from diskgnn.compare.step_bodies import Fewest
from diskgnn.compare.step_runner import Steps
from diskgnn.compare.variants import Variant, find
from diskgnn.errors import ConfigError, callers_level
from diskgnn.files.scratch_folders import ScratchFolder
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import source_schema
from diskgnn.paths import PathLike
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.redaction import redacted
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.schema import SPLITS
from diskgnn.stores.locations import local
from diskgnn.system.disk_rates import measure_read_rates
from diskgnn.system.memory import available_cores
from diskgnn.system.memory_cgroup import refusal
from diskgnn.training.criterion import require_classes_of
from diskgnn.version import VERSION

SCRATCH = ".diskgnn-compare-"  # names of folders of scratch begin so
ROUNDS = 2  # in which short epochs are measured again
_BUSY_LOAD = 0.75  # of the cores: seconds measured beside that are worth little


def compare(
    graph: PathLike,
    settings: ComparisonSettings,
    *,
    command: str | None = None,
    on_result: Callable[[Comparison], None] = lambda comparison: None,
    reporter: Reporter = SILENT,
) -> Comparison:
    """Measure loaders on one graph, each in fresh processes under the same memory cap, page cache included.

    A loader that fails, is killed for memory, takes too long, or needs a library that is not there becomes a row that
    says so. Everything written lies in one hidden directory that goes in the end, whatever the end is.

    Args:
        graph: graph directory; features that are larger than the memory are what it is about.
        settings: what to measure.
        command: what to type to run it again.
        on_result: called with all that is known after each loader, so that a long comparison loses nothing, and when
            short epochs have been measured again.
        reporter: told about progress.

    Raises:
        ConfigError: arguments that make no sense for this graph.
        ArtifactError, InputError: the graph is none, or has no training nodes.
        DiskGNNError: what all need (the training graph, packed evaluation splits) could not be made.
        KeyboardInterrupt: processes, cgroups and files are gone by then.
    """
    opened = Graph.open(graph).without(settings.sampling.without)
    settings, features = settings.fitting(opened), ComparedRows.of(opened)
    cached_rows, caches = settings.cached_rows(features), settings.sweep_rows(features)
    plan = SamplingPlan(opened, replace(settings.sampling, splits=SPLITS))
    schema = source_schema(opened, plan.target)
    metric, model = Metric.of(schema, settings.best_by), settings.model.fitted(schema, settings.sampling.num_layers)
    splits = [split for split in ("valid", "test") if settings.evaluate and split in plan.splits]
    if settings.best_by is not None:
        if "valid" not in splits:
            raise ConfigError("best_by: expected a validation split to compare epochs on, found none")
        require_classes_of(metric.name, schema.target_kind, partial(classes_in, opened, plan, "valid"))
    with ScratchFolder(settings.scratch_parent(local(graph, "comparing")), SCRATCH, "scratch") as folder, \
            warnings.catch_warnings(record=True) as caught, ExitStack() as stack:  # fmt: skip
        warnings.simplefilter("always")
        total = 2 + bool(splits) + len(settings.variants) * settings.num_seeds
        with reporter.stage("compare", total, "steps") as advance:
            capped = _warn_of_conditions(settings)
            cap_bytes = settings.memory_bytes if capped else None
            steps = stack.enter_context(Steps(opened.manifest, folder, cap_bytes, settings.timeout_seconds))
            every, target = plan.target, target_type(plan)  # which names its type
            trained = trained_seeds(opened, settings.sampling, settings.max_batches)
            # Seeds that are given stand in the plan, and their type may have no labels, which a split needs.
            train = trained["seeds"] if every.seeds is None else None
            small = make_training_graph(opened, folder / "graph", target, train)
            described = describe_graph(opened, target, len(trained["seeds"]), every.seeds)
            sampling = replace(settings.sampling, target=training_target(every, trained))
            inputs = LoaderInputs(
                str(small.manifest.path), "", sampling, cached_rows * features.row_bytes,
                settings.memory_bytes, settings.device,
            )  # fmt: skip
            evaluated = replace(inputs, graph=str(opened.manifest.path), sampling=replace(sampling, target=every))
            del opened, small, plan  # what this process has mapped and looked at would stay in the page cache
            job = Job(inputs, model, settings.lr, settings.num_seeds, features, metric)
            disk = measure_read_rates(folder, file_bytes=settings.rate_file_bytes)
            rates = Rates(disk.sequential_bytes_per_second, disk.random_reads_per_second, memory_bytes_per_second())
            advance(1)
            fewest, points = count_rows(steps, inputs, cached_rows, caches)
            advance(1)
            if splits:
                job = prepare_evaluation(steps, job, evaluated, splits)
                advance(1)
            comparison = Comparison(
                command=redacted(command or shlex.join(sys.argv)),
                started=datetime.now().astimezone().isoformat(timespec="seconds"),
                diskgnn_version=VERSION,
                machine=describe_machine(folder, disk),
                graph=described,
                settings=settings.described(features),
                memory_capped=capped,
                cache_dropped=True,
                sequential_bytes_per_second=rates.sequential_bytes_per_second,
                random_reads_per_second=rates.random_reads_per_second,
                sweep=points,
                memory_bytes_per_second=rates.memory_bytes_per_second,
            )
            for variant in settings.variants:
                for result in measure(steps, job, variant, advance):
                    comparison = replace(
                        comparison,
                        results=(*comparison.results, _with_bounds(result, variant, features, fewest, rates)),
                        cache_dropped=steps.cache_dropped,
                        warnings=tuple(dict.fromkeys([*steps.warnings, *(str(each.message) for each in caught)])),
                    )
                    on_result(comparison)
        if settings.num_seeds == 1:
            comparison = _measure_short_ones_again(steps, job, comparison, reporter)
            on_result(comparison)
    for message in comparison.warnings:
        warnings.warn(message, stacklevel=callers_level())
    return comparison


def _measure_short_ones_again(steps: Steps, job: Job, comparison: Comparison, reporter: Reporter) -> Comparison:
    """Returns all short trainings in turn, some rounds: a machine that is slow for a minute slows all of a round
    alike."""
    results = list(comparison.results)
    short = [index for index, result in enumerate(results) if is_short(result)]
    if len(short) > 1:
        with reporter.stage("measure short epochs again", ROUNDS * len(short), "steps") as advance:
            for index in short * ROUNDS:
                variant = find(results[index].loader, results[index].variant)
                results[index] = measure_again(steps, job, variant, results[index])
                advance(1)
    return replace(comparison, results=tuple(results))


def _warn_of_conditions(settings: ComparisonSettings) -> bool:
    """Tell what makes figures worth less; whether memory can be capped."""
    no_cgroup, load, cores = refusal(), os.getloadavg()[0], available_cores()
    if load > _BUSY_LOAD * cores:
        warnings.warn(
            f"the machine was busy when the comparison began (load average {load:.1f} on {cores} cores): "
            "seconds can't be relied on; run it again when nothing else runs",
            stacklevel=callers_level(),
        )
    if no_cgroup:
        warnings.warn(f"no memory cgroup ({no_cgroup}): nothing caps memory and page cache", stacklevel=callers_level())
    left_out = settings.sampling.without
    if left_out and (whole := [each.name for each in settings.variants if each.whole_rows]):
        warnings.warn(
            f"rows are read whole by {', '.join(whole)}, as the graph has them, with {', '.join(left_out)}; what "
            "others prepare or hold in memory is without; all train on the same x",
            stacklevel=callers_level(),
        )
    if settings.device.startswith("cuda"):
        warnings.warn(
            "on a GPU only diskgnn and static-packed:plain copy minibatches ahead from page-locked memory; "
            "those of other loaders are copied when they are needed, so they look slower than they could be",
            stacklevel=callers_level(),
        )
    return not no_cgroup


def _with_bounds(
    result: LoaderResult, variant: Variant, features: ComparedRows, fewest: Fewest, rates: Rates
) -> LoaderResult:
    """Returns the result with its bounds: the fewest seconds that any loader can take, and the fewest rows that one can
    read which caches the rows that were counted."""
    if result.loading is None:
        return result
    is_bounded = variant.cached and not features.has_others(variant)
    return replace(
        result,
        belady_rows=fewest.rows if is_bounded else None,
        belady_row_bytes=fewest.row_bytes if is_bounded else 0,
        bound=variant.bound,
        bound_seconds=rates.bound_seconds(variant.bound, result.loading, result.row_bytes),
    )
