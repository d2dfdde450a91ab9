"""Named points: nothing in production, what a test wants within its block."""

from __future__ import annotations

import errno

import pytest

from diskgnn.storage import faults


def test_nothing_happens_unless_a_test_asks() -> None:
    faults.point("shard.write")
    assert faults.reading("disk.free", 7) == 7


def test_an_armed_point_raises_after_some_passes_until_the_block_ends() -> None:
    with faults.armed("shard.write", OSError(errno.EIO, "the disk failed"), after=2):
        faults.point("shard.write")
        faults.point("shard.read")  # another one
        faults.point("shard.write")
        for _ in range(2):
            with pytest.raises(OSError, match="the disk failed"):
                faults.point("shard.write")
    faults.point("shard.write")


def test_an_armed_point_calls() -> None:
    passes: list[int] = []
    with faults.armed("shard.write", lambda: passes.append(1), after=1):
        for _ in range(3):
            faults.point("shard.write")
    assert len(passes) == 2


def test_a_reading_is_pretended_until_the_block_ends() -> None:
    with faults.pretending("disk.free", 0):
        assert faults.reading("disk.free", 7) == 0
        assert faults.reading("memory.free", 7) == 7
    assert faults.reading("disk.free", 7) == 7


def test_a_block_that_fails_disarms() -> None:
    with pytest.raises(KeyboardInterrupt), faults.armed("shard.write", KeyboardInterrupt()):
        faults.point("shard.write")
    faults.point("shard.write")
    with pytest.raises(AssertionError), faults.armed("a", KeyError()), faults.armed("a", KeyError()):
        pass
    faults.point("a")
