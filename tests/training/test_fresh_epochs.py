"""Freshly prepared epochs against online sampling, and what they leave behind."""

import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import assert_rows_are_features, bits_of, make_graph, threads_of_this_process, threads_that_stay

from diskgnn.baselines.in_memory import InMemory
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.batch_source import BatchSource
from diskgnn.training import fresh_epochs
from diskgnn.training.fresh_epochs import FreshEpochs

SAMPLING = {"fanouts": [3, 2], "batch_size": 8, "seed": 4}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("fresh") / "graph")


def fresh(graph, folder, **options):
    return FreshEpochs(graph, folder, **({"cpu_cache": "20%", "keep_input_nodes": True} | SAMPLING | options))


def assert_same(batch, expected):
    assert (batch.epoch, batch.batch_index) == (expected.epoch, expected.batch_index)
    assert bits_of(batch) == bits_of(expected)
    for name in ("y", "seeds", "input_nodes"):
        assert torch.equal(getattr(batch, name), getattr(expected, name)), name
    for one, other in zip(batch.blocks, expected.blocks, strict=True):
        assert one.num_src == other.num_src
        assert torch.equal(one.indptr, other.indptr)
        assert torch.equal(one.indices, other.indices)


@pytest.mark.parametrize("overlap", [True, False])
def test_every_epoch_is_what_online_sampling_draws(graph, tmp_path, overlap):
    with fresh(graph, tmp_path, overlap=overlap) as source, InMemory(graph, **SAMPLING) as online:
        assert isinstance(source, BatchSource)
        assert (source.num_batches, source.num_classes) == (online.num_batches, online.num_classes)
        assert (source.num_features, source.num_layers) == (online.num_features, online.num_layers)
        seen = []
        for epoch in (0, 1, 2, 7):  # in order, and not
            for batch, expected in zip(source.epoch(epoch), online.epoch(epoch), strict=True):
                assert_same(batch, expected)
                seen.append(batch.input_nodes)
            assert source.state_dict()["batch"] == source.num_batches
        assert source.stats()["prepared_epochs"] == 4
        rows = source.stats()
    assert rows["requested_rows"] == sum(map(len, seen)) == rows["cpu_rows"] + rows["disk_rows"]
    assert rows["prepare_seconds"] > 0
    assert rows["prepare_written_bytes"] > rows["disk_rows"] * graph.feature_file.row_bytes


@pytest.mark.parametrize(("dtype", "width"), [("float16", 5), ("bfloat16", 3), ("int8", 1)])
def test_rows_bit_for_bit(tmp_path, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width)
    with fresh(graph, tmp_path / "scratch", cpu_cache=0, static_cache="10%") as source:
        for batch in source.epoch(3):
            assert batch.x.dtype == getattr(torch, dtype)
            assert_rows_are_features(batch, graph)
        assert source.stats()["pinned_rows"] > 0


def epochs_on_disk(folder: Path):
    return sorted(path.name for path in folder.glob("*/epoch-*"))


def test_two_epochs_on_the_disk_at_most_and_none_after_the_last(graph, tmp_path):
    with fresh(graph, tmp_path, num_epochs=3) as source:
        for epoch in range(3):
            for batch in source.epoch(epoch):
                found = epochs_on_disk(tmp_path)
                assert f"epoch-{epoch:06d}" in found
                assert set(found) <= {f"epoch-{epoch:06d}", f"epoch-{epoch + 1:06d}"}
                assert batch.epoch == epoch
        assert epochs_on_disk(tmp_path) == ["epoch-000002"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("num_epochs", "cores"), [(1, 6), (2, 3)])
def test_a_lone_epoch_has_all_cores(graph, tmp_path, monkeypatch, num_epochs, cores):
    monkeypatch.setattr(fresh_epochs, "available_cores", lambda: 6)
    prepare, efforts = fresh_epochs._prepare_epoch, []

    def recorded(*arguments, **options):
        efforts.append(options["effort"]["threads"])
        return prepare(*arguments, **options)

    monkeypatch.setattr(fresh_epochs, "_prepare_epoch", recorded)
    with fresh(graph, tmp_path, num_epochs=num_epochs) as source:
        for epoch in range(num_epochs):
            assert len(list(source.epoch(epoch))) == source.num_batches
    assert efforts == [cores] * num_epochs


def test_goes_on_from_its_state(graph, tmp_path):
    with InMemory(graph, **SAMPLING) as online:
        expected = list(online.epoch(1))
    with fresh(graph, tmp_path / "one") as first:
        list(islice(first.epoch(1), 3))
        state = first.state_dict()
    with fresh(graph, tmp_path / "two") as second:
        second.load_state_dict(state)
        assert second.state_dict() == state
        for batch, other in zip(second.epoch(1), expected[3:], strict=True):
            assert_same(batch, other)
        assert len(list(second.epoch(1))) == len(expected)  # what was skipped is skipped once
    with fresh(graph, tmp_path / "three", seed=5) as other, pytest.raises(ArtifactError, match="seed"):
        other.load_state_dict(state)


def test_leaving_early_stops_preparing_and_deletes_what_there_is(graph, tmp_path, monkeypatch):
    reached = threading.Event()
    real = fresh_epochs.pack

    def slow_pack(opened, samples, out, **options):
        if "epoch-000001" in str(out):
            reached.set()
            while True:  # until the reporter says that it was stopped
                with options["reporter"].stage("wait", 1, "B") as advance:
                    advance(1)
        return real(opened, samples, out, **options)

    monkeypatch.setattr(fresh_epochs, "pack", slow_pack)
    before = threads_of_this_process()
    with fresh(graph, tmp_path) as source:
        batch = next(source.epoch(0))
        assert reached.wait(30)
    assert threads_that_stay(before) == before
    assert not list(tmp_path.iterdir())
    assert_rows_are_features(batch, graph)  # still valid
    source.close()
    with pytest.raises(ConfigError, match="closed"):
        source.epoch(0)


def test_dropping_the_source_cleans_up(graph, tmp_path):
    before = threads_of_this_process()
    source = fresh(graph, tmp_path)
    next(source.epoch(0))
    assert list(tmp_path.iterdir())
    del source
    assert not list(tmp_path.iterdir())
    assert threads_that_stay(before) == before


def test_ending_the_program_cleans_up(graph, tmp_path):
    program = f"""
from diskgnn.training.fresh_epochs import FreshEpochs
source = FreshEpochs({str(graph.manifest.path)!r}, {str(tmp_path)!r}, fanouts=[3, 2], batch_size=8, cpu_cache=0)
next(source.epoch(0))
raise KeyboardInterrupt
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "KeyboardInterrupt" in done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_trace_tells_of_each_epochs_reads_and_of_preparing_them(graph, tmp_path):
    with fresh(graph, tmp_path, num_epochs=2) as source:
        source.start_tracing()
        for epoch in range(2):
            for _ in source.epoch(epoch):
                pass
        events = source.take_trace()
        assert source.take_trace() == []
        reads = [event for event in events if event.stage == "read"]
        gathers = [event.minibatch for event in events if event.stage == "gather"]
        prepared = [event for event in events if event.track == "prepare"]
        assert gathers == 2 * list(range(source.num_batches))
    assert [event.stage for event in prepared] == 2 * ["sample the next epoch", "pack the next epoch"]
    assert prepared[1].end_ns < min(event.start_ns for event in reads)  # nothing is read before it is packed
    assert prepared[3].end_ns < max(event.end_ns for event in reads)


def test_errors_in_the_background_reach_the_loop(graph, tmp_path, monkeypatch):
    real = fresh_epochs.pack

    def failing_pack(opened, samples, out, **options):
        if "epoch-000001" in str(out):
            raise OSError("disk on fire")
        return real(opened, samples, out, **options)

    monkeypatch.setattr(fresh_epochs, "pack", failing_pack)
    with fresh(graph, tmp_path) as source:
        assert len(list(source.epoch(0))) == source.num_batches
        with pytest.raises(OSError, match="disk on fire"):
            list(source.epoch(1))
        assert not epochs_on_disk(tmp_path)
        monkeypatch.undo()
        assert len(list(source.epoch(1))) == source.num_batches  # and it can be tried again


def test_another_epoch_ends_the_one_before(graph, tmp_path):
    with fresh(graph, tmp_path, overlap=False) as source:
        first = source.epoch(0)
        next(first)
        next(source.epoch(1))
        with pytest.raises(ConfigError, match="another epoch"):
            next(first)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"fanouts": []}, "fanouts"), ({"batch_size": 0}, "batch_size"), ({"num_epochs": 0}, "num_epochs")],
)
def test_arguments_are_checked(graph, tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        fresh(graph, tmp_path, **arguments)
    (tmp_path / "file").write_text("")
    with fresh(graph, tmp_path / "file") as source, pytest.raises(ConfigError, match="cannot write"):
        next(source.epoch(0))
    with fresh(graph, tmp_path) as source, pytest.raises(ConfigError, match="epoch"):
        source.epoch(-1)


def test_samples_of_later_epochs_continue_the_sequence(graph, tmp_path):
    from diskgnn.storage.samples import Samples
    from diskgnn.sampling.sample import sample

    sample(graph, tmp_path / "all", **SAMPLING, epochs=3)
    sample(graph, tmp_path / "later", **SAMPLING, epochs=2, first_epoch=1)
    everything, later = Samples.open(tmp_path / "all"), Samples.open(tmp_path / "later")
    assert later.manifest.config["first_epoch"] == 1
    skipped = islice(everything.read("train"), everything.batches_per_epoch("train"), None)
    for one, other in zip(skipped, later.read("train"), strict=True):
        np.testing.assert_array_equal(one.input_nodes, other.input_nodes)
    for one, other in zip(everything.read("valid"), later.read("valid"), strict=True):
        np.testing.assert_array_equal(one.input_nodes, other.input_nodes)
    with pytest.raises(ConfigError, match="first_epoch"):
        sample(graph, tmp_path / "bad", **SAMPLING, first_epoch=-1)
