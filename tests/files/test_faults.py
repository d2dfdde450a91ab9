"""Named points: nothing in production, what a test wants within its block."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

import diskgnn
from diskgnn.files import faults


def test_nothing_happens_unless_a_test_asks() -> None:
    faults.point("artifact.write")
    assert faults.reading("disk.free", 7) == 7


def test_an_armed_point_raises_after_some_passes_until_the_block_ends() -> None:
    with faults.armed("artifact.write", OSError(errno.EIO, "the disk failed"), after=2):
        faults.point("artifact.write")
        faults.point("artifact.sync")  # another one
        faults.point("artifact.write")
        for _ in range(2):
            with pytest.raises(OSError, match="the disk failed"):
                faults.point("artifact.write")
    faults.point("artifact.write")


def test_an_armed_point_calls() -> None:
    passes: list[int] = []
    with faults.armed("artifact.write", lambda: passes.append(1), after=1):
        for _ in range(3):
            faults.point("artifact.write")
    assert len(passes) == 2


def test_a_reading_is_pretended_until_the_block_ends() -> None:
    with faults.pretending("disk.free", 0):
        assert faults.reading("disk.free", 7) == 0
        assert faults.reading("memory.limit", 7) == 7
    assert faults.reading("disk.free", 7) == 7


def test_a_block_that_fails_disarms() -> None:
    with pytest.raises(KeyboardInterrupt), faults.armed("artifact.write", KeyboardInterrupt()):
        faults.point("artifact.write")
    faults.point("artifact.write")
    with pytest.raises(AssertionError), faults.armed("work.piece", KeyError()), faults.armed("work.piece", KeyError()):
        pass
    faults.point("work.piece")


def test_a_misspelt_name_fails() -> None:
    with pytest.raises(AssertionError, match=r"artifact.wrote is none of faults.POINTS"):
        faults.armed("artifact.wrote", KeyError()).__enter__()
    with pytest.raises(AssertionError, match=r"disk.full is none of faults.READINGS"):
        faults.pretending("disk.full", 0).__enter__()
    with faults.armed("work.piece", KeyError()), pytest.raises(AssertionError, match=r"work.pieces is none"):
        faults.point("work.pieces")
    with faults.pretending("disk.free", 0), pytest.raises(AssertionError, match=r"disk.full is none"):
        faults.reading("disk.full", 0)


def test_all_names_are_those_of_the_program() -> None:
    source = "".join(
        path.read_text() for path in Path(diskgnn.__file__).parent.glob("*/**/*.py") if path.name != "faults.py"
    )
    assert set(re.findall(r"faults\.point\(\"([^\"]*)", source)) == faults.POINTS
    assert set(re.findall(r"faults\.reading\(\"([^\"]*)", source)) == faults.READINGS
