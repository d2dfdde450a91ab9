"""The page of a comparison's report and its figures, looked at in one browser: on screens, small ones, dark ones, and
on paper, and with others' words in it.
"""

from __future__ import annotations

import base64
import dataclasses
import re

import numpy as np
import pytest
from comparisons import LOADERS, MISSING, comparison, cost, result
from report_pages import DRAWN, MARKS, assert_all_ok, untraced

from diskgnn.compare.comparison_record import LoaderResult, SweepPoint
from diskgnn.compare.report.figures import color_of
from diskgnn.compare.variants import LOADERS as COMPARED
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

# Values and names of bars that lie on a bar, on a tick or on each other by more than 3 pixels, and values on a line.
COLLISIONS = """
(() => {
  const hit = (a, b, free) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > free
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > free;
  const found = [];
  for (const drawing of document.querySelectorAll('.drawing')) {
    const boxes = selector =>
      [...drawing.querySelectorAll(selector)].map(e => [e.textContent, e.getBoundingClientRect()]);
    const texts = boxes('.annotation-text, .bartext');
    const { left } = drawing.querySelector('.nsewdrag').getBoundingClientRect(); // bars of a log axis begin before it
    const marks = boxes('.scatterlayer .point, .bars .point path')
      .map(([name, { top, right, bottom, x }]) => [name, { top, right, bottom, left: Math.max(left, x) }]);
    const lines = boxes('.scatterlayer .js-line');
    texts.forEach(([text, box], index) => {
      for (const [, mark] of marks)
        if (hit(box, mark, mark.right - mark.left < 4 ? -0.5 : 3)) found.push(`${text} on a mark`);
      for (const [other, place] of texts.slice(0, index)) if (hit(box, place, 3)) found.push(`${text} on ${other}`);
      for (const [, line] of lines) if (/^[0-9]/.test(text) && hit(box, line, -1)) found.push(`${text} on a line`);
    });
  }
  return found;
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
    page = write_page(comparison(results=tuple(many) if copies > 1 else untraced(comparison().results)))
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


# Figures


@pytest.fixture(scope="class")
def opened(browser, write_page):
    browser.look(width=1200)
    browser.open(page := write_page(comparison()), DRAWN)
    return page


@pytest.mark.usefixtures("opened")
class TestDrawn:
    """The page of `comparison()`, opened once."""

    def test_every_figure_is_drawn_without_complaint_or_network(self, browser, opened):
        traced = [one for one in comparison().results if one.trace]
        read = sum(one[2] > 0 for one in LOADERS.values())
        marks = {
            "epoch-times": ("bars .point path", 2 * len(LOADERS)),
            "loading-times": ("bars .point path", len(LOADERS)),
            "score-epochs": ("scatterlayer .point", 8 * len(LOADERS)),
            "score-seconds": ("scatterlayer .point", 8 * len(LOADERS)),
            "read-bytes": ("bars .point path", read),
            "cache-sweep": ("scatterlayer .js-line", 5),
            "prepare-seconds": ("bars .point path", len(LOADERS)),
            "prepared-bytes": ("bars .point path", sum(one[5] > 0 for one in LOADERS.values())),
            **{f"timeline-{n}": ("bars .point path", len(one.trace)) for n, one in enumerate(traced)},
        }
        found = {key: browser.evaluate(f"{MARKS}('#{key} .{selector}')") for key, (selector, _) in marks.items()}
        # Of waits of a fraction of a millisecond in seconds of others, none may vanish; so all counts are exact.
        assert found == {key: count for key, (_, count) in marks.items()}
        assert browser.evaluate(f"{MARKS}('#seconds-to-score .bars .point path')") > 0
        assert browser.evaluate("document.querySelectorAll('.drawing').length") == len(marks) + 1
        assert_all_ok(browser, opened)
        assert opened.stat().st_size < 5.5e6

    def test_bars_are_as_long_as_their_numbers(self, browser):
        """On axes that start at 0, however far apart the numbers are."""
        read_bytes = sorted(rows * size for _, _, rows, size, *_ in LOADERS.values() if rows)
        loading = sorted(seconds for seconds, *_ in LOADERS.values())
        for figure, expected in (("read-bytes", read_bytes), ("loading-times", loading)):
            bars = f"[...document.querySelectorAll('#{figure} .bars .point path')]"
            widths = browser.evaluate(f"{bars}.map(e => e.getBoundingClientRect().width)")
            np.testing.assert_allclose(np.divide(widths, widths[-1]), np.divide(expected, expected[-1]), atol=0.01)

    def test_the_list_of_lines_shows_what_is_drawn(self, browser):
        drawn = browser.evaluate(
            "[...document.querySelectorAll('#cache-sweep .js-line')].map(e => getComputedStyle(e).stroke).sort()"
        )
        listed = browser.evaluate(
            "[...document.querySelectorAll('#cache-sweep .series path:first-child')]"
            ".map(e => getComputedStyle(e).stroke).sort()"
        )
        assert listed == drawn
        looks = browser.evaluate("[...document.querySelectorAll('section > .series svg')].map(e => e.outerHTML)")
        assert len(set(looks)) == len(looks) == len(LOADERS)


def test_a_spread_is_drawn_where_something_was_measured_several_times(browser, write_page):
    runs = [result("diskgnn, one epoch reused"), result("in-memory")]
    repeated = dataclasses.replace(runs[0].training, repeats_seconds=(20.0, 28.0, 40.0))
    page = write_page(comparison(results=(dataclasses.replace(runs[0], training=repeated), runs[1])))
    browser.look(width=1200)
    browser.open(page, DRAWN)
    widths = browser.evaluate(
        "[...document.querySelectorAll('.xerror')].map(e => e.getBoundingClientRect().width).filter(width => width > 0)"
    )
    assert [width > 20 for width in widths] == [True]  # of the two loaders, the one
    assert page.read_text().count("20.0\xa0s to 40.0\xa0s") == 1


@pytest.mark.parametrize(("width", "epochs"), [(1200, 8), (700, 1), (400, 8)])
def test_no_number_lies_on_a_tick_or_a_line(browser, write_page, width, epochs):
    """With ticks right behind the bars' ends, where their numbers once were."""
    results = untraced(result(name, seed, epochs) for name in LOADERS for seed in range(2))
    shifted = (dataclasses.replace(one, bound_seconds=1.1 * (one.loading or one.training).seconds) for one in results)
    close_page = write_page(comparison(results=tuple(shifted)))
    browser.look(width=width)
    browser.open(close_page, DRAWN)
    assert browser.evaluate(f"{MARKS}('#epoch-times .annotation-text')") == 3 * len(LOADERS) + 1
    assert browser.evaluate(f"{MARKS}('#loading-times .annotation-text')") == 2 * len(LOADERS)
    assert browser.evaluate(COLLISIONS) == []
    assert_all_ok(browser, close_page)


def test_one_epoch_makes_bars_of_accuracy(browser, write_page):
    results = untraced(result(name, seed, 1) for name in LOADERS for seed in range(3))
    page = write_page(comparison(results=results))
    browser.look(width=1200)
    browser.open(page, DRAWN)
    shown = browser.evaluate("[...document.querySelectorAll('#score .annotation-text')].map(e => e.textContent)")
    found = [one.epochs[0].test_score for one in results if one.name == "ginex"]
    assert f"{np.mean(found):.2%} ± {np.std(found, ddof=1):.2%}" in shown
    assert browser.evaluate(f"{MARKS}('#score .bars .point path')") == len(LOADERS)
    assert not browser.evaluate("document.querySelector('#score-epochs')")
    assert_all_ok(browser, page)


def test_loaders_have_their_own_colours():
    colors = {color_of(loader) for loader in [*COMPARED, "another"]}
    assert len(colors) == len(COMPARED) + 1
    for color in colors:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in np.array(_rgb(color)) / 255]
        light = np.dot(linear, [0.2126, 0.7152, 0.0722])
        assert 1.05 / (light + 0.05) >= 3
        assert (light + 0.05) / (0.0085 + 0.05) >= 3  # on #14171c


def _rgb(color):
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        ({"results": (), "sweep": ()}, set()),
        ({"results": tuple(LoaderResult(name, name, "", *why) for name, why in MISSING.items()), "sweep": ()}, set()),
        ({"results": (dataclasses.replace(result("mmap"), epochs=(), trace=(), open_seconds=0.0),), "sweep": ()},
         {"epoch-times", "loading-times", "read-bytes"}),
        ({"results": (LoaderResult("mmap", "mmap", "", "ok", loading=cost(3.0, 3.0)),), "sweep": ()},
         {"loading-times"}),
        ({"results": (result("in-memory", epochs=1),), "sweep": ()},
         {"epoch-times", "loading-times", "timeline-0", "score", "prepare-seconds"}),
        ({"results": (), "graph": {}, "settings": {}, "machine": {}}, {"cache-sweep"}),
    ],
)  # fmt: skip
def test_what_there_is_no_data_for_is_left_out(browser, write_page, changes, figures):
    page = write_page(comparison(**changes))
    browser.look(width=800)
    browser.open(page, DRAWN)
    shown = browser.evaluate("[...document.querySelectorAll('.figure')].map(figure => figure.id)")
    assert set(shown) == figures
    headings = browser.evaluate("[...document.querySelectorAll('main > section')].map(part => part.children.length)")
    assert min(headings) > 1  # no heading without content
    assert_all_ok(browser, page)
