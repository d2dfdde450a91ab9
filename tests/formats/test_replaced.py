"""`--overwrite` beside an opened graph or opened samples: they stay what they were, however they are read."""

from __future__ import annotations

import pickle
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import run_python

import diskgnn
from diskgnn.baselines.cached_reads import CachedReads
from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.mmap import MMap
from diskgnn.formats.feature_scan import read_checked_span, scan_needed_rows
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph

SAMPLING = {"fanouts": [3, 2], "batch_size": 8, "epochs": 2}
LIKES = ("user", "likes", "item")


def write_graph(path: Path, seed: int, **options: object) -> Path:
    """A graph of one type; features lie elsewhere, beside it."""
    random = np.random.default_rng(seed)
    rows = path.with_name("rows.npy")
    np.save(rows.with_name("new.npy"), random.random((300, 40), np.float32))
    rows.with_name("new.npy").replace(rows)
    diskgnn.convert(
        path, edges=random.integers(0, 300, (2, 1500)), features=rows, reference_features=True,
        labels=random.integers(0, 3, 300), train=random.permutation(300)[:60], **options,
    )  # fmt: skip
    return path


def write_links(path: Path, seed: int, **options: object) -> Path:
    """All else that a graph may have."""
    random = np.random.default_rng(seed)
    likes = np.stack([random.integers(0, 50, 300), random.integers(0, 30, 300)])
    diskgnn.convert(path, schema={
        "nodes": {
            "user": {"ids": random.permutation(50) + 7, "times": random.integers(0, 9, 50)},
            "item": {"num_nodes": 30, "features": random.random((30, 6), np.float32)},
        },
        "edges": {"user:likes:item": {
            "edges": np.stack([np.sort(random.permutation(50) + 7)[likes[0]], likes[1]]), "keep_ids": True,
            "features": random.random((300, 5), np.float32), "times": random.integers(0, 9, 300),
            "weights": random.random(300),
        }},
    }, **options)  # fmt: skip
    return path


def everything_of(graph: Graph, folder: Path) -> list[object]:
    """All kinds of reads of a graph of one type, and what is made from it."""
    features, needed = graph.feature_file, np.arange(300) % 7 == 0
    scanned = [window.data.copy() for window in scan_needed_rows(features, graph.feature_checksums, needed, 1 << 14)]
    found = [
        graph.indptr, graph.indices, graph.labels, graph.features, graph.splits["train"], *graph.topology(),
        *graph.topology_at_random(), graph.labels_of(np.arange(0, 300, 9)), np.concatenate(scanned),
        read_checked_span(features, graph.feature_checksums, 5, 9)[0],
    ]  # fmt: skip
    made: list[object] = [np.array(array).tobytes() for array in found]
    for memory in ("auto", "64KiB"):  # topology that is loaded, and that is swept
        out = folder / f"samples-{memory}"
        diskgnn.sample(graph, out, memory=memory, **SAMPLING)
        made.append(verify_artifact(out).digest)
    diskgnn.pack(graph, Samples.open(out), folder / "packed", cpu_cache="10%")
    made.append(verify_artifact(folder / "packed").digest)
    for baseline in (CachedReads, InMemory, MMap):
        with baseline(graph, fanouts=[2], batch_size=9, seed=1) as source:
            made += [float(batch.x.sum()) for batch in source]
    return made


def links_of(graph: Graph, folder: Path) -> list[object]:
    users, items, likes = graph.nodes["user"], graph.nodes["item"], graph.edges[LIKES]
    with users.user_ids as file:
        ids = file.read()["id"].to_numpy()
    found = [ids, users.times, users.times_of(np.array([3, 1, 40])), items.features, likes.indptr, likes.indices,
             likes.features, likes.times, likes.weights, likes.edge_ids, likes.feature_checksums,
             read_checked_span(likes.feature_file, likes.feature_checksums, 7, 200)[0]]  # fmt: skip
    return [np.array(array).tobytes() for array in found]


@pytest.mark.parametrize(("write", "read"), [(write_graph, everything_of), (write_links, links_of)])
def test_an_open_graph_stays_what_it_was(
    tmp_path: Path, write: Callable[..., Path], read: Callable[[Graph, Path], list[object]]
) -> None:
    path = write(tmp_path / "graph", 1)
    expected = read(Graph.open(path), tmp_path / "before")
    opened, features = Graph.open(path), Graph.open(path).nodes
    write(path, 2, overwrite=True)
    assert read(opened, tmp_path / "beside") == expected
    del opened
    assert read(Graph.open(path), tmp_path / "after") != expected
    for nodes in features.values():  # what outlives the graph that it came from
        if (file := nodes.feature_file) is not None:
            assert read_checked_span(file, nodes.feature_checksums, 0, 30)[1] > 0


def test_open_samples_stay_what_they_were(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "graph", 1)
    diskgnn.sample(graph, tmp_path / "samples", seed=1, **SAMPLING)
    opened = Samples.open(tmp_path / "samples")
    diskgnn.pack(graph, opened, tmp_path / "expected", cpu_cache="10%")
    seeds = [batch.seeds.tolist() for batch in opened.read("train")]
    reading = opened.read("train")
    first = next(reading)
    diskgnn.sample(graph, tmp_path / "samples", seed=2, overwrite=True, **SAMPLING)
    assert [batch.seeds.tolist() for batch in (first, *reading)] == seeds
    diskgnn.pack(graph, opened, tmp_path / "packed", cpu_cache="10%")
    assert verify_artifact(tmp_path / "packed").digest == verify_artifact(tmp_path / "expected").digest
    assert [batch.seeds.tolist() for batch in Samples.open(tmp_path / "samples").read("train")] != seeds


def test_files_beyond_those_that_may_be_open_are_not_confused_with_others(tmp_path: Path) -> None:
    """The soft limit is raised; where the hard one is too low, what is not pinned is read, or named if replaced."""
    graph = write_graph(tmp_path / "graph", 1)
    diskgnn.sample(graph, tmp_path / "samples", seed=1, **SAMPLING | {"epochs": 40})
    script = textwrap.dedent("""
        import resource, sys, diskgnn
        from diskgnn.errors import ArtifactError
        from diskgnn.graph.graph import Graph
        from diskgnn.formats.samples import Samples
        resource.setrlimit(resource.RLIMIT_NOFILE, (290, int(sys.argv[3])))
        graph, samples = Graph.open(sys.argv[1]), Samples.open(sys.argv[2])
        seeds = [batch.seeds.tolist() for batch in samples.read("train")]
        diskgnn.sample(graph, sys.argv[2], seed=2, overwrite=True, fanouts=[3, 2], batch_size=8, epochs=40)
        try:
            same = [batch.seeds.tolist() for batch in samples.read("train")] == seeds
        except ArtifactError as error:
            same = "ulimit -n" in str(error) and "was replaced" in str(error)
            assert int(sys.argv[3]) < 300, error
        sys.exit(not same)
    """)
    for hard in (4096, 290):
        run_python("-c", script, graph, tmp_path / "samples", hard, check=True)


def test_what_another_process_is_given_opens_by_name(tmp_path: Path) -> None:
    opened = Graph.open(write_graph(tmp_path / "graph", 1))
    expected = opened.labels.copy()
    manifest = pickle.loads(pickle.dumps(opened.manifest))
    path = pickle.loads(pickle.dumps(opened.feature_file)).path
    del opened
    assert manifest.checked_array("labels-node.npy").tobytes() == expected.tobytes()
    assert np.load(path).shape == (300, 40)
