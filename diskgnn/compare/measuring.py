"""What a comparison measures of each loader, step by step, as the records that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from diskgnn.compare.loaders import Variant
from diskgnn.compare.opening import Setting
from diskgnn.compare.processes import Outcome
from diskgnn.compare.results import EpochPoint, LoaderResult, SweepPoint, epoch_cost
from diskgnn.compare.settings import ModelSpec
from diskgnn.compare.stepping import Steps
from diskgnn.compare.steps import excerpt
from diskgnn.tracing import read_trace

_UNCAPPED_SHARE = 0.8  # of the memory that is free: what a loader without a cap may hold


@dataclass(frozen=True)
class Job:
    """What every loader is measured with."""

    setting: Setting  # but for the seed, and the folder to prepare in
    model: ModelSpec
    seeds: int
    row_bytes: int
    evaluation: Path | None = None  # the packed validation and test splits, and which there are
    splits: tuple[str, ...] = ()


def count_rows(
    steps: Steps, setting: Setting, cached_rows: int, sweep: Sequence[tuple[str, int]]
) -> tuple[int, tuple[SweepPoint, ...]]:
    """The fewest rows that a cache of `cached_rows` can read in an epoch, and the sweep."""
    with steps.subfolder("counting") as folder:
        found = steps.needed("count", {
            "graph": setting.graph, "folder": str(folder), "sampling": setting.drawn, "cache_rows": cached_rows,
            "sweep": list(sweep), "memory_bytes": setting.memory_bytes // 2,
        })  # fmt: skip
    return found["belady_rows"], tuple(SweepPoint(**point) for point in found["sweep"])


def prepare_evaluation(steps: Steps, job: Job, splits: Sequence[str]) -> Job:
    """`job` with what all loaders' models will be evaluated on, packed."""
    folder, setting = steps.folder / "evaluation", job.setting
    folder.mkdir()
    steps.needed("prepare_evaluation", {
        "graph": str(steps.graph.path), "folder": str(folder), "splits": list(splits),
        "sampling": {**setting.drawn, "eval_fanouts": setting.sampling.eval_fanouts},
        "cache_bytes": setting.cache_bytes // 4, "memory_bytes": setting.memory_bytes // 2,
    })  # fmt: skip
    return replace(job, evaluation=folder / "packed", splits=tuple(splits))


def measure(steps: Steps, job: Job, variant: Variant, advance: Callable[[int], None]) -> Iterator[LoaderResult]:
    """One result per seed; one alone where there is nothing to measure."""
    nothing = LoaderResult(variant.name, variant.loader, variant.variant, "ok", row_bytes=job.row_bytes)
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


def _measure_seed(steps: Steps, job: Job, variant: Variant, result: LoaderResult) -> LoaderResult:
    with steps.subfolder("loader") as folder, steps.subfolder("weights") as weights:
        sampling = replace(job.setting.sampling, seed=result.seed)
        setting = replace(job.setting, folder=str(folder), sampling=sampling)
        what = {"setting": asdict(setting), "loader": variant.loader, "variant": variant.variant}

        def run(step: str, arguments: Mapping[str, Any]) -> Outcome:
            return steps.run(step, arguments, capped=result.capped, watched=folder, about=variant.name)

        if variant.prepare is not None:
            prepared = run("prepare", what)
            result = replace(result, prepare_peak_bytes=prepared.peak_process_bytes,
                             prepare_peak_cgroup_bytes=prepared.peak_cgroup_bytes,
                             peak_disk_bytes=prepared.peak_disk_bytes)  # fmt: skip
            if prepared.status != "ok":
                return _failed(result, prepared)
            result = replace(result, prepare_seconds=prepared.result["seconds"],
                             prepared_bytes=prepared.result["bytes"])  # fmt: skip
        if result.seed == 0:
            loaded = run("load", what)
            result = _with_peaks(result, loaded)
            if loaded.status != "ok":
                return _failed(result, loaded)
            result = replace(result, loading=epoch_cost(loaded.result["cost"]))
        trace = str(weights / "trace.json") if result.seed == 0 else None
        saved = None if job.evaluation is None else str(weights)
        trained = run("train", {**what, "model": asdict(job.model), "weights": saved, "trace": trace})
        result = _with_peaks(result, trained)
        if trained.status != "ok":
            return _failed(result, trained)
        if trace is not None:  # read here: it is not the measured process's memory that it takes
            result = replace(result, trace=tuple(excerpt(read_trace(trace))))
        accuracies: list[dict[str, float]] = [{}] * setting.epochs
        if job.evaluation is not None:
            evaluated = steps.run("evaluate", {
                "packed": str(job.evaluation), "splits": job.splits, "weights": saved, "epochs": setting.epochs,
                "model": asdict(job.model), "device": setting.device,
            })  # fmt: skip
            if evaluated.status != "ok":
                return _failed(result, evaluated)
            accuracies = evaluated.result
        return _with_training(result, trained.result, accuracies)


def _failed(result: LoaderResult, outcome: Outcome) -> LoaderResult:
    return replace(result, status=outcome.status, message=outcome.message)


def _with_peaks(result: LoaderResult, outcome: Outcome) -> LoaderResult:
    cgroup_peaks = [peak for peak in (result.peak_cgroup_bytes, outcome.peak_cgroup_bytes) if peak is not None]
    return replace(
        result,
        peak_process_bytes=max(result.peak_process_bytes, outcome.peak_process_bytes),
        peak_cgroup_bytes=max(cgroup_peaks, default=None),
        peak_disk_bytes=max(result.peak_disk_bytes, outcome.peak_disk_bytes),
    )


def _with_training(
    result: LoaderResult, trained: Mapping[str, Any], accuracies: Sequence[Mapping[str, float]]
) -> LoaderResult:
    seconds, points = result.prepare_seconds + trained["open_seconds"], []
    for epoch, found in zip(trained["epochs"], accuracies, strict=True):
        seconds += epoch["train_seconds"]
        points.append(EpochPoint(epoch["epoch"], seconds, epoch["loss"], found.get("valid"), found.get("test")))
    return replace(
        result,
        training=epoch_cost(trained["cost"]),
        open_seconds=trained["open_seconds"],
        epochs=tuple(points),
    )
