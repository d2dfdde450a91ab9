"""Graphs that are made for a store: what is complete goes, and features that have no room here are never here."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from commands import run_python
from graphs import FEATURES, INDICES
from object_store import MostAllocated
from stored_graphs import digest

import diskgnn
from diskgnn.errors import DiskFullError
from diskgnn.files import faults
from diskgnn.formats.artifacts import MANIFEST

NUM_NODES, WIDTH = 6000, 512
FEATURE_BYTES = NUM_NODES * WIDTH * 4
GENERATED = {"num_nodes": NUM_NODES, "avg_degree": 4, "num_classes": 4, "num_features": WIDTH, "homophily": 0.5,
             "train_fraction": 0.1, "valid_fraction": 0.1, "test_fraction": 0.1, "threads": 1}  # fmt: skip
ROOM = FEATURE_BYTES // 4


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, random = tmp_path_factory.mktemp("given"), np.random.default_rng(1)
    arrays = {
        "features": random.standard_normal((NUM_NODES, WIDTH)).astype(np.float32),
        "edges": random.integers(0, NUM_NODES, (2, 20_000)),
        "labels": np.arange(NUM_NODES) % 3,
        "train": np.arange(100),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: folder / f"{name}.npy" for name in arrays}


@pytest.mark.parametrize("what", ["generate", "convert", "quantise"])
def test_a_graph_needs_less_room_here_than_its_features(store, given, tmp_path, what):
    arguments = {"generate": GENERATED, "convert": given, "quantise": given | {"quantise": "float16"}}[what]
    make, room = diskgnn.generate if what == "generate" else diskgnn.convert, ROOM
    with MostAllocated(tmp_path / "scratch") as found:
        make(store.url(f"{tmp_path.name}/made"), **arguments, disk=room)
    assert 0 < found.num_bytes <= room
    make(tmp_path / "made", **arguments)
    assert digest(store.url(f"{tmp_path.name}/made")) == digest(tmp_path / "made")
    for file in (tmp_path / "made").iterdir():
        assert store.read(f"{tmp_path.name}/made/{file.name}") == file.read_bytes()
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []


def test_too_little_room_for_edges_is_refused(store, given, tmp_path):
    with pytest.raises(DiskFullError, match="sorting the edges needs"):
        diskgnn.convert(store.url(f"{tmp_path.name}/made"), **given, disk="160KiB")
    assert store.names(f"{tmp_path.name}/made") == []


def test_a_killed_conversion_goes_on_with_the_edges_that_were_sent(store, given, tmp_path):
    url = store.url(f"{tmp_path.name}/made")
    script = (
        f"import os, signal, diskgnn\nfrom diskgnn.files import faults\n"
        f"with faults.armed('artifact.write', lambda: os.kill(os.getpid(), signal.SIGKILL), after=9), \\\n"
        f"        faults.pretending('unit.bytes', 1 << 16):\n"
        f"    diskgnn.convert({url!r}, disk={ROOM}, **{ {name: str(path) for name, path in given.items()}!r})"
    )
    assert run_python("-c", script).returncode == -signal.SIGKILL
    assert INDICES in store.names(f"{tmp_path.name}/made")
    assert MANIFEST not in store.names(f"{tmp_path.name}/made")
    store.proxy.reset()
    with faults.pretending("unit.bytes", 1 << 16):
        diskgnn.convert(url, disk=ROOM, **given)
    written = [request.path for request in store.proxy.requests if request.method in ("PUT", "POST")]
    assert any(FEATURES in path for path in written)
    assert not any(INDICES in path for path in written)
    diskgnn.convert(tmp_path / "made", **given)
    assert digest(url) == digest(tmp_path / "made")
