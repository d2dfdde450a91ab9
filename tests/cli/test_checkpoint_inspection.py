"""What `diskgnn inspect` says of a checkpoint, against what training was told and returned."""

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from commands import run

import diskgnn
from diskgnn.errors import ArtifactError, DiskGNNError
from diskgnn.training.checkpoint_description import describe_checkpoint
from diskgnn.training.checkpoints import FILE, load_checkpoint, save_checkpoint


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two classes with names, and a column of numbers and one of two values; edges have times."""
    folder, random = tmp_path_factory.mktemp("tables"), np.random.default_rng(3)
    age = random.integers(0, 90, 60)
    nodes = {"id": np.arange(60), "label": np.where(age > 40, "old", "young"), "age": age,
             "town": random.choice(["Kyiv", "Lima"], 60), "time": random.integers(50, 99, 60),
             "split": ["train"] * 40 + ["valid", "test"] * 10}  # fmt: skip
    src, dst = random.integers(0, 60, (2, 300))
    pa.csv.write_csv(pa.table(nodes), folder / "nodes.csv")
    pa.csv.write_csv(pa.table({"src": src, "dst": dst, "time": random.integers(0, 99, 300)}), folder / "edges.csv")
    run("convert", folder / "graph", "--nodes", folder / "nodes.csv", "--edges", folder / "edges.csv",
        "--column", "time=time")  # fmt: skip
    run("prepare", folder / "graph", folder / "packed", "--fanouts", "3,2", "--batch-size", 10, "--epochs", 1,
        "--cpu-cache", "10%", "--temporal", "ignore")  # fmt: skip
    return folder


def test_says_what_was_trained_on_what_and_how(tables, tmp_path):
    result = diskgnn.train(str(tables / "packed"), model="gat", hidden=8, heads=2, lr=0.01, epochs=3,
                           checkpoint=tmp_path / "a run")  # fmt: skip
    found = json.loads(run("inspect", tmp_path / "a run", "--json").stdout)
    facts = found["facts"]
    assert (facts["model"], facts["hidden"], facts["num_layers"], facts["heads"]) == ("gat", 8, 2, 2)
    assert "num_bases" not in facts
    assert facts["weights_bytes"] == sum(4 * each.numel() for each in result.model.state_dict().values())
    assert facts["task"] == "node classification: 2 classes of node nodes"
    assert facts["class_values"] == ["old", "young"]
    assert facts["epochs"] == 3
    assert facts["best_epoch"] == result.best_epoch
    best, last = found["scores"]
    assert best["valid_accuracy"] == result.epochs[result.best_epoch].valid_accuracy
    assert (last["epoch"], last["train_loss"]) == (2, result.epochs[2].loss)
    assert found["node_types"] == [{"type": "node", "nodes": 60, "features": 3}]
    assert [(each["name"], each["encoding"], each["width"]) for each in found["feature_columns"]] == [
        ("age", "number", 1), ("town", "category", 2),
    ]  # fmt: skip
    assert found["feature_columns"][1]["values"] == ["Kyiv", "Lima"]
    assert found["sampling"]["fanouts"] == [3, 2]
    assert found["sampling"]["temporal"] == "ignore"
    assert (found["config"]["lr"], found["config"]["num_batches"]) == (0.01, 4)
    refused = run("verify", tmp_path / "a run", exit_code=ArtifactError.exit_code).stderr
    assert "a run is a checkpoint that training left" in refused
    assert "diskgnn inspect" in refused
    said = run("inspect", tmp_path / "a run").stdout
    for words in ("gat", "fanouts", "town", "diskgnn infer GRAPH"):
        assert words in said


def test_the_commands_that_it_names_work(tables, tmp_path):
    diskgnn.train(str(tables / "packed"), hidden=4, epochs=1, checkpoint=tmp_path / "a run")
    used_by = json.loads(run("inspect", tmp_path / "a run", "--json").stdout)["used_by"]
    assert list(used_by) == ["evaluate", "predict", "infer", "train"]
    places = {"GRAPH": tables / "graph", "PACKED": tables / "packed"}
    for command in (used_by[name] for name in ("evaluate", "predict", "infer")):
        words = [places.get(word, word) for word in shlex.split(command)[1:]]
        if "--out" in words:
            words[words.index("--out") + 1] = tmp_path / words[words.index("--out") + 1]
        run(*words)


def test_a_model_that_goes_by_times_is_asked_at_one(tables, tmp_path):
    run("prepare", tables / "graph", tmp_path / "packed", "--fanouts", "3", "--batch-size", 10, "--epochs", 1,
        "--cpu-cache", "10%", "--temporal", "last")  # fmt: skip
    diskgnn.train(str(tmp_path / "packed"), hidden=4, epochs=1, checkpoint=tmp_path / "run")
    found = describe_checkpoint(tmp_path / "run")
    assert found.sampling["temporal"] == "last"
    assert found.used_by["predict"].endswith("--at TIME")
    assert found.used_by["infer"].endswith("--ignore-times")


def test_a_module_of_ones_own_is_named_and_no_command_takes_it(tables, tmp_path):
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(3, 2)

        def forward(self, blocks, x):
            return self.head(x[: blocks[-1].num_dst])

    diskgnn.train(str(tables / "packed"), model=Mean(), epochs=1, checkpoint=tmp_path)
    found = describe_checkpoint(tmp_path)
    assert found.facts["model"].startswith("your own module ")
    assert found.facts["weights_bytes"] == 4 * (3 * 2 + 2)
    assert not any("diskgnn " in command.split(" in ")[0] for command in found.used_by.values())


def test_damaged_and_foreign_ones_are_told_by_diskgnns_own_errors(tables, tmp_path):
    diskgnn.train(str(tables / "packed"), hidden=4, epochs=1, checkpoint=tmp_path / "run")
    good = (tmp_path / "run" / FILE).read_bytes()
    (tmp_path / "run" / FILE).write_bytes(good[: len(good) // 2])
    assert "damaged" in run("inspect", tmp_path / "run", exit_code=ArtifactError.exit_code).stderr
    (tmp_path / "empty").mkdir()
    assert "no manifest.json" in run("inspect", tmp_path / "empty", exit_code=ArtifactError.exit_code).stderr


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("config", "hidden"), torch.zeros(3)),
        (("config", "lr"), b"x"),
        (("config", "sampling", "fanouts"), torch.zeros(2)),
        (("config", "schema", "target_kind"), "music"),
        (("config", "schema", "columns"), [[1]]),
        (("config", "model"), ["gat"]),
        (("config", "task"), torch.zeros(2)),
        (("history", 0, "evaluations"), 7),
        (("best", "epoch"), 10**6),
        (("best", "epoch"), "x"),
        (("model", "x"), 3),
        (("position", "batch"), torch.zeros(2)),
    ],
)  # fmt: skip
def test_forged_ones_are_told_by_diskgnns_own_errors(tables, tmp_path, path, value):
    diskgnn.train(str(tables / "packed"), hidden=4, epochs=1, checkpoint=tmp_path)
    content = inner = load_checkpoint(tmp_path)
    *above, last = path
    for key in above:
        inner = inner[key]
    inner[last] = value
    save_checkpoint(tmp_path, content)
    with pytest.raises(DiskGNNError):
        describe_checkpoint(tmp_path)
