"""Page-locking: once, undone when it is refused half-way; with a stand-in for the CUDA runtime, and on a GPU."""

import mmap
import re
import resource

import numpy as np
import pytest
import torch

from diskgnn.errors import ConfigError
from diskgnn.system.page_locking import PageLock
from diskgnn.units import format_size


class Runtime:
    """The two calls of the CUDA runtime, with room for so many bytes."""

    def __init__(self, room):
        self.room, self.locked = room, {}

    def cudaHostRegister(self, address, num_bytes, flags):  # noqa: N802
        assert flags == 3, "portable and mapped"
        if address in self.locked:
            return 712
        if num_bytes > self.room - sum(self.locked.values()):
            return 2
        self.locked[address] = num_bytes
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        del self.locked[address]
        return 0


def test_regions_are_locked_until_released():
    runtime = Runtime(room=10 << 20)
    lock = PageLock([(4096, 8192), (1 << 20, 0), (1 << 30, 4096)], torch.device("cpu"), runtime)
    assert runtime.locked == {4096: 8192, 1 << 30: 4096}
    lock.release()
    lock.release()
    assert runtime.locked == {}


def test_a_refusal_names_the_limit_and_leaves_nothing_locked():
    runtime = Runtime(room=10 << 20)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    expected = (
        "cannot page-lock 8.0 MiB of host memory, of 15.0 MiB in all (CUDA error 2; the limit on locked memory is "
        f"{'none' if limit < 0 else format_size(limit)})"
    )
    with pytest.raises(ConfigError, match=re.escape(expected)):
        PageLock([(4096, 7 << 20), (1 << 30, 8 << 20)], torch.device("cpu"), runtime)
    assert runtime.locked == {}


@pytest.mark.cuda
def test_a_kernel_reads_locked_memory_and_none_that_was_released():
    from diskgnn.loading.device_gather import gather_rows

    rows = np.frombuffer(mmap.mmap(-1, 1 << 16), np.int32).reshape(-1, 8)
    rows[:] = np.arange(rows.size).reshape(rows.shape)
    device = torch.device("cuda", torch.cuda.current_device())
    addresses = torch.tensor([3, 0, 2047], dtype=torch.int32, device=device)
    none = torch.empty((0, 8), dtype=torch.int32, device=device)

    def gather():
        out = torch.empty((3, 8), dtype=torch.int32, device=device)
        return gather_rows(addresses, torch.zeros_like(addresses), none, torch.from_numpy(rows), none, out)

    lock = PageLock([(rows.ctypes.data, rows.nbytes)], device)
    np.testing.assert_array_equal(gather().cpu().numpy(), rows[[3, 0, 2047]])
    rows[3] = -1  # it is read where it is, not copied
    np.testing.assert_array_equal(gather().cpu().numpy()[0], rows[3])
    with pytest.raises(ConfigError, match="cannot page-lock"):
        PageLock([(rows.ctypes.data, rows.nbytes)], device)  # it is locked already
    torch.ones(1, device=device).sum().item()  # the refusal is not blamed on the next kernel
    lock.release()
    with pytest.raises(ValueError, match="cannot be accessed"):
        gather()
