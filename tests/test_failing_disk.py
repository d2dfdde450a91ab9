"""A disk that fails, below each input and at each kind of write of each stage: the error names the file, nothing is
lost, nothing hangs, and the next run makes what an undisturbed one makes. tools/torture does so at length.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from commands import Python, run, run_python
from pyarrow import csv as pacsv
from pyarrow import parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from torturing.children import in_child
from torturing.disks import compile_library, run_on_failing_disk
from torturing.stages import make_inputs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the library that fails"),
]
# Of stages that read and write alike, one.
WAYS = {
    "reads": ("reads/sample links", "reads/pack", "reads/infer", "reads/load", "reads/push"),
    "writes": ("writes/convert", "writes/sample", "writes/pack", "writes/infer", "writes/repair"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failing") / "inputs"
    made = in_child(lambda: make_inputs(folder))
    assert made.ended, made
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "failing_disk.so"
    compile_library(path)
    return path


FAILING_COMMAND = """
import ctypes, sys
library, part, error, passing, failing, *arguments = sys.argv[1:]
arm = ctypes.CDLL(library).failing_disk_arm
arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
from diskgnn.cli import main
arm(part.encode(), 1, int(error), int(passing), int(failing))
main(arguments)
"""


def on_failing_disk(
    library: Path, part: str, error: int, *arguments: object, passing: int = 0, failing: int = -1
) -> Any:
    """A command. After `passing` reads of files with `part` in their names, `failing` of them fail, or all."""
    preloaded = os.environ | {"LD_PRELOAD": str(library)}
    command = "-c", FAILING_COMMAND, library, part, error, passing, failing, *arguments
    return run_python(*command, env=preloaded, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("part", "error"),
    [
        *(("packed/train.bin", error) for error in (errno.EIO, errno.ENODATA, errno.EREMOTEIO, errno.ESTALE)),
        *((part, errno.EIO) for part in ("packed/manifest.json", "graph/features-node.npy")),
    ],
)
def test_a_disk_that_fails_is_no_damage(inputs: Path, tmp_path: Path, library: Path, part: str, error: int) -> None:
    """The bytes are what they were: `verify` says so once the disk reads again."""
    folder = inputs / part.split("/")[0]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    verified = on_failing_disk(library, part, error, "verify", folder, "--json")
    told = json.loads(verified.stdout)["error"]
    assert (verified.returncode, told["exit_code"]) == (8, 8), verified
    assert str(inputs / part) in told["message"]
    assert os.strerror(error) in told["message"]
    assert "the disk failed" in told["message"]
    assert "is damaged" not in told["message"]
    repaired = on_failing_disk(library, part, error, "verify", folder, "--repair", "--graph", inputs / "graph")
    assert repaired.returncode == 8, repaired
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not list(inputs.glob(".packed.repair*"))
    run("verify", folder)


def test_other_damage_is_told_beside_a_failing_disk(inputs: Path, tmp_path: Path, library: Path) -> None:
    """Both files are named; an offset where the disk failed; nothing is repaired while it fails."""
    packed = tmp_path / "packed"
    shutil.copytree(inputs / "packed", packed)
    with (packed / "valid.bin").open("r+b") as file:
        file.seek(40)
        byte = file.read(1)[0]
        file.seek(40)
        file.write(bytes([byte ^ 1]))
    found = on_failing_disk(library, "packed/train.bin", errno.EIO, "verify", packed)
    assert found.returncode == 8
    assert f"at offset 0 of {packed / 'train.bin'}: Input/output error: the disk failed" in found.stderr
    assert f"{packed / 'valid.bin'} is damaged in 1 of its extents: 0" in found.stderr
    arguments = ("verify", packed, "--repair", "--graph", inputs / "graph")
    assert on_failing_disk(library, "packed/train.bin", errno.EIO, *arguments).returncode == 8
    run("verify", packed, exit_code=4)
    run(*arguments)


def test_sources_below_which_the_disk_fails_are_not_called_wrong(inputs: Path, tmp_path: Path, library: Path) -> None:
    """Of every kind that another library opens."""
    table = {"src": [0, 1, 2], "dst": [1, 2, 0]}
    pq.write_table(pa.table(table), tmp_path / "edges.parquet")
    pacsv.write_csv(pa.table(table), tmp_path / "edges.csv")
    np.savez(tmp_path / "edges.npz", row=np.arange(3), col=np.arange(3), format=b"coo", shape=(3, 3), data=np.ones(3))
    (tmp_path / "edges.txt").write_text("0\t1\n1\t2\n2\t0\n")
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "edges.npy", [[0, 1, 2], [1, 2, 0]])
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    torch.save(edges, tmp_path / "edges.pt", _use_new_zipfile_serialization=False)  # which is read, not mapped
    for name in ("edges.parquet", "edges.csv", "edges.npy", "edges.pt"):
        check_named(library, tmp_path, name, "--edges", tmp_path / name)
    for name, kind in (("edges.npz", "scipy"), ("edges.txt", "snap")):
        check_named(library, tmp_path, name, "--from", kind, tmp_path / name)


def check_named(library: Path, folder: Path, name: str, *arguments: object) -> None:
    command = "convert", folder / "graph", "--features", folder / "x.npy", *arguments
    for passing in (0, 1, 2):
        found = on_failing_disk(library, name, errno.EIO, *command, passing=passing)
        if found.returncode == 0:  # fewer reads were made
            shutil.rmtree(folder / "graph")
            continue
        assert (found.returncode, "the disk failed" in found.stderr) == (8, True), (name, passing, found)
        assert str(folder / name) in found.stderr


@pytest.mark.parametrize(("stage", "times"), [("convert", 4), ("convert ids", 1)])  # arrays, and Parquet
def test_sources_are_read_again_where_the_disk_fails_twice(
    inputs: Path, tmp_path: Path, library: Path, stage: str, times: int
) -> None:
    """Also where the reads that fail are those that find out what kind of file it is, or those of its header."""
    found = list(run_on_failing_disk(library, inputs, tmp_path, 240, times, (f"reads/{stage}",), Python))
    assert len(found) >= 5 * times * 3
    assert not [each for each in found if each.failure]


ROWS_READ = """
import ctypes, os, sys
import numpy as np
from diskgnn._native import read_file_rows
library, path, failing = sys.argv[1:]
arm = ctypes.CDLL(library).failing_disk_arm
arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
x, file = np.empty(16, np.uint8), os.open(path, os.O_RDONLY)
arm(b"vectors", 1, 5, 1, int(failing))
try:
    read_file_rows(file, 8, np.array([3, 7]), x)
    print(x.tolist())
except OSError as error:
    print(error.errno)
"""


def test_rows_that_embeddings_read_are_read_again_where_the_disk_fails_twice(tmp_path: Path, library: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(bytes(range(64)))
    for failing, printed in ((2, [*range(24, 32), *range(56, 64)]), (-1, errno.EIO)):
        command = "-c", ROWS_READ, library, path, failing
        found = run_python(*command, env=os.environ | {"LD_PRELOAD": str(library)}, capture_output=True, text=True)
        assert found.stdout == f"{printed}\n", found


ROWS_WRITTEN = ROWS_READ.replace("O_RDONLY", "O_RDWR").replace('b"vectors", 1, 5, 1,', 'b"vectors", 2, 5, 0,')
ROWS_WRITTEN = ROWS_WRITTEN.replace("read_file_rows", "write_file_rows").replace(
    "print(error.errno)", "print(repr(error))"
)


def test_a_disk_that_cannot_write_is_none_that_cannot_read(tmp_path: Path, library: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(bytes(64))
    command = "-c", ROWS_WRITTEN, library, path, -1
    found = run_python(*command, env=os.environ | {"LD_PRELOAD": str(library)}, capture_output=True, text=True)
    assert found.stdout == f"OSError({errno.EIO}, 'Input/output error')\n", found


@pytest.mark.parametrize("kind", WAYS)
def test_a_failing_disk_is_named_and_a_recovering_one_is_not_noticed(
    inputs: Path, tmp_path: Path, library: Path, kind: str
) -> None:
    found = list(run_on_failing_disk(library, inputs, tmp_path, 0, 1, WAYS[kind], Python))
    assert {each.stage.replace(" of ", "/") for each in found} == set(WAYS[kind])
    assert len(found) > 8 * len(WAYS[kind])
    assert not [each for each in found if each.failure]
