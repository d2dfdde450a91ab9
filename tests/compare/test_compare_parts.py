"""The parts of a comparison: training graph, limits, excerpts of timelines, page cache, repeated measurements."""

import subprocess

import numpy as np
import pytest
from comparisons import cost, write_learnable_graph

from diskgnn.compare import page_cache
from diskgnn.compare.comparison_record import EpochCost
from diskgnn.compare.given_seeds import trained_seeds
from diskgnn.compare.limited_graph import make_training_graph
from diskgnn.compare.machine import Rates
from diskgnn.compare.repeating import FEWEST, MOST, Measured, measure_repeatedly
from diskgnn.compare.step_bodies import TRACED_MINIBATCHES, excerpt
from diskgnn.compare.variants import RANDOM, SEQUENTIAL
from diskgnn.files.disk_space import folder_bytes
from diskgnn.files.scratch_folders import ScratchFolder
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.loading.tracing import TraceEvent
from diskgnn.specs.sampling import SamplingSpec


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "graph"
    write_learnable_graph(path)
    return Graph.open(path)


def test_a_training_graph_refers_to_the_arrays_and_holds_the_seeds(graph, tmp_path):
    first = trained_seeds(graph, SamplingSpec([3], 10), 3)["seeds"]
    small = make_training_graph(graph, tmp_path / "small", "node", first)
    assert sum(file.stat().st_size for file in (tmp_path / "small").iterdir()) < 10_000
    assert list(small.splits) == ["train"]
    assert len(small.splits["train"]) == 30
    assert set(small.splits["train"]) < set(graph.splits["train"])
    np.testing.assert_array_equal(small.features, graph.features)
    np.testing.assert_array_equal(small.indices, graph.indices)
    whole = trained_seeds(graph, SamplingSpec([3], 10), None)
    np.testing.assert_array_equal(whole["seeds"], graph.splits["train"])
    verify_artifact(tmp_path / "small")


def test_bounds_follow_from_what_was_read_and_the_disks_rates():
    rates = Rates(sequential_bytes_per_second=1e9, random_reads_per_second=1e5, memory_bytes_per_second=1e10)
    cost = EpochCost(1, 9.0, 1.0, 10_000, 0, 0, 0, 10_000, 2_000_000_000, 5, 400_000)
    assert rates.bound_seconds(SEQUENTIAL, cost, 512) == 2.0
    assert rates.bound_seconds(RANDOM, cost, 512) == 4.0
    assert rates.bound_seconds("memory", cost, 512) == 10_000 * 512 / 1e10
    by_the_kernel = EpochCost(1, 9.0, 1.0, 10_000, 0, 0, 0, 10_000, 0, 4096 * 1_000_000, None)
    assert rates.bound_seconds(RANDOM, by_the_kernel, 512) == 10.0


def test_an_excerpt_is_a_few_minibatches_of_the_first_epoch_on_all_tracks():
    def epoch(start):
        for number in range(20):
            at = start + number * 100
            yield TraceEvent("train", "wait", number, at, at + 40)
            yield TraceEvent("train", "forward", number, at + 40, at + 100)
            yield TraceEvent("disk", "read", number, at - 500, at - 300)

    events = sorted([*epoch(1000), *epoch(5000)], key=lambda event: event.start_ns)
    found = excerpt(events)
    trained = [event.minibatch for event in found if event.stage == "forward"]
    assert trained == list(range(10, 10 + TRACED_MINIBATCHES))
    assert all(2000 <= event.start_ns < 1000 + 100 * 16 or event.track == "disk" for event in found)
    assert {event.track for event in found} == {"train", "disk"}
    assert excerpt([]) == []
    # The timeline was full after 14 minibatches: their middle.
    full = excerpt([event for event in events if event.start_ns < 1000 + 14 * 100])
    assert [event.minibatch for event in full if event.stage == "forward"] == list(range(7, 7 + TRACED_MINIBATCHES))
    # A short epoch is read before it is trained on: from its start, what goes beyond the end cut off.
    short = excerpt(
        [*(event for event in events if event.start_ns < 1000 + 4 * 100), TraceEvent("p", "q", -1, 0, 9999)]
    )
    assert [event.minibatch for event in short if event.stage == "read"] == list(range(9))
    assert max(event.end_ns for event in short) == 1000 + 4 * 100


def test_the_page_cache_forgets(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(100_000))
    (tmp_path / "empty").touch()
    assert page_cache.cached_bytes(file) == -(-100_000 // 4096) * 4096
    assert page_cache.drop([file, tmp_path / "empty"])
    assert page_cache.cached_bytes(file) == 0
    assert file.read_bytes() == bytes(100_000)
    assert page_cache.cached_bytes(file) > 0


def test_the_disk_space_of_a_folder_is_what_its_files_take(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "another").write_bytes(b"x" * 5000)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    told = subprocess.run(["du", "--block-size=1", "-s", tmp_path], capture_output=True, check=True, text=True).stdout
    folders = sum(path.stat().st_blocks * 512 for path in (tmp_path, tmp_path / "deep", tmp_path / "deep" / "er"))
    assert folder_bytes(tmp_path) == int(told.split()[0]) - folders
    assert folder_bytes(tmp_path / "gone") == 0


def test_scratch_may_lie_in_a_folder_that_is_not_there_yet(tmp_path):
    with ScratchFolder(tmp_path / "new" / "folder", ".scratch-", "scratch") as folder:
        assert folder.parent == tmp_path / "new" / "folder"
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def measured(seconds):
    """`measure_repeatedly` where measurements take these seconds: what it returns, and what it did."""
    log = []

    def measure(number):
        log.append(number)
        return Measured(cost(seconds[number], 0.0), 0.01)

    return measure_repeatedly(measure, lambda: log.append("forget")), log


def test_a_long_epoch_is_measured_once():
    found, log = measured([30.0])
    assert found.cost.repeats_seconds == (30.0,)
    assert log == [0]


def test_a_short_epoch_is_measured_until_a_second_has_gone_by():
    found, log = measured([0.9, 0.2, 0.4, 0.3, 0.1])
    assert log == [0, "forget", 1, "forget", 2, "forget", 3]
    assert found.cost.repeats_seconds == (0.2, 0.4, 0.3)  # the first one warms up
    assert found.cost.seconds == 0.3


def test_an_epoch_of_some_seconds_is_measured_as_often_as_time_allows():
    found, _ = measured([4.0, 3.0, 5.0])
    assert found.cost.repeats_seconds == (4.0, 3.0)
    assert found.cost.seconds == 3.0


def test_there_is_an_end_to_measuring_again():
    found, log = measured([0.001] * 100)
    assert FEWEST < len(found.cost.repeats_seconds) == MOST - 1
    assert log.count("forget") == MOST - 1
