"""What `diskgnn compare` opens: each baseline with what its design is given, under one setting."""

import pytest
from graphs import make_graph

from diskgnn.compare.loaders import MAPPED_SAMPLING_THREADS, Setting, find, topology_bytes
from diskgnn.memory import available_cores

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
    for memory_bytes, many in ((4 * topology_bytes(graph), False), (4 * topology_bytes(graph) - 4, True)):
        with find(loader, variant).open(setting(graph, tmp_path, memory_bytes=memory_bytes)) as source:
            cores = available_cores()
            assert source._threads == (max(cores, MAPPED_SAMPLING_THREADS) if many else max(1, cores // 2))
            assert sum(len(batch.seeds) for batch in source.epoch(0)) == len(graph.splits["train"])
