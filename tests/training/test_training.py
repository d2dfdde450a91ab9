"""The trainer against a loop written out in the test, against itself after being killed, and against NumPy."""

import errno
import json
import os
import signal
import sys
import threading
from itertools import count, pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diskgnn.baselines.in_memory import InMemory
from diskgnn.errors import ArtifactError, ConfigError, DiskFullError, DivergedError, OutputExistsError
from diskgnn.graph.graph import Graph
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.training.checkpoints import FILE, load_checkpoint, load_model, save_checkpoint
from diskgnn.training.evaluate import evaluate
from diskgnn.training.metrics import MetricsWriter
from diskgnn.training.models import make_model
from diskgnn.training.train import train

CLASSES, WIDTH, NODES = 3, 5, 240
# What a resumed run does anew: its seconds, and fetching what was fetched but not trained on.
NOT_RESUMED = ("time", "seconds", "train_seconds", "wait_seconds", "requested_rows")


def make_graph(path, *, feature_dtype="float32", nan_row=None, seed=0):
    """Each node has 4 in-neighbours of its own class; features are its class, in noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, NODES)
    indices = [np.sort(random.choice(np.flatnonzero(labels == label), 4, replace=False)) for label in labels]
    features = np.eye(CLASSES, WIDTH)[labels] * 2 + random.normal(size=(NODES, WIDTH))
    if nan_row is not None:
        features[nan_row] = np.nan
    if feature_dtype == "int8":
        features = np.clip(features * 20, -127, 127)
    config = {"num_classes": CLASSES, "feature_dtype": feature_dtype}
    with ArtifactWriter(path, artifacts.GRAPH, config=config) as writer:
        writer.save_array(artifacts.INDPTR, np.arange(NODES + 1, dtype=np.int64) * 4)
        writer.save_array(artifacts.INDICES, np.concatenate(indices).astype(np.int32))
        writer.save_array(artifacts.FEATURES, features.astype(feature_dtype))
        writer.save_array(artifacts.LABELS, labels)
        for split, nodes in zip(artifacts.SPLITS, np.split(np.arange(NODES), [100, 150]), strict=True):
            writer.save_array(artifacts.split_file(split), nodes)
        writer.publish()
    return Graph.open(path)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("training") / "graph")


@pytest.fixture(scope="module")
def sources(graph):
    def make(split, share=None, **arguments):
        return InMemory(graph, split, **({"fanouts": [3, 2], "batch_size": 16} | arguments), share=share)

    train_source = make("train")
    yield {split: make(split, train_source) for split in artifacts.SPLITS} | {"make": make}
    train_source.close()


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors are tiny here: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """A small GNN of the user's own: sums over edges, batch norm, dropout."""

    def __init__(self, layers=2, hidden=8, classes=CLASSES):
        super().__init__()
        widths = [WIDTH] + [hidden] * (layers - 1) + [classes]
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.3)

    def forward(self, blocks, x):
        x = self.norm(x)
        for layer, linear in enumerate(self.linears):
            block = blocks[layer]
            destinations = torch.repeat_interleave(block.indptr.diff())
            own = x[: block.num_dst]
            x = linear(self.dropout(own.index_add(0, destinations, x[block.indices])))
        return x


def make_net(**arguments):
    torch.manual_seed(3)
    return Net(**arguments)


def records(path):
    """The metrics file without resumptions and what they may change."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in NOT_RESUMED}
        for line in lines
        if line["event"] != "resume"
    ]


def source_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("diskgnn-in-memory")]


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


def test_evaluation_is_what_numpy_computes(sources, graph):
    net = make_net()
    net.train()
    outputs = []
    with torch.no_grad():
        net.eval()
        for batch in sources["test"].epoch(0):
            outputs.append(net(batch.blocks, batch.x).double().numpy())
        net.train()
    logits, labels = np.concatenate(outputs), graph.labels[graph.splits["test"]]
    result = evaluate(net, sources["test"])
    assert net.training
    assert result.num_seeds == len(labels) == 90
    assert result.accuracy == np.mean(logits.argmax(1) == labels)
    log_sums = np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(result.loss, np.mean(log_sums - logits[np.arange(90), labels]), rtol=1e-6)
    assert evaluate(net, sources["test"]).loss == result.loss


class Interrupting:
    """A source that is interrupted right after it has handed over a minibatch that nobody has trained on."""

    def __init__(self, source, after):
        self._source, self._after = source, after

    def __getattr__(self, name):
        return getattr(self._source, name)

    def epoch(self, epoch):
        batches = self._source.epoch(epoch)
        for batch in batches:
            if self._after == 0:
                batches.close()
                raise KeyboardInterrupt
            self._after -= 1
            yield batch


# 7 minibatches an epoch, a record every 3: in the middle of an epoch, of a record, and at both ends.
@pytest.mark.parametrize("trained", [0, 1, 3, 7, 9, 13, 14])
def test_a_resumed_run_is_the_uninterrupted_run(sources, tmp_path, trained):
    arguments = {"valid_source": sources["valid"], "test_source": sources["test"], "seed": 5, "lr": 0.02,
                 "record_every_batches": 3}  # fmt: skip
    whole = train(sources["train"], model=make_net(), epochs=3, metrics=tmp_path / "whole.jsonl", **arguments)
    arguments |= {"metrics": tmp_path / "parts.jsonl", "checkpoint": tmp_path / "checkpoint"}
    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(sources["make"]("train"), trained), model=make_net(), epochs=3, **arguments)
    assert not source_threads()

    torch.manual_seed(999)
    result = train(sources["make"]("train"), model=Net(), epochs=3, resume=True, **arguments)
    assert result.resumed_from[0] * 7 + result.resumed_from[1] == trained
    assert [epoch.loss for epoch in result.epochs] == [epoch.loss for epoch in whole.epochs]
    assert records(tmp_path / "parts.jsonl") == records(tmp_path / "whole.jsonl")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name])
    assert (result.best_epoch, result.test_accuracy) == (whole.best_epoch, whole.test_accuracy)


@pytest.mark.filterwarnings("ignore:no checkpoint in")
def test_killed_again_and_again_at_any_moment(sources, tmp_path):
    whole, parts = [], []
    arguments = {"seed": 5, "lr": 0.02, "record_every_batches": 1, "epochs": 4}
    train(sources["train"], model=make_net(), callback=whole.append, **arguments)
    random = np.random.default_rng(0)
    deadline = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for attempt in count():
            # Later and later, so that it gets there.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.01 * (attempt + 1)))
            try:
                train(sources["make"]("train"), model=make_net(), callback=parts.append,
                      checkpoint=tmp_path / "checkpoint", resume=True, **arguments)  # fmt: skip
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except KeyboardInterrupt:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, deadline)
    losses = [[r["loss"] for r in run if r["event"] == "step"] for run in (whole, parts)]
    assert losses[0] == losses[1]
    assert not source_threads()


@pytest.mark.filterwarnings("ignore:no checkpoint in")
def test_ctrl_c_waits_for_the_step_to_end(sources, tmp_path):
    class Interrupted(Net):
        def forward(self, blocks, x):
            if self.training and torch.rand(()) < 0.2:
                os.kill(os.getpid(), signal.SIGINT)
            return super().forward(blocks, x)

    def run(**arguments):
        torch.manual_seed(3)
        train(sources["make"]("train"), model=Interrupted(), epochs=2, lr=0.02, record_every_batches=1, **arguments)

    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    whole, parts, interruptions = [], [], 0
    try:
        run(callback=whole.append)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for _ in range(30):
            try:
                run(callback=parts.append, checkpoint=tmp_path, resume=True)
                break
            except KeyboardInterrupt:
                interruptions += 1
    finally:
        signal.signal(signal.SIGINT, previous)
    losses = [[r["loss"] for r in seen if r["event"] == "step"] for seen in (whole, parts)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 14
    assert 0 < interruptions < 14


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


def test_evaluates_when_asked_and_in_the_end(sources):
    result = train(sources["train"], valid_source=sources["valid"], model=make_net(), epochs=5, evaluate_every=2)
    assert [epoch.valid_accuracy is not None for epoch in result.epochs] == [False, True, False, True, True]
    assert result.epochs[-1].test_accuracy is None
    assert result.best_epoch in (1, 3, 4)


def test_training_on_for_more_epochs(sources, tmp_path):
    whole = train(sources["train"], model=make_net(), epochs=3)
    train(sources["make"]("train"), model=make_net(), epochs=2, checkpoint=tmp_path)
    more = train(sources["make"]("train"), model=make_net(), epochs=3, checkpoint=tmp_path, resume=True)
    assert more.resumed_from == (2, 0)
    assert [epoch.loss for epoch in more.epochs] == [epoch.loss for epoch in whole.epochs]
    with pytest.warns(UserWarning, match="complete already: 3 epochs"):
        again = train(sources["make"]("train"), model=make_net(), epochs=3, checkpoint=tmp_path, resume=True)
    assert again.epochs == more.epochs


def test_a_checkpoint_is_not_replaced_by_accident(sources, tmp_path):
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(OutputExistsError, match="--resume"):
        train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_crash_while_saving_leaves_the_checkpoint_before(sources, tmp_path, monkeypatch):
    save = torch.save

    def crashing(content, file):
        if content["position"]["batch"] == 6:
            file.write(b"half of it")
            raise OSError(errno.ENOSPC, "no space left")
        save(content, file)

    monkeypatch.setattr(torch, "save", crashing)
    with pytest.raises(DiskFullError, match=FILE):
        train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path, checkpoint_every_batches=2)
    assert load_checkpoint(tmp_path)["position"]["batch"] == 4
    assert not source_threads()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lr": 0.5}, ConfigError, r"lr=0.003, this run has lr=0.5"),
        ({"seed": 1}, ConfigError, "seed"),
        ({"model": "sage"}, ConfigError, "model=Net"),
        ({"model": Net(hidden=9)}, ConfigError, "another model"),
        ({"train_source": {"seed": 1}}, ArtifactError, "seed"),
        ({"train_source": {"fanouts": [2, 2]}}, ArtifactError, "fanouts"),
        ({"train_source": {"batch_size": 8}}, ConfigError, "num_batches"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(sources, tmp_path, change, error, message):
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    arguments = {"train_source": {}, "model": make_net()} | change
    source = sources["make"]("train", **arguments.pop("train_source"))
    with pytest.raises(error, match=message):
        train(source, epochs=2, checkpoint=tmp_path, resume=True, **arguments)


def test_damaged_and_foreign_checkpoints(sources, tmp_path):
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    path = tmp_path / FILE
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[good.index(torch.get_rng_state().numpy().tobytes()[16:64])] ^= 1
    contents = [good[: len(good) // 2], b"", b"not a checkpoint", bytes(flipped)]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="damaged"):
            train(sources["train"], model=make_net(), epochs=2, checkpoint=tmp_path, resume=True)
    torch.save({"weights": torch.zeros(1)}, path)
    with pytest.raises(ArtifactError, match="no diskgnn checkpoint"):
        load_checkpoint(tmp_path)
    torch.save({"format": "diskgnn.checkpoint", "version": 2}, path)
    with pytest.raises(ArtifactError, match="version 2"):
        load_checkpoint(tmp_path)
    torch.save(make_net(), path)  # a pickled object: loading it could run anything
    with pytest.raises(ArtifactError):
        load_checkpoint(tmp_path)
    with pytest.raises(ArtifactError, match="--checkpoint"):
        load_checkpoint(tmp_path / "nowhere")


def test_a_named_model_comes_back_from_its_checkpoint(sources, tmp_path):
    train(sources["train"], model="gat", hidden=8, heads=2, epochs=1, checkpoint=tmp_path / "named")
    torch.testing.assert_close(
        load_model(tmp_path / "named").state_dict(), load_checkpoint(tmp_path / "named")["model"], rtol=0, atol=0
    )
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path / "own")
    with pytest.raises(ConfigError, match="Net"):
        load_model(tmp_path / "own")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 3}, "3 layers, .* 2 fanouts"),
        ({"num_layers": 1}, "1 layers, .* 2 fanouts"),
        ({"model": Net(layers=3)}, "IndexError"),
        ({"model": Net(layers=1)}, "found shape"),
        ({"model": Net(classes=2)}, "found shape"),
        ({"model": nn.Linear(WIDTH, CLASSES)}, "TypeError"),
        ({"model": "transformer"}, "transformer"),
        ({"device": "nonsense"}, "device 'nonsense'"),
        ({"epochs": 0}, "epochs"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"resume": True}, "--checkpoint DIR"),
        ({"checkpoint_every_batches": 5}, "--checkpoint DIR"),
        ({"lr": -1.0}, "lr: .*found -1"),
        ({"lr": float("nan")}, "lr: .*found nan"),
        ({"weight_decay": -0.1}, "weight_decay: .*found -0.1"),
        ({"dropout": 1.0}, "dropout: .*found 1.0"),
        ({"num_layers": 0}, "--layers.*found 0"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(sources, arguments, message):
    source = sources["make"]("train")
    with pytest.raises(ConfigError, match=message):
        train(source, **({"epochs": 1} | arguments))
    assert source.stats()["requested_rows"] == 0


@pytest.mark.parametrize("layers", [1, 3])
def test_evaluation_refuses_a_model_of_another_depth(sources, layers):
    for model in (Net(layers=layers), make_model("sage", WIDTH, 8, CLASSES, layers)):
        with pytest.raises(ConfigError, match="2 layers deep"):
            evaluate(model, sources["test"])


def test_evaluation_sources_must_fit(sources):
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
    graph = make_graph(tmp_path / "graph", nan_row=17)
    with InMemory(graph, fanouts=[3], batch_size=10) as source:
        first = next(batch.batch_index for batch in source.epoch(0) if batch.x.isnan().any())
        with pytest.raises(DivergedError, match=rf"epoch 0, minibatch {first} is nan.*verify PACKED"):
            train(source, model=Net(layers=1), epochs=1, record_every_batches=every, checkpoint=tmp_path / "c")
    assert not source_threads()
    assert not (tmp_path / "c" / FILE).exists()


@pytest.mark.parametrize("feature_dtype", ["int8", "float16"])
def test_x_is_cast_to_the_models_dtype(tmp_path, feature_dtype):
    graph = make_graph(tmp_path / "graph", feature_dtype=feature_dtype)
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


def test_metrics_file(sources, tmp_path):
    path = tmp_path / "runs" / "metrics.jsonl"
    seen = []
    for _ in range(2):  # runs are appended
        train(sources["train"], valid_source=sources["valid"], model=make_net(), epochs=2, metrics=path,
              record_every_batches=5, callback=seen.append)  # fmt: skip
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == seen
    assert [line["event"] for line in lines] == 2 * [
        "start",
        "step",
        "step",
        "epoch",
        "step",
        "step",
        "epoch",
        "end",
    ]
    assert lines[0]["lr"] == 0.003
    steps = [line for line in lines[:8] if line["event"] == "step"]
    assert [(step["epoch"], step["batch"]) for step in steps] == [(0, 5), (0, 7), (1, 5), (1, 7)]
    epochs = [line for line in lines[:8] if line["event"] == "epoch"]
    for epoch, rows in zip(epochs, (steps[:2], steps[2:]), strict=True):
        assert epoch["requested_rows"] == sum(step["requested_rows"] for step in rows)
        np.testing.assert_allclose(epoch["loss"], (5 * rows[0]["loss"] + 2 * rows[1]["loss"]) / 7)


def test_resuming_cuts_what_was_recorded_after_the_checkpoint(sources, tmp_path):
    path = tmp_path / "metrics.jsonl"
    arguments = {"model": make_net(), "metrics": path, "record_every_batches": 1, "checkpoint": tmp_path / "c"}
    train(sources["train"], epochs=1, metrics=path, record_every_batches=1, model=make_net())  # an earlier run
    earlier = path.read_text()

    def crash(record):
        if record["event"] == "step" and (record["epoch"], record["batch"]) == (1, 3):
            raise MemoryError

    with pytest.raises(MemoryError):
        train(sources["train"], epochs=2, checkpoint_every_batches=2, callback=crash, **arguments)
    with path.open("a") as file:
        file.write('{"event": "st')  # the machine went down while it was written
    train(sources["make"]("train"), epochs=2, resume=True, **(arguments | {"model": make_net()}))
    text = path.read_text()
    assert text.startswith(earlier)
    events = [json.loads(line) for line in text[len(earlier) :].splitlines()]
    steps = [(event["epoch"], event["batch"]) for event in events if event["event"] == "step"]
    assert steps == [(epoch, batch) for epoch in range(2) for batch in range(1, 8)]
    resumed = next(event for event in events if event["event"] == "resume")
    assert (resumed["epoch"], resumed["batch"]) == (1, 2)


def test_resuming_does_not_touch_a_file_that_holds_no_metrics(sources, tmp_path):
    path = tmp_path / "notes.txt"
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    for text in ("not metrics\n", "not metrics", '{"hidden": 16}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"notes\.txt"):
            train(sources["train"], model=make_net(), epochs=2, checkpoint=tmp_path, resume=True, metrics=path)
        assert path.read_text() == text


def test_tensorboard(sources, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = train(sources["train"], valid_source=sources["valid"], model=make_net(), epochs=2, tensorboard=tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    scalars = events.Scalars("epoch/valid_accuracy")
    assert [scalar.step for scalar in scalars] == [7, 14]
    np.testing.assert_allclose([s.value for s in scalars], [epoch.valid_accuracy for epoch in result.epochs])
    assert events.Scalars("step/loss")


def test_missing_tensorboard_names_the_extra(sources, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(ConfigError, match=r"diskgnn\[tensorboard\]"):
        train(sources["train"], model=make_net(), epochs=1, tensorboard=tmp_path)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda(sources, tmp_path):
    arguments = {"valid_source": sources["valid"], "epochs": 3, "lr": 0.02, "device": "cuda"}
    whole = train(sources["train"], model=make_net(), **arguments)
    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(sources["make"]("train"), 9), model=make_net(), checkpoint=tmp_path, **arguments)
    result = train(sources["make"]("train"), model=make_net(), checkpoint=tmp_path, resume=True, **arguments)
    # Sums over edges are atomic there, so their order is not fixed; a wrong random state would be far off.
    np.testing.assert_allclose([e.loss for e in result.epochs], [e.loss for e in whole.epochs], rtol=1e-3)


@pytest.mark.parametrize("option", ["checkpoint", "metrics", "tensorboard"])
def test_outputs_are_tried_before_the_first_step(sources, tmp_path, option):
    (tmp_path / "file").write_text("in the way")
    path, events = tmp_path / "file" / "out", []
    with pytest.raises(ConfigError, match=f"--{option}: cannot write {path} .*(Not a directory|File exists)"):
        train(sources["train"], model=make_net(), epochs=1, callback=events.append, **{option: path})
    assert not events


def test_a_full_disk_names_the_path(tmp_path):
    with pytest.raises(DiskFullError, match=r"cannot write /dev/full; .* another --metrics"):
        MetricsWriter("/dev/full").write({"event": "start"}, 0)
    (tmp_path / f".{FILE}.partial").symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match="another --checkpoint"):
        save_checkpoint(tmp_path, {"model": torch.zeros(1 << 20)})


def test_resuming_without_a_checkpoint_says_so(sources, tmp_path):
    with pytest.warns(UserWarning, match=f"no checkpoint in {tmp_path}, starting from the beginning"):
        result = train(sources["make"]("train"), model=make_net(), epochs=1, checkpoint=tmp_path, resume=True)
    assert result.resumed_from is None
