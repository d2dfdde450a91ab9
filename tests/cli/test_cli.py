"""What all commands have in common: names, help, values of options, errors, signals, what is printed."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from commands import run

from diskgnn import errors
from diskgnn.cli import main
from diskgnn.cli.command import Command
from diskgnn.cli.options import COLUMN, Size, SplitSource, TypedFanouts
from diskgnn.cli.rendering import Output, to_json
from diskgnn.progress.reporter import StageReport


def test_starts_without_torch_and_pyarrow():
    code = "import sys, diskgnn.cli; sys.exit(str(sorted({'torch', 'pyarrow', 'numpy'} & set(sys.modules))))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.stderr.strip() == "[]"


def test_version_and_commands_in_the_order_of_use():
    assert run("--version").output == f"main {__import__('diskgnn').__version__}\n"
    assert list(main.commands) == [
        "convert", "relink", "generate", "inspect", "sample", "pack", "prepare", "propagate", "train", "evaluate",
        "infer", "predict", "compare", "verify", "fetch", "push", "cache", "doctor",
    ]  # fmt: skip


@pytest.mark.parametrize("name", list(main.commands))
def test_every_option_is_explained(name):
    command = main.commands[name]
    assert command.help
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))
    helped = run(name, "--help").output
    assert "--json" in helped
    assert re.findall(r"^([A-Z]\w+):", helped, flags=re.MULTILINE)[-1] == "Options"
    assert "..." not in run("--help").output.partition("Commands:")[2]  # no summary is cut


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Size(), "512MiB", 512 << 20),
        (Size(), "2GB", 2 * 10**9),
        (Size(), "4096", 4096),
        (Size("auto"), "auto", "auto"),
        (Size(share=True), "10%", "10%"),
        (TypedFanouts(), "10,10,5", (None, [10, 10, 5])),
        (TypedFanouts(), "a:b:c= 3 , -1", ("a:b:c", [3, -1])),
        (COLUMN, "src=from", ("src", "from")),
        (COLUMN, "label=a=b", ("label", "a=b")),
        (SplitSource(), "train=/", ("train", Path("/"))),
        (SplitSource(), "/", (None, Path("/"))),
    ],
)
def test_option_values(kind, text, value):
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text", "hint"),
    [
        (Size(), "auto", "512MiB"),
        (Size(), "2 parsecs", "512MiB"),
        (Size(), "10%", "512MiB"),
        (Size("auto"), "-1", "or 'auto'"),
        (Size(share=True), "0.1", "10%"),
        (TypedFanouts(), "10;10", "10,10,10"),
        (TypedFanouts(), "", "10,10,10"),
        (COLUMN, "source=a", "src, dst"),
        (COLUMN, "src", "ROLE=NAME"),
    ],
)
def test_option_values_refused_with_an_example(kind, text, hint):
    with pytest.raises(click.BadParameter, match=hint.replace("|", r"\|")):
        kind.convert(text, None, None)


def test_public_names_are_listed():
    code = "import diskgnn, sys; sys.exit(str(set(diskgnn.__all__) - set(dir(diskgnn)) or 'torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == "False"


def test_json_takes_numpy_and_dataclasses():
    report = StageReport("x", 1.0, 2, 3, {"rows": np.int64(7)})
    assert json.loads(json.dumps(to_json([report, {1: Path("a")}]))) == [
        {"stage": "x", "seconds": 1.0, "read_bytes": 2, "written_bytes": 3, "details": {"rows": 7}}, {"1": "a"},
    ]  # fmt: skip


@pytest.mark.parametrize(("value", "styled"), [("1", False), ("", True)])
def test_no_color_turns_styling_off(monkeypatch, capsys, value, styled):
    monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    output = Output(as_json=False)
    output.fields("title", {"loss": 1.0})
    output.warn("careful")
    said = "".join(capsys.readouterr())
    assert "title" in said
    assert ("\x1b[" in said) == styled


def test_warnings_are_one_line_on_standard_error():
    @click.command(cls=Command)
    @click.pass_obj
    def warning(output):
        warnings.warn("12 rows of features\n hold NaN [x]", errors.DataWarning, stacklevel=1)
        output.result({})

    result = CliRunner().invoke(warning, ["--json"])
    assert result.stderr == "warning: 12 rows of features hold NaN [x]\n"
    assert json.loads(result.stdout) == {}
