"""Loaders that read a packed directory from an S3 server on loopback: the same minibatches as from a disk."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path

import pytest
from commands import run
from object_store import Fault, ObjectStore, Request
from packed_directories import batches_of, key, wait_until

import diskgnn
from diskgnn._native import REQUEST_DEPTH
from diskgnn.errors import ArtifactError, ConfigError, StoreError
from diskgnn.formats.packed import Packed
from diskgnn.stores import remote_files


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """Two epochs of 10 minibatches, with all tiers."""
    folder = tmp_path_factory.mktemp("streaming")
    diskgnn.generate(folder / "graph", num_nodes=2000, avg_degree=6, num_features=64, num_classes=4, homophily=0.7,
                     train_fraction=0.15, valid_fraction=0.03, test_fraction=0.02, threads=1)  # fmt: skip
    diskgnn.prepare(folder / "graph", folder / "packed", fanouts=[3, 2], batch_size=32, epochs=2, cpu_cache="10%",
                    static_cache="5%", threads=1)  # fmt: skip
    return folder / "packed"


@pytest.fixture
def url(store: ObjectStore, packed: Path, tmp_path: Path) -> str:
    return store.upload(packed, f"{tmp_path.name}/packed")


def all_of(source: str | Path, **arguments) -> list:
    with diskgnn.Loader(source, **arguments) as loader:
        return [key(batch) for epoch in range(3) for batch in loader.epoch(epoch)]


def is_of_extents(request: Request) -> bool:
    return request.method == "GET" and request.path.partition("?")[0].endswith(".bin")


def ranges_threads() -> int:
    return sum(thread.name == "diskgnn-ranges" for thread in threading.enumerate())


@pytest.mark.parametrize("split", ["train", "valid"])
def test_minibatches_from_a_store_are_those_from_a_disk(store, url, packed, split):
    assert all_of(url, split=split, stream=True) == all_of(packed, split=split)


def test_it_goes_on_where_it_was_with_the_state_of_a_local_loader(url, packed):
    whole = all_of(packed)
    with diskgnn.Loader(packed) as local:
        batches = local.epoch(1)
        for _ in range(4):
            next(batches)
        state = local.state_dict()
    with diskgnn.Loader(url, stream=True) as loader:
        loader.load_state_dict(state)
        assert [key(batch) for batch in loader.epoch(1)] == batches_of(whole, 1, first=4)
        assert [key(batch) for batch in loader.epoch(0)] == batches_of(whole, 0)  # a seek back


def test_answers_that_are_late_cut_or_refused_for_a_while_are_asked_for_again(store, url, packed, monkeypatch):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_SECONDS", 0.01)
    whole = all_of(packed)

    def fault(request: Request) -> Fault | None:
        if not is_of_extents(request):
            return None
        return (Fault(seconds=0.05), Fault(answer_bytes=5000), Fault(status=503), None)[request.number % 4]

    with store.proxy.failing(fault):
        assert all_of(url, stream=True) == whole


def test_a_store_that_fails_ends_the_epoch_with_what_was_asked_for_and_the_next_one_works(
    store, url, packed, monkeypatch
):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_SECONDS", 0.001)
    with diskgnn.Loader(url, stream=True) as loader:
        with (
            store.proxy.failing(lambda request: Fault(status=404) if is_of_extents(request) else None),
            pytest.raises((StoreError, FileNotFoundError)),
        ):
            list(loader.epoch(0))
        with (
            store.proxy.failing(
                lambda request: Fault(status=403, code="AccessDenied") if is_of_extents(request) else None
            ),
            pytest.raises(StoreError, match=r"offset 0 of s3://\S+/train.bin: the store refused"),
        ):
            list(loader.epoch(0))
        assert [key(batch) for batch in loader.epoch(0)] == batches_of(all_of(packed), 0)


def test_damage_is_found_and_names_the_extent(store, url, packed, tmp_path):
    content = bytearray((packed / "train.bin").read_bytes())
    index = Packed.open(packed).index("train")
    content[int(index.extents["offset"][3] + index.rows["rows_offset"][3, 0])] ^= 1
    store.write(f"{tmp_path.name}/packed/train.bin", bytes(content))
    with diskgnn.Loader(url, stream=True) as loader, pytest.raises(ArtifactError, match="extent 3 of s3://"):
        list(loader.epoch(0))


def test_a_loader_that_is_dropped_or_closed_leaves_no_thread(store, url):
    loader = diskgnn.Loader(url, stream=True)
    next(iter(loader))
    assert ranges_threads() == REQUEST_DEPTH
    del loader
    gc.collect()
    wait_until(lambda: ranges_threads() == 0)
    with (
        store.proxy.failing(lambda request: Fault(seconds=0.3) if is_of_extents(request) else None),
        diskgnn.Loader(url, stream=True) as loader,
    ):
        loader.epoch(0)  # closed while the first answer is awaited
    wait_until(lambda: ranges_threads() == 0)


def test_a_forked_process_may_drop_it(url):
    loader = diskgnn.Loader(url, stream=True)
    next(iter(loader))
    if (child := os.fork()) == 0:
        try:
            loader.close()
            del loader
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    loader.close()


def test_what_is_not_asked_for_is_refused(url, packed):
    with pytest.raises(ConfigError, match=r"diskgnn fetch s3://\S+ DIRECTORY`, or pass stream=True"):
        diskgnn.Loader(url)
    with pytest.raises(ConfigError, match="verify"):
        diskgnn.Loader(url, stream=True, verify=False)
    with pytest.raises(ArtifactError, match="not there"):
        diskgnn.Loader(f"{url}-not", stream=True)
    assert all_of(packed, stream=True) == all_of(packed)


def test_training_from_a_store_equals_training_from_a_disk(store, url, packed, tmp_path):
    given = ("--hidden", 8, "--epochs", 2, "--seed", 1)
    run("train", packed, *given, "--metrics", tmp_path / "local.jsonl")
    run("train", url, "--stream", *given, "--metrics", tmp_path / "streamed.jsonl", "--checkpoint", tmp_path / "run")
    assert losses(tmp_path / "streamed.jsonl") == losses(tmp_path / "local.jsonl") != []
    run("evaluate", url, "--stream", "--checkpoint", tmp_path / "run", "--split", "valid")
    assert "diskgnn fetch" in run("train", url, exit_code=2).output


def losses(metrics: Path) -> list[float]:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [record["loss"] for record in records if record["event"] == "epoch"]
