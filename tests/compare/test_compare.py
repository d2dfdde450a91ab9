"""Comparisons that are really run, from the command line to the records."""

import json
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from commands import forked_mib, run
from comparisons import cgroups_of, steps_forked, write_learnable_graph
from graphs import FEATURE_CHECKSUMS, FEATURES, INDICES, INDPTR, LABELS, TRAIN, chunk_checksums

from diskgnn.baselines.in_memory import InMemory
from diskgnn.cli import main
from diskgnn.cli.rendering import to_json
from diskgnn.compare import page_cache
from diskgnn.compare.compare import compare
from diskgnn.compare.comparison_record import disk_bytes, from_json
from diskgnn.compare.settings import ComparisonSettings
from diskgnn.errors import ConfigError
from diskgnn.formats import artifacts
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.graph import Graph
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.memory_cgroup import refusal
from diskgnn.units import format_size
from diskgnn.work.writer import ArtifactWriter

needs_cgroup = pytest.mark.skipif(bool(refusal()), reason="this process may make no memory cgroup")
FANOUTS, BATCH_SIZE, BATCHES = [3, 2], 32, 4
SPEC = SamplingSpec(FANOUTS, BATCH_SIZE, splits=("train",))
CAP = 1 << 30


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "graph"
    write_learnable_graph(path)
    return Graph.open(path)


@dataclass(frozen=True)
class Compared:
    """What a comparison said: --json, the file that --out named, the terminal's words."""

    printed: dict[str, Any]
    written: dict[str, Any]
    told: str
    folder: Path  # the graph's

    @property
    def results(self):
        return from_json(self.printed).results


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """With a graph of its own: what the tests have mapped of a graph would stay cached."""
    folder, out = tmp_path_factory.mktemp("compared"), tmp_path_factory.mktemp("out") / "folder" / "results.json"
    write_learnable_graph(folder / "graph")
    arguments = [folder / "graph", "--memory", CAP, "--fanouts", "3,2", "--batch-size", BATCH_SIZE,
                 "--loaders", "in-memory,diskgnn:one,mmap:parallel", "--epochs", 2, "--max-batches", BATCHES,
                 "--seeds", 2, "--hidden", 8, "--size", "4MiB", "--sweep", "cpu-cache=10%,40KiB", "--out", out,
                 "--json"]  # fmt: skip
    with steps_forked():
        done = run("compare", *arguments)
    return Compared(json.loads(done.stdout), json.loads(out.read_text()), done.stderr, folder)


@pytest.mark.slow
class TestCompared:
    def test_json_is_the_same_everywhere_and_comes_back_as_records(self, compared):
        assert compared.printed == compared.written
        comparison = from_json(compared.printed)
        assert from_json(json.loads(json.dumps(compared.printed))) == comparison
        assert to_json(comparison) == compared.printed

    def test_each_loader_and_seed_is_a_row(self, compared):
        assert [(row.loader, row.variant, row.seed, row.status) for row in compared.results] == [
            ("diskgnn", "one", 0, "ok"), ("diskgnn", "one", 1, "ok"),
            ("mmap", "parallel", 0, "ok"), ("mmap", "parallel", 1, "ok"),
            ("in-memory", "", 0, "ok"), ("in-memory", "", 1, "ok"),  # last: it may need to run without the cap
        ]  # fmt: skip
        assert compared.told.count("s an epoch") == 6

    def test_the_same_seed_learns_the_same(self, compared):
        first_losses = {}
        for row in compared.results:  # the first epoch's: the second is sampled anew, or is not
            first_losses.setdefault(row.seed, []).append(row.epochs[0].loss)
        assert set(first_losses) == {0, 1}
        for ours, *theirs in first_losses.values():
            assert theirs == pytest.approx([ours] * 2, rel=1e-4)

    def test_all_get_the_same_minibatches(self, compared, graph):
        train = np.array(graph.splits["train"])
        planned = SamplingPlan(graph, SPEC).minibatches("train", 0)
        kept = np.concatenate([minibatch.seeds for minibatch in planned[:BATCHES]])
        assert len(kept) == BATCHES * BATCH_SIZE < len(train)
        for row in compared.results:
            assert row.training.minibatches == BATCHES
            if row.seed == 0:
                assert row.loading.requested_rows == requested_rows(graph, kept)

    def test_rows_add_up_and_nobody_beats_belady(self, compared):
        comparison = from_json(compared.printed)
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
        for row in compared.results:
            seconds = [point.seconds for point in row.epochs]
            assert seconds[0] > row.prepare_seconds + row.open_seconds
            expected = row.prepare_seconds + row.open_seconds + 2 * row.training.seconds
            assert seconds == sorted(seconds)
            assert seconds[-1] == pytest.approx(expected)
            assert all(0 <= point.valid_score <= 1 and 0 <= point.test_score <= 1 for point in row.epochs)
            assert row.epochs[0].scores["test_accuracy"] == row.epochs[0].test_score

    def test_there_is_a_timeline_of_a_few_minibatches(self, compared):
        for row in compared.results:
            if row.seed:
                assert row.trace == ()
                continue
            stages = {(event.stage, event.minibatch) for event in row.trace if event.track == "train"}
            assert {("forward", number) for number in range(BATCHES)} <= stages
            assert len(row.trace) > 4 * BATCHES  # the source's threads, too

    @needs_cgroup
    def test_memory_was_capped(self, compared):
        comparison = from_json(compared.printed)
        assert comparison.memory_capped
        for row in comparison.results:
            assert 10 << 20 < row.peak_cgroup_bytes <= CAP
            assert row.peak_process_bytes > 10 << 20

    def test_nothing_is_left(self, compared):
        assert [path.name for path in compared.folder.iterdir()] == ["graph"]
        assert cgroups_of(os.getpid()) == []

    def test_the_page_cache_is_dropped_before_every_step(self, compared):
        if not page_cache.drop((compared.folder / "graph").iterdir()):
            pytest.skip("this file system keeps what it is told to forget")
        assert from_json(compared.printed).cache_dropped

    def test_the_machine_and_the_graph_are_described(self, compared):
        comparison = from_json(compared.printed)
        assert comparison.graph["num_nodes"] == 3000
        assert comparison.graph["num_train"] == BATCHES * BATCH_SIZE
        assert comparison.machine["cores"] > 0
        assert comparison.settings["cpu_cache_bytes"] == 300 * 160
        assert min(comparison.sequential_bytes_per_second, comparison.random_reads_per_second) > 0
        assert comparison.warnings == tuple(dict.fromkeys(comparison.warnings))
        assert shlex.split(comparison.command)[0] == "diskgnn"


def requested_rows(graph, train):
    """Rows of epoch 0 over these training nodes: the neighbourhoods that the same seed draws."""
    nodes = replace(graph.nodes["node"], splits={"train": train})
    with InMemory(replace(graph, nodes={"node": nodes}), fanouts=FANOUTS, batch_size=BATCH_SIZE) as source:
        return sum(len(batch.input_nodes) for batch in source.epoch(0))


@pytest.mark.usefixtures("forked_servers")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loaders": "none"}, "loaders: found 'none'"),
        ({"max_batches": 0}, "max_batches: expected at least 1"),
        ({"num_seeds": 0}, "num_seeds: expected at least 1"),
        ({"memory": 0}, "memory: expected the cap"),
        ({"device": "gpu"}, "device: expected cpu, cuda"),
        ({"memory": "100KiB", "cpu_cache": "90%"}, "cpu_cache: 90% is .*, more than `memory`"),
        ({"sweep": ["120%"]}, "between 0% and 100%"),
        ({"scratch": "/proc"}, "scratch: cannot write"),
        ({"memory": 8 << 20, "rate_file_bytes": 1 << 20}, "memory: 8.0 MiB is not even enough .* try 1GiB or more"),
    ],
)
def test_settings_that_cannot_work(graph, changes, message):
    with pytest.raises(ConfigError, match=message):
        compare(graph.manifest.path, ComparisonSettings(**{"memory": "1GiB", "sampling": SPEC, **changes}))


@pytest.mark.parametrize(
    "wrong",
    [["--sweep", "cpu-cache"], ["--sweep", "static-cache=5%"], ["--sweep", "cpu-cache=x"], ["--epochs", "0"],
     ["--cpu-cache", "0.1"], ["--loaders", "none"], ["--hidden", "0"], ["--timeout", "soon"]],
)  # fmt: skip
def test_what_cannot_work_is_told_in_flags_and_as_json(graph, wrong):
    given = ["compare", str(graph.manifest.path), "--memory", "1GiB", "--fanouts", "3", *wrong, "--json"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2
    told = json.loads(result.stdout)["error"]
    assert told["exit_code"] == 2
    assert wrong[0] in told["message"]


def test_a_file_that_cannot_be_written_is_refused_at_once(graph):
    path = str(graph.manifest.path)
    for option in ("--out", "--report"):
        result = CliRunner().invoke(main, ["compare", path, "--memory", "1GiB", "--fanouts", "3", option, path])
        assert result.exit_code == 2
        assert f"{option}: cannot write" in result.stderr


def test_results_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="compare --out"):
        from_json({"results": []})


@needs_cgroup
@pytest.mark.slow
@pytest.mark.usefixtures("forked_servers")
def test_what_does_not_fit_the_cap_is_measured_without_it_where_it_fits_the_machine(tmp_path):
    """Features that take no room on disk, and a little more memory than the cap."""
    cap, width = (forked_mib() + 150) << 20, 1000
    num_nodes = cap // (4 * width) + 2000
    config = GraphConfig.of_one_type(num_nodes, num_nodes, 2, RowFormat("float32", width)).to_json({})
    with ArtifactWriter(tmp_path / "graph", artifacts.GRAPH, config=config) as writer:
        np.lib.format.open_memmap(writer.path(FEATURES), "w+", np.float32, (num_nodes, width)).flush()
        writer.add(FEATURES)
        checksums = chunk_checksums(writer.path(FEATURES))
        writer.save_array(FEATURE_CHECKSUMS, checksums)
        writer.save_array(INDPTR, np.arange(num_nodes + 1))
        writer.save_array(INDICES, np.arange(num_nodes, dtype=np.int32))
        writer.save_array(LABELS, np.arange(num_nodes) % 2)
        writer.save_array(TRAIN, np.arange(64))
        writer.publish()
    comparison = compare(tmp_path / "graph", ComparisonSettings(
        cap, SamplingSpec([2], 32), "in-memory", model=ModelSpec("sage", hidden=4), rate_file_bytes=1 << 20,
    ))  # fmt: skip
    capped, uncapped = comparison.results
    assert (capped.status, capped.capped, capped.loading) == ("out of memory", True, None)
    assert f"but this process may use no more than {format_size(cap)}" in capped.message  # told by arithmetic, at once
    assert (uncapped.status, uncapped.capped, uncapped.name) == ("ok", False, "in-memory, without the cap")
    assert uncapped.training.requested_rows > 0
    assert uncapped.peak_process_bytes > num_nodes * width * 4
