"""Freshly prepared minibatches against online sampling, and what they leave behind."""

import threading
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run_python
from graphs import assert_rows_are_features, make_graph, threads_of_this_process, threads_that_stay, write_graph
from sources import assert_same

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files import faults
from diskgnn.fresh.fresh_epochs import FreshEpochs
from diskgnn.fresh.fresh_windows import preparing_threads
from diskgnn.fresh.window_job import WindowPreparer
from diskgnn.fresh.window_sizes import WindowSizes
from diskgnn.packing.tiers import TierBudgets
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec

pytestmark = pytest.mark.usefixtures("one_thread", "arrow_on_one_thread")

SAMPLING = {"fanouts": [3, 2], "batch_size": 8, "seed": 4}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("fresh") / "graph")


def fresh(graph, folder, **options):
    return FreshEpochs(graph, folder, **({"cpu_cache": "20%", "keep_input_nodes": True} | SAMPLING | options))


@pytest.mark.parametrize(
    "options",
    [{}, {"overlap": False}, {"window": 3}, {"window": 11}, {"window": 1, "num_epochs": 8}, {"group_seeds": 4}],
)
def test_every_epoch_is_what_online_sampling_draws(graph, tmp_path, options):
    """Epochs have 8 minibatches: windows end within them, with them and beyond them."""
    grouped = {"group_seeds": options.get("group_seeds", 1)}
    with fresh(graph, tmp_path, **options) as source, InMemory(graph, **SAMPLING, **grouped) as online:
        assert source.num_batches == 8
        assert (source.num_batches, source.num_classes) == (online.num_batches, online.num_classes)
        assert (source.num_features, source.num_layers) == (online.num_features, online.num_layers)
        seen = []
        for epoch in (0, 1, 2, 7):  # in order, and not
            for batch, expected in zip(source.epoch(epoch), online.epoch(epoch), strict=True):
                assert_same(batch, expected)
                seen.append(batch.input_nodes)
            assert source.state_dict()["batch"] == source.num_batches
        open_stats = source.stats()
    stats = source.stats()  # also when it is closed
    assert len(seen) == 4 * source.num_batches <= stats.prepared_batches < 6 * source.num_batches
    assert sum(map(len, seen)) <= stats.requested_rows == stats.cpu_rows + stats.disk_rows
    assert stats.prepare_seconds > 0
    assert stats.prepare_written_bytes > stats.disk_rows * graph.feature_file.row_bytes
    # Reading ahead goes on until it is closed.
    assert all(count <= getattr(stats, name) for name, count in asdict(open_stats).items())


@pytest.mark.parametrize(("dtype", "width"), [("float16", 5), ("bfloat16", 3), ("int8", 1)])
def test_rows_bit_for_bit(tmp_path, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width)
    with fresh(graph, tmp_path / "scratch", cpu_cache=0, static_cache="10%") as source:
        for batch in source.epoch(3):
            assert batch.x.dtype == getattr(torch, dtype)
            assert_rows_are_features(batch, graph)
        assert source.stats().pinned_rows > 0


def windows_on_disk(folder: Path):
    return sorted(path.name for path in folder.glob("*/window-*"))


def test_two_windows_on_the_disk_at_most_and_none_after_the_last(graph, tmp_path):
    with fresh(graph, tmp_path, num_epochs=3, window=5) as source:
        for epoch in range(3):
            for batch in source.epoch(epoch):
                assert batch.epoch == epoch
                first = (epoch * 8 + batch.batch_index) // 5 * 5
                found = windows_on_disk(tmp_path)
                assert f"window-{first:08d}" in found
                assert set(found) <= {f"window-{first:08d}", f"window-{first + 5:08d}"}
        assert windows_on_disk(tmp_path) == ["window-00000020"]
        assert source.stats().prepared_batches == 24
    assert not list(tmp_path.iterdir())


def test_more_epochs_than_it_was_made_for_are_refused(graph, tmp_path):
    with fresh(graph, tmp_path, num_epochs=1) as source:
        with pytest.raises(ConfigError, match="made with num_epochs=1, found epochs=3"):
            diskgnn.train(source, epochs=3, hidden=4)
        assert len(list(source)) == 8
        with pytest.raises(ConfigError, match="made for 1 epochs, and epoch 1 was asked for"):
            next(iter(source))


def lengths(sizes, count, position=0):
    found = []
    for _ in range(count):
        window = sizes.window(position)
        assert window.start == position
        position = window.stop
        found.append(len(window))
    return found


def sizes_of(folder, num_batches, fixed=None, end=None, shortest=10):
    return WindowSizes(folder, num_batches, fixed, end, lambda window: (min(len(window), shortest), 2))


def test_windows_grow_to_an_epoch(tmp_path):
    assert lengths(sizes_of(tmp_path, 100), 6) == [10, 20, 40, 100, 100, 100]
    assert lengths(sizes_of(tmp_path, 100, shortest=1), 8) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert lengths(sizes_of(tmp_path, 8), 2) == [8, 8]
    assert lengths(sizes_of(tmp_path, 100, end=60), 3) == [10, 20, 30]
    assert lengths(sizes_of(tmp_path, 12, end=12), 1) == [12]
    assert lengths(sizes_of(tmp_path, 100, fixed=70, end=200), 3) == [70, 70, 60]
    sizes = sizes_of(tmp_path, 100)
    assert lengths(sizes, 2) == [10, 20]
    assert lengths(sizes, 2, 250) == [10, 20]  # elsewhere, training waits again


def test_windows_are_no_longer_than_the_disk_has_room_for(tmp_path):
    sizes = sizes_of(tmp_path, 100)
    with faults.pretending("disk.free", 1000):
        assert lengths(sizes, 1) == [10]
        sizes.note_prepared(range(10), 100)
        assert lengths(sizes, 3, 10) == [20, 40, 50]
        sizes.note_prepared(range(10), 10**9)
        assert lengths(sizes, 2, 120) == [1, 1]


def test_the_shortest_window_needs_a_quarter_of_what_packing_reads(tmp_path):
    """Rows of 1 KiB, 32 in a stretch that is read as a whole: two seeds without neighbours need two rows of them."""
    num_nodes = 64 * 40
    features = np.random.default_rng(0).standard_normal((num_nodes, 256)).astype(np.float32)
    train = np.random.default_rng(1).permutation(num_nodes)
    splits = {"train": train}
    graph = write_graph(tmp_path / "graph", np.zeros(num_nodes + 1), np.empty(0, np.int32), features, splits)
    plan = SamplingPlan(graph, SamplingSpec([2], 2, splits=("train",)))
    preparer = WindowPreparer(plan, TierBudgets(0, 0, 0), "1GiB", keep_input_nodes=False)
    with faults.pretending("fresh_epochs.by_reference", False):
        length, growth = preparer.shortest_window(range(100, 900))
        whole = preparer.shortest_window(range(50))
    seeds = np.concatenate([each.seeds for each in plan.minibatches("train", 0)])
    for number in range(1, 800):
        nodes = seeds[200 : 200 + 2 * number]
        if len(np.unique(nodes // 32)) * 32 <= 4 * len(nodes):
            break
    assert 100 < length == number
    assert growth == 2
    assert whole == (50, 2)  # never worth it: all that there are


@pytest.mark.parametrize(("num_seeds", "length"), [(2, 1), (18, 5), (80, 20), (400, 32)])
def test_the_shortest_window_of_swept_topology_is_a_part_of_an_epoch(tmp_path, num_seeds, length):
    """Two seeds in a minibatch: half of an epoch's, 32 at most."""
    features = np.zeros((400, 1), np.float32)
    splits = {"train": np.arange(num_seeds)}
    graph = write_graph(tmp_path / "graph", np.arange(401), np.zeros(400, np.int32), features, splits)
    plan = SamplingPlan(graph, SamplingSpec([2], 2, splits=("train",)))
    preparer = WindowPreparer(plan, TierBudgets(0, 0, 0), 1000, keep_input_nodes=False)
    assert preparer.shortest_window(range(200)) == (length, 2)


@pytest.mark.parametrize(("beside_training", "cores", "threads"), [(False, 6, 6), (True, 6, 3), (True, 1, 1)])
def test_training_has_half_of_the_cores_while_the_next_window_is_prepared(beside_training, cores, threads):
    assert preparing_threads(cores, beside_training) == threads


def test_the_first_window_is_prepared_while_nobody_asks(graph, tmp_path):
    packing = threading.Event()
    with faults.armed("fresh_epochs.pack", packing.set), fresh(graph, tmp_path, window=4) as source:
        assert packing.wait(30)
        assert source.stats().prepared_batches == 0  # nobody asked for it
        assert len(list(source.epoch(0))) == source.num_batches
    packing.clear()
    with faults.armed("fresh_epochs.pack", packing.set), fresh(graph, tmp_path, window=4, overlap=False) as source:
        assert not packing.wait(0.1)
        next(source.epoch(0))
        assert packing.is_set()


def test_a_state_begins_with_its_window(graph, tmp_path):
    with fresh(graph, tmp_path, window=3, num_epochs=3) as source:
        state = source.state_dict()
        for epoch, batch in ((1, 3), (1, 0), (2, 8)):
            source.load_state_dict(state | {"epoch": epoch, "batch": batch})
        assert not windows_on_disk(tmp_path)  # what others began is gone, and nothing follows the last
        source.load_state_dict(state | {"epoch": 1, "batch": 3})
        source.load_state_dict(state | {"epoch": 1, "batch": 3})
        assert [batch.batch_index for batch in source.epoch(1)] == [3, 4, 5, 6, 7]
        assert source.stats().prepared_batches == 6  # windows of 3 from there on


def test_a_source_that_is_dropped_or_closed_at_once_leaves_nothing(graph, tmp_path):
    before = threads_of_this_process()
    fresh(graph, tmp_path).close()
    source = fresh(graph, tmp_path)
    del source
    assert threads_that_stay(before) <= before  # it waits for others
    assert not list(tmp_path.iterdir())


def test_dropping_one_waits_for_nobody(graph, tmp_path):
    """The collector may do so in a thread that holds what the one that prepares waits for."""
    before, held, waits = threads_of_this_process(), threading.Lock(), threading.Event()

    def wait():
        waits.set()
        with held:
            pass

    with held, faults.armed("fresh_epochs.pack", wait):
        source = fresh(graph, tmp_path)
        assert waits.wait(60)
        del source
    assert threads_that_stay(before) <= before
    assert not list(tmp_path.iterdir())


def test_plain_loops_count_epochs_up_and_go_on(graph, tmp_path):
    with InMemory(graph, **SAMPLING) as online:
        expected = [list(online.epoch(epoch)) for epoch in range(3)]

    def assert_epoch(found, epoch, first=0):
        for batch, other in zip(found, expected[epoch][first:], strict=True):
            assert_same(batch, other)

    with fresh(graph, tmp_path / "one") as source:
        assert len(source) == source.num_batches
        assert_epoch(source, 0)
        assert_epoch(source, 1)
        source.set_epoch(0)
        assert_epoch(source, 0)
        source.set_epoch(1)
        list(islice(source, 2))
        state = source.state_dict()
    with fresh(graph, tmp_path / "two") as other:
        other.load_state_dict(state)
        assert_epoch(other, 1, 2)
        assert_epoch(other, 2)


def test_goes_on_from_its_state(graph, tmp_path):
    with InMemory(graph, **SAMPLING) as online:
        expected = list(online.epoch(1))
    with fresh(graph, tmp_path / "one", window=5) as first:
        list(islice(first.epoch(1), 3))
        state = first.state_dict()
    with fresh(graph, tmp_path / "two") as second:  # also with other windows
        second.load_state_dict(state)
        assert second.state_dict() == state
        for batch, other in zip(second.epoch(1), expected[3:], strict=True):
            assert_same(batch, other)
        assert len(list(second.epoch(1))) == len(expected)  # what was skipped is skipped once
    with fresh(graph, tmp_path / "three", seed=5) as other, pytest.raises(ArtifactError, match="seed"):
        other.load_state_dict(state)


class Steps:
    """A reporter that counts the steps of all stages."""

    def __init__(self):
        self.count = 0

    @contextmanager
    def stage(self, description, total, unit):
        yield self.step

    def step(self, count):
        self.count += 1


def test_leaving_early_stops_preparing_and_deletes_what_there_is(graph, tmp_path):
    packing, goes_on, steps = threading.Event(), threading.Event(), Steps()

    def wait():
        packing.set()
        goes_on.wait(30)

    before = threads_of_this_process()
    with faults.armed("fresh_epochs.pack", wait, after=1):
        source = fresh(graph, tmp_path, reporter=steps)
        batch = next(source.epoch(0))
        assert packing.wait(30)
        steps_before = steps.count
        timer = threading.Timer(0.1, goes_on.set)
        timer.start()
        source.close()  # waits for the thread, which hears of it at its next step
        timer.join()
    assert steps.count == steps_before
    assert threads_that_stay(before) <= before
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
    assert threads_that_stay(before) <= before  # it waits for others
    assert not list(tmp_path.iterdir())


def test_ending_the_program_cleans_up(graph, tmp_path):
    program = f"""
from diskgnn.fresh.fresh_epochs import FreshEpochs
source = FreshEpochs({str(graph.manifest.path)!r}, {str(tmp_path)!r}, fanouts=[3, 2], batch_size=8, cpu_cache=0)
next(source.epoch(0))
raise KeyboardInterrupt
"""
    done = run_python("-c", program, capture_output=True, text=True, timeout=120, ends_whole=True)
    assert "KeyboardInterrupt" in done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_deleted_and_what_others_use_is_not(graph, tmp_path):
    program = f"""
import os, signal
from diskgnn.fresh.fresh_epochs import FreshEpochs
source = FreshEpochs({str(graph.manifest.path)!r}, {str(tmp_path)!r}, fanouts=[3, 2], batch_size=8, cpu_cache=0)
next(source.epoch(0))
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_python("-c", program, capture_output=True, timeout=120)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2  # the folder and its lock
    with fresh(graph, tmp_path) as source, fresh(graph, tmp_path) as other:
        next(source.epoch(0))
        next(other.epoch(0))
        assert len(list(tmp_path.iterdir())) == 4
        assert not left & {path.name for path in tmp_path.iterdir()}
        assert len(list(source.epoch(1))) == len(list(other.epoch(1)))
    assert not list(tmp_path.iterdir())


def test_a_trace_tells_of_each_windows_reads_and_of_preparing_them(graph, tmp_path):
    with fresh(graph, tmp_path, num_epochs=2, window=6) as source:
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
    assert [event.stage for event in prepared] == 3 * ["sample the next window", "pack the next window"]
    assert prepared[1].end_ns < min(event.start_ns for event in reads)  # nothing is read before it is packed
    assert prepared[5].end_ns < max(event.end_ns for event in reads)


def test_errors_in_the_background_reach_the_loop(graph, tmp_path):
    with fresh(graph, tmp_path, window=8) as source:
        with faults.armed("fresh_epochs.pack", OSError("disk on fire"), after=1):
            assert len(list(source.epoch(0))) == source.num_batches
            with pytest.raises(OSError, match="disk on fire"):
                list(source.epoch(1))
        assert not windows_on_disk(tmp_path)
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
    [
        ({"fanouts": []}, "fanouts"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_epochs": 0}, "num_epochs"),
        ({"window": 0}, "window"),
    ],
)
def test_arguments_are_checked(graph, tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        fresh(graph, tmp_path, **arguments)
    (tmp_path / "file").write_text("")
    before = threads_of_this_process()
    with pytest.raises(ConfigError, match="cannot write"):
        fresh(graph, tmp_path / "file")
    assert threads_that_stay(before) <= before
    with fresh(graph, tmp_path) as source, pytest.raises(ConfigError, match="epoch"):
        source.epoch(-1)


def test_samples_of_later_epochs_continue_the_sequence(graph, tmp_path):
    from diskgnn.formats.samples import Samples
    from diskgnn.sampling.sample import sample

    sample(graph, tmp_path / "all", **SAMPLING, epochs=3)
    sample(graph, tmp_path / "later", **SAMPLING, epochs=2, first_epoch=1)
    everything, later = Samples.open(tmp_path / "all"), Samples.open(tmp_path / "later")
    assert later.config.spec.first_epoch == 1
    skipped = islice(everything.read("train"), everything.config.splits["train"].batches_per_epoch, None)
    for one, other in zip(skipped, later.read("train"), strict=True):
        np.testing.assert_array_equal(one.only_nodes, other.only_nodes)
    for one, other in zip(everything.read("valid"), later.read("valid"), strict=True):
        np.testing.assert_array_equal(one.only_nodes, other.only_nodes)
    with pytest.raises(ConfigError, match="first_epoch"):
        sample(graph, tmp_path / "bad", **SAMPLING, first_epoch=-1)
