"""The training loop against one written out in the test, and what it refuses."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_runs import CLASSES, WIDTH, Net, make_class_graph, make_net, source_threads

from diskgnn.baselines.in_memory import InMemory
from diskgnn.errors import ConfigError, DivergedError
from diskgnn.graph.graph import Graph
from diskgnn.specs.targets import NodeTarget
from diskgnn.training.checkpoints import FILE, load_model
from diskgnn.training.criterion import Criterion
from diskgnn.training.evaluate import evaluate
from diskgnn.training.node_tasks import NodeClassification
from diskgnn.training.train import train


def test_losses_are_those_of_a_plain_loop(sources):
    net = make_net()
    torch.manual_seed(7)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02, weight_decay=0.001)
    expected = []
    for epoch in range(3):
        for batch in sources["train"].epoch(epoch):
            net.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(net(batch.blocks, batch.x), batch.y)
            loss.backward()
            optimizer.step()
            expected.append(loss.item())

    seen = []
    result = train(sources["train"], model=make_net(), epochs=3, seed=7, lr=0.02, weight_decay=0.001,
                   record_every_batches=1, callback=seen.append)  # fmt: skip
    assert [record["loss"] for record in seen if record["event"] == "step"] == expected
    per_epoch = np.array(expected).reshape(3, -1).mean(1)
    np.testing.assert_allclose([epoch.loss for epoch in result.epochs], per_epoch, rtol=1e-12)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name])


def test_models_given_by_name_learn(sources, tmp_path):
    result = train(
        sources["train"], valid_source=sources["valid"], test_source=sources["test"], model="sage", hidden=16,
        epochs=8, lr=0.02, checkpoint=tmp_path,
    )  # fmt: skip
    assert result.test_accuracy > 0.9  # chance is a third
    assert result.epochs[-1].loss < result.epochs[0].loss / 2
    assert all(epoch.hit_rate_cpu == 1 and epoch.read_bytes == 0 for epoch in result.epochs)
    assert evaluate(load_model(tmp_path), sources["test"]).accuracy == result.test_accuracy


def test_the_best_epoch_is_kept(sources):
    net = make_net()

    def spoil(record):
        if record["event"] == "epoch" and record["epoch"] == 1:
            with torch.no_grad():
                net.linears[-1].weight.mul_(-10)

    result = train(sources["train"], valid_source=sources["valid"], test_source=sources["test"], model=net,
                   epochs=4, lr=0.01, callback=spoil)  # fmt: skip
    accuracies = [epoch.valid_accuracy for epoch in result.epochs]
    assert result.best_epoch == int(np.argmax(accuracies)) < 2
    assert result.valid_accuracy == max(accuracies) == evaluate(result.model, sources["valid"]).accuracy
    assert result.test_accuracy == result.epochs[result.best_epoch].test_accuracy
    assert result.test_accuracy == evaluate(result.model, sources["test"]).accuracy


def record_scores(result, name):
    return [epoch.score("valid", name) for epoch in result.epochs]


def test_the_best_epoch_is_the_best_by_what_was_asked_for(sources, tmp_path):
    """One run, asked three times: the choice changes nothing but which epoch is kept."""

    def run(**arguments):
        return train(sources["train"], valid_source=sources["valid"], model=make_net(), epochs=6, lr=0.02, **arguments)

    results = {name: run(best_by=name) for name in ("accuracy", "loss")} | {None: run()}
    accuracies, losses = (record_scores(results[None], name) for name in ("accuracy", "loss"))
    assert int(np.argmax(accuracies)) != int(np.argmin(losses))
    for name, result in results.items():
        assert record_scores(result, "loss") == losses
        assert result.best_epoch == int(np.argmin(losses) if name == "loss" else np.argmax(accuracies))
        assert evaluate(result.model, sources["valid"]).loss == losses[result.best_epoch]
    run(best_by="loss", checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="made with best_by=loss, this run has best_by=None"):
        run(checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_ends_training_where_a_resumed_run_ends_too(sources, tmp_path, patience):
    def run(epochs, **arguments):
        return train(sources["train"], valid_source=sources["valid"], model=make_net(), epochs=epochs, lr=0.3,
                     best_by="loss", patience=patience, **arguments)  # fmt: skip

    losses = record_scores(train(sources["train"], valid_source=sources["valid"], model=make_net(), epochs=12, lr=0.3),
                           "loss")  # fmt: skip
    last = next(n for n in range(12) if n - int(np.argmin(losses[: n + 1])) == patience)
    result = run(12)
    assert record_scores(result, "loss") == losses[: last + 1]
    assert result.best_epoch == last - patience
    run(last, checkpoint=tmp_path)
    resumed = run(12, checkpoint=tmp_path, resume=True)
    assert len(resumed.epochs) == last + 1
    again = run(12, checkpoint=tmp_path, resume=True)
    assert (len(again.epochs), again.best_epoch) == (last + 1, last - patience)


@pytest.mark.parametrize("arguments", [{"patience": 1}, {"best_by": "roc_auc"}])
def test_epochs_without_the_score_to_compare_are_an_error(sources, arguments):
    """Of too many seeds, or of one class alone, there is no such score: not the same as none that is better."""
    task = NodeClassification(CLASSES)
    task.metrics = {"roc_auc": True, **task.metrics}
    given = {"valid_source": sources["valid"], "model": make_net(), "task": task, "epochs": 3}
    assert len(train(sources["train"], **given).epochs) == 3
    with pytest.raises(ConfigError, match="expected roc_auc of the valid split, which has only accuracy"):
        train(sources["train"], **given, **arguments)


@pytest.mark.parametrize("best_by", ["roc_auc", "average_precision"])
def test_a_score_of_two_classes_is_not_asked_of_one(tmp_path, best_by):
    """The validation split has seeds of class 1 alone, which is known before a row is read to train."""
    graph = make_class_graph(tmp_path / "graph")
    labels = np.asarray(graph.labels) % 2
    ones = np.flatnonzero(labels == 1)[:40]
    seeds = {"train": graph.nodes["node"].splits["train"], "valid": ones}
    target = NodeTarget(seeds=seeds, labels={split: labels[each] for split, each in seeds.items()}, num_classes=2)
    source, valid = (InMemory(graph, split, fanouts=[2], batch_size=16, target=target) for split in seeds)
    with source, valid:
        given = {"valid_source": valid, "model": "sage", "hidden": 4, "epochs": 1}
        with pytest.raises(ConfigError, match=rf"best_by: {best_by} needs seeds of both classes .* found only \[1\]"):
            train(source, **given, best_by=best_by)
        assert source.stats().requested_rows == 0
        assert train(source, **given, best_by="accuracy").epochs


def test_a_criterion_takes_numbers_before_what_is_none():
    higher, lower = Criterion("accuracy"), Criterion("mae", higher_is_better=False)
    nan = float("nan")
    assert higher.is_better(0.5, None)
    assert higher.is_better(nan, None)
    assert higher.is_better(0.1, nan)
    assert not higher.is_better(nan, 0.1)
    assert not higher.is_better(nan, nan)
    assert lower.is_better(0.1, 0.2)
    assert not lower.is_better(0.2, 0.2)


def test_evaluates_when_asked_and_in_the_end(sources):
    result = train(sources["train"], valid_source=sources["valid"], model=make_net(), epochs=5, evaluate_every=2)
    assert [epoch.valid_accuracy is not None for epoch in result.epochs] == [False, True, False, True, True]
    assert result.epochs[-1].test_accuracy is None
    assert result.best_epoch in (1, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 3}, "3 layers, .* 2 fanouts"),
        ({"num_layers": 1}, "1 layer, .* 2 fanouts"),
        ({"model": Net(layers=3)}, "IndexError"),
        ({"model": Net(layers=1)}, "found shape"),
        ({"model": Net(classes=2)}, "found shape"),
        ({"model": nn.Linear(WIDTH, CLASSES)}, "TypeError"),
        ({"model": "transformer"}, "transformer"),
        ({"device": "nonsense"}, "device: .*'nonsense'"),
        ({"epochs": 0}, "epochs"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"resume": True}, "expected `checkpoint`"),
        ({"checkpoint_every_batches": 5}, "expected `checkpoint`"),
        ({"lr": -1.0}, "lr: .*found -1"),
        ({"lr": float("nan")}, "lr: .*found nan"),
        ({"weight_decay": -0.1}, "weight_decay: .*found -0.1"),
        ({"dropout": 1.0}, "dropout: .*found 1.0"),
        ({"num_layers": 0}, "num_layers: .*found 0"),
        ({"epochs": 2.5}, "epochs: expected a whole number, found 2.5"),
        ({"seed": "a"}, r"seed: expected a number from 0 to 2\^64 - 1, found 'a'"),
        ({"seed": -1}, r"seed: expected a number from 0 to 2\^64 - 1, found -1"),
        ({"seed": 1 << 64}, r"seed: expected a number from 0 to 2\^64 - 1, found 18446744073709551616"),
        ({"heads": 2}, "heads: only for model='gat', 'rgat' or 'hgt', found 2 with 'sage'"),
        ({"model": "gcn", "num_bases": 2}, "num_bases: only for model='rgcn', found 2 with 'gcn'"),
        ({"decoder": "mlp"}, "decoder: only for pairs of nodes, found 'mlp' for seeds that are nodes of type 'node'"),
        (
            {"embeddings": "disk"},
            "embeddings: only for vectors of nodes without features, found 'disk' where the model",
        ),
        ({"model": "gat", "hidden": 10}, "multiple of heads=4, found 10"),
        ({"best_by": "accuracy"}, "best_by: expected a validation split"),
        ({"patience": 2}, "patience: expected a validation split"),
        ({"patience": 0}, "patience: .*found 0"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(sources, arguments, message):
    source = sources["make"]("train")
    with pytest.raises(ConfigError, match=message):
        train(source, **({"epochs": 1} | arguments))
    assert source.stats().requested_rows == 0


def test_evaluation_sources_must_fit(sources):
    with pytest.raises(ConfigError, match=r"best_by: expected one of accuracy, loss, .*; found 'roc_auc'"):
        train(sources["train"], valid_source=sources["valid"], epochs=1, best_by="roc_auc")  # there are three classes
    deeper = sources["make"]("valid", fanouts=[2, 2, 2])
    with pytest.raises(ConfigError, match="valid_source: expected num_layers=2"):
        train(sources["train"], valid_source=deeper, epochs=1)


def test_trying_the_model_out_changes_nothing(sources):
    net = make_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(InterruptedError):
        train(sources["train"], model=net, seed=4, callback=lambda _: (_ for _ in ()).throw(InterruptedError))
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    state = torch.get_rng_state()
    torch.manual_seed(4)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("every", [1, 50])
def test_a_loss_that_is_not_finite_ends_training(tmp_path, every):
    graph = make_class_graph(tmp_path / "graph", nan_row=17)
    with InMemory(graph, fanouts=[3], batch_size=10) as source:
        first = next(batch.batch_index for batch in source.epoch(0) if batch.x.isnan().any())
        with pytest.raises(DivergedError, match=rf"epoch 0, minibatch {first} is nan.*verify PACKED"):
            train(source, model=Net(layers=1), epochs=1, record_every_batches=every, checkpoint=tmp_path / "c")
    assert not source_threads()
    assert not (tmp_path / "c" / FILE).exists()


@pytest.mark.parametrize("feature_dtype", ["int8", "float16"])
def test_x_is_cast_to_the_models_dtype(tmp_path, feature_dtype):
    graph = make_class_graph(tmp_path / "graph", feature_dtype=feature_dtype)
    with InMemory(graph, fanouts=[3, 3], batch_size=16) as source:
        for dtype in (torch.float32, torch.float64):
            result = train(source, test_source=source, model=make_net().to(dtype), epochs=2, lr=0.02)
            assert result.model.linears[0].weight.dtype == dtype
            assert result.test_accuracy > 0.5


def test_mixed_precision(sources):
    full = train(sources["train"], model=make_net(), epochs=1)
    half = train(sources["train"], model=make_net(), epochs=1, amp=True)
    assert half.epochs[0].loss != full.epochs[0].loss
    np.testing.assert_allclose(half.epochs[0].loss, full.epochs[0].loss, rtol=0.02)
    assert half.model.linears[0].weight.dtype == torch.float32


@pytest.mark.parametrize("call", [train, Graph.open, load_model])
def test_what_is_no_path_is_refused(call):
    with pytest.raises(ConfigError, match=r"expected .*(path|director).*, found (None|3)$"):
        call(None)
    with pytest.raises(ConfigError, match=r"found 3$"):
        call(3)
