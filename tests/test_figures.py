"""tools/figures renews a page's tables by the commands beside them; those of the documentation can be renewed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import run_python
from graphs import make_graph

import diskgnn
from diskgnn.formats.packed import Packed

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from renew_figures import TABLE, figures_of, main  # noqa: E402

PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")))
PAGE = """# A page

<!-- figure: 2020-01-01 {commit}; seconds; code.txt -->

| letters | number |
|---|---|
| a | 1 |
| b | 2 |

Prose stays.

    echo '| b | 4 |'
    echo '| a | 3 |'
    echo '| c | 5 |'

<!-- figure: 2020-01-01 {commit}; a GPU; code.txt -->

| letters | number |
|---|---|
| a | 1 |

    exit 1
"""


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", folder, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path, page: str = PAGE) -> str:
    """The first commit of a repository whose second has the page."""
    (folder / "docs").mkdir()
    git(folder, "init", "-q")
    (folder / "code.txt").write_text("code")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "code")
    commit = git(folder, "rev-parse", "--short", "HEAD")
    (folder / "docs" / "page.md").write_text(page.replace("{commit}", commit))
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "page")
    return commit


def test_rows_get_what_the_command_prints_and_the_marker_says_when(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    before = repository(tmp_path)
    assert main(["docs/page.md"], tmp_path) == 0
    text, commit = (tmp_path / "docs" / "page.md").read_text(), git(tmp_path, "rev-parse", "--short", "HEAD")
    assert "| a | 3 |\n| b | 4 |\n\nProse stays." in text
    (day,) = re.findall(rf"<!-- figure: (\S+) {commit}; seconds; code.txt -->", text)
    assert day > "2026-11-23"
    untouched = PAGE[PAGE.index("Prose stays") :].replace("{commit}", before)
    assert text[text.index("Prose stays") :] == untouched
    assert "docs/page.md:16: a GPU" in capsys.readouterr().out


def test_the_list_says_what_changed_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    commit = repository(tmp_path)
    for content in ("one", "two"):
        (tmp_path / "code.txt").write_text(content)
        git(tmp_path, "commit", "-qam", content)
    assert main(["--list", "docs/page.md"], tmp_path) == 0
    said = capsys.readouterr().out
    assert f"docs/page.md:3: 2020-01-01 {commit} (2 commits since)\n    echo '| b | 4 |'" in said
    assert "    not: a GPU" in said
    (tmp_path / "code.txt").write_text("three")  # nobody could tell what was measured
    assert main(["docs/page.md"], tmp_path) == 0
    assert "docs/page.md:3: not committed: code.txt" in capsys.readouterr().out


FAILURES = {
    "echo '| a | 3 |'": "expected 1 figures for 'b', found []",
    "echo '| a | 3 |'; echo '| b | 3 | 4 |'": "found ['3', '4']",
    "echo '| a | 3 |'; echo '| b | 4 |'; exit 3": "ended with 3",
}


@pytest.mark.parametrize("command", FAILURES)
def test_a_command_that_fails_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str):
    repository(tmp_path, re.sub(r"(    echo .*\n)+", f"    {command}\n", PAGE))
    text = (tmp_path / "docs" / "page.md").read_text()
    assert main(["docs/page.md"], tmp_path) == 1
    assert FAILURES[command] in capsys.readouterr().out
    assert (tmp_path / "docs" / "page.md").read_text() == text


@pytest.mark.parametrize("page", PAGES)
def test_markers_of_the_documentation_name_code_that_is_there_and_have_a_table(page: str):
    text = (ROOT / page).read_text()
    figures = figures_of(page, text)
    assert len(figures) == text.count("<!-- figure")
    lines = text.splitlines(keepends=True)
    for figure in figures:
        assert all((ROOT / path).exists() for path in figure.code), figure
        assert TABLE.search("".join(lines[figure.line :])), figure
        assert figure.command or not figure.has_command, figure


def test_a_figure_of_the_documentation_is_what_its_command_prints_today(tmp_path: Path):
    text = (ROOT / "docs" / "SCALE.md").read_text()
    repository(tmp_path, text)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    assert main(["docs/page.md"], tmp_path) == 0
    table = TABLE.search(text)
    assert table is not None
    assert table[0] in (tmp_path / "docs" / "page.md").read_text()


def test_rows_are_counted_as_they_are_packed(tmp_path: Path):
    make_graph(tmp_path / "graph", num_nodes=400, width=8)
    printed = [run_tool(name, tmp_path / "graph") for name in ("count_rows", "count_neighbourhoods")]
    options = {"fanouts": [3, 2], "batch_size": 16, "epochs": 1, "static_cache": 0}
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", cpu_cache="10%", **options)
    rows = Packed.open(tmp_path / "packed").sequence("train").rows
    assert printed[0]["graph, 10%"][0] == f"{rows.disk:,}"
    seeds = len(np.load(tmp_path / "graph" / "train-node.npy"))
    assert printed[1]["graph, 3,2"][-1].split(", ")[1:] == [
        f"{each / seeds:,.0f}" for each in (rows.requested, rows.disk)
    ]


def run_tool(name: str, graph: Path) -> dict[str, list[str]]:
    """Rows of the table that it prints, by their names."""
    command = ROOT / "tools" / f"{name}.py", graph, "--fanouts", "3,2", "--batch-size", "16"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_python(*command, capture_output=True, text=True, check=True, env=environment)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in rows}
