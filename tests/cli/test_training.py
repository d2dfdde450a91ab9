"""Commands that train and evaluate."""

import json
import shlex
import signal

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from commands import run

from diskgnn import errors
from diskgnn.cli import main
from diskgnn.files import faults


def test_options_of_reading_reach_the_loader(packed, tmp_path):
    training = ["train", packed, "--hidden", 4, "--epochs", 1]
    document = json.loads(run(*training, "--device-cache", "5%", "--checkpoint", tmp_path / "c", "--json").stdout)
    assert document["epochs"][0]["hit_rate_device"] > 0 < document["epochs"][0]["hit_rate_pinned"]
    document = json.loads(run(*training, "--json").stdout)
    assert document["epochs"][0]["hit_rate_device"] == 0
    for command in (training, ["evaluate", packed, "--checkpoint", tmp_path / "c"]):
        assert "0% and 100%" in run(*command, "--device-cache", "101%", exit_code=2).stderr
        assert "--prefetch: expected at least 1" in run(*command, "--prefetch", 0, exit_code=2).stderr


def test_evaluate_proposes_what_people_want_of_a_model(packed, tmp_path):
    run("train", packed, "--hidden", 4, "--epochs", 1, "--checkpoint", tmp_path / "run")
    said = run("evaluate", packed, "--checkpoint", tmp_path / "run").stderr
    (line,) = (line for line in said.splitlines() if line.startswith("next: diskgnn infer GRAPH "))
    words = shlex.split(line.removeprefix("next: diskgnn ").partition("   #")[0])
    assert words[-2:] == ["--what", "classes"]
    out = words.index("predictions.parquet")
    run("infer", tmp_path / "generated", *words[2:out], tmp_path / "predictions.parquet", *words[out + 1 :])
    assert len(pq.read_table(tmp_path / "predictions.parquet")) == 200


@pytest.mark.slow
def test_from_a_generated_graph_to_a_trained_model(tmp_path):
    graph, samples, packed, checkpoint = (tmp_path / name for name in ("graph", "samples", "packed", "run"))
    run("generate", graph, "--num-nodes", 400, "--num-classes", 3, "--num-features", 8, "--train-fraction", 0.3,
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


def train_json(packed, *arguments):
    result = run("train", packed, "--hidden", 4, "--epochs", 3, *arguments, "--json")
    losses = [epoch["loss"] for epoch in json.loads(result.stdout)["epochs"]]
    return losses, json.loads(result.stdout)["resumed_from"]


@pytest.mark.parametrize(("number", "ending"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "hung up")])
def test_signals_save_the_checkpoint_and_resume_goes_on_from_it(packed, tmp_path, number, ending):
    expected, _ = train_json(packed)
    before = signal.signal(number, lambda *_: pytest.fail("the signal was not handled"))
    try:
        with faults.armed("training.step", lambda: signal.raise_signal(number), after=7):  # in the eighth step
            training_arguments = ["train", packed, "--hidden", 4, "--epochs", 3, "--checkpoint", tmp_path / "run"]
            result = run(*training_arguments, exit_code=128 + number)
    finally:
        signal.signal(number, before)
    said = f"the checkpoint is in {tmp_path / 'run'}: go on with the same command and --resume\nerror: {ending}\n"
    assert result.stderr.endswith(said)
    assert train_json(packed, "--checkpoint", tmp_path / "run", "--resume") == (expected, [1, 3])


def test_checkpoint_every_n_minibatches_is_what_a_crash_leaves(packed, tmp_path):
    expected, _ = train_json(packed)
    arguments = ["train", packed, "--hidden", 4, "--epochs", 3, "--checkpoint", tmp_path, "--checkpoint-every", 3]
    with faults.armed("training.step", AssertionError("a crash"), after=9):  # in the tenth step
        assert isinstance(CliRunner().invoke(main, [str(each) for each in arguments]).exception, AssertionError)
    assert train_json(packed, "--checkpoint", tmp_path, "--resume") == (expected, [1, 3])
    assert "--checkpoint-every: expected at least 1" in run(*arguments[:-1], 0, exit_code=2).stderr


def test_interrupted_without_a_checkpoint_says_so(packed):
    with faults.armed("training.step", KeyboardInterrupt()):
        said = run("train", packed, "--hidden", 4, exit_code=130).stderr
    assert said.endswith("there is no checkpoint to go on from (--checkpoint DIR keeps one)\nerror: interrupted\n")


def test_interrupted_while_opening_says_that_nothing_was_trained(packed, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("diskgnn.training.train.open_sources", interrupted)
    said = run("train", packed, "--hidden", 4, "--checkpoint", tmp_path / "run", exit_code=130).stderr
    assert said.endswith(
        f"nothing was trained yet, so {tmp_path / 'run'} has no checkpoint: start the same command again\n"
        "error: interrupted\n"
    )


def test_messages_show_flags(packed, tmp_path):
    training = ["train", packed, "--hidden", 4, "--epochs", 1]
    assert "use --layers 1, or" in run(*training, "--layers", 2, exit_code=2).stderr
    assert "--resume and --checkpoint-every need a directory: expected --checkpoint" in (
        run(*training, "--resume", exit_code=2).stderr
    )
    (tmp_path / "file").write_text("in the way")
    assert f"--metrics: cannot write {tmp_path / 'file' / 'metrics'}" in (
        run(*training, "--metrics", tmp_path / "file" / "metrics", exit_code=2).stderr
    )
    run(*training, "--checkpoint", tmp_path / "run")
    assert "warning: the run in" in (again := run(*training, "--checkpoint", tmp_path / "run", "--resume").stderr)
    assert "for more, raise --epochs" in again
    assert "pass --resume to go on" in run(*training, "--checkpoint", tmp_path / "run", exit_code=5).stderr
    assert "made with --lr 0.003, this run has --lr 0.5" in (
        run(*training, "--lr", 0.5, "--checkpoint", tmp_path / "run", "--resume", exit_code=2).stderr
    )
    assert f"train with --checkpoint {tmp_path / 'none'} first" in (
        run("evaluate", packed, "--checkpoint", tmp_path / "none", exit_code=4).stderr
    )
    assert "--device: expected cpu" in run(*training, "--device", "nonsense", exit_code=2).stderr


def test_infer_says_what_it_took_one_figure_a_line(packed, tmp_path):
    run("train", packed, "--hidden", 4, "--epochs", 1, "--checkpoint", tmp_path / "run")
    said = run("infer", tmp_path / "generated", "--checkpoint", tmp_path / "run", "--out", tmp_path / "out.npy").stdout
    title, *lines = said.splitlines()[1:]
    assert title == "what it took"
    names = ["seconds_per_layer", "panels", "minimum", "moved", "edge", "scratch", "memory"]
    assert [line.split()[0] for line in lines] == names


def test_evaluating_a_checkpoint_of_another_depth(packed, tmp_path):
    run("train", packed, "--hidden", 4, "--epochs", 1, "--checkpoint", tmp_path / "run")
    run("prepare", tmp_path / "generated", tmp_path / "deep", "--fanouts", "2,2,2", "--batch-size", 20,
        "--cpu-cache", "10%")  # fmt: skip
    said = run("evaluate", tmp_path / "deep", "--checkpoint", tmp_path / "run", exit_code=2).stderr
    assert f"the trained model has 1 layer, {tmp_path / 'deep'} has 3" in said


def test_evaluating_a_checkpoint_of_other_widths(packed, tmp_path):
    run("train", packed, "--hidden", 4, "--epochs", 1, "--checkpoint", tmp_path / "run")
    run("generate", tmp_path / "wide", "--num-nodes", 200, "--num-classes", 5, "--num-features", 9,
        "--test-fraction", 0.2)  # fmt: skip
    run("prepare", tmp_path / "wide", tmp_path / "other", "--fanouts", "3", "--batch-size", 20, "--cpu-cache", "10%")
    said = run("evaluate", tmp_path / "other", "--checkpoint", tmp_path / "run", exit_code=2).stderr
    assert f"checkpoint {tmp_path / 'run'} was trained on 4 features and 3 classes; " in said
    assert f"{tmp_path / 'other'} has 9 features and 5 classes: evaluate it on " in said
