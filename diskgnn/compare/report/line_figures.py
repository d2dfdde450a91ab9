"""Curves of a comparison's report: scores over epochs and over seconds, rows read over cache sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from diskgnn.compare.comparability import OURS
from diskgnn.compare.comparison_record import SweepPoint
from diskgnn.compare.loader_summary import CurvePoint, LoaderSummary
from diskgnn.compare.metric import Metric
from diskgnn.compare.number_format import duration
from diskgnn.compare.report.figures import DASHES, INK, SYMBOLS, Figure, Series, color_of, layout, plain

_HEIGHT = 340
_LOG_ABOVE = 40.0  # a linear axis tells curves apart whose ends differ by up to this factor
_MARGIN = {"l": 52, "r": 14, "t": 12, "b": 46}


@dataclass(frozen=True)
class _Line:
    style: Series
    x: Sequence[float]
    y: Sequence[float]
    hover: Sequence[str]
    band: Sequence[float] = ()  # half its height at each x


def scores(summaries: Sequence[LoaderSummary], metric: Metric) -> list[Figure]:
    """Draws scores over epochs, and over seconds with preparation counted in: means over seeds with a band.

    None where there is but one epoch, which makes no curve.
    """
    trained = [one for one in summaries if one.curve]
    if max((len(one.curve) for one in trained), default=0) < 2:
        return []
    seeds = max(one.seeds for one in trained)
    over = f" Means of {seeds} seeds; the bands are one standard deviation." if seeds > 1 else ""
    styles = _styles([(one.name, one.loader) for one in trained])

    def lines(x_of: Callable[[CurvePoint], float]) -> list[_Line]:
        return [
            _Line(
                styles[one.name],
                [x_of(point) for point in one.curve],
                [metric.on_axis(point.score) for point in one.curve],
                [_score_hover(point, one.seeds, metric) for point in one.curve],
                band=[metric.on_axis(point.deviation) for point in one.curve] if one.seeds > 1 else (),
            )
            for one in trained
        ]

    by_epoch = _figure(
        "score-epochs", f"{metric.title} over epochs", lines(lambda point: point.epoch), "epoch", metric.axis
    )
    by_seconds = _figure(
        "score-seconds", f"{metric.title} over seconds", lines(lambda point: point.seconds), "seconds", metric.axis
    )
    by_epoch.plot.update_xaxes(tickformat="d", dtick=1 if max(len(one.curve) for one in trained) <= 10 else None)
    return [
        by_epoch.captioned(f"On the test split, or on the validation split where there is no other.{over}"),
        by_seconds.captioned(f"Preparation and opening count, evaluation does not.{over}"),
    ]


def _score_hover(point: CurvePoint, seeds: int, metric: Metric) -> str:
    spread = f" ± {metric.text(point.deviation)}" if seeds > 1 else ""
    return f"{metric.text(point.score)}{spread} after epoch {point.epoch}, {duration(point.seconds)}"


def cache_sweep(points: Sequence[SweepPoint], loaders: dict[str, str]) -> Figure | None:
    """Draws the share of rows read from disk over cache sizes; `loaders` maps names to their loaders."""
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
            f"{point.rows_read:,} rows, {_ratio(point)} of the fewest possible, cache {plain(point.cache)}"
            for point in shown
        ]
        x, y = [caches.index(point.cache) for point in shown], [_share(point, point.rows_read) for point in shown]
        lines.append(_Line(styles[name], x, y, hover))
    fewest = [
        min((point for point in points if point.cache == cache), key=lambda point: point.belady_rows)
        for cache in caches
    ]
    shares = [_share(point, point.belady_rows) for point in fewest]
    hover = [f"{point.belady_rows:,} rows, cache {plain(point.cache)}" for point in fewest]
    bound = Series("fewest possible", INK, "dot", "line-ew")
    lines.append(_Line(bound, list(range(len(caches))), shares, hover))
    figure = _figure(
        "cache-sweep", "Rows read over cache sizes", lines, "cache, of all rows", "rows read, % of requested"
    )
    figure.plot.update_xaxes(tickvals=list(range(len(caches))), ticktext=[plain(cache[:12]) for cache in caches])
    figure.plot.update_yaxes(range=[0, 1.06 * max(max(line.y) for line in lines)])
    return figure.captioned(
        "Of one epoch, those that fill the cache at the start included. Fewest possible: by a cache that knows all "
        "that comes (Belady), empty at the start."
    )


def _share(point: SweepPoint, rows: int) -> float:
    return 100 * rows / max(point.requested_rows, 1)


def _ratio(point: SweepPoint) -> str:
    return f"{point.rows_read / point.belady_rows:.2f}×" if point.belady_rows else "all"


def _styles(names: Sequence[tuple[str, str]]) -> dict[str, Series]:
    """Returns styles by name: a loader has its colour and symbol, its variants differ in the dash."""
    loaders = list(dict.fromkeys(loader for _, loader in names))
    dashes, symbols = list(DASHES), list(SYMBOLS)
    seen: dict[str, int] = {}
    styles = {}
    for name, loader in names:
        variant = seen[loader] = seen.get(loader, -1) + 1
        symbol = symbols[loaders.index(loader) % len(symbols)]
        styles[name] = Series(name, color_of(loader), dashes[variant % len(dashes)], symbol)
    return styles


def _figure(key: str, title: str, lines: Sequence[_Line], x_title: str, y_title: str) -> Figure:
    plot = go.Figure()
    for line in lines:
        if any(line.band):
            _add_band(plot, line)
    for line in sorted(lines, key=lambda line: (line.style.color == INK, line.style.name.startswith(OURS))):  # on top
        style = line.style
        plot.add_scatter(
            x=line.x, y=line.y, mode="lines+markers",
            line={"color": style.color, "dash": style.dash, "width": 3 if style.name.startswith(OURS) else 2},
            marker={"symbol": style.symbol, "size": 8},
            customdata=[f"<b>{plain(style.name)}</b><br>{text}" for text in line.hover],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    x = [value for line in lines for value in line.x]
    tops = [y + half for line in lines for y, half in zip(line.y, line.band or [0.0] * len(line.y), strict=True)]
    bottoms = [y - half for line in lines for y, half in zip(line.y, line.band or [0.0] * len(line.y), strict=True)]
    pad = 0.06 * (max(tops) - min(bottoms)) or 1.0
    y_range = (min(bottoms) - pad, max(tops) + pad)
    log = min(x) > 0 and max(x) > _LOG_ABOVE * min(x)
    axis = {"fixedrange": True, "zeroline": False}
    x_title += ", log scale" if log else ""
    plot.update_layout(
        **layout(_HEIGHT, _MARGIN),
        xaxis={
            **axis, "title": {"text": x_title, "standoff": 8}, "type": "log" if log else "linear",
            "dtick": "D2" if log and max(x) < 1000 * min(x) else None, "tickformat": ",~g",
        },
        yaxis={**axis, "title": {"text": y_title, "standoff": 8}, "range": y_range, "nticks": 7, "tickformat": "~g"},
    )  # fmt: skip
    ordered = sorted(lines, key=lambda line: -line.y[-1])
    return Figure(key, title, plot, series=tuple(line.style for line in ordered))


def _add_band(plot: go.Figure, line: _Line) -> None:
    edge = [y + half for y, half in zip(line.y, line.band, strict=True)]
    other = [y - half for y, half in zip(line.y, line.band, strict=True)]
    red, green, blue = (int(line.style.color[at : at + 2], 16) for at in (1, 3, 5))
    plot.add_scatter(
        x=[*line.x, *reversed(line.x)], y=[*edge, *reversed(other)], fill="toself", mode="lines", line={"width": 0},
        fillcolor=f"rgba({red},{green},{blue},0.16)", hoverinfo="skip",
    )  # fmt: skip
