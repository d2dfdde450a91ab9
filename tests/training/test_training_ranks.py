"""Several ranks train as one process does on their minibatches together, and report what it would."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
import torch
from forked_python import Python
from rank_processes import environment_of, in_ranks, trained
from torch.distributed import TCPStore
from torch.nn import functional as F
from training_runs import make_class_graph, records
from typed_batches import WRITES, TypedGraph
from typed_directories import write_typed_graph

from diskgnn import ArtifactError, ConfigError, Loader, OutputExistsError, convert, evaluate, load_model, prepare, train
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import DamagedError
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.training.checkpoints import load_checkpoint
from diskgnn.training.ranks import Ranks

SETTINGS = {"fanouts": [3, 2], "batch_size": 8, "epochs": 2, "cpu_cache": "10%", "static_cache": 0}
TYPED = SETTINGS | {"batch_size": 5}
MODEL = {"hidden": 8, "dropout": 0.0, "epochs": 2, "lr": 0.01}
TARGETS = {
    "class": NodeTarget("paper"), "multilabel": NodeTarget("paper"), "regression": NodeTarget("paper"),
    "link": LinkTarget(WRITES, negatives=2, eval_negatives=3),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """packed directories: 'plain' has 13 train minibatches, the last of 4 seeds, and 7 of valid."""
    folder = tmp_path_factory.mktemp("ranks")
    graph = make_class_graph(folder / "graph")
    prepare(graph, folder / "plain", **SETTINGS)
    for ranks in (2, 3):
        prepare(graph, folder / f"plain-{ranks}", **SETTINGS, ranks=ranks)
    prepare(graph, folder / "few", **SETTINGS | {"batch_size": 64})
    with pytest.warns(UserWarning, match="an epoch has 2 minibatches, so 1 of 3 ranks will have none"):
        prepare(graph, folder / "few-3", **SETTINGS | {"batch_size": 64}, ranks=3)
    unknown = make_regression_graph(folder / "graph-unknown")
    prepare(unknown, folder / "unknown", **SETTINGS)
    prepare(unknown, folder / "unknown-2", **SETTINGS, ranks=2)
    for kind, target in TARGETS.items():
        typed = folder / f"graph-{kind}"
        write_typed_graph(typed, TypedGraph(), "class" if kind == "link" else kind)
        prepare(typed, folder / kind, **TYPED, target=target)
        prepare(typed, folder / f"{kind}-2", **TYPED, target=target, ranks=2)
    return folder


def make_regression_graph(path: Path) -> Path:
    """Two numbers for each node, of which either may be unknown: minibatches have different numbers of known ones."""
    random = np.random.default_rng(4)
    labels = random.standard_normal((120, 2)).astype(np.float32)
    labels[np.arange(40, 110), random.integers(0, 2, 70)] = np.nan
    nodes = random.permutation(120)
    x = random.standard_normal((120, 6)).astype(np.float32)
    splits = dict(zip(("train", "valid", "test"), np.split(nodes, [100, 110]), strict=True))
    convert(path, schema={"nodes": {"node": {"features": x, "labels": labels, "task": "regression", **splits}},
                          "edges": {"node:to:node": {"edges": random.integers(0, 120, (2, 600))}}})  # fmt: skip
    return path


def one_process(packed: Path, ranks: int, epochs: int):
    """A plain loop over the minibatches of `packed` that a step of so many ranks has, as the mean over all of them: of
    seeds that have classes, of numbers that are known."""
    options = MODEL | {"epochs": epochs}
    torch.manual_seed(0)
    model = train(packed, **options | {"epochs": 1, "lr": 0.0}).model.train()  # as `train` makes it
    optimizer = torch.optim.Adam(model.parameters(), lr=options["lr"])
    with Loader(packed) as loader:
        for epoch in range(options["epochs"]):
            batches = list(loader.epoch(epoch))
            for step in zip_longest(*(batches[rank::ranks] for rank in range(ranks))):
                there = [batch for batch in step if batch is not None]
                losses = [predicted_losses(model(batch.blocks, batch.x), batch.y) for batch in there]
                optimizer.zero_grad()
                torch.cat(losses).mean().backward()
                optimizer.step()
    model.optimizer = optimizer
    return model


def predicted_losses(output, y):
    """[n] of each prediction."""
    if y.is_floating_point():
        known = ~y.isnan()
        return (output[known] - y[known]) ** 2
    return F.cross_entropy(output, y, reduction="none")


@pytest.fixture(scope="module")
def two_ranks(folder):
    """What two ranks come to with each directory; minibatches of typed graphs leave some weights without gradients."""
    runs = {kind: MODEL | {"train_source": str(folder / f"{kind}-2")} for kind in ("plain", "unknown", *TARGETS)}
    runs["apart"] = runs["plain"] | {"averaging_period": 2, "epochs": 3}
    return in_ranks(2, trained, runs)


def assert_same_weights(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def test_all_ranks_come_to_the_same_model_and_say_the_same(two_ranks):
    first, second = two_ranks
    for run, (weights, losses, best_epoch) in first.items():
        assert_same_weights(second[run][0], weights, rtol=0, atol=0)
        assert second[run][1:] == (losses, best_epoch)


@pytest.mark.parametrize("name", ["plain", "unknown"])
def test_a_step_of_ranks_is_one_on_all_their_minibatches(folder, two_ranks, name):
    weights, _, best_epoch = two_ranks[0][name]
    model = one_process(folder / name, 2, epochs=best_epoch + 1)
    assert_same_weights(weights, model.state_dict())


def test_ranks_without_minibatches_take_part_and_count_nothing(folder):
    """Two minibatches an epoch and three ranks: the last one has none at all, and none to evaluate on either."""
    runs = {name: MODEL | {"train_source": str(folder / f"{name}-3")} for name in ("few", "plain")}
    found = in_ranks(3, trained, runs)
    for run in runs:
        assert all(each[run][1] == found[0][run][1] for each in found)
        weights, _, best_epoch = found[2][run]
        model = one_process(folder / run, 3, epochs=best_epoch + 1)
        assert_same_weights(weights, model.state_dict())


def test_ranks_apart_average_what_they_had_some_steps_ago(folder, two_ranks):
    """The first epoch is of steps together; then two models, each with an Adam of its own, in one process."""
    weights, _, best_epoch = two_ranks[0]["apart"]
    models = [one_process(folder / "plain", 2, epochs=1) for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=MODEL["lr"]) for model in models]
    for optimizer, model in zip(optimizers, models, strict=True):
        optimizer.load_state_dict(model.optimizer.state_dict())
    with Loader(folder / "plain") as loader, torch.no_grad():
        for epoch in range(1, best_epoch + 1):
            batches, before = list(loader.epoch(epoch)), None
            for number in range(7):
                for rank, batch in enumerate(batches[2 * number : 2 * number + 2]):
                    with torch.enable_grad():
                        loss = F.cross_entropy(models[rank](batch.blocks, batch.x), batch.y)
                    optimizers[rank].zero_grad()
                    loss.backward()
                    optimizers[rank].step()
                if number % 2 == 1:
                    before = _moved(models, before)
            _moved(models, before)
            _meet(models)
    assert best_epoch > 0
    assert_same_weights(weights, models[0].state_dict())


def _moved(models, before):
    """Each by the average less itself, both as they were `before`; what they are then."""
    for name in dict(models[0].named_parameters()) if before else ():
        average = sum(each[name] for each in before) / len(before)
        for model, own in zip(models, before, strict=True):
            model.get_parameter(name).add_(average - own[name])
    return [{name: value.clone() for name, value in model.named_parameters()} for model in models]


def _meet(models):
    """All at their average."""
    for name in dict(models[0].named_parameters()):
        average = sum(model.get_parameter(name) for model in models) / len(models)
        for model in models:
            model.get_parameter(name).copy_(average)


@pytest.mark.parametrize("kind", ["plain", "unknown", *TARGETS])
def test_scores_of_ranks_are_those_of_all_predictions_together(folder, two_ranks, kind):
    """One process counts the same minibatches, with the same weights."""
    weights, losses, best = two_ranks[0][kind]
    model = train(folder / kind, **MODEL | {"epochs": 1}).model
    model.load_state_dict(weights)
    for split in ("valid", "test"):
        expected = evaluate(model, folder / kind, split=split)
        for name, score in expected.scores.items():
            assert losses[best][1][f"{split}_{name}"] == pytest.approx(score, rel=1e-12), name
        both = evaluate(model, folder / f"{kind}-2", split=split)
        assert (both.num_seeds, both.scores) == (expected.num_seeds, pytest.approx(expected.scores, rel=1e-12))
        assert both.loss == pytest.approx(expected.loss, rel=1e-6)


def resumed(rank: int, packed: str, options: dict, after: int) -> dict:
    """Of a run that is interrupted in one rank after so many steps, and goes on: the whole run's, and the refusals."""
    if rank == 1:
        interrupted = faults.armed("training.step", lambda: signal.raise_signal(signal.SIGINT), after=after)
        with interrupted, pytest.raises(KeyboardInterrupt):
            train(packed, **options)
    else:
        with pytest.raises(KeyboardInterrupt):
            train(packed, **options)
    with pytest.raises(ConfigError, match=r"lr=0\.01, this run has lr=0\.02"):
        train(packed, **options | {"resume": True, "lr": 0.02})
    result = train(packed, **options | {"resume": True})
    again = options | {"train_source": packed, **{name: f"{options[name]}-whole" for name in ("checkpoint", "metrics")}}
    return {"weights": result.model.state_dict(), "losses": [each.loss for each in result.epochs],
            "resumed_from": result.resumed_from, "whole": trained(rank, {"whole": again})["whole"]}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "stopped_after"),
    # 7 steps an epoch. All do the one in which they agreed, too; local updates learn of it with the next average, and
    # come together for each checkpoint: every third step here.
    [({}, (1, 4)), ({"averaging_period": 2, "checkpoint_every_batches": 3, "epochs": 3}, (1, 6))],
    ids=["together", "apart"],
)
def test_ranks_stop_together_and_go_on_from_one_checkpoint(folder, tmp_path, more, stopped_after):
    packed, metrics = str(folder / "plain-2"), tmp_path / "metrics.jsonl"
    options = MODEL | {"dropout": 0.5, "checkpoint": str(tmp_path / "checkpoint"), "metrics": str(metrics)} | more
    found = in_ranks(2, resumed, packed, options, 9)
    for each in found:
        weights, told, _ = each["whole"]
        assert each["resumed_from"] == stopped_after
        assert_same_weights(each["weights"], weights, rtol=0, atol=0)
        assert each["losses"] == [loss for loss, _, _ in told]
    assert _told(metrics) == _told(Path(f"{metrics}-whole"))
    saved = load_checkpoint(tmp_path / "checkpoint")
    assert (saved["config"]["world_size"], len(saved["other_ranks"])) == (2, 1)
    with pytest.raises(ConfigError, match=r"is of 2 ranks, this run has 1.*torchrun --nproc-per-node 2"):
        train(folder / "plain", **options | {"resume": True, "averaging_period": None})
    assert evaluate(load_model(tmp_path / "checkpoint"), folder / "plain-2").num_seeds == 90


def _told(metrics: Path) -> list[dict]:
    """Losses and scores; a resumed run reads some rows once more."""
    return [{key: value for key, value in line.items() if "rate" not in key and "read" not in key}
            for line in records(metrics)]  # fmt: skip


def failing(rank: int, packed: str) -> list[str]:
    """What two ranks raise where one of them fails: in the first, in one of all, and in the second while it trains."""
    ranks, said = Ranks(rank, 2), []
    errors = [ConfigError("epochs: wrong"), DamagedError(open_artifact(f"{packed}/rank-0-of-2"), []), OSError("a disk")]
    for error in errors:
        for who, call in ((0, ranks.by_first), (1, ranks.in_all)):
            try:
                call(partial(_raise, error) if rank == who else int)
            except Exception as caught:
                said.append(f"{type(caught).__name__}: {caught}")
    died = faults.armed("training.step", RuntimeError("died"), after=9) if rank else nullcontext()
    try:
        with died:
            train(packed, **MODEL)
    except Exception as caught:
        said.append(f"{type(caught).__name__}: {caught}")
    return said


def _raise(error: Exception) -> None:
    raise error


def test_what_fails_in_one_rank_ends_all_of_them_with_what_it_was(folder):
    first, second = in_ranks(2, failing, str(folder / "plain-2"))
    damaged = f"DamagedError: {DamagedError(open_artifact(folder / 'plain-2' / 'rank-0-of-2'), [])}"
    assert first[:2] == second[:2] == ["ConfigError: epochs: wrong"] * 2
    assert first[2] == second[3] == damaged
    assert second[2] == f"WorkerLostError: rank 0 failed ({damaged}): see what it says itself"
    assert first[4:6] == [
        "OSError: a disk",
        "WorkerLostError: rank 1 failed (OSError: a disk): see what it says itself",
    ]
    assert second[4:6] == [
        "WorkerLostError: rank 0 failed (OSError: a disk): see what it says itself",
        "OSError: a disk",
    ]
    assert second[6] == "RuntimeError: died"
    assert first[6].startswith("WorkerLostError: another rank has ended, and this one with it")


_LEAVES = """
import gc, sys
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
import diskgnn

def leave():
    print("DDP alive:", sum(type(each) is DistributedDataParallel for each in gc.get_objects()))
    destroy()

destroy, distributed.destroy_process_group = distributed.destroy_process_group, leave
diskgnn.train(sys.argv[1], hidden=8, epochs=1)
"""


def test_ranks_that_joined_by_themselves_leave_when_nothing_uses_the_connection(folder):
    """DDP that goes last waits, with the GIL held, for threads of gloo that wait for the GIL."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    told = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ranks = [
        Python("-c", _LEAVES, folder / "plain-2", env=told | environment_of(rank, 2, store), stdout=PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0].splitlines()[-1] for rank in ranks]
    assert ([rank.returncode for rank in ranks], said) == ([0, 0], ["DDP alive: 0"] * 2)


def refused(rank: int, folder: str) -> list[str]:
    """What training says to two ranks of directories that are not for them."""
    said = []
    names = ["plain", "plain-3", "plain-2/rank-0-of-2", "missing", "renamed", "mixed", "other"]
    for name in names:
        try:
            train(f"{folder}/{name}", **MODEL)
        except (ConfigError, ArtifactError) as error:
            said.append(f"{name}: {type(error).__name__}: {error}")
    return said


def test_directories_of_other_ranks_are_refused(folder, tmp_path):
    for name in ("plain", "plain-3", "plain-2"):
        (tmp_path / name).symlink_to(folder / name)
    for name in ("missing", "renamed", "mixed", "other"):
        shutil.copytree(folder / "plain-2", tmp_path / name)
    for path in (tmp_path / name / "rank-1-of-2" for name in ("missing", "renamed", "mixed", "other")):
        shutil.rmtree(path)
    shutil.copytree(folder / "plain-2" / "rank-0-of-2", tmp_path / "renamed" / "rank-1-of-2")
    prepare(folder / "graph", tmp_path / "again", **SETTINGS | {"seed": 9}, ranks=2)
    (tmp_path / "again" / "rank-1-of-2").rename(tmp_path / "mixed" / "rank-1-of-2")
    other = make_class_graph(tmp_path / "graph", seed=1)
    prepare(other, tmp_path / "of-other", **SETTINGS, ranks=2)
    (tmp_path / "of-other" / "rank-1-of-2").rename(tmp_path / "other" / "rank-1-of-2")
    first, second = in_ranks(2, refused, str(tmp_path))
    for said in (first, second):
        assert len(said) == 7
        found = dict(each.split(": ", 1) for each in said)
        assert "was prepared for one process, this is rank" in found["plain"]
        assert "prepare it with `diskgnn prepare --ranks 2`" in found["plain"]
        assert "was prepared for 3 ranks" in found["plain-3"]
        assert "was prepared for rank 0 of 2, this is rank 1 of 2" in found["plain-2/rank-0-of-2"]
        assert "rank-1-of-2 is not there" in found["missing"]
        assert "it was renamed" in found["renamed"]
        assert "rank 1 has minibatches of another preparation than rank 0: seed is 9" in found["mixed"]
        assert "rank 1 has minibatches of another preparation than rank 0: graph is" in found["other"]


def test_a_restart_goes_on_with_nothing_but_what_its_own_launch_trained(folder, tmp_path, monkeypatch):
    """What torchrun tells a process, and the store that it keeps from one attempt to the next."""
    options = MODEL | {"train_source": folder / "plain", "checkpoint_every_batches": 2}
    train(**options, checkpoint=tmp_path / "earlier")
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    told = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "localhost", "MASTER_PORT": store.port,
            "TORCHELASTIC_USE_AGENT_STORE": True}  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    for attempt in range(2):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        with pytest.raises(OutputExistsError, match="earlier holds a checkpoint already"):
            train(**options, checkpoint=tmp_path / "earlier")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with faults.armed("training.step", RuntimeError("died"), after=9), pytest.raises(RuntimeError, match="died"):
        train(**options, checkpoint=tmp_path / "own")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(**options, checkpoint=tmp_path / "own").resumed_from == (0, 8)
