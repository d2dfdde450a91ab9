"""Python calls draw bars where somebody looks: in a terminal, and in a notebook. Elsewhere they write nothing."""

from __future__ import annotations

import fcntl
import inspect
import os
import pty
import struct
import termios
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import Python, run_python
from training_runs import make_class_graph

import diskgnn

LONG = ("convert", "estimate", "evaluate", "fetch", "generate", "generate_typed", "infer", "pack", "predict", "prepare",
        "push", "sample", "train")  # fmt: skip
PROGRAM = """
import sys
import diskgnn
folder, options = sys.argv[1], eval(sys.argv[2])
diskgnn.prepare(f"{folder}/graph", f"{folder}/packed", fanouts=[4], batch_size=16, cpu_cache=0, threads=1, **options)
diskgnn.train(f"{folder}/packed", hidden=4, epochs=1, checkpoint=f"{folder}/checkpoint", **options)
diskgnn.evaluate(f"{folder}/checkpoint", f"{folder}/packed", **options)
diskgnn.infer(f"{folder}/graph", f"{folder}/rows.npy", f"{folder}/checkpoint", threads=1, **options)
"""
# What IPython's kernel has: stderr that is no terminal, and a name that everybody finds.
NOTEBOOK = """
import builtins
class ZMQInteractiveShell: pass
builtins.get_ipython = lambda: ZMQInteractiveShell()
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "ipywidgets" else find(name, *more)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_class_graph(tmp_path / "graph")
    return tmp_path


def said_in_terminal(program: str, folder: Path, options: dict, **environment: str) -> str:
    """What it writes to a terminal of its own."""
    terminal, given = pty.openpty()
    fcntl.ioctl(given, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment}
    child = Python("-c", program, folder, repr(options), stderr=given, stdout=given, env=environment)
    os.close(given)
    said = b""
    try:
        while data := os.read(terminal, 1 << 16):
            said += data
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(terminal)
    assert child.wait() == 0, said.decode()
    return said.decode()


def said_in_pipe(program: str, folder: Path, options: dict) -> str:
    done = run_python("-c", program, folder, repr(options), capture_output=True)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).decode()


def test_bars_are_drawn_in_a_terminal(folder: Path):
    said = said_in_terminal(PROGRAM, folder, {})
    for stage in ("sample", "pack", "epoch 0", "evaluate", "minibatches", "check the topology"):
        assert stage in said


@pytest.mark.parametrize(
    ("options", "environment"), [({"progress": False}, {}), ({}, {"RANK": "1", "WORLD_SIZE": "1"})]
)
def test_progress_is_switched_off(folder: Path, options: dict, environment: dict):
    program = PROGRAM if not environment else "\n".join(PROGRAM.splitlines()[:5])  # the rest asks for the other ranks
    assert said_in_terminal(program, folder, options, **environment) == ""


def test_scripts_without_a_terminal_are_silent(folder: Path):
    assert said_in_pipe(PROGRAM, folder, {}) == ""


PYG = """
import sys
from diskgnn.pyg import NeighborLoader
for batch in NeighborLoader(sys.argv[1] + "/graph", [4], input_nodes="train", cache=sys.argv[1] + "/cache"):
    pass
"""


def test_loaders_of_pyg_draw_bars_in_a_terminal_only(folder: Path):
    """Elsewhere they say in one line how large it will be."""
    said = said_in_pipe(PYG, folder, {})
    assert "\r" not in said
    (line,) = (line for line in said.splitlines() if line.startswith("diskgnn: "))
    assert "preparing 100 minibatches" in line
    (folder / "cache").rename(folder / "other")
    assert "diskgnn: sample: " in said_in_terminal(PYG, folder, {})


def test_notebooks_without_widgets_have_lines(folder: Path):
    said = said_in_pipe(NOTEBOOK + PROGRAM, folder, {})
    assert "\repoch 0: 7 of 7 minibatches\n" in said
    assert "Jupyter" not in said  # no warning that something is missing


def test_a_reporter_is_told_instead(folder: Path, capsys: pytest.CaptureFixture[str]):
    """The example of `diskgnn.progress`."""
    lines: list[str] = []

    class Log:
        @contextmanager
        def stage(self, description: str, total: int, unit: str):
            done = 0

            def advance(amount: int) -> None:
                nonlocal done
                done += amount
                lines.append(f"{description}: {done} of {total} {unit}")

            yield advance

    diskgnn.prepare(folder / "graph", folder / "packed", fanouts=[4], batch_size=16, cpu_cache=0, reporter=Log())
    assert any(line.startswith("sample: 7 of") for line in lines)
    assert "".join(capsys.readouterr()) == ""


@pytest.mark.parametrize("name", LONG)
def test_all_that_takes_long_can_be_watched(name: str):
    found = inspect.signature(getattr(diskgnn, name)).parameters
    assert found["progress"].default is True
    assert found["reporter"].default is None
