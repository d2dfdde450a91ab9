"""Stages that read from an S3 server on loopback, and write to it: the same bytes as on a disk, each moved once."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as papcsv
import pyarrow.parquet as papq
import pytest
from commands import run
from stored_graphs import PREPARE, arrays, cut, digest, file_bytes, same_files
from typed_graphs import citations

import diskgnn
from diskgnn.errors import (
    ConfigError,
    DiskFullError,
    InputError,
)
from diskgnn.files.disk_space import OWN_BYTES
from diskgnn.formats.verification import find_damage
from diskgnn.graph.artifact_description import describe


@pytest.mark.parametrize("memory", ["1GiB", "1KiB"], ids=["in memory", "swept"])
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


def test_an_output_on_a_store_is_estimated(there, store, tmp_path):
    found = diskgnn.estimate(there, store.url(f"{tmp_path.name}/packed"), **PREPARE)
    assert found.packed_bytes == diskgnn.estimate(there, tmp_path / "packed", **PREPARE).packed_bytes


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


def test_copies_of_edges_that_are_swept_count_in_the_disk_budget(store, there, graph, tmp_path):
    sampling = {name: PREPARE[name] for name in ("fanouts", "batch_size", "epochs", "threads")} | {"memory": "1KiB"}
    diskgnn.sample(graph, tmp_path / "local", **sampling)
    copied = sum(path.stat().st_size for path in graph.glob("ind*.npy"))
    most = OWN_BYTES + file_bytes(tmp_path / "local") + copied
    with pytest.raises(DiskFullError, match=r"a copy of s3://\S+\.npy needs exactly"):
        diskgnn.sample(there, tmp_path / "samples", **sampling, disk=OWN_BYTES + copied // 2)
    diskgnn.sample(there, tmp_path / "samples", **sampling, disk=most + 100_000)
    assert digest(tmp_path / "samples") == digest(tmp_path / "local")


def test_ids_that_are_copied_before_inference_begins_count_in_its_disk_budget(store, tmp_path):
    names = np.array([f"the long name of a node/{node:040x}" for node in range(4000)])
    diskgnn.convert(
        tmp_path / "graph", edges=names[np.array([np.arange(3999), np.arange(1, 4000)])], ids=names, train=names[:20],
        features=np.ones((4000, 2), np.float32), labels=np.arange(4000) % 2,
    )  # fmt: skip
    there = store.upload(tmp_path / "graph", f"{tmp_path.name}/graph")
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[2], batch_size=20, memory="1GiB")
    diskgnn.train(tmp_path / "packed", checkpoint=tmp_path / "run", hidden=2, epochs=1)
    copied = sum(path.stat().st_size for path in (tmp_path / "graph").glob("*ids*"))
    (tmp_path / "asked.txt").write_text(f"{names[1]}\n")
    for nodes in (None, tmp_path / "asked.txt"):
        with pytest.raises(DiskFullError, match=r"a copy of s3://\S+ needs exactly"):
            diskgnn.infer(there, tmp_path / "out.parquet", tmp_path / "run", nodes=nodes, disk=OWN_BYTES + copied // 2)
