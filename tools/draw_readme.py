"""Draws the picture of README's first table: docs/comparison.svg, and docs/comparison-dark.svg for dark pages.

    python tools/draw_readme.py             # after the figures of the table have changed
    python tools/draw_readme.py seconds.json    # draws nothing: prints the table's rows from `diskgnn compare --json`

tests/test_readme_picture.py compares the pictures with the table.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from diskgnn.compare.comparison_record import from_json
from diskgnn.compare.loader_summary import summarize

ROOT = Path(__file__).parents[1]
TABLE = "| rows come from |"
WIDTH, LEFT, RIGHT, TOP, STEP, BAR = 820, 16, 130, 74, 62, 22
NAMES = {  # of the table, by those that `diskgnn compare` gives
    "diskgnn, one epoch reused": "**diskgnn**, one prepared epoch",
    "static cache, packed": "packed files, the same rows in memory throughout: our loader in DiskGNN's design",
    "cached reads, SIEVE": "random reads behind a cache that guesses what to keep: our reader in GraphBolt's design",
    "mmap, touched in parallel": "a memory map that many threads touch",
    "in-memory, without the cap": "main memory, *without the limit*",
}
FONT = '"Segoe UI", Ubuntu, "DejaVu Sans", Helvetica, Arial, sans-serif'


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    seconds: float  # of training
    all_seconds: float  # with what was prepared for it
    is_ours: bool


@dataclass(frozen=True)
class Colours:
    """Of a page."""

    text: str
    note: str
    ours: str
    others: str
    preparing: str


PAGES = {
    "docs/comparison.svg": Colours("#1f2328", "#454d57", "#3b6fb6", "#8c959f", "#d0d7de"),
    "docs/comparison-dark.svg": Colours("#e6edf3", "#b3bdc8", "#6ea8fe", "#7d8894", "#3d4650"),
}


def rows_of(readme: str) -> list[Row]:
    """What the table says."""
    lines = iter(readme[readme.index(TABLE) :].splitlines()[2:])
    found = []
    for line in lines:
        if not line.startswith("|"):
            return found
        name, training, everything = (cell.strip() for cell in line.strip("|").split("|"))
        plain = re.sub(r"\(.*?\)|[*`]|\[|\]", "", name).strip()
        found.append(Row(plain, _seconds(training), _seconds(everything), "**" in name))
    return found


def _seconds(cell: str) -> float:
    return float(cell.removesuffix(" s"))


def _shown(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 20 else f"{seconds:.1f} s"


def drawn(rows: list[Row], colours: Colours) -> str:
    """The picture: for each row a bar of training, and behind it what preparing takes."""
    height, scale = TOP + STEP * len(rows), (WIDTH - LEFT - RIGHT) / max(row.all_seconds for row in rows)
    said = "; ".join(f"{row.name}: {_shown(row.seconds)}, {_shown(row.all_seconds)} in all" for row in rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-labelledby="title desc">',
        "  <!-- drawn by tools/draw_readme.py from the table in README.md -->",
        '  <title id="title">Seconds to train on six minibatches, by where feature rows come from</title>',
        f'  <desc id="desc">{escape(said)}</desc>',
        "  <style>",
        f"    text {{ font-family: {FONT}; font-size: 17px; fill: {colours.text}; }}",
        f"    .note {{ font-size: 16px; fill: {colours.note}; }}",
        "    .ours { font-weight: 600; }",
        "  </style>",
        f'  <text class="ours" x="{LEFT}" y="24">Seconds for six minibatches, features four times larger than '
        "memory</text>",
    ]
    x = LEFT
    for colour, word, width in (
        (colours.ours, "training with diskgnn", 210), (colours.others, "training with another loader", 260),
        (colours.preparing, "preparing and opening", 0),
    ):  # fmt: skip
        lines.append(f'  <rect x="{x}" y="39" width="14" height="14" fill="{colour}"/>')
        lines.append(f'  <text class="note" x="{x + 20}" y="52">{word}</text>')
        x += width
    for number, row in enumerate(rows):
        y = TOP + STEP * number
        training, everything = (round(seconds * scale, 1) for seconds in (row.seconds, row.all_seconds))
        figures = _shown(row.seconds) + (f" of {_shown(row.all_seconds)}" if row.all_seconds > row.seconds else "")
        lines += [
            f'  <text{" class=" + chr(34) + "ours" + chr(34) if row.is_ours else ""} x="{LEFT}" y="{y + 18}">'
            f"{escape(row.name)}</text>",
            f'  <rect x="{LEFT}" y="{y + 26}" width="{everything}" height="{BAR}" fill="{colours.preparing}"/>',
            f'  <rect x="{LEFT}" y="{y + 26}" width="{training}" height="{BAR}" '
            f'fill="{colours.ours if row.is_ours else colours.others}"/>',
            f'  <text x="{LEFT + everything + 8:g}" y="{y + 43}">{figures}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def table_of(compared: Path) -> str:
    """The rows of the table, from the document that `diskgnn compare --json` prints."""
    found = {each.name: each for each in summarize(from_json(json.loads(compared.read_text())).results)}
    lines = []
    for name, shown in NAMES.items():
        one = found[name]
        if one.training_seconds is None or one.total_seconds is None:
            raise ValueError(f"expected seconds of {name!r}, found {one.status}: {one.message}")
        lines.append(f"| {shown} | {_shown(one.training_seconds)} | {_shown(one.total_seconds)} |")
    return "\n".join(lines)


def main() -> None:
    """Draw both pictures anew, or print the table's rows."""
    if sys.argv[1:]:
        print(table_of(Path(sys.argv[1])))
        return
    rows = rows_of((ROOT / "README.md").read_text())
    for name, colours in PAGES.items():
        (ROOT / name).write_text(drawn(rows, colours))


if __name__ == "__main__":
    main()
