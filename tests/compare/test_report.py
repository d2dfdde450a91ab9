"""The report of a comparison, looked at in a browser."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from browser import NAMES, Browser, find_browser
from comparisons import LOADERS, MISSING, comparison, cost, result
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from diskgnn.compare import report
from diskgnn.compare.loaders import LOADERS as COMPARED
from diskgnn.compare.report.figures import color_of
from diskgnn.compare.report.page import document
from diskgnn.compare.report.write import check_report_possible, write_report
from diskgnn.compare.results import EpochPoint, LoaderResult, SweepPoint
from diskgnn.compare.summary import summarize
from diskgnn.errors import ConfigError
from diskgnn.tracing import TraceEvent, read_trace

DRAWN = "[...document.querySelectorAll('.drawing')].every(place => place.querySelector('.main-svg .trace'))"
MARKS = """
(selector => [...document.querySelectorAll(selector)].filter(mark => {
  const box = mark.getBoundingClientRect(); return box.width > 0 && box.height > 0 }).length)
"""
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
SCRIPT = "<script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    executable = find_browser()
    if executable is None:
        pytest.skip(f"needs a browser: one of {', '.join(NAMES)}")
    with Browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(comparison(), path)
    return path


def _all_ok(browser, page):
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_every_figure_is_drawn_without_complaint_or_network(browser, page):
    browser.look(width=1200)
    browser.open(page, DRAWN)
    traced = [one for one in comparison().results if one.trace]
    read = sum(one[2] > 0 for one in LOADERS.values())
    marks = {
        "epoch-times": ("bars .point path", 2 * len(LOADERS)),
        "accuracy-epochs": ("scatterlayer .point", 8 * len(LOADERS)),
        "accuracy-seconds": ("scatterlayer .point", 8 * len(LOADERS)),
        "read-bytes": ("bars .point path", read),
        "cache-sweep": ("scatterlayer .js-line", 5),
        "prepare-seconds": ("bars .point path", len(LOADERS)),
        "prepared-bytes": ("bars .point path", sum(one[5] > 0 for one in LOADERS.values())),
        **{f"timeline-{n}": ("bars .point path", len(one.trace)) for n, one in enumerate(traced)},
    }
    found = {key: browser.evaluate(f"{MARKS}('#{key} .{selector}')") for key, (selector, _) in marks.items()}
    # Of waits of a fraction of a millisecond in seconds of others, none may vanish; so all counts are exact.
    assert found == {key: count for key, (_, count) in marks.items()}
    assert browser.evaluate(f"{MARKS}('#seconds-to-accuracy .bars .point path')") > 0
    assert browser.evaluate("document.querySelectorAll('.drawing').length") == len(marks) + 1
    _all_ok(browser, page)
    assert page.stat().st_size < 5.5e6


def test_bars_are_as_long_as_their_numbers(browser, page):
    browser.look(width=1200)
    browser.open(page, DRAWN)
    widths = browser.evaluate(
        "[...document.querySelectorAll('#read-bytes .bars .point path')].map(bar => bar.getBoundingClientRect().width)"
    )
    expected = sorted(rows * size for _, _, rows, size, *_ in LOADERS.values() if rows)
    np.testing.assert_allclose(np.divide(widths, widths[-1]), np.divide(expected, expected[-1]), atol=0.01)


@pytest.mark.parametrize("width", [1200, 700, 400])
@pytest.mark.parametrize("epochs", [8, 1])
def test_no_number_lies_on_a_tick_or_a_line(browser, tmp_path, width, epochs):
    page = tmp_path / "report.html"
    results = [result(name, seed, epochs) for name in LOADERS for seed in range(2)]
    # Ticks right behind the bars' ends, where their numbers once were.
    shifted = (dataclasses.replace(one, bound_seconds=1.1 * one.training.seconds) for one in results)
    write_report(comparison(results=tuple(shifted)), page)
    browser.look(width=width)
    browser.open(page, DRAWN)
    assert browser.evaluate(f"{MARKS}('#epoch-times .annotation-text')") == 3 * len(LOADERS) + 1
    assert browser.evaluate(COLLISIONS) == []
    _all_ok(browser, page)


def test_the_list_of_lines_shows_what_is_drawn(browser, page):
    browser.look(width=1200)
    browser.open(page, DRAWN)
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


def test_one_epoch_makes_bars_of_accuracy(browser, tmp_path):
    page = tmp_path / "report.html"
    results = [result(name, seed, 1) for name in LOADERS for seed in range(3)]
    write_report(comparison(results=tuple(results)), page)
    browser.look(width=1200)
    browser.open(page, DRAWN)
    shown = browser.evaluate("[...document.querySelectorAll('#accuracy .annotation-text')].map(e => e.textContent)")
    found = [one.epochs[0].test_accuracy for one in results if one.name == "ginex"]
    assert f"{np.mean(found):.2%} ± {np.std(found, ddof=1):.2%}" in shown
    assert browser.evaluate(f"{MARKS}('#accuracy .bars .point path')") == len(LOADERS)
    assert not browser.evaluate("document.querySelector('#accuracy-epochs')")
    _all_ok(browser, page)


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


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_horizontal_scrolling(browser, page, dark):
    browser.look(width=400, dark=dark)
    browser.open(page, DRAWN)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    inside = (
        "[...document.querySelectorAll('.drawing .main-svg')].every(svg => svg.getBoundingClientRect().right <= 400)"
    )
    assert browser.evaluate(inside)
    scrolling = "[...document.querySelectorAll('.table')].map(box => box.scrollWidth > box.clientWidth)"
    assert any(browser.evaluate(scrolling))  # wide tables scroll in their own boxes
    assert "gradient" in browser.evaluate("getComputedStyle(document.querySelector('.table')).backgroundImage")
    lines = """[...document.querySelectorAll('td.words:not(:last-child)')].map(cell => {
      const range = document.createRange(); range.selectNodeContents(cell); return range.getClientRects().length })"""
    words = [text.count(" ") + 1 for text, _ in MISSING.values()]
    assert all(found <= most for found, most in zip(browser.evaluate(lines), words, strict=True))  # none is broken
    assert browser.evaluate("getComputedStyle(document.querySelector('.series')).display") == "flex"
    assert browser.evaluate("document.querySelectorAll('#accuracy-epochs .annotation').length") == 0
    _all_ok(browser, page)


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
        _all_ok(browser, page)
    assert backgrounds == {"rgb(255, 255, 255)", "rgb(20, 23, 28)"}


@pytest.mark.parametrize("copies", [1, 8])
def test_on_paper_figures_are_whole_and_light(browser, tmp_path, copies):
    page = tmp_path / "report.html"
    results = [result(name) for name in LOADERS]
    many = (dataclasses.replace(one, name=f"{one.name} {copy}") for one in results for copy in range(copies))
    write_report(comparison(results=tuple(many)) if copies > 1 else comparison(), page)
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
    printed = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert printed.startswith(b"%PDF")
    if copies == 1:
        assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 7
    _all_ok(browser, page)


def test_outside_words_are_shown_not_run(browser, tmp_path):
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
    page = tmp_path / "report.html"
    write_report(made, page)
    browser.look(width=400)
    browser.open(page, DRAWN)
    _all_ok(browser, page)
    assert browser.evaluate("window.hacked") is None
    assert browser.evaluate("document.scripts.length") == 3
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.querySelector('pre').textContent") == hostile
    assert browser.evaluate("document.querySelector('#timeline-0 h3').textContent") == hostile
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    drawn = browser.evaluate("[...document.querySelectorAll('#read-bytes .annotation-text')].map(e => e.textContent)")
    assert any(hostile in text for text in drawn), drawn


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        ({"results": (), "sweep": ()}, set()),
        ({"results": tuple(LoaderResult(name, name, "", *why) for name, why in MISSING.items()), "sweep": ()}, set()),
        ({"results": (dataclasses.replace(result("mmap"), epochs=(), trace=(), open_seconds=0.0),), "sweep": ()},
         {"epoch-times", "read-bytes"}),
        ({"results": (LoaderResult("mmap", "mmap", "", "ok", loading=cost(3.0, 3.0)),), "sweep": ()}, {"epoch-times"}),
        ({"results": (result("in-memory", epochs=1),), "sweep": ()},
         {"epoch-times", "timeline-0", "accuracy", "seconds-to-accuracy", "prepare-seconds"}),
        ({"results": (), "graph": {}, "settings": {}, "machine": {}}, {"cache-sweep"}),
    ],
)  # fmt: skip
def test_what_there_is_no_data_for_is_left_out(browser, tmp_path, changes, figures):
    page = tmp_path / "report.html"
    write_report(comparison(**changes), page)
    browser.look(width=800)
    browser.open(page, DRAWN)
    shown = browser.evaluate("[...document.querySelectorAll('.figure')].map(figure => figure.id)")
    assert set(shown) == figures
    headings = browser.evaluate("[...document.querySelectorAll('main > section')].map(part => part.children.length)")
    assert min(headings) > 1  # no heading without content
    _all_ok(browser, page)


SECONDS = st.just(0.0) | st.floats(1e-9, 1e6)  # clocks count nanoseconds
COSTS = st.builds(
    lambda rows, seconds, size, kernel, minibatches: dataclasses.replace(
        cost(seconds, seconds / 3, rows, size), device_read_bytes=kernel, minibatches=minibatches
    ),
    st.integers(0, 10**10), SECONDS, st.integers(0, 4096), st.none() | st.integers(0, 10**13), st.integers(0, 10**6),
)  # fmt: skip
ACCURACIES = st.none() | st.floats(0, 1)
RESULTS = st.builds(
    LoaderResult,
    name=st.sampled_from(["diskgnn", "diskgnn, two", "in-memory", "ginex", "ä<"]),
    loader=st.sampled_from(["diskgnn", "in-memory", "ginex"]),
    variant=st.sampled_from(["", "two"]),
    status=st.sampled_from(["ok", "ok", "failed", "out of memory"]),
    message=st.text(max_size=9),
    prepare_seconds=SECONDS,
    prepared_bytes=st.integers(0, 10**14),
    peak_disk_bytes=st.integers(0, 10**14),
    loading=st.none() | COSTS,
    training=st.none() | COSTS,
    row_bytes=st.integers(0, 4096),
    belady_rows=st.none() | st.integers(0, 10**10),
    bound=st.sampled_from(["", "memory", "random reads"]),
    bound_seconds=SECONDS,
    epochs=st.lists(
        st.builds(EpochPoint, st.integers(0, 3), SECONDS, st.floats(), ACCURACIES, ACCURACIES), max_size=4
    ).map(tuple),
    trace=st.lists(
        st.tuples(st.sampled_from(["disk", "train", "x"]), st.text(max_size=5), st.integers(0, 10**10),
                  st.integers(0, 10**10)), max_size=4,
    ).map(lambda events: tuple(TraceEvent(*names, -1, start, start + length) for *names, start, length in events)),
)  # fmt: skip


@settings(max_examples=60, deadline=None, phases=set(Phase) - {Phase.shrink})
@given(st.lists(RESULTS, max_size=6), st.sampled_from([None, 5]))
def test_any_records_make_a_page(results, max_batches):
    made = comparison(results=tuple(results), settings={"max_batches": max_batches})
    text = document(made)
    assert text.count("<script") == 3
    assert {one.name for one in results if one.status != "ok"} <= {one.name for one in summarize(results)}
    figures = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1]
    json.loads(figures, parse_constant=pytest.fail)  # NaN and infinities, which are no JSON


def test_the_trace_can_be_taken_out_of_the_page(page, tmp_path):
    links = re.findall(r'href="data:application/gzip;base64,([^"]+)" download="([^"]+)"', page.read_text())
    traced = {one.name: one for one in comparison().results if one.trace}
    assert len(links) == len(traced)
    content, name = links[list(traced).index("diskgnn, one epoch reused")]
    assert name == "diskgnn--one-epoch-reused-trace.json.gz"
    (tmp_path / "trace.json").write_bytes(gzip.decompress(base64.b64decode(content)))
    events = traced["diskgnn, one epoch reused"].trace
    start = min(event.start_ns for event in events)
    shifted = {
        dataclasses.replace(event, start_ns=event.start_ns - start, end_ns=event.end_ns - start) for event in events
    }
    assert set(read_trace(tmp_path / "trace.json")) == shifted


def test_plotly_is_asked_for_by_name_and_only_for_a_report(monkeypatch):
    imported = "import sys, diskgnn, diskgnn.cli, diskgnn.compare.report.write; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'diskgnn\[report\]'"):
        check_report_possible()


def test_a_report_that_cannot_be_written_costs_nothing(tmp_path):
    with pytest.raises(ConfigError, match="--report: cannot write"):
        write_report(comparison(), tmp_path / "missing" / "report.html")
    path = tmp_path / "report.html"
    path.write_text("before")
    write_report(comparison(), path)
    assert path.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]
