"""An S3 server on loopback (moto's), behind a proxy that counts bytes and lets requests fail."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from unittest import mock

import pyarrow.fs as pafs

from diskgnn.files.disk_space import allocated_bytes

BUCKET = "bucket"
SECRET = "a-very-secret-key"
_REQUEST = re.compile(rb"^(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1.1\r\n")


@dataclass(frozen=True)
class Request:
    """What a client asked for."""

    number: int  # of all, from 0
    method: str
    path: str  # with the query
    head: str = field(default="", repr=False)  # its headers


@dataclass(frozen=True)
class Fault:
    """What becomes of a request: an answer that the server never gave; or its answer late, or only a part of it."""

    status: int | None = None
    code: str = "SlowDown"
    seconds: float = 0.0
    answer_bytes: int | None = None  # then the connection is cut


@dataclass
class Proxy:
    """Between clients and a server: `fault` says what becomes of each request."""

    server: tuple[str, int]
    fault: Callable[[Request], Fault | None] = lambda _: None
    requests: list[Request] = field(default_factory=list)
    sent_bytes: int = 0  # by clients
    received_bytes: int = 0

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        self._listening.close()

    def reset(self) -> None:
        """Nothing fails from now on, and nothing was counted."""
        self.fault, self.requests, self.sent_bytes, self.received_bytes = lambda _: None, [], 0, 0

    def count(self, method: str) -> int:
        return sum(request.method == method for request in self.requests)

    @contextmanager
    def failing(self, fault: Callable[[Request], Fault | None]) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = lambda _: None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self.server) as server:
            pending: list[Fault] = []  # of the request that is being answered
            threading.Thread(target=self._answer, args=(server, client, pending), daemon=True).start()
            while data := client.recv(1 << 16):
                with self._lock:
                    self.sent_bytes += len(data)
                    found = _REQUEST.match(data)
                    if found:
                        head = data.partition(b"\r\n\r\n")[0].decode()
                        request = Request(len(self.requests), found[1].decode(), found[2].decode(), head)
                        self.requests.append(request)
                        fault = self.fault(request)
                        pending[:] = [] if fault is None else [fault]
                if found and pending and pending[0].status is not None:
                    client.sendall(_refusal(pending[0], found[1]))
                    return
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket, pending: list[Fault]) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                fault = pending.pop() if pending else Fault()
                if fault.seconds:
                    threading.Event().wait(fault.seconds)
                cut = fault.answer_bytes is not None
                data = data[: fault.answer_bytes]
                with self._lock:
                    self.received_bytes += len(data)
                client.sendall(data)
                if cut:
                    break
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _refusal(fault: Fault, method: bytes) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>no</Message></Error>".encode()
    head = f"HTTP/1.1 {fault.status} No\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\nConnection: close"
    return head.encode() + b"\r\n\r\n" + (b"" if method == b"HEAD" else body)


class ObjectStore:
    """The server, the proxy and a bucket."""

    def __init__(self, proxy: Proxy, server: tuple[str, int]) -> None:
        self.proxy = proxy
        # Past the proxy, for what a test does by itself.
        self._direct = pafs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{server[1]}", scheme="http", region="us-east-1", allow_bucket_creation=True,
            allow_delayed_open=True,  # a small object takes one request, and not three
        )  # fmt: skip
        self._direct.create_dir(BUCKET)

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def names(self, name: str) -> list[str]:
        found = self._direct.get_file_info(pafs.FileSelector(f"{BUCKET}/{name}", recursive=True, allow_not_found=True))
        return sorted(info.path.removeprefix(f"{BUCKET}/{name}/") for info in found if info.is_file)

    def read(self, name: str) -> bytes:
        with self._direct.open_input_stream(f"{BUCKET}/{name}") as stream:
            return stream.read()

    def write(self, name: str, data: bytes) -> None:
        with self._direct.open_output_stream(f"{BUCKET}/{name}") as stream:
            stream.write(data)

    def delete(self, name: str) -> None:
        self._direct.delete_file(f"{BUCKET}/{name}")

    def upload(self, folder: Path, name: str) -> str:
        """Copy a folder there by other means than ours; its URL."""
        pafs.copy_files(str(folder), f"{BUCKET}/{name}", destination_filesystem=self._direct, use_threads=False)
        return self.url(name)


class MostAllocated:
    """The most that the files of some folders take while a block runs, looked at every so many `seconds`."""

    def __init__(self, *folders: Path, seconds: float = 0.002) -> None:
        self._folders, self._seconds, self._done, self.num_bytes = folders, seconds, threading.Event(), 0
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.wait(self._seconds):
            with suppress(OSError):  # something went while it was looked at
                self.num_bytes = max(self.num_bytes, sum(map(allocated_bytes, self._folders)))

    def __enter__(self) -> MostAllocated:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store whose drivers find endpoint and credentials in the environment."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication
    from moto.server import ThreadedMotoServer

    # Moto lists its folder and tries 180 patterns for each request: a third of what one takes.
    known = cache(DomainDispatcherApplication.get_backend_for_host)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    proxy = Proxy(("127.0.0.1", port))
    environment = {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    try:
        with mock.patch.dict(os.environ, environment), \
                mock.patch.object(DomainDispatcherApplication, "get_backend_for_host", known):  # fmt: skip
            yield ObjectStore(proxy, ("127.0.0.1", port))
    finally:
        proxy.close()
        server.stop()
