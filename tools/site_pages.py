"""The pages of the site that are generated, so that they cannot be wrong: reference, source formats, examples.

mkdocs.yml names this file as a hook. Pages that lie elsewhere in the repository (CHANGELOG, CONTRIBUTING, data sets)
become pages, too, and their links lead to the pages of the site.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import diskgnn
from diskgnn.cli import main as cli
from diskgnn.importers.source_formats.registry import FORMATS

PUBLIC_MODULES = ("diskgnn.pyg", "diskgnn.relbench", "diskgnn.models", "diskgnn.tasks", "diskgnn.sources",
                  "diskgnn.lightning", "diskgnn.comparing")  # fmt: skip
ROOT = Path(__file__).parents[1]
ELSEWHERE = ("CHANGELOG.md", "CONTRIBUTING.md", "datasets/README.md")
EXAMPLES = {path: f"examples/{path.stem}.md" for path in sorted((ROOT / "docs" / "examples").glob("*.py"))}
NOTEBOOKS = {path: f"notebooks/{path.stem}.md" for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))}
_LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)]*)?)\)")
# Sections of the reference, and the rooms and modules whose public names they have.
SECTIONS = {
    "Make a graph": ("graph", "importers"),
    "Prepare minibatches": ("preparing", "sampling", "packing", "propagation", "specs"),
    "Copy to and from object stores": ("work",),
    "Load minibatches": ("loading", "fresh", "batches", "pyg", "relbench"),
    "Train, evaluate, predict": ("training", "inference"),
    "Errors and warnings": ("errors",),
}


def on_config(config: MkDocsConfig) -> None:
    """Pages for those who come from another library are in the menu by themselves, at the end of a section."""
    for section in config.nav or []:
        section.get("How to", []).extend(sorted(path.name for path in (ROOT / "docs").glob("from-*.md")))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"reference/python.md": python_reference(), "reference/commands.md": command_reference(),
             "guide/sources.md": source_formats(),
             **{page: example(path) for path, page in EXAMPLES.items()},
             **{page: notebook(path) for path, page in NOTEBOOKS.items()},
             **{path: (ROOT / path).read_text() for path in ELSEWHERE}}  # fmt: skip
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to pages of the site, where the site has them."""
    here = PurePosixPath(page.file.src_uri)
    origin = here.parent if page.file.src_uri in ELSEWHERE else "docs" / here.parent

    def leads(link: re.Match[str]) -> str:
        target = os.path.normpath(origin / link[1])
        if "://" in link[1] or link[1].startswith("mailto:"):
            return link[0]
        if target == "README.md":
            return f"](%s{link[2]})" % os.path.relpath("index.md", here.parent)
        inside = os.path.relpath(target, "docs") if target.startswith("docs/") else target
        inside = {**EXAMPLES, **NOTEBOOKS}.get(ROOT / "docs" / inside, inside)
        if files.get_file_from_path(inside) is None:
            return link[0]
        return f"]({os.path.relpath(inside, here.parent)}{link[2]})"

    return _LINK.sub(leads, markdown)


def python_reference() -> str:
    """Every public name, from its docstring."""
    others = ", ".join(f"`{module}`" for module in PUBLIC_MODULES)
    parts = [f"# Python reference\n\nThe names of the package `diskgnn`, and of {others}. Others may change without "
             "notice.\n"]  # fmt: skip
    rooms = {name: getattr(diskgnn, name).__module__.split(".")[1] for name in diskgnn.__all__}
    if homeless := sorted(name for name in rooms if rooms[name] not in set().union(*SECTIONS.values())):
        raise ValueError(f"SECTIONS has no section for {', '.join(homeless)}")
    for title, those in SECTIONS.items():
        parts.append(f"## {title}\n")
        names = sorted(
            (name for name in rooms if rooms[name] in those), key=lambda name: (those.index(rooms[name]), name)
        )
        parts += [f"::: diskgnn.{name}\n    options: {{heading_level: 3}}\n" for name in names]
    for module in PUBLIC_MODULES:
        parts.append(f"## {module}\n")
        found = import_module(module)
        parts.append(_paragraphs(inspect.getdoc(found) or ""))
        parts += [f"::: {module}.{name}\n    options: {{heading_level: 3}}\n" for name in found.__all__]
    return "\n".join(parts)


def command_reference() -> str:
    """What --help says of every command."""
    parts = ["# Command line\n\nEvery command takes `--help`, `--json` (one JSON document) and `--debug`.\n"]
    for name, command in cli.commands.items():
        context = click.Context(command, info_name=f"diskgnn {name}", max_content_width=100, terminal_width=100)
        parts.append(f"## diskgnn {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def source_formats() -> str:
    """A section for each format that `convert` reads: how it lies on the disk, and what can be said about it."""
    names = ", ".join(f"[{name}](#{name})" for name in FORMATS)
    return "\n".join([_SOURCES.format(names=names), *(part for name in FORMATS for part in _source(name))])


def _source(name: str) -> Iterator[str]:
    known = FORMATS[name]
    source = "postgresql:///shop" if name == "postgresql" else f"{name} PATH"
    yield f"## {name}\n\n{known.summary[0].upper()}{known.summary[1:]}.\n"
    yield f"```bash\ndiskgnn convert graph --from {source}\n```\n"
    yield _paragraphs(inspect.getdoc(inspect.getmodule(known.recognises)) or "")
    yield _paragraphs(re.split(r"\n(?:Args|Raises|Returns):", inspect.getdoc(known.read) or "")[0])
    if known.options:
        described = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", inspect.getdoc(known.read) or "", re.MULTILINE))
        yield "| `--set` | default | |\n|---|---|---|"
        for option, given in known.options.items():
            meaning = " ".join(described[option].split())
            yield f"| `{option}` | {_default(given.default)} | {meaning} |"
        yield ""


def _default(value: Any) -> str:
    return "" if value is None or value is inspect.Parameter.empty else f"`{str(value).lower()}`"


def _paragraphs(docstring: str) -> str:
    return docstring.rstrip() + "\n"


def example(path: Path) -> str:
    """A program, to be read."""
    text = path.read_text()
    title, _, command = text.split('"""')[1].strip().partition(": ")
    return f"# {title}\n\nRun it: `{command.splitlines()[0]}`\n\n```python\n{text}```\n"


def notebook(path: Path) -> str:
    """Text, code, and the pictures that `tools/run_notebook.py` made of it: one for each cell that ends with show()."""
    parts, pictures = [], 0
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        if cell["cell_type"] == "code" and text.endswith("plt.show()"):
            pictures += 1
            parts.append(f"![What this cell shows](../pictures/{path.stem}-{pictures}.svg)")
    return "\n\n".join(parts)


_SOURCES = """# Each source format

`diskgnn convert graph --from NAME PATH` reads data as other libraries and data sets leave it. `--from auto` looks at
the path and says which format it is. Formats: {names}. Options of a format are given as `--set name=value`. In Python:
`diskgnn.convert("graph", source=PATH, format=NAME, options={{...}})`.

Files are read a part at a time, so that they may be larger than the memory. The options of `convert` that are not about
files count for every format: `--reverse`, `--self-loops`, `--drop-duplicates`, `--quantise` and `--memory`.
[Convert your data](convert.md) is about .npy arrays and Parquet tables.
"""
