"""Curves of a comparison's report: accuracy over epochs and over seconds, rows read over cache sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from diskgnn.compare.figures import INK, LOG_ABOVE, Figure, color_of, layout, plain
from diskgnn.compare.results import SweepPoint
from diskgnn.compare.summary import OURS, CurvePoint, LoaderSummary, duration

_DASHES = ("solid", "dash", "dot", "dashdot")  # variants of one loader
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down", "hexagon", "pentagon")
_HEIGHT = 380
_LABEL_PIXELS = 15  # from one name at the right end to the next
_MARGIN = {"l": 52, "t": 12, "b": 46}  # and names on the right
_NARROW_MARGIN = {"l": 46, "r": 12, "t": 12, "b": 46}


@dataclass(frozen=True)
class _Line:
    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    hover: Sequence[str]
    dash: str = "solid"
    symbol: str = "circle"
    band: Sequence[float] = ()  # half its height at each x


def accuracies(summaries: Sequence[LoaderSummary]) -> list[Figure]:
    """Accuracy over epochs, and over seconds with preparation counted in: means over seeds with a band."""
    trained = [one for one in summaries if one.curve]
    if not trained:
        return []
    seeds = max(one.seeds for one in trained)
    over = f" Means of {seeds} seeds; the bands are one standard deviation." if seeds > 1 else ""
    styles = _styles([(one.name, one.loader) for one in trained])

    def lines(x_of: Callable[[CurvePoint], float]) -> list[_Line]:
        return [
            _Line(
                one.name,
                color_of(one.loader),
                [x_of(point) for point in one.curve],
                [100 * point.accuracy for point in one.curve],
                [_accuracy_hover(point, one.seeds) for point in one.curve],
                *styles[one.name],
                band=[100 * point.deviation for point in one.curve] if one.seeds > 1 else (),
            )
            for one in trained
        ]

    by_epoch = _figure(
        "accuracy-epochs", "Accuracy over epochs", lines(lambda point: point.epoch), "epoch", "accuracy, %"
    )
    by_seconds = _figure(
        "accuracy-seconds", "Accuracy over seconds", lines(lambda point: point.seconds), "seconds", "accuracy, %"
    )
    by_epoch.plot.update_xaxes(tickformat="d", dtick=1 if max(len(one.curve) for one in trained) <= 10 else None)
    return [
        by_epoch.captioned(f"On the test split, or on the validation split where there is no other.{over}"),
        by_seconds.captioned(f"Preparation and opening count, evaluation does not.{over}"),
    ]


def _accuracy_hover(point: CurvePoint, seeds: int) -> str:
    spread = f" ± {point.deviation:.2%}" if seeds > 1 else ""
    return f"{point.accuracy:.2%}{spread} after epoch {point.epoch}, {duration(point.seconds)}"


def cache_sweep(points: Sequence[SweepPoint], loaders: dict[str, str]) -> Figure | None:
    """Share of the requested rows that is read from disk over cache sizes; `loaders` maps names to their loaders."""
    if not points:
        return None
    caches = list(dict.fromkeys(point.cache for point in sorted(points, key=lambda point: point.cache_rows)))
    by_name: dict[str, dict[str, SweepPoint]] = {}
    for point in points:
        by_name.setdefault(point.name, {})[point.cache] = point
    keys = {name: loaders.get(name, name.split(",")[0]) for name in by_name}
    styles = _styles(list(keys.items()))
    lines = []
    for name, found in by_name.items():
        shown = [found[cache] for cache in caches if cache in found]
        hover = [
            f"{point.rows_read:,} rows, {_ratio(point)} of Belady's bound, cache {plain(point.cache)}"
            for point in shown
        ]
        x, y = [caches.index(point.cache) for point in shown], [_share(point, point.rows_read) for point in shown]
        lines.append(_Line(name, color_of(keys[name]), x, y, hover, *styles[name]))
    fewest = [
        min((point for point in points if point.cache == cache), key=lambda point: point.belady_rows)
        for cache in caches
    ]
    shares = [_share(point, point.belady_rows) for point in fewest]
    hover = [f"{point.belady_rows:,} rows, cache {plain(point.cache)}" for point in fewest]
    lines.append(_Line("Belady's bound", INK, list(range(len(caches))), shares, hover, "dot", "line-ew"))
    figure = _figure(
        "cache-sweep", "Rows read over cache sizes", lines, "cache, of all rows", "rows read, % of requested"
    )
    figure.plot.update_xaxes(tickvals=list(range(len(caches))), ticktext=[plain(cache[:12]) for cache in caches])
    figure.plot.update_yaxes(range=[0, 1.06 * max(max(line.y) for line in lines)])
    return figure.captioned("Of one epoch, those that fill the cache at the start included.")


def _share(point: SweepPoint, rows: int) -> float:
    return 100 * rows / max(point.requested_rows, 1)


def _ratio(point: SweepPoint) -> str:
    return f"{point.rows_read / point.belady_rows:.2f}×" if point.belady_rows else "all"


def _styles(names: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """(dash, symbol) per name: a loader has its symbol, its variants differ in the dash."""
    loaders = list(dict.fromkeys(loader for _, loader in names))
    seen: dict[str, int] = {}
    styles = {}
    for name, loader in names:
        variant = seen[loader] = seen.get(loader, -1) + 1
        styles[name] = (_DASHES[variant % len(_DASHES)], _SYMBOLS[loaders.index(loader) % len(_SYMBOLS)])
    return styles


def _figure(key: str, title: str, lines: Sequence[_Line], x_title: str, y_title: str) -> Figure:
    plot = go.Figure()
    for line in lines:
        if any(line.band):
            _add_band(plot, line)
    for line in sorted(lines, key=lambda line: (line.color == INK, line.name.startswith(OURS))):  # these on top
        plot.add_scatter(
            x=line.x, y=line.y, mode="lines+markers",
            line={"color": line.color, "dash": line.dash, "width": 3 if line.name.startswith(OURS) else 2},
            marker={"symbol": line.symbol, "size": 7},
            customdata=[f"<b>{plain(line.name)}</b><br>{text}" for text in line.hover],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    x = [value for line in lines for value in line.x]
    tops = [y + half for line in lines for y, half in zip(line.y, line.band or [0.0] * len(line.y), strict=True)]
    bottoms = [y - half for line in lines for y, half in zip(line.y, line.band or [0.0] * len(line.y), strict=True)]
    pad = 0.06 * (max(tops) - min(bottoms)) or 1.0
    y_range = (min(bottoms) - pad, max(tops) + pad)
    log = min(x) > 0 and max(x) > LOG_ABOVE * min(x)
    axis = {"fixedrange": True, "zeroline": False}
    x_title += ", log scale" if log else ""
    plot.update_layout(
        **layout(_HEIGHT, {**_MARGIN, "r": min(240, 34 + round(7.2 * max(len(line.name) for line in lines)))}),
        xaxis={
            **axis, "title": {"text": x_title, "standoff": 8}, "type": "log" if log else "linear",
            "dtick": "D2" if log and max(x) < 1000 * min(x) else None, "tickformat": ",~g",
        },
        yaxis={**axis, "title": {"text": y_title, "standoff": 8}, "range": y_range, "nticks": 7, "tickformat": "~g"},
    )  # fmt: skip
    _label_ends(plot, lines, y_range)
    narrow = {"annotations": [], "margin": _NARROW_MARGIN, "height": 320}
    return Figure(key, title, plot, series=tuple((line.color, line.dash, line.name) for line in lines), narrow=narrow)


def _add_band(plot: go.Figure, line: _Line) -> None:
    edge = [y + half for y, half in zip(line.y, line.band, strict=True)]
    other = [y - half for y, half in zip(line.y, line.band, strict=True)]
    red, green, blue = (int(line.color[at : at + 2], 16) for at in (1, 3, 5))
    plot.add_scatter(
        x=[*line.x, *reversed(line.x)], y=[*edge, *reversed(other)], fill="toself", mode="lines", line={"width": 0},
        fillcolor=f"rgba({red},{green},{blue},0.16)", hoverinfo="skip",
    )  # fmt: skip


def _label_ends(plot: go.Figure, lines: Sequence[_Line], y_range: tuple[float, float]) -> None:
    """Each line's name at its right end, moved apart where they would overlap."""
    per_pixel = (y_range[1] - y_range[0]) / (_HEIGHT - _MARGIN["t"] - _MARGIN["b"])
    ordered = sorted(lines, key=lambda line: line.y[-1])
    places = spread([line.y[-1] for line in ordered], _LABEL_PIXELS * per_pixel, *y_range)
    for line, y in zip(ordered, places, strict=True):
        name = f"<b>{plain(line.name)}</b>" if line.name.startswith(OURS) else plain(line.name)
        dot = "┄ " if line.color == INK else f'<span style="color:{line.color}">●</span> '
        plot.add_annotation(
            x=1,
            xref="paper",
            y=y,
            text=dot + name,
            showarrow=False,
            xanchor="left",
            xshift=8,
            font_size=12,
            align="left",
        )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places near `wanted` (ascending), `gap` apart or more, within [low, high]; evenly if too many."""
    if len(wanted) > 1:
        gap = min(gap, (high - low) / (len(wanted) - 1))
    places: list[float] = []
    for value in wanted:
        places.append(max(value, places[-1] + gap if places else low))
    limit = math.inf
    for index in reversed(range(len(places))):
        limit = min(places[index], limit - gap if index < len(places) - 1 else high)
        places[index] = limit
    return places
