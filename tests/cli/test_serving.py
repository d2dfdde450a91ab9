"""--serve: the page of a running command says what the command told, to this machine only, and looks whole."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_browser
from commands import run

import diskgnn
from diskgnn.cli.serving import Board, served
from diskgnn.errors import ConfigError
from diskgnn.progress.reporter import SILENT

SHOWN = ("diskgnn train <b>packed</b>", "running: epoch 1", "2 of 3", "25.0 %\nwaiting", "2.0 MiB/s\nread from disk",
         "500/s\nfeature rows", "0.7500", "75.0 %", "4 of 10 minibatches", "left, of all epochs")  # fmt: skip


def ask(address: str, path: str = "/board.json", host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=20)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.fixture
def board() -> Iterator[Board]:
    """In the second of three epochs, after a first one that was evaluated."""
    board = Board(["diskgnn", "train", "<b>packed</b>"])
    board.add({"event": "start", "epochs": 3, "num_batches": 10, "lr": None})
    reporter = board.reporter(SILENT)
    with reporter.stage("epoch 0", 10, "minibatches") as advance:
        advance(10)
    for batch, loss in ((5, 1.5), (10, None)):
        board.add({"event": "step", "epoch": 0, "batch": batch, "loss": loss, "seconds": 2.0, "wait_seconds": 0.5,
                   "read_bytes": 4 << 20, "requested_rows": 1000})  # fmt: skip
    board.add({"event": "epoch", "epoch": 0, "loss": 1.25, "train_seconds": 4.0, "wait_seconds": 1.0,
               "read_bytes": 8 << 20, "requested_rows": 2000, "hit_rate_device": 0.0, "hit_rate_pinned": 0.0,
               "hit_rate_cpu": 0.25, "valid_loss": 1.0, "valid_accuracy": 0.75})  # fmt: skip
    with reporter.stage("epoch 1", 10, "minibatches") as advance:
        advance(4)
        yield board


def test_it_says_what_was_told_until_the_block_ends(board):
    with served(board, 0) as address:
        status, content = ask(address)
        found = json.loads(content)
        assert status == 200
        assert found["command"] == ["diskgnn", "train", "<b>packed</b>"]
        assert [(stage["name"], stage["done"], stage["ended"] is None) for stage in found["stages"]] == [
            ("epoch 0", 10, False), ("epoch 1", 4, True)]  # fmt: skip
        assert [record["event"] for record in found["records"]] == ["start", "step", "step", "epoch"]
        assert ask(address, "/../etc/passwd")[0] == 404
    with pytest.raises(ConnectionRefusedError):
        ask(address)


def test_pages_of_elsewhere_that_were_given_this_address_get_nothing(board):
    with served(board, 0) as address:
        port = address.rstrip("/").rpartition(":")[2]
        assert [ask(address, host=host)[0] for host in (f"localhost:{port}", f"evil.example:{port}", "")] == [
            200, 403, 403]  # fmt: skip


def test_a_port_that_is_taken_is_said_and_nothing_runs(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"serve: expected a port that is free, found that {port} is not"):
            served(Board([]), port).__enter__()
        said = run(
            "generate", tmp_path / "graph", "--num-nodes", 100, "--serve", port, exit_code=ConfigError.exit_code
        ).output
    assert "--serve: expected a port" in said
    assert not (tmp_path / "graph").exists()


def test_a_command_can_be_watched_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packed = tmp_path / "packed"
    diskgnn.generate(
        tmp_path / "graph", num_nodes=300, avg_degree=4, num_classes=3, num_features=4, homophily=0.8,
        train_fraction=0.5, valid_fraction=0.2, test_fraction=0.2,
    )  # fmt: skip
    diskgnn.prepare(tmp_path / "graph", packed, fanouts=[2], batch_size=50, cpu_cache="10%", static_cache=0)
    boards = []
    keep = Board.__init__
    monkeypatch.setattr(Board, "__init__", lambda self, command: (boards.append(self), keep(self, command))[1])
    threads = threading.active_count()
    plain, watched = (run("train", packed, "--epochs", 2, "--json", *more).stdout for more in ((), ("--serve", 0)))
    assert threading.active_count() == threads
    same = ("best_epoch", "test_accuracy", "valid_accuracy")
    assert [json.loads(plain)[name] for name in same] == [json.loads(watched)[name] for name in same]
    (board,) = boards
    told = board.document()
    assert [stage["name"] for stage in told["stages"]] == [
        "epoch 0",
        "evaluate",
        "evaluate",
        "epoch 1",
        "evaluate",
        "evaluate",
    ]
    assert all(stage["done"] == stage["total"] for stage in told["stages"])
    events = [record["event"] for record in told["records"]]
    assert (events[0], events[-1], events.count("epoch")) == ("start", "end", 2)


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome")
@pytest.mark.parametrize("width", [400, 1300])
def test_the_page_shows_it_without_complaints(board, tmp_path, width):
    with served(board, 0) as address, Browser(find_browser(), tmp_path / "profile") as browser:
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        browser.call("Page.navigate", url=address)
        browser.wait_for("document.querySelectorAll('.stage').length === 2")
        text = browser.evaluate("document.body.innerText")
        assert [said for said in SHOWN if said not in text] == []
        assert "pinned" not in text  # no row came from there
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert [said for said in browser.complaints() if "favicon" not in said] == []
