"""Renew the tables of README.md and docs/ that a command measures, by running the commands beside them.

    tools/figures                           # those that take seconds
    tools/figures --all                     # also those that take minutes
    tools/figures docs/SCALE.md             # those of one page
    tools/figures --list                    # when and how each was measured, and what changed since; runs nothing

A measured table has a line like this before it:

    <!-- figure: 2026-11-24 3aa57d6; seconds; tools/stage_sizes.py diskgnn/sampling -->

It says when and at which commit the figures were measured, how long that takes, and of which code they are. The next
table of the page holds the figures, the next code block the command. That runs in an empty folder with links to `tools`
and `datasets`, and prints lines `| name | figure | ... |`. Each row of the page gets the figures printed with its name.
All of them must be printed; more may be.

`minutes, idle` stands for what measures time. Anything else in that place is the reason why no command renews the
table, such as `a GPU` or `hours: five seeds`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKER = re.compile(r"<!-- figure: (\S+) (\w+); ([^;]+); ([^;]+?) -->")
FENCE, INDENTED = re.compile(r"```bash\n(.*?)^```$", re.S | re.M), re.compile(r"(?:^ {4}.*\n)+", re.M)
TABLE = re.compile(r"^\|.*\n\|[-:| ]+\|\n((?:^\|.*\n)+)", re.M)
BUSY_LOAD = 0.7  # of others, at which times mean nothing


@dataclass(frozen=True)
class Figure:
    """A marker, and what follows it.

    Attributes:
        page: relative to the root.
        line: of the marker.
        renewed: (date, commit).
        takes: "seconds" or "minutes", maybe with ", idle"; or why it cannot be renewed.
        code: paths of what it measures.
        command: "" where there is no code block.
    """

    page: str
    line: int
    renewed: tuple[str, str]
    takes: str
    code: tuple[str, ...]
    command: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"

    @property
    def has_command(self) -> bool:
        """False where nothing renews it, whatever code block follows."""
        return self.takes.removesuffix(", idle") in ("seconds", "minutes")


def figures_of(page: str, text: str) -> list[Figure]:
    """Those of a page, from top to bottom."""
    markers, found = list(MARKER.finditer(text)), []
    ends = [*(marker.start() for marker in markers[1:]), len(text)]
    for marker, end in zip(markers, ends, strict=False):
        rest = text[marker.end() : end]
        blocks = [each for pattern in (FENCE, INDENTED) if (each := pattern.search(rest))]
        block = min(blocks, key=lambda each: each.start(), default=None)
        command = textwrap.dedent(block[1] if block.re is FENCE else block[0]).strip() if block else ""
        stamp, code = (marker[1], marker[2]), tuple(marker[4].split())
        found.append(Figure(page, text.count("\n", 0, marker.start()) + 1, stamp, marker[3], code, command))
    return found


def renewed(text: str, figure: Figure, printed: str, stamp: tuple[str, str]) -> str:
    """The page with what the command printed, and with the new stamp.

    Raises:
        ValueError: there is no table, or a row of it was not printed, or with another number of figures.
    """
    begin = sum(map(len, text.splitlines(keepends=True)[: figure.line - 1]))
    table = TABLE.search(text, begin)
    if table is None:
        raise ValueError("no table follows")
    known = {cells[0]: cells for line in printed.splitlines() if (cells := _cells(line))}
    rows = []
    for line in table[1].splitlines():
        name, *old = _cells(line)
        if len(known.get(name, ())) != 1 + len(old):
            raise ValueError(f"expected {len(old)} figures for {name!r}, found {known.get(name, [])[1:]}")
        rows.append("| " + " | ".join(known[name]) + " |\n")
    marker = f"<!-- figure: {' '.join(stamp)}; {figure.takes}; {' '.join(figure.code)} -->"
    text = text[: table.start(1)] + "".join(rows) + text[table.end(1) :]
    return text[:begin] + MARKER.sub(marker, text[begin:], count=1)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def changes_since(root: Path, figure: Figure) -> str:
    """What happened to the code of a figure since it was measured, in words."""
    commit = figure.renewed[1]
    found = _git(root, "log", "--oneline", f"{commit}..HEAD", "--", *figure.code)
    if found is None:
        return f"commit {commit} is not known here"
    return f"{len(found.splitlines())} commits since" if found else "as the code is"


def _git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def printed_by(root: Path, figure: Figure, folder: Path | None) -> str:
    """What the command of a figure prints.

    Raises:
        ValueError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="diskgnn-figures-", dir=folder) as work:
        for each in ("tools", "datasets"):
            (Path(work) / each).symlink_to(root / each)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(root)}
        bash = ["bash", "-euo", "pipefail", "-c", figure.command]
        done = subprocess.run(bash, cwd=work, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ValueError(f"the command ended with {done.returncode}")
    return done.stdout


def reason_to_leave(root: Path, figure: Figure, minutes: bool, load: float) -> str | None:
    """Why a figure is not renewed now, where others put this load on the machine; None if it is."""
    if not figure.has_command:
        return figure.takes
    if figure.takes.startswith("minutes") and not minutes:
        return "takes minutes: --all"
    if figure.takes.endswith(", idle") and load > BUSY_LOAD:
        return f"measures time, and others use this machine (load {load:.1f})"
    if _git(root, "status", "--porcelain", "--", *figure.code):
        return f"not committed: {' '.join(figure.code)}"
    return None


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Renew what can be, list what was left; 1 if a command failed."""
    parser = argparse.ArgumentParser(
        prog="tools/figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", help="relative to the repository; by default all")
    parser.add_argument("--all", action="store_true", help="also those that take minutes")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--folder", type=Path, help="for what commands write; the largest takes 60 GB")
    options = parser.parse_args(arguments)
    pages = options.pages or ["README.md", *sorted(str(each.relative_to(root)) for each in root.glob("docs/**/*.md"))]
    left, failed, load = [], 0, os.getloadavg()[0]  # later it is that of the commands
    for page in pages:
        for number, figure in enumerate(figures_of(page, (root / page).read_text())):
            if options.list:
                age = " ".join((*figure.renewed, f"({changes_since(root, figure)})"))
                command = textwrap.indent(figure.command, "    ") if figure.has_command else f"    not: {figure.takes}"
                print(f"{figure.where}: {age}\n{command}")
            elif reason := reason_to_leave(root, figure, options.all, load):
                left.append(f"{figure.where}: {reason}")
            else:
                print(f"{figure.where}: {figure.command}", flush=True)
                try:
                    printed = printed_by(root, figure, options.folder)
                    stamp = str(date.today()), _git(root, "rev-parse", "--short", "HEAD") or "unknown"
                    text = (root / page).read_text()
                    now = figures_of(page, text)[number]  # the lines above it may be others now
                    (root / page).write_text(renewed(text, now, printed, stamp))
                except ValueError as error:
                    failed += 1
                    left.append(f"{figure.where}: FAILED, {error}")
    if "README.md" in pages and not options.list:
        subprocess.run([sys.executable, root / "tools" / "draw_readme.py"], check=True)
    print("\n".join(["", "not renewed:", *left] if left else []))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
