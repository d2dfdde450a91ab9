"""Raw read rates of a folder's disk, measured on a temporary file that nobody else ever sees."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from diskgnn.artifacts import PathLike, require_free_bytes
from diskgnn.errors import ConfigError
from diskgnn.progress import SILENT, Advance, Reporter

SEQUENTIAL_READ_BYTES, RANDOM_READ_BYTES = 1 << 20, 4096
SEQUENTIAL_READERS, RANDOM_READERS = 8, 32
_LONGEST_SECONDS = 5.0  # of one measurement; a slow disk is measured on a part of the file


@dataclass(frozen=True)
class ReadRates:
    """What a disk delivered. All reads had 4096-byte aligned offsets and buffers."""

    engine: str  # what issued the reads
    direct_io: bool  # False: the file system refused O_DIRECT, so the page cache may have answered
    file_bytes: int
    sequential_bytes_per_second: float  # reads of 1 MiB, front to back, 8 at a time
    random_reads_per_second: float  # reads of 4 KiB at random offsets, 32 at a time
    random_bytes_per_second: float


@contextmanager
def scratch_file(folder: PathLike) -> Iterator[tuple[int, bool]]:
    """A nameless file in `folder`, and whether it is open with O_DIRECT. Gone however the process ends."""
    descriptor, name = tempfile.mkstemp(prefix=".diskgnn-", dir=folder)
    try:
        try:
            direct = os.open(name, os.O_RDWR | os.O_DIRECT)
        except OSError:  # tmpfs and some network file systems have no O_DIRECT
            direct = -1
    finally:
        Path(name).unlink()
    try:
        yield (descriptor, False) if direct < 0 else (direct, True)
    finally:
        os.close(descriptor)
        if direct >= 0:
            os.close(direct)


def measure_read_rates(folder: PathLike, *, file_bytes: int = 1 << 30, reporter: Reporter = SILENT) -> ReadRates:
    """Write `file_bytes` of random bytes into `folder`, read them front to back, then 4 KiB at a time at random.

    A file much smaller than the caches of the disk (or of the host, in a virtual machine) flatters the disk.

    Raises:
        ConfigError: the file would be smaller than 1 MiB.
        DiskFullError: it would not fit.
        OSError: the folder is not there or cannot be written.
    """
    file_bytes -= file_bytes % SEQUENTIAL_READ_BYTES
    if file_bytes == 0:
        raise ConfigError("expected a file size of at least 1MiB to measure with (--size)")
    require_free_bytes(Path(folder), file_bytes, "the file to measure with")
    with scratch_file(folder) as (descriptor, direct_io):
        with reporter.stage("write a file to measure with", file_bytes, "B") as advance:
            _write_random(descriptor, file_bytes, advance)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with reporter.stage("read sequentially", file_bytes, "B") as advance:
            offsets = range(0, file_bytes, SEQUENTIAL_READ_BYTES)
            sequential = _read_all(descriptor, list(offsets), SEQUENTIAL_READ_BYTES, SEQUENTIAL_READERS, advance)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        positions = range(0, file_bytes, RANDOM_READ_BYTES)
        scattered = random.Random(0).sample(positions, min(len(positions), 1 << 17))
        with reporter.stage("read at random", len(scattered) * RANDOM_READ_BYTES, "B") as advance:
            at_random = _read_all(descriptor, scattered, RANDOM_READ_BYTES, RANDOM_READERS, advance)
    engine = "preadv from Python threads"
    return ReadRates(engine, direct_io, file_bytes, sequential, at_random / RANDOM_READ_BYTES, at_random)


def _write_random(descriptor: int, file_bytes: int, advance: Advance) -> None:
    # Incompressible and never the same twice, or a clever disk would store and read next to nothing.
    generator = random.Random(1)
    with mmap.mmap(-1, SEQUENTIAL_READ_BYTES) as buffer:  # anonymous memory is page-aligned, as O_DIRECT wants it
        buffer[:] = generator.randbytes(SEQUENTIAL_READ_BYTES)
        for offset in range(0, file_bytes, SEQUENTIAL_READ_BYTES):
            for start in range(0, SEQUENTIAL_READ_BYTES, 4096):
                buffer[start : start + 16] = generator.randbytes(16)
            written = os.pwrite(descriptor, buffer, offset)
            if written != SEQUENTIAL_READ_BYTES:
                raise OSError(f"the disk took {written} of {SEQUENTIAL_READ_BYTES} bytes at {offset}")
            advance(written)
    os.fsync(descriptor)


def _read_all(descriptor: int, offsets: list[int], read_bytes: int, readers: int, advance: Advance) -> float:
    """Bytes per second while `readers` threads read `read_bytes` at each of `offsets`, in that order."""
    remaining = iter(offsets)
    deadline = time.perf_counter() + _LONGEST_SECONDS

    def read() -> int:
        done_bytes = 0
        with mmap.mmap(-1, read_bytes) as buffer:
            for offset in remaining:  # a list's iterator hands each offset to one thread only
                got = os.preadv(descriptor, [buffer], offset)
                if got != read_bytes:
                    raise OSError(f"the disk gave {got} of {read_bytes} bytes at {offset}")
                done_bytes += got
                if done_bytes % SEQUENTIAL_READ_BYTES == 0:  # seldom enough not to slow small reads down
                    advance(SEQUENTIAL_READ_BYTES)
                if time.perf_counter() > deadline:
                    break
        advance(done_bytes % SEQUENTIAL_READ_BYTES)
        return done_bytes

    started = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        done_bytes = sum(pool.map(lambda task: task(), [read] * readers))
    return done_bytes / (time.perf_counter() - started)
