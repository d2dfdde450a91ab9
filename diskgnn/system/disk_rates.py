"""Raw read rates of a folder's disk, measured on a temporary file that nobody else ever sees; what a process read."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, measure_reads
from diskgnn.errors import ConfigError
from diskgnn.files import cache_hints
from diskgnn.files.disk_space import free_bytes, require_free_bytes
from diskgnn.files.open_files import path_of_descriptor
from diskgnn.paths import PathLike
from diskgnn.progress.reporter import SILENT, Advance, Reporter

SEQUENTIAL_READ_BYTES, RANDOM_READ_BYTES = 1 << 20, DIRECT_ALIGNMENT
SEQUENTIAL_DEPTH, RANDOM_DEPTH = 8, 256  # 256: as many as the baselines' RowReader keeps in flight
MAX_RANDOM_READS = 1 << 19
MAX_SECONDS = 5.0  # of one measurement; a slow disk is measured on a part of the file

Engine = Literal["auto", "io_uring", "threads"]


@dataclass(frozen=True)
class ReadRates:
    """Holds what a disk delivered to the engine that training uses."""

    engine: str  # 'io_uring' or 'threads'
    direct_io: bool  # False: the file system refused O_DIRECT, so the page cache may have answered
    file_bytes: int
    sequential_bytes_per_second: float  # reads of 1 MiB, front to back, 8 at a time
    random_reads_per_second: float  # reads of 4 KiB at random offsets, 256 at a time
    random_bytes_per_second: float


@contextmanager
def scratch_file(folder: PathLike) -> Iterator[tuple[int, bool]]:
    """Opens a nameless file in `folder`, and says whether it is open with O_DIRECT. It is gone however the process
    ends.
    """
    descriptor, name = tempfile.mkstemp(prefix=".diskgnn-", dir=folder)
    try:
        try:
            direct = os.open(name, os.O_RDWR | os.O_DIRECT)
        except (OSError, AttributeError):  # some network and in-memory file systems, and macOS, have no O_DIRECT
            direct = -1
    finally:
        Path(name).unlink()
    try:
        yield (descriptor, False) if direct < 0 else (direct, True)
    finally:
        os.close(descriptor)
        if direct >= 0:
            os.close(direct)


def measure_read_rates(
    folder: PathLike, *, file_bytes: int = 1 << 30, engine: Engine = "auto", reporter: Reporter = SILENT
) -> ReadRates:
    """Write `file_bytes` of random bytes into `folder`, read them front to back, then 4 KiB at a time at random.

    A file much smaller than the caches of the disk (or of the host, in a virtual machine) flatters the disk.

    Raises:
        ConfigError: the file would be smaller than 1 MiB.
        DiskFullError: it would not fit.
        OSError: the folder is not there or cannot be written, or io_uring was asked for and is refused.
    """
    file_bytes -= file_bytes % SEQUENTIAL_READ_BYTES
    if file_bytes == 0:
        raise ConfigError("file_bytes: expected at least 1MiB to measure with")
    require_free_bytes(Path(folder), file_bytes, "the file to measure with")
    in_order = np.arange(0, file_bytes, SEQUENTIAL_READ_BYTES, dtype=np.uint64)
    pages = np.arange(0, file_bytes, RANDOM_READ_BYTES, dtype=np.uint64)
    scattered = np.random.default_rng(0).permutation(pages)[:MAX_RANDOM_READS]
    with scratch_file(folder) as (descriptor, _):
        with reporter.stage("write a file to measure with", file_bytes, "B") as advance:
            _write_random(descriptor, file_bytes, advance)
        name, direct, sequential = _rate(descriptor, in_order, SEQUENTIAL_READ_BYTES, SEQUENTIAL_DEPTH, engine)
        _, _, at_random = _rate(descriptor, scattered, RANDOM_READ_BYTES, RANDOM_DEPTH, engine)
    return ReadRates(name, direct, file_bytes, sequential, at_random / RANDOM_READ_BYTES, at_random)


def sequential_bytes_per_second(folder: PathLike, *, file_bytes: int) -> float:
    """Measures the first of `measure_read_rates` alone, without the warning of a full disk: then a smaller file is
    measured.

    Raises:
        OSError: the folder is not there or cannot be written.
    """
    file_bytes = min(file_bytes, free_bytes(Path(folder)) // 2)
    file_bytes = max(SEQUENTIAL_READ_BYTES, file_bytes - file_bytes % SEQUENTIAL_READ_BYTES)
    with scratch_file(folder) as (descriptor, _):
        _write_random(descriptor, file_bytes, lambda _: None)
        in_order = np.arange(0, file_bytes, SEQUENTIAL_READ_BYTES, dtype=np.uint64)
        return _rate(descriptor, in_order, SEQUENTIAL_READ_BYTES, SEQUENTIAL_DEPTH, "auto")[2]


def _write_random(descriptor: int, file_bytes: int, advance: Advance) -> None:
    # Incompressible and never the same twice, or a clever disk would store and read next to nothing.
    generator = np.random.default_rng(1)
    with mmap.mmap(-1, SEQUENTIAL_READ_BYTES) as buffer:  # anonymous memory is page-aligned, as O_DIRECT wants it
        for offset in range(0, file_bytes, SEQUENTIAL_READ_BYTES):
            buffer[:] = generator.bytes(SEQUENTIAL_READ_BYTES)
            written = os.pwrite(descriptor, buffer, offset)
            if written != SEQUENTIAL_READ_BYTES:
                raise OSError(f"the disk took {written} of {SEQUENTIAL_READ_BYTES} bytes at {offset}")
            advance(written)
    os.fsync(descriptor)


def _rate(
    descriptor: int, offsets: npt.NDArray[np.uint64], bytes_each: int, depth: int, engine: Engine
) -> tuple[str, bool, float]:
    """Returns (engine, whether it was O_DIRECT, bytes per second)."""
    cache_hints.forget(descriptor)
    path = path_of_descriptor(descriptor)  # the file has no other name
    name, direct, read_bytes, seconds = measure_reads(path, offsets, bytes_each, depth, MAX_SECONDS, engine)
    return name, direct, read_bytes / seconds


def device_bytes(process: int | str = "self") -> tuple[int, ...]:
    """Returns the bytes that a process and its children that have ended made the kernel read from and write to block
    devices.

    Empty where the kernel does not say.
    """
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:
        return ()
    found = dict(line.split(": ") for line in lines)
    return int(found["read_bytes"]), int(found["write_bytes"])
