"""What is on its way to a store takes so much memory and no more: counted in bytes, and by the kernel."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diskgnn.errors import StoreError
from diskgnn.files.destination import scratch_of
from diskgnn.formats.manifest import open_artifact
from diskgnn.stores import uploads
from diskgnn.stores.locations import StoredPath
from diskgnn.stores.s3_parts import PART_BYTES
from diskgnn.stores.upload_memory import UPLOAD_BYTES, UploadMemory
from diskgnn.system.memory_cgroup import refusal
from diskgnn.work.sent_record import SentRecord

MIB = 1 << 20
TOTAL_PARTS = 3  # that have room at once
HEADROOM_BYTES = 24 << 20  # pages of files under way, and page tables


class SlowStore:
    """Takes parts, each only when it is let; knows how many bytes it was given and has not taken yet."""

    def __init__(self) -> None:
        self.let, self.failing = threading.Semaphore(0), False
        self.given_bytes = self.most_bytes = 0
        self.objects: dict[str, dict[int, bytes]] = {}
        self._lock = threading.Lock()

    def begin(self) -> str:
        with self._lock:
            self.objects[name := str(len(self.objects))] = {}
        return name

    def send(self, upload_id, number, body) -> str:
        body.seek(0)
        data = body.read()
        with self._lock:
            self.given_bytes += len(data)
            self.most_bytes = max(self.most_bytes, self.given_bytes)
        assert self.let.acquire(timeout=60)
        with self._lock:
            self.given_bytes -= len(data)
        if self.failing:
            raise PermissionError("no")
        self.objects[upload_id][number] = data
        return "etag"

    def complete(self, upload_id, etags) -> None:
        assert sorted(etags) == sorted(self.objects[upload_id])


@pytest.fixture
def memory() -> UploadMemory:
    return UploadMemory(TOTAL_PARTS * PART_BYTES)


def until(condition) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def send_file(store: SlowStore, memory: UploadMemory, name: str, folder: Path, num_bytes: int) -> None:
    """A file of so many bytes `name`, in pieces that are no parts."""
    target = StoredPath(f"s3://bucket/{folder.name}/{name}")
    scratch_of(target).parent.mkdir(parents=True, exist_ok=True)
    upload = uploads.PartedUpload(store, target, num_bytes, SentRecord(target), memory)
    try:
        piece = name.encode() * (3 * MIB)
        for first in range(0, num_bytes, len(piece)):
            upload.write(piece[: num_bytes - first])
        upload.close()
    finally:
        upload.abandon()


def test_files_at_once_hold_no_more_than_there_is(memory: UploadMemory, tmp_path: Path) -> None:
    store, num_bytes = SlowStore(), 2 * PART_BYTES + 5
    with ThreadPoolExecutor(5) as pool:
        files = [pool.submit(send_file, store, memory, name, tmp_path, num_bytes) for name in "abcde"]
        for _ in range(5 * 3):
            until(lambda: store.given_bytes or all(file.done() for file in files))
            store.let.release()
        for file in files:
            file.result()
    assert store.most_bytes <= memory.total_bytes
    assert memory.claimed_bytes == 0
    found = sorted(b"".join(parts[number] for number in sorted(parts)) for parts in store.objects.values())
    assert found == [name.encode() * num_bytes for name in "abcde"]


def test_parts_larger_than_all_go_two_at_a_time(memory: UploadMemory, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "MOST_PARTS", 3)
    store, num_bytes = SlowStore(), 8 * PART_BYTES
    for _ in range(10):
        store.let.release()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: send_file(store, memory, name, tmp_path, num_bytes), "abc"))
    assert store.most_bytes <= 2 * 4 * PART_BYTES  # parts as large as they have to be
    assert memory.claimed_bytes == 0


def test_a_part_that_is_being_filled_lets_other_files_pass(memory: UploadMemory, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "MOST_PARTS", 2)
    store, num_bytes = SlowStore(), 2 * TOTAL_PARTS * PART_BYTES  # one part, larger than all
    for _ in range(10):
        store.let.release()
    target = StoredPath(f"s3://bucket/{tmp_path.name}/a")
    scratch_of(target).parent.mkdir(parents=True, exist_ok=True)
    upload = uploads.PartedUpload(store, target, num_bytes, SentRecord(target), memory)
    upload.write(b"a" * (num_bytes // 2))
    send_file(store, memory, "b", tmp_path, PART_BYTES + 1)
    upload.write(b"a" * (num_bytes // 2))
    upload.close()
    assert store.objects == {"0": {1: b"a" * num_bytes}, "1": {1: b"b" * (PART_BYTES + 1)}}
    assert memory.claimed_bytes == 0


def test_an_upload_that_fails_gives_back_what_it_held(memory: UploadMemory, tmp_path: Path) -> None:
    store = SlowStore()
    store.failing = True
    for _ in range(10):
        store.let.release()
    with pytest.raises(StoreError, match="refused"):
        send_file(store, memory, "a", tmp_path, 4 * PART_BYTES)
    assert memory.claimed_bytes == 0


@pytest.mark.skipif(bool(refusal()), reason="no memory cgroup can be made here")
@pytest.mark.parametrize("stage", ["generate", "prepare"])
def test_the_smallest_budget_is_kept_while_what_is_made_is_sent(store, tmp_path, monkeypatch, stage) -> None:
    """By pyarrow, and by boto3, which does not take part where a URL has settings that it does not know."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    from measure_budgets import least_bytes, run

    url, made = store.url(f"{tmp_path.name}/made"), str(tmp_path / "made")
    generate = ["--num-nodes", "40000", "--num-features", "768", "--threads", "1"]  # 117 MiB
    if stage == "generate":
        here, there = ["generate", made, *generate], ["generate", f"{url}?smart_defaults=standard", *generate]
    else:
        pytest.importorskip("boto3")
        graph = str(tmp_path / "graph")
        assert run(["generate", graph, *generate], 1 << 30).exit_code == 0
        given = ["--fanouts", "5,5", "--batch-size", "256", "--cpu-cache", "5%", "--threads", "1"]
        here, there = (["prepare", graph, place, *given] for place in (made, url))
    budget = least_bytes(there)
    assert budget >= least_bytes(here) + UPLOAD_BYTES
    done = run([*there, "--memory", str(budget)], budget + HEADROOM_BYTES)
    assert (done.exit_code, done.oom_kills) == (0, 0), done.errors
    assert done.anonymous_bytes <= budget
    assert open_artifact(url).total_bytes > 80 * MIB
