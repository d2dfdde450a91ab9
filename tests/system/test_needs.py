"""The smallest budget that a need works with, compared with the one that trying finds."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: in those of tests, nothing is refused for what the code takes beside its arrays.
_COMPARED = """
import numpy as np
from diskgnn.system.resources import Need, Resources, SmallBudgetError

def refusal(resources, need):
    try:
        left = resources.within(need)
    except SmallBudgetError as error:
        return error
    assert 1 <= left.threads <= resources.threads and left.disk is resources.disk
    assert left.memory_bytes >= need.least_bytes + left.threads * need.unit_bytes
    assert left.memory_bytes + left.held_bytes == resources.memory_bytes + resources.held_bytes
    return None

def accepted(memory_bytes, need, threads, held_bytes, thread_bytes):
    return refusal(Resources(memory_bytes, threads, held_bytes=held_bytes, thread_bytes=thread_bytes), need) is None

rng = np.random.default_rng(0)
for _ in range(500):
    need = Need("to try", *(int(each) for each in rng.integers(0, 5000, 3) * rng.integers(0, 2, 3)))
    threads = int(rng.integers(1, 9))
    thread_bytes = int(rng.integers(0, 2) * 700)
    held_bytes = int(rng.integers(0, 2) * 100_000) + threads * thread_bytes
    of = (need, threads, held_bytes, thread_bytes)
    low, high = -(1 << 20), 1 << 20  # refused, accepted
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepted(middle, *of) else (middle, high)
    for memory_bytes in (low, high, 0, 3000):
        resources = Resources(memory_bytes, threads, held_bytes=held_bytes, thread_bytes=thread_bytes)
        error = refusal(resources, need)
        assert resources.has_room(need) == (error is None) == (memory_bytes >= high)
        # What the process holds is told as it will be for the next one, which may have a MiB more.
        least_bytes, beside = resources.least_budget(need), held_bytes - (threads - 1) * thread_bytes
        assert least_bytes == need.bytes if not beside else 0 < least_bytes - (held_bytes + high) <= 2 << 20
        assert error is None or error.least_bytes == least_bytes and "to try" in str(error)
    other = Need("for the other", need.bytes + 1)
    try:
        Resources(low, 1).require_each(need, other)
    except SmallBudgetError as error:
        assert error.least_bytes == other.bytes
print("compared")
"""


def test_the_smallest_budget_is_the_one_that_trying_finds() -> None:
    found = subprocess.run([sys.executable, "-c", _COMPARED], capture_output=True, text=True, check=False)
    assert found.stdout == "compared\n", found.stderr
