"""Losses and weights that are not finite end training, or are left out of it: alone, in ranks, with fresh epochs."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run
from rank_processes import in_ranks
from torch.nn import functional as F
from training_runs import CLASSES, NODES, WIDTH, make_class_graph, make_net

from diskgnn import DataWarning, DivergedError, Loader, convert, evaluate, prepare, train
from diskgnn.baselines.in_memory import InMemory
from diskgnn.fresh.fresh_epochs import FreshEpochs
from diskgnn.training.checkpoints import load_checkpoint

SAMPLING = {"fanouts": [2], "batch_size": 10, "cpu_cache": "10%"}
TRAINING = {"hidden": 8, "dropout": 0.0, "lr": 0.01}


def make_graph(path: Path, value: float, *, node: int = 17, column: int = 2) -> Path:
    """Features are noise around the class, but for one value; 100 nodes to train on, 50 to validate."""
    random = np.random.default_rng(1)
    labels = random.integers(0, CLASSES, NODES)
    features = (np.eye(CLASSES, WIDTH)[labels] * 2 + random.normal(size=(NODES, WIDTH))).astype(np.float32)
    features[node, column] = value
    with pytest.warns(DataWarning, match="features hold 1"):
        convert(path, edges=random.integers(0, NODES, (2, 4 * NODES)), features=features, labels=labels,
                train=np.arange(100), valid=np.arange(100, 150))  # fmt: skip
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diverging")
    graph = make_graph(folder / "graph", np.inf)
    prepare(graph, folder / "packed", **SAMPLING)
    prepare(graph, folder / "packed-2", **SAMPLING, ranks=2)
    prepare(make_graph(folder / "extreme-graph", 3.4e38), folder / "extreme", **SAMPLING)
    return folder


def infinite_batches(packed: Path) -> list[int]:
    with Loader(packed) as loader:
        return [batch.batch_index for batch in loader.epoch(0) if not batch.x.isfinite().all()]


def test_the_error_names_the_minibatch_and_the_features(folder, tmp_path):
    first = infinite_batches(folder / "packed")[0]
    found = rf"epoch 0, minibatch {first} is (inf|nan|-inf); the features of node hold 1 infinite value in 1 rows, "
    with pytest.raises(DivergedError, match=found + r"the first in row 17, column 2.*keep_going=True"):
        train(folder / "packed", **TRAINING, checkpoint=tmp_path)
    assert not list(tmp_path.glob("checkpoint*"))


def test_the_command_ends_with_its_exit_code_and_names_the_flag(folder, tmp_path):
    failed = run("train", folder / "packed", "--epochs", "1", exit_code=7)
    assert "--keep-going leaves such minibatches out" in failed.stderr
    went_on = run("train", folder / "packed", "--epochs", "1", "--keep-going")
    assert f"the model was not trained on {len(infinite_batches(folder / 'packed'))} minibatches of epoch 0" in (
        went_on.stderr
    )


def test_fresh_epochs_end_alike(folder, tmp_path):
    with FreshEpochs(folder / "graph", tmp_path, **SAMPLING) as source:
        with pytest.raises(DivergedError, match=r"epoch 0, minibatch \d+ is .*the first in row 17, column 2"):
            train(source, **TRAINING, epochs=2)
        with pytest.warns(DataWarning, match="the model was not trained on"):
            assert train(source, **TRAINING, epochs=1, keep_going=True).epochs[0].skipped_batches > 0


def test_keeping_going_is_a_plain_loop_without_such_minibatches(tmp_path):
    """The norm's running means, which a forward changes, are those of the others, too."""
    graph = make_class_graph(tmp_path / "graph", nan_row=17)
    expected, skipped, losses = make_net(), 0, []
    optimizer = torch.optim.Adam(expected.parameters(), lr=0.01)
    with InMemory(graph, fanouts=[2, 2], batch_size=10) as source:
        torch.manual_seed(5)
        for batch in source.epoch(0):
            if batch.x.isnan().any():
                skipped += 1
                before = {name: tensor.clone() for name, tensor in expected.state_dict().items()}
                expected(batch.blocks, batch.x)  # its dropout takes random numbers
                expected.load_state_dict(before)
                continue
            optimizer.zero_grad()
            loss = F.cross_entropy(expected(batch.blocks, batch.x), batch.y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with pytest.warns(DataWarning, match=f"was not trained on {skipped} minibatches of epoch 0"):
            result = train(source, model=make_net(), epochs=1, lr=0.01, seed=5, keep_going=True)
    assert 0 < skipped < source.num_batches
    assert result.epochs[0].skipped_batches == skipped
    np.testing.assert_allclose(result.epochs[0].loss, np.mean(losses), rtol=1e-12)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name])


def test_weights_that_the_last_step_spoils_are_not_kept(folder, tmp_path):
    """Its loss is finite, and so are all losses of the epoch."""
    net = make_net(layers=1)
    with InMemory(make_class_graph(tmp_path / "graph"), fanouts=[2], batch_size=10) as source:
        train(source, model=net, epochs=1, checkpoint=tmp_path / "run")
        before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
        steps = iter(range(source.num_batches))
        last = source.num_batches - 1
        net.linears[0].weight.register_hook(lambda grad: grad * (torch.inf if next(steps) == last else 1))
        options = {"model": net, "epochs": 2, "checkpoint": tmp_path / "run", "resume": True}
        found = rf"weights are not finite after minibatch {last} of epoch 1; .*checkpoint in .*run is from before"
        with pytest.raises(DivergedError, match=found):
            train(source, **options)
        assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before
        with pytest.raises(DivergedError, match="weights are not finite"):
            train(source, model=spoiled_at_the_end(source.num_batches), epochs=1)  # without a checkpoint, too


def spoiled_at_the_end(num_steps):
    net, steps = make_net(layers=1), iter(range(num_steps))
    net.linears[0].weight.register_hook(lambda grad: grad * (torch.inf if next(steps) == num_steps - 1 else 1))
    return net


def test_an_evaluation_that_means_nothing_ends_training(tmp_path):
    graph = make_graph(tmp_path / "graph", np.nan, node=120)
    prepare(graph, tmp_path / "packed", **SAMPLING | {"fanouts": [1]}, seed=3)
    with Loader(tmp_path / "packed") as loader:
        is_met = any(batch.x.isnan().any() for batch in loader.epoch(0))
    assert not is_met, "choose another seed"
    with pytest.raises(DivergedError, match="the valid split after epoch 0 is nan, so its scores mean nothing"):
        train(tmp_path / "packed", **TRAINING, epochs=1, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
    with pytest.warns(DataWarning, match="its scores mean nothing"):
        train(tmp_path / "packed", **TRAINING, epochs=1, checkpoint=tmp_path / "run", keep_going=True)
    with pytest.warns(DataWarning, match="its scores mean nothing"):
        evaluate(tmp_path / "run", tmp_path / "packed", split="valid")


def test_a_huge_loss_is_told_with_the_features_that_are_extreme(folder):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            train(folder / "extreme", **TRAINING, epochs=1)
        except DivergedError as error:
            told.append(error)
    found = [str(each) for each in told if "1 value beyond ±1,000,000 in 1 rows, the first in row 17" in str(each)]
    assert found, [str(each) for each in told]


def diverging(rank: int, packed: str, run_folder: str) -> tuple[str, int, list[int], dict]:
    try:
        train(packed, **TRAINING, epochs=2, checkpoint=run_folder)
        said = ""
    except DivergedError as error:
        said = str(error)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(packed, **TRAINING, epochs=2, keep_going=True)
        apart = train(packed, **TRAINING, epochs=3, keep_going=True, averaging_period=2)
    assert all(tensor.isfinite().all() for tensor in apart.model.state_dict().values())
    return (
        said,
        Path(run_folder, "checkpoint.pt").exists(),
        [each.skipped_batches for each in result.epochs],
        (result.model.state_dict()),
    )


def test_all_ranks_end_alike_and_go_on_alike(folder, tmp_path):
    first, second = in_ranks(2, diverging, str(folder / "packed-2"), str(tmp_path))
    assert first[0] == second[0] != ""
    assert not first[1]
    assert first[2] == second[2]
    assert min(first[2]) > 0
    for name, tensor in first[3].items():
        assert tensor.isfinite().all()
        assert torch.equal(tensor, second[3][name])


def test_a_run_goes_on_from_before_it_diverged(folder, tmp_path):
    """The last good checkpoint stays, and `keep_going` may be added when it is resumed."""
    first = infinite_batches(folder / "packed")[0]
    if first == 0:
        pytest.skip("the first minibatch is infinite")
    with pytest.raises(DivergedError):
        train(folder / "packed", **TRAINING, checkpoint=tmp_path, checkpoint_every_batches=1, epochs=1)
    assert load_checkpoint(tmp_path)["position"]["batch"] == first
    with pytest.warns(DataWarning, match="was not trained on"):
        result = train(folder / "packed", **TRAINING, checkpoint=tmp_path, epochs=1, resume=True, keep_going=True)
    assert result.resumed_from == (0, first)
