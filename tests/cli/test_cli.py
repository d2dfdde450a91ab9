import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from diskgnn import errors
from diskgnn.cli import main
from diskgnn.cli.command import Command
from diskgnn.cli.options import Column, Fanouts, Size
from diskgnn.cli.rendering import Output, to_json
from diskgnn.progress import StageReport
from diskgnn.storage import artifacts
from diskgnn.storage.writer import ArtifactWriter


def run(*arguments, exit_code=0):
    """Invoke the command line in this process; returns click's result."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


@pytest.fixture
def graph(tmp_path):
    """Four nodes in a ring with both directions, three features each."""
    path = tmp_path / "graph"
    config = {"num_nodes": 4, "num_edges": 8, "num_classes": 2, "feature_dtype": "float32", "feature_width": 3}
    with ArtifactWriter(path, artifacts.GRAPH, config=config) as writer:
        writer.save_array(artifacts.INDPTR, np.array([0, 2, 4, 6, 8]))
        writer.save_array(artifacts.INDICES, np.array([1, 3, 0, 2, 1, 3, 0, 2], np.int32))
        writer.save_array(artifacts.FEATURES, np.arange(12, dtype=np.float32).reshape(4, 3))
        writer.save_array(artifacts.LABELS, np.array([0, 1, 0, 1]))
        writer.save_array(artifacts.split_file("train"), np.array([0, 2]))
        writer.publish()
    return path


def test_starts_without_torch_and_pyarrow():
    code = "import sys, diskgnn.cli; sys.exit(str(sorted({'torch', 'pyarrow', 'numpy'} & set(sys.modules))))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.stderr.strip() == "[]"


def test_version_and_commands_in_the_order_of_use():
    assert run("--version").output == f"main {__import__('diskgnn').__version__}\n"
    assert list(main.commands) == [
        "convert", "generate", "inspect", "sample", "pack", "prepare", "train", "evaluate", "compare", "verify",
        "doctor",
    ]  # fmt: skip


@pytest.mark.parametrize("name", list(main.commands))
def test_every_option_is_explained(name):
    command = main.commands[name]
    assert command.help
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))
    assert "--json" in run(name, "--help").output


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Size(), "512MiB", 512 << 20),
        (Size(), "2GB", 2 * 10**9),
        (Size(), "4096", 4096),
        (Size("auto"), "auto", "auto"),
        (Size(share=True), "10%", "10%"),
        (Fanouts(), "10,10,5", [10, 10, 5]),
        (Fanouts(), " 3 , -1", [3, -1]),
        (Column(), "src=from", ("src", "from")),
        (Column(), "label=a=b", ("label", "a=b")),
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
        (Fanouts(), "10;10", "10,10,10"),
        (Fanouts(), "", "10,10,10"),
        (Column(), "source=a", "src, dst"),
        (Column(), "src", "ROLE=NAME"),
    ],
)
def test_option_values_refused_with_an_example(kind, text, hint):
    with pytest.raises(click.BadParameter, match=hint.replace("|", r"\|")):
        kind.convert(text, None, None)


def test_options_reach_the_library(tmp_path, monkeypatch):
    from diskgnn.sampling import sample as sampling

    seen = {}

    def sample(graph, out, **arguments):
        seen.update(graph=graph, out=out, **arguments)
        return StageReport("sample", 1.5, 2048, 4096, {"minibatches": 7, "index_bytes": 1 << 20})

    monkeypatch.setattr(sampling, "sample", sample)
    arguments = ["sample", "g", tmp_path / "s", "--fanouts", "5,3", "--memory", "1GiB", "--epochs", 2, "--overwrite"]
    assert run(*arguments).stdout == ("sample: read 2.0 KiB, wrote 4.0 KiB in 1.50 s (minibatches 7, index 1.0 MiB)\n")
    assert {name: seen[name] for name in ("graph", "out", "fanouts", "memory", "epochs", "overwrite")} == {
        "graph": Path("g"), "out": tmp_path / "s", "fanouts": [5, 3], "memory": 1 << 30, "epochs": 2, "overwrite": True,
    }  # fmt: skip
    assert json.loads(run(*arguments, "--json").stdout)["details"] == {"minibatches": 7, "index_bytes": 1 << 20}


@pytest.mark.parametrize("command", [["train"], ["evaluate", "--checkpoint", "run"]], ids=lambda command: command[0])
def test_shares_of_rows_reach_the_loader(command, monkeypatch):
    from diskgnn.training import checkpoints
    from diskgnn.training import evaluate as evaluation
    from diskgnn.training import train as training

    def seen(*_, loader_options, **__):
        raise errors.ConfigError(str([loader_options["device_cache"], loader_options["pinned_cache"]]))

    monkeypatch.setattr(training, "train", seen)
    monkeypatch.setattr(evaluation, "evaluate", seen)
    monkeypatch.setattr(checkpoints, "load_model", lambda directory: None)
    caches = ["--device-cache", "10%", "--pinned-cache", "1MiB"]
    assert "['10%', 1048576]" in run(*command, "packed", *caches, exit_code=2).stderr


def test_inspect_tells_people_and_machines_the_same(graph):
    told = run("inspect", graph).stdout
    document = json.loads(run("inspect", graph, "--json").stdout)
    assert document["kind"] == "a graph"
    assert document["facts"]["nodes"] == 4
    assert document["facts"]["edges"] == 8
    assert document["facts"]["max_in_degree"] == 2
    assert document["facts"]["nodes_without_in_edges"] == 0
    assert document["facts"]["train_nodes"] == 2
    assert {file["name"]: file["shape"] for file in document["files"]}["features.npy"] == [4, 3]
    assert "3 x float32" in told
    assert "features.npy" in told


def test_verify_finds_a_flipped_bit(graph):
    assert "is whole: 5 files" in run("verify", graph).stdout
    assert json.loads(run("verify", graph, "--json").stdout)["files"] == 5
    with (graph / "features.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    result = run("verify", graph, exit_code=4)
    assert "features.npy is damaged" in result.stderr
    assert "diskgnn convert" in result.stderr
    assert result.stdout == ""


def test_sample_then_inspect(graph, tmp_path):
    run("sample", graph, tmp_path / "samples", "--fanouts", "2,2", "--batch-size", 1, "--epochs", 2)
    document = json.loads(run("inspect", tmp_path / "samples", "--json").stdout)
    assert document["kind"] == "sampled minibatches"
    assert document["config"]["fanouts"] == [2, 2]
    assert document["config"]["splits.train.epochs"] == 2
    assert document["source_digest"] == json.loads(run("inspect", graph, "--json").stdout)["digest"]


def test_convert_takes_arrays_and_tables_and_warns_of_nan(graph, tmp_path):
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    features[1, 1] = np.nan
    arrays = {"edges": [[0, 1, 2, 3], [1, 2, 3, 0]], "features": features, "labels": [0, 1, 0, 1], "train": [0, 2]}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    given = [part for name in arrays for part in (f"--{name}", tmp_path / f"{name}.npy")]
    result = run("convert", tmp_path / "out", *given, "--reverse", "--json")
    assert json.loads(result.stdout)["stage"] == "convert"
    assert "warning: " in result.stderr
    assert "NaN" in result.stderr
    for name in (artifacts.INDPTR, artifacts.INDICES, artifacts.LABELS, artifacts.split_file("train")):
        assert np.array_equal(np.load(tmp_path / "out" / name), np.load(graph / name)), name

    pq.write_table(pa.table({"from": [0, 1, 2, 3], "to": [1, 2, 3, 0]}), tmp_path / "edges.parquet")
    columns = {"a": [0.0, 3, 6, 9], "b": [1.0, 4, 7, 10], "class": [0, 1, 0, 1], "split": ["train", "", "train", ""]}
    pq.write_table(pa.table(columns), tmp_path / "nodes.parquet")
    names = ["src=from", "dst=to", "features=a", "features=b", "label=class"]
    run("convert", tmp_path / "table", "--edges", tmp_path / "edges.parquet", "--nodes", tmp_path / "nodes.parquet",
        "--reverse", *(part for name in names for part in ("--column", name)))  # fmt: skip
    assert np.array_equal(np.load(tmp_path / "table" / "features.npy"), np.array([columns["a"], columns["b"]]).T)
    assert np.array_equal(np.load(tmp_path / "table" / "indices.npy"), np.load(graph / "indices.npy"))


@pytest.mark.slow
def test_from_a_generated_graph_to_a_trained_model(tmp_path):
    graph, samples, packed, checkpoint = (tmp_path / name for name in ("graph", "samples", "packed", "run"))
    run("generate", graph, "--num-nodes", 400, "--num-classes", 3, "--feature-width", 8, "--train-fraction", 0.3,
        "--valid-fraction", 0.2, "--test-fraction", 0.2)  # fmt: skip
    run("sample", graph, samples, "--fanouts", "3,3", "--batch-size", 50, "--epochs", 2)
    assert "pack: read" in run("pack", graph, samples, packed, "--cpu-cache", "10%").stdout
    training = ["train", packed, "--hidden", 8, "--epochs", 2, "--checkpoint", checkpoint]
    result = run(*training, "--metrics", tmp_path / "metrics", "--json")
    trained = json.loads(result.stdout)
    assert len(trained["epochs"]) == 2
    assert result.stderr.count("valid accuracy") == 2
    records = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert records[-1]["test_accuracy"] == trained["test_accuracy"]
    evaluated = json.loads(run("evaluate", packed, "--checkpoint", checkpoint, "--json").stdout)
    assert evaluated["accuracy"] == trained["test_accuracy"]
    assert evaluated["num_seeds"] == 80
    assert "--resume" in run(*training, exit_code=errors.OutputExistsError.exit_code).stderr
    resumed = json.loads(run(*training[:-4], "--epochs", 3, "--checkpoint", checkpoint, "--resume", "--json").stdout)
    assert resumed["resumed_from"] == [2, 0]


@pytest.fixture
def packed(tmp_path):
    """Five training minibatches, valid and test."""
    run("generate", tmp_path / "generated", "--num-nodes", 200, "--num-classes", 3, "--feature-width", 4,
        "--train-fraction", 0.5, "--valid-fraction", 0.2, "--test-fraction", 0.2)  # fmt: skip
    run("prepare", tmp_path / "generated", tmp_path / "packed", "--fanouts", "3", "--batch-size", 20,
        "--cpu-cache", "10%")  # fmt: skip
    return tmp_path / "packed"


def train_json(packed, *arguments):
    result = run("train", packed, "--hidden", 4, "--epochs", 3, *arguments, "--json")
    losses = [epoch["loss"] for epoch in json.loads(result.stdout)["epochs"]]
    return losses, json.loads(result.stdout)["resumed_from"]


def test_sigterm_saves_the_checkpoint_and_resume_goes_on_from_it(packed, tmp_path, monkeypatch):
    from diskgnn.training import train as training

    step, steps = training._step, []

    def terminated_in_the_eighth_step(*arguments):
        steps.append(None)
        if len(steps) == 8:
            signal.raise_signal(signal.SIGTERM)
        return step(*arguments)

    expected, _ = train_json(packed)
    monkeypatch.setattr(training, "_step", terminated_in_the_eighth_step)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("SIGTERM was not handled"))
    try:
        training_arguments = ["train", packed, "--hidden", 4, "--epochs", 3, "--checkpoint", tmp_path / "run"]
        result = run(*training_arguments, exit_code=143)
    finally:
        signal.signal(signal.SIGTERM, before)
    said = f"the checkpoint is in {tmp_path / 'run'}: go on with the same command and --resume\nerror: terminated\n"
    assert result.stderr.endswith(said)
    assert train_json(packed, "--checkpoint", tmp_path / "run", "--resume") == (expected, [1, 3])


def test_checkpoint_every_n_minibatches_is_what_a_crash_leaves(packed, tmp_path, monkeypatch):
    from diskgnn.training import train as training

    step, steps = training._step, []

    def crashing_in_the_tenth_step(*arguments):
        steps.append(None)
        if len(steps) == 10:
            raise AssertionError("a crash")
        return step(*arguments)

    expected, _ = train_json(packed)
    monkeypatch.setattr(training, "_step", crashing_in_the_tenth_step)
    arguments = ["train", packed, "--hidden", 4, "--epochs", 3, "--checkpoint", tmp_path, "--checkpoint-every", 3]
    assert isinstance(CliRunner().invoke(main, [str(each) for each in arguments]).exception, AssertionError)
    assert train_json(packed, "--checkpoint", tmp_path, "--resume") == (expected, [1, 3])
    assert "checkpoint_every_batches" in run(*arguments[:-1], 0, exit_code=2).stderr


def test_sigterm_ends_any_command_with_143(monkeypatch):
    @click.command(cls=Command)
    def terminated():
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(terminated)
    assert result.exit_code == 143
    assert result.stderr == "error: terminated\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_doctor(tmp_path):
    document = json.loads(run("doctor", tmp_path, "--size", "1MiB", "--json").stdout)
    assert document["folder"]["rates"]["file_bytes"] == 1 << 20
    assert document["machine"]["io_uring"]["kernel"]
    told = run("doctor", tmp_path, "--no-measure").stdout
    assert "io_uring" in told
    assert "random read" not in told


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


def test_warnings_are_one_line_on_standard_error():
    @click.command(cls=Command)
    @click.pass_obj
    def warning(output):
        warnings.warn("12 rows of features\n hold NaN [x]", errors.DataWarning, stacklevel=1)
        output.result({})

    result = CliRunner().invoke(warning, ["--json"])
    assert result.stderr == "warning: 12 rows of features hold NaN [x]\n"
    assert json.loads(result.stdout) == {}


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


def test_json_takes_numpy_and_dataclasses():
    report = StageReport("x", 1.0, 2, 3, {"rows": np.int64(7)})
    assert json.loads(json.dumps(to_json([report, {1: Path("a")}]))) == [
        {"stage": "x", "seconds": 1.0, "read_bytes": 2, "written_bytes": 3, "details": {"rows": 7}}, {"1": "a"},
    ]  # fmt: skip


def test_interrupted_without_a_checkpoint_says_so(packed, tmp_path, monkeypatch):
    from diskgnn.training import train as training

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_step", interrupted)
    said = run("train", packed, "--hidden", 4, exit_code=130).stderr
    assert said.endswith("there is no checkpoint to go on from (--checkpoint DIR keeps one)\nerror: interrupted\n")


def test_evaluating_a_checkpoint_of_another_depth(packed, tmp_path):
    run("train", packed, "--hidden", 4, "--epochs", 1, "--checkpoint", tmp_path / "run")
    run("prepare", tmp_path / "generated", tmp_path / "deep", "--fanouts", "2,2,2", "--batch-size", 20,
        "--cpu-cache", "10%")  # fmt: skip
    said = run("evaluate", tmp_path / "deep", "--checkpoint", tmp_path / "run", exit_code=2).stderr
    assert f"the trained model has 1 layers, {tmp_path / 'deep'} has 3" in said


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


def test_public_names_are_listed():
    code = "import diskgnn, sys; sys.exit(str(set(diskgnn.__all__) - set(dir(diskgnn)) or 'torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == "False"
