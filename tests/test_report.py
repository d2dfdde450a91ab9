"""The report of a comparison, looked at in a browser; its sentences and numbers against ones worked out here."""

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
from diskgnn.compare.answer import headline, reasons
from diskgnn.compare.figures import color_of
from diskgnn.compare.loaders import LOADERS as COMPARED
from diskgnn.compare.page import document
from diskgnn.compare.report import check_report_possible, write_report
from diskgnn.compare.results import EpochPoint, LoaderResult, SweepPoint
from diskgnn.compare.summary import busiest_stage, duration, seconds_to, summarize, target_accuracy
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


@pytest.mark.parametrize(
    ("mine", "ginex", "memory", "expected"),
    [
        (31.2, 387.0, 29.4, "diskgnn trains an epoch in 31.2 s, 12.4× faster than the fastest baseline on disk (ginex, "
                            "387 s); that is 1.06× slower than in-memory."),
        (40.0, 20.0, None, "diskgnn trains an epoch in 40.0 s, 2.00× slower than the fastest baseline on disk (ginex, "
                           "20.0 s)."),
        (40.0, 40.4, None, "diskgnn trains an epoch in 40.0 s, as fast as the fastest baseline on disk (ginex, "
                           "40.4 s)."),
        (0.05, None, 0.1, "diskgnn trains an epoch in 50.0 ms, that is 2.00× faster than in-memory."),
        (None, 20.0, 10.0, "diskgnn was not compared; of the others in-memory is the fastest: 10.0 s."),
        (None, None, None, "Nothing was compared."),
    ],
)  # fmt: skip
def test_headline(mine, ginex, memory, expected):
    results = [_trained("diskgnn", mine), _trained("ginex", ginex), _trained("in-memory", memory, bound="memory")]
    made = comparison(results=tuple(one for one in results if one))
    assert headline(made, summarize(made.results)).replace("\xa0", " ") == expected


def _trained(name, seconds, wait=0.0, **changes):
    if seconds is None:
        return None
    fields = {"bound": "random reads", "training": cost(seconds, wait), **changes}
    return LoaderResult(name, name, "", "ok", **fields)


def test_headline_tells_that_ours_failed_and_that_the_epoch_was_cut():
    failed = LoaderResult("diskgnn", "diskgnn", "", "out of memory", "killed")
    made = comparison(results=(failed, _trained("ginex", 4.0)))
    assert headline(made, summarize(made.results)).startswith(
        "diskgnn has no result (out of memory); of the others ginex"
    )
    made = comparison(results=(_trained("diskgnn", 4.0), _trained("ginex", 8.0)), settings={"max_batches": 94})
    assert headline(made, summarize(made.results)).startswith("diskgnn trains 94 minibatches in 4.00\xa0s")


def test_preparation_is_told_in_epochs_that_repay_it():
    # 100 s ahead of ginex's 10 s, 20 s gained an epoch: 4 epochs gain 80 s, 5 gain 100 s > 90 s
    made = comparison(
        results=(_trained("diskgnn", 10.0, prepare_seconds=100.0), _trained("ginex", 30.0, prepare_seconds=10.0))
    )
    (told,) = reasons(summarize(made.results))
    assert told.replace("\xa0", " ") == "Preparing takes 100 s, repaid in the 5th epoch against ginex."


def test_the_reason_names_the_stage():
    trace = (
        TraceEvent("train", "forward", 0, 0, 90), TraceEvent("assemble", "wait for disk", 0, 0, 80),
        TraceEvent("assemble", "gather", 0, 80, 100), TraceEvent("assemble", "gather", 1, 100, 140),
        TraceEvent("disk", "read", 0, 0, 50), TraceEvent("train", "step", 1, 140, 200),
    )  # fmt: skip
    waiting = _trained(
        "diskgnn", 40.0, 25.0, bound="sequential reads", bound_seconds=10.0, loading=cost(30.0, 30.0), trace=trace
    )
    memory = _trained("in-memory", 15.0, 0.0, bound="memory")

    def told(mine, *others):
        made = comparison(results=(mine, *others))
        return reasons(summarize(made.results))[-1].replace("\xa0", " ")

    assert told(waiting, memory) == (
        "Why it is slower than in-memory: training waited 25.0 s of 40.0 s for minibatches (62%); the loader alone "
        "takes 3.00× of its own bound, sequential reads (10.0 s), and its busiest stage is 'gather' on 'assemble' (30% "
        "of the timeline)."
    )
    at_bound = dataclasses.replace(waiting, loading=cost(11.0, 11.0))
    assert "the loader is at its own bound, sequential reads (10.0 s an epoch)" in told(at_bound, memory)
    computing = dataclasses.replace(waiting, training=cost(40.0, 1.0))
    assert "waited only 2% of the time, but computing took 39.0 s against 15.0 s" in told(computing, memory)
    assert told(waiting, memory, _trained("ginex", 20.0)).startswith("Why it is slower than ginex")


def test_the_accuracy_told_is_that_of_the_epoch_best_in_validation():
    points = [(0.5, 0.9), (0.7, 0.6), (0.6, 0.8)]  # (validation, test)
    run = dataclasses.replace(
        result("ginex"),
        epochs=tuple(EpochPoint(epoch, 10.0 * epoch, 0.1, *found) for epoch, found in enumerate(points)),
    )
    (summary,) = summarize([run])
    assert (summary.accuracy, summary.deviation) == (0.6, 0.0)
    assert target_accuracy([summary]) == 0.6
    assert summary.total_seconds == 20.0 / 3


def test_it_is_told_what_an_epoch_costs_that_is_never_reused():
    def trained(name, loader, seconds, total, variant=""):
        epochs = (EpochPoint(0, total / 2, 0.1, None, None), EpochPoint(1, 2 * total, 0.1, None, None))
        run = _trained(name, seconds, epochs=epochs)
        return dataclasses.replace(run, loader=loader, variant=variant)

    told = reasons(summarize([
        trained("diskgnn, every epoch fresh", "diskgnn", 20.0, 25.0, "fresh"),
        trained("cached reads, LRU", "cached-reads", 70.0, 70.0),
        trained("cached reads, SIEVE", "cached-reads", 50.0, 50.0),
        trained("mmap", "mmap", 12.5, 12.5),
    ]))  # fmt: skip
    assert (
        "Without any reuse, every epoch sampled and packed anew, an epoch takes 25.0\N{NO-BREAK SPACE}s with its "
        "preparation: 2.00× faster than cached reads, SIEVE (50.0\N{NO-BREAK SPACE}s), 2.00× slower than mmap "
        "(12.5\N{NO-BREAK SPACE}s)."
    ) in told


def test_reads_in_flight_together_count_once():
    trace = [TraceEvent("disk", "read", n, start, start + 60) for n, start in enumerate((0, 10, 20, 200))]
    trace += [TraceEvent("assemble", "gather", 0, 0, 100), TraceEvent("assemble", "gather", 1, 110, 120)]
    trace += [TraceEvent("assemble", "wait for disk", 0, 0, 300), TraceEvent("train", "step", 0, 0, 300)]
    # Reading takes 0 to 80 and 200 to 260; gathering 100 and 10, of 300 in all.
    assert busiest_stage(trace) == ("disk", "read", pytest.approx(140 / 300))
    assert busiest_stage(trace[:4]) == ("disk", "read", pytest.approx(140 / 260))
    assert busiest_stage(trace[6:]) is None


def test_seeds_are_averaged():
    results = [result("ginex", seed) for seed in range(4)] + [result("in-memory", seed) for seed in range(4)]
    ginex, memory = summarize(results)
    accuracies = np.array([[point.test_accuracy for point in one.epochs] for one in results[:4]])
    seconds = np.array([[point.seconds for point in one.epochs] for one in results[:4]])
    np.testing.assert_allclose([point.accuracy for point in ginex.curve], accuracies.mean(0))
    np.testing.assert_allclose([point.deviation for point in ginex.curve], accuracies.std(0, ddof=1))
    np.testing.assert_allclose([point.seconds for point in ginex.curve], seconds.mean(0))
    assert ginex.training_seconds == pytest.approx(np.mean([one.training.seconds for one in results[:4]]))
    assert ginex.seeds == 4
    assert ginex.accuracy == pytest.approx(accuracies[:, -1].mean())  # nothing validated: the last epoch
    assert ginex.deviation == pytest.approx(accuracies[:, -1].std(ddof=1))
    best = max(ginex, memory, key=lambda one: one.accuracy)
    assert target_accuracy([ginex, memory]) == best.accuracy - best.deviation
    assert ginex.total_seconds == pytest.approx(seconds[:, -1].mean() / 8)
    reached = np.argmax(accuracies.mean(0) >= accuracies.mean(0).max())
    assert seconds_to(accuracies.mean(0).max(), ginex.curve) == pytest.approx(seconds.mean(0)[reached])
    assert seconds_to(1.1, ginex.curve) is None


def test_a_seed_that_failed_is_told():
    broken = dataclasses.replace(result("ginex", 1), status="out of memory", message="killed", epochs=())
    (one,) = summarize([result("ginex"), broken])
    assert (one.ok, one.seeds, one.message) == (True, 1, "1 of 2 seeds: out of memory, killed")


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


def test_durations_have_three_digits():
    shown = [duration(seconds).replace("\xa0", " ") for seconds in (0, 0.0523, 0.3, 31.21, 99.96, 599.9, 754, 9000)]
    assert shown == ["0 s", "52.3 ms", "0.300 s", "31.2 s", "100 s", "600 s", "12.6 min", "2.50 h"]


def test_plotly_is_asked_for_by_name_and_only_for_a_report(monkeypatch):
    imported = "import sys, diskgnn, diskgnn.cli, diskgnn.compare.report; print('plotly' in sys.modules)"
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
