"""Large files on their way to S3 in parts: a run that was cut goes on with the parts that are there."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from commands import run_python
from graphs import FEATURES
from object_store import Fault, Request
from stored_graphs import digest

import diskgnn
from diskgnn.errors import StoreError
from diskgnn.files import faults, file_reading
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.stores import remote_files
from diskgnn.stores.s3_parts import PART_BYTES
from diskgnn.work import outbox

NUM_PARTS = 4


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its features take NUM_PARTS parts, the last of which is short."""
    path = tmp_path_factory.mktemp("graph") / "graph"
    features = np.random.default_rng(2).standard_normal((NUM_PARTS * PART_BYTES // 4096 - 40, 1024), np.float32)
    edges = np.random.default_rng(0).integers(0, len(features), (2, 500))
    diskgnn.convert(path, features=features, edges=edges, labels=np.arange(len(features)) % 3, train=np.arange(50))
    return path


def killed(graph: Path, url: str, parts: int) -> None:
    """A push that dies when so many parts are there."""
    script = (
        f"import os, signal, diskgnn\nfrom diskgnn.files import faults\n"
        f"with faults.armed('upload.part', lambda: os.kill(os.getpid(), signal.SIGKILL), after={parts - 1}):\n"
        f"    diskgnn.push({str(graph)!r}, {url!r})"
    )
    assert run_python("-c", script).returncode == -signal.SIGKILL


def unfinished(url: str) -> list[str]:
    """Uploads of files of `url` that are not complete, whose parts lie on the store."""
    import boto3

    prefix = url.removeprefix("s3://bucket/")
    found = boto3.client("s3", region_name="us-east-1").list_multipart_uploads(Bucket="bucket", Prefix=prefix)
    return [upload["Key"] for upload in found.get("Uploads", ())]


def parts_sent(store) -> list[str]:
    return [request.path for request in store.proxy.requests if "partNumber" in request.path]


def test_a_killed_push_sends_only_the_parts_that_are_missing(store, graph, tmp_path):
    url = store.url(f"{tmp_path.name}/pushed")
    killed(graph, url, 2)
    there = len(parts_sent(store))
    store.proxy.reset()
    diskgnn.push(graph, url)
    assert len(parts_sent(store)) <= NUM_PARTS - 2
    assert there >= 2
    assert store.proxy.sent_bytes < (NUM_PARTS - 2) * PART_BYTES + 500_000
    assert store.read(f"{tmp_path.name}/pushed/{FEATURES}") == (graph / FEATURES).read_bytes()
    assert digest(url) == digest(graph)


def test_ctrl_c_waits_for_no_large_file(store, graph, tmp_path, monkeypatch):
    url, pieces = store.url(f"{tmp_path.name}/pushed"), []

    def pieces_of(file, path):
        for piece in file_reading.pieces_of(file, path):  # FEATURES has 32 of them
            if path.name == FEATURES:
                pieces.append(1)
                if len(pieces) == 1:
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                    time.sleep(1)
            yield piece

    with monkeypatch.context() as patched:
        patched.setattr(outbox, "pieces_of", pieces_of)
        with pytest.raises(KeyboardInterrupt):
            diskgnn.push(graph, url)
    assert len(pieces) < 8
    diskgnn.push(graph, url)
    assert store.read(f"{tmp_path.name}/pushed/{FEATURES}") == (graph / FEATURES).read_bytes()


def test_parts_of_other_bytes_are_sent_again(store, graph, tmp_path):
    """Another graph takes the place of the one that was being sent, and one of its parts is as before."""
    url, other = store.url(f"{tmp_path.name}/pushed"), tmp_path / "other"
    killed(graph, url, NUM_PARTS)
    features = np.load(graph / FEATURES)
    features[-1] += 1
    edges = np.random.default_rng(0).integers(0, len(features), (2, 500))
    diskgnn.convert(other, features=features, edges=edges, labels=np.arange(len(features)) % 3, train=np.arange(50))
    store.proxy.reset()
    diskgnn.push(other, url)
    assert [path.split("partNumber=")[1].split("&")[0] for path in parts_sent(store)] == [str(NUM_PARTS)]
    assert store.read(f"{tmp_path.name}/pushed/{FEATURES}") == (other / FEATURES).read_bytes()


def test_parts_of_a_file_that_became_small_are_removed(store, graph, tmp_path):
    url = store.url(f"{tmp_path.name}/pushed")
    killed(graph, url, 2)
    assert unfinished(url)
    small = np.zeros((20, 4), np.float32)
    diskgnn.convert(tmp_path / "small", features=small, edges=[[0], [1]], labels=np.arange(20) % 3, train=[0])
    diskgnn.push(tmp_path / "small", url)
    assert not unfinished(url)
    assert digest(url) == digest(tmp_path / "small")


def test_who_may_write_need_not_be_allowed_to_ask_for_parts(store, graph, tmp_path):
    url = store.url(f"{tmp_path.name}/pushed")
    killed(graph, url, 2)

    def refused(request: Request) -> Fault | None:
        of_parts = "uploadId" in request.path and request.method in ("GET", "DELETE")
        return Fault(status=403, code="AccessDenied") if of_parts else None

    with store.proxy.failing(refused):
        diskgnn.push(graph, url)
    assert digest(url) == digest(graph)


def test_an_upload_that_the_store_has_forgotten_begins_anew(store, graph, tmp_path):
    import boto3

    url = store.url(f"{tmp_path.name}/pushed")
    killed(graph, url, 2)
    client = boto3.client("s3", region_name="us-east-1")
    for upload in client.list_multipart_uploads(Bucket="bucket")["Uploads"]:
        client.abort_multipart_upload(Bucket="bucket", Key=upload["Key"], UploadId=upload["UploadId"])
    diskgnn.push(graph, url)
    assert digest(url) == digest(graph)
    assert store.read(f"{tmp_path.name}/pushed/{FEATURES}") == (graph / FEATURES).read_bytes()


def test_a_store_that_refuses_parts_is_an_error_and_the_next_run_goes_on(store, graph, tmp_path):
    url = store.url(f"{tmp_path.name}/pushed")

    def refused(request: Request) -> Fault | None:
        return Fault(status=403, code="AccessDenied") if "partNumber=3" in request.path else None

    with store.proxy.failing(refused), pytest.raises(StoreError, match=r"writing part 3 of .*store refused"):
        diskgnn.push(graph, url)
    assert MANIFEST not in store.names(f"{tmp_path.name}/pushed")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("parts")]
    store.proxy.reset()
    with store.proxy.failing(
        lambda request: Fault(503) if "partNumber" in request.path and request.number % 2 else None
    ):
        diskgnn.push(graph, url)
    assert digest(url) == digest(graph)


@pytest.mark.parametrize("asked_for", [None, "when_supported"])
def test_parts_have_no_checksum_that_other_servers_refuse(store, graph, tmp_path, monkeypatch, asked_for):
    """Of AWS's own, which boto3 adds by default: only who asks for it has it sent to a server of another make."""
    if asked_for is not None:
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", asked_for)
    diskgnn.push(graph, store.url(f"{tmp_path.name}/pushed"))
    heads = [request.head.lower() for request in store.proxy.requests if "partNumber" in request.path]
    assert len(heads) == NUM_PARTS
    assert {"x-amz-checksum" in head for head in heads} == {asked_for is not None}


def test_what_is_given_up_leaves_no_parts(store, graph, tmp_path):
    """A stage with other settings, whose files are others, removes what the one before has sent."""
    url = store.url(f"{tmp_path.name}/made")
    given = {"num_nodes": 8000, "avg_degree": 2, "num_classes": 4, "homophily": 0.5, "train_fraction": 0.1,
             "valid_fraction": 0.1, "test_fraction": 0.1}  # fmt: skip
    stopped = faults.armed("upload.part", KeyboardInterrupt(), after=1)
    with stopped, pytest.raises(KeyboardInterrupt):
        diskgnn.generate(url, num_features=1024, **given)
    diskgnn.generate(url, num_features=8, **given)
    assert not unfinished(url)
    assert store.names(f"{tmp_path.name}/made")


def test_parts_that_no_record_knows_are_removed(store, graph, tmp_path):
    """A run may die before it has noted the upload that it began, and pyarrow's driver never says which it began."""
    import boto3

    name, client = f"{tmp_path.name}/pushed", boto3.client("s3", region_name="us-east-1")
    of_others = [f"{name}-too/{FEATURES}", f"{name}/deeper/{FEATURES}"]
    for key in (f"{name}/{FEATURES}", *of_others):
        client.create_multipart_upload(Bucket="bucket", Key=key)
    diskgnn.push(graph, store.url(name))
    assert sorted(unfinished(f"s3://bucket/{name}")) == sorted(of_others)
