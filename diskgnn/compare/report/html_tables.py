"""The tables of a comparison's report, as HTML: one line per loader, a dash where nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from diskgnn.compare.comparability import OTHER_WORK, OURS, ordered, reached, reference
from diskgnn.compare.loader_summary import LoaderSummary, Spread, other_score_columns, score_text
from diskgnn.compare.metric import Metric
from diskgnn.compare.number_format import duration, times
from diskgnn.compare.results import EpochCost
from diskgnn.units import format_size, format_value, label

_NOTHING = "–"
Column = tuple[str, Callable[[LoaderSummary], str | None]]  # heading, text of a cell


def time_table(summaries: Sequence[LoaderSummary]) -> str:
    """Seconds of training, waiting, loading, preparing and opening; what is asked for first comes first."""
    memory = reference(summaries)
    base = memory.training_seconds if memory else None
    return _table(
        summaries,
        [
            ("epoch in all", lambda one: _seconds(one.total_seconds)),
            ("training epoch", lambda one: _seconds(one.training_seconds)),
            ("fastest to slowest", lambda one: _range(one.epoch_spread)),
            ("of in-memory", lambda one: _ratio(one.training_seconds, base)),
            ("waiting for minibatches", lambda one: _seconds(one.training_wait_seconds)),
            ("preparing", lambda one: _seconds(one.prepare_seconds or None)),
            ("opening", lambda one: _seconds(one.open_seconds)),
            ("loading alone", lambda one: _seconds(one.loading_seconds)),
            ("least possible", lambda one: _seconds(one.bound_seconds or None)),
            ("limited by", lambda one: one.bound or None),
            ("of the least", lambda one: _ratio(one.loading_seconds, one.bound_seconds)),
            ("minibatches", lambda one: _count(one.minibatches)),
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
            ("rows needed", of_epoch(lambda cost: _count(cost.requested_rows))),
            ("rows read", lambda one: _count(one.rows_read)),
            ("of the fewest possible", lambda one: _ratio(one.rows_read, one.belady_rows)),
            ("bytes read, by the loader", of_epoch(lambda cost: _size(cost.read_bytes))),
            ("bytes read, by the kernel", of_epoch(lambda cost: _size(cost.device_read_bytes))),
            ("requests", of_epoch(lambda cost: _count(cost.read_requests))),
            ("bytes read per byte of rows", lambda one: _ratio(one.read_bytes, (one.rows_read or 0) * one.row_bytes)),
            ("from GPU memory", share(lambda cost: cost.device_rows)),
            ("from page-locked memory", share(lambda cost: cost.pinned_rows)),
            ("from the cache", share(lambda cost: cost.cpu_rows)),
            ("from disk", share(lambda cost: cost.disk_rows)),
        ],
    )


def cost_table(summaries: Sequence[LoaderSummary]) -> str:
    """Disk space and memory."""
    return _table(
        summaries,
        [
            ("disk space", lambda one: _size(one.prepared_bytes)),
            ("most disk space at a time", lambda one: _size(one.peak_disk_bytes)),
            ("memory with page cache", lambda one: _size(one.peak_cgroup_bytes)),
            ("memory of the process", lambda one: _size(one.peak_process_bytes or None)),
            ("memory while preparing", lambda one: _size(one.prepare_peak_bytes or None)),
        ],
    )


def score_table(summaries: Sequence[LoaderSummary], metric: Metric) -> str:
    """Scores, and how long the best one of the others took to reach."""
    found = reached(summaries)
    seconds_of = found[1] if found else {}
    return _table(
        summaries,
        [
            (metric.words, lambda one: score_text(one, "±")),
            *((Metric(name).words, text_of) for name, text_of in other_score_columns(summaries).items()),
            ("seeds", lambda one: _count(one.seeds) if one.score is not None else None),
            ("to the best of the others", lambda one: _seconds(seconds_of.get(one.name) or None)),
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
        words = prefix + label(str(name)).replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{words}: ")
        elif value is not None and value != "":
            yield words, format_value(str(name), value)


def _table(summaries: Sequence[LoaderSummary], columns: Sequence[Column], broken: bool = False) -> str:
    """HTML of the columns that have something to tell; empty where there is nothing."""
    same, others = ordered(one for one in summaries if broken or one.ok)
    shown = same + others
    cells = {heading: [text_of(one) for one in shown] for heading, text_of in columns}
    kept = [heading for heading, texts in cells.items() if any(text is not None for text in texts)]
    if not shown or not kept:
        return ""
    kind = ' class="words"' if broken else ""
    head = '<th scope="col">loader</th>' + "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name in kept)
    lines = []
    for index, one in enumerate(shown):
        if same and index == len(same):
            lines.append(f'<tr><th scope="rowgroup" colspan="{len(kept) + 1}">{escape(OTHER_WORK)}</th></tr>')
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


def _range(spread: Spread | None) -> str | None:
    """'29.1 ms to 35.0 ms' of several measurements."""
    if spread is None or spread.measurements < 2:
        return None
    return f"{duration(spread.low_seconds)} to {duration(spread.high_seconds)}"
