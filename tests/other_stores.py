"""Stores that are not S3, as processes of their own: the drivers may hold Python's lock while they wait for an answer.

    python other_stores.py gs|ftp FOLDER

prints the port that it listens on.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path


@contextmanager
def started(kind: str, folder: Path) -> Iterator[int]:
    """A server of this kind, whose files are in `folder` if it has any; its port."""
    command = [sys.executable, __file__, kind, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def _serve_gs() -> None:
    from http.server import ThreadingHTTPServer

    from gcp_storage_emulator.handlers import buckets
    from gcp_storage_emulator.server import RequestHandler, Router
    from gcp_storage_emulator.storage import Storage

    handling, handle = threading.Lock(), Router.handle

    def handle_alone(router: Router, method: str) -> None:
        """Its storage is not for several threads, and connections that are kept need one each."""
        with handling:
            handle(router, method)

    Router.handle = handle_alone
    RequestHandler.protocol_version = "HTTP/1.1"  # or else clients wait for a second before each body
    RequestHandler.disable_nagle_algorithm = True
    storage = Storage(use_memory_fs=True)
    buckets.create_bucket("bucket", storage)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RequestHandler, storage))
    print(server.server_port, flush=True)
    server.serve_forever()


def _serve_ftp(folder: str) -> None:
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import FTPServer

    FTPHandler.authorizer = DummyAuthorizer()
    FTPHandler.authorizer.add_anonymous(folder, perm="elradfmwMT")
    server = FTPServer(("127.0.0.1", 0), FTPHandler)
    print(server.address[1], flush=True)
    server.serve_forever(handle_exit=False)


if __name__ == "__main__":
    if sys.argv[1] == "gs":
        _serve_gs()
    else:
        import logging

        logging.getLogger("pyftpdlib").setLevel(logging.ERROR)
        _serve_ftp(sys.argv[2])
