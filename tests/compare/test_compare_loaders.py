"""What `diskgnn compare` opens: each baseline with what its design is given, under one setting."""

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
from comparisons import write_learnable_graph
from graphs import assert_rows_are_features, make_graph

from diskgnn.baselines.mmap import TOUCHING_THREADS
from diskgnn.baselines.partitions import Partitions
from diskgnn.compare import repeating, step_bodies
from diskgnn.compare.loader_setup import MAPPED_SAMPLING_THREADS, LoaderInputs
from diskgnn.compare.variants import LOADERS, find, select
from diskgnn.errors import ConfigError, UnavailableError
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.graph.graph import Graph
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.memory import available_cores

CAP = 1 << 30


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("loaders") / "graph", num_nodes=300)


@pytest.fixture
def measured_briefly(monkeypatch):
    """Epochs of a few milliseconds are measured a few times, and not for a second."""
    monkeypatch.setattr(repeating, "ENOUGH_SECONDS", 0.0)


def inputs(graph, folder, *, fanouts=(3, 2), epochs=1, **changes):
    sampling = SamplingSpec(fanouts, 8, epochs, target=NodeTarget("node"))
    fields = {"graph": str(graph.manifest.path), "folder": str(folder), "sampling": sampling,
              "cache_bytes": 30 * graph.feature_file.row_bytes, "memory_bytes": CAP}  # fmt: skip
    return LoaderInputs(**fields | changes)


def test_names_of_loaders():
    assert [variant.loader for variant in select("all")] == [
        loader for loader, variants in LOADERS.items() for _ in variants
    ]
    assert [(variant.loader, variant.variant) for variant in select("diskgnn:one, in-memory")] == [
        ("diskgnn", "one"), ("in-memory", ""),
    ]  # fmt: skip
    assert [each.name for each in select("usual")] == [
        "in-memory", "mmap, touched in parallel", "cached reads, SIEVE", "diskgnn, one epoch reused",
        "diskgnn, every epoch fresh",
    ]  # fmt: skip
    assert select("ginex,usual,diskgnn:one") == [*select("ginex"), *select("usual")]
    assert select("diskgnn,diskgnn:one") == list(LOADERS["diskgnn"])
    assert all(variant.loader == loader for loader, variants in LOADERS.items() for variant in variants)
    names = [variant.name for variant in select("all")]
    assert len(set(names)) == len(names)
    assert [variant.variant for variant in select("mmap:random,diskgnn", 1)] == ["random", "one", "fresh"]
    assert [variant.variant for variant in select(["diskgnn:several"], 1)] == ["several"]
    for wrong in ("disk-gnn", "diskgnn:two", "", "mmap:"):
        with pytest.raises(ConfigError, match="diskgnn:one"):
            select(wrong)


def test_variants_of_diskgnn_draw_as_they_are_told(graph, tmp_path):
    names = "diskgnn:one,diskgnn:one:coordinated,diskgnn:several:coordinated:4:8"
    plain, coordinated, grouped = select(names)
    assert [each.name for each in (coordinated, grouped)] == [
        "diskgnn, one epoch reused, coordinated draws",
        "diskgnn, several epochs, coordinated draws, period 4, groups of 8",
    ]
    assert find("diskgnn", grouped.variant).name == grouped.name
    assert not coordinated.cached  # Belady's bound is one for other minibatches
    for each, draws, period, groups, epochs in (
        (plain, "independent", 1, 1, 1), (coordinated, "coordinated", 1, 1, 1), (grouped, "coordinated", 4, 8, 2),
    ):  # fmt: skip
        given = inputs(graph, tmp_path / each.name, epochs=2)
        each.prepare(given)
        config = open_artifact(given.packed).config["samples"]
        assert (config["draws"], config["draw_period"], config["group_seeds"]) == (draws, period, groups)
        with each.open(given) as source:
            assert source.num_epochs == epochs
            for batch in source.epoch(0):
                assert len(batch.seeds) <= 8
    for wrong in (
        "one:",
        "one:sometimes",
        "one:coordinated:x",
        "one:independent:4",
        "one:coordinated:4:8:1",
        "fresh:x",
    ):
        with pytest.raises(ConfigError):
            find("diskgnn", wrong)
    with pytest.raises(ConfigError, match="loaders: found"):
        find("mmap", "normal:coordinated")


def test_each_loader_is_explained_by_itself():
    for variant in select("all"):
        assert variant.about.endswith(".")
        assert "same" not in variant.about.lower()  # as what? It may be the only one of its loader


def test_mmap_is_touched_by_one_thread_or_as_many_as_pyg_plus_has(graph, tmp_path):
    for variant, threads in (("normal", 1), ("random", 1), ("parallel", 128)):
        assert find("mmap", variant).open.keywords["touching_threads"] == threads
        with find("mmap", variant).open(inputs(graph, tmp_path)) as source:
            for batch in source.epoch(0):
                assert_rows_are_features(batch, graph)
    assert TOUCHING_THREADS == 128


@pytest.mark.parametrize(("loader", "variant"), [("mmap", "random"), ("cached-reads", "sieve"), ("ginex", "")])
def test_who_waits_for_pages_of_the_topology_does_so_in_many_threads(graph, tmp_path, loader, variant):
    for memory_bytes, many in ((4 * graph.topology_bytes, False), (4 * graph.topology_bytes - 4, True)):
        given = inputs(graph, tmp_path, memory_bytes=memory_bytes)
        assert given.sampling_threads(graph) == (max(available_cores(), MAPPED_SAMPLING_THREADS) if many else None)
        assert given.online["threads"] == given.sampling_threads(graph)
        assert given.online["topology"] == ("mmap" if many else "memory")
        with find(loader, variant).open(given) as source:
            assert sum(len(batch.seeds) for batch in source.epoch(0)) == len(graph.splits["train"])


def test_segments_have_three_times_the_features_bytes_for_rows(graph, tmp_path):
    chosen, given = find("static-packed", "segmented"), inputs(graph, tmp_path, fanouts=(10, 10))
    chosen.prepare(given)
    row_bytes = graph.feature_file.row_bytes
    packed_rows = np.load(given.packed / "index.npy")["num_rows"].sum()
    cached_rows = (given.packed / "caches.bin").stat().st_size // row_bytes
    assert (given.packed / "static.bin").stat().st_size == given.cache_bytes
    # One more row in the only segment's disk cache saves no more copies than there are minibatches.
    with chosen.open(given) as source:
        assert 3 * graph.num_nodes - source.num_batches < packed_rows + cached_rows <= 3 * graph.num_nodes
        assert sum(len(batch.seeds) for batch in source.epoch(0)) == len(graph.splits["train"])


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
@pytest.mark.filterwarnings("ignore:Using 'SeededNeighborSampler' without a 'pyg-lib' installation")
@pytest.mark.parametrize(
    ("loader", "variant", "workers"),
    [("pyg", "", available_cores()), ("dgl", "threads", 0), ("dgl", "workers", available_cores())],
)
def test_libraries_load_in_as_many_processes_as_there_are_cores(graph, tmp_path, loader, variant, workers):
    try:
        source = find(loader, variant).open(inputs(graph, tmp_path))
    except UnavailableError as error:
        pytest.skip(str(error))
    processes = []
    with source:
        for batch in source.epoch(0):
            processes.append(len(multiprocessing.active_children()))
            assert_rows_are_features(batch, graph)
    assert len(processes) >= 3 * workers  # so that none has loaded all of its minibatches before the first comes
    assert processes[0] == max(processes) == workers  # DGL's end as soon as they have: there are fewer towards the end


@pytest.mark.usefixtures("measured_briefly")
def test_fresh_epochs_count_what_preparing_reads_and_prepare_no_other_beside(graph, tmp_path):
    one = inputs(graph, tmp_path, epochs=1)
    packed = []
    with faults.armed("fresh_epochs.pack", lambda: packed.append(1)), find("diskgnn", "fresh").open(one) as source:
        list(source.epoch(0))
        stats = source.stats()
    assert stats.prepare_read_bytes > stats.read_bytes > 0
    assert stats.prepared_batches == source.num_batches
    windows = len(packed)
    with faults.armed("fresh_epochs.pack", lambda: packed.append(1)):
        loaded = step_bodies.load(inputs(graph, tmp_path, epochs=3), "diskgnn", "fresh")
    epochs, rest = divmod(len(packed) - windows, windows)
    counted = len(loaded.repeats_seconds)
    assert (epochs, rest) == (counted + (epochs > 3), 0)  # the first of many only warms up
    assert loaded.read_bytes == stats.read_bytes + stats.prepare_read_bytes


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_partition_buffer_is_comets_whatever_the_memory(tmp_path, dtype):
    """MariusGNN's rule: 2p / c logical partitions of several physical ones, of which two fit (with a third, read)."""
    graph = make_graph(tmp_path / "graph", num_nodes=20000, width=128, dtype=dtype)
    features_bytes = graph.num_nodes * graph.feature_file.row_bytes
    logical, chosen = [], find("partition-buffer", "comet")
    for number, percent in enumerate((9, 10, 14, 20, 27, 40, 55, 70, 95)):
        given = inputs(graph, tmp_path / str(number), cache_bytes=features_bytes * percent // 100)
        chosen.prepare(given)
        with chosen.open(given) as source:
            p, c = source.buffer.num_partitions, source.buffer.resident
            memory_bytes = given.cache_bytes + graph.topology_bytes
            next(source.epoch(0))
            group = source.buffer.num_slots - c  # what is read ahead
            assert 1 < group == c // 2 == 4
            assert p % group == 0
            logical.append(p // group)
            assert logical[-1] * c == 2 * p
            largest = np.diff(Partitions.open(given.packed, graph).starts).max()
            rows_bytes = source.buffer.num_slots * largest * graph.feature_file.row_bytes
            # The others have ids, offsets and edges; another logical partition might not leave enough.
            assert (0.9 if percent < 40 else 0.7) * memory_bytes < rows_bytes * 1.25 < 1.25 * memory_bytes
    assert logical == sorted(logical, reverse=True)
    assert len(set(logical)) == len(logical)
    everything = replace(given, folder=str(tmp_path / "all"), cache_bytes=2 * features_bytes)
    chosen.prepare(everything)
    with chosen.open(everything) as source:
        assert source.buffer.resident == source.buffer.num_partitions


def test_a_partition_buffer_swaps_all_partitions_or_keeps_those_of_the_training_nodes(tmp_path):
    graph = make_graph(tmp_path / "graph", num_nodes=3000, width=256)
    loaded = {}
    for variant in ("comet", "cached"):
        chosen, given = find("partition-buffer", variant), inputs(graph, tmp_path / variant)
        given = replace(given, cache_bytes=1000 * graph.feature_file.row_bytes)
        chosen.prepare(given)
        with chosen.open(given) as source:
            assert 2 <= source.buffer.resident < source.buffer.num_partitions
            rows = []
            for epoch in range(2):
                seeds = [batch.seeds.numpy() for batch in source.epoch(epoch)]
                assert set(np.concatenate(seeds)) == set(graph.splits["train"])
                rows.append(source.stats().filled_rows)
            loaded[variant] = rows[1] - rows[0]
    # A buffer holds about a third: COMET reads everything, several times; what stays is not read again.
    assert 0 < loaded["cached"] < 1000 < graph.num_nodes - 1000 < loaded["comet"]


@pytest.mark.usefixtures("measured_briefly")
def test_propagated_has_a_model_of_its_own_that_is_scored_on_the_other_splits(tmp_path):
    path, chosen = tmp_path / "graph", {"loader": "propagated", "variant": ""}
    write_learnable_graph(path)
    graph = Graph.open(path)
    given = inputs(graph, tmp_path / "own", epochs=2)
    _, prepared_bytes = step_bodies.prepare(given, **chosen)
    record_bytes = 5 * 4 * 40  # x, and two hops of both operators
    assert prepared_bytes >= 600 * record_bytes
    cost = step_bodies.load(given, **chosen)
    assert (cost.minibatches, cost.requested_rows, cost.disk_rows) == (75, 600, 600)
    assert 600 * record_bytes <= cost.read_bytes < 2 * 600 * record_bytes  # pieces of 8 records, in whole pages

    model, weights = ModelSpec("sage", hidden=16, num_layers=2), tmp_path / "weights"
    weights.mkdir()
    trained = step_bodies.train(given, **chosen, model=model, lr=0.01, weights=str(weights), trace=None)
    assert [epoch["epoch"] for epoch in trained.epochs] == [0, 1]
    other = replace(given, folder=str(tmp_path / "other"))
    step_bodies.prepare(other, **chosen)
    scores = step_bodies.evaluate(other.packed, ["valid", "test"], weights, 2, model, "cpu")
    assert [[*each] for each in scores] == [["valid_accuracy", "test_accuracy"]] * 2
    assert scores[-1]["test_accuracy"] > 0.5  # of four classes
