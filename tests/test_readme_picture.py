"""The picture on README's first screen shows what the table below it says."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from comparisons import comparison, result  # noqa: E402

from diskgnn.cli.rendering import to_json  # noqa: E402
from diskgnn.compare.comparison_record import EpochPoint  # noqa: E402
from diskgnn.compare.variants import LOADERS  # noqa: E402
from draw_readme import NAMES, PAGES, drawn, rows_of, table_of  # noqa: E402

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


def test_rows_are_those_that_a_comparison_measured(tmp_path: Path):
    variants = [each for loader in LOADERS.values() for each in loader]
    known = {each.name for each in variants} | {f"{each.name}, without the cap" for each in variants if each.uncapped}
    assert set(NAMES) <= known
    results = [replace(result("ginex"), name=name, epochs=(EpochPoint(0, 40.4 + number, 1.0, None, None),))
               for number, name in enumerate(reversed(NAMES))]  # fmt: skip
    (tmp_path / "seconds.json").write_text(json.dumps(to_json(comparison(results=tuple(results)))))
    rows = rows_of(f"| rows come from |\n|---|\n{table_of(tmp_path / 'seconds.json')}\n\n")
    assert [row.name for row in rows] == [row.name for row in rows_of(README)]
    assert [row.all_seconds for row in rows] == [44, 43, 42, 41, 40]
    assert {row.seconds for row in rows} == {round(results[0].training.seconds)}
