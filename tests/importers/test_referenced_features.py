"""Features that stay where they are, with or without a header, and what happens when they move."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from user_data import NUM_NODES, WIDTH, small_data

import diskgnn
from diskgnn.errors import ArtifactError, BusyError, ConfigError, DataWarning, InputError
from diskgnn.files.checked_files import checksum_file
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph import relinking
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert


@pytest.fixture
def data() -> dict[str, Any]:
    return small_data()


def test_headerless_features(tmp_path: Path, data: dict[str, Any]) -> None:
    path = tmp_path / "features.bin"
    data["features"].tofile(path)
    raw = f"raw:float32:{WIDTH}:{path}"
    convert(tmp_path / "plain", **data)
    convert(tmp_path / "copied", **{**data, "features": raw})
    assert Graph.open(tmp_path / "copied").manifest.files == Graph.open(tmp_path / "plain").manifest.files
    convert(tmp_path / "referred", **{**data, "features": raw}, reference_features=True)
    np.testing.assert_array_equal(Graph.open(tmp_path / "referred").features, data["features"])
    verify_artifact(tmp_path / "referred")
    prepared = {}
    for name in ("plain", "referred"):
        diskgnn.prepare(tmp_path / name, tmp_path / f"{name}-packed", fanouts=[3, 3], cpu_cache="10%", batch_size=5)
        files = open_artifact(tmp_path / f"{name}-packed").files
        prepared[name] = {file: entry for file, entry in files.items() if file.startswith("train")}
    assert prepared["plain"] == prepared["referred"]
    (tmp_path / "graph.yaml").write_text(f"""
        nodes: {{node: {{features: "raw:float32:{WIDTH}:features.bin", reference_features: true}}}}
        edges: {{"node:to:node": {{edges: edges.npy}}}}
    """)
    np.save(tmp_path / "edges.npy", data["edges"])
    run("convert", tmp_path / "described", "--schema", tmp_path / "graph.yaml")
    np.testing.assert_array_equal(Graph.open(tmp_path / "described").features, data["features"])


def test_headerless_files_that_cannot_be(tmp_path: Path, data: dict[str, Any]) -> None:
    (tmp_path / "x").write_bytes(bytes(4 * WIDTH * NUM_NODES))
    for raw, error, message in (
        ("raw:float32", ConfigError, "expected raw:DTYPE:WIDTH:PATH"),
        ("raw:float31:7:x", ConfigError, "expected raw:DTYPE:WIDTH:PATH"),
        ("raw:float32:0:x", ConfigError, "expected raw:DTYPE:WIDTH:PATH"),
        (f"raw:float32:8:{tmp_path / 'x'}", InputError, "found 1400 bytes, which is no multiple"),
        (f"raw:float32:{tmp_path / 'x'}", InputError, r"expected shape \[N, D\]"),
        (f"raw:float32:7:{tmp_path / 'y'}", InputError, "expected a file of float32 numbers, found none"),
        (f"raw:int8:7:{tmp_path / 'x'}", InputError, "expected 200 rows .* found 50"),
    ):
        with pytest.raises(error, match=message):
            convert(tmp_path / "out", **{**data, "features": raw})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("headerless", [False, True])
def test_features_that_moved(tmp_path: Path, data: dict[str, Any], headerless: bool) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    if headerless:
        data["features"].tofile(old / "x")
    else:
        np.save(old / "x.npy", data["features"])
        (old / "x.npy").rename(old / "x")
    given = f"raw:float32:{WIDTH}:{old / 'x'}" if headerless else old / "x"
    convert(tmp_path / "graph", **{**data, "features": given}, reference_features=True)
    digest = Graph.open(tmp_path / "graph").manifest.digest
    shutil.move(old, new)
    with pytest.raises(ArtifactError, match=r"diskgnn relink .*graph --features PATH"):
        Graph.open(tmp_path / "graph")
    said = run("relink", tmp_path / "graph", "--features", new / "x").stdout
    assert f"refers to {new / 'x'} now" in said.replace("\n", "")
    assert Graph.open(tmp_path / "graph").manifest.digest == digest
    verify_artifact(tmp_path / "graph")
    diskgnn.relink(tmp_path / "graph", new / "x", verify=True)

    before = (tmp_path / "graph" / "manifest.json").read_bytes()
    content = bytearray((new / "x").read_bytes())
    content[-5] ^= 1
    for damaged, message in (
        (bytes(content), "other bytes"),
        (bytes(content[:-1]), "has .* bytes, expected"),
        (bytes(len(content)), "other bytes" if headerless else "npy"),
    ):
        (new / "y").write_bytes(damaged)
        for verify in (False, True):
            with pytest.raises(ArtifactError, match=message):
                diskgnn.relink(tmp_path / "graph", new / "y", verify=verify)
    with pytest.raises(ArtifactError, match="found none at"):
        diskgnn.relink(tmp_path / "graph", new / "z")
    with pytest.raises(ConfigError, match=r"features-node\.npy lie elsewhere, found 'paper'"):
        diskgnn.relink(tmp_path / "graph", new / "x", node_type="paper")
    assert (tmp_path / "graph" / "manifest.json").read_bytes() == before
    convert(tmp_path / "own", **data)
    with pytest.raises(ConfigError, match="holds its features itself"):
        diskgnn.relink(tmp_path / "own", new / "x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["graph", "new", "own"]


def test_a_graph_is_not_replaced_while_features_are_compared(
    tmp_path: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would get a reference to what it holds itself."""
    np.save(tmp_path / "x.npy", data["features"])
    convert(tmp_path / "graph", **{**data, "features": tmp_path / "x.npy"}, reference_features=True)
    (tmp_path / "x.npy").rename(tmp_path / "y.npy")
    tried = []

    def compare(path: Path) -> int:
        with pytest.raises(BusyError):
            convert(tmp_path / "graph", **data, overwrite=True)
        tried.append(path)
        return checksum_file(path)

    monkeypatch.setattr(relinking, "checksum_file", compare)
    diskgnn.relink(tmp_path / "graph", tmp_path / "y.npy", verify=True)
    assert tried == [tmp_path / "y.npy"]
    verify_artifact(tmp_path / "graph")


@pytest.mark.parametrize("num_edges", [1000, 400_000])
def test_reverse_of_edges_that_hold_both_directions(tmp_path: Path, data: dict[str, Any], num_edges: int) -> None:
    """Counted where the sample holds all, otherwise estimated; loops have no reverse."""
    rng = np.random.default_rng(1)
    nodes = {**data, "features": rng.standard_normal((10_000, 1), np.float32), "labels": np.zeros(10_000, int)}
    one_way = np.sort(rng.integers(0, 10_000, (2, num_edges)), axis=0)
    both = np.concatenate([one_way, one_way[::-1]], axis=1)
    sampled = "that were sampled" if num_edges > 100_000 else "different edges have"
    with pytest.warns(DataWarning, match=f"edges: 100% of .*{sampled}"):
        convert(tmp_path / "both", **{**nodes, "edges": both, "memory": "64MiB"}, reverse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        convert(tmp_path / "one", **{**nodes, "edges": one_way, "memory": "64MiB"}, reverse=True)
        convert(tmp_path / "once", **{**nodes, "edges": both, "memory": "64MiB"}, reverse=True, drop_duplicates=True)
        convert(tmp_path / "directed", **{**nodes, "edges": both, "memory": "64MiB"})
    np.save(tmp_path / "both.npy", both[:, rng.permutation(2 * num_edges)])
    np.save(tmp_path / "x.npy", nodes["features"])
    np.save(tmp_path / "y.npy", nodes["labels"])
    np.save(tmp_path / "train.npy", data["train"])
    said = run("convert", tmp_path / "cli", "--edges", tmp_path / "both.npy", "--features", tmp_path / "x.npy",
               "--labels", tmp_path / "y.npy", "--train", tmp_path / "train.npy", "--reverse").stderr  # fmt: skip
    assert "--reverse adds it once more; leave it out, or pass --drop-duplicates" in " ".join(said.split())
