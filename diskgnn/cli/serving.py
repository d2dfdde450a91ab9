"""`--serve PORT`: a page that shows what a command does while it runs, for whoever is on this machine."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.progress.reporter import Advance, Reporter, say
from diskgnn.redaction import redacted_argument

HOST = "127.0.0.1"  # nobody else's machine can ask
_MAX_STAGES, _MAX_RECORDS = 200, 5000  # the last ones are kept


class Board:
    """Holds what a command has told so far: its stages (as a `progress.Reporter`) and, of training, its metrics."""

    def __init__(self, command: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._command, self._started = [redacted_argument(each) for each in command], time.time()
        self._stages, self._records = deque[dict[str, Any]](maxlen=_MAX_STAGES), deque[Any](maxlen=_MAX_RECORDS)

    def reporter(self, inner: Reporter) -> Reporter:
        """Tells `inner` what it is told, and this board."""
        return _Both(self, inner)

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """See `progress.Reporter`."""
        entry: dict[str, Any] = {"name": description, "total": total, "unit": unit, "done": 0, "ended": None,
                                 "started": time.time()}  # fmt: skip
        with self._lock:
            self._stages.append(entry)

        def advance(amount: int) -> None:
            with self._lock:
                entry["done"] += amount

        try:
            yield advance
        finally:
            entry["ended"] = time.time()

    def add(self, record: Mapping[str, Any]) -> None:
        """Takes a record of `diskgnn.training.metrics`."""
        with self._lock:
            self._records.append(dict(record))

    def document(self) -> dict[str, Any]:
        """Returns all of it, for JSON. Times are seconds since 1970."""
        with self._lock:
            return {"command": self._command, "started": self._started, "now": time.time(),
                    "stages": [dict(stage) for stage in self._stages], "records": list(self._records)}  # fmt: skip


class _Both:
    def __init__(self, board: Board, inner: Reporter) -> None:
        self._board, self._inner = board, inner

    def say(self, line: str) -> None:
        """Takes a line for the terminal alone."""
        say(self._inner, lambda: line)

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        with (
            self._inner.stage(description, total, unit) as first,
            self._board.stage(description, total, unit) as second,
        ):

            def advance(amount: int) -> None:
                first(amount)
                second(amount)

            yield advance


class _Handler(BaseHTTPRequestHandler):
    board: Board

    def do_GET(self) -> None:
        """Sends the page, or what it shows. A page of somewhere else that was given this address gets neither."""
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            self.send_error(403)
        elif self.path == "/":
            self._send("text/html; charset=utf-8", files("diskgnn.cli").joinpath("serving.html").read_bytes())
        elif self.path == "/board.json":
            self._send("application/json", json.dumps(self.board.document()).encode())
        else:
            self.send_error(404)

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Requests are nobody's news."""


@contextmanager
def served(board: Board, port: int) -> Iterator[str]:
    """Show `board` at the address that is yielded, until the block ends; port 0 takes any that is free.

    Raises:
        ConfigError: the port cannot be had.
    """
    try:
        server = ThreadingHTTPServer((HOST, port), type("Handler", (_Handler,), {"board": board}))
    except OSError as error:
        raise ConfigError(
            f"serve: expected a port that is free, found that {port} is not ({error.strerror}); 0 takes any"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
