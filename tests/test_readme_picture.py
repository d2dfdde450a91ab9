"""The picture on README's first screen shows what the table below it says."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from draw_readme import PAGES, drawn, rows_of  # noqa: E402

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_the_picture_is_that_of_the_table(name):
    assert (ROOT / name).read_text() == drawn(rows_of(README), PAGES[name]), "run `python tools/draw_readme.py`"
    assert name in README


@pytest.mark.parametrize("name", PAGES)
def test_bars_are_as_long_as_the_figures(name):
    """Read off the picture, and off the table, by other means."""
    lines = [line for line in README.splitlines() if re.search(r"\| [\d.]+ s \| [\d.]+ s \|$", line)]
    wanted = [tuple(float(figure) for figure in re.findall(r"([\d.]+) s", line)) for line in lines[:5]]
    bars = [each for each in ElementTree.parse(ROOT / name).iter() if each.get("height") == "22"]
    longest = max(everything for _, everything in wanted)
    scale = max(float(bar.get("width")) for bar in bars) / longest
    found = [(float(training.get("width")), float(everything.get("width")))
             for everything, training in zip(bars[::2], bars[1::2], strict=True)]  # fmt: skip
    assert len(found) == 5
    for (training, everything), (seconds, all_seconds) in zip(found, wanted, strict=True):
        assert training == pytest.approx(seconds * scale, abs=0.1)
        assert everything == pytest.approx(all_seconds * scale, abs=0.1)
