"""Objects of a store, read in ranges: several on the way at a time, each asked for again if it does not come whole."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ReadError, StoreError
from diskgnn.ordered import in_order
from diskgnn.stores.drivers import is_refused, named_errors, problem
from diskgnn.stores.locations import StoredPath

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")

ATTEMPTS = 4  # of each range, beside those that the driver makes by itself
FIRST_PAUSE_SECONDS = 0.1  # before the second attempt; twice as long before each other one
RANGE_BYTES = 8 << 20  # of one request at most: long enough for the rate of a connection
RANGES_AHEAD = 4  # of a file that is read front to back; so many and one more are in memory
RANGES_AT_ONCE = 16  # where many ranges are known
# Gaps up to this size are read along: a request of its own takes as long as a megabyte (20 ms at 50 MB/s).
GAP_BYTES = 1 << 20
_VERSIONS = ("ETag", "generation")  # of S3, and of Google's


class RemoteFile:
    """An object, opened. With `front_to_back`, what follows is asked for before it is wanted.

    Raises:
        StoreError: the store fails or refuses.
        FileNotFoundError: it is not there.
    """

    def __init__(self, location: StoredPath, *, front_to_back: bool = False) -> None:
        self._location, self._front_to_back = location, front_to_back
        self._pool: ThreadPoolExecutor | None = None
        self._file = self._opened()
        self.size, self._version = self._state(self._file)
        self._coming: Iterator[bytes] = iter(())  # with `front_to_back`: the ranges from `_position` on
        self._begun, self._position = memoryview(b""), 0  # what is left of the range that came last, and where it is

    def _opened(self) -> pa.NativeFile:
        filesystem, path = self._location.locate()
        return attempted(f"opening {self._location}", partial(filesystem.open_input_file, path))

    def _state(self, file: pa.NativeFile) -> tuple[int, Any]:
        """Returns the length, and what else changes when another object takes its place, where the store has such."""
        with named_errors(f"opening {self._location}"):
            known = file.metadata() or {}
            return file.size(), [known[key] for key in _VERSIONS if key in known]

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes it, and asks for nothing more."""
        self._coming = iter(())
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self._file.close()

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fills `view` from byte `offset` on. Returns the bytes read: fewer than it holds only at the end.

        Raises:
            StoreError: a range did not come at any of ATTEMPTS attempts.
            ArtifactError: read front to back, it was another object at the end.
        """
        end = min(offset + len(view), self.size)
        if end <= offset:
            return 0
        if self._front_to_back:
            return self._read_on(offset, view[: end - offset])
        filled = 0
        for part in self._ranges(offset, end):
            view[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def read_ranges(
        self,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        buffer: npt.NDArray[np.uint8],
    ) -> None:
        """Reads range i, of lengths[i] bytes, to places[i] of `buffer`, for all [n] of them.

        Raises:
            StoreError: see `read_into`.
            ArtifactError: the object ends early.
        """
        if len(offsets) and int((offsets + lengths).max()) > self.size:
            raise ArtifactError(f"{self._location} ends early: it has {self.size} bytes; it was truncated or replaced")

        def read(offset: int, place: int, num_bytes: int) -> None:
            buffer[place : place + num_bytes] = np.frombuffer(self._range(offset, num_bytes), np.uint8)

        calls = (
            partial(read, offset + first, place + first, min(RANGE_BYTES, length - first))
            for offset, length, place in zip(offsets.tolist(), lengths.tolist(), places.tolist(), strict=True)
            for first in range(0, length, RANGE_BYTES)
        )
        for _ in in_order(self._threads(), calls, ahead=RANGES_AT_ONCE):
            pass

    def _read_on(self, offset: int, view: memoryview) -> int:
        if offset != self._position:
            self._begun, self._coming, self._position = memoryview(b""), iter(()), offset
        filled = 0
        while filled < len(view):
            if not self._begun:
                self._begun = memoryview(self._next_range())
            part = self._begun[: len(view) - filled]
            view[filled : filled + len(part)] = part
            self._begun = self._begun[len(part) :]
            filled += len(part)
            self._position += len(part)
        if self._position == self.size:
            self._require_same()
        return filled

    def _require_same(self) -> None:
        """Refuses what was read if its parts may be of two objects."""
        with self._opened() as now:
            if self._state(now) != (self.size, self._version):
                raise ArtifactError(f"{self._location} was replaced while it was read: run this again")

    def _next_range(self) -> bytes:
        """Returns what follows `_position`, which is not the end."""
        if (data := next(self._coming, None)) is None:
            self._coming = self._ranges(self._position, self.size)
            data = next(self._coming)
        return data

    def _ranges(self, begin: int, end: int) -> Iterator[bytes]:
        """Yields bytes [begin, end), in order."""
        if end - begin <= RANGE_BYTES:
            return iter([self._range(begin, end - begin)])
        calls = (partial(self._range, first, min(RANGE_BYTES, end - first)) for first in range(begin, end, RANGE_BYTES))
        return in_order(self._threads(), calls, ahead=RANGES_AHEAD)

    def _range(self, offset: int, num_bytes: int) -> bytes:
        def read() -> bytes:
            data: bytes = self._file.read_at(num_bytes, offset)
            if len(data) != num_bytes:
                raise OSError(errno.EIO, f"{len(data)} bytes came")
            return data

        return attempted(f"reading {num_bytes} bytes at offset {offset} of {self._location}", read)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(RANGES_AT_ONCE, thread_name_prefix="ranges")
        return self._pool


def attempted(doing: str, call: Callable[[], Result]) -> Result:
    """Returns what `call` returns. It has ATTEMPTS, with pauses between them.

    Raises:
        StoreError: it failed at each of them, or was refused, which is final; says what was done.
        ReadError: a disk of this machine failed below a file that is sent.
        FileNotFoundError: what it asks for is not there.
    """
    for attempt in range(ATTEMPTS):
        try:
            return call()
        except (FileNotFoundError, ReadError):  # the latter was attempted already, by a disk or a store
            raise
        except OSError as error:
            if attempt == ATTEMPTS - 1 or is_refused(error):
                times = f" (at each of {ATTEMPTS} attempts)" if attempt == ATTEMPTS - 1 else ""
                raise StoreError(error.errno, f"{doing}{times}: {problem(error)}") from error
            time.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
    raise AssertionError
