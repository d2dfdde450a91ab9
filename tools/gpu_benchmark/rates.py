"""What the hardware does: copies to the device, gathering there, and gathering from page-locked host memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from diskgnn.files.row_reading import row_buffer
from diskgnn.loading.device_gather import PROGRAMS_PER_MULTIPROCESSOR, gather_rows
from diskgnn.system.page_locking import PageLock

REPEAT = 5


def synchronize(device: torch.device) -> None:
    """Wait for all work on `device`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Median seconds of `work`, with all that it starts on the device; the first run is not counted."""
    turns = []
    for _ in range(REPEAT + 1):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        turns.append(time.perf_counter() - began)
    return median(turns[1:])


def gather_rates(device: torch.device, num_rows: int, wanted: int, width: int, dtype: torch.dtype) -> dict[str, float]:
    """Bytes of x per second by each way to fill `wanted` of `num_rows` rows, and of a plain copy to the device.

    The kernel's results are compared with index_select's. Host memory is page-locked once, before.
    """
    row_bytes = width * dtype.itemsize
    host_bytes = row_buffer(num_rows, row_bytes)[: num_rows * row_bytes]
    host_bytes[:] = np.random.default_rng(0).integers(0, 256, len(host_bytes), np.uint8)
    staging_bytes = row_buffer(wanted, row_bytes)[: wanted * row_bytes]
    regions = [(memory.ctypes.data, memory.nbytes) for memory in (host_bytes, staging_bytes)]
    lock = PageLock(regions, device) if device.type == "cuda" else None
    try:
        return _gather_rates(device, host_bytes, staging_bytes, width, dtype)
    finally:
        synchronize(device)
        if lock is not None:
            lock.release()


def _gather_rates(
    device: torch.device, host_bytes: np.ndarray, staging_bytes: np.ndarray, width: int, dtype: torch.dtype
) -> dict[str, float]:
    host, staging = (torch.from_numpy(memory).view(dtype).view(-1, width) for memory in (host_bytes, staging_bytes))
    num_rows, wanted = len(host), len(staging)
    numbers = torch.from_numpy(np.random.default_rng(1).integers(0, num_rows, wanted))
    addresses, on_device = numbers.int().to(device), host.to(device)
    x, none = torch.empty((wanted, width), dtype=dtype, device=device), on_device[:0]
    unused = torch.zeros_like(addresses)
    far = numbers.to(device)

    def kernel(device_rows: torch.Tensor, pinned_rows: torch.Tensor, programs: int) -> Callable[[], object]:
        return lambda: gather_rows(
            addresses, unused, device_rows, pinned_rows, none, x, programs_per_multiprocessor=programs
        )

    def gathered_by_the_host() -> None:
        torch.index_select(host, 0, numbers, out=staging)
        x.copy_(staging, non_blocking=True)

    ways: dict[str, Callable[[], object]] = {
        "copy to the device": lambda: x.copy_(staging, non_blocking=True),
        "device rows, index_select": lambda: torch.index_select(on_device, 0, far, out=x),
        "device rows, kernel": kernel(on_device, none, PROGRAMS_PER_MULTIPROCESSOR),
        "pinned rows, index_select on the host and copy": gathered_by_the_host,
        "pinned rows, zero-copy kernel": kernel(none, host, PROGRAMS_PER_MULTIPROCESSOR),
    }
    if device.type == "cuda":  # how much of the GPU it takes
        ways |= {f"pinned rows, zero-copy kernel, {n} programs/SM": kernel(none, host, n) for n in (1, 4, 8)}
        ways |= {f"device rows, kernel, {n} programs/SM": kernel(on_device, none, n) for n in (1, 4, 8)}
    rates = {}
    expected = on_device.index_select(0, far).view(torch.int8)
    for name, fill in ways.items():
        seconds = seconds_of(fill, device)
        if name != "copy to the device" and not torch.equal(x.view(torch.int8), expected):
            raise SystemExit(f"{name}: x is not what index_select gives")
        rates[name] = x.nbytes / seconds
    return rates
