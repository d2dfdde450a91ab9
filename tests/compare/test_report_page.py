"""The page of a comparison's report on screens, small ones, dark ones, and on paper, and with others' words in it."""

from __future__ import annotations

import base64
import dataclasses
import re

import pytest
from comparisons import LOADERS, MISSING, comparison, result
from report_pages import DRAWN, assert_all_ok, untraced

from diskgnn.compare.comparison_record import LoaderResult, SweepPoint
from diskgnn.loading.tracing import TraceEvent

SCRIPT = "<script>window.hacked = 1</script>"

# Contrast (WCAG 2) of all elements that show text of their own, or are drawn, with what is behind them.
CONTRASTS = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(c => linear(c / 255))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05) };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
  };
  const texts = [...document.querySelectorAll('main *')].filter(e =>
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.getBoundingClientRect().width > 0);
  const inSvg = e => e.namespaceURI.endsWith('svg');
  const bars = [...document.querySelectorAll('.drawing .bars .point path')]
    .filter(e => +getComputedStyle(e).opacity === 1);
  return {
    text: texts.map(e => [ratio(parse(getComputedStyle(e)[inSvg(e) ? 'fill' : 'color']), behind(e)), e.textContent]),
    marks: bars.map(e => ratio(parse(getComputedStyle(e).fill), behind(e))),
    background: getComputedStyle(document.body).backgroundColor,
  };
})()
"""


@pytest.fixture
def page(write_page):
    """The report of `comparison()` with one timeline."""
    return write_page(comparison(results=untraced(comparison().results)))


def test_a_phone_needs_no_horizontal_scrolling(browser, page):
    browser.look(width=400, dark=True)
    browser.open(page, DRAWN)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    inside = (
        "[...document.querySelectorAll('.drawing .main-svg')].every(svg => svg.getBoundingClientRect().right <= 400)"
    )
    assert browser.evaluate(inside)
    # Of wide tables, which scroll, the first columns are seen: what an epoch takes in all, and the training of it.
    seen = browser.evaluate("""
      [...document.querySelectorAll('.table:has(td:not(.words)) tr')].slice(0, 2).map(row =>
        [...row.children].filter(cell => cell.getBoundingClientRect().right <= 400).map(cell => cell.textContent))""")
    assert seen[0][:3] == ["loader", "epoch in all", "training epoch"]
    assert seen[1][0] == "in-memory"
    assert len(seen[1]) >= 3
    scrolling = "[...document.querySelectorAll('.table')].map(box => box.scrollWidth > box.clientWidth)"
    assert any(browser.evaluate(scrolling))  # wide tables scroll in their own boxes
    assert "gradient" in browser.evaluate("getComputedStyle(document.querySelector('.table')).backgroundImage")
    lines = """[...document.querySelectorAll('td.words:not(:last-child)')].map(cell => {
      const range = document.createRange(); range.selectNodeContents(cell); return range.getClientRects().length })"""
    words = [text.count(" ") + 1 for text, _ in MISSING.values()]
    assert all(found <= most for found, most in zip(browser.evaluate(lines), words, strict=True))  # none is broken
    assert browser.evaluate("getComputedStyle(document.querySelector('.series')).display") == "flex"
    assert browser.evaluate("document.querySelectorAll('#score-epochs .annotation').length") == 0
    assert_all_ok(browser, page)


def test_light_and_dark_are_both_legible(browser, page):
    backgrounds = set()
    for dark in (False, True):
        browser.look(width=1200, dark=dark)
        browser.open(page, DRAWN)
        found = browser.evaluate(CONTRASTS)
        backgrounds.add(found["background"])
        assert len(found["text"]) > 300
        assert [(ratio, text) for ratio, text in found["text"] if ratio < 4.5] == []
        assert min(found["marks"]) >= 2.9  # 3:1 but for rounding of colours
        assert_all_ok(browser, page)
    assert backgrounds == {"rgb(255, 255, 255)", "rgb(20, 23, 28)"}


@pytest.mark.parametrize("copies", [1, 4])
def test_on_paper_figures_are_whole_and_light(browser, write_page, copies):
    results = [dataclasses.replace(result(name), trace=()) for name in LOADERS]  # of timelines, one copy shows enough
    many = (dataclasses.replace(one, name=f"{one.name} {copy}") for one in results for copy in range(copies))
    page = write_page(comparison(results=tuple(many)) if copies > 1 else comparison())
    browser.look(width=1200, dark=True, paper=True)
    browser.open(page, DRAWN)
    browser.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('.figure')).breakInside") == "avoid"
    # 182 mm: A4 less margins of 14 mm
    widths = "[...document.querySelectorAll('.drawing .main-svg')].map(svg => svg.getBoundingClientRect().width)"
    assert max(browser.evaluate(widths)) <= 182 / 25.4 * 96
    # Letter less margins of 12 mm is 255 mm high
    heights = "[...document.querySelectorAll('.figure')].map(figure => figure.getBoundingClientRect().height)"
    assert max(browser.evaluate(heights)) <= 255 / 25.4 * 96
    if copies == 1:
        printed = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
        assert printed.startswith(b"%PDF")
        assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 7
    assert_all_ok(browser, page)


def test_outside_words_are_shown_not_run(browser, write_page):
    hostile = f"</script>{SCRIPT}<b>&amp;'\"%{{x}}<img src=x onerror='window.hacked=2'>"
    ok = dataclasses.replace(
        result("ginex"), name=hostile, loader=hostile, variant=hostile, bound=hostile,
        trace=(TraceEvent(hostile, hostile, 0, 0, 5_000_000),),
    )  # fmt: skip
    made = comparison(
        command=hostile, started=hostile, machine={hostile: hostile}, graph={"name": hostile}, warnings=(hostile,),
        settings={"fanouts": hostile}, sweep=(SweepPoint(hostile, hostile, 1, 10, 5, 4),),
        results=(ok, result("in-memory"), LoaderResult(f"{hostile}2", hostile, "", "failed", hostile)),
    )  # fmt: skip
    page = write_page(made)
    browser.look(width=400)
    browser.open(page, DRAWN)
    assert_all_ok(browser, page)
    assert browser.evaluate("window.hacked") is None
    assert browser.evaluate("document.scripts.length") == 3
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.querySelector('pre').textContent") == hostile
    assert browser.evaluate("document.querySelector('#timeline-0 h3').textContent") == hostile
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    drawn = browser.evaluate("[...document.querySelectorAll('#read-bytes .annotation-text')].map(e => e.textContent)")
    assert any(hostile in text for text in drawn), drawn
