"""The physical limits that stages are compared with, disk rates past the page cache and memory copies; and clocks."""

from __future__ import annotations

import mmap
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from diskgnn._native import DIRECT_ALIGNMENT, crc32c, measure_reads
from diskgnn.compare.page_cache import drop
from diskgnn.progress.reporter import Advance
from diskgnn.system.disk_rates import scratch_file

READ_BYTES, READ_DEPTH = 1 << 20, 16
WRITE_BYTES, WRITERS = 4 << 20, 4
MAX_LIMIT_BYTES = 4 << 30  # of one measurement of a limit
MAX_MIXED_BYTES = 24 << 30  # more, as a host that caches writes takes the first ones faster than any disk
COPY_BYTES = 128 << 20


def drop_page_cache(folder: str | Path) -> None:
    """Write back and forget what the page cache holds of the files below `folder`."""
    drop(file for file in Path(folder).rglob("*") if file.is_file())


def sequential_read(path: Path, max_bytes: int = MAX_LIMIT_BYTES) -> tuple[int, float]:
    """(bytes, seconds) of reading `path` front to back with O_DIRECT, up to `max_bytes`."""
    num_bytes = min(path.stat().st_size, max_bytes)
    bytes_each = READ_BYTES if num_bytes >= READ_BYTES else DIRECT_ALIGNMENT  # a tiny file has a rate, too
    offsets = np.arange(num_bytes // bytes_each, dtype=np.uint64) * np.uint64(bytes_each)
    _, direct, read_bytes, seconds = measure_reads(str(path), offsets, bytes_each, READ_DEPTH, 60.0)
    if not direct:
        raise SystemExit(f"{path}: this file system has no O_DIRECT, so the page cache cannot be bypassed")
    return read_bytes, seconds


def read_rate(path: Path) -> float:
    """Bytes per second of `sequential_read`."""
    num_bytes, seconds = sequential_read(path)
    return num_bytes / seconds


def rates_beside_each_other(path: Path) -> tuple[float, float]:
    """Bytes per second read (see `read_rate`) and copied, while one thread does nothing but copy memory.

    One that assembles minibatches does that, too, while the disk writes into the same memory.
    """
    source, target, done = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8), threading.Event()
    np.copyto(target, source)  # its pages exist now

    def copy() -> float:
        copies, started = 0, time.perf_counter()
        while not done.is_set():
            np.copyto(target, source)  # without the GIL
            copies += 1
        return copies * COPY_BYTES / (time.perf_counter() - started)

    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(copy)
        try:
            rate = read_rate(path)
        finally:
            done.set()
        return rate, copying.result()


def random_page_reads_per_second(path: Path, max_reads: int = 1 << 16) -> float:
    """4 KiB reads per second at random offsets, 32 at a time."""
    pages = np.random.default_rng(0).permutation(path.stat().st_size // DIRECT_ALIGNMENT)[:max_reads]
    _, _, read_bytes, seconds = measure_reads(
        str(path), pages.astype(np.uint64) * np.uint64(DIRECT_ALIGNMENT), DIRECT_ALIGNMENT, 32, 5.0
    )
    return read_bytes / DIRECT_ALIGNMENT / seconds


def mixed_rate(source: Path, read_bytes: int, write_bytes: int) -> float:
    """Bytes per second, read and written together, while `source` is read and a file beside it written at once.

    Both are O_DIRECT, front to back, in the proportion given; bytes beyond `MAX_MIXED_BYTES` are not measured. Writing
    ends with fsync, and the space is reserved first, as packing does.
    """
    scale = min(1.0, MAX_MIXED_BYTES / (read_bytes + write_bytes), source.stat().st_size / max(read_bytes, 1))
    chunks = max(1, round(write_bytes * scale / WRITE_BYTES))
    data = mmap.mmap(-1, WRITE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # page-aligned
    data.madvise(mmap.MADV_HUGEPAGE)  # a request of many small pages is slower
    data[:] = np.random.default_rng(0).bytes(WRITE_BYTES)
    with scratch_file(source.parent) as (descriptor, _), ThreadPoolExecutor(WRITERS + 1) as pool:
        os.posix_fallocate(descriptor, 0, chunks * WRITE_BYTES)
        started = time.perf_counter()
        writes = [pool.submit(os.pwrite, descriptor, data, i * WRITE_BYTES) for i in range(chunks)]
        done_read, _ = sequential_read(source, max(DIRECT_ALIGNMENT, int(read_bytes * scale)))
        done_written = sum(write.result() for write in writes)
        os.fsync(descriptor)
        return (done_read + done_written) / (time.perf_counter() - started)


def copy_rate(threads: int, num_bytes: int = COPY_BYTES) -> float:
    """Bytes copied per second by `threads` threads, each between two arrays of `num_bytes` of its own."""
    pairs = [(np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)) for _ in range(threads)]
    barrier = threading.Barrier(threads + 1)

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        np.copyto(pair[1], pair[0])  # its pages exist now
        barrier.wait()
        for _ in range(4):
            np.copyto(pair[1], pair[0])  # without the GIL
        barrier.wait()

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(copy, pair) for pair in pairs]
        barrier.wait()
        started = time.perf_counter()
        barrier.wait()
        seconds = time.perf_counter() - started
        for future in futures:
            future.result()
    return 4 * threads * num_bytes / seconds


def checksum_rate(num_bytes: int = COPY_BYTES) -> float:
    """Bytes per second whose CRC-32C one thread computes, in memory."""
    data = np.ones(num_bytes, np.uint8)
    return 4 * num_bytes / timed(lambda: [crc32c(data) for _ in range(4)])


def peak_bytes() -> int:
    """The most memory that this process has had resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class StageClock:
    """A `Reporter` that shows nothing and notes what each stage takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.totals: dict[str, int] = {}

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """Time one stage; `total` is what it has to do."""
        started = time.perf_counter()
        yield lambda _: None
        self.seconds[description] = self.seconds.get(description, 0.0) + time.perf_counter() - started
        self.totals[description] = total
