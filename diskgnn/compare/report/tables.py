"""The tables of a comparison's report: one line per loader, a dash where nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diskgnn.compare.comparability import OTHER_WORK, OURS, ordered, reached, reference
from diskgnn.compare.comparison_record import EpochCost
from diskgnn.compare.loader_summary import LoaderSummary, Spread, other_score_columns, score_text
from diskgnn.compare.metric import Metric
from diskgnn.compare.number_format import duration, times
from diskgnn.units import format_size, format_value, label

_NOTHING = "–"
Column = tuple[str, Callable[[LoaderSummary], str | None]]  # heading, text of a cell


@dataclass(frozen=True)
class TableRow:
    """The line of one loader."""

    name: str
    texts: list[str]
    is_ours: bool
    begins: str = ""  # heading of the lines from here on


@dataclass(frozen=True)
class Table:
    """A line for each loader, a column for each of `headings`."""

    headings: list[str]
    rows: list[TableRow]
    of_words: bool = False  # not of numbers


def time_table(summaries: Sequence[LoaderSummary]) -> Table | None:
    """Returns the seconds of training, waiting, loading, preparing and opening; what is asked for first comes first."""
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


def reading_table(summaries: Sequence[LoaderSummary]) -> Table | None:
    """Returns the rows and bytes of a loader-only epoch, by tier."""

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


def cost_table(summaries: Sequence[LoaderSummary]) -> Table | None:
    """Tells disk space and memory."""
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


def score_table(summaries: Sequence[LoaderSummary], metric: Metric) -> Table | None:
    """Tells scores, and how long the best one of the others took to reach."""
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


def missing_table(summaries: Sequence[LoaderSummary]) -> Table | None:
    """Tells loaders, or seeds of them, without a result, and why."""
    return _table(
        [one for one in summaries if one.message or not one.ok],
        [
            ("state", lambda one: one.status if not one.ok else "ok in part"),
            ("reason", lambda one: one.message or None),
        ],
        broken=True,
    )


def facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns names and values as text; units are read from the names, nested values come one by one."""
    return list(_flat(values))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        words = prefix + label(str(name)).replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{words}: ")
        elif value is not None and value != "":
            yield words, format_value(str(name), value)


def _table(summaries: Sequence[LoaderSummary], columns: Sequence[Column], broken: bool = False) -> Table | None:
    """Returns the columns that have something to tell."""
    same, others = ordered(one for one in summaries if broken or one.ok)
    shown = same + others
    cells = {heading: [text_of(one) for one in shown] for heading, text_of in columns}
    kept = [heading for heading, texts in cells.items() if any(text is not None for text in texts)]
    if not shown or not kept:
        return None
    rows = [
        TableRow(
            one.name, [cells[heading][index] or _NOTHING for heading in kept], one.loader == OURS,
            OTHER_WORK if same and index == len(same) else "",
        )
        for index, one in enumerate(shown)
    ]  # fmt: skip
    return Table(kept, rows, broken)


def _seconds(value: float | None) -> str | None:
    return None if value is None else duration(value)


def _size(value: int | None) -> str | None:
    return None if value is None else format_size(value)


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _ratio(value: float | None, base: float | None) -> str | None:
    return times(value / base) if value is not None and base else None


def _range(spread: Spread | None) -> str | None:
    """Says '29.1 ms to 35.0 ms' of several measurements."""
    if spread is None or spread.measurements < 2:
        return None
    return f"{duration(spread.low_seconds)} to {duration(spread.high_seconds)}"
