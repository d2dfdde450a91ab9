"""Object stores: against a real S3 server on loopback, with connections that are cut, slow or refused on the way."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as papcsv
import pyarrow.fs as pafs
import pyarrow.parquet as papq
import pytest
from commands import run
from graphs import FEATURES, INDICES, LABELS, make_graph
from object_store import SECRET, Fault, ObjectStore, Request
from typed_graphs import citations

import diskgnn
from diskgnn.errors import (
    ArtifactError,
    ConfigError,
    DiskFullError,
    InputError,
    OutputExistsError,
    StoreError,
    UnavailableError,
)
from diskgnn.graph.inspection import describe
from diskgnn.storage import faults, fetching, outbox, remote_files
from diskgnn.storage.manifest import read_manifest
from diskgnn.storage.object_stores import StoredPath, is_url, located
from diskgnn.storage.verification import find_damage

PREPARE = {"fanouts": [3, 2], "batch_size": 16, "epochs": 2, "cpu_cache": "10%", "static_cache": 0, "threads": 2}


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    """2,000 nodes: 512 KB of features."""
    path = tmp_path_factory.mktemp("graph") / "graph"
    make_graph(path, num_nodes=2000, width=64, splits={"train": 300, "valid": 50})
    return path


@pytest.fixture(scope="module")
def packed(graph: Path) -> Path:
    """What `PREPARE` makes of it on this machine."""
    path = graph.with_name("packed")
    diskgnn.prepare(graph, path, **PREPARE)
    return path


@pytest.fixture
def there(store: ObjectStore, graph: Path, tmp_path: Path) -> str:
    """The graph on the store, at a place of this test's own."""
    return store.upload(graph, f"{tmp_path.name}/graph")


def digest(path: Path | str) -> str:
    return read_manifest(path).digest


def file_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def same_files(one: Path, other: Path) -> bool:
    names = sorted(file.name for file in one.iterdir())
    return names == sorted(file.name for file in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def arrays() -> dict[str, np.ndarray]:
    """A graph of 50 nodes, but for their features."""
    edges = np.random.default_rng(0).integers(0, 50, (2, 200))
    return {"edges": edges, "labels": np.arange(50) % 3, "train": np.arange(20)}


def cut(request: Request, every: int = 5) -> Fault | None:
    """Every so many answers end in the middle."""
    return Fault(answer_bytes=700) if request.number % every == every - 1 else None


# What a URL is


@pytest.mark.parametrize(
    ("given", "secret"),
    [
        ("s3://AKIA:hidden@bucket/graph", "hidden"),
        ("s3://AKIA@bucket/graph", "AKIA"),
        ("s3://bucket/graph?secret_key=hidden", "hidden"),
        ("s3://bucket/graph?access_key=hidden&region=x", "hidden"),
        ("gs://bucket/graph?access_token=hidden", "hidden"),
        ("hdfs://user:hidden@host/graph", "hidden"),
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(given, secret):
    with pytest.raises(ConfigError, match="credentials") as error:
        diskgnn.Graph.open(given)
    assert secret not in str(error.value)


def test_what_is_no_url_of_a_folder_is_refused():
    with pytest.raises(ConfigError, match="a Path takes a slash away"):
        diskgnn.Graph.open(Path("s3://bucket/graph"))
    for given in ("s3://bucket", "s3://bucket/", "s3://bucket/a/../../other"):
        with pytest.raises(ConfigError, match="expected the URL of a folder"):
            diskgnn.Graph.open(given)
    with pytest.raises(ConfigError, match="no driver knows nowhere://"):
        diskgnn.Graph.open("nowhere://bucket/graph")
    with pytest.raises(UnavailableError, match="libhdfs"):
        diskgnn.Graph.open("hdfs://host:1/graph")


def test_paths_and_urls():
    assert located("graph") == Path("graph")
    assert located("file:///data/graph") == Path("/data/graph")
    assert not is_url("a/b")
    assert not is_url("C:/b")
    url = located("s3://bucket/a/b/?region=here")
    assert isinstance(url, StoredPath)
    assert str(url) == "s3://bucket/a/b?region=here"
    assert str(url / "c.npy") == "s3://bucket/a/b/c.npy?region=here"
    assert (url.name, str(url.parent), str(url.with_name("d"))) == (
        "b", "s3://bucket/a?region=here", "s3://bucket/a/d?region=here",
    )  # fmt: skip


# Reading and writing


@pytest.mark.parametrize("memory", ["1GiB", "300KiB"], ids=["in memory", "swept"])
def test_prepare_from_and_to_a_store_makes_the_same_bytes_and_moves_each_once(
    store, there, graph, packed, tmp_path, memory
):
    out = store.url(f"{tmp_path.name}/packed")
    diskgnn.prepare(there, out, **PREPARE, memory=memory)
    assert digest(out) == digest(packed)
    for file in packed.iterdir():
        assert store.read(f"{tmp_path.name}/packed/{file.name}") == file.read_bytes()
    # Everything of the graph is needed once; what is packed is sent once. Headers of HTTP and short looks come on top.
    assert store.proxy.received_bytes < 1.15 * file_bytes(graph) + 100_000
    assert store.proxy.sent_bytes < 1.05 * file_bytes(packed) + 100_000
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []


def test_sample_and_pack_from_and_to_a_store(store, there, graph, tmp_path):
    samples, out = (store.url(f"{tmp_path.name}/{name}") for name in ("samples", "packed"))
    sampling = {name: PREPARE[name] for name in ("fanouts", "batch_size", "epochs", "threads")}
    diskgnn.sample(there, samples, **sampling)
    diskgnn.pack(there, samples, out, cpu_cache="10%", static_cache=0)
    diskgnn.sample(graph, tmp_path / "samples", **sampling)
    diskgnn.pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache="10%", static_cache=0)
    assert (digest(samples), digest(out)) == (digest(tmp_path / "samples"), digest(tmp_path / "packed"))


def test_typed_graphs_are_sampled_and_packed_from_a_store(store, tmp_path):
    citations(tmp_path / "typed")
    url = store.upload(tmp_path / "typed", f"{tmp_path.name}/typed")
    given = PREPARE | {"temporal": "last", "edge_ids": True}
    for graph, out in ((url, tmp_path / "from-store"), (tmp_path / "typed", tmp_path / "from-disk")):
        diskgnn.prepare(graph, out, **given)
    assert digest(tmp_path / "from-store") == digest(tmp_path / "from-disk")


def test_generate_and_convert_to_a_store(store, tmp_path):
    sizes = {"num_nodes": 10_000, "avg_degree": 3, "num_classes": 4, "num_features": 8, "homophily": 0.5, "seed": 3}
    shares = {"train_fraction": 0.1, "valid_fraction": 0.1, "test_fraction": 0.1}
    for folder in (tmp_path / "local", store.url(f"{tmp_path.name}/made")):
        diskgnn.generate(f"{folder}-generated", **sizes, **shares)
        diskgnn.convert(f"{folder}-converted", features=np.ones((50, 8), np.float32), **arrays())
    for name in ("generated", "converted"):
        assert digest(store.url(f"{tmp_path.name}/made-{name}")) == digest(tmp_path / f"local-{name}")


def test_sources_on_a_store_are_converted_as_those_on_a_disk(store, tmp_path):
    """Tables in parts stream, .npy features and labels too; edges in an array are copied first."""
    random, num_nodes, folder = np.random.default_rng(1), 3000, tmp_path / "source"
    (folder / "nodes" / "year=2024").mkdir(parents=True)
    edges = random.integers(0, num_nodes, (2, 20_000))
    np.save(folder / "edges.npy", edges)
    np.save(folder / "x.npy", random.standard_normal((num_nodes, 16)).astype(np.float32))
    np.save(folder / "train.npy", np.arange(100))
    for number, rows in enumerate(np.array_split(np.arange(num_nodes), 3)):
        ids = pa.array([f"node {row}" for row in rows])
        table = pa.table({"id": ids, "label": rows % 5, "split": ["train"] * len(rows), "a": rows / 7.0})
        papq.write_table(table, folder / "nodes" / "year=2024" / f"part-{number}.parquet")
    (folder / "edges").mkdir()
    for number, (src, dst) in enumerate(zip(*np.array_split(edges, 2, axis=1), strict=True)):
        text = pa.table({"src": [f"node {row}" for row in src], "dst": [f"node {row}" for row in dst]})
        with pa.CompressedOutputStream(str(folder / "edges" / f"part-{number}.csv.gz"), "gzip") as file:
            papcsv.write_csv(text, file)
    url = store.upload(folder, f"{tmp_path.name}/source")
    store.proxy.reset()
    for name, root in (("from-disk", str(folder)), ("from-store", url)):
        arrays = {name: f"{root}/{name}.npy" for name in ("edges", "train")} | {"features": f"{root}/x.npy"}
        diskgnn.convert(tmp_path / f"{name}-arrays", **arrays, labels=np.arange(num_nodes) % 3)
        with store.proxy.failing(lambda request: cut(request, every=9)):
            diskgnn.convert(tmp_path / f"{name}-tables", edges=f"{root}/edges", nodes=f"{root}/nodes")
    for kind in ("arrays", "tables"):
        assert digest(tmp_path / f"from-disk-{kind}") == digest(tmp_path / f"from-store-{kind}")
    with pytest.raises(InputError, match=r"features: expected a \.npy file, found no file"):
        diskgnn.convert(tmp_path / "none", **arrays | {"features": f"{url}/none.npy"}, labels=np.arange(num_nodes))
    with pytest.raises(ConfigError, match="diskgnn fetch"):
        diskgnn.convert(tmp_path / "none", source=url, format="ogb")


def test_inspect_and_verify_say_the_same_of_a_store(store, there, graph):
    local, remote = describe(graph), describe(there)
    assert (remote.facts | {"features_file": ""}, remote.files, remote.config) == (
        local.facts | {"features_file": ""}, local.files, local.config,
    )  # fmt: skip
    assert find_damage(there)[1] == []


def test_a_file_system_that_only_fsspec_knows(graph, packed, tmp_path):
    diskgnn.push(graph, "memory://stores/graph")
    diskgnn.prepare("memory://stores/graph", "memory://stores/packed", **PREPARE)
    diskgnn.fetch("memory://stores/packed", tmp_path / "fetched")
    assert same_files(tmp_path / "fetched", packed)


# Connections that fail


def test_cut_connections_slow_answers_and_servers_that_are_busy_change_nothing(store, there, packed, tmp_path):
    def fault(request: Request) -> Fault | None:
        if request.number % 7 == 3:
            return Fault(status=503)
        return Fault(seconds=0.2) if request.number % 7 == 5 else cut(request)

    out = store.url(f"{tmp_path.name}/packed")
    with store.proxy.failing(fault):
        diskgnn.prepare(there, out, **PREPARE)
        diskgnn.fetch(out, tmp_path / "fetched")
    assert same_files(tmp_path / "fetched", packed)


def test_a_store_that_stays_busy_is_named_and_nothing_is_left(store, there, tmp_path, monkeypatch):
    def busy(request: Request) -> Fault | None:
        return Fault(status=503) if FEATURES in request.path and request.method == "GET" else None

    monkeypatch.setattr(remote_files, "ATTEMPTS", 2)
    named = rf"reading \d+ bytes at offset \d+ of {there}/features"
    with store.proxy.failing(busy), pytest.raises(StoreError, match=named):
        diskgnn.fetch(there, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    diskgnn.fetch(there, tmp_path / "fetched")
    assert find_damage(tmp_path / "fetched")[1] == []


def test_refused_credentials_are_named_once_and_never_shown(store, there, tmp_path, recwarn):
    refused = lambda _: Fault(status=403, code="InvalidAccessKeyId")  # noqa: E731
    with store.proxy.failing(refused):
        failed = run("inspect", there, exit_code=8).output
    assert "AWS_ACCESS_KEY_ID" in failed
    assert "the store refused" in failed
    assert len(store.proxy.requests) < 10  # asking again does not help
    diskgnn.push(store_copy(store, there, tmp_path), store.url(f"{tmp_path.name}/again"))
    manifests = [store.read(f"{tmp_path.name}/{name}/manifest.json").decode() for name in ("graph", "again")]
    assert all(SECRET not in text for text in (failed, *manifests, *(str(each.message) for each in recwarn)))


def store_copy(store: ObjectStore, url: str, tmp_path: Path) -> Path:
    diskgnn.fetch(url, tmp_path / "copy")
    return tmp_path / "copy"


def test_what_is_not_there_is_said_to_be_so(store, tmp_path):
    with pytest.raises(ArtifactError, match="nothing is not there"):
        diskgnn.Graph.open(store.url("nothing"))
    with pytest.raises(ArtifactError, match="neither is s3://no-such-bucket/"):
        diskgnn.Graph.open("s3://no-such-bucket/graph")
    with pytest.raises(ConfigError, match="make the bucket first"):
        diskgnn.generate("s3://no-such-bucket/graph", num_nodes=10_000, avg_degree=2, num_classes=2, num_features=2,
                         train_fraction=0.1, valid_fraction=0.1, test_fraction=0.1, homophily=0.5)  # fmt: skip
    store.write(f"{tmp_path.name}/file", b"x")
    with pytest.raises(ArtifactError, match="not a directory"):
        diskgnn.Graph.open(store.url(f"{tmp_path.name}/file"))


# Objects that are not what was written


@pytest.mark.parametrize("name", [FEATURES, INDICES, LABELS])
def test_a_flipped_byte_is_found_wherever_it_is_read(store, there, tmp_path, name):
    data = bytearray(store.read(f"{tmp_path.name}/graph/{name}"))
    data[len(data) // 2] ^= 4
    store.write(f"{tmp_path.name}/graph/{name}", bytes(data))
    assert [damage.file for damage in find_damage(there)[1]] == [name]
    with pytest.raises(ArtifactError, match=f"{name} is damaged"):
        diskgnn.fetch(there, tmp_path / "fetched")
    with pytest.raises(ArtifactError, match=f"{name} is damaged"):
        diskgnn.prepare(there, tmp_path / "packed", **PREPARE)
    assert not (tmp_path / "fetched").exists()
    assert not (tmp_path / "packed").exists()


def test_missing_and_truncated_objects_are_found_before_anything_is_read(store, there, tmp_path):
    name = f"{tmp_path.name}/graph/{FEATURES}"
    whole = store.read(name)
    store.write(name, whole[:-1])
    with pytest.raises(ArtifactError, match=rf"{FEATURES}.* has {len(whole) - 1} bytes, expected {len(whole)}"):
        diskgnn.Graph.open(there)
    store.delete(name)
    with pytest.raises(ArtifactError, match=f"{FEATURES}.* is not there"):
        diskgnn.Graph.open(there)


def test_an_object_that_is_replaced_while_it_is_read_is_refused(store, there, tmp_path):
    opened = diskgnn.Graph.open(there)
    name = f"{tmp_path.name}/graph/{FEATURES}"
    data = store.read(name)
    store.write(name, data[:1000] + bytes(len(data) - 1000))
    with pytest.raises(ArtifactError, match=f"{FEATURES} is damaged"):
        diskgnn.prepare(opened, tmp_path / "packed", **PREPARE)
    store.write(name, b"short")
    with pytest.raises((ArtifactError, StoreError), match=FEATURES):
        diskgnn.prepare(opened, tmp_path / "packed", **PREPARE)


def test_a_source_that_is_replaced_while_it_streams_is_refused(store, tmp_path):
    rows = np.random.default_rng(0).standard_normal((300_000, 16)).astype(np.float32)  # 19 MB: three ranges
    np.save(tmp_path / "x.npy", rows)
    name = f"{tmp_path.name}/x.npy"
    data = (tmp_path / "x.npy").read_bytes()
    store.write(name, data)
    replacements = [data[:-4] + bytes(4)]

    def replaced(request: Request) -> None:
        streams = store.proxy.received_bytes > 1 << 20
        if streams and replacements:
            store.write(name, replacements.pop())

    edges = np.random.default_rng(0).integers(0, len(rows), (2, 1000))
    given = {"edges": edges, "labels": np.arange(len(rows)) % 3, "train": np.arange(20)}
    store.proxy.reset()
    with store.proxy.failing(replaced), pytest.raises(ArtifactError, match="was replaced while it was read"):
        diskgnn.convert(tmp_path / "graph", features=store.url(name), **given)
    assert not (tmp_path / "graph").exists()


# Fetch


def test_fetch_goes_on_within_a_file_after_a_kill(store, there, graph, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    monkeypatch.setattr(fetching, "NOTED_BYTES", 100_000)
    monkeypatch.setattr(fetching, "_READ_BYTES", 50_000)
    monkeypatch.setattr(fetching, "FILES_AT_ONCE", 1)
    with faults.armed("fetch.range", Killed(), after=3), pytest.raises(Killed):
        diskgnn.fetch(there, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    report = diskgnn.fetch(there, tmp_path / "fetched")
    assert report.read_bytes < report.written_bytes - 300_000
    assert same_files(tmp_path / "fetched", graph)


def test_fetch_believes_nothing_that_was_changed_meanwhile(store, there, graph, tmp_path):
    with faults.armed("unit.written", OSError("stopped"), after=3), pytest.raises(OSError, match="stopped"):
        diskgnn.fetch(there, tmp_path / "fetched")
    for file in (tmp_path / ".fetched.partial").glob("*.npy"):
        file.write_bytes(bytes(file.stat().st_size))
    diskgnn.fetch(there, tmp_path / "fetched")
    assert same_files(tmp_path / "fetched", graph)


def test_fetch_moves_each_byte_once_and_refuses_a_full_disk_first(store, there, graph, tmp_path):
    with faults.pretending("disk.free", 1000), pytest.raises(DiskFullError, match="fetching"):
        diskgnn.fetch(there, tmp_path / "fetched")
    store.proxy.reset()
    diskgnn.fetch(there, tmp_path / "fetched")
    assert store.proxy.received_bytes < 1.02 * file_bytes(graph) + 20_000
    with pytest.raises(OutputExistsError):
        diskgnn.fetch(there, tmp_path / "fetched")
    diskgnn.fetch(there, tmp_path / "fetched", overwrite=True)


def test_ranks_are_sent_and_fetched_together_or_one_by_one(store, there, graph, tmp_path):
    out = store.url(f"{tmp_path.name}/ranks")
    diskgnn.prepare(there, out, **PREPARE, ranks=2)
    diskgnn.fetch(out, tmp_path / "one", rank=1)
    assert [entry.name for entry in (tmp_path / "one").iterdir()] == ["rank-1-of-2"]
    with faults.armed("artifact.sync", OSError("stopped")), pytest.raises(OSError, match="stopped"):
        diskgnn.fetch(out, tmp_path / "one")  # rank 0 is missing, and comes
    fetched = diskgnn.fetch(out, tmp_path / "one")
    assert fetched.read_bytes == 0
    with pytest.raises(OutputExistsError, match="rank-0-of-2 exists already"):
        diskgnn.fetch(out, tmp_path / "one")
    diskgnn.fetch(out, tmp_path / "all")
    diskgnn.prepare(graph, tmp_path / "local", **PREPARE, ranks=2)
    for name in ("rank-0-of-2", "rank-1-of-2"):
        assert same_files(tmp_path / "all" / name, tmp_path / "local" / name)
    with pytest.raises(ConfigError, match="rank: expected one that is in"):
        diskgnn.fetch(out, tmp_path / "other", rank=2)
    with pytest.raises(OutputExistsError, match="no folder of ranks"):
        diskgnn.push(tmp_path / "local", there)
    with pytest.raises(ConfigError, match=r"url: .* lies inside of the graph directory"):
        diskgnn.push(graph, f"{there}/deep/er/")


def test_an_output_on_a_store_is_estimated(there, store, tmp_path):
    found = diskgnn.estimate(there, store.url(f"{tmp_path.name}/packed"), **PREPARE)
    assert found.packed_bytes == diskgnn.estimate(there, tmp_path / "packed", **PREPARE).packed_bytes


@pytest.mark.parametrize("url", ["s3://AKIA:hidden@bucket/graph", "s3:/bucket/graph", "s3://bucket/"])
def test_a_wrong_url_is_a_wrong_argument(url, tmp_path):
    found = run("fetch", url, tmp_path / "here", "--json", exit_code=2)
    assert json.loads(found.stdout)["error"]["kind"] == "UsageError"
    assert "hidden" not in found.output


# Push


def test_push_goes_on_after_a_stop_and_nothing_opens_before_it_is_whole(store, graph, tmp_path, monkeypatch):
    url = store.url(f"{tmp_path.name}/pushed")
    monkeypatch.setattr(outbox, "FILES_AT_ONCE", 1)
    with faults.armed("push.file", OSError("stopped"), after=3), pytest.raises(OSError, match="stopped"):
        diskgnn.push(graph, url)
    with pytest.raises(ArtifactError, match="no manifest"):
        diskgnn.Graph.open(url)
    sent = set(store.names(f"{tmp_path.name}/pushed"))
    store.proxy.reset()
    report = diskgnn.push(graph, url)
    assert 0 < report.written_bytes < report.read_bytes
    assert len(sent) >= 3
    assert digest(url) == digest(graph)
    assert diskgnn.push(graph, url).written_bytes == 0


def test_push_sends_again_what_somebody_else_has_written_there(store, graph, tmp_path):
    url, name = store.url(f"{tmp_path.name}/pushed"), f"{tmp_path.name}/pushed/{FEATURES}"
    with faults.armed("push.files", OSError("stopped")), pytest.raises(OSError, match="stopped"):
        diskgnn.push(graph, url)
    whole = store.read(name)
    time.sleep(1.1)  # what the store says of times has seconds
    store.write(name, bytes(len(whole)))
    diskgnn.push(graph, url)
    assert store.read(name) == whole
    assert find_damage(url)[1] == []


def test_push_replaces_only_what_it_is_told_to(store, there, graph, packed, tmp_path):
    make_graph(tmp_path / "other", num_nodes=50)
    with pytest.raises(OutputExistsError, match="exists already"):
        diskgnn.push(tmp_path / "other", there)
    with pytest.raises(OutputExistsError, match="never overwritten with"):
        diskgnn.push(packed, there, overwrite=True)
    with pytest.raises(OutputExistsError, match="never overwritten with"):
        diskgnn.prepare(graph, there, **PREPARE, overwrite=True)
    store.write(f"{tmp_path.name}/papers/thesis.tex", b"mine")
    for make in (lambda url: diskgnn.push(graph, url), lambda url: diskgnn.prepare(graph, url, **PREPARE)):
        with pytest.raises(OutputExistsError, match=r"thesis\.tex"):
            make(store.url(f"{tmp_path.name}/papers"))
    store.upload(packed, f"{tmp_path.name}/packed")
    diskgnn.prepare(graph, store.url(f"{tmp_path.name}/packed"), **PREPARE | {"epochs": 1}, overwrite=True)
    diskgnn.push(tmp_path / "other", there, overwrite=True)
    assert digest(there) == digest(tmp_path / "other")
    assert store.names(f"{tmp_path.name}/graph") == sorted(file.name for file in (tmp_path / "other").iterdir())


def test_push_deletes_nothing_but_files_of_what_it_replaces(store, there, graph, tmp_path):
    make_graph(tmp_path / "other", num_nodes=50, splits={"train": 20})
    folder = f"{tmp_path.name}/graph"
    with faults.armed("push.files", OSError("stopped")), pytest.raises(OSError, match="stopped"):
        diskgnn.push(tmp_path / "other", there, overwrite=True)  # now there is no manifest
    store.write(f"{folder}/thesis.tex", b"mine")
    diskgnn.push(tmp_path / "other", there, overwrite=True)
    assert store.names(folder) == sorted({*(file.name for file in (tmp_path / "other").iterdir()), "thesis.tex"})
    assert set(store.names(folder)) < {"thesis.tex", *(file.name for file in graph.iterdir())}  # valid.npy is gone
    for made, overwrite in ((tmp_path / "other", False), (graph, True)):
        with pytest.raises(OutputExistsError, match=r"thesis\.tex"):
            diskgnn.push(made, there, overwrite=overwrite)
    assert store.read(f"{folder}/thesis.tex") == b"mine"


def test_push_refuses_a_damaged_directory(store, graph, tmp_path):
    shutil.copytree(graph, tmp_path / "graph")
    data = bytearray((tmp_path / "graph" / FEATURES).read_bytes())
    data[-1] ^= 1
    (tmp_path / "graph" / FEATURES).write_bytes(data)
    url = store.url(f"{tmp_path.name}/damaged")
    with pytest.raises(ArtifactError, match=f"{FEATURES} is damaged"):
        diskgnn.push(tmp_path / "graph", url)
    with pytest.raises(ArtifactError):
        diskgnn.Graph.open(url)


def test_features_that_lie_elsewhere_are_sent_along(store, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((50, 8), np.float32))
    diskgnn.convert(tmp_path / "graph", features=tmp_path / "x.npy", reference_features=True, **arrays())
    url = store.url(f"{tmp_path.name}/whole")
    diskgnn.push(tmp_path / "graph", url)
    assert digest(url) == digest(tmp_path / "graph")
    assert str(tmp_path) not in store.read(f"{tmp_path.name}/whole/manifest.json").decode()
    diskgnn.fetch(url, tmp_path / "fetched")
    assert (tmp_path / "fetched" / FEATURES).read_bytes() == (tmp_path / "x.npy").read_bytes()


def test_what_was_made_but_not_sent_is_kept_and_can_be_sent(store, graph, packed, tmp_path):
    """What replaces something is made here first."""
    out = store.url(f"{tmp_path.name}/packed")
    diskgnn.prepare(graph, out, **PREPARE | {"epochs": 1})
    with (
        faults.armed("push.files", OSError("stopped")),
        pytest.warns(UserWarning, match=f"diskgnn push .* {out}") as kept,
        pytest.raises(OSError, match="stopped"),
    ):
        diskgnn.prepare(graph, out, **PREPARE, overwrite=True)
    _, _, made = str(kept[-1].message).partition("diskgnn push ")
    diskgnn.push(made.split()[0], out, overwrite=True)
    assert digest(out) == digest(packed)


def test_ranks_that_are_there_are_called_that(store, graph, tmp_path):
    out = store.url(f"{tmp_path.name}/ranks")
    diskgnn.prepare(graph, out, **PREPARE, ranks=2)
    with pytest.raises(OutputExistsError, match="prepared for several ranks already: rank-0-of-2, rank-1-of-2"):
        diskgnn.prepare(graph, out, **PREPARE, ranks=2)


# What needs a disk here says so, and which command helps


def test_what_cannot_work_on_a_store_says_so(store, there, graph, packed, tmp_path):
    out = store.upload(packed, f"{tmp_path.name}/packed")
    for call in (
        lambda: diskgnn.Loader(out),
        lambda: diskgnn.train(out, epochs=1),
        lambda: diskgnn.relink(there, features=graph / FEATURES),
        lambda: diskgnn.prepare(graph, tmp_path / "p", **PREPARE, samples=store.url("samples")),
    ):
        with pytest.raises(ConfigError, match="diskgnn fetch"):
            call()


def test_commands_take_urls(store, there, graph, packed, tmp_path):
    out = store.url(f"{tmp_path.name}/packed")
    options = ("--fanouts", "3,2", "--batch-size", 16, "--epochs", 2, "--cpu-cache", "10%", "--static-cache", 0)
    prepared = run("prepare", there, out, *options)
    assert f"diskgnn fetch {out} packed" in prepared.output
    run("fetch", out, tmp_path / "fetched")
    assert same_files(tmp_path / "fetched", packed)
    pushed = json.loads(run("push", tmp_path / "fetched", out, "--json").stdout)
    assert pushed["written_bytes"] == 0
    assert "is whole" in run("verify", out).output
    assert there in run("inspect", there).output
    assert "expected a path of this machine" in run("fetch", out, out, exit_code=2).output
    assert "diskgnn fetch" in run("train", out, exit_code=2).output


def test_the_package_that_a_driver_lacks_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(UnavailableError, match="adlfs"):
        located("az://container/graph").locate()


def test_pyarrow_reads_what_was_pushed(store, graph, tmp_path):
    diskgnn.push(graph, store.url(f"{tmp_path.name}/pushed"))
    filesystem, path = pafs.FileSystem.from_uri(store.url(f"{tmp_path.name}/pushed"))
    with filesystem.open_input_file(f"{path}/{LABELS}") as file:
        assert file.read() == (graph / LABELS).read_bytes()
