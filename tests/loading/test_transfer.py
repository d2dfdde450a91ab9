"""Minibatches on their way to the device: one ahead of the loop, with nobody waiting who need not, and nothing lost.

On a cpu nothing is transferred ahead. Most tests here pretend otherwise, so that the thread is tested without a GPU."""

import gc
import itertools
import shutil
import threading
import time
import weakref

import pytest
import torch
from graphs import assert_rows_are_features, make_graph, prepare_graph
from packed_directories import forge, wait_until

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.loading.loader import Loader


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("transfer") / "graph", width=16)


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("transfer")
    return prepare_graph(graph, folder, epochs=2, cpu_cache="20%", static_cache="10%")


@pytest.fixture
def ahead():
    with faults.pretending("loading.transfers_ahead", True):
        yield


def transfer_threads():
    return [thread for thread in threading.enumerate() if thread.name == "diskgnn-transfer"]


def test_epochs_in_and_out_of_order(packed, graph, ahead):
    with Loader(packed) as loader:
        for epoch, count in ((0, None), (1, None), (2, 3), (0, 1), (1, 0), (1, None)):
            batches = list(itertools.islice(loader.epoch(epoch), count))
            assert [(batch.epoch, batch.batch_index) for batch in batches] == [
                (epoch, index) for index in range(loader.num_batches if count is None else count)
            ]
            for batch in batches:
                assert_rows_are_features(batch, graph)


def test_one_minibatch_is_transferred_before_it_is_asked_for_and_no_more(packed, ahead):
    transferred = itertools.count(1)
    done = [0]

    def count():
        done[0] = next(transferred)

    with faults.armed("loading.minibatch", count), Loader(packed, prefetch=3) as loader:
        batches = loader.epoch(0)
        for number in range(4):
            next(batches)
            wait_until(lambda number=number: done[0] == number + 2)
            time.sleep(0.02)
            assert done[0] == number + 2
        assert loader.state_dict()["batch"] == 4  # what was transferred ahead has not been received


def test_a_dropped_loader_leaves_no_thread(packed, ahead):
    loader = Loader(packed)
    batches = loader.epoch(0)
    batch = next(batches)
    assert len(transfer_threads()) == 1
    gone = weakref.ref(loader)
    del loader, batches
    gc.collect()
    assert gone() is None
    wait_until(lambda: not transfer_threads())
    assert torch.isfinite(batch.y.double()).all()


def test_what_goes_wrong_in_the_thread_is_raised_in_the_loop(packed, ahead):
    full = torch.cuda.OutOfMemoryError("CUDA out of memory")
    with Loader(packed) as loader:
        batches = loader.epoch(0)
        next(batches)
        with faults.armed("loading.minibatch", full), pytest.raises(RuntimeError, match="out of memory"):
            list(batches)
        assert len(list(loader.epoch(0))) == loader.num_batches


def test_closing_while_the_loop_waits_in_another_thread(packed, ahead):
    """The disk hangs, as it were: the thread that transfers does not come to take the third minibatch."""
    hung, goes_on, errors = threading.Event(), threading.Event(), []

    def hang():
        hung.set()
        goes_on.wait(30)

    loader = Loader(packed)
    with faults.armed("loading.transfer", hang, after=2):
        batches = loader.epoch(0)
        next(batches)
        next(batches)

        def loop():
            with pytest.raises(ConfigError) as raised:
                next(batches)
            errors.append(str(raised.value))

        loop_thread, closing_thread = threading.Thread(target=loop), threading.Thread(target=loader.close)
        loop_thread.start()
        assert hung.wait(30)
        time.sleep(0.05)
        assert loop_thread.is_alive()
        closing_thread.start()
        time.sleep(1)  # in which it begins to close, on a busy machine, too
        goes_on.set()
        loop_thread.join(30)
        closing_thread.join(30)
    assert "closed" in errors[0]


def test_what_is_refused_while_opening_may_be_tried_again(packed):
    """Page-locking, for one: the second time fails for the same reason, or goes through."""
    refused = ConfigError("cannot page-lock")
    with Loader(packed) as loader:
        for _ in range(2):
            with faults.armed("loading.page_lock", refused), pytest.raises(ConfigError, match="cannot page-lock"):
                next(loader.epoch(0))
        assert len(list(loader.epoch(0))) == loader.num_batches


def test_an_undecodable_header_is_damage(packed, tmp_path, ahead):
    index = open_artifact(packed).array("train-index.npy", mmap=False)
    data = bytearray((packed / "train.bin").read_bytes())
    header_bytes = int(index[0]["header_bytes"])
    data[:64] = bytes(64)  # of what Arrow calls a message; the numbers that the native reader needs lie behind
    index[0]["header_crc32c"] = crc32c(bytes(data[:header_bytes]))
    copy = shutil.copytree(packed, tmp_path / "packed")
    forged = forge(copy, train_index=index, train=bytes(data))
    with Loader(forged) as loader, pytest.raises(ArtifactError, match="repair it with `diskgnn verify"):
        next(loader.epoch(0))


def test_waiting_is_the_loops_not_the_threads(packed, ahead):
    with Loader(packed) as loader:
        began = time.perf_counter()
        for _ in loader.epoch(0):
            time.sleep(0.03)  # meanwhile the thread waits for the loop
        assert loader.stats().wait_seconds < (time.perf_counter() - began) / 2
        before = loader.stats()
        with faults.armed("loading.minibatch", lambda: time.sleep(0.03)):
            for _ in loader.epoch(1):
                pass
        assert (loader.stats() - before).wait_seconds > 0.01 * loader.num_batches


def test_copies_are_traced(packed, ahead):
    with Loader(packed) as loader:
        list(loader.epoch(0))
        wait_until(lambda: not transfer_threads())
        loader.start_tracing()
        list(loader.epoch(1))
        wait_until(lambda: not transfer_threads())
        events = loader.take_trace()
        assert not [event for event in loader.take_trace() if event.track == "transfer"]
    assert {event.track for event in events} == {"disk", "assemble", "transfer"}
    trace = [event for event in events if event.track == "transfer"]
    assert [event.minibatch for event in trace] == list(range(loader.num_batches))
    assert all(event.start_ns < event.end_ns for event in trace)
    assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(trace))


def test_the_largest_minibatch_is_that_of_the_longest_extent(packed):
    with Loader(packed) as loader:
        largest = loader.sequence.largest_minibatch()
        sizes = [
            (batch.x.shape[0], sum(b.num_edges for b in batch.blocks)) for e in (0, 1) for batch in loader.epoch(e)
        ]
    assert largest.x.shape[0] >= max(size for size, _ in sizes) * 0.9
    assert (largest.x.shape[0], sum(block.num_edges for block in largest.blocks)) in sizes
    assert not largest.x.any()
    assert largest.blocks[0].num_src == largest.x.shape[0]
    assert largest.blocks[-1].num_dst == len(largest.y)


@pytest.mark.cuda
@pytest.mark.parametrize("zero_copy", [False, True])
def test_nothing_in_the_loop_waits_for_the_device(packed, zero_copy):
    weight = torch.rand(16, 4, device="cuda", requires_grad=True)
    with Loader(packed, device="cuda", device_cache="5%", zero_copy=zero_copy, dtype=torch.float32) as loader:
        next(loader.epoch(0))  # tiers are filled, the kernel is compiled
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for epoch in range(2):
                for batch in loader.epoch(epoch):
                    (batch.x @ weight).square().mean().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_gpu_memory_does_not_grow(packed):
    with Loader(packed, device="cuda", device_cache="5%") as loader:
        for epoch in range(2):
            for batch in loader.epoch(epoch):
                batch.x.sum()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["num_device_alloc"]
        for epoch in range(2, 6):
            for batch in loader.epoch(epoch):
                batch.x.sum()
        assert torch.cuda.memory_stats()["num_device_alloc"] == before


@pytest.mark.cuda
def test_minibatches_are_kept_as_they_were(packed, graph):
    """Also while later ones are transferred, and after the loader is closed: their memory is not given out again."""
    with Loader(packed, device="cuda", device_cache="5%") as loader:
        batches = [batch for epoch in range(3) for batch in loader.epoch(epoch)]
    for batch in batches:
        assert_rows_are_features(batch.to("cpu"), graph)
