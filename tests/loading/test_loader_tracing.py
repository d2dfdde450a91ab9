"""The loader's timeline: whole, inside the loop that caused it, and the same seconds as its counters."""

import itertools
import time

import pytest
from graphs import make_graph, prepare_graph

from diskgnn._native import io_uring_refusal
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import open_artifact
from diskgnn.loading.loader import Loader
from diskgnn.loading.tracing import TraceEvent, is_traceable

ENGINES = ["threads"] if io_uring_refusal() else ["threads", "io_uring"]
STAGES_OF_COUNTER = {
    "read_wait_seconds": {"wait for disk"},
    "header_seconds": {"header"},
    "gather_seconds": {"gather"},
    "scatter_seconds": {"scatter"},
    "buffer_wait_seconds": {"wait for consumer"},
}
EPOCHS = 2  # prepared


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracing")
    return prepare_graph(make_graph(folder / "graph"), folder, epochs=EPOCHS, cpu_cache="20%")


def on_track(events, track):
    return sorted((event for event in events if event.track == track), key=lambda event: event.start_ns)


def nanoseconds(events, stages):
    return sum(event.end_ns - event.start_ns for event in events if event.stage in stages)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("prefetch", [1, 3])
def test_every_minibatch_has_its_stages_inside_the_loop_that_asked_for_it(packed, engine, prefetch):
    with Loader(packed, engine=engine, prefetch=prefetch) as loader:
        assert is_traceable(loader)
        loader.start_tracing()
        for epoch in range(EPOCHS + 1):  # the last begins a second cycle
            started_ns = time.perf_counter_ns()
            for _ in loader.epoch(epoch):
                pass
            ended_ns = time.perf_counter_ns()
            events = loader.take_trace()
            assert all(started_ns <= event.start_ns <= event.end_ns <= ended_ns for event in events)
            for minibatch in range(len(loader)):
                stages = {event.stage for event in events if event.minibatch == minibatch and event.track == "assemble"}
                assert stages - {"wait for disk"} == {"wait for consumer", "header", "gather", "scatter"}
            assert {event.minibatch for event in events} == set(range(len(loader)))
            assert loader.take_trace() == []


def test_the_assembling_thread_is_in_one_stage_at_a_time_and_takes_minibatches_in_order(packed):
    with Loader(packed) as loader:
        loader.start_tracing()
        list(loader.epoch(0))
        events = on_track(loader.take_trace(), "assemble")
    assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(events))
    assert [event.minibatch for event in events] == sorted(event.minibatch for event in events)
    for _, group in itertools.groupby(events, key=lambda event: event.minibatch):
        stages = list(group)
        assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(stages))  # without a gap
        assert (stages[0].stage, stages[-1].stage) == ("wait for consumer", "scatter")


def test_events_and_counters_are_of_the_same_clock(packed):
    with Loader(packed) as loader:
        loader.start_tracing()
        for epoch in range(EPOCHS):
            list(loader.epoch(epoch))
        events, stats = loader.take_trace(), loader.stats()
    for counter, stages in STAGES_OF_COUNTER.items():
        assert nanoseconds(events, stages) == round(getattr(stats, counter) * 1e9)
    assert nanoseconds(events, {"gather"}) > 0
    assert nanoseconds(events, {"scatter"}) > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_each_chunk_is_read_once_for_the_minibatch_that_it_begins_in(packed, engine):
    index = open_artifact(packed).array(artifacts.index_file("train"))
    with Loader(packed, engine=engine) as loader:
        loader.start_tracing()
        list(itertools.islice(loader.epoch(0), 1))
        list(loader.epoch(1))
        list(loader.epoch(0))  # another seek
        reads = on_track(loader.take_trace(), "disk")
    # These extents are smaller than a chunk, and what is allowed is read at once: an epoch is one chunk from its start.
    assert index["offset"][len(index) // EPOCHS] < 512 << 10
    assert [(event.stage, event.minibatch) for event in reads] == [("read", 0)] * 3


def test_reads_of_shuffled_epochs_belong_to_the_minibatches_of_their_own_order(tmp_path):
    packed = prepare_graph(make_graph(tmp_path / "graph"), tmp_path, epochs=EPOCHS, cpu_cache=0)
    with Loader(packed) as loader:
        in_order = [batch.seeds.tolist() for epoch in range(EPOCHS) for batch in loader.epoch(epoch)]
    with Loader(packed, shuffle_seed=0) as loader:
        loader.start_tracing()
        orders = [[in_order.index(batch.seeds.tolist()) for batch in loader.epoch(e)] for e in range(EPOCHS)]
        reads = on_track(loader.take_trace(), "disk")
    starts = [  # neighbours in the file are read together
        number
        for order in orders
        for number, extent in enumerate(order)
        if number == 0 or order[number - 1] != extent - 1
    ]
    assert [event.minibatch for event in reads] == starts


def test_nothing_is_kept_before_it_is_asked_for(packed):
    with Loader(packed) as loader:
        list(loader.epoch(0))
        assert loader.take_trace() == []
        batches = loader.epoch(1)
        next(batches)
        started_ns = time.perf_counter_ns()
        loader.start_tracing()
        list(batches)
        events = loader.take_trace()
        assert events
        assert all(event.start_ns >= started_ns for event in events)


def test_what_was_traced_outlives_closing(packed):
    loader = Loader(packed)
    loader.start_tracing()
    list(loader.epoch(0))
    loader.close()
    first = loader.take_trace()
    assert {event.minibatch for event in first} == set(range(len(loader)))
    assert all(type(event) is TraceEvent for event in first)
    assert loader.take_trace() == []
