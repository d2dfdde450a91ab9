"""Each loader of a comparison over its seeds, and which of them are compared with which."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from diskgnn.compare.results import EpochCost, LoaderResult, disk_bytes
from diskgnn.tracing import TRAIN_TRACK, TraceEvent

_NO_BREAK = "\N{NO-BREAK SPACE}"
_ALIKE = 1.1  # loaders whose rows or minibatches differ by a larger factor do not do the same work
OURS, REFERENCE = "diskgnn", "in-memory"  # keys of loaders


@dataclass(frozen=True)
class CurvePoint:
    """Accuracy after one epoch, over the seeds that came so far."""

    epoch: int  # counted from 1
    seconds: float  # mean wall clock since the loader began, preparation included
    accuracy: float  # mean, in [0, 1]; of the test split, or the validation split where there is no other
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
    training_wait_seconds: float | None
    prepare_seconds: float
    open_seconds: float
    total_seconds: float | None  # preparing, opening and training, by the epochs trained
    prepared_bytes: int
    peak_disk_bytes: int
    row_bytes: int
    belady_rows: int | None
    bound: str
    bound_seconds: float
    peak_process_bytes: int
    peak_cgroup_bytes: int | None
    prepare_peak_bytes: int
    capped: bool
    curve: tuple[CurvePoint, ...]
    accuracy: float | None  # mean, on the test split, of the epoch that was best on the validation split
    deviation: float  # of that
    trace: tuple[TraceEvent, ...]

    @property
    def ok(self) -> bool:
        """Whether any seed finished."""
        return self.status == "ok"

    @property
    def epoch_seconds(self) -> float | None:
        """Of a training epoch, or of loading alone where nothing was trained."""
        return self.training_seconds if self.training_seconds is not None else self.loading_seconds

    @property
    def loading_seconds(self) -> float | None:
        """Of an epoch with an idle consumer."""
        return self.loading.seconds if self.loading else None

    @property
    def minibatches(self) -> int | None:
        """Of the epoch that was trained, or loaded where nothing was trained."""
        cost = self.training or self.loading
        return cost.minibatches if cost else None

    @property
    def requested_rows(self) -> int | None:
        """Of the same epoch."""
        cost = self.training or self.loading
        return cost.requested_rows if cost else None

    @property
    def rows_read(self) -> int | None:
        """From the disk in a loader-only epoch, those that fill caches included: what Belady's bound bounds."""
        return self.loading.disk_rows + self.loading.filled_rows if self.loading else None

    @property
    def read_bytes(self) -> int | None:
        """Read from the disk in a loader-only epoch; see `disk_bytes`."""
        return disk_bytes(self.loading) if self.loading else None

    @property
    def belady_bytes(self) -> int | None:
        """The fewest that any cache of the same size reads in that epoch, as whole rows."""
        return None if self.belady_rows is None else self.belady_rows * self.row_bytes


def summarize(results: Iterable[LoaderResult]) -> tuple[LoaderSummary, ...]:
    """One summary per name, in the order in which names first appear."""
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
    selected = [accuracy for run in finished if (accuracy := _selected_accuracy(run)) is not None]
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
        training_wait_seconds=fmean(cost.wait_seconds for cost in training) if training else None,
        prepare_seconds=fmean(run.prepare_seconds for run in finished or runs),
        open_seconds=fmean(run.open_seconds for run in finished or runs),
        total_seconds=fmean(totals) if totals else None,
        prepared_bytes=max(run.prepared_bytes for run in runs),
        peak_disk_bytes=max(run.peak_disk_bytes for run in runs),
        row_bytes=first.row_bytes,
        belady_rows=first.belady_rows,
        bound=first.bound,
        bound_seconds=first.bound_seconds,
        peak_process_bytes=max((run.peak_process_bytes for run in finished), default=0),
        peak_cgroup_bytes=max(cgroups, default=None),
        prepare_peak_bytes=max((run.prepare_peak_bytes for run in finished), default=0),
        capped=first.capped,
        curve=_curve(finished),
        accuracy=fmean(selected) if selected else None,
        deviation=_deviation(selected),
        trace=next((run.trace for run in finished if run.trace), ()),
    )


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _selected_accuracy(run: LoaderResult) -> float | None:
    """What somebody reports who has chosen the epoch by the validation split (without one, it is the last)."""
    scored = [point for point in run.epochs if point.test_accuracy is not None or point.valid_accuracy is not None]
    if not scored:
        return None
    best = max(scored, key=lambda point: (point.valid_accuracy or 0.0, point.epoch))
    return best.valid_accuracy if best.test_accuracy is None else best.test_accuracy


def _curve(runs: Sequence[LoaderResult]) -> tuple[CurvePoint, ...]:
    """Mean accuracy after each epoch that every run has an accuracy of, so that no seed drops out along a curve."""
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for point in run.epochs:
            accuracy = point.valid_accuracy if point.test_accuracy is None else point.test_accuracy
            if accuracy is not None:
                by_epoch.setdefault(point.epoch, []).append((point.seconds, accuracy))
    return tuple(
        CurvePoint(epoch + 1, fmean(seconds), fmean(accuracies), _deviation(accuracies))
        for epoch, found in sorted(by_epoch.items())
        if len(found) == len(runs)
        for seconds, accuracies in [tuple(zip(*found, strict=True))]
    )


def accuracy_text(summary: LoaderSummary, between: str) -> str | None:
    """'77.62% ± 0.13%': mean and deviation of the test accuracy, with the sign `between` them."""
    if summary.accuracy is None:
        return None
    return f"{summary.accuracy:.2%}" + (f" {between} {summary.deviation:.2%}" if summary.seeds > 1 else "")


def target_accuracy(summaries: Iterable[LoaderSummary]) -> float | None:
    """The best baseline's accuracy, less one standard deviation of its seeds.

    The best of many is so by luck, too; without the deviation its equals would seldom be told to reach it. Baselines
    of another number of minibatches than ours do not count: they take other numbers of steps in an epoch.
    """
    found = list(summaries)
    mine = ours(found)
    baselines = [one for one in found if one.loader != OURS and one.accuracy is not None and same_steps(one, mine)]
    best = max(baselines, key=lambda one: one.accuracy or 0.0, default=None)
    return (best.accuracy or 0.0) - best.deviation if best else None


def seconds_to(accuracy: float, curve: Iterable[CurvePoint]) -> float | None:
    """When `curve` first reached `accuracy`; None if it never did."""
    return next((point.seconds for point in curve if point.accuracy >= accuracy), None)


def fastest(summaries: Iterable[LoaderSummary]) -> LoaderSummary | None:
    """The finished loader whose epoch is shortest; trained ones go before those that only loaded."""
    timed = [one for one in summaries if one.ok and one.epoch_seconds]
    return min(timed, key=lambda one: (one.training_seconds is None, one.epoch_seconds), default=None)


def ours(summaries: Iterable[LoaderSummary]) -> LoaderSummary | None:
    """Our fastest variant."""
    return fastest(one for one in summaries if one.loader == OURS)


def reference(summaries: Iterable[LoaderSummary]) -> LoaderSummary | None:
    """Training with all features in memory."""
    return fastest(one for one in summaries if one.loader == REFERENCE)


def best_disk_baseline(summaries: Iterable[LoaderSummary]) -> LoaderSummary | None:
    """The fastest loader that does the same work as ours, is not ours, and is not limited by memory alone."""
    found = list(summaries)
    mine = ours(found)
    return fastest(
        one for one in found
        if one.loader not in (OURS, REFERENCE) and one.bound != "memory" and same_steps(one, mine)
        and same_rows(one, mine)
    )  # fmt: skip


def same_steps(one: LoaderSummary, other: LoaderSummary | None) -> bool:
    """Whether their epochs have as many minibatches, as far as is known."""
    return other is None or _alike(one.minibatches, other.minibatches)


def same_rows(one: LoaderSummary, other: LoaderSummary | None) -> bool:
    """Whether their epochs ask for as many rows, as far as is known: a partition buffer's minibatches have fewer."""
    return other is None or _alike(one.requested_rows, other.requested_rows)


def _alike(one: int | None, other: int | None) -> bool:
    return not one or not other or max(one, other) <= _ALIKE * min(one, other)


def duration(seconds: float) -> str:
    """To three digits: 0.0523 -> '52.3 ms', 31.21 -> '31.2 s', 754 -> '12.6 min', 9000 -> '2.50 h'."""
    if seconds == 0:
        return f"0{_NO_BREAK}s"
    for unit, factor, limit in (("ms", 1e-3, 0.1), ("s", 1.0, 600.0), ("min", 60.0, 7200.0)):
        if seconds < limit:
            return f"{_three_digits(seconds / factor)}{_NO_BREAK}{unit}"
    return f"{_three_digits(seconds / 3600)}{_NO_BREAK}h"


def _three_digits(number: float) -> str:
    if number == 0 or number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.{min(9, 2 - math.floor(math.log10(number)))}f}"


def times(ratio: float) -> str:
    """12.41 -> '12.4×'."""
    return f"{_three_digits(ratio)}×"


def is_wait(stage: str) -> bool:
    """Whether a stage of a trace only waits for another."""
    return stage.startswith("wait")


def busiest_stage(trace: Sequence[TraceEvent]) -> tuple[str, str, float] | None:
    """(track, stage, share of the traced time) of the loader's stage that took longest, waiting left out.

    Reads that are in flight at the same time count once.
    """
    nanoseconds: dict[tuple[str, str], int] = {}
    until_ns: dict[tuple[str, str], int] = {}
    for event in sorted(trace, key=lambda event: event.start_ns):
        if event.track != TRAIN_TRACK and not is_wait(event.stage):
            key = (event.track, event.stage)
            start_ns = max(event.start_ns, until_ns.get(key, 0))
            nanoseconds[key] = nanoseconds.get(key, 0) + max(0, event.end_ns - start_ns)
            until_ns[key] = max(event.end_ns, start_ns)
    if not nanoseconds:
        return None
    span = max(event.end_ns for event in trace) - min(event.start_ns for event in trace)
    (track, stage), longest = max(nanoseconds.items(), key=lambda item: item[1])
    return track, stage, longest / max(span, 1)
