"""What the documentation says can be done: commands exist, links lead somewhere, the tutorial runs as it is written."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from commands import run_python

import diskgnn
from diskgnn.cli import main as cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "datasets" / "README.md", *sorted(DOCS.rglob("*.md"))]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    \S.*\n(?:^(?:    .*)?\n)*)+", re.MULTILINE)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in _FENCE.findall(page.read_text()) if kind == language]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_links_lead_somewhere(page: Path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" in target:
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}#{anchor}"


@each_page
def test_commands_and_their_options_exist(page: Path):
    text = "\n".join([*blocks(page, "bash"), *_INDENTED.findall(_FENCE.sub("", page.read_text()))])
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        words = shlex.split(line, comments=True) if line.startswith("diskgnn ") else []
        if len(words) < 2 or words[1].startswith("-"):
            continue
        assert words[1] in cli.commands, line
        known = {option for parameter in cli.commands[words[1]].params if isinstance(parameter, click.Option)
                 for option in (*parameter.opts, *parameter.secondary_opts)}  # fmt: skip
        assert {word for word in words[2:] if word.startswith("--")} <= known, line


@each_page
def test_python_blocks_parse_and_call_what_there_is(page: Path):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "diskgnn":
                assert node.attr in diskgnn.__all__, node.attr
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("diskgnn."):
                known = inspect.signature(getattr(diskgnn, ast.unparse(node.func).partition(".")[2])).parameters
                assert {keyword.arg for keyword in node.keywords} <= known.keys()


def commands_in(text: str) -> Iterator[list[str]]:
    """Arguments of Python for each line, which is one of its commands and asks no more of a shell than words."""
    for line in text.replace("\\\n", " ").splitlines():
        assert not set(line) & set("|&;<>()$`*?[]#~{}"), line
        command, *words = shlex.split(line)
        assert command in ("diskgnn", "python"), line
        yield ["-m", "diskgnn", *words] if command == "diskgnn" else words


def outcome(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Of Python with these arguments, which has to succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = run_python(*arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_tutorial_runs_and_gives_what_it_says(tmp_path: Path):
    page = DOCS / "tutorial.md"
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    said = ""
    for kind, text in _FENCE.findall(page.read_text()):
        for arguments in commands_in(text) if kind == "bash" else [["-c", text]] if kind == "python" else []:
            said += outcome(arguments, tmp_path).stdout
    shown = " ".join(blocks(page, "text"))
    counts = {*re.findall(r"\d{1,3}(?:,\d{3})+", shown)}
    assert len(counts) >= 8
    assert {count for count in counts if count not in said} == set()
    accuracy = float(re.findall(r"accuracy\s+([\d.]+)%", said)[-1])
    assert accuracy == pytest.approx(float(re.findall(r"test_accuracy\s+([\d.]+)%", shown)[-1]), abs=1.5)


COOKBOOK = (DOCS / "guide" / "csv.md").read_text().split("\n## ")[1:]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", COOKBOOK, ids=lambda recipe: recipe.partition("\n")[0])
def test_the_csv_cookbook_runs_and_prints_what_it_says(recipe: str, tmp_path: Path):
    for name, content in re.findall(r"^`(\S+)`:\n\n```csv\n(.*?)^```$", recipe, re.MULTILINE | re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (commands,) = (text for kind, text in _FENCE.findall(recipe) if kind == "bash")
    done = [outcome(arguments, tmp_path) for arguments in commands_in(commands)]
    said = [" ".join(line.split()) for each in done for line in (each.stdout + each.stderr).splitlines()]
    (shown,) = (text for kind, text in _FENCE.findall(recipe) if kind == "text")
    for line in shown.splitlines():
        expected = ".*".join(re.escape(part.strip()) for part in " ".join(line.split()).split("..."))
        assert any(re.search(expected, each) for each in said), (line, said)
