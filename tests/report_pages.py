"""What tests of the report's page ask of it in a browser."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from browser import NAMES, Browser, find_browser
from comparisons import comparison

from diskgnn.compare.comparison_record import Comparison, LoaderResult
from diskgnn.compare.report.write import write_report

DRAWN = "[...document.querySelectorAll('.drawing')].every(place => place.querySelector('.main-svg .trace'))"
MARKS = """
(selector => [...document.querySelectorAll(selector)].filter(mark => {
  const box = mark.getBoundingClientRect(); return box.width > 0 && box.height > 0 }).length)
"""
_SCRIPT_LINE = 5000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the tests of a module."""
    executable = find_browser()
    if executable is None:
        pytest.skip(f"needs a browser: one of {', '.join(NAMES)}")
    with Browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def write_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Comparison], Path]:
    """Writes the report of a comparison, in place of the one before.

    A browser compiles a script once for each place of each address where it meets it, which takes 2 seconds of a core
    for plotly.js. So the address is one, and empty lines bring the script to the same line of each page.
    """
    path = tmp_path_factory.mktemp("report") / "report.html"

    def write(shown: Comparison) -> Path:
        write_report(shown, path)
        before, script, after = path.read_text().partition("\n<script>")
        if script:  # a page without figures has none
            lines = before.count("\n")
            assert lines < _SCRIPT_LINE
            path.write_text(before + "\n" * (_SCRIPT_LINE - lines) + script + after)
        return path

    return write


@pytest.fixture
def page(write_page: Callable[[Comparison], Path]) -> Path:
    """The report of `comparison()`."""
    return write_page(comparison())


def untraced(results: Iterable[LoaderResult]) -> tuple[LoaderResult, ...]:
    """But for the first: a timeline takes as long to draw as all other figures of a loader, and has no numbers."""
    first, *others = results
    return (first, *(dataclasses.replace(one, trace=()) for one in others))


def assert_all_ok(browser: Browser, page: Path) -> None:
    """No complaint in the console, and nothing was asked of the network."""
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
