"""What a comparison measures of each loader, step by step, as the records that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import psutil

from diskgnn.compare import step_bodies
from diskgnn.compare.comparison_record import EpochPoint, LoaderResult, SweepPoint
from diskgnn.compare.loader_setup import LoaderInputs
from diskgnn.compare.metric import ACCURACY, Metric
from diskgnn.compare.settings import ComparedRows
from diskgnn.compare.step_bodies import Fewest, excerpt
from diskgnn.compare.step_runner import Outcome, Steps
from diskgnn.compare.variants import Variant
from diskgnn.graph.graph import Graph
from diskgnn.loading.tracing import read_trace
from diskgnn.nn.model_spec import ModelSpec

T = TypeVar("T")
_UNCAPPED_SHARE = 0.8  # of the memory that is free: what a loader without a cap may hold
_SHORT_SECONDS = 10.0  # of preparing, opening and training: who takes no longer is measured again


@dataclass(frozen=True)
class Job:
    """Holds what every loader is measured with."""

    inputs: LoaderInputs  # but for the seed, and the folder to prepare in
    model: ModelSpec
    lr: float
    seeds: int
    features: ComparedRows
    metric: Metric = ACCURACY  # the task's
    evaluation: Path | None = None  # the packed, or propagated, validation and test splits, and which there are
    splits: tuple[str, ...] = ()
    evaluated: LoaderInputs | None = None  # with the graph that has them


def count_rows(
    steps: Steps, inputs: LoaderInputs, cached_rows: int, sweep: Sequence[tuple[str, int]]
) -> tuple[Fewest, tuple[SweepPoint, ...]]:
    """Returns the fewest rows that a cache of `cached_rows` can read in an epoch, and the sweep."""
    with steps.subfolder("counting") as folder:
        return steps.needed(
            step_bodies.count, inputs=inputs, folder=folder, cache_rows=cached_rows, sweep=sweep,
            memory_bytes=inputs.memory_bytes * 3 // 4,  # the process included
        )  # fmt: skip


def prepare_evaluation(steps: Steps, job: Job, inputs: LoaderInputs, splits: Sequence[str]) -> Job:
    """Returns `job` with what all loaders' models will be evaluated on, packed: `splits` of all that `inputs` have."""
    folder, row_bytes = steps.folder / "evaluation", job.features.row_bytes
    folder.mkdir()
    steps.needed(
        step_bodies.prepare_evaluation, inputs=inputs, folder=folder, splits=splits,
        cache_bytes=inputs.cache_bytes // row_bytes // 4 * row_bytes,  # whole rows
        memory_bytes=inputs.memory_bytes * 3 // 4,  # the process included
    )  # fmt: skip
    return replace(job, evaluation=folder / "packed", splits=tuple(splits), evaluated=inputs)


def measure(steps: Steps, job: Job, variant: Variant, advance: Callable[[int], None]) -> Iterator[LoaderResult]:
    """Yields one result per seed; one alone where there is nothing to measure."""
    nothing = LoaderResult(
        variant.name,
        variant.loader,
        variant.variant,
        "ok",
        row_bytes=job.features.row_bytes_of(variant),
        metric=job.metric,
    )
    if refusal := variant.refusal(Graph.open(job.inputs.graph), job.inputs.sampling):
        advance(job.seeds)
        yield replace(nothing, status="unavailable", message=refusal)
        return
    with steps.subfolder("own evaluation") as folder:
        if variant.has_own_model and job.evaluation is not None:
            job = replace(job, evaluation=folder / "packed")  # what all seeds are evaluated on, once it is there
        for seed in range(job.seeds):
            result = _measure_seed(steps, job, variant, replace(nothing, seed=seed))
            advance(1)
            yield result
            if result.status != "ok":
                advance(job.seeds - seed - 1)
                break
    if result.status == "out of memory" and variant.uncapped and _fits_without_cap(steps):
        yield _measure_seed(
            steps, job, variant, replace(nothing, name=f"{variant.name}, without the cap", capped=False)
        )


def _fits_without_cap(steps: Steps) -> bool:
    free_bytes = psutil.virtual_memory().available
    return steps.memory_bytes is not None and steps.graph.total_bytes < _UNCAPPED_SHARE * free_bytes


def is_short(result: LoaderResult) -> bool:
    """Returns True if it is worth measuring again: a busy second of the machine may have decided it."""
    return result.status == "ok" and bool(result.epochs) and result.epochs[-1].seconds <= _SHORT_SECONDS


def measure_again(steps: Steps, job: Job, variant: Variant, result: LoaderResult) -> LoaderResult:
    """Returns `result` with what training takes now, some time later, too: the run nearest to the median of both is
    told."""
    with _turn(steps, job, variant, replace(result, trace=())) as turn:
        again = _in_turn(result, turn.prepare, turn.train)
    if again.status != "ok" or again.training is None or result.training is None:
        return result
    repeats = result.training.repeats_seconds + again.training.repeats_seconds
    first_seconds, again_seconds = result.training.seconds, again.training.seconds
    middle = median(repeats)
    told = again if abs(again_seconds - middle) < abs(first_seconds - middle) else result
    assert told.training is not None
    return replace(
        result,
        training=replace(told.training, repeats_seconds=repeats),
        prepare_seconds=told.prepare_seconds,
        open_seconds=told.open_seconds,
        epochs=tuple(
            replace(point, seconds=timed.seconds) for point, timed in zip(result.epochs, told.epochs, strict=True)
        ),
    )


def _measure_seed(steps: Steps, job: Job, variant: Variant, result: LoaderResult) -> LoaderResult:
    with _turn(steps, job, variant, result) as turn:
        loading = [turn.load] if result.seed == 0 else []
        return _in_turn(result, turn.prepare, *loading, turn.train, turn.evaluate)


def _in_turn(result: LoaderResult, *stages: Callable[[LoaderResult], LoaderResult]) -> LoaderResult:
    """Runs the stages, up to the first that fails, each with the result of the one before."""
    for stage in stages:
        if result.status == "ok":
            result = stage(result)
    return result


@contextmanager
def _turn(steps: Steps, job: Job, variant: Variant, result: LoaderResult) -> Iterator[_Turn]:
    """Yields the turn of one loader with the seed of `result`, in folders that go with the block."""
    with steps.subfolder("loader") as folder, steps.subfolder("weights") as weights:
        inputs = replace(job.inputs, folder=str(folder), sampling=replace(job.inputs.sampling, seed=result.seed))
        yield _Turn(steps, job, variant, inputs, weights)


@dataclass(frozen=True)
class _Turn:
    """The stages of one loader with one seed: each takes what is known of it, and returns it with what it found."""

    steps: Steps
    job: Job
    variant: Variant
    inputs: LoaderInputs
    weights: Path

    def _run(self, step: Callable[..., T], result: LoaderResult, **more: Any) -> Outcome[T]:
        chosen = {"inputs": self.inputs, "loader": self.variant.loader, "variant": self.variant.variant}
        folder = Path(self.inputs.folder)
        return self.steps.run(step, {**chosen, **more}, capped=result.capped, watched=folder, about=self.variant.name)

    def prepare(self, result: LoaderResult) -> LoaderResult:
        """Writes what has to be there before the first epoch, if anything."""
        if self.variant.prepare is None:
            return result
        outcome = self._run(step_bodies.prepare, result)
        result = replace(
            result,
            prepare_peak_bytes=outcome.peak_process_bytes,
            prepare_peak_cgroup_bytes=outcome.peak_cgroup_bytes,
            peak_disk_bytes=max(result.peak_disk_bytes, outcome.peak_disk_bytes),
        )
        if outcome.result is None:
            return _as_failed(result, outcome)
        seconds, num_bytes = outcome.result
        return replace(result, prepare_seconds=seconds, prepared_bytes=num_bytes)

    def load(self, result: LoaderResult) -> LoaderResult:
        """Runs an epoch without a model."""
        outcome = self._run(step_bodies.load, result)
        result = _with_peaks(result, outcome)
        if outcome.result is None:
            return _as_failed(result, outcome)
        return replace(result, loading=outcome.result)

    def train(self, result: LoaderResult) -> LoaderResult:
        """Runs all epochs; the weights after each stay for `evaluate`."""
        traced = result.seed == 0
        trace = str(self.weights / "trace.json")
        saved = None if self.job.evaluation is None else str(self.weights)
        outcome = self._run(
            step_bodies.train,
            result,
            model=self.job.model,
            lr=self.job.lr,
            weights=saved,
            trace=trace if traced else None,
        )
        result = _with_peaks(result, outcome)
        if outcome.result is None:
            return _as_failed(result, outcome)
        if traced:  # read here: it is not the measured process's memory that it takes
            result = replace(result, trace=tuple(excerpt(read_trace(trace))))
        trained, points = outcome.result, []
        seconds = result.prepare_seconds + trained.open_seconds
        for epoch in trained.epochs:
            seconds += epoch["train_seconds"]
            points.append(EpochPoint(epoch["epoch"], seconds, epoch["loss"], None, None))
        return replace(
            result,
            training=trained.cost,
            open_seconds=trained.open_seconds,
            epochs=tuple(points),
        )

    def evaluate(self, result: LoaderResult) -> LoaderResult:
        """Returns accuracies after each epoch, where there is something to evaluate on."""
        if self.job.evaluation is None:
            return result
        if not self.job.evaluation.exists():  # the variant's own
            assert self.job.evaluated is not None
            inputs = replace(self.job.evaluated, folder=str(self.job.evaluation.parent))
            chosen = {"inputs": inputs, "loader": self.variant.loader, "variant": self.variant.variant}
            prepared = self.steps.run(step_bodies.prepare, chosen)
            if prepared.result is None:
                return _as_failed(result, prepared)
        outcome = self.steps.run(step_bodies.evaluate, {
            "packed": self.job.evaluation, "splits": self.job.splits, "weights": self.weights,
            "epochs": len(result.epochs), "model": self.job.model, "device": self.inputs.device,
        })  # fmt: skip
        if outcome.result is None:
            return _as_failed(result, outcome)
        name = self.job.metric.name
        points = (
            replace(point, valid_score=found.get(f"valid_{name}"), test_score=found.get(f"test_{name}"), scores=found)
            for point, found in zip(result.epochs, outcome.result, strict=True)
        )
        return replace(result, epochs=tuple(points))


def _as_failed(result: LoaderResult, outcome: Outcome[Any]) -> LoaderResult:
    return replace(result, status=outcome.status, message=outcome.message)


def _with_peaks(result: LoaderResult, outcome: Outcome[Any]) -> LoaderResult:
    cgroup_peaks = [peak for peak in (result.peak_cgroup_bytes, outcome.peak_cgroup_bytes) if peak is not None]
    return replace(
        result,
        peak_process_bytes=max(result.peak_process_bytes, outcome.peak_process_bytes),
        peak_cgroup_bytes=max(cgroup_peaks, default=None),
        peak_disk_bytes=max(result.peak_disk_bytes, outcome.peak_disk_bytes),
    )
