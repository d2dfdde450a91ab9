"""What the CPU learns and predicts, the GPU does: every model, task and source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import propagated_types
import pytest
import torch
from graphs import prepare_graph
from propagated_types import papers
from rank_processes import in_ranks, trained
from training_runs import make_class_graph
from typed_batches import WRITES, TypedGraph
from typed_directories import write_typed_graph
from users_and_events import convert, prepare, users_and_events

import diskgnn
from diskgnn import HopsLoader, HopsOptions, Loader
from diskgnn.baselines.in_memory import InMemory
from diskgnn.batches.blocks import tensors_of
from diskgnn.fresh.fresh_epochs import FreshEpochs
from diskgnn.nn.model_spec import ONE_TYPE_MODELS, TYPED_MODELS
from diskgnn.specs.targets import LinkTarget
from diskgnn.training.train import train

ON_GPU = torch.cuda.is_available()
pytestmark = [pytest.mark.cuda] if ON_GPU else []
DEVICE = "cuda" if ON_GPU else "cpu"  # so that the first case of each test, which runs anywhere, can't rot


def each(names: str, values: Iterable[Any], **options: Any) -> pytest.MarkDecorator:
    """`parametrize`, of which the first case runs without a GPU, too."""
    first, *others = values
    return pytest.mark.parametrize(
        names, [first, *(pytest.param(other, marks=pytest.mark.cuda) for other in others)], **options
    )


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Raises where something waits for the GPU."""
    if not ON_GPU:
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


ARGUMENTS = {"hidden": 8, "dropout": 0.0, "lr": 0.02, "epochs": 3, "progress": False}
HEADS = {name: {"heads": 2} for name in ("gat", "rgat", "hgt")}
AMP = each("amp", [False, True], ids=["float32", "amp"])


def assert_learns_the_same(source, *, amp: bool, **arguments) -> None:
    """Losses of all epochs; in bfloat16 to 5 %, as sums are in another order there."""
    run = Path(source).parent / "run"
    options = {name: value for name, value in (ARGUMENTS | arguments).items() if value is not None}
    runs = [
        train(source, device=device, amp=amp, checkpoint=run / where, **options)
        for where, device in (("here", "cpu"), ("there", DEVICE))
    ]
    losses = [[epoch.loss for epoch in run.epochs] for run in runs]
    assert all(np.isfinite(each).all() for each in losses)
    np.testing.assert_allclose(*losses, rtol=0.05 if amp else 1e-3)
    assert runs[1].model is not None
    assert {parameter.dtype for parameter in runs[1].model.parameters()} == {torch.float32}


@AMP
@each("name", ONE_TYPE_MODELS)
@each("dtype", ["float32", "int8", "bfloat16"])
def test_models_of_one_type(tmp_path: Path, name: str, dtype: str, amp: bool) -> None:
    if dtype == "float32":
        graph = make_class_graph(tmp_path / "graph")
    else:
        diskgnn.generate(tmp_path / "graph", num_nodes=300, num_features=6, num_classes=3, feature_dtype=dtype,
                         progress=False)  # fmt: skip
        graph = diskgnn.Graph.open(tmp_path / "graph")
    packed = prepare_graph(graph, tmp_path, static_cache="20%", cpu_cache="10%")
    assert_learns_the_same(packed, amp=amp, model=name, **HEADS.get(name, {}))


@AMP
@each("kind", ["class", "multilabel", "regression"])
@each("name", TYPED_MODELS)
def test_typed_models(tmp_path: Path, name: str, kind: str, amp: bool) -> None:
    """With edge features, and a type without features of its own."""
    write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32), kind)
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[3, 2], batch_size=8, epochs=2, cpu_cache="20%",
                    static_cache="20%", progress=False)  # fmt: skip
    assert_learns_the_same(tmp_path / "packed", amp=amp, model=name, **HEADS.get(name, {}))


@AMP
@each("decoder", ["dot", "distmult"])
def test_links(tmp_path: Path, decoder: str, amp: bool) -> None:
    write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[3, 2], batch_size=8, epochs=2, cpu_cache="20%",
                    target=LinkTarget(WRITES, negatives=2, eval_negatives=5), progress=False)  # fmt: skip
    assert_learns_the_same(tmp_path / "packed", amp=amp, decoder=decoder)


@each("embeddings", ["memory", "disk"])
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
    for out, device in ((tmp_path / "here.npy", "cpu"), (tmp_path / "there.npy", DEVICE)):
        scores.append(diskgnn.evaluate(run, packed, device, progress=False).scores["accuracy"])
        diskgnn.predict(graph, out, run, nodes=np.arange(240), fanouts=[-1, -1], device=device, progress=False)
        rows.append(np.load(out))
    assert scores[0] == scores[1]
    diskgnn.infer(graph, tmp_path / "all.npy", run, progress=False)
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.load(tmp_path / "all.npy"), rows[0], rtol=1e-3, atol=1e-4)


@AMP
@each("model", ["sign", "sgc"])
def test_models_of_hops(tmp_path: Path, model: str, amp: bool) -> None:
    graph, hops = make_class_graph(tmp_path / "graph"), tmp_path / "hops"
    diskgnn.propagate(graph, hops, hops=2, operators="mean,symmetric" if model == "sign" else "mean", progress=False)
    reading = HopsOptions(batch_size=16)
    shape = {} if model == "sign" else {"hidden": None, "dropout": None}
    assert_learns_the_same(hops, amp=amp, model=model, loader_options=reading, **shape)
    assert_says_the_same(hops, tmp_path / "run", graph)


@each("model", ["sehgnn", "sign"])
def test_models_of_paths(tmp_path: Path, model: str) -> None:
    graph, hops = tmp_path / "graph", tmp_path / "hops"
    propagated_types.convert(papers(), graph)
    diskgnn.propagate(graph, hops, hops=2, progress=False)
    assert_learns_the_same(hops, amp=False, model=model, loader_options=HopsOptions(batch_size=32))
    assert_says_the_same(hops, tmp_path / "run", graph)


def assert_says_the_same(source: Path, run: Path, graph: object) -> None:
    """A model of the GPU, wherever it is applied."""
    scores = [diskgnn.evaluate(run / "there", source, each, progress=False).scores for each in ("cpu", DEVICE)]
    assert scores[0].keys() == scores[1].keys()
    for name, score in scores[0].items():
        assert scores[1][name] == pytest.approx(score, rel=1e-3)
    diskgnn.infer(graph, run / "infer.npy", run / "there", progress=False)
    diskgnn.predict(graph, run / "predict.npy", run / "there", nodes=np.arange(10), device=DEVICE, progress=False)
    np.testing.assert_allclose(np.load(run / "predict.npy"), np.load(run / "infer.npy")[:10], rtol=1e-3, atol=1e-4)


@each("memory", ["1GiB", 1])
def test_minibatches_of_hops_are_the_same_on_any_stream(tmp_path: Path, memory: str | int) -> None:
    """Kept and read records, under a stream of the user's own, and nothing waits for the GPU."""
    graph, hops = make_class_graph(tmp_path / "graph"), tmp_path / "hops"
    diskgnn.propagate(graph, hops, hops=3, progress=False)
    with HopsLoader(hops, batch_size=16, memory=memory) as loader:
        expected = [tuple(tensors_of(batch)) for epoch in range(3) for batch in loader.epoch(epoch)]
    found = []
    with (
        HopsLoader(hops, batch_size=16, memory=memory, device=DEVICE) as loader,
        torch.cuda.stream(torch.cuda.Stream()) if ON_GPU else nullcontext(),
        nothing_waits(),
    ):
        for epoch in range(3):
            found += [tuple(tensor + 0 for tensor in tensors_of(batch)) for batch in loader.epoch(epoch)]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(one.cpu(), other) for one, other in zip(ours, theirs, strict=True))


@each("keep_columns", [True, False])
@each("model", ["relational", "rgcn"])
def test_models_of_databases(tmp_path: Path, keep_columns: bool, model: str) -> None:
    tables, run = users_and_events(), tmp_path / "run"
    convert(tmp_path / "graph", tables, keep_columns=keep_columns)
    packed = prepare(tmp_path / "graph", tmp_path / "packed", tables)
    assert_learns_the_same(packed, amp=False, model=model)
    rows = []
    for out, device in ((tmp_path / "here.npy", "cpu"), (tmp_path / "there.npy", DEVICE)):
        diskgnn.predict(packed, out, run / "there", device=device, progress=False)
        rows.append(np.load(out))
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-3, atol=1e-4)


def test_columns_of_tables_are_the_same_bits(tmp_path: Path) -> None:
    """x, columns, nulls and times, decoded there as here, also if moved by hand. Nothing waits for the GPU."""
    tables = users_and_events()
    convert(tmp_path / "graph", tables, keep_columns=True)
    packed = prepare(tmp_path / "graph", tmp_path / "packed", tables)
    with Loader(packed, device=DEVICE) as loader, Loader(packed) as here:
        next(loader.epoch(0)).x["users"].sum()  # kernels are compiled
        for there, expected in zip(loader.epoch(1), here.epoch(1), strict=True):
            with nothing_waits():
                x = dict(there.x)
                values = [
                    decoded[name][column]
                    for decoded in (there.columns, there.nulls) for name in decoded for column in decoded[name]
                ]  # fmt: skip
            assert len(values) > 5
            assert {values.device.type for values in [*values, *x.values()]} == {DEVICE}
            for name in x:
                assert torch.equal(x[name].cpu(), expected.x[name])
            for found in (there, there.to("cpu"), expected.to(DEVICE)):
                assert_same_tables(found, expected)


def assert_same_tables(found, expected) -> None:
    for ours, theirs in ((found.columns, expected.columns), (found.nulls, expected.nulls)):
        assert ours.keys() == theirs.keys()
        for name, columns in theirs.items():
            assert {*ours[name]} == {*columns}
            for key, values in columns.items():
                assert torch.equal(ours[name][key].cpu().view(torch.uint8), values.contiguous().view(torch.uint8))
    for name, times in expected.times.items():
        assert torch.equal(found.times[name].cpu(), times)
    assert torch.equal(found.seed_times.cpu(), expected.seed_times)
    assert [block.num_edges for block in found.blocks[0].values()] == [
        block.num_edges for block in expected.blocks[0].values()
    ]


def test_two_ranks_of_one_gpu(tmp_path: Path) -> None:
    """Over gloo, which copies through the host: NCCL refuses two processes on a GPU."""
    graph = make_class_graph(tmp_path / "graph")
    for ranks in (1, 2):
        diskgnn.prepare(graph, tmp_path / f"packed-{ranks}", fanouts=[3, 2], batch_size=8, epochs=2, cpu_cache="10%",
                        ranks=ranks, progress=False)  # fmt: skip
    options = ARGUMENTS | {"train_source": str(tmp_path / "packed-2"), "model": "sage"}
    runs = {where: options | {"device": device} for where, device in (("here", "cpu"), ("there", DEVICE))}
    first, second = in_ranks(2, trained, runs)
    for name, weight in first["there"][0].items():
        torch.testing.assert_close(weight.cpu(), second["there"][0][name].cpu(), rtol=0, atol=0)
    np.testing.assert_allclose(*([loss for loss, *_ in first[where][1]] for where in runs), rtol=1e-3)
