import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from diskgnn.baselines.in_memory import InMemory
from diskgnn.cli import main
from diskgnn.compare import page_cache, runner
from diskgnn.compare.loaders import LOADERS, RANDOM, SEQUENTIAL, Variant, select
from diskgnn.compare.processes import folder_bytes, run_in_process
from diskgnn.compare.results import EpochCost, LoaderResult, disk_bytes, from_json
from diskgnn.compare.runner import Rates, compare
from diskgnn.compare.scratch import scratch_folder
from diskgnn.compare.steps import TRACED_MINIBATCHES, excerpt
from diskgnn.compare.training_graph import make_training_graph
from diskgnn.errors import ConfigError
from diskgnn.graph.generation import generate
from diskgnn.graph.graph import Graph
from diskgnn.sampling.sample import epoch_seeds
from diskgnn.storage import artifacts
from diskgnn.storage.manifest import verify_artifact
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.memory_cgroup import refusal
from diskgnn.tracing import TraceEvent

needs_cgroup = pytest.mark.skipif(bool(refusal()), reason="this process may make no memory cgroup")
FANOUTS, BATCH_SIZE, BATCHES = [3, 2], 32, 4
CAP = 1 << 30


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "graph"
    generate(path, num_nodes=3000, avg_degree=8.0, homophily=0.7, num_classes=4, num_features=40,
             train_fraction=0.2, valid_fraction=0.1,
             test_fraction=0.1)  # fmt: skip
    return Graph.open(path)


def cgroups_of(pid):
    return [path for path in Path("/sys/fs/cgroup").rglob(f"diskgnn-{pid}-*") if path.is_dir()]


@pytest.fixture(scope="module")
def compared(graph, tmp_path_factory):
    """(what --json printed, the file that --out named, the terminal's words)."""
    out = tmp_path_factory.mktemp("out") / "folder" / "results.json"
    arguments = ["compare", graph.manifest.path, "--memory", CAP, "--fanouts", "3,2", "--batch-size", BATCH_SIZE,
                 "--loaders", "in-memory,diskgnn:one", "--epochs", 2, "--max-batches", BATCHES, "--seeds", 2,
                 "--hidden", 8, "--size", "4MiB", "--sweep", "cpu-cache=10%,40KiB", "--out", out, "--json"]  # fmt: skip
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), json.loads(out.read_text()), result.stderr


@pytest.mark.slow
class TestCompared:
    def test_json_is_the_same_everywhere_and_comes_back_as_records(self, compared):
        printed, written, _ = compared
        assert printed == written
        comparison = from_json(printed)
        assert from_json(json.loads(json.dumps(printed))) == comparison
        from diskgnn.cli.rendering import to_json

        assert to_json(comparison) == printed

    def test_each_loader_and_seed_is_a_row(self, compared):
        comparison = from_json(compared[0])
        assert [(row.loader, row.variant, row.seed, row.status) for row in comparison.results] == [
            ("diskgnn", "one", 0, "ok"), ("diskgnn", "one", 1, "ok"),
            ("in-memory", "", 0, "ok"), ("in-memory", "", 1, "ok"),  # last: it may need to run without the cap
        ]  # fmt: skip
        assert compared[2].count("s an epoch") == 4

    def test_the_same_seed_learns_the_same(self, compared):
        first_losses = {}
        for row in from_json(compared[0]).results:  # the first epoch's: the second is sampled anew, or is not
            first_losses.setdefault(row.seed, []).append(row.epochs[0].loss)
        assert set(first_losses) == {0, 1}
        for ours, theirs in first_losses.values():
            assert ours == pytest.approx(theirs, rel=1e-4)

    def test_all_get_the_same_minibatches(self, compared, graph):
        train = np.array(graph.splits["train"])
        kept = np.concatenate(epoch_seeds(train, split="train", epoch=0, seed=0, batch_size=BATCH_SIZE)[:BATCHES])
        assert len(kept) == BATCHES * BATCH_SIZE < len(train)
        for row in from_json(compared[0]).results:
            assert row.training.minibatches == BATCHES
            if row.seed == 0:
                assert row.loading.requested_rows == requested_rows(graph, kept)

    def test_rows_add_up_and_nobody_beats_belady(self, compared):
        comparison = from_json(compared[0])
        for row in comparison.results:
            for cost in filter(None, (row.loading, row.training)):
                served = cost.device_rows + cost.pinned_rows + cost.cpu_rows + cost.disk_rows
                assert served == pytest.approx(cost.requested_rows, abs=2)  # means are rounded
                assert 0 <= cost.wait_seconds <= cost.seconds * 1.01
        ours = next(row for row in comparison.results if row.loader == "diskgnn")
        assert ours.row_bytes == 160
        assert ours.loading.disk_rows + ours.loading.filled_rows >= ours.belady_rows > 0
        counted = next(point for point in comparison.sweep if (point.name, point.cache) == ("diskgnn", "10%"))
        assert ours.loading.disk_rows + ours.loading.filled_rows == counted.rows_read
        assert disk_bytes(ours.loading) >= counted.rows_read * ours.row_bytes
        assert ours.belady_rows == counted.belady_rows
        assert ours.prepare_seconds > 0
        assert ours.prepared_bytes > ours.loading.disk_rows * ours.row_bytes
        assert ours.peak_disk_bytes >= ours.prepared_bytes
        assert {point.cache_rows for point in comparison.sweep} == {300, 40 * 1024 // 160}

    def test_wall_clock_counts_preparing_and_accuracy_is_outside(self, compared):
        for row in from_json(compared[0]).results:
            seconds = [point.seconds for point in row.epochs]
            assert seconds[0] > row.prepare_seconds + row.open_seconds
            expected = row.prepare_seconds + row.open_seconds + 2 * row.training.seconds
            assert seconds == sorted(seconds)
            assert seconds[-1] == pytest.approx(expected)
            assert all(0 <= point.valid_accuracy <= 1 and 0 <= point.test_accuracy <= 1 for point in row.epochs)

    def test_there_is_a_timeline_of_a_few_minibatches(self, compared):
        for row in from_json(compared[0]).results:
            if row.seed:
                assert row.trace == ()
                continue
            stages = {(event.stage, event.minibatch) for event in row.trace if event.track == "train"}
            assert {("forward", number) for number in range(BATCHES)} <= stages
            assert len(row.trace) > 4 * BATCHES  # the source's threads, too

    @needs_cgroup
    def test_memory_was_capped(self, compared):
        comparison = from_json(compared[0])
        assert comparison.memory_capped
        for row in comparison.results:
            assert 10 << 20 < row.peak_cgroup_bytes <= CAP
            assert row.peak_process_bytes > 10 << 20

    def test_nothing_is_left(self, compared, graph):
        assert [path.name for path in graph.manifest.path.parent.iterdir()] == ["graph"]
        assert cgroups_of(os.getpid()) == []

    def test_the_machine_and_the_graph_are_described(self, compared):
        comparison = from_json(compared[0])
        assert comparison.graph["num_nodes"] == 3000
        assert comparison.graph["num_train"] == BATCHES * BATCH_SIZE
        assert comparison.machine["cores"] > 0
        assert comparison.settings["cpu_cache_bytes"] == 300 * 160
        assert min(comparison.sequential_bytes_per_second, comparison.random_reads_per_second) > 0
        assert comparison.warnings == tuple(dict.fromkeys(comparison.warnings))
        assert shlex.split(comparison.command)[0] == "diskgnn"


def requested_rows(graph, train):
    """Rows of epoch 0 over these training nodes: the neighbourhoods that the same seed draws."""
    with InMemory(replace(graph, splits={"train": train}), fanouts=FANOUTS, batch_size=BATCH_SIZE) as source:
        return sum(len(batch.input_nodes) for batch in source.epoch(0))


def test_a_training_graph_refers_to_the_arrays_and_holds_the_seeds(graph, tmp_path):
    small = make_training_graph(graph, tmp_path / "small", batch_size=10, max_batches=3)
    assert sum(file.stat().st_size for file in (tmp_path / "small").iterdir()) < 10_000
    assert list(small.splits) == ["train"]
    assert len(small.splits["train"]) == 30
    assert set(small.splits["train"]) < set(graph.splits["train"])
    np.testing.assert_array_equal(small.features, graph.features)
    np.testing.assert_array_equal(small.indices, graph.indices)
    whole = make_training_graph(graph, tmp_path / "whole", batch_size=10, max_batches=None)
    np.testing.assert_array_equal(whole.splits["train"], graph.splits["train"])
    verify_artifact(tmp_path / "small")


def test_names_of_loaders():
    assert [variant.loader for variant in select("all")] == [
        loader for loader, variants in LOADERS.items() for _ in variants
    ]
    assert [(variant.loader, variant.variant) for variant in select("diskgnn:one, in-memory")] == [
        ("diskgnn", "one"), ("in-memory", ""),
    ]  # fmt: skip
    assert select("diskgnn,diskgnn:one") == list(LOADERS["diskgnn"])
    assert all(variant.loader == loader for loader, variants in LOADERS.items() for variant in variants)
    names = [variant.name for variant in select("all")]
    assert len(set(names)) == len(names)
    assert [variant.variant for variant in select("mmap:random,diskgnn", 1)] == ["random", "one", "fresh"]
    assert [variant.variant for variant in select(["diskgnn:several"], 1)] == ["several"]
    for wrong in ("disk-gnn", "diskgnn:two", "", "mmap:"):
        with pytest.raises(ConfigError, match="diskgnn:one"):
            select(wrong)


def test_arguments_that_cannot_work(graph):
    path = graph.manifest.path
    options = {"memory": "1GiB", "fanouts": [3]}
    for wrong, message in (
        ({"loaders": "none"}, "--loaders"),
        ({"epochs": 0}, "epochs"),
        ({"max_batches": 0}, "--max-batches"),
        ({"memory": 0}, "--memory"),
        ({"memory": "100KiB", "cpu_cache": "90%"}, "more than --memory"),
        ({"sweep": ["120%"]}, "between 0% and 100%"),
        ({"scratch": "/proc"}, "--scratch"),
        ({"device": "gpu"}, "device: expected cpu, cuda"),
        ({"memory": 70 << 20, "rate_file_bytes": 1 << 20}, "try 1GiB or more"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare(path, **{**options, **wrong})
    for arguments in (["--sweep", "cpu-cache"], ["--sweep", "static-cache=5%"], ["--sweep", "cpu-cache=x"]):
        given = ["compare", str(path), "--memory", "1GiB", "--fanouts", "3", *arguments]
        assert CliRunner().invoke(main, given).exit_code == 2
    result = CliRunner().invoke(main, ["compare", str(path), "--memory", "1GiB", "--fanouts", "3", "--out", str(path)])
    assert result.exit_code == 2
    assert "--out" in result.stderr
    with pytest.raises(ConfigError, match="compare --out"):
        from_json({"results": []})


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


@pytest.mark.slow
def test_the_page_cache_is_dropped_before_every_step(tmp_path):
    """In a process of its own: what the tests have mapped of a graph would stay cached."""
    path = tmp_path / "graph"
    generate(path, num_nodes=3000, avg_degree=8.0, homophily=0.7, num_classes=4, num_features=40, train_fraction=0.2,
             valid_fraction=0.1, test_fraction=0.1)  # fmt: skip
    if not page_cache.drop(path.iterdir()):
        pytest.skip("this file system keeps what it is told to forget")
    arguments = [path, "--memory", CAP, "--fanouts", "3,2", "--batch-size", BATCH_SIZE, "--loaders",
                 "mmap:parallel,diskgnn:one", "--max-batches", 2, "--size", "4MiB",
                 "--out", tmp_path / "out"]  # fmt: skip
    command = [sys.executable, "-m", "diskgnn", "compare", *(str(argument) for argument in arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    comparison = from_json(json.loads((tmp_path / "out").read_text()))
    assert [row.status for row in comparison.results] == ["ok", "ok"]
    assert comparison.cache_dropped


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


def setting(graph, folder):
    return runner.Setting(str(graph.manifest.path), str(folder), (3, 2), BATCH_SIZE, 0, 1, 1 << 16, CAP)


def a_run(graph, folder, timeout=120.0):
    model = {"name": "sage", "hidden": 8, "heads": 1, "dropout": 0.0, "lr": 0.01}
    row_bytes = graph.feature_file.row_bytes
    return runner._Run(setting(graph, folder), model, graph.manifest, row_bytes, folder, False, timeout)


def test_a_loader_that_raises_is_a_row(graph, tmp_path):
    unknown = Variant("no-such-loader", "x", "broken", lambda _: None, RANDOM)
    (row,) = a_run(graph, tmp_path).measure(unknown, 3, lambda _: None)
    assert (row.status, row.name, row.loading) == ("failed", "broken", None)
    assert "ConfigError" not in row.message  # our own errors need no name
    assert "no-such-loader" in row.message


def test_a_loader_whose_library_is_missing_is_a_row(graph, tmp_path, monkeypatch):
    """PYTHONPATH hides torch behind a module that cannot be imported."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "hidden"), *sys.path]))
    (row,) = a_run(graph, tmp_path).measure(select("in-memory")[0], 3, lambda _: None)
    assert row == LoaderResult("in-memory", "in-memory", "", "unavailable", "ImportError: no torch here", row_bytes=160,
                               peak_process_bytes=row.peak_process_bytes)  # fmt: skip


def test_a_loader_that_takes_too_long_is_a_row(graph, tmp_path):
    (row,) = a_run(graph, tmp_path, timeout=0.05).measure(select("in-memory")[0], 1, lambda _: None)
    assert row.status == "failed"
    assert "--timeout" in row.message
    assert psutil.Process().children() == []


@needs_cgroup
def test_a_step_that_is_killed_for_memory_says_so(graph, tmp_path):
    outcome = run_in_process(
        "evaluate",
        {},
        tmp_path,
        limit_bytes=8 << 20,
        timeout_seconds=120.0,  # not enough to import torch
    )
    assert outcome.status == "out of memory"
    assert "8.0 MiB" in outcome.message
    assert cgroups_of(os.getpid()) == []


@needs_cgroup
@pytest.mark.slow
def test_what_does_not_fit_the_cap_is_measured_without_it_where_it_fits_the_machine(tmp_path):
    """320 MB of features that take no room on disk, under a cap of 300 MiB."""
    num_nodes, width = 80_000, 1000
    with ArtifactWriter(tmp_path / "graph", artifacts.GRAPH, config={
        "num_nodes": num_nodes, "num_edges": num_nodes, "num_classes": 2, "feature_width": width,
        "feature_dtype": "float32",
    }) as writer:  # fmt: skip
        np.lib.format.open_memmap(writer.path(artifacts.FEATURES), "w+", np.float32, (num_nodes, width)).flush()
        writer.add(artifacts.FEATURES)
        writer.save_array(artifacts.INDPTR, np.arange(num_nodes + 1))
        writer.save_array(artifacts.INDICES, np.arange(num_nodes, dtype=np.int32))
        writer.save_array(artifacts.LABELS, np.arange(num_nodes) % 2)
        writer.save_array(artifacts.split_file("train"), np.arange(64))
        writer.publish()
    comparison = compare(tmp_path / "graph", memory=300 << 20, loaders="in-memory", fanouts=[2], batch_size=32,
                         hidden=4, rate_file_bytes=1 << 20)  # fmt: skip
    capped, uncapped = comparison.results
    assert (capped.status, capped.capped, capped.loading) == ("out of memory", True, None)
    assert "but this process may use no more than 300.0 MiB" in capped.message  # told by arithmetic, at once
    assert (uncapped.status, uncapped.capped, uncapped.name) == ("ok", False, "in-memory, without the cap")
    assert uncapped.training.requested_rows > 0
    assert uncapped.peak_process_bytes > num_nodes * width * 4


def wait_for_a_child(process):
    """The measuring process of a comparison that runs; None when it has ended."""
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):  # others come and go
            for child in psutil.Process(process.pid).children(recursive=True):
                if "diskgnn.compare.measure" in child.cmdline():
                    return child
        time.sleep(0.02)
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_it_is_stopped_no_process_stays(graph, tmp_path, number, code):
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "diskgnn", "compare", str(graph.manifest.path), "--memory", "1GiB", "--fanouts",
               "3,2", "--size", "1MiB", "--scratch", str(tmp_path / "scratch")]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        child = wait_for_a_child(process)
        assert child is not None
        process.send_signal(number)
        assert process.wait(30) == code
        psutil.wait_procs([child], timeout=30)
        assert not child.is_running()
    finally:
        process.kill()
        process.wait()
    if number == signal.SIGKILL:  # nobody can clean up but the next comparison
        (left,) = (tmp_path / "scratch").iterdir()
        with scratch_folder(tmp_path / "scratch") as mine, scratch_folder(tmp_path / "scratch") as another:
            assert mine.is_dir()  # what is in use stays
            assert another.is_dir()
            assert not left.exists()
        refusal()  # makes a cgroup, which removes those of the dead
    assert list((tmp_path / "scratch").iterdir()) == []
    assert cgroups_of(process.pid) == []
