"""Directories copied from an S3 server on loopback: resumed, checked, whole or not at all."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from graphs import FEATURES, make_graph
from stored_graphs import PREPARE, file_bytes, same_files

import diskgnn
from diskgnn.errors import (
    ConfigError,
    DiskFullError,
    OutputExistsError,
)
from diskgnn.files import faults, file_reading
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.verification import find_damage
from diskgnn.work import fetching


def test_fetch_goes_on_within_a_file_after_a_kill(store, there, graph, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    monkeypatch.setattr(fetching, "NOTED_BYTES", 100_000)
    monkeypatch.setattr(file_reading, "_PIECE_BYTES", 50_000)
    monkeypatch.setattr(fetching, "FILES_AT_ONCE", 1)
    with faults.armed("fetch.range", Killed(), after=3), pytest.raises(Killed):
        diskgnn.fetch(there, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    report = diskgnn.fetch(there, tmp_path / "fetched")
    assert report.read_bytes < report.written_bytes - 300_000
    assert same_files(tmp_path / "fetched", graph)


def test_ctrl_c_waits_for_no_file(store, there, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "NOTED_BYTES", 10_000)
    monkeypatch.setattr(file_reading, "_PIECE_BYTES", 10_000)  # FEATURES has 51 of them
    monkeypatch.setattr(fetching, "FILES_AT_ONCE", 1)
    pieces = []

    def stop():
        pieces.append(1)
        if len(pieces) == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(1)

    with faults.armed("fetch.range", stop), pytest.raises(KeyboardInterrupt):
        diskgnn.fetch(there, tmp_path / "fetched")
    assert len(pieces) < 10


def test_fetch_keeps_what_came_while_another_file_is_slow(store, there, graph, tmp_path, monkeypatch):
    """The slow one waits until all others are finished, those that follow it, too."""
    monkeypatch.setattr(fetching, "NOTED_BYTES", 100_000)
    monkeypatch.setattr(file_reading, "_PIECE_BYTES", 50_000)
    others, finished, others_came = len(read_manifest(graph).files) - 1, [], threading.Event()

    def finish():
        finished.append("")
        if len(finished) == others:
            others_came.set()

    with faults.armed("work.unit", finish), faults.armed("fetch.range", lambda: waited.append(others_came.wait(60))):
        waited = []
        diskgnn.fetch(there, tmp_path / "fetched")
    assert waited
    assert all(waited)
    assert same_files(tmp_path / "fetched", graph)


def test_fetch_believes_nothing_that_was_changed_meanwhile(store, there, graph, tmp_path):
    with faults.armed("work.unit", OSError("stopped"), after=3), pytest.raises(OSError, match="stopped"):
        diskgnn.fetch(there, tmp_path / "fetched")
    for file in (tmp_path / ".fetched.partial").glob("*.npy"):
        file.write_bytes(bytes(file.stat().st_size))
    diskgnn.fetch(there, tmp_path / "fetched")
    assert same_files(tmp_path / "fetched", graph)


@pytest.mark.parametrize("changed", ["the copy", "the store"])
def test_fetch_begins_a_file_anew_that_is_not_what_came(store, there, tmp_path, monkeypatch, changed):
    monkeypatch.setattr(fetching, "NOTED_BYTES", 100_000)
    monkeypatch.setattr(file_reading, "_PIECE_BYTES", 50_000)
    with faults.armed("fetch.range", OSError("stopped"), after=3), pytest.raises(OSError, match="stopped"):
        diskgnn.fetch(there, tmp_path / "fetched")
    noted = tmp_path / ".fetched.partial" / f"{FEATURES}.part"
    assert noted.stat().st_size >= 100_000
    if changed == "the copy":
        noted.write_bytes(bytes(noted.stat().st_size))
    else:
        make_graph(tmp_path / "other", num_nodes=2000, width=64, splits={"train": 300, "valid": 50}, seed=5)
        diskgnn.push(tmp_path / "other", there, overwrite=True)
    diskgnn.fetch(there, tmp_path / "fetched")
    assert read_manifest(tmp_path / "fetched").digest == read_manifest(there).digest
    assert find_damage(tmp_path / "fetched")[1] == []


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
