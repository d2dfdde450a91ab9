"""The columns of a comparison in a terminal of 80 characters: a text per loader, None where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence

from diskgnn.compare.comparability import OTHER_WORK, ordered
from diskgnn.compare.loader_summary import Columns, LoaderSummary, score_text
from diskgnn.compare.metric import ACCURACY, Metric
from diskgnn.compare.number_format import duration, times
from diskgnn.units import format_size


def speed_columns(metric: Metric = ACCURACY) -> Columns:
    """Returns how fast, and how good the model is; what was measured also of a loader that failed later on."""
    return {
        "epoch": lambda one: _seconds(one.training_seconds),
        "spread": _spread,
        "in all": lambda one: _seconds(one.total_seconds),
        "loading": lambda one: _seconds(one.loading_seconds),
        metric.name: lambda one: score_text(one, "±") if one.ok else one.status,
    }


def cost_columns() -> Columns:
    """Returns what is prepared, read and held."""
    return {
        "prepare": lambda one: _seconds(one.prepare_seconds or None),
        "rows": lambda one: None if one.rows_read is None else _count(one.rows_read),
        "by fewest": _of_the_fewest,
        "disk": lambda one: _size(one.peak_disk_bytes),
        "memory": lambda one: _size(one.peak_cgroup_bytes or one.peak_process_bytes),
    }


def rows(columns: Columns, summaries: Sequence[LoaderSummary]) -> list[tuple[str, ...]]:
    """Returns a row of names and cells per loader; below a heading, those that do other work than ours."""
    same, others = (
        [(one.name, *(text_of(one) or "" for text_of in columns.values())) for one in group]
        for group in ordered(summaries)
    )
    return [*same, (OTHER_WORK, *[""] * len(columns)), *others] if others else same


def _spread(one: LoaderSummary) -> str | None:
    spread = one.training_spread
    if spread is None or spread.measurements < 2 or not spread.low_seconds:
        return None
    return times(spread.high_seconds / spread.low_seconds)


def _of_the_fewest(one: LoaderSummary) -> str | None:
    return f"{one.rows_read / one.belady_rows:.2f}" if one.rows_read is not None and one.belady_rows else None


def _count(rows: int) -> str:
    return f"{rows:,}" if rows < 1_000_000 else f"{rows / 1e6:.2f} M"


def _seconds(value: float | None) -> str | None:
    return None if value is None else duration(value)


def _size(value: int) -> str | None:
    return format_size(value) if value else None
