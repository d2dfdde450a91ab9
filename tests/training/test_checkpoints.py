"""Checkpoint files: written whole or not at all, refused when damaged or of another run."""

import errno
import os
import sys
from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from training_runs import (
    Net,
    make_net,
    source_threads,
)

from diskgnn.errors import (
    ArtifactError,
    BusyError,
    ConfigError,
    DiskFullError,
    DiskGNNError,
    OutputExistsError,
    ReadError,
)
from diskgnn.files import faults
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.training.checkpoints import FILE, VERSION, load_checkpoint, load_model, save_checkpoint
from diskgnn.training.evaluate import evaluate
from diskgnn.training.meaning import differing_facts
from diskgnn.training.train import train


def test_a_checkpoint_is_not_replaced_by_accident(sources, tmp_path):
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(OutputExistsError, match="resume=True"):
        train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_two_trainings_with_one_checkpoint_do_not_meet(sources, tmp_path):
    refused = []

    def train_the_same(_):
        with pytest.raises(BusyError, match="another process trains with the checkpoint"):
            train(sources["train"], model=make_net(), epochs=2, checkpoint=tmp_path, resume=True)
        refused.append(True)

    train(sources["make"]("train"), model=make_net(), epochs=1, checkpoint=tmp_path, callback=train_the_same)
    assert refused
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_a_crash_while_saving_leaves_the_checkpoint_before(sources, tmp_path):
    full = OSError(errno.ENOSPC, "no space left")
    with faults.armed("checkpoint.sync", full, after=2), pytest.raises(DiskFullError, match=FILE):
        train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path, checkpoint_every_batches=2)
    assert load_checkpoint(tmp_path)["position"]["batch"] == 4
    assert [file.name for file in tmp_path.iterdir()] == [FILE]  # half a checkpoint would take room of a full disk
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


def test_what_differs_in_its_order_alone_is_told(sources):
    """Models go by it: those of hops split x by the order of segments."""
    one, other = (
        replace(sources["train"].schema, segments=tuple((name, 5) for name in names))
        for names in (("x", "mean/1"), ("mean/1", "x"))
    )
    assert differing_facts(one, other) == (
        ["types, columns and segments in one order"], ["the same in another order"]
    )  # fmt: skip
    assert differing_facts(one, replace(one, segments=(("x", 5),))) == (["a segment mean/1 of 5 numbers"], [])


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
    torch.save({"format": "diskgnn.checkpoint", "version": VERSION + 1}, path)
    with pytest.raises(ArtifactError, match=f"version {VERSION + 1}"):
        load_checkpoint(tmp_path)
    torch.save(make_net(), path)  # a pickled object: loading it could run anything
    with pytest.raises(ArtifactError):
        load_checkpoint(tmp_path)
    with pytest.raises(ArtifactError, match="train with checkpoint="):
        load_checkpoint(tmp_path / "nowhere")


def places(content, path=()):
    """Where something stands in nested dicts and lists."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def test_a_disk_that_fails_at_any_read_is_no_damage(sources, tmp_path, monkeypatch):
    """Torch, in the middle of a file that fails, says that it read of a closed one."""
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    reads, read = [], os.preadv

    def failing(*arguments):
        reads.append(arguments)
        if len(reads) > passing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(*arguments)

    monkeypatch.setattr(os, "preadv", failing)
    passing = sys.maxsize
    load_checkpoint(tmp_path)
    for passing in range(len(reads)):  # noqa: B007  (`failing` reads it)
        reads.clear()
        with pytest.raises(ReadError, match="the disk failed"):
            load_checkpoint(tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_forged_checkpoints_are_used_or_refused(sources, tmp_path, seed):
    """Whatever stands in one whose checksums fit: no other error than diskgnn's own."""
    train(sources["train"], valid_source=sources["valid"], hidden=4, epochs=1, checkpoint=tmp_path)
    good, random = (tmp_path / FILE).read_bytes(), np.random.default_rng(seed)
    everywhere = [path for path in places(load_checkpoint(tmp_path)) if path[0] not in ("format", "version")]
    wrong = [
        None,
        -1,
        10**6,
        0.5,
        "x",
        b"x",
        [],
        {},
        [[1]],
        {"a": 1},
        torch.zeros(3),
        torch.zeros(2, 2, dtype=torch.int64),
    ]
    used = 0
    for number in random.permutation(len(everywhere))[:40].tolist():
        (tmp_path / FILE).write_bytes(good)
        content = inner = load_checkpoint(tmp_path)
        *above, last = everywhere[number]
        for key in above:
            inner = inner[key]
        if isinstance(inner, dict) and random.random() < 0.2:
            del inner[last]
        else:
            inner[last] = wrong[random.integers(len(wrong))]
        torch.save(content, tmp_path / FILE)
        uses = [
            lambda: load_model(tmp_path),
            lambda: evaluate(load_model(tmp_path), sources["make"]("valid")),
            lambda: train(sources["make"]("train"), hidden=4, epochs=1, checkpoint=tmp_path, resume=True),
        ]
        for use in uses:
            with suppress(DiskGNNError):
                use()
                used += 1
    assert 0 < used < 100  # of 120


def test_a_named_model_comes_back_from_its_checkpoint(sources, tmp_path):
    train(sources["train"], model="gat", hidden=8, heads=2, epochs=1, checkpoint=tmp_path / "named")
    torch.testing.assert_close(
        load_model(tmp_path / "named").state_dict(), load_checkpoint(tmp_path / "named")["model"], rtol=0, atol=0
    )
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path / "own")
    with pytest.raises(ConfigError, match="Net"):
        load_model(tmp_path / "own")


def test_a_checkpoint_from_before_a_model_had_a_setting_is_gone_on_with(sources, tmp_path):
    """There was but what is the default of that now."""
    train(sources["train"], epochs=1, checkpoint=tmp_path)
    written = load_checkpoint(tmp_path)
    defaults = {each.name: each.default for each in fields(ModelSpec) if each.name not in ("name", "num_layers")}
    defaults["decoder"] = "dot"  # before pairs had labels
    defaults["norm"] = "none"  # before there were models with another one
    for name, default in defaults.items():
        config = dict(written["config"])
        assert config.pop(name) == default
        save_checkpoint(tmp_path, written | {"config": config})
        load_model(tmp_path)
        other = {"aggregation": "max"} if name == "aggregation" else {"lr": 0.5}
        with pytest.raises(ConfigError, match=f"with {next(iter(other))}="):
            train(sources["train"], epochs=1, checkpoint=tmp_path, resume=True, **other)
        assert len(train(sources["train"], epochs=2, checkpoint=tmp_path, resume=True).epochs) == 2
