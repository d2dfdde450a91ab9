import json
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from graphs import make_graph, prepare_graph, write_graph

from diskgnn.baselines.in_memory import InMemory
from diskgnn.cli import main
from diskgnn.errors import ConfigError
from diskgnn.loading.tracing import MAX_EVENTS, Timeline, TraceEvent, is_traceable, read_trace, write_trace
from diskgnn.training.train import train


def valid_tracks(path):
    """Checks the file against the trace-event format's rules; {track's name: its complete events}."""
    document = json.loads(path.read_text())
    assert document["displayTimeUnit"] in ("ms", "ns")
    names, tracks = {}, {}
    for record in document["traceEvents"]:
        assert isinstance(record["pid"], int)
        assert isinstance(record["tid"], int)
        if record["ph"] == "M":
            assert record["name"] in ("process_name", "thread_name")
            if record["name"] == "thread_name":
                names[record["tid"]] = record["args"]["name"]
        else:
            assert record["ph"] == "X"
            assert record["ts"] >= 0
            assert record["dur"] >= 0
            assert isinstance(record["name"], str)
            tracks.setdefault(names[record["tid"]], []).append(record)
    assert len(set(names.values())) == len(names)
    starts = [record["ts"] for record in document["traceEvents"] if record["ph"] == "X"]
    assert starts == sorted(starts)
    for events in tracks.values():
        assert_nested(events)
    return tracks


def assert_nested(events):
    """Of two events of one thread, one lies within the other or before it, as the format demands."""
    open_until = []
    for event in events:  # by start
        start, end = event["ts"], event["ts"] + event["dur"]
        while open_until and open_until[-1] <= start + 1e-6:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-6, event
        open_until.append(end)


@pytest.fixture
def graph(tmp_path):
    """Of numbers that a model can learn from: those of `make_graph` hold NaNs."""
    nan = make_graph(tmp_path / "nan", width=4)
    features = np.random.default_rng(0).standard_normal((nan.num_nodes, 4), np.float32)
    splits = {split: np.array(nodes) for split, nodes in nan.splits.items()}
    return write_graph(tmp_path / "graph", nan.indptr, np.array(nan.indices), features, splits)


def test_the_trainers_and_the_sources_stages_are_there(graph, tmp_path):
    source = InMemory(graph, "train", fanouts=[3, 2], batch_size=10, threads=1)
    assert is_traceable(source)
    valid = InMemory(graph, "valid", fanouts=[3, 2], batch_size=10, threads=1)
    train(source, valid_source=valid, epochs=2, hidden=4, trace=tmp_path / "trace.json")
    tracks = valid_tracks(tmp_path / "trace.json")
    (sampling,) = set(tracks) - {"train"}
    drawn = [event for event in tracks[sampling] if event["name"] == "sample"]
    assert [event["args"]["minibatch"] for event in drawn] == [*range(6), *range(6)]
    epoch = [(stage, number) for number in range(6) for stage in ("wait", "forward", "backward", "step")]
    told = [(event["name"], event["args"]["minibatch"]) for event in tracks["train"]]
    assert told == [*epoch, ("wait", 6), ("evaluate valid", -1)] * 2
    for number in range(6):  # a minibatch is drawn before it is trained on
        used = next(e for e in tracks["train"] if (e["name"], e["args"]["minibatch"]) == ("forward", number))
        assert drawn[number]["ts"] + drawn[number]["dur"] <= used["ts"]


def test_a_run_from_disk(graph, tmp_path):
    packed, trace = prepare_graph(graph, tmp_path), tmp_path / "folder" / "trace.json"
    arguments = ["train", str(packed), "--epochs", "1", "--hidden", "4", "--trace", str(trace)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    tracks = valid_tracks(trace)
    stages = [event["name"] for event in tracks["train"] if event["args"]["minibatch"] == 0]
    assert stages == ["wait", "forward", "backward", "step"]
    assert {"disk", "assemble"} < tracks.keys()


def test_it_is_written_when_training_fails_and_refused_before_it_starts(graph, tmp_path):
    source = InMemory(graph, "train", fanouts=[3], batch_size=10)

    def fail(record):
        if record["event"] == "epoch":
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        train(source, epochs=3, hidden=4, callback=fail, trace=tmp_path / "trace.json")
    assert len(valid_tracks(tmp_path / "trace.json")["train"]) == 6 * 4 + 1
    with pytest.raises(ConfigError, match=r"^trace: cannot write"):
        train(source, epochs=1, hidden=4, trace=tmp_path)


def test_there_is_a_limit():
    class Endless:
        taken = 0

        def start_tracing(self):
            pass

        def take_trace(self):
            self.taken += 1
            return [TraceEvent("disk", "read", -1, 0, 1)] * 5

    source = Endless()
    timeline = Timeline(source, max_events=1000)
    for number in range(2000):
        with timeline.stage("forward", number):
            pass
    assert len(timeline.events()) == 1000
    assert source.taken >= 2000 // 256  # it is emptied also when nothing is kept
    assert MAX_EVENTS >= 100_000


def test_reads_in_flight_get_lanes_of_their_own(tmp_path):
    reads = [TraceEvent("disk", "read", number, 10_000 * number, 10_000 * number + 25_000) for number in range(6)]
    inner = [TraceEvent("assemble", "gather", 0, 0, 9_000), TraceEvent("assemble", "copy", 0, 2_000, 3_000)]
    write_trace([*reversed(reads), *inner], tmp_path / "trace.json")
    tracks = valid_tracks(tmp_path / "trace.json")
    lanes = {name: [event["args"]["minibatch"] for event in events] for name, events in tracks.items()}
    assert lanes == {"disk": [0, 3], "disk 2": [1, 4], "disk 3": [2, 5], "assemble": [0, 0]}


def test_round_trip_and_foreign_files(tmp_path):
    events = [
        TraceEvent("train", "wait", 0, 1_000_000_007, 1_000_004_000),
        TraceEvent("disk", "read", -1, 1_000_000_007, 1_000_000_100),
        TraceEvent("train", "forward", 0, 1_000_004_000, 1_000_009_001),
    ]
    write_trace(events, tmp_path / "trace.json")
    again = read_trace(tmp_path / "trace.json")
    shifted = [(e.track, e.stage, e.minibatch, e.start_ns - 1_000_000_007, e.end_ns - 1_000_000_007) for e in events]
    assert sorted((e.track, e.stage, e.minibatch, e.start_ns, e.end_ns) for e in again) == sorted(shifted)
    assert all(one.start_ns <= other.start_ns for one, other in pairwise(again))
    (tmp_path / "other").write_text("[]")
    with pytest.raises(ConfigError, match="no trace"):
        read_trace(tmp_path / "other")


def test_writing_takes_little_memory_beside_the_events(tmp_path):
    """Training under a memory cap is traced, too."""
    events = [TraceEvent("disk", "read", number, 10 * number, 10 * number + 5) for number in range(20_000)]
    tracemalloc.start()
    write_trace(events, tmp_path / "trace.json")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < (tmp_path / "trace.json").stat().st_size < 400 * len(events)
    assert len(read_trace(tmp_path / "trace.json")) == len(events)
