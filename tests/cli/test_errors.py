"""What goes wrong: one line, an exit code, and with --json a document."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from commands import run
from comparisons import comparison

import diskgnn
from diskgnn import errors
from diskgnn.cli import main
from diskgnn.cli.command import Command
from diskgnn.cli.flags import with_flags
from diskgnn.files import faults


def test_errors_have_their_own_exit_codes_and_name_the_fix(graph, tmp_path):
    result = run("inspect", tmp_path / "nothing", exit_code=errors.ArtifactError.exit_code)
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    again = ["generate", graph, "--num-nodes", "1000"]
    assert "--overwrite" in run(*again, exit_code=errors.OutputExistsError.exit_code).stderr
    bad = run("sample", graph, tmp_path / "s", "--fanouts", "0", exit_code=errors.ConfigError.exit_code)
    assert "fanouts" in bad.stderr
    assert "Usage" in run("sample", graph, exit_code=2).stderr
    assert list(tmp_path.iterdir()) == [graph]


def test_errors_as_json(tmp_path):
    result = run("verify", tmp_path, "--json", exit_code=4)
    error = json.loads(result.stdout)["error"]
    assert error == {"kind": "ArtifactError", "message": result.stderr.removeprefix("error: ").strip(), "exit_code": 4}


def test_debug_shows_where_an_error_comes_from(tmp_path):
    result = CliRunner().invoke(main, ["verify", str(tmp_path), "--debug"])
    assert isinstance(result.exception, errors.ArtifactError)


@pytest.mark.parametrize(
    ("raised", "exit_code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "/x"), 1, "No space left on device: '/x'"),
        (OSError(36, "File name too long", "/x" * 999), 2, "/x/x... is too long: file systems take names of 255 bytes"),
        (PermissionError(13, "Permission denied", "/x"), 2, "you have no permission for /x: have that changed (chmod"),
        (MemoryError(), 1, "MemoryError"),
        (errors.DiskFullError("full"), 6, "full"),
    ],
)
def test_expected_failures_are_one_line(raised, exit_code, said):
    @click.command(cls=Command)
    def failing():
        raise raised

    result = CliRunner().invoke(failing)
    assert result.exit_code == exit_code
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_bug_is_not_hidden():
    @click.command(cls=Command)
    def failing():
        raise AssertionError("a bug")

    assert isinstance(CliRunner().invoke(failing).exception, AssertionError)


@pytest.mark.parametrize(
    ("number", "exit_code", "said"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")]
)
def test_signals_end_any_command_as_ctrl_c_does(number, exit_code, said):
    @click.command(cls=Command)
    def ended():
        signal.raise_signal(number)

    before = signal.getsignal(number)
    result = CliRunner().invoke(ended)
    assert result.exit_code == exit_code
    assert result.stderr == f"error: {said}\n"
    assert signal.getsignal(number) is before


def test_a_signal_that_comes_several_times_is_one():
    cleaned = []

    @click.command(cls=Command)
    def ended():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGTERM)  # from a launcher, too
            cleaned.append(True)

    result = CliRunner().invoke(ended)
    assert (result.exit_code, result.stderr, cleaned) == (130, "error: interrupted\n", [True])


def test_a_signal_that_python_drops_is_not_lost():
    def closed_by_the_collector():
        try:
            yield
        finally:
            signal.raise_signal(signal.SIGINT)

    @click.command(cls=Command)
    def goes_on():
        unfinished = closed_by_the_collector()
        next(unfinished)
        del unfinished
        for _ in range(3000):
            time.sleep(0.01)

    result = CliRunner().invoke(goes_on)
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")


def test_what_is_ignored_stays_ignored(monkeypatch):
    @click.command(cls=Command)
    def goes_on():
        signal.raise_signal(signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        assert CliRunner().invoke(goes_on).exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupted_stage_says_how_it_goes_on(graph, tmp_path):
    with faults.armed("artifact.publish", KeyboardInterrupt()):
        said = run("sample", graph, tmp_path / "samples", "--fanouts", "2", exit_code=130).stderr
    again = "run the same command again, which goes on with what was finished, if anything was"
    assert said.endswith(f"error: interrupted: {again}\n")
    run("sample", graph, tmp_path / "samples", "--fanouts", "2")


def test_ctrl_c_while_modules_are_imported_shows_no_traceback(tmp_path):
    (tmp_path / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-m", "diskgnn", "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_ends_the_process_with_130(graph, tmp_path):
    measuring = [sys.executable, "-m", "diskgnn", "doctor", str(tmp_path), "--size", "2GiB"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(measuring, stderr=subprocess.PIPE, text=True, env=environment) as process:
        deadline = time.monotonic() + 60
        while not _writes_scratch_file(process.pid, tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error: interrupted" in said
    assert "Traceback" not in said


def _writes_scratch_file(pid, folder):
    descriptors = Path(f"/proc/{pid}/fd")
    try:
        return any(str(file.readlink()).startswith(f"{folder}/.diskgnn-") for file in descriptors.iterdir())
    except FileNotFoundError:  # closed meanwhile
        return False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sample", "--json"], "Missing argument 'GRAPH'"),
        (["train", "packed", "--json", "--epochs", "many"], "'many' is not a valid integer"),
        (["train", "packed", "--learning-rate", "1", "--json"], "No such option"),
        (["prepare", "graph", "out", "--fanouts", "3", "--cpu-cache", "0.1", "--json"], "written 10%"),
        (["tarin", "--json"], "No such command 'tarin'"),
        (["--nonsense", "--json"], "No such option"),
    ],
)
def test_usage_errors_as_json(arguments, said):
    result = run(*arguments, exit_code=2)
    error = json.loads(result.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("UsageError", 2)
    assert said in error["message"]
    assert result.stderr.startswith("Usage: ")
    assert run(*(each for each in arguments if each != "--json"), exit_code=2).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--from", "pyg", "data.pt", "--edges", "e.npy"], "--edges: the data set .* of its own; leave out --edges"),
        (["--from", "pyg", "data.pt", "--indptr", "e.npy", "--indices", "e.npy"], "out --indptr and --indices"),
        (["--schema", "e.npy", "--edges", "e.npy", "--reverse"], "--schema: .*; leave out --edges and --reverse"),
        (["--features", "e.npy"], "expected either --edges, or --indptr and --indices; found neither"),
        (["--edges", "e.npy", "--features", "x.npy", "--random-split", "1,0,0"], "found none; pass --labels"),
        (["--edges", "e.npy", "--features", "x.npy", "--keep-ids", "--self-loops"],
         "--self-loops: .*found --keep-ids; leave that out"),
        (["--edges", "e.npy", "--features", "x.npy", "--set", "a=b"], "--set: expected a data set .*--from"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_told_by_its_flags(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    np.save("e.npy", np.array([[0, 1], [1, 2]]))
    np.save("x.npy", np.ones((3, 2), np.float32))
    Path("data.pt").write_bytes(b"PK")
    error = run("convert", "graph", *arguments, exit_code=2).stderr
    assert re.search(told, error), error


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("lines: expected at least 1", "--lines: expected at least 1"),
        ("other: expected at least 1", "other: expected at least 1"),
        ("use line_width=80, or a wider `style`", "use --width 80, or a wider --theme"),
        ("pass quiet=True.", "pass --quiet."),
        ("quiet=False, found lines=None", "quiet=False, found lines=None"),
        ("pass color=False; style='dark mode', parts=[3, 2]", "pass --no-color; --theme dark mode, --parts 3,2"),
        ("leave it out (`style`, users.age), or not", "leave it out (--theme users.age), or not"),
        ("say so (`line_width`, id=NAME)", "say so (--width id=NAME)"),
        ("say so (`parts`, price (EUR).paid in=x)", "say so (--parts 'price (EUR).paid in=x')"),
        ("say so (`parts`, delimiter=;)", "say so (--parts 'delimiter=;')"),
        ("say so (`other`, id=NAME), and (`lines`, or none)", "say so (`other`, id=NAME), and (--lines, or none)"),
        ("the lines of `diskgnn verify lines` or x.lines=3", "the lines of `diskgnn verify lines` or x.lines=3"),
    ],
)
def test_arguments_are_shown_as_flags(message, shown):
    options = [["--lines"], ["--width", "line_width"], ["--theme", "-t", "style"], ["--parts"]]
    flags = [click.Option(["--quiet"], is_flag=True), click.Option(["--color/--no-color"])]
    assert with_flags(message, [*map(click.Option, options), *flags]) == shown


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["--tint", "red"], "--tint: none is so; --tint red"),
        (["--colour=red"], "--colour: none is so; --colour red"),
        ([], "--colour: none is so; --colour red"),
    ],
)
def test_an_option_of_two_names_is_called_as_it_was_typed(typed, shown):
    option = click.Option(["--colour", "--tint"])
    assert with_flags("colour: none is so; colour='red'", [option], typed=typed) == shown


def test_what_other_commands_take_is_shown_as_their_flags():
    """Checkpoints tell of what was said to `prepare`. What commands call differently may be any of these."""
    others = [click.Option([flag, "kind"]) for flag in ("--order", "--sort")]
    others.append(click.Option(["--last"], is_flag=True))
    message = "kind: as with kind='a' and last=True; size=3"
    shown = with_flags(message, [click.Option(["--size"])], others=others)
    assert shown == "kind: as with kind='a' and --last; --size 3"


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "out", "--num-nodes", 1000],
        ["sample", "{graph}", "out", "--fanouts", 2],
        ["prepare", "{graph}", "out", "--fanouts", 2],
        ["propagate", "{graph}", "out", "--hops", 1],
        ["predict", "{graph}", "--checkpoint", "run", "--out", "out.npy"],
    ],
)
@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_seeds_have_64_bits_everywhere(graph, tmp_path, monkeypatch, command, seed):
    monkeypatch.chdir(tmp_path)
    said = run(*(str(each).format(graph=graph) for each in command), "--seed", seed, exit_code=2).stderr
    assert f"error: --seed: expected a number from 0 to 2^64 - 1, found {seed}\n" in said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["generate", "out", "--schema", "{graph}", "--num-nodes", 9, "--homophily", 0.1],
         "--schema says sizes and shares itself: leave out --num-nodes and --homophily"),
        (["verify", "{graph}", "--graph", "{graph}"], "--graph is for --repair: pass that, too, or leave it out"),
        (["predict", "{graph}", "--checkpoint", "run", "--out", "out.npy", "--hold-out-pairs"],
         "--hold-out-pairs: only for pairs, found none; leave it out"),
        (["predict", "{graph}", "--checkpoint", "run", "--out", "out.npy", "--message-edges", "all"],
         "--message-edges: only for pairs, found none; leave it out"),
        (["predict", "{graph}", "--checkpoint", "run", "--out", "out.npy", "--split", "valid"],
         "--split: only of a packed or a hops directory, found 'valid' of a graph; leave it out"),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(graph, tmp_path, monkeypatch, command, said):
    monkeypatch.chdir(tmp_path)
    assert said in run(*(str(each).format(graph=graph) for each in command), exit_code=2).stderr
    assert list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize("loaders", ["all", "mmap:random"])
def test_a_comparison_that_ended_early_is_not_called_whole(graph, tmp_path, monkeypatch, loaders):
    measured = comparison(seeds=1)

    def ends(graph, settings, *, on_result, **_):
        on_result(measured)
        raise KeyboardInterrupt

    monkeypatch.setattr("diskgnn.compare.compare.compare", ends)
    arguments = ["compare", graph, "--fanouts", "2", "--memory", "1GiB", "--loaders", loaders, "--out",
                 tmp_path / "figures.json"]  # fmt: skip
    said = " ".join(run(*arguments, exit_code=130).stderr.split())
    rows = sum(result.capped for result in measured.results)  # one without the cap is an extra one
    early = f"the comparison ended early, with {rows} of"
    assert (early if loaders == "all" else "the comparison ended while short epochs were measured once more") in said
    assert "what follows is not whole" in said
    assert f"{tmp_path / 'figures.json'}: what was measured until then, as JSON" in said


def test_warnings_show_the_line_of_the_caller(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        diskgnn.convert(
            tmp_path / "graph", edges=np.array([[0, 1], [1, 0]]), labels=np.array([0, 1]), train=[0, 1], test=[1],
            features=np.array([[np.nan], [1]], np.float32), num_nodes=2,
        )  # fmt: skip
        diskgnn.sample(tmp_path / "graph", tmp_path / "samples", fanouts=[1])
    assert len([each for each in caught if each.category is errors.DataWarning]) >= 2
    assert {each.filename for each in caught} == {__file__}
