"""Bars of a comparison's report: seconds and bytes, a row per loader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from diskgnn.compare.report.figures import INK, LOG_ABOVE, Figure, color_of, layout, plain
from diskgnn.compare.summary import OURS, LoaderSummary, accuracy_text, duration, reference, seconds_to, target_accuracy
from diskgnn.units import format_size

# The vertical axis counts pixels down from the top. Names stand beside their bars, or above them on a narrow page and
# where they are too long; values stand in a column of their own, where neither bars nor ticks come.
_NAME_PIXELS = 20  # above bars, or where there are none
_GAP_PIXELS = (6, 9)  # after bars: with names beside, above
_BAR_PIXELS = (13, 12)  # the main bar, the one below
_LETTER_PIXELS = 7.2
_MOST_NAME_PIXELS = 320
_PERCENT = "accuracy, %"
_MARGIN = {"t": 18, "b": 44}


@dataclass(frozen=True)
class Row:
    """One loader's bars."""

    name: str
    loader: str
    bars: tuple[tuple[float | None, str], ...]  # (value, its text), the main one first
    mark: float | None = None  # a tick across the bars
    hover: str = ""
    note: str = ""  # why there are no bars


def epoch_times(summaries: Sequence[LoaderSummary]) -> Figure | None:
    """Bars of training and of loading alone per loader, each with its own bound; fastest first."""
    timed = [one for one in summaries if one.ok and one.epoch_seconds]
    if not timed:
        return None
    memory = reference(summaries)
    rows = []
    for one in sorted(timed, key=lambda one: one.epoch_seconds or 0.0):
        bars = tuple((seconds, duration(seconds) if seconds else "") for seconds in _both_seconds(one))
        hover = f"loader alone {duration(one.loading_seconds)}" if one.loading_seconds else ""
        if one.training_seconds:
            hover = f"training {duration(one.training_seconds)}, {hover}"
        if one.bound_seconds:
            hover += f"<br>own bound {duration(one.bound_seconds)}: {plain(one.bound)}"
        rows.append(Row(one.name, one.loader, bars, one.bound_seconds or None, hover))
    rows += [Row(one.name, one.loader, (), note=one.status) for one in summaries if not one.ok]
    line = (memory.epoch_seconds, "in-memory") if memory and memory.epoch_seconds else None
    return _figure(
        "epoch-times",
        "Time of an epoch",
        rows,
        "seconds",
        "A loader alone feeds a consumer that does nothing. Its own bound is the time that its bytes or requests take "
        "at the limits of disk and memory measured in the same run.",
        (("bar", "training"), ("bar pale", "loader alone"), ("tick", "own bound")),
        line,
    )


def _both_seconds(one: LoaderSummary) -> tuple[float | None, float | None]:
    return one.training_seconds, one.loading_seconds


def read_bytes(summaries: Sequence[LoaderSummary]) -> Figure | None:
    """Bars of bytes read in an epoch, with what Belady's schedule would read in the same cache."""
    rows = []
    for one in sorted((one for one in summaries if one.ok), key=lambda one: one.read_bytes or 0):
        if not one.read_bytes:
            continue
        bound = one.belady_bytes or None
        hover = format_size(one.read_bytes)
        if bound:
            hover += f", {one.read_bytes / bound:.2f}× of Belady's bound, {format_size(bound)}"
        rows.append(Row(one.name, one.loader, ((one.read_bytes, format_size(one.read_bytes)),), bound, hover))
    if not rows:
        return None
    return _figure(
        "read-bytes",
        "Bytes read in an epoch",
        rows,
        "bytes",
        "From the disk: the loader's count, or the kernel's where that is more. Belady's bound: the fewest whole rows "
        "that any cache of the same size reads for the same minibatches, empty at the start.",
        (("bar", "read"), ("tick", "Belady's bound")),
    )


def accuracies(summaries: Sequence[LoaderSummary]) -> Figure | None:
    """Bars of the accuracy, for a comparison of one epoch, which makes no curve; best first."""
    known = sorted((one for one in summaries if one.accuracy), key=lambda one: -(one.accuracy or 0.0))
    if not known:
        return None
    rows = [Row(one.name, one.loader, ((100 * (one.accuracy or 0.0), accuracy_text(one, "±") or ""),)) for one in known]
    caption = "After one epoch, on the test split, or on the validation split where there is no other."
    if max(one.seeds for one in known) > 1:
        caption += " Means over seeds ± one standard deviation."
    return _figure("accuracy", "Accuracy", rows, _PERCENT, caption)


def seconds_to_accuracy(summaries: Sequence[LoaderSummary]) -> Figure | None:
    """Bars of the seconds, preparation included, until a loader's accuracy reaches the best baseline's."""
    target = target_accuracy(summaries)
    if target is None:
        return None
    trained = [(one, seconds_to(target, one.curve)) for one in summaries if one.curve]
    reached = sorted(((seconds, one.name, one.loader) for one, seconds in trained if seconds))
    if not reached:
        return None
    caption = (
        f"To {target:.2%} on the test split: the best of the baselines, each after the epoch that was best on the "
        "validation split (mean over seeds, less one standard deviation). Preparation counts, evaluation does not."
    )
    missed = [one.name for one, seconds in trained if not seconds]
    if missed:
        caption += f" Not reached by {'; '.join(missed)}."
    rows = [Row(name, loader, ((seconds, duration(seconds)),)) for seconds, name, loader in reached]
    return _figure("seconds-to-accuracy", "Seconds to the best baseline's accuracy", rows, "seconds", caption)


def preparation(summaries: Sequence[LoaderSummary]) -> list[Figure]:
    """Bars of the seconds before the first epoch, and of disk space beyond the graph."""
    ready = [one for one in summaries if one.ok]
    seconds = [
        Row(one.name, one.loader, ((total, duration(total)),), None, _preparing_hover(one))
        for one in sorted(ready, key=lambda one: one.prepare_seconds + one.open_seconds)
        if (total := one.prepare_seconds + one.open_seconds) > 0
    ]
    space = [
        Row(one.name, one.loader, ((one.peak_disk_bytes, format_size(one.peak_disk_bytes)),), None, "")
        for one in sorted(ready, key=lambda one: one.peak_disk_bytes)
        if one.peak_disk_bytes
    ]
    figures = []
    if seconds:
        caption = "Preparing, once for all epochs, and opening: what in-memory loads, it loads here."
        figures.append(_figure("prepare-seconds", "Before the first epoch", seconds, "seconds", caption))
    if space:
        caption = (
            "The most beyond the graph itself at any time, while preparing or training. Loaders that are not listed "
            "need none."
        )
        figures.append(_figure("prepared-bytes", "Disk space", space, "bytes", caption))
    return figures


def _preparing_hover(one: LoaderSummary) -> str:
    return f"preparing {duration(one.prepare_seconds)}, opening {duration(one.open_seconds)}"


def _figure(
    key: str,
    title: str,
    rows: Sequence[Row],
    unit: str,
    caption: str,
    legend: tuple[tuple[str, str], ...] = (),
    line: tuple[float, str] | None = None,
) -> Figure:
    """Bars with the names beside them, and above them where there is little width."""
    name_pixels = round(_LETTER_PIXELS * max(len(row.name + row.note) + 3 for row in rows))
    above = _bars(rows, unit, line, 0)
    wide = _bars(rows, unit, line, name_pixels) if name_pixels <= _MOST_NAME_PIXELS else above
    return Figure(key, title, wide, caption, legend, narrow=above)


def _bars(rows: Sequence[Row], unit: str, line: tuple[float, str] | None, name_pixels: int) -> go.Figure:
    """Horizontal bars; `line`: a value that goes through all of them, and its name; names above if 0 pixels wide."""
    values = [value for row in rows for value, _ in row.bars if value] + [row.mark for row in rows if row.mark]
    low, high = min(values), max(values)
    log = high > LOG_ABOVE * low and unit != _PERCENT
    span = [math.floor(math.log10(low / 2)), math.log10(high)] if log else [0, high]
    above = 0 if name_pixels else _NAME_PIXELS
    tops = [0]
    for row in rows:
        bars = sum(_BAR_PIXELS[: len(row.bars)])
        tops.append(tops[-1] + (above + bars + _GAP_PIXELS[not name_pixels] if row.bars else _NAME_PIXELS))
    starts = [top + above for top in tops[:-1]]
    plot = go.Figure()
    for index in range(max(len(row.bars) for row in rows)):
        _add_bars(plot, list(zip(starts, rows, strict=True)), index)
    middles = [
        start + (sum(_BAR_PIXELS[: len(row.bars)]) or _NAME_PIXELS) / 2 for start, row in zip(starts, rows, strict=True)
    ]
    marked = [(y, row) for y, row in zip(middles, rows, strict=True) if row.mark]
    plot.add_scatter(
        x=[row.mark for _, row in marked], y=[y for y, _ in marked], mode="markers", hoverinfo="skip", cliponaxis=False,
        marker={"symbol": "line-ns", "size": 19 if len(rows[0].bars) > 1 else 9, "line": {"width": 2, "color": INK}},
    )  # fmt: skip
    if line:
        plot.add_scatter(
            x=[line[0]] * 2, y=[0, tops[-1]], mode="lines", hoverinfo="skip", cliponaxis=False,
            line={"width": 1, "dash": "dot", "color": INK},
        )  # fmt: skip
        plot.add_annotation(
            x=math.log10(line[0]) if log else line[0],
            y=0,
            text=line[1],
            showarrow=False,
            yanchor="bottom",
            font_size=11,
        )
    place = {"x": 0, "xref": "paper", "showarrow": False, "font_size": 13, "borderpad": 0}
    for top, middle, row in zip(tops, middles, rows, strict=False):
        if name_pixels:
            plot.add_annotation(y=middle, text=_name(row), xanchor="right", xshift=-4, **place)
        else:
            plot.add_annotation(y=top + _NAME_PIXELS - 1, text=_name(row), xanchor="left", yanchor="bottom", **place)
    value_pixels = round(12 + _LETTER_PIXELS * max(len(text) for row in rows for _, text in row.bars))
    for start, row in zip(starts, rows, strict=True):
        for index, (_, text) in enumerate(row.bars):
            plot.add_annotation(
                x=1, xref="paper", xanchor="right", xshift=value_pixels, showarrow=False, borderpad=0, text=text,
                y=start + sum(_BAR_PIXELS[:index]) + _BAR_PIXELS[index] / 2, font_size=11 if index else 12,
            )  # fmt: skip
    plot.update_layout(
        **layout(tops[-1] + _MARGIN["t"] + _MARGIN["b"], {**_MARGIN, "l": name_pixels or 2, "r": value_pixels}),
        barmode="overlay",
        yaxis={"range": [tops[-1], 0], "visible": False, "fixedrange": True},
        xaxis={
            "type": "log" if log else "linear", "range": span, "fixedrange": True, "dtick": 1 if log else None,
            "title": {"text": f"{unit}{', log scale' if log else ''}", "standoff": 6}, "zeroline": False, "nticks": 6,
            **_ticks(unit, log, span),
        },
    )  # fmt: skip
    return plot


def _name(row: Row) -> str:
    name = f"<b>{plain(row.name)}</b>" if row.loader == OURS else plain(row.name)
    return f"{name} · <i>{plain(row.note)}</i>" if row.note else name


def _add_bars(plot: go.Figure, rows: Sequence[tuple[float, Row]], index: int) -> None:
    """Bar number `index` of each row; `rows` have the places of their first bars."""
    shown = [(top + sum(_BAR_PIXELS[:index]), row) for top, row in rows if index < len(row.bars) and row.bars[index][0]]
    plot.add_bar(
        orientation="h", y=[top for top, _ in shown], offset=0, width=_BAR_PIXELS[index] - 1,
        x=[row.bars[index][0] for _, row in shown],
        marker={"color": [color_of(row.loader) for _, row in shown], "opacity": 0.45 if index else 1, "line_width": 0},
        customdata=[f"<b>{plain(row.name)}</b><br>{row.hover}" for _, row in shown],
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip


def _ticks(unit: str, log: bool, span: Sequence[float]) -> dict[str, Any]:
    """Ticks in binary units of bytes, which Plotly has none of; decimal ones for the rest."""
    if unit != "bytes":
        return {"tickformat": ",~g"}
    if log:
        powers = range(math.ceil(span[0] / math.log10(2)), math.floor(span[1] / math.log10(2)) + 1)
        step = max(1, math.ceil(len(powers) / 6))
        values = [2.0**power for power in powers if power % step == 0]
    else:
        step_bytes = 2.0 ** math.ceil(math.log2(span[1] / 5))
        values = [step_bytes * index for index in range(int(span[1] / step_bytes) + 1)]
    return {"tickvals": values, "ticktext": [format_size(value).replace(".0 ", " ") for value in values]}
