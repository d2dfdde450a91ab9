"""Timelines of a comparison's report: what each thread of a loader did, a lane per thread."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from diskgnn.compare.loader_summary import LoaderSummary
from diskgnn.compare.number_format import duration
from diskgnn.compare.report.figures import Figure, layout, plain
from diskgnn.compare.timeline_words import kind_of, track_order, track_words
from diskgnn.loading.tracing import TRAIN_TRACK, TraceEvent

_COLORS = {"sample": "#c08c2c", "read": "#4c86c6", "move": "#3a9a8c", "compute": "#9a6fc4", "wait": "#9aa1ab"}
_MAX_EVENTS = 600  # drawn of one timeline
_LANE_PIXELS = 27

LEGEND = tuple(
    (_COLORS[kind], text)
    for kind, text in (
        ("read", "reads or writes the disk"), ("sample", "samples"), ("move", "copies rows in memory"),
        ("compute", "computes"), ("wait", "waits"),
    )
)  # fmt: skip


def timeline(summary: LoaderSummary, key: str) -> Figure | None:
    """Returns the stages of a few minibatches of one loader, None where no trace was kept."""
    if not summary.trace:
        return None
    events = sorted(summary.trace, key=lambda event: (event.start_ns, -event.end_ns))
    drawn = events[:_MAX_EVENTS]
    origin = drawn[0].start_ns
    tracks = sorted({event.track for event in drawn}, key=track_order)
    unit, unit_ns = ("ms", 1e6) if drawn[-1].end_ns - origin < 2e9 else ("s", 1e9)
    plot = go.Figure()
    for kind, color in _COLORS.items():
        of_kind = [event for event in drawn if kind_of(event.stage) == kind]
        plot.add_bar(
            orientation="h",
            base=[(event.start_ns - origin) / unit_ns for event in of_kind],
            x=[(event.end_ns - event.start_ns) / unit_ns for event in of_kind],
            y=[tracks.index(event.track) for event in of_kind],
            width=0.4 if kind == "wait" else 0.78,
            marker={"color": color, "line_width": 0, "opacity": 0.55 if kind == "wait" else 1.0},
            customdata=[_hover(event) for event in of_kind],
            hovertemplate="%{customdata}<extra></extra>",
        )
    plot.update_layout(
        **layout(_LANE_PIXELS * len(tracks) + 58, {"l": 10, "r": 12, "t": 4, "b": 42}),
        barmode="overlay",
        xaxis={"title": {"text": unit, "standoff": 4}, "fixedrange": True, "zeroline": False, "nticks": 7},
        yaxis={
            "tickvals": list(range(len(tracks))), "fixedrange": True,
            "ticktext": [plain(track_words(track)) for track in tracks],
            "range": [len(tracks) - 0.5, -0.5], "showgrid": False, "zeroline": False, "automargin": True,
            "ticks": "outside", "ticklen": 6, "tickcolor": "rgba(0,0,0,0)",
        },
    )  # fmt: skip
    return Figure(key, summary.name, plot, _caption(events, len(drawn)))


def _hover(event: TraceEvent) -> str:
    which = f", minibatch {event.minibatch}" if event.minibatch >= 0 else ""
    seconds = (event.end_ns - event.start_ns) / 1e9
    return f"<b>{plain(event.stage)}</b> {duration(seconds)}<br>{plain(track_words(event.track))}{which}"


def _caption(events: Sequence[TraceEvent], drawn: int) -> str:
    seconds = (max(event.end_ns for event in events) - events[0].start_ns) / 1e9
    trained = len({event.minibatch for event in events if event.track == TRAIN_TRACK and event.minibatch >= 0})
    text = f"{trained} minibatches in {duration(seconds)}"
    if drawn < len(events):
        text += f"; the first {drawn:,} of {len(events):,} stages are drawn"
    return f"{text}."
