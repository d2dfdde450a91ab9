"""Memory that is kept for the next who needs as much, beside what the kernel gives.

It is one for a process: what other tests left alive would be met here. So these have a process of their own.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from diskgnn._native import KeptPages, page_memory

MIB = 1 << 20


def address(memory):
    return memory.ctypes.data


def touched(num_bytes):
    memory = page_memory(num_bytes)
    memory[:] = 7
    return memory


@pytest.fixture(scope="module")
def alone() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield process


def fresh_memory_is_aligned_and_clear():
    for num_bytes in (1, 4096, 5 * MIB + 3):
        memory = page_memory(num_bytes)
        assert (len(memory), memory.dtype) == (num_bytes, np.uint8)
        assert address(memory) % 4096 == 0
        assert not memory.any()
    assert len(page_memory(0)) == 0


def what_was_given_back_serves_who_needs_as_much():
    kept = KeptPages(64 * MIB)
    memory = touched(5 * MIB)
    place = address(memory)
    del memory
    again = page_memory(5 * MIB - 1000)
    assert address(again) == place
    assert address(page_memory(5 * MIB)) != place  # while somebody has it
    del kept


def it_grows_and_keeps_its_pages():
    """What was written is still there, unless the kernel lacked memory: then there are zeros."""
    kept = KeptPages(64 * MIB)
    memory = touched(4 * MIB)
    del memory
    grown = page_memory(32 * MIB)
    assert len(grown) == 32 * MIB
    assert set(np.unique(grown[: 4 * MIB])) <= {0, 7}
    assert not grown[4 * MIB :].any()
    grown[:] = 1
    del kept


def nothing_is_kept_beyond_the_limit_or_without_one():
    kept = KeptPages(6 * MIB)
    del kept
    fresh = touched(5 * MIB)
    del fresh
    kept = KeptPages(6 * MIB)
    assert not page_memory(5 * MIB).any()  # nobody kept the one before
    large = touched(8 * MIB)
    del large
    assert not page_memory(8 * MIB).any()
    first, second = touched(4 * MIB), touched(5 * MIB)
    place = address(second)
    del first  # makes room for the next
    del second
    assert address(page_memory(5 * MIB)) == place
    del kept


@pytest.mark.parametrize(
    "check",
    [
        fresh_memory_is_aligned_and_clear,
        what_was_given_back_serves_who_needs_as_much,
        it_grows_and_keeps_its_pages,
        nothing_is_kept_beyond_the_limit_or_without_one,
    ],
)
def test_page_memory(alone: Executor, check: Callable[[], None]):
    alone.submit(check).result()
