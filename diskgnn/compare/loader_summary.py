"""Each loader of a comparison over its seeds: means, and how far measurements spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev

from diskgnn.compare.comparison_record import EpochCost, EpochPoint, LoaderResult, disk_bytes
from diskgnn.compare.metric import Metric
from diskgnn.loading.tracing import TraceEvent

_RUNS_DIFFER = 1.05  # by this factor, one run from another, however alike the measurements of each are


def is_run_to_run(ratio: float) -> bool:
    """Returns True if one run may differ from another by such a ratio of durations."""
    return 1 / _RUNS_DIFFER <= ratio <= _RUNS_DIFFER


@dataclass(frozen=True)
class Spread:
    """The shortest and the longest of some measurements of one duration."""

    low_seconds: float
    high_seconds: float
    measurements: int

    @staticmethod
    def of(seconds: Sequence[float]) -> Spread | None:
        """Returns that of some measurements; None if there are none."""
        return Spread(min(seconds), max(seconds), len(seconds)) if seconds else None

    def overlaps(self, other: Spread) -> bool:
        """Returns True if the two durations may well be the same."""
        return (
            self.low_seconds <= _RUNS_DIFFER * other.high_seconds
            and other.low_seconds <= _RUNS_DIFFER * self.high_seconds
        )


@dataclass(frozen=True)
class CurvePoint:
    """The score after one epoch, over the seeds that came so far."""

    epoch: int  # counted from 1
    seconds: float  # mean wall clock since the loader began, preparation included
    score: float  # mean; of the test split, or the validation split where there is no other
    deviation: float  # standard deviation of the sample; 0 for one seed


@dataclass(frozen=True)
class LoaderSummary:
    """One loader: what its first seed says about loading, and means over all seeds about training."""

    name: str
    loader: str
    variant: str
    status: str
    message: str
    seeds: int  # that finished
    loading: EpochCost | None
    training: EpochCost | None  # of the first seed; the two means below are over all
    training_seconds: float | None
    training_spread: Spread | None  # of all seeds and repeats
    training_wait_seconds: float | None
    prepare_seconds: float
    open_seconds: float
    total_seconds: float | None  # preparing, opening and training, by the epochs trained
    prepared_bytes: int
    peak_disk_bytes: int
    row_bytes: int
    belady_rows: int | None
    belady_row_bytes: int
    bound: str
    bound_seconds: float
    peak_process_bytes: int
    peak_cgroup_bytes: int | None
    prepare_peak_bytes: int
    capped: bool
    curve: tuple[CurvePoint, ...]
    metric: Metric  # what scores are
    score: float | None  # mean, on the test split, of the epoch that was best on the validation split
    deviation: float  # of that
    other_scores: Mapping[str, float]  # of the same split and epochs: means, by the task's names for them
    trace: tuple[TraceEvent, ...]

    @property
    def ok(self) -> bool:
        """Returns True if any seed finished."""
        return self.status == "ok"

    @property
    def epoch_seconds(self) -> float | None:
        """Returns the seconds of a training epoch, or of loading alone where nothing was trained."""
        return self.training_seconds if self.training_seconds is not None else self.loading_seconds

    @property
    def epoch_spread(self) -> Spread | None:
        """Returns the spread of `epoch_seconds`."""
        return self.training_spread or self.loading_spread

    @property
    def loading_seconds(self) -> float | None:
        """Returns the seconds of an epoch without a model."""
        return self.loading.seconds if self.loading else None

    @property
    def loading_spread(self) -> Spread | None:
        """Returns the spread of `loading_seconds`."""
        return Spread.of(_measured(self.loading)) if self.loading else None

    @property
    def minibatches(self) -> int | None:
        """Returns how many the epoch had that was trained, or loaded where nothing was trained."""
        cost = self.training or self.loading
        return cost.minibatches if cost else None

    @property
    def requested_rows(self) -> int | None:
        """Returns the rows that the same epoch requested."""
        cost = self.training or self.loading
        return cost.requested_rows if cost else None

    @property
    def rows_read(self) -> int | None:
        """Returns the rows from disk in a loader-only epoch, those that fill caches included: what Belady's bound
        bounds."""
        return self.loading.disk_rows + self.loading.filled_rows if self.loading else None

    @property
    def read_bytes(self) -> int | None:
        """Read from the disk in a loader-only epoch; see `disk_bytes`."""
        return disk_bytes(self.loading) if self.loading else None

    @property
    def belady_bytes(self) -> int | None:
        """Returns the fewest that any cache of the same size reads in that epoch, as whole rows."""
        return None if self.belady_rows is None else self.belady_row_bytes


Columns = Mapping[str, Callable[[LoaderSummary], str | None]]  # of a table, by heading: text of a cell


def summarize(results: Iterable[LoaderResult]) -> tuple[LoaderSummary, ...]:
    """Returns one summary per name, in the order in which names first appear."""
    by_name: dict[str, list[LoaderResult]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    return tuple(_summary(runs) for runs in by_name.values())


def _summary(runs: Sequence[LoaderResult]) -> LoaderSummary:
    finished = [run for run in runs if run.status == "ok"]
    first = (finished or runs)[0]
    broken = next((run for run in runs if run.status != "ok"), None)
    message = broken.message if broken else ""
    if finished and broken:
        count = len(runs) - len(finished)
        message = f"{count} of {len(runs)} seeds: {broken.status}" + (f", {message}" if message else "")
    training = [run.training for run in finished if run.training]
    chosen = [point for run in finished if (point := _selected_point(run)) is not None]
    selected = [point.score for point in chosen if point.score is not None]
    totals = [run.epochs[-1].seconds / len(run.epochs) for run in finished if run.epochs]
    cgroups = [run.peak_cgroup_bytes for run in finished if run.peak_cgroup_bytes is not None]
    return LoaderSummary(
        name=first.name,
        loader=first.loader,
        variant=first.variant,
        status=first.status,
        message=message,
        seeds=len(finished),
        loading=next((run.loading for run in runs if run.loading), None),
        training=training[0] if training else None,
        training_seconds=fmean(cost.seconds for cost in training) if training else None,
        training_spread=Spread.of([seconds for cost in training for seconds in _measured(cost)]),
        training_wait_seconds=fmean(cost.wait_seconds for cost in training) if training else None,
        prepare_seconds=fmean(run.prepare_seconds for run in finished or runs),
        open_seconds=fmean(run.open_seconds for run in finished or runs),
        total_seconds=fmean(totals) if totals else None,
        prepared_bytes=max(run.prepared_bytes for run in runs),
        peak_disk_bytes=max(run.peak_disk_bytes for run in runs),
        row_bytes=first.row_bytes,
        belady_rows=first.belady_rows,
        belady_row_bytes=first.belady_row_bytes or (first.belady_rows or 0) * first.row_bytes,
        bound=first.bound,
        bound_seconds=first.bound_seconds,
        peak_process_bytes=max((run.peak_process_bytes for run in finished), default=0),
        peak_cgroup_bytes=max(cgroups, default=None),
        prepare_peak_bytes=max((run.prepare_peak_bytes for run in finished), default=0),
        capped=first.capped,
        curve=_curve(finished),
        metric=first.metric,
        score=fmean(selected) if selected else None,
        deviation=_deviation(selected),
        other_scores=_means([point.other_scores(first.metric) for point in chosen]),
        trace=next((run.trace for run in finished if run.trace), ()),
    )


def _measured(cost: EpochCost) -> Sequence[float]:
    return cost.repeats_seconds or (cost.seconds,)


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _means(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each number that all have."""
    names = [name for name in (scores[0] if scores else ()) if all(name in each for each in scores)]
    return {name: fmean(each[name] for each in scores) for name in names}


def _selected_point(run: LoaderResult) -> EpochPoint | None:
    """Returns what somebody reports who has chosen the epoch by the validation split (without one, it is the last)."""
    scored = [point for point in run.epochs if point.score is not None]
    return max(scored, key=lambda point: (run.metric.rank(point.valid_score or 0.0), point.epoch), default=None)


def _curve(runs: Sequence[LoaderResult]) -> tuple[CurvePoint, ...]:
    """Returns the mean score after each epoch that every run has a score of, so that no seed drops out along a
    curve."""
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for point in run.epochs:
            if point.score is not None:
                by_epoch.setdefault(point.epoch, []).append((point.seconds, point.score))
    return tuple(
        CurvePoint(epoch + 1, fmean(seconds), fmean(scores), _deviation(scores))
        for epoch, found in sorted(by_epoch.items())
        if len(found) == len(runs)
        for seconds, scores in [tuple(zip(*found, strict=True))]
    )


def score_text(summary: LoaderSummary, between: str) -> str | None:
    """Says '77.62% ± 0.13%': mean and deviation of the test score, with the sign `between` them."""
    if summary.score is None:
        return None
    text = summary.metric.text
    return text(summary.score) + (f" {between} {text(summary.deviation)}" if summary.seeds > 1 else "")


def other_score_columns(summaries: Sequence[LoaderSummary]) -> Columns:
    """Returns the scores beside the metric, of the same epochs; none where no loader has any."""
    names = dict.fromkeys(name for one in summaries for name in one.other_scores)
    return {name: partial(_other_score, name=name) for name in names}


def _other_score(one: LoaderSummary, name: str) -> str | None:
    return Metric(name).text(one.other_scores[name]) if name in one.other_scores else None
