"""Bars of a comparison's report: seconds, bytes and scores, of loaders that do the same work first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diskgnn.compare.comparability import OTHER_WORK, ordered, reached, reference
from diskgnn.compare.headline import least_words
from diskgnn.compare.loader_summary import LoaderSummary, Spread, score_text
from diskgnn.compare.metric import Metric
from diskgnn.compare.number_format import duration
from diskgnn.compare.report.bar_chart import Row, bar_chart
from diskgnn.compare.report.figures import Figure, plain
from diskgnn.units import format_size


def epoch_times(summaries: Sequence[LoaderSummary]) -> Figure | None:
    """Draws bars of a training epoch, alone and with what was prepared for it; fastest first."""

    def row(one: LoaderSummary) -> Row | None:
        if not one.ok or not one.training_seconds:
            return None
        bars = _timed(one.training_seconds), _timed(one.total_seconds)
        return Row(one.name, one.loader, bars, None, one.training_spread, _epoch_hover(one))

    memory = reference(summaries)
    line = (memory.training_seconds, "in-memory") if memory and memory.training_seconds else None
    return bar_chart(
        "epoch-times",
        "Time of a training epoch",
        _rows(summaries, lambda one: one.training_seconds, row),
        "seconds",
        "In all: with its share of preparing and opening, done once for all the epochs trained here. A line at the end "
        "of a bar goes from the fastest to the slowest of several measurements.",
        (("bar", "training"), ("bar pale", "in all")),
        line,
    )


def loading_times(summaries: Sequence[LoaderSummary]) -> Figure | None:
    """Draws bars of loading alone, each with the least that it can take; fastest first."""

    def row(one: LoaderSummary) -> Row | None:
        if not one.ok or not one.loading_seconds:
            return None
        bars = (_timed(one.loading_seconds),)
        return Row(one.name, one.loader, bars, one.bound_seconds or None, None, _loading_hover(one))

    return bar_chart(
        "loading-times",
        "Loading alone",
        _rows(summaries, lambda one: one.loading_seconds, row),
        "seconds",
        "An epoch of minibatches without a model. The tick is the least that it could take: what the same reads (or, "
        "in memory, copies) take at the full speed of this disk (or memory), measured in the same run.",
        (("bar", "loading"), ("tick", "least possible")),
    )


def _timed(seconds: float | None) -> tuple[float | None, str]:
    return seconds, duration(seconds) if seconds else ""


def _epoch_hover(one: LoaderSummary) -> str:
    told = [f"training {duration(one.training_seconds or 0)}{_spread_words(one.training_spread)}"]
    if one.training_wait_seconds is not None:
        told.append(f"of it waiting for minibatches {duration(one.training_wait_seconds)}")
    if one.total_seconds:
        told.append(f"in all {duration(one.total_seconds)}")
    return "<br>".join(told)


def _loading_hover(one: LoaderSummary) -> str:
    told = f"loading {duration(one.loading_seconds or 0)}{_spread_words(one.loading_spread)}"
    if one.bound_seconds:
        told += f"<br>least possible {duration(one.bound_seconds)}:<br>{plain(least_words(one.bound))}"
    return told


def _spread_words(spread: Spread | None) -> str:
    if spread is None or spread.measurements < 2:
        return ""
    return f" ({duration(spread.low_seconds)} to {duration(spread.high_seconds)} in {spread.measurements} measurements)"


def read_bytes(summaries: Sequence[LoaderSummary]) -> Figure | None:
    """Draws bars of bytes read in an epoch, with the fewest that any cache of the size could read."""

    def row(one: LoaderSummary) -> Row | None:
        if not one.ok or not one.read_bytes:
            return None
        fewest = one.belady_bytes or None
        hover = format_size(one.read_bytes)
        if fewest:
            hover += f", {one.read_bytes / fewest:.2f}× of the fewest possible, {format_size(fewest)}"
        return Row(one.name, one.loader, ((one.read_bytes, hover.split(",")[0]),), fewest, None, hover)

    return bar_chart(
        "read-bytes",
        "Bytes read in an epoch",
        _rows(summaries, lambda one: one.read_bytes, row),
        "bytes",
        "From the disk: the loader's count, or the kernel's where that is more. The tick is the fewest that any cache "
        "of the same size reads in whole rows for the same minibatches if it knows all that comes (Belady), empty at "
        "the start.",
        (("bar", "read"), ("tick", "fewest possible")),
    )


def scores(summaries: Sequence[LoaderSummary], metric: Metric) -> Figure | None:
    """Draws bars of the scores, for a comparison of one epoch, which makes no curve; best first."""

    def row(one: LoaderSummary) -> Row | None:
        if not one.score:
            return None
        return Row(one.name, one.loader, ((metric.on_axis(one.score), score_text(one, "±") or ""),))

    caption = "After one epoch, on the test split, or on the validation split where there is no other."
    if max((one.seeds for one in summaries if one.score), default=1) > 1:
        caption += " Means over seeds ± one standard deviation."
    rows = _rows(summaries, lambda one: -metric.rank(one.score or 0.0), row)
    return bar_chart("score", metric.title, rows, metric.axis, caption)


def seconds_to_score(summaries: Sequence[LoaderSummary], metric: Metric) -> Figure | None:
    """Draws bars of the seconds, preparation included, until a loader is as good as the best baseline."""
    found = reached(summaries)
    if found is None:
        return None
    target, seconds_of = found
    caption = (
        f"To {metric.text(target)} on the test split: the best of the other loaders, each after the epoch that was "
        "best on the validation split (mean over seeds, worse by one standard deviation). Preparation counts, "
        "evaluation does not."
    )
    missed = [name for name, seconds in seconds_of.items() if not seconds]
    if missed:
        caption += f" Not reached by {'; '.join(missed)}."

    def row(one: LoaderSummary) -> Row | None:
        seconds = seconds_of.get(one.name)
        return Row(one.name, one.loader, (_timed(seconds),)) if seconds else None

    rows = _rows(summaries, lambda one: seconds_of.get(one.name), row)
    return bar_chart("seconds-to-score", f"Seconds to the best {metric.words} of the others", rows, "seconds", caption)


def preparation(summaries: Sequence[LoaderSummary]) -> list[Figure]:
    """Draws bars of the seconds before the first epoch, and of disk space beyond the graph."""

    def before(one: LoaderSummary) -> Row | None:
        total = one.prepare_seconds + one.open_seconds
        if not one.ok or not total:
            return None
        return Row(one.name, one.loader, (_timed(total),), hover=_preparing_hover(one))

    def space(one: LoaderSummary) -> Row | None:
        if not one.ok or not one.peak_disk_bytes:
            return None
        return Row(one.name, one.loader, ((one.peak_disk_bytes, format_size(one.peak_disk_bytes)),))

    seconds_rows = _rows(summaries, lambda one: one.prepare_seconds + one.open_seconds, before)
    space_rows = _rows(summaries, lambda one: one.peak_disk_bytes, space)
    figures = (
        bar_chart(
            "prepare-seconds", "Before the first epoch", seconds_rows, "seconds",
            "Preparing, once for all epochs, and opening: what in-memory loads, it loads here.",
        ),
        bar_chart(
            "prepared-bytes", "Disk space", space_rows, "bytes",
            "The most beyond the graph itself at any time, while preparing or training. Loaders that are not listed "
            "need none.",
        ),
    )  # fmt: skip
    return [figure for figure in figures if figure]


def _rows(
    summaries: Sequence[LoaderSummary],
    value: Callable[[LoaderSummary], float | None],
    row: Callable[[LoaderSummary], Row | None],
) -> list[Row]:
    """Returns, by increasing `value`, loaders that do the same work as ours; below a heading, the others."""
    groups = ordered(summaries, by=lambda one: value(one) or 0.0)
    same, others = ([made for one in group if (made := row(one))] for group in groups)
    return [*same, Row(OTHER_WORK), *others] if same and others else same + others


def _preparing_hover(one: LoaderSummary) -> str:
    return f"preparing {duration(one.prepare_seconds)}, opening {duration(one.open_seconds)}"
