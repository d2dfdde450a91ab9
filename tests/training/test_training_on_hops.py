"""Models of hop features: trained, stopped and gone on with, evaluated, applied to all nodes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from click.testing import CliRunner
from commands import run
from packed_directories import flip
from rank_processes import in_ranks, trained
from torch import nn
from training_runs import CLASSES, NODES, WIDTH, Interrupting, make_class_graph

import diskgnn
from diskgnn import ConfigError, DiskFullError, HopsLoader, HopsOptions, LoaderOptions
from diskgnn.cli import main
from diskgnn.files import faults
from diskgnn.files.disk_space import OWN_BYTES
from diskgnn.models import SGC, SIGN, HopModel, named_model
from diskgnn.progress.reporter import SILENT
from diskgnn.training.checkpoints import load_checkpoint

SETTINGS = {"lr": 0.02, "epochs": 6, "progress": False}
SHAPE = {"hidden": 16, "dropout": 0.2, **SETTINGS}
OPTIONS = HopsOptions(batch_size=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """graph, `hops` of two operators, `mean` of one, `packed`, and a checkpoint of each model."""
    folder = tmp_path_factory.mktemp("hop-training")
    graph = make_class_graph(folder / "graph")
    diskgnn.propagate(graph, folder / "hops", hops=2, operators="mean,symmetric", progress=False)
    diskgnn.propagate(graph, folder / "mean", hops=3, progress=False)
    diskgnn.prepare(graph, folder / "packed", fanouts=[2], batch_size=16, epochs=1, cpu_cache=0, progress=False)
    for model, hops in (("sign", "hops"), ("sgc", "mean")):
        options = SHAPE if model == "sign" else SETTINGS
        diskgnn.train(folder / hops, model=model, checkpoint=folder / model, loader_options=OPTIONS, **options)
    return folder


def hops_of_all_nodes(folder: Path, hops: int, *, symmetric: bool) -> torch.Tensor:
    """[N, H, D] as SciPy has them."""
    x, indptr, indices = (
        np.load(folder / "graph" / f"{name}.npy")
        for name in ("features-node", "indptr-node.to.node", "indices-node.to.node")
    )
    adjacency = sp.csr_array((np.ones(len(indices)), indices, indptr), shape=(NODES, NODES))
    scale = sp.diags_array(1 / np.maximum(1, np.diff(indptr)))
    found = [x.astype(float)]
    for operator in [scale @ adjacency] + [scale.sqrt() @ adjacency @ scale.sqrt()] * symmetric:
        hop = found[0]
        for _ in range(hops):
            hop = operator @ hop
            found.append(hop)
    return torch.tensor(np.stack(found, 1)).float()


@pytest.mark.parametrize("model", ["sign", "sgc"])
def test_models_learn_and_are_evaluated(folder: Path, model: str) -> None:
    hops = folder / ("hops" if model == "sign" else "mean")
    result = diskgnn.train(hops, model=model, loader_options=OPTIONS, **SHAPE if model == "sign" else SETTINGS)
    assert result.test_accuracy > 0.85  # of three classes; features alone give some 0.8
    again = diskgnn.evaluate(folder / model, hops, progress=False)
    assert again.accuracy == result.test_accuracy
    assert again.num_seeds == 90
    assert diskgnn.evaluate(folder / model, hops, split="valid", progress=False).accuracy == (
        result.epochs[result.best_epoch].evaluations["valid"].accuracy
    )


def test_models_are_what_their_names_say(folder: Path) -> None:
    """SGC is logistic regression on the last hop; SIGN maps each segment, and what these become together."""
    records = np.load(folder / "mean" / "records-train.npy").astype(float)
    standard = (records - records.mean(0)) / records.std(0)
    with HopsLoader(folder / "mean") as loader:
        for model in (named_model(loader, "sgc"), named_model(loader, "sign", hidden=4).eval()):
            found = model(torch.from_numpy(records).float().view(-1, 4, WIDTH)).detach().numpy()
            weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
            if isinstance(model, SGC):
                expected = standard[:, -WIDTH:] @ weights["linear.weight"].T + weights["linear.bias"]
            else:
                assert isinstance(model, SIGN)
                expected = sign(standard, weights)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def sign(standard: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """In evaluation mode, with running statistics that are 0 and 1 yet."""

    def layer(x: np.ndarray, linear: str, norm: str) -> np.ndarray:
        x = (x @ weights[f"{linear}.weight"].T + weights[f"{linear}.bias"]) / np.sqrt(1 + 1e-5)
        return np.maximum(0, x * weights[f"{norm}.weight"] + weights[f"{norm}.bias"])

    parts = [
        layer(part, f"inputs.{number}", f"after_inputs.{number}.norm")
        for number, part in enumerate(np.split(standard, 4, axis=1))
    ]
    hidden = layer(np.concatenate(parts, 1), "layers.0", "between.0.norm")
    return hidden @ weights["layers.1.weight"].T + weights["layers.1.bias"]


@pytest.mark.parametrize("stopped", [0, 3, 7, 10, 20])
def test_a_resumed_run_is_the_uninterrupted_run(folder: Path, tmp_path: Path, stopped: int) -> None:
    arguments: dict[str, Any] = {**SHAPE, "epochs": 3, "model": "sign", "seed": 3}
    with HopsLoader(folder / "hops", batch_size=16) as source:
        whole = diskgnn.train(source, **arguments)
    arguments |= {"checkpoint": tmp_path / "run"}
    with HopsLoader(folder / "hops", batch_size=16) as source, pytest.raises(KeyboardInterrupt):
        diskgnn.train(Interrupting(source, stopped), **arguments)
    with HopsLoader(folder / "hops", batch_size=16, memory=1) as source:
        result = diskgnn.train(source, resume=True, **arguments)
    assert [epoch.loss for epoch in result.epochs] == [epoch.loss for epoch in whole.epochs]
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name])


def test_the_seed_of_training_is_that_of_the_order(folder: Path, tmp_path: Path) -> None:
    def order(seed: int, **options: Any) -> int:
        diskgnn.train(
            folder / "mean", model="sgc", seed=seed, checkpoint=tmp_path / f"{seed}{options}", progress=False, epochs=1,
            loader_options=HopsOptions(**options),
        )  # fmt: skip
        return load_checkpoint(tmp_path / f"{seed}{options}")["position"]["source"]["source"]["shuffle_seed"]

    assert order(5) == 5
    assert order(5, shuffle_seed=2) == 2


def test_a_module_of_your_own_takes_x(folder: Path) -> None:
    seen = []

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5 * WIDTH, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.shape[1:])
            out: torch.Tensor = self.linear(x.flatten(1))
            return out

    result = diskgnn.train(folder / "hops", model=Own(), **SETTINGS | {"epochs": 20})
    assert {*seen} == {(5, WIDTH)}
    assert result.test_accuracy > 0.7


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_other_tasks(folder: Path, tmp_path: Path, kind: str) -> None:
    graph = diskgnn.Graph.open(folder / "graph")
    classes = np.asarray(graph.nodes["node"].labels)
    y = np.eye(CLASSES, dtype=np.uint8)[classes] if kind == "multilabel" else classes.astype(np.float32) + 0.5
    edges = np.stack([np.load(folder / "graph" / "indices-node.to.node.npy"), np.repeat(np.arange(NODES), 4)])
    nodes = {"features": np.load(folder / "graph" / "features-node.npy"), "labels": y, "task": kind}
    nodes |= graph.nodes["node"].splits
    schema = {"nodes": {"node": nodes}, "edges": {"node:to:node": {"edges": edges}}}
    diskgnn.convert(tmp_path / "graph", schema=schema, progress=False)
    diskgnn.propagate(tmp_path / "graph", tmp_path / "hops", hops=2, progress=False)
    result = diskgnn.train(tmp_path / "hops", checkpoint=tmp_path / "run", loader_options=OPTIONS, **SHAPE)
    scores = result.scores()
    assert scores["test_micro_f1"] > 0.7 if kind == "multilabel" else scores["test_mae"] < 0.5
    diskgnn.infer(tmp_path / "graph", tmp_path / "out.npy", tmp_path / "run", progress=False)
    assert np.load(tmp_path / "out.npy").shape == ((NODES, CLASSES) if kind == "multilabel" else (NODES, 1))


def test_two_ranks_take_the_steps_of_one_process(folder: Path) -> None:
    """Without batch norm, whose statistics are those of each rank; its minibatches are the others' together."""
    run = {"train_source": folder / "mean", "model": "sign", "norm": "layer", "loader_options": OPTIONS, **SHAPE}
    (first, second) = in_ranks(2, trained, {"run": run | {"dropout": 0.0, "epochs": 3}})
    weights, told, best = first["run"]
    assert told == second["run"][1]
    assert best == second["run"][2]
    for name, tensor in weights.items():
        assert torch.equal(tensor, second["run"][0][name])
    assert [rows for _, _, rows in told] == [100] * 3  # each seed once
    assert told[-1][1]["valid_accuracy"] > 0.7


@pytest.mark.parametrize("model", ["sign", "sgc"])
def test_inference_is_the_model_on_scipys_hops(folder: Path, tmp_path: Path, model: str) -> None:
    x = hops_of_all_nodes(folder, 2 if model == "sign" else 3, symmetric=model == "sign")
    net = diskgnn.load_model(folder / model).eval()
    expected = net(x).detach().numpy()
    nodes = [7, 3, 3, 239]
    asked = {"model": folder / model, "progress": False, "overwrite": True}
    for call, suffix in ((diskgnn.infer, ".npy"), (diskgnn.predict, ".npy"), (diskgnn.infer, ".parquet"),
                         (diskgnn.predict, ".parquet")):  # fmt: skip
        out = tmp_path / f"out{suffix}"
        call(folder / "graph", out, **asked)
        np.testing.assert_allclose(content(out), expected, rtol=1e-4, atol=1e-5)
        call(folder / "graph", out, nodes=nodes, **asked)
        in_order = nodes if (call, suffix) != (diskgnn.infer, ".parquet") else sorted(nodes)
        np.testing.assert_allclose(content(out), expected[in_order], rtol=1e-4, atol=1e-5)
        if suffix == ".parquet":
            assert pq.read_table(out)["node"].to_pylist() == in_order
    diskgnn.infer(folder / "graph", tmp_path / "out.parquet", what="classes", **asked)
    assert pq.read_table(tmp_path / "out.parquet")["class"].to_pylist() == expected.argmax(1).tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy", "out.parquet"]


def content(out: Path) -> np.ndarray:
    return np.load(out) if out.suffix == ".npy" else np.array(pq.read_table(out)["logits"].to_pylist())


def test_predictions_of_a_hops_directory(folder: Path, tmp_path: Path) -> None:
    diskgnn.predict(folder / "hops", tmp_path / "out.npy", folder / "sign", what="classes", progress=False)
    labels, seeds = (np.load(folder / "hops" / f"{name}-test.npy") for name in ("labels", "seeds"))
    found = np.load(tmp_path / "out.npy")
    accuracy = (found == labels[np.argsort(seeds)]).mean()
    assert accuracy == pytest.approx(diskgnn.evaluate(folder / "sign", folder / "hops", progress=False).accuracy)
    for wrong, told in ((folder / "mean", "the model takes x, mean/1, mean/2, symmetric/1"),
                        (folder / "packed", "has sampled neighbours")):  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            diskgnn.predict(wrong, tmp_path / "other.npy", folder / "sign", progress=False)


def test_embeddings_enter_the_last_layer(folder: Path, tmp_path: Path) -> None:
    asked = {"what": "embeddings", "progress": False}
    diskgnn.infer(folder / "graph", tmp_path / "rows.npy", folder / "sign", **asked)
    net = diskgnn.load_model(folder / "sign").eval()
    rows = torch.from_numpy(np.load(tmp_path / "rows.npy"))
    expected = net(hops_of_all_nodes(folder, 2, symmetric=True))
    torch.testing.assert_close(net.layers[-1](rows), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="a model of one layer has no rows before its last layer"):
        diskgnn.infer(folder / "graph", tmp_path / "none.npy", folder / "sgc", **asked)


class Stopping:
    """A reporter that interrupts a stage as it begins, and keeps the names of all."""

    def __init__(self, stopped: str | None) -> None:
        self.stopped, self.stages = stopped, list[str]()

    def stage(self, description: str, total: int, unit: str) -> Any:
        self.stages.append(description)
        if description == self.stopped:
            raise KeyboardInterrupt
        return SILENT.stage(description, total, unit)


@pytest.mark.parametrize("stage", ["find the rows of hops", "write records", "apply the model"])
def test_stopped_inference_goes_on_with_its_hops(folder: Path, tmp_path: Path, stage: str) -> None:
    asked = {"model": folder / "sign", "progress": False}
    taken_bytes = diskgnn.infer(folder / "graph", tmp_path / "whole.npy", **asked).details["disk_bytes"]
    assert isinstance(taken_bytes, int)
    asked["disk"] = taken_bytes + OWN_BYTES
    with pytest.raises(KeyboardInterrupt):
        diskgnn.infer(folder / "graph", tmp_path / "out.npy", reporter=Stopping(stage), **asked)
    assert not (tmp_path / "out.npy").exists()
    told = Stopping(None)
    diskgnn.infer(folder / "graph", tmp_path / "out.npy", reporter=told, **asked)
    assert (told.stages == ["apply the model"]) == (stage == "apply the model")  # the hops were there
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy", "whole.npy"]


@pytest.mark.parametrize(("call", "stage"), [(diskgnn.infer, "apply the model"), (diskgnn.predict, "predict")])
def test_hops_that_are_damaged_before_they_are_read_are_made_again(
    folder: Path, tmp_path: Path, call: Any, stage: str
) -> None:
    class Damaging(Stopping):
        """Flips a bit of the records where they are read for the first time."""

        def stage(self, description: str, total: int, unit: str) -> Any:
            if description == stage and stage not in self.stages:
                (records,) = tmp_path.rglob("records-nodes.npy")
                flip(records, 1000)
            return super().stage(description, total, unit)

    call(folder / "graph", tmp_path / "whole.npy", folder / "sign", progress=False)
    told = Damaging(None)
    call(folder / "graph", tmp_path / "out.npy", folder / "sign", reporter=told)
    assert told.stages.count(stage) == told.stages.count("write records") == 2
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_hops_over_later_edges_are_not_gone_on_with(folder: Path, tmp_path: Path) -> None:
    features = np.load(folder / "graph" / "features-node.npy")
    edges = np.random.default_rng(0).integers(0, NODES, (2, 800))
    schema = {"nodes": {"node": {"features": features}},
              "edges": {"node:to:node": {"edges": edges, "times": np.arange(800)}}}  # fmt: skip
    diskgnn.convert(tmp_path / "timed", schema=schema, progress=False)
    asked = tmp_path / "timed", tmp_path / "out.npy", folder / "sign"
    with pytest.raises(KeyboardInterrupt):
        diskgnn.infer(*asked, ignore_times=True, reporter=Stopping("apply the model"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="have times"):
            diskgnn.infer(*asked, progress=False)
    assert not (tmp_path / "out.npy").exists()


def test_the_disk_that_a_refusal_names_is_enough(folder: Path, tmp_path: Path) -> None:
    for call in (diskgnn.infer, diskgnn.predict):
        asked = partial(call, folder / "graph", tmp_path / "out.npy", folder / "sign", progress=False, overwrite=True)
        with pytest.raises(DiskFullError) as refused:
            asked(disk="100KiB")
        in_all = re.search(r"(\d+) bytes in all", str(refused.value))
        assert in_all is not None
        with pytest.raises(DiskFullError, match=": 1 bytes are missing"):
            asked(disk=int(in_all[1]) - 1)
        asked(disk=int(in_all[1]))
        assert np.load(tmp_path / "out.npy").shape == (NODES, CLASSES)
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_an_argument_that_cannot_work_costs_no_hops_that_are_begun(folder: Path, tmp_path: Path) -> None:
    asked = {"model": folder / "sign", "progress": False}
    with faults.pretending("unit.bytes", 1):
        with pytest.raises(KeyboardInterrupt):
            diskgnn.infer(folder / "graph", tmp_path / "out.npy", reporter=Stopping("write records"), **asked)
        with pytest.raises(ConfigError, match="memory: expected at least"):
            diskgnn.infer(folder / "graph", tmp_path / "out.npy", memory=1, **asked)
        told = Stopping(None)
        diskgnn.infer(folder / "graph", tmp_path / "out.npy", reporter=told, **asked)
    assert "write the edges of hops" not in told.stages
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    hops, mean, packed, sign, sgc, graph = (
        folder / name for name in ("hops", "mean", "packed", "sign", "sgc", "graph")
    )
    train, evaluate, infer, predict = (
        partial(call, progress=False) for call in (diskgnn.train, diskgnn.evaluate, diskgnn.infer, diskgnn.predict)
    )
    out, own, named = tmp_path / "out.npy", nn.Linear(3, 3), folder / "named.csv"
    named.write_text("id\nx\n")
    numbered, day = folder / "numbered.csv", diskgnn.TableColumns(time="day")
    numbered.write_text("id,day\n1,7\n")
    for call, told in (
        (partial(train, hops, model="sgc"), "one operator, found hops of mean and symmetric"),
        (partial(train, hops, model="sage"), "expected one of sign, sgc, sehgnn for hop features"),
        (partial(train, packed, model="sign"), "expected one of sage, gat, gcn"),
        (partial(train, hops, skip=True), r"skip: only for model=.*, found True with .sign."),
        (partial(train, hops, embeddings="disk"), "embeddings: only for vectors of nodes without features"),
        (partial(train, mean, model="sgc", num_layers=2), "num_layers: sgc has 1, found 2"),
        (partial(train, hops, loader_options=LoaderOptions()), "expected HopsOptions for a hops"),
        (partial(train, packed, loader_options=OPTIONS), "expected LoaderOptions for a packed"),
        (partial(train, hops, model=own), r"takes x \[B, 5, 5\] and returns one row"),
        (partial(evaluate, sign, mean), "trained on 5 features, hops x, mean/1, mean/2, symmetric"),
        (partial(evaluate, sgc, packed), "trained on 5 features, hops x, mean/1"),
        (partial(infer, graph, out, sign, engine="ray"), "applied by this process"),
        (partial(infer, graph, out, sign, memory=1), "memory: expected at least"),
        (partial(predict, hops, out, sign, fanouts=[3]), "fanouts: a hops directory was made beforehand"),
        (partial(predict, hops, out, sign, nodes=named), "found string; give the graph that they are of"),
        (partial(predict, hops, out, sign, at=3), "at: a hops directory"),
        (partial(predict, hops, out, sign, nodes=numbered, columns=day), "columns: time: a hops directory"),
        (partial(predict, graph, out, sign, nodes=numbered, columns=day), "columns: time: a model of hop features"),
        (partial(infer, graph, out, sign, nodes=numbered, columns=day), "expected what id .* found time='day'"),
        (partial(predict, hops, out, sign, ignore_times=True), "ignore_times: a hops directory"),
        (partial(predict, graph, out, sign, ignore_times=True), "ignore_times: only for a graph with times"),
        (partial(predict, hops, out, sign, nodes=[NODES]), f"{NODES} is no seed of this split; give the graph that"),
        (partial(predict, graph, out, sign, fanouts=[3]), "whole neighbourhoods"),
        (partial(predict, graph, out, sign, at=3), "at: a model of hop features"),
    ):
        with pytest.raises(ConfigError, match=told):
            call()
    diskgnn.convert(tmp_path / "wide", edges=np.array([[0, 1], [1, 0]]), features=np.ones((2, 9), np.float32),
                    progress=False)  # fmt: skip
    with pytest.raises(ConfigError, match="features of 9 columns, and the model was trained on hops of 5"):
        diskgnn.infer(tmp_path / "wide", tmp_path / "out.npy", sign, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["wide"]


def test_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    def run(*words: object) -> Any:
        result = CliRunner().invoke(main, [*map(str, words), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    hops, checkpoint = tmp_path / "hops", tmp_path / "run"
    run("propagate", folder / "graph", hops, "--hops", 2)
    result = run("train", hops, "--model", "sign", "--batch-size", 16, "--memory", "1MiB", "--epochs", 6, "--lr", 0.02,
                 "--hidden", 16, "--checkpoint", checkpoint)  # fmt: skip
    assert result["test_accuracy"] > 0.8
    assert run("evaluate", hops, "--checkpoint", checkpoint)["accuracy"] == result["test_accuracy"]
    run("infer", folder / "graph", "--checkpoint", checkpoint, "--out", tmp_path / "all.parquet", "--what", "classes")
    assert pq.read_table(tmp_path / "all.parquet").num_rows == NODES
    np.save(tmp_path / "some.npy", [7, 3])
    run("propagate", folder / "graph", tmp_path / "some", "--hops", 2, "--nodes", tmp_path / "some.npy")
    run("predict", tmp_path / "some", "--split", "nodes", "--checkpoint", checkpoint, "--what", "classes",
        "--out", tmp_path / "some.parquet")  # fmt: skip
    found, all_nodes = (pq.read_table(tmp_path / f"{name}.parquet")["class"].to_pylist() for name in ("some", "all"))
    assert found == [all_nodes[3], all_nodes[7]]
    described = run("inspect", checkpoint)
    assert described["facts"]["model"] == "sign"
    assert described["facts"]["segments"] == ["x", "mean/1", "mean/2"]
    assert "drawn" not in CliRunner().invoke(main, ["inspect", str(checkpoint)]).output
    for words, told in ((["train", folder / "packed", "--batch-size", 3], "--batch-size: "),
                        (["train", hops, "--device-cache", "1GiB"], "--device-cache: "),
                        (["evaluate", hops, "--checkpoint", checkpoint, "--stream"], "--stream: ")):  # fmt: skip
        refused = CliRunner().invoke(main, [*map(str, words)])
        assert refused.exit_code == 2, refused.output
        assert told in refused.output


def test_a_checkpoint_of_other_minibatches_is_told_in_short(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sign", tmp_path / "run")
    diskgnn.propagate(folder / "graph", tmp_path / "hops", hops=1, operators="mean,symmetric", progress=False)
    with pytest.raises(ConfigError) as refused:
        diskgnn.train(tmp_path / "hops", model="sign", checkpoint=tmp_path / "run", resume=True,
                      loader_options=OPTIONS, **SHAPE)  # fmt: skip
    told = str(refused.value)
    assert f"a segment mean/2 of {WIDTH} numbers" in told
    assert "this run has none of it; go on with the same settings and minibatches" in told
    assert "schema" not in told
    assert len(told) < 400


def test_what_evaluate_proposes_names_the_times_to_ignore(tmp_path: Path) -> None:
    """`infer` refuses without it where `propagate` does."""
    node = {"features": np.eye(20, dtype=np.float32), "labels": np.arange(20) % 2, "train": np.arange(10),
            "test": np.arange(10, 20)}  # fmt: skip
    edges = {"edges": np.stack([np.arange(20), np.roll(np.arange(20), 1)]), "times": np.arange(20)}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": {"node": node}, "edges": {"node:to:node": edges}})
    diskgnn.propagate(tmp_path / "graph", tmp_path / "hops", hops=1, ignore_times=True)
    diskgnn.train(tmp_path / "hops", model="sgc", epochs=1, checkpoint=tmp_path / "run")
    said = run("evaluate", tmp_path / "hops", "--checkpoint", tmp_path / "run").stderr
    (line,) = (line for line in said.splitlines() if line.startswith("next: "))
    words = shlex.split(line.removeprefix("next: diskgnn ").partition("   #")[0])
    given = {"GRAPH": tmp_path / "graph", "predictions.parquet": tmp_path / "out.parquet"}
    asked = [given.get(word, word) for word in words]
    assert "pass --ignore-times" in " ".join(run(*asked, exit_code=2).stderr.split())
    assert "with --ignore-times" in line
    run(*asked, "--ignore-times")


def test_statistics_come_with_the_checkpoint(folder: Path) -> None:
    net = diskgnn.load_model(folder / "sign")
    assert isinstance(net, HopModel)
    mean, deviation = np.load(folder / "hops" / "statistics.npy")
    np.testing.assert_array_equal(net.mean.numpy(), mean.astype(np.float32))
    np.testing.assert_array_equal(net.deviation.numpy(), deviation.astype(np.float32))
