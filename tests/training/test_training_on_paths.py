"""Models of means along paths of a typed graph: trained, evaluated, applied to all nodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from propagated_types import NUM_PAPERS, REVERSE, WRITES, TypedGiven, convert, papers
from torch import nn
from torch.nn import functional as F

import diskgnn
from diskgnn import ConfigError, HopsLoader, HopsOptions
from diskgnn.cli import main
from diskgnn.models import SIGN, SeHGNN, named_model

OPTIONS = HopsOptions(batch_size=32)
SHAPE = {"hidden": 16, "dropout": 0.2, "lr": 0.02, "epochs": 8, "progress": False, "loader_options": OPTIONS}


def records_of_all(given: TypedGiven) -> dict[str, torch.Tensor]:
    """x by segment, of all papers, as SciPy has them."""
    means = {
        "x": given.features["paper"],
        "author:writes": given.mean(WRITES) @ given.features["author"],
        "author:writes/paper:rev_writes": given.mean(WRITES) @ (given.mean(REVERSE) @ given.features["paper"]),
    }
    return {name: torch.tensor(each).float() for name, each in means.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """graph, `hops`, and a checkpoint of each model."""
    folder = tmp_path_factory.mktemp("paths")
    convert(papers(), folder / "graph")
    diskgnn.propagate(folder / "graph", folder / "hops", hops=2, progress=False)
    for model in ("sehgnn", "sign"):
        diskgnn.train(folder / "hops", model=model, checkpoint=folder / model, **SHAPE)
    return folder


@pytest.mark.parametrize("model", ["sehgnn", "sign"])
def test_models_learn_and_are_evaluated(folder: Path, model: str) -> None:
    result = diskgnn.train(folder / "hops", model=model, **SHAPE)
    assert result.test_accuracy > 0.8  # of three classes, which are those of the authors
    assert diskgnn.evaluate(folder / model, folder / "hops", progress=False).accuracy == result.test_accuracy


def test_sehgnn_is_the_default_and_what_the_paper_says(folder: Path) -> None:
    """Compared with torch's own attention, and layers applied to one segment after the other."""
    x = records_of_all(papers())
    with HopsLoader(folder / "hops") as loader:
        model = named_model(loader, hidden=8, num_layers=1).eval()
        mean, deviation = loader.statistics()
    assert isinstance(model, SeHGNN)
    with torch.no_grad():
        model.attention.gate.fill_(0.7)  # it is closed at first
        weights = model.state_dict()
        parts = [
            F.linear((x[name] - mean[name]) / deviation[name], weights[f"inputs.{number}.weight"])
            for number, name in enumerate(loader.hops)
        ]
        h, own = torch.stack(parts, 1), parts[0]
        for first in (0, 4):
            each = [
                F.linear(h[:, number], weights[f"of_segments.{first}.weight"][number].T,
                         weights[f"of_segments.{first}.bias"][number])
                for number in range(3)
            ]  # fmt: skip
            norm = f"of_segments.{first + 1}"
            h = F.layer_norm(torch.stack(each, 1), [3, 8], weights[f"{norm}.weight"], weights[f"{norm}.bias"])
            h = F.prelu(h, weights[f"of_segments.{first + 2}.weight"])
        query, key, value = (
            F.linear(h, weights[f"attention.{name}.weight"], weights[f"attention.{name}.bias"])
            for name in ("query", "key", "value")
        )
        h = h + 0.7 * F.scaled_dot_product_attention(query, key, value)
        h = F.linear(h.flatten(1), weights["together.weight"], weights["together.bias"])
        h = F.prelu(h + F.linear(own, weights["own.weight"]), weights["after_fusion.0.weight"])
        torch.testing.assert_close(model.embed(x), h, rtol=1e-4, atol=1e-5)
        logits = F.linear(h, weights["layers.0.weight"], weights["layers.0.bias"]) / np.sqrt(1 + 1e-5)
        torch.testing.assert_close(model(x), logits, rtol=1e-4, atol=1e-5)


def test_the_gate_of_attention_is_learnt(folder: Path) -> None:
    model = diskgnn.load_model(folder / "sehgnn")
    assert isinstance(model, SeHGNN)
    assert model.attention.gate.item() != 0


@pytest.mark.parametrize("model", ["sehgnn", "sign"])
def test_inference_is_the_model_on_scipys_means(folder: Path, tmp_path: Path, model: str) -> None:
    net = diskgnn.load_model(folder / model).eval()
    with torch.no_grad():
        expected = net(records_of_all(papers())).numpy()
    nodes = [7, 3, 3, 239]
    asked: dict[str, Any] = {"model": folder / model, "progress": False, "overwrite": True}
    for call in (diskgnn.infer, diskgnn.predict):
        call(folder / "graph", tmp_path / "out.npy", **asked)
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-3, atol=1e-4)
        call(folder / "graph", tmp_path / "out.npy", nodes=nodes, **asked)
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected[nodes], rtol=1e-3, atol=1e-4)
    diskgnn.infer(folder / "graph", tmp_path / "out.parquet", what="classes", **asked)
    assert pq.read_table(tmp_path / "out.parquet")["class"].to_pylist() == expected.argmax(1).tolist()
    diskgnn.infer(folder / "graph", tmp_path / "rows.npy", what="embeddings", **asked)
    rows = torch.from_numpy(np.load(tmp_path / "rows.npy"))
    with torch.no_grad():
        last = net.layers[-1](rows)
        found = net.norm(last) if isinstance(net, SeHGNN) else last
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-4)


def test_a_module_of_your_own_takes_x_by_segment(folder: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 3)

        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            assert [*x] == ["x", "author:writes", "author:writes/paper:rev_writes"]
            return self.linear(x["author:writes"])

    options = {"lr": 0.05, "epochs": 20, "progress": False, "loader_options": OPTIONS}
    assert diskgnn.train(folder / "hops", model=Own(), **options).test_accuracy > 0.8


def test_predictions_of_a_hops_directory(folder: Path, tmp_path: Path) -> None:
    diskgnn.predict(folder / "hops", tmp_path / "out.npy", folder / "sehgnn", what="classes", progress=False)
    labels, seeds = (np.load(folder / "hops" / f"{name}-test.npy") for name in ("labels", "seeds"))
    accuracy = (np.load(tmp_path / "out.npy") == labels[np.argsort(seeds)]).mean()
    assert accuracy == pytest.approx(diskgnn.evaluate(folder / "sehgnn", folder / "hops", progress=False).accuracy)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_other_tasks_on_seeds_without_features(tmp_path: Path, kind: str) -> None:
    given = papers()
    labels = np.arange(NUM_PAPERS) % 3
    y = np.eye(3, dtype=np.uint8)[labels] if kind == "multilabel" else labels.astype(np.float32)
    schema = {
        "nodes": {"paper": {"num_nodes": NUM_PAPERS, "labels": y, "task": kind, **given.seeds},
                  "author": {"features": given.features["author"].astype(np.float32)}},
        "edges": {":".join(name): {"edges": each} for name, each in given.edges.items()},
    }  # fmt: skip
    diskgnn.convert(tmp_path / "graph", schema=schema, progress=False)
    diskgnn.propagate(tmp_path / "graph", tmp_path / "hops", progress=False)
    with HopsLoader(tmp_path / "hops") as loader:
        assert loader.hops == ("author:writes",)
    scores = diskgnn.train(tmp_path / "hops", checkpoint=tmp_path / "run", **SHAPE | {"epochs": 20}).scores()
    assert scores["test_micro_f1"] > 0.7 if kind == "multilabel" else scores["test_mae"] < 0.6
    diskgnn.infer(tmp_path / "graph", tmp_path / "out.npy", tmp_path / "run", progress=False)
    assert np.load(tmp_path / "out.npy").shape == ((NUM_PAPERS, 3) if kind == "multilabel" else (NUM_PAPERS, 1))


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    given = papers()
    train = partial(diskgnn.train, folder / "hops", progress=False)
    infer = partial(diskgnn.infer, out=tmp_path / "out.npy", model=folder / "sehgnn", progress=False)
    wide = given.features | {"author": given.features["author"][:, :4]}
    convert(TypedGiven(given.num_nodes, wide, given.edges, "paper", given.seeds), tmp_path / "wide")
    other = {WRITES: given.edges[WRITES], ("paper", "reads", "author"): given.edges[REVERSE]}
    convert(TypedGiven(given.num_nodes, given.features, other, "paper", given.seeds), tmp_path / "other")
    without = {"author": given.features["author"]}
    convert(TypedGiven(given.num_nodes, without, given.edges, "paper", given.seeds), tmp_path / "without")
    for call, told in (
        (partial(train, model="sgc"), "sgc takes the last hop of one operator.*paths of edge types.*sehgnn"),
        (partial(train, model="rgcn"), "expected one of sehgnn, sign for hop features"),
        (partial(infer, tmp_path / "wide"), "features of 4 columns, and the model was trained on hops of 8"),
        (partial(infer, tmp_path / "other"), "segments that .* lacks: paths: expected edges to author nodes"),
        (partial(infer, tmp_path / "without"), "lacks: .*paper nodes have none|trained on x, author:writes"),
        (partial(infer, folder / "graph", node_type="author"), "lacks: paths: expected edges to author nodes"),
    ):
        with pytest.raises(ConfigError, match=told):
            call()
    assert not (tmp_path / "out.npy").exists()


def test_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    def run(*words: object) -> str:
        done = CliRunner().invoke(main, [*map(str, words)])
        assert done.exit_code == 0, done.output
        return done.output

    hops, checkpoint = tmp_path / "hops", tmp_path / "run"
    run("propagate", folder / "graph", hops, "--target", "paper")
    assert "test_accuracy" in run("train", hops, "--epochs", 2, "--hidden", 8, "--checkpoint", checkpoint)
    assert "accuracy" in run("evaluate", hops, "--checkpoint", checkpoint)
    assert "sehgnn" in run("inspect", checkpoint)
    run("infer", folder / "graph", "--checkpoint", checkpoint, "--out", tmp_path / "out.npy", "--what", "classes")
    run("predict", folder / "graph", "--checkpoint", checkpoint, "--out", tmp_path / "some.npy", "--what", "classes")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.load(tmp_path / "some.npy"))


def test_segments_of_one_width_come_as_one_tensor(folder: Path, tmp_path: Path) -> None:
    diskgnn.propagate(folder / "graph", tmp_path / "hops", paths="writes/rev_writes", progress=False)
    with HopsLoader(tmp_path / "hops", batch_size=40) as loader:
        assert next(iter(loader)).x.shape == (40, 2, 5)
    result = diskgnn.train(tmp_path / "hops", model="sign", **SHAPE | {"epochs": 1})
    assert isinstance(result.model, SIGN)
