"""Minibatches on their way to the device: one ahead of the loop, with nobody waiting who need not, and nothing lost.

On a cpu nothing goes ahead by itself; most tests here make it, so that the thread is tested without a GPU, too."""

import gc
import itertools
import threading
import time
import weakref

import pytest
import torch
from graphs import assert_rows_are_features, make_graph, prepare_graph

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.loading import transfer
from diskgnn.loading.loader import Loader


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("transfer") / "graph", width=16)


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("transfer")
    return prepare_graph(graph, folder, epochs=2, cpu_cache="20%", static_cache="10%")


@pytest.fixture
def ahead(monkeypatch):
    monkeypatch.setattr(transfer, "goes_ahead", lambda device: True)


def transfer_threads():
    return [thread for thread in threading.enumerate() if thread.name == "diskgnn-transfer"]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_epochs_in_and_out_of_order(packed, graph, ahead):
    with Loader(packed) as loader:
        for epoch, count in ((0, None), (1, None), (2, 3), (0, 1), (1, 0), (1, None)):
            batches = list(itertools.islice(loader.epoch(epoch), count))
            assert [(batch.epoch, batch.batch_index) for batch in batches] == [
                (epoch, index) for index in range(loader.num_batches if count is None else count)
            ]
            for batch in batches:
                assert_rows_are_features(batch, graph)


def test_one_minibatch_is_transferred_before_it_is_asked_for_and_no_more(packed, ahead, monkeypatch):
    transferred = []
    minibatch = transfer.Transfer._minibatch

    def counting(self, header, rows, epoch, number):
        transferred.append(number)
        return minibatch(self, header, rows, epoch, number)

    monkeypatch.setattr(transfer.Transfer, "_minibatch", counting)
    with Loader(packed, prefetch=3) as loader:
        batches = loader.epoch(0)
        for number in range(4):
            next(batches)
            wait_until(lambda number=number: len(transferred) == number + 2)
            time.sleep(0.02)
            assert transferred == list(range(number + 2))
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


def test_what_goes_wrong_in_the_thread_is_raised_in_the_loop(packed, ahead, monkeypatch):
    with Loader(packed) as loader:
        batches = loader.epoch(0)
        next(batches)

        def full(*_):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(transfer.HeaderReader, "read", full)
            with pytest.raises(RuntimeError, match="out of memory"):
                list(batches)
        assert len(list(loader.epoch(0))) == loader.num_batches


class Unheard:
    """Asks for minibatches that never reach the thread, as if the disk hung."""

    def __init__(self, asked):
        self.get = asked.get

    def put(self, item):
        pass


def test_closing_while_the_loop_waits_in_another_thread(packed, ahead):
    loader = Loader(packed)
    batches = loader.epoch(0)
    next(batches)
    heard = loader._transfer._asked
    loader._transfer._asked = Unheard(heard)
    next(batches)  # it is there already
    errors = []

    def loop():
        with pytest.raises(ConfigError) as raised:
            next(batches)
        errors.append(str(raised.value))

    thread = threading.Thread(target=loop)
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive()
    loader._transfer._asked = heard
    loader.close()
    thread.join(30)
    assert "closed" in errors[0]


def test_what_is_refused_while_opening_may_be_tried_again(packed, monkeypatch):
    """Page-locking, for one: the second time fails for the same reason, or goes through."""

    def refused(*_):
        raise ConfigError("cannot page-lock")

    with Loader(packed) as loader:
        with monkeypatch.context() as patch:
            patch.setattr("diskgnn.loading.loader.Transfer", refused)
            for _ in range(2):
                with pytest.raises(ConfigError, match="cannot page-lock"):
                    next(loader.epoch(0))
        assert len(list(loader.epoch(0))) == loader.num_batches


def test_an_undecodable_header_is_damage(packed, ahead, monkeypatch):
    monkeypatch.setattr(transfer.extents, "decode_header", lambda *_: (_ for _ in ()).throw(EOFError("too short")))
    with Loader(packed) as loader, pytest.raises(ArtifactError, match="too short"):
        next(loader.epoch(0))


def test_waiting_is_the_loops_not_the_threads(packed, ahead):
    with Loader(packed) as loader:
        for _ in loader.epoch(0):
            time.sleep(0.01)
        loader._transfer._join()
        assert loader.stats()["wait_seconds"] < loader._pipeline.stats()["wait_seconds"] + 0.01 * loader.num_batches
        began = time.perf_counter()
        for _ in loader.epoch(1):
            pass
        assert 0 < loader.stats()["wait_seconds"] <= time.perf_counter() - began + 0.01 * 2 * loader.num_batches


def test_copies_are_traced(packed, ahead):
    with Loader(packed) as loader:
        list(loader.epoch(0))
        loader._transfer._join()
        loader.start_tracing()
        list(loader.epoch(1))
        loader._transfer._join()
        events = loader.take_trace()
        assert not [event for event in loader.take_trace() if event.track == "transfer"]
    assert {event.track for event in events} == {"disk", "assemble", "transfer"}
    trace = [event for event in events if event.track == "transfer"]
    assert [event.minibatch for event in trace] == list(range(loader.num_batches))
    assert all(event.start_ns < event.end_ns for event in trace)
    assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(trace))


def test_the_largest_minibatch_is_that_of_the_longest_extent(packed):
    with Loader(packed) as loader:
        largest = loader.largest_minibatch()
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
