"""Figures of a comparison's report: what all share. Without a theme: the page's style sheet colours ink."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import Any

import plotly.graph_objects as go

# Mid tones: at least 3:1 on white and on the dark page alike, and told apart with any colour vision, except where lines
# are dashed and labelled anyway.
_COLORS = {
    "diskgnn": "#e0561b", "in-memory": "#878791", "mmap": "#8583ec", "cached-reads": "#4f9464", "ginex": "#3f92de",
    "partition-buffer": "#d81e4f", "static-packed": "#a9349c", "pyg": "#7a45e0", "dgl": "#ad7cb4",
    "graphbolt": "#c58046", "propagated": "#8a8f1c",
}  # fmt: skip
_OTHER_COLOR = "#0b97a6"
# What Plotly calls a mark or a dash, and the same as SVG, for the list of a plot's lines.
SYMBOLS = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "square": "M-4-4h8v8h-8z", "diamond": "M0-5l5 5-5 5-5-5z",
    "triangle-up": "M0-5l5 9h-10z", "x": "M-5-2l3-3 2 2 2-2 3 3-2 2 2 2-3 3-2-2-2 2-3-3 2-2z",
    "cross": "M-5-2h3v-3h4v3h3v4h-3v3h-4v-3h-3z", "star": "M0-6l1.5 4h4l-3 2.5 1.2 4-3.7-2.3-3.7 2.3 1.2-4-3-2.5h4z",
    "triangle-down": "M0 5l5-9h-10z", "hexagon": "M4.5 2.5v-5l-4.5-2.5-4.5 2.5v5l4.5 2.5z",
    "pentagon": "M0-5l5 3.6-1.9 5.9h-6.2l-1.9-5.9z",
}  # fmt: skip
DASHES = {"solid": "none", "dash": "9 5", "dot": "3 3", "dashdot": "9 3 3 3"}
INK = "#010203"  # the style sheet makes it the colour of text


@dataclass(frozen=True)
class Series:
    """Says how one line of a plot looks."""

    name: str
    color: str
    dash: str = "solid"
    symbol: str = "circle"


@dataclass(frozen=True)
class Figure:
    """One figure of the page."""

    key: str
    title: str
    plot: go.Figure
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()  # (colour, or name of a style; text), above the plot
    series: tuple[Series, ...] = ()  # the lines, from the top
    narrow: go.Figure | None = None  # the plot where there is little width, if it is another

    def captioned(self, caption: str) -> Figure:
        """Returns the same with a caption."""
        return replace(self, caption=caption)


def color_of(loader: str) -> str:
    """Returns the colour that a loader has in every figure."""
    return _COLORS.get(loader, _OTHER_COLOR)


def plain(text: str) -> str:
    """Returns `text` for Plotly, which reads some HTML in its labels and knows no &quot;."""
    return escape(text, quote=False)


def layout(height: int, margin: dict[str, int]) -> dict[str, Any]:
    """Returns what all figures share. Pixels; `margin` as Plotly names its sides."""
    return {
        "template": None, "height": height, "margin": margin, "showlegend": False, "dragmode": False,
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif", "size": 12},
        "hoverlabel": {"align": "left"},
    }  # fmt: skip
