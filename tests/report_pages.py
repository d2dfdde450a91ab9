"""What tests of the report's page ask of it in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import NAMES, Browser, find_browser
from comparisons import comparison

from diskgnn.compare.report.write import write_report

DRAWN = "[...document.querySelectorAll('.drawing')].every(place => place.querySelector('.main-svg .trace'))"
MARKS = """
(selector => [...document.querySelectorAll(selector)].filter(mark => {
  const box = mark.getBoundingClientRect(); return box.width > 0 && box.height > 0 }).length)
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the tests of a module."""
    executable = find_browser()
    if executable is None:
        pytest.skip(f"needs a browser: one of {', '.join(NAMES)}")
    with Browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of `comparison()`."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(comparison(), path)
    return path


def assert_all_ok(browser: Browser, page: Path) -> None:
    """No complaint in the console, and nothing was asked of the network."""
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
