"""What users import is public, and what is public is described: names, arguments, defaults."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import diskgnn
from diskgnn.cli import main as cli

ROOT = Path(__file__).parents[1]
PUBLIC_MODULES = ("diskgnn", "diskgnn.comparing", "diskgnn.lightning", "diskgnn.models", "diskgnn.pyg",
                  "diskgnn.relbench", "diskgnn.sources", "diskgnn.tasks")  # fmt: skip
FOR_DEVELOPERS = {"ARCHITECTURE.md", "DESIGN.md", "PERFORMANCE.md", "RELIABILITY.md", "SCALE.md"}
# Options of a command that its function does not have, and the other way round, need no default in common.
COMMANDS = {
    "convert": diskgnn.convert, "generate": diskgnn.generate, "sample": diskgnn.sample, "pack": diskgnn.pack,
    "prepare": diskgnn.prepare, "train": diskgnn.train, "evaluate": diskgnn.evaluate, "infer": diskgnn.infer,
    "predict": diskgnn.predict, "propagate": diskgnn.propagate, "fetch": diskgnn.fetch, "push": diskgnn.push,
}  # fmt: skip


def pages() -> list[Path]:
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.py"),
             *(ROOT / "docs").rglob("*.ipynb")]  # fmt: skip
    return [page for page in found if page.name not in FOR_DEVELOPERS]


def imported(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of what of diskgnn a page imports; no name for `import module`."""
    for module, names in re.findall(r"from (diskgnn[\w.]*) import ([\w, ]+)", text):
        yield from ((module, name.split(" as ")[0].strip()) for name in names.split(","))
    yield from ((module, "") for module in re.findall(r"^\s*import (diskgnn[\w.]*)", text, re.MULTILINE))


def test_pages_and_examples_import_public_names_only():
    found = [(page.name, *each) for page in pages() for each in imported(page.read_text())]
    assert len(found) > 20
    private = [
        each for each in found
        if each[1] not in PUBLIC_MODULES or (each[2] and each[2] not in importlib.import_module(each[1]).__all__)
    ]  # fmt: skip
    assert private == []


def public_callables() -> Iterator[tuple[str, object]]:
    for module in PUBLIC_MODULES:
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue  # of a library that is not there
        for name in found.__all__:
            value = getattr(found, name)
            if callable(value) and not (isinstance(value, type) and issubclass(value, Warning | Exception)):
                yield f"{module}.{name}", value


def described(value: object) -> set[str]:
    """The arguments that a docstring's section Args describes, those of a class's constructor too."""
    own = [value, value.__init__] if isinstance(value, type) else [value]  # type: ignore[misc]
    found = [re.search(r"^Args:\n((?: {4,}.*\n|\n)+)", f"{inspect.getdoc(each) or ''}\n", re.MULTILINE) for each in own]
    entries = [
        each for section in found if section for each in re.findall(r"^ {4}(\S[^:]*):", section[1], re.MULTILINE)
    ]
    return {name for entry in entries for name in re.findall(r"(?:^|,)[\s*]*(\w+)(?=,|$)", entry)}


@pytest.mark.parametrize(("name", "value"), [pytest.param(*each, id=each[0]) for each in public_callables()])
def test_what_a_docstring_describes_are_the_arguments(name, value):
    names = described(value)
    if not names:
        pytest.skip("describes none")
    parameters = {each for each in inspect.signature(value).parameters if each != "self"}
    assert names <= parameters
    described_in_words = {each for each in parameters if re.search(rf"`{each}`", inspect.getdoc(value) or "")}
    assert parameters - names - described_in_words == set()


# Of these the command has its own words: --from says the format and the source, --nodes all is nodes=None.
TRANSLATED = {("convert", "format"), ("predict", "nodes")}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_and_its_function_have_the_same_defaults(command):
    parameters = inspect.signature(COMMANDS[command]).parameters
    differing = {}
    for option in cli.commands[command].params:
        argument = parameters.get(str(option.name))
        if (
            argument is None
            or (command, option.name) in TRANSLATED
            or isinstance(option, click.Argument)
            or argument.default is inspect.Parameter.empty
        ):
            continue
        # What is not said: None, an empty list or tuple, or click's own mark of it.
        default = option.to_info_dict()["default"] or None
        default = None if isinstance(default, str) and "UNSET" in default else default
        if default != (argument.default or None):
            differing[option.name] = (default, argument.default)
    assert differing == {}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_can_leave_out_its_function_can(command):
    parameters = inspect.signature(COMMANDS[command]).parameters
    demanded = {
        option.name for option in cli.commands[command].params
        if isinstance(option, click.Option) and not option.required and option.name in parameters
        and parameters[str(option.name)].default is inspect.Parameter.empty
    }  # fmt: skip
    assert demanded - {"num_nodes"} == set()  # the command takes --schema instead


def test_notebooks_are_read_as_pages():
    """Their text is JSON, in which an import stands as it does in Python."""
    notebook = next((ROOT / "docs").rglob("*.ipynb"))
    assert "diskgnn" in json.dumps(json.loads(notebook.read_text())["cells"])
