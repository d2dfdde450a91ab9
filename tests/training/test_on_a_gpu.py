"""What the CPU learns and predicts, the GPU does: every model, task and source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import prepare_graph
from training_runs import make_class_graph
from typed_batches import WRITES, TypedGraph
from typed_directories import write_typed_graph

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.fresh.fresh_epochs import FreshEpochs
from diskgnn.nn.model_spec import ONE_TYPE_MODELS, TYPED_MODELS
from diskgnn.specs.targets import LinkTarget
from diskgnn.training.train import train

pytestmark = pytest.mark.cuda
DEVICE = "cuda"
ARGUMENTS = {"hidden": 8, "heads": 2, "dropout": 0.0, "lr": 0.02, "epochs": 3, "progress": False}
AMP = pytest.mark.parametrize("amp", [False, True], ids=["float32", "amp"])


def assert_learns_the_same(source, *, amp: bool, **arguments) -> None:
    """Losses of all epochs; in bfloat16 to 5 %, as sums are in another order there."""
    run = Path(source).parent / "run"
    runs = [
        train(source, device=device, amp=amp, checkpoint=run / device, **ARGUMENTS, **arguments)
        for device in ("cpu", DEVICE)
    ]
    losses = [[epoch.loss for epoch in run.epochs] for run in runs]
    np.testing.assert_allclose(*losses, rtol=0.05 if amp else 1e-3)
    assert runs[1].model is not None
    assert {parameter.dtype for parameter in runs[1].model.parameters()} == {torch.float32}


@AMP
@pytest.mark.parametrize("name", ONE_TYPE_MODELS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_models_of_one_type(tmp_path: Path, name: str, dtype: str, amp: bool) -> None:
    if dtype == "float32":
        graph = make_class_graph(tmp_path / "graph")
    else:
        diskgnn.generate(tmp_path / "graph", num_nodes=300, num_features=6, num_classes=3, feature_dtype=dtype,
                         progress=False)  # fmt: skip
        graph = diskgnn.Graph.open(tmp_path / "graph")
    packed = prepare_graph(graph, tmp_path, static_cache="20%", cpu_cache="10%")
    assert_learns_the_same(packed, amp=amp, model=name)


@AMP
@pytest.mark.parametrize("kind", ["class", "multilabel", "regression"])
@pytest.mark.parametrize("name", TYPED_MODELS)
def test_typed_models(tmp_path: Path, name: str, kind: str, amp: bool) -> None:
    """With edge features, and a type without features of its own."""
    write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32), kind)
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[3, 2], batch_size=8, epochs=2, cpu_cache="20%",
                    static_cache="20%", progress=False)  # fmt: skip
    assert_learns_the_same(tmp_path / "packed", amp=amp, model=name)


@AMP
@pytest.mark.parametrize("decoder", ["dot", "distmult"])
def test_links(tmp_path: Path, decoder: str, amp: bool) -> None:
    write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[3, 2], batch_size=8, epochs=2, cpu_cache="20%",
                    target=LinkTarget(WRITES, negatives=2, eval_negatives=5), progress=False)  # fmt: skip
    assert_learns_the_same(tmp_path / "packed", amp=amp, decoder=decoder)


@pytest.mark.parametrize("embeddings", ["memory", "disk"])
def test_vectors_of_nodes_are_learnt(tmp_path: Path, embeddings: str) -> None:
    write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[3, 2], batch_size=8, epochs=2, cpu_cache="20%",
                    progress=False)  # fmt: skip
    assert_learns_the_same(tmp_path / "packed", amp=False, embeddings=embeddings)


def test_minibatches_that_are_drawn_while_training(tmp_path: Path) -> None:
    graph = make_class_graph(tmp_path / "graph")
    options = {"fanouts": [3, 2], "batch_size": 16, "seed": 1}
    with InMemory(graph, **options) as online:
        expected = train(online, model="sage", **ARGUMENTS)
    with (
        InMemory(graph, **options) as online,
        FreshEpochs(graph, tmp_path, cpu_cache="20%", static_cache="20%", device=DEVICE, **options) as fresh,
    ):
        for source in (online, fresh):
            found = train(source, model="sage", device=DEVICE, **ARGUMENTS)
            np.testing.assert_allclose(
                [epoch.loss for epoch in found.epochs], [epoch.loss for epoch in expected.epochs], rtol=1e-3
            )


def test_a_model_of_the_gpu_predicts_the_same_on_both(tmp_path: Path) -> None:
    """Scores and rows of `evaluate`, `predict` on both devices, and of `infer`, which computes on the CPU."""
    graph, run = make_class_graph(tmp_path / "graph"), tmp_path / "run"
    packed = prepare_graph(graph, tmp_path, fanouts=(-1, -1), static_cache="20%", cpu_cache="10%")
    train(packed, model="gat", device=DEVICE, checkpoint=run, **ARGUMENTS)
    scores, rows = [], []
    for device in ("cpu", DEVICE):
        scores.append(diskgnn.evaluate(run, packed, device, progress=False).scores["accuracy"])
        diskgnn.predict(graph, tmp_path / f"{device}.npy", run, nodes=np.arange(240), fanouts=[-1, -1], device=device,
                        progress=False)  # fmt: skip
        rows.append(np.load(tmp_path / f"{device}.npy"))
    assert scores[0] == scores[1]
    diskgnn.infer(graph, tmp_path / "all.npy", run, progress=False)
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.load(tmp_path / "all.npy"), rows[0], rtol=1e-3, atol=1e-4)
