"""The site builds without a warning, has a page for every public name, and asks nobody else for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import diskgnn
from diskgnn.cli import main as cli
from diskgnn.importers.source_formats.registry import FORMATS

pytest.importorskip("mkdocstrings")
pytest.importorskip("material")
ROOT = Path(__file__).parents[1]


class _Page(HTMLParser):
    """What a page loads, and the ids that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids.add(given.get("id"))
        if tag in ("script", "img", "iframe", "source"):
            self.loads.append(given.get("src") or given.get("srcset") or "")
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [ROOT / "tools" / "docs", "build", "--site-dir", folder, "--quiet"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_pages_load_nothing_from_elsewhere_and_nothing_that_is_missing(site: Path):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        for target in _Page(page.read_text()).loads:
            if target and not target.startswith("data:") and page.name != "404.html":
                assert "//" not in target
                assert (page.parent / target.partition("?")[0]).exists(), f"{page.name} loads {target}"


def test_every_public_name_command_and_format_is_in_the_reference(site: Path):
    names = _Page((site / "reference" / "python.html").read_text()).ids
    assert {f"diskgnn.{name}" for name in diskgnn.__all__} <= names
    commands = (site / "reference" / "commands.html").read_text()
    assert all(f"Usage: diskgnn {name}" in commands for name in cli.commands)
    sources = (site / "guide" / "sources.html").read_text()
    assert all(f'id="{name}"' in sources and known.summary[1:8] in sources for name, known in FORMATS.items())
    assert "functools" not in sources


def test_examples_of_docstrings_are_code(site: Path):
    text = (site / "reference" / "python.html").read_text()
    after = re.findall(r"<summary>Example</summary>\s*<(\w+)", text)
    assert len(after) > 5
    assert set(after) == {"div"}


def test_fields_that_functions_take_as_keywords_are_shown(site: Path):
    text = re.sub("<[^>]+>", "", (site / "reference" / "python.html").read_text())
    for name, taken in (("train", "aggregation"), ("prepare", "draw_period"), ("sample", "draw_period")):
        entry = text[text.index(f"\n{name}(") :]
        signature = entry[: entry.index(") -&gt;")]
        assert re.search(rf"^ +{taken}: ", signature, re.MULTILINE)
