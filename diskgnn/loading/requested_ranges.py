"""Extents of an object store: threads bring the ranges that a pipeline asks for, straight into its read-ahead."""

from __future__ import annotations

import os
import threading
from functools import partial

from diskgnn._native import REQUEST_DEPTH, FailedRequestError, ReadRequests
from diskgnn.files.file_reading import fill
from diskgnn.stores.locations import StoredPath
from diskgnn.stores.remote_files import RemoteFile


class RequestedRanges:
    """Brings what is asked for by `requests`, with REQUEST_DEPTH requests of at most REQUEST_BYTES on the way.

    Args:
        location: of the object.

    Attributes:
        requests: what a `Pipeline` asks by.
        num_bytes: length of the object.

    Raises:
        StoreError: the store fails or refuses.
        FileNotFoundError: it is not there.
    """

    def __init__(self, location: StoredPath) -> None:
        self._owner, self._file = os.getpid(), RemoteFile(location)
        self.num_bytes, self.requests = self._file.size, ReadRequests()
        self._failures: list[Exception] = []
        # Daemons, so that they do not keep the interpreter from ending. They do not know this object, which may go.
        bring = partial(_bring, location, self._file, self.requests, self._failures)
        self._threads = [
            threading.Thread(target=bring, name="diskgnn-ranges", daemon=True) for _ in range(REQUEST_DEPTH)
        ]
        for thread in self._threads:
            thread.start()

    def failure(self, error: FailedRequestError) -> Exception:
        """Returns the error to raise, if a request failed."""
        return self._failures[0] if self._failures else error

    def forget(self) -> None:
        """Forgets what failed before: the pipeline starts again."""
        self._failures.clear()

    def close(self) -> None:
        """Bring nothing more, once no pipeline asks. Idempotent."""
        if self._owner != os.getpid():  # after a fork: the threads, and locks that they hold, are in the parent
            return
        self.requests.close()
        for thread in self._threads:
            if thread is not threading.current_thread():  # a garbage collection may come in this very thread
                thread.join()
        self._file.close()


def _bring(location: StoredPath, file: RemoteFile, requests: ReadRequests, failures: list[Exception]) -> None:
    while (request := requests.take()) is not None:
        failed = True
        try:
            fill(file, request.offset, request.destination.data, location)
            failed = False
        except Exception as error:  # whatever it is belongs to who waits
            failures.append(error)
        finally:
            requests.finish(request, failed)
