"""What `diskgnn compare` opens: each baseline with what its design is given, under one setting."""

import multiprocessing
from dataclasses import asdict, replace

import numpy as np
import pytest
from graphs import assert_rows_are_features, make_graph

from diskgnn.compare import steps
from diskgnn.compare.loaders import MAPPED_SAMPLING_THREADS, Setting, find
from diskgnn.errors import UnavailableError
from diskgnn.system.memory import available_cores
from diskgnn.training import fresh_epochs

CAP = 1 << 30


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("loaders") / "graph", num_nodes=300)


def setting(graph, folder, **changes):
    fields = {"graph": str(graph.manifest.path), "folder": str(folder), "fanouts": (3, 2), "batch_size": 8, "seed": 0,
              "epochs": 1, "cache_bytes": 30 * graph.feature_file.row_bytes, "memory_bytes": CAP}  # fmt: skip
    return Setting(**fields | changes)


def test_mmap_is_touched_by_one_thread_or_as_many_as_pyg_plus_has(graph, tmp_path):
    for variant, threads in (("normal", 1), ("random", 1), ("parallel", 128)):
        with find("mmap", variant).open(setting(graph, tmp_path)) as source:
            assert source._rows._threads == threads


@pytest.mark.parametrize(("loader", "variant"), [("mmap", "random"), ("cached-reads", "sieve"), ("ginex", "")])
def test_who_waits_for_pages_of_the_topology_does_so_in_many_threads(graph, tmp_path, loader, variant):
    for memory_bytes, many in ((4 * graph.topology_bytes, False), (4 * graph.topology_bytes - 4, True)):
        with find(loader, variant).open(setting(graph, tmp_path, memory_bytes=memory_bytes)) as source:
            cores = available_cores()
            few = cores if loader == "ginex" else max(1, cores // 2)  # it samples before anything else runs
            assert source._threads == (max(cores, MAPPED_SAMPLING_THREADS) if many else few)
            assert sum(len(batch.seeds) for batch in source.epoch(0)) == len(graph.splits["train"])


def test_segments_have_three_times_the_features_bytes_for_rows(graph, tmp_path):
    chosen, given = find("static-packed", "segmented"), setting(graph, tmp_path, fanouts=(10, 10))
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
        source = find(loader, variant).open(setting(graph, tmp_path))
    except UnavailableError as error:
        pytest.skip(str(error))
    with source:
        for batch in source.epoch(0):
            assert len(multiprocessing.active_children()) == workers
            assert_rows_are_features(batch, graph)


def test_fresh_epochs_count_what_preparing_reads_and_prepare_no_other_beside(graph, tmp_path, monkeypatch):
    one = setting(graph, tmp_path, epochs=1)
    with find("diskgnn", "fresh").open(one) as source:
        list(source.epoch(0))
        stats = source.stats()
    assert stats["prepare_read_bytes"] > stats["read_bytes"] > 0
    prepare, prepared = fresh_epochs._prepare_epoch, []

    def recorded(epoch, *rest, **options):
        prepared.append(epoch)
        return prepare(epoch, *rest, **options)

    monkeypatch.setattr(fresh_epochs, "_prepare_epoch", recorded)
    loaded = steps.load(asdict(setting(graph, tmp_path, epochs=3)), "diskgnn", "fresh")
    assert prepared == [0]
    assert loaded["cost"]["read_bytes"] == stats["read_bytes"] + stats["prepare_read_bytes"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_partition_buffer_is_comets_whatever_the_memory(tmp_path, dtype):
    """MariusGNN's rule: 2p / c logical partitions of several physical ones, of which two fit (with a third, read)."""
    graph = make_graph(tmp_path / "graph", num_nodes=20000, width=128, dtype=dtype)
    features_bytes = graph.num_nodes * graph.feature_file.row_bytes
    logical, chosen = [], find("partition-buffer", "comet")
    for number, percent in enumerate((9, 10, 14, 20, 27, 40, 55, 70, 95)):
        given = setting(graph, tmp_path / str(number), cache_bytes=features_bytes * percent // 100)
        chosen.prepare(given)
        with chosen.open(given) as source:
            p, c = source._partitions.num_partitions, source.resident
            memory_bytes = given.cache_bytes + graph.topology_bytes
            next(source.epoch(0))
            group = source._plan(0).slots.shape[1] - c  # what is read ahead
            assert 1 < group == c // 2 == 4
            assert p % group == 0
            logical.append(p // group)
            assert logical[-1] * c == 2 * p
            rows_bytes = source._buffer.rows.nbytes
            # The others have ids, offsets and edges; another logical partition might not leave enough.
            assert (0.9 if percent < 40 else 0.7) * memory_bytes < rows_bytes * 1.25 < 1.25 * memory_bytes
    assert logical == sorted(logical, reverse=True)
    assert len(set(logical)) == len(logical)
    everything = replace(given, folder=str(tmp_path / "all"), cache_bytes=2 * features_bytes)
    chosen.prepare(everything)
    with chosen.open(everything) as source:
        assert source.resident == source._partitions.num_partitions


def test_a_partition_buffer_swaps_all_partitions_or_keeps_those_of_the_training_nodes(tmp_path):
    graph = make_graph(tmp_path / "graph", num_nodes=3000, width=256)
    loaded = {}
    for variant in ("comet", "cached"):
        chosen, given = find("partition-buffer", variant), setting(graph, tmp_path / variant)
        given = replace(given, cache_bytes=1000 * graph.feature_file.row_bytes)
        chosen.prepare(given)
        with chosen.open(given) as source:
            assert 2 <= source.resident < source._partitions.num_partitions
            rows = []
            for epoch in range(2):
                seeds = [batch.seeds.numpy() for batch in source.epoch(epoch)]
                assert set(np.concatenate(seeds)) == set(graph.splits["train"])
                rows.append(source.stats()["loaded_rows"])
            loaded[variant] = rows[1] - rows[0]
    # A buffer holds about a third: COMET reads everything, several times; what stays is not read again.
    assert 0 < loaded["cached"] < 1000 < graph.num_nodes - 1000 < loaded["comet"]
