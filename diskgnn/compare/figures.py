"""Figures of a comparison's report: what all share, and bars. Without a theme: the page's style sheet colours ink."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import plotly.graph_objects as go

# Mid tones: at least 3:1 on white and on the dark page alike, and told apart with any colour vision, except where lines
# are dashed and labelled anyway.
_COLORS = {
    "diskgnn": "#e0561b", "in-memory": "#878791", "mmap": "#8583ec", "cached-reads": "#4f9464", "ginex": "#3f92de",
    "partition-buffer": "#d81e4f", "static-packed": "#a9349c", "pyg": "#7a45e0", "dgl": "#ad7cb4",
    "graphbolt": "#c58046",
}  # fmt: skip
_OTHER_COLOR = "#0b97a6"
LOG_ABOVE = 40.0  # a linear axis shows ratios up to this
_ROW_PIXELS = 46
INK = "#010203"  # the style sheet makes it the colour of text


@dataclass(frozen=True)
class Figure:
    """One figure of the page."""

    key: str
    title: str
    plot: go.Figure
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()  # (colour, or name of a style; text), above the plot
    series: tuple[
        tuple[str, str, str], ...
    ] = ()  # (colour, dash, name): instead of the direct labels where the plot is narrow
    narrow: dict[str, Any] = field(default_factory=dict)  # layout where the plot is narrow

    def captioned(self, caption: str) -> Figure:
        """The same with a caption."""
        return replace(self, caption=caption)


def color_of(loader: str) -> str:
    """The colour that a loader has in every figure."""
    return _COLORS.get(loader, _OTHER_COLOR)


def plain(text: str) -> str:
    """`text` for Plotly, which reads some HTML in its labels and knows no &quot;."""
    return escape(text, quote=False)


def layout(height: int, margin: dict[str, int]) -> dict[str, Any]:
    """What all figures share. Pixels; `margin` as Plotly names its sides."""
    return {
        "template": None, "height": height, "margin": margin, "showlegend": False, "dragmode": False,
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif", "size": 12},
        "hoverlabel": {"align": "left"},
    }  # fmt: skip
