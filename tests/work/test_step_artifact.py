"""An artifact that a stage makes in its own work folder: numbers are written by a stage beside a file of their sum."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from diskgnn.errors import ConfigError, InputError
from diskgnn.files import faults
from diskgnn.files.destination import staging_of
from diskgnn.files.disk_space import DiskBudget
from diskgnn.formats.artifacts import GRAPH
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import verify_file
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.fold import Output
from diskgnn.work.runner import Work
from diskgnn.work.work_folder import State, WorkFolder
from diskgnn.work.writer import ArtifactWriter

PIECES, PIECE = 8, 500
POINTS = ["work.piece", "unit.written", "artifact.publish", "artifact.write"]


class Numbers:
    """The stage; counts the pieces that were written."""

    def __init__(self, before_reading: Callable[[Path], None] = lambda _: None) -> None:
        self.pieces, self.made, self.before_reading = 0, 0, before_reading

    def pieces_of(self, file: ArrayFile, state: State, output: Output) -> Generator[int, None, None]:
        for piece in range(int(state["piece"]), PIECES):
            file.write(np.arange(piece * PIECE, (piece + 1) * PIECE))
            self.pieces += 1
            state["piece"] += 1
            yield PIECE

    def make(self, out: Path) -> int:
        with ArtifactWriter(out, GRAPH, config={}, resumable=True) as writer:
            file = ArrayFile(writer, "numbers.npy", np.int64, PIECES * PIECE)
            pieces = partial(self.pieces_of, file)
            Work(writer, "numbers").fold("numbers", pieces, {"piece": 0}, files=[file])
            writer.publish()
        self.made += 1
        return self.made

    def __call__(self, folder: WorkFolder, work: Work) -> int:
        numbers = work.artifact("numbers", self.make)
        assert numbers.made in (None, self.made)
        with numbers.reading() as path:
            self.before_reading(path / "numbers.npy")
            verify_file(open_artifact(path, GRAPH), "numbers.npy")
            return int(np.load(path / "numbers.npy").sum())


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def run(out: Path, numbers: Numbers) -> int:
    """Sums the numbers; pieces that were written."""
    before = numbers.pieces
    folder = WorkFolder(out, "sum", disk=DiskBudget(1 << 20, [staging_of(out)]))
    with faults.pretending("unit.bytes", 1), folder:
        found = Work(folder, "sum").run(partial(numbers, folder))
        assert found == PIECES * PIECE * (PIECES * PIECE - 1) // 2
        left_bytes = folder.disk.left_bytes
        folder.disk.look()
        assert folder.disk.left_bytes == left_bytes  # what was made, and removed, is counted
    assert sorted(path.name for path in folder.staging.iterdir()) == ["journal.jsonl", "numbers"]
    shutil.rmtree(folder.staging)
    return numbers.pieces - before


@pytest.mark.parametrize("point", POINTS)
def test_a_stopped_run_goes_on_with_it(tmp_path: Path, point: str) -> None:
    for after in range(PIECES):
        numbers = Numbers()
        try:
            with faults.armed(point, KeyboardInterrupt(), after=after):
                run(tmp_path / "out", numbers)
        except KeyboardInterrupt:
            assert run(tmp_path / "out", numbers) <= PIECES - after + 1
        assert PIECES <= numbers.pieces <= PIECES + 1
        assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["numbers.npy", "manifest.json"])
def test_it_is_made_again_if_it_is_damaged(tmp_path: Path, name: str) -> None:
    def stop(_: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", Numbers(stop))
    flip(staging_of(tmp_path / "out") / "numbers" / name)
    assert run(tmp_path / "out", Numbers()) == PIECES


def test_damage_that_comes_back_is_told(tmp_path: Path) -> None:
    numbers = Numbers(flip)
    with pytest.raises(DamagedStepError, match="numbers is not what was written"):
        run(tmp_path / "out", numbers)
    assert numbers.pieces == 2 * PIECES


@pytest.mark.parametrize("error", [InputError("wrong"), ConfigError("cannot work")])
def test_what_never_began_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    def make(out: Path) -> None:
        raise error

    with pytest.raises(type(error)), WorkFolder(tmp_path / "out", "sum") as folder:
        Work(folder, "sum").run(lambda work: work.artifact("numbers", make))
    assert not any(tmp_path.iterdir())


def test_wrong_input_leaves_nothing(tmp_path: Path) -> None:
    """Although the artifact is whole."""

    def wrong(_: Path) -> None:
        raise InputError("wrong")

    with pytest.raises(InputError):
        run(tmp_path / "out", Numbers(wrong))
    assert not any(tmp_path.iterdir())
