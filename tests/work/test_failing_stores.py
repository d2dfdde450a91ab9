"""An S3 server whose connections are cut, slow or refused, and objects that are not what was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import run
from graphs import FEATURES, INDICES, LABELS
from object_store import SECRET, Fault, ObjectStore, Request
from stored_graphs import PREPARE, cut, same_files

import diskgnn
from diskgnn.errors import (
    ArtifactError,
    StoreError,
)
from diskgnn.formats.verification import find_damage
from diskgnn.stores import remote_files


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


def test_a_place_that_is_called_as_errors_are_is_not_taken_for_one(store, graph, tmp_path):
    """What a driver says repeats the bucket and the key."""
    url = store.upload(graph, f"{tmp_path.name}/signatures/Permission denied: EXPIRED")
    busy = lambda request: Fault(status=503) if request.method == "HEAD" else None  # noqa: E731
    with store.proxy.failing(busy), pytest.raises(StoreError, match="HTTP status 503") as failed:
        diskgnn.fetch(url, tmp_path / "fetched")
    assert "refused" not in str(failed.value)


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
