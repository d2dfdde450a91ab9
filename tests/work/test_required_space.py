"""What files still need of the disk, compared with what `du` says that they have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from diskgnn.errors import DiskFullError
from diskgnn.files import faults
from diskgnn.work.required_space import missing_bytes, require_space, spare_bytes
from diskgnn.work.work_folder import WorkFolder

PAGE = 4096


def taken(*paths: Path) -> int:
    """Bytes of disk, by du."""
    found = subprocess.run(["du", "-s", "-B1", *paths], capture_output=True, text=True, check=True).stdout
    return sum(int(line.split()[0]) for line in found.splitlines())


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a killed run left: files that are whole, reserved, or only long, a part of one, and scratch."""
    folder = tmp_path / "left"
    (folder / "ids.scratch").mkdir(parents=True)
    for name, pages in {"whole.npy": 5, "half.npy.part": 2, "ids.1": 7, "ids.scratch/spill": 3}.items():
        (folder / name).write_bytes(b"x" * pages * PAGE)
    with (folder / "reserved.bin").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 4 * PAGE)
    with (folder / "long.bin").open("wb") as file:
        file.truncate(1 << 30)
    return folder


def test_files_need_what_they_do_not_have(left: Path) -> None:
    needed = {"whole.npy": 3 * PAGE, "half.npy": 6 * PAGE - 1, "reserved.bin": 4 * PAGE, "long.bin": 1 << 30, "new": 1}
    files = ["half.npy.part", "reserved.bin", "long.bin"]
    had = taken(*(left / name for name in files))
    # What the whole one has more than it needs is for itself.
    assert missing_bytes(left, needed) == (6 + 4 + (1 << 18) + 1) * PAGE - had
    assert missing_bytes(left / "none", needed) == (3 + 6 + 4 + (1 << 18) + 1) * PAGE


def test_a_total_is_of_all_files_or_of_those_that_are_named(left: Path) -> None:
    scratch = taken(left / "ids.1", left / "ids.scratch" / "spill")
    others = taken(*(left / name for name in ("whole.npy", "half.npy.part", "reserved.bin", "long.bin")))
    assert missing_bytes(left, 1 << 20) == (1 << 20) - scratch - others
    assert missing_bytes(left, 1 << 20, but=["ids."]) == (1 << 20) - others
    assert missing_bytes(left, 1 << 20, of=["ids.", "whole.npy"]) == (1 << 20) - scratch - taken(left / "whole.npy")
    assert missing_bytes(left, 0) < 0


def test_what_does_not_fit_is_refused_by_the_byte(tmp_path: Path) -> None:
    with WorkFolder(tmp_path / "out", "test") as folder:
        folder.path("begun").write_bytes(b"x" * 3 * PAGE)
        needed = {"begun": 5 * PAGE, "other": 2 * PAGE}
        with faults.pretending("disk.free", 4 * PAGE):
            assert spare_bytes(folder, needed) == 0
            require_space(folder, needed, "the test")
        with faults.pretending("disk.free", 4 * PAGE - 1):
            assert spare_bytes(folder, needed) == -1
            with pytest.raises(DiskFullError, match=r"the test needs exactly .*: 1 bytes are missing"):
                require_space(folder, needed, "the test", exact=True)
