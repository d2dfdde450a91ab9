"""Artifacts that somebody changed, and whose checksums fit: whoever opens one gets an error of diskgnn, or a result."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from forged_use import use
from forging import forge, write_manifest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diskgnn
from diskgnn._native import crc32c
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from fuzz_targets import sound_directories

KINDS = ("graph", "typed", "samples", "packed", "links", "hops", "tables", "columns")


@pytest.fixture(scope="module")
def sound() -> Path:
    return sound_directories()


def use_all(kind: str, folder: Path, sound: Path, told: str) -> None:
    for what, call in use(kind, folder, sound, folder.parent):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call()
        except diskgnn.DiskGNNError:
            continue
        except Exception as error:
            raise AssertionError(f"{what} of {told}: {error!r}") from error


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_only_errors_of_diskgnn_come_of_them(kind: str, seed: int, sound: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="diskgnn-forged-") as scratch:
        folder = Path(scratch) / kind
        shutil.copytree(sound / kind, folder)
        use_all(kind, folder, sound, forge(folder, seed))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_used_is_sound(kind: str, sound: Path, tmp_path: Path) -> None:
    """Else the test above would see nothing but refusals."""
    shutil.copytree(sound / kind, tmp_path / kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, call in use(kind, tmp_path / kind, sound, tmp_path):
            call()


def replace_array(folder: Path, name: str, array: np.ndarray) -> None:
    """With a checksum and a manifest that fit."""
    np.save(folder / name, array)
    document, data = json.loads((folder / "manifest.json").read_text()), (folder / name).read_bytes()
    document["files"][name] = {
        "bytes": len(data), "crc32c": f"{crc32c(np.frombuffer(data, np.uint8)):08x}", "dtype": array.dtype.str,
        "shape": list(array.shape),
    }  # fmt: skip
    write_manifest(folder, document)


def change_config(folder: Path, *path: str, value: object) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    *parents, last = path
    inner = document["config"]
    for key in parents:
        inner = inner[key]
    inner[last] = value
    write_manifest(folder, document)


def test_offsets_that_descend(sound: Path, tmp_path: Path) -> None:
    """They were a ValueError of inspection and of grouping, and an IndexError of loaders."""
    name = "indptr-node.to.node.npy"
    for place, value in ((9, -5), (30, 1 << 40), (59, 0)):
        folder = tmp_path / f"{place}" / "graph"
        shutil.copytree(sound / "graph", folder)
        offsets = np.load(folder / name)
        offsets[place] = value
        replace_array(folder, name, offsets)
        with pytest.raises(diskgnn.ArtifactError):
            diskgnn.prepare(folder, tmp_path / "out", fanouts=[2], batch_size=5, cpu_cache=0, group_seeds=2)
        use_all("graph", folder, sound, f"offset {place} is {value}")


@pytest.mark.parametrize("seeds", [np.arange(30.0), np.arange(30)[None], np.array(3), np.arange(30, dtype=np.int32)])
def test_splits_of_other_dtypes_and_shapes(sound: Path, tmp_path: Path, seeds: np.ndarray) -> None:
    folder = tmp_path / "graph"
    shutil.copytree(sound / "graph", folder)
    replace_array(folder, "train-node.npy", seeds)
    with pytest.raises(diskgnn.ArtifactError, match="has no list of nodes in train"):
        diskgnn.Graph.open(folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("target", "node_type"), "train"), (("splits",), {}), (("edge_ids",), True), (("num_nodes", "node"), 59),
     (("num_edges", "node:to:node"), 1 << 40), (("positions",), ["node:other:node"])],
)  # fmt: skip
def test_samples_that_contradict_their_graph(sound: Path, tmp_path: Path, path: tuple[str, ...], value: object) -> None:
    folder = tmp_path / "samples"
    shutil.copytree(sound / "samples", folder)
    change_config(folder, *path, value=value)
    with pytest.raises(diskgnn.ArtifactError, match="is damaged"):
        diskgnn.pack(sound / "graph", folder, tmp_path / "packed", cpu_cache=0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("num_edges", "node:to:node"), -1), (("num_edges", "node:to:node"), 1 << 63), (("num_nodes", "node"), -1),
        (("num_nodes", "node"), 1 << 63), (("splits", "train", "epochs"), 0),
        (("splits", "train", "batches_per_epoch"), -6), (("splits", "train", "batches_per_epoch"), 1 << 31),
    ],
)  # fmt: skip
def test_counts_that_nothing_has(sound: Path, tmp_path: Path, path: tuple[str, ...], value: int) -> None:
    for kind, parents, opened in (("samples", (), Samples.open), ("packed", ("samples",), Packed.open)):
        shutil.copytree(sound / kind, tmp_path / kind)
        change_config(tmp_path / kind, *parents, *path, value=value)
        with pytest.raises(diskgnn.ArtifactError, match=f"expected a number from .*, found {value}"):
            opened(tmp_path / kind)
