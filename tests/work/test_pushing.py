"""Finished directories sent to an S3 server on loopback: resumed, checked, and nothing else replaced."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pyarrow.fs as pafs
import pytest
from graphs import FEATURES, LABELS, make_graph
from object_store import Fault
from stored_graphs import PREPARE, arrays, digest

import diskgnn
from diskgnn.errors import (
    ArtifactError,
    OutputExistsError,
    StoreError,
)
from diskgnn.files import faults
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.verification import find_damage
from diskgnn.stores import remote_files
from diskgnn.work import outbox


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


def test_push_notices_what_somebody_else_writes_there_meanwhile(store, graph, tmp_path, monkeypatch):
    url, name = store.url(f"{tmp_path.name}/pushed"), f"{tmp_path.name}/pushed/{LABELS}"
    whole = (graph / LABELS).read_bytes()

    def overwrite() -> None:
        time.sleep(1.1)  # what the store says of times has seconds
        store.write(name, bytes(len(whole)))

    monkeypatch.setattr(outbox, "FILES_AT_ONCE", 1)
    last = len(read_manifest(graph).files) - 1
    with faults.armed("push.file", overwrite, after=last), pytest.raises(ArtifactError, match=f"{LABELS}.*else writes"):
        diskgnn.push(graph, url)
    assert MANIFEST not in store.names(f"{tmp_path.name}/pushed")
    report = diskgnn.push(graph, url)
    assert report.written_bytes == len(whole)
    assert store.read(name) == whole


@pytest.mark.parametrize("seconds", [0, 1.1], ids=["at once", "later"])
def test_push_heals_what_was_overwritten_after_it(store, graph, tmp_path, seconds):
    url, name = store.url(f"{tmp_path.name}/pushed"), f"{tmp_path.name}/pushed/{LABELS}"
    diskgnn.push(graph, url)
    time.sleep(seconds)
    whole = store.read(name)
    store.write(name, bytes(len(whole)))
    [damage] = find_damage(url)[1]
    assert LABELS in damage.problem
    assert "diskgnn push" in damage.problem
    assert "--repair" not in damage.problem
    assert diskgnn.push(graph, url).written_bytes == len(whole)
    assert find_damage(url)[1] == []


def test_push_again_sends_nothing_that_others_have_copied_there(store, there, graph):
    assert diskgnn.push(graph, there).written_bytes == 0


def test_push_that_replaces_goes_on_removing_what_was_there(store, there, tmp_path):
    make_graph(tmp_path / "other", num_nodes=50, splits={"train": 20})
    folder, made = f"{tmp_path.name}/graph", sorted(file.name for file in (tmp_path / "other").iterdir())

    def refused(request):
        return Fault(403, "AccessDenied") if request.method == "DELETE" and MANIFEST not in request.path else None

    with store.proxy.failing(refused), pytest.raises(StoreError, match="removing"):
        diskgnn.push(tmp_path / "other", there, overwrite=True)
    assert digest(there) == digest(tmp_path / "other")
    assert set(store.names(folder)) > set(made)
    assert diskgnn.push(tmp_path / "other", there).written_bytes == 0
    assert store.names(folder) == made


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


def test_push_sends_a_file_again_that_the_driver_gives_up(store, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_SECONDS", 0.001)
    asked = []

    def fault(request):
        if request.method != "PUT" or LABELS not in request.path:
            return None
        asked.append(request)
        return Fault(400, "BadDigest") if len(asked) == 1 else None

    with store.proxy.failing(fault):
        diskgnn.push(graph, store.url(f"{tmp_path.name}/pushed"))
    assert len(asked) == 2
    assert digest(store.url(f"{tmp_path.name}/pushed")) == digest(graph)


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


def test_pyarrow_reads_what_was_pushed(store, graph, tmp_path):
    diskgnn.push(graph, store.url(f"{tmp_path.name}/pushed"))
    filesystem, path = pafs.FileSystem.from_uri(store.url(f"{tmp_path.name}/pushed"))
    with filesystem.open_input_file(f"{path}/{LABELS}") as file:
        assert file.read() == (graph / LABELS).read_bytes()
