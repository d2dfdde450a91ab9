"""Records of training: the JSON-lines file, TensorBoard, and outputs that cannot be written."""

import errno
import json
import os
import resource
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from training_runs import make_net

from diskgnn.errors import ConfigError, DiskFullError, ReadError
from diskgnn.files import faults
from diskgnn.training.checkpoints import FILE, save_checkpoint
from diskgnn.training.metrics import MetricsWriter
from diskgnn.training.train import train


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


def test_a_run_after_one_that_a_crash_ended_in_the_middle_of_a_line_is_read(sources, tmp_path):
    path = tmp_path / "metrics.jsonl"
    train(sources["train"], model=make_net(), epochs=1, metrics=path)
    earlier = path.read_text()
    for torn in ('{"event": "step", "epo', "{", '{"event": "step", "epoch": 0}'):
        path.write_text(earlier + torn)
        train(sources["train"], model=make_net(), epochs=1, metrics=path)
        events = [json.loads(line)["event"] for line in path.read_text()[len(earlier) :].splitlines()]
        assert events == ["start", "step", "epoch", "end"], torn


def test_resuming_does_not_touch_a_file_that_holds_no_metrics(sources, tmp_path):
    path = tmp_path / "notes.txt"
    train(sources["train"], model=make_net(), epochs=1, checkpoint=tmp_path)
    for text in ("not metrics\n", "not metrics", '{"hidden": 16}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"notes\.txt"):
            train(sources["train"], model=make_net(), epochs=2, checkpoint=tmp_path, resume=True, metrics=path)
        assert path.read_text() == text


@pytest.mark.parametrize(("failing", "reads_on"), [(2, True), (sys.maxsize, False)])
def test_a_disk_that_fails_while_metrics_are_read_is_no_disk_that_cannot_be_written(
    tmp_path, monkeypatch, failing, reads_on
):
    """At any read: of the beginning of the file, of its last line, of the records after which training goes on."""
    path, read, reads = tmp_path / "metrics.jsonl", os.preadv, []
    start, epoch = '{"event": "start"}\n', '{"event": "epoch", "epoch": 0}\n'

    def disk(*arguments):
        reads.append(arguments)
        if passing < len(reads) <= passing + failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(*arguments)

    monkeypatch.setattr(os, "preadv", disk)
    for passing in range(3):
        path.write_text(start + epoch + '{"event": "ep')
        reads.clear()
        with nullcontext() if reads_on else pytest.raises(ReadError, match="the disk failed"):
            MetricsWriter(path, resumed_at=(0, 0)).__exit__(None, None, None)
            assert path.read_text() == start
        assert len(reads) > passing
    assert reads_on or path.read_text().startswith(start + epoch)


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


@pytest.mark.parametrize("option", ["checkpoint", "metrics", "tensorboard"])
def test_outputs_are_tried_before_the_first_step(sources, tmp_path, option):
    (tmp_path / "file").write_text("in the way")
    path, events = tmp_path / "file" / "out", []
    with pytest.raises(ConfigError, match=f"^{option}: cannot write {path} .*(Not a directory|File exists)"):
        train(sources["train"], model=make_net(), epochs=1, callback=events.append, **{option: path})
    assert not events


def test_a_full_disk_names_the_path(tmp_path):
    with pytest.raises(DiskFullError, match=r"/dev/full .* `metrics` says where"):
        MetricsWriter("/dev/full").write({"event": "start"}, 0)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with faults.armed("checkpoint.sync", full), pytest.raises(DiskFullError, match="`checkpoint` says where"):
        save_checkpoint(tmp_path, {"model": torch.zeros(1)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))  # torch.save fails, and raises another error
    try:
        with pytest.raises(ConfigError, match=f"checkpoint: cannot write {tmp_path / FILE} .File too large"):
            save_checkpoint(tmp_path, {"model": torch.zeros(1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
