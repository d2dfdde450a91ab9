"""The tables of a comparison's report, as HTML: one line per loader, a dash where nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from diskgnn.compare.results import EpochCost
from diskgnn.compare.summary import (
    OURS,
    LoaderSummary,
    accuracy_text,
    duration,
    reference,
    seconds_to,
    target_accuracy,
    times,
)
from diskgnn.units import format_size, format_value

_NOTHING = "–"
Column = tuple[str, Callable[[LoaderSummary], str | None]]  # heading, text of a cell


def time_table(summaries: Sequence[LoaderSummary]) -> str:
    """Seconds of preparing, opening, loading, training and waiting."""
    memory = reference(summaries)
    base = memory.training_seconds if memory else None
    return _table(
        summaries,
        [
            ("minibatches", lambda one: _count(one.minibatches)),
            ("prepare", lambda one: _seconds(one.prepare_seconds or None)),
            ("open", lambda one: _seconds(one.open_seconds)),
            ("loader alone", lambda one: _seconds(one.loading_seconds)),
            ("own bound", lambda one: _seconds(one.bound_seconds or None)),
            ("limited by", lambda one: one.bound or None),
            ("of its bound", lambda one: _ratio(one.loading_seconds, one.bound_seconds)),
            ("training epoch", lambda one: _seconds(one.training_seconds)),
            ("of it waiting", lambda one: _seconds(one.training_wait_seconds)),
            ("of in-memory", lambda one: _ratio(one.training_seconds, base)),
            ("epoch in all", lambda one: _seconds(one.total_seconds)),
        ],
    )


def reading_table(summaries: Sequence[LoaderSummary]) -> str:
    """Rows and bytes of a loader-only epoch, by tier."""

    def of_epoch(text_of: Callable[[EpochCost], str | None]) -> Callable[[LoaderSummary], str | None]:
        return lambda one: text_of(one.loading) if one.loading else None

    def share(rows: Callable[[EpochCost], int]) -> Callable[[LoaderSummary], str | None]:
        return of_epoch(lambda cost: f"{rows(cost) / max(cost.requested_rows, 1):.1%}" if rows(cost) else None)

    return _table(
        summaries,
        [
            ("rows requested", of_epoch(lambda cost: _count(cost.requested_rows))),
            ("rows read", lambda one: _count(one.rows_read)),
            ("of Belady's bound", lambda one: _ratio(one.rows_read, one.belady_rows)),
            ("bytes, loader's count", of_epoch(lambda cost: _size(cost.read_bytes))),
            ("bytes, kernel's count", of_epoch(lambda cost: _size(cost.device_read_bytes))),
            ("requests", of_epoch(lambda cost: _count(cost.read_requests))),
            ("read amplification", lambda one: _ratio(one.read_bytes, (one.rows_read or 0) * one.row_bytes)),
            ("device tier", share(lambda cost: cost.device_rows)),
            ("pinned tier", share(lambda cost: cost.pinned_rows)),
            ("cpu tier", share(lambda cost: cost.cpu_rows)),
            ("disk", share(lambda cost: cost.disk_rows)),
        ],
    )


def cost_table(summaries: Sequence[LoaderSummary]) -> str:
    """Disk space, memory and accuracy."""
    target = target_accuracy(summaries)
    return _table(
        summaries,
        [
            ("disk space", lambda one: _size(one.prepared_bytes)),
            ("most disk space at a time", lambda one: _size(one.peak_disk_bytes)),
            ("peak memory, process", lambda one: _size(one.peak_process_bytes or None)),
            ("peak memory, cgroup", lambda one: _size(one.peak_cgroup_bytes)),
            ("peak while preparing", lambda one: _size(one.prepare_peak_bytes or None)),
            ("seeds", lambda one: _count(one.seeds)),
            ("accuracy", lambda one: accuracy_text(one, "±")),
            ("to the best baseline's", lambda one: _reached(one, target)),
        ],
    )


def missing_table(summaries: Sequence[LoaderSummary]) -> str:
    """Loaders, or seeds of them, without a result, and why; empty where there are none."""
    return _table(
        [one for one in summaries if one.message or not one.ok],
        [
            ("state", lambda one: one.status if not one.ok else "ok in part"),
            ("reason", lambda one: one.message or None),
        ],
        broken=True,
    )


def facts(title: str, values: Mapping[str, Any]) -> str:
    """A list of names and values; units are read from the names, nested values come one by one."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _flat(values))
    return f"<section class='facts'><h3>{escape(title)}</h3><dl>{rows}</dl></section>" if rows else ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        words = prefix + str(name).replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{words}: ")
        elif value is not None and value != "":
            yield words, format_value(str(name), value)


def _table(summaries: Sequence[LoaderSummary], columns: Sequence[Column], broken: bool = False) -> str:
    """HTML of the columns that have something to tell; empty where there is nothing."""
    shown = [one for one in summaries if broken or one.ok]
    cells = {heading: [text_of(one) for one in shown] for heading, text_of in columns}
    kept = [heading for heading, texts in cells.items() if any(text is not None for text in texts)]
    if not shown or not kept:
        return ""
    kind = ' class="words"' if broken else ""
    head = '<th scope="col">loader</th>' + "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name in kept)
    lines = []
    for index, one in enumerate(shown):
        texts = "".join(f"<td{kind}>{escape(cells[heading][index] or _NOTHING)}</td>" for heading in kept)
        ours = ' class="ours"' if one.loader == OURS else ""
        lines.append(f'<tr{ours}><th scope="row">{escape(one.name)}</th>{texts}</tr>')
    body = "\n".join(lines)
    return (
        f'<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )


def _seconds(value: float | None) -> str | None:
    return None if value is None else duration(value)


def _size(value: int | None) -> str | None:
    return None if value is None else format_size(value)


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _ratio(value: float | None, base: float | None) -> str | None:
    return times(value / base) if value is not None and base else None


def _reached(one: LoaderSummary, target: float | None) -> str | None:
    if target is None or not one.curve:
        return None
    seconds = seconds_to(target, one.curve)
    return "not reached" if seconds is None else duration(seconds)
