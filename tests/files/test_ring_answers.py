"""What io_uring may answer to a read beside all of it: errors, a part, nothing, and garbage; under a preloaded library
that changes what the kernel said.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from graphs import make_graph

from diskgnn._native import io_uring_refusal
from diskgnn.preparing.prepare import prepare

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the library that answers"),
    pytest.mark.skipif(io_uring_refusal() != "", reason="io_uring is refused here"),
]
FOR_EVER = -1
EIO, EAGAIN, EBUSY, ECANCELED, EFAULT = -5, -11, -16, -125, -14
READ = """
import mmap, sys
import numpy as np
from diskgnn._native import read_ranges
from diskgnn.errors import ArtifactError
content = np.frombuffer(mmap.mmap(-1, 4 << 20), np.uint8)
size = 3_000_001
try:
    read_ranges(sys.argv[1], "io_uring", np.array([0]), np.array([size]), np.array([0]), content)
except (OSError, ArtifactError) as error:
    print(type(error).__name__, error)
else:
    print("read" if content[:size].tobytes() == open(sys.argv[1], "rb").read() else "garbage")
"""
LOAD = """
import sys, zlib
from diskgnn.errors import DiskGNNError
from diskgnn.loading.loader import Loader
try:
    with Loader(sys.argv[1], engine="io_uring") as loader:
        found = [minibatch.x.numpy().tobytes() for minibatch in loader.epoch(0)]
except DiskGNNError as error:
    print(type(error).__name__, error)
else:
    print("loaded", len(found), zlib.crc32(b"".join(found)))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ring") / "answering_ring.so"
    source = Path(__file__).with_name("answering_ring.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


def answered(library: Path, script: str, path: Path, answer: int | str, times: int) -> str:
    """What a script prints of reading `path` while so many answers are changed."""
    preloaded = os.environ.get("LD_PRELOAD", "").split(":")  # a sanitizer has to be the first
    changed = {
        "LD_PRELOAD": ":".join([*filter(None, preloaded), str(library)]),
        "RING_ANSWER": str(answer),
        "RING_TIMES": str(times),
    }
    command = [sys.executable, "-c", script, str(path)]
    return subprocess.run(
        command, env=os.environ | changed, capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("read") / "file"
    path.write_bytes(os.urandom(3_000_001))
    return path


@pytest.mark.parametrize("answer", [EIO, EAGAIN, EBUSY, ECANCELED, "half", "odd", "nothing"])
def test_what_passes_is_not_noticed(library: Path, file: Path, answer: int | str) -> None:
    """Two answers that are wrong, then right ones: of a file that has the bytes, none of them is its end."""
    assert answered(library, READ, file, answer, times=2) == "read"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (EIO, "Input/output error"), (EAGAIN, "temporarily unavailable"), (EBUSY, "busy"), (ECANCELED, "canceled"),
        ("nothing", "Input/output error"),
    ],
)  # fmt: skip
def test_what_stays_is_a_disk_that_failed(library: Path, file: Path, answer: int | str, told: str) -> None:
    """Not damaged data, and no hang."""
    found = answered(library, READ, file, answer, FOR_EVER)
    assert found.startswith("ReadError reading ")
    assert told in found
    assert str(file) in found


def test_what_is_no_matter_of_the_disk_keeps_its_name(library: Path, file: Path) -> None:
    assert "Bad address" in answered(library, READ, file, EFAULT, FOR_EVER)


@pytest.mark.parametrize("part", ["half", "odd"])
def test_reads_that_always_come_in_part_are_continued(library: Path, file: Path, part: str) -> None:
    assert answered(library, READ, file, part, FOR_EVER) == "read"


def test_a_file_that_ends_early_is_not_a_disk_that_failed(library: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(2_000_000))
    assert "ArtifactError" in (found := answered(library, READ, tmp_path / "short", "half", 1))
    assert "ends early" in found


@pytest.mark.parametrize(("times", "expected"), [(0, "loaded"), (FOR_EVER, "ArtifactError")])
def test_garbage_of_full_length_never_reaches_the_model(
    library: Path, tmp_path: Path, times: int, expected: str
) -> None:
    """A bit in the middle of each read is another: whoever reads it compares it with its checksum."""
    make_graph(tmp_path / "graph", num_nodes=300, width=64, splits={"train": 60}, in_degree=4)
    prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[2], batch_size=20, epochs=1, cpu_cache=0)
    found = answered(library, LOAD, tmp_path / "packed", "garbage", times)
    assert found.startswith(expected), found
    assert ("damaged" in found) == bool(times)
