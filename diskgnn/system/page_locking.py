"""Page-locked host memory: the GPU copies from it by itself, and reads it in place (unified virtual addressing)."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch

from diskgnn.errors import ConfigError
from diskgnn.units import format_size

_PORTABLE, _MAPPED = 1, 2  # cudaHostRegisterPortable: for all contexts; cudaHostRegisterMapped: the GPU may read it


class PageLock:
    """Locks memory once, until it is released; it must outlive the lock.

    Args:
        regions: address and bytes of each, page-aligned, so that no two share a page.
        device: whose kernels and copies use them.
        runtime: what has cudaHostRegister and cudaHostUnregister; torch's by default.

    Raises:
        ConfigError: the system refuses; names the limit. Nothing stays locked.
    """

    def __init__(self, regions: Sequence[tuple[int, int]], device: torch.device, runtime: Any = None) -> None:
        self._runtime = runtime or torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._addresses: list[int] = []
        self._pid = os.getpid()
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            for address, num_bytes in regions:
                if num_bytes == 0:
                    continue
                error = int(self._runtime.cudaHostRegister(address, num_bytes, _PORTABLE | _MAPPED))
                if error == 0:
                    self._addresses.append(address)
                    continue
                self.release()
                with suppress(RuntimeError):  # or the next kernel, whoever starts it, is blamed for this error
                    torch.zeros(1, device=device)
                raise _refusal(error, num_bytes, sum(size for _, size in regions))

    def release(self) -> None:
        """Unlock. Idempotent, and nothing in a forked child, where the device cannot be spoken to."""
        while self._addresses and self._pid == os.getpid():
            self._runtime.cudaHostUnregister(self._addresses.pop())


def _refusal(error: int, num_bytes: int, total_bytes: int) -> ConfigError:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return ConfigError(
        f"cannot page-lock {format_size(num_bytes)} of host memory, of {format_size(total_bytes)} in all (CUDA error "
        f"{error}; the limit on locked memory is {'none' if limit < 0 else format_size(limit)}): raise `ulimit -l`, or "
        "the memory limit of the container; or use a larger device_cache, a smaller prefetch, or zero_copy=False"
    )
