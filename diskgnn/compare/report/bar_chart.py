"""A chart of horizontal bars, a row per loader, on an axis that starts at 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from diskgnn.compare.comparability import OURS
from diskgnn.compare.loader_summary import Spread
from diskgnn.compare.report.figures import INK, Figure, color_of, layout, plain
from diskgnn.units import format_size

# The vertical axis counts pixels down from the top. Names stand beside their bars, or above them on a narrow page and
# where they are too long; values stand in a column of their own, where neither bars nor ticks come.
_NAME_PIXELS = 20  # above bars, or where there are none
_GAP_PIXELS = (6, 9)  # after bars: with names beside, above
_HEADING_PIXELS = 30
_BAR_PIXELS = (13, 12)  # the main bar, the one below
_LETTER_PIXELS = 7.2
_MOST_NAME_PIXELS = 320
_MARGIN = {"t": 18, "b": 44}


@dataclass(frozen=True)
class Row:
    """One loader's bars, or a heading where there are none."""

    name: str
    loader: str = ""
    bars: tuple[tuple[float | None, str], ...] = ()  # (value, its text), the main one first
    mark: float | None = None  # a tick across the bars
    spread: Spread | None = None  # of the main one
    hover: str = ""


def bar_chart(
    key: str,
    title: str,
    rows: Sequence[Row],
    unit: str,
    caption: str,
    legend: tuple[tuple[str, str], ...] = (),
    line: tuple[float, str] | None = None,
) -> Figure | None:
    """Draws bars with the names beside them, and above them where there is little width; None without rows."""
    if not rows:
        return None
    name_pixels = round(_LETTER_PIXELS * max(len(row.name) + 3 for row in rows))
    above = _bars(rows, unit, line, 0)
    wide = _bars(rows, unit, line, name_pixels) if name_pixels <= _MOST_NAME_PIXELS else above
    return Figure(key, title, wide, caption, legend, narrow=above)


def _bars(rows: Sequence[Row], unit: str, line: tuple[float, str] | None, name_pixels: int) -> go.Figure:
    """Draws horizontal bars. `line`: a value through all of them, and its name; names are above if 0 pixels wide."""
    values = [value for row in rows for value, _ in row.bars if value] + [row.mark for row in rows if row.mark]
    high = max([*values, *(row.spread.high_seconds for row in rows if row.spread)])
    above = 0 if name_pixels else _NAME_PIXELS
    tops = [0]
    for row in rows:
        bars = sum(_BAR_PIXELS[: len(row.bars)])
        tops.append(tops[-1] + (above + bars + _GAP_PIXELS[not name_pixels] if row.bars else _HEADING_PIXELS))
    starts = [top + (above if row.bars else 0) for top, row in zip(tops, rows, strict=False)]
    plot = go.Figure()
    for index in range(max(len(row.bars) for row in rows)):
        _add_bars(plot, list(zip(starts, rows, strict=True)), index)
    middles = [start + sum(_BAR_PIXELS[: len(row.bars)]) / 2 for start, row in zip(starts, rows, strict=True)]
    marked = [(y, row) for y, row in zip(middles, rows, strict=True) if row.mark]
    plot.add_scatter(
        x=[row.mark for _, row in marked], y=[y for y, _ in marked], mode="markers", hoverinfo="skip", cliponaxis=False,
        marker={"symbol": "line-ns", "size": 9, "line": {"width": 2, "color": INK}},
    )  # fmt: skip
    if line:
        plot.add_scatter(
            x=[line[0]] * 2, y=[0, tops[-1]], mode="lines", hoverinfo="skip", cliponaxis=False,
            line={"width": 1, "dash": "dot", "color": INK},
        )  # fmt: skip
    names = [_name_label(row, top, middle, name_pixels) for top, middle, row in zip(tops, middles, rows, strict=False)]
    value_pixels = round(12 + _LETTER_PIXELS * max(len(text) for row in rows for _, text in row.bars))
    values_of_bars = [
        {"x": 1, "xref": "paper", "xanchor": "right", "xshift": value_pixels, "showarrow": False, "borderpad": 0,
         "y": start + sum(_BAR_PIXELS[:index]) + _BAR_PIXELS[index] / 2, "text": text,
         "font": {"size": 11 if index else 12}}
        for start, row in zip(starts, rows, strict=True) for index, (_, text) in enumerate(row.bars)
    ]  # fmt: skip
    plot.update_layout(
        **layout(tops[-1] + _MARGIN["t"] + _MARGIN["b"], {**_MARGIN, "l": name_pixels or 2, "r": value_pixels}),
        barmode="overlay",
        annotations=[*_line_label(line, high), *names, *values_of_bars],  # at once: each one alone has Plotly check all
        yaxis={"range": [tops[-1], 0], "visible": False, "fixedrange": True},
        xaxis={
            "range": [0, high], "fixedrange": True, "title": {"text": unit, "standoff": 6}, "zeroline": False,
            "nticks": 6, **_ticks(unit, high),
        },
    )  # fmt: skip
    return plot


def _line_label(line: tuple[float, str] | None, high: float) -> list[dict[str, Any]]:
    if line is None:
        return []
    return [{"x": line[0], "y": 0, "text": line[1], "showarrow": False, "yanchor": "bottom", "font": {"size": 11},
             "xanchor": "left" if line[0] < high / 2 else "right"}]  # fmt: skip


def _name_label(row: Row, top: float, middle: float, name_pixels: int) -> dict[str, Any]:
    """Returns a heading, or the name of a row: beside its bars, or above them where names have no width."""
    if not row.bars:
        place = {"y": top + _HEADING_PIXELS - 4, "xanchor": "left", "xshift": -name_pixels, "yanchor": "bottom"}
    elif name_pixels:
        place = {"y": middle, "xanchor": "right", "xshift": -4}
    else:
        place = {"y": top + _NAME_PIXELS - 1, "xanchor": "left", "yanchor": "bottom"}
    common = {"x": 0, "xref": "paper", "showarrow": False, "font": {"size": 13}, "borderpad": 0}
    return {"text": _name(row), **common, **place}


def _name(row: Row) -> str:
    return f"<b>{plain(row.name)}</b>" if row.loader == OURS else plain(row.name)


def _add_bars(plot: go.Figure, rows: Sequence[tuple[float, Row]], index: int) -> None:
    """Adds bar number `index` of each row; `rows` have the places of their first bars."""
    shown = [(top + sum(_BAR_PIXELS[:index]), row) for top, row in rows if index < len(row.bars) and row.bars[index][0]]
    plot.add_bar(
        orientation="h", y=[top for top, _ in shown], offset=0, width=_BAR_PIXELS[index] - 1,
        x=[row.bars[index][0] for _, row in shown],
        marker={"color": [color_of(row.loader) for _, row in shown], "opacity": 0.45 if index else 1, "line_width": 0},
        error_x=None if index else _whiskers(shown),
        customdata=[f"<b>{plain(row.name)}</b><br>{row.hover}" for _, row in shown],
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip


def _whiskers(rows: Sequence[tuple[float, Row]]) -> dict[str, Any] | None:
    """Returns whiskers from the shortest to the longest measurement; None where nothing was measured twice."""
    spreads = [(row.bars[0][0] or 0.0, row.spread) for _, row in rows]
    if not any(spread and spread.measurements > 1 for _, spread in spreads):
        return None
    return {
        "type": "data", "symmetric": False, "color": INK, "thickness": 1.5, "width": 3,
        "array": [max(0.0, spread.high_seconds - end) if spread else 0.0 for end, spread in spreads],
        "arrayminus": [max(0.0, end - spread.low_seconds) if spread else 0.0 for end, spread in spreads],
    }  # fmt: skip


def _ticks(unit: str, high: float) -> dict[str, Any]:
    """Returns ticks in binary units of bytes, which Plotly has none of; decimal ones for the rest."""
    if unit != "bytes":
        return {"tickformat": ",~g"}
    step_bytes = 2.0 ** math.ceil(math.log2(high / 5))
    values = [step_bytes * index for index in range(int(high / step_bytes) + 1)]
    return {"tickvals": values, "ticktext": [format_size(value).replace(".0 ", " ") for value in values]}
