"""Every stage on a disk that fails: below each file that it reads, and at what it writes.

Runs in a process of its own under failing_disk.so: python -m torturing.disks LIBRARY INPUTS FOLDER SEED TIMES WAY...,
where a way is 'reads/' or 'writes/' and the name of a stage.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torturing.children import Outcome, in_child
from torturing.stages import READING, STAGES, Stage

READ, WRITE, SYNC, RENAME, CREATE = 1, 2, 4, 8, 16
HALF, FOR_EVER = 0, -1
RECOVERS = 2  # reads that fail before one succeeds: fewer than are attempted
WRITING = {
    WRITE: (errno.EIO, errno.ENOSPC, errno.EINTR, HALF), SYNC: (errno.EIO, errno.ENOSPC), RENAME: (errno.EIO,),
    CREATE: (errno.EIO, errno.ENOSPC),
}  # fmt: skip
NAMES = {READ: "read", WRITE: "write", SYNC: "fsync", RENAME: "rename", CREATE: "creation"}
ALL = STAGES | READING
WAYS = (*(f"reads/{name}" for name in ALL), *(f"writes/{name}" for name in STAGES))


@dataclass(frozen=True)
class Found:
    """One attempt."""

    stage: str
    what: str
    failure: str | None


def compile_library(path: Path) -> None:
    """Makes the library that fails.

    Raises:
        RuntimeError: there is no C compiler.
    """
    compiler, source = shutil.which("cc"), Path(__file__).with_name("failing_disk.c")
    if compiler is None:
        raise RuntimeError("a C compiler (cc) is needed for a disk that fails")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)


def start_python(*arguments: object, **keywords: Any) -> subprocess.Popen[str]:
    """Starts Python with these arguments; keywords are those of `subprocess.Popen`."""
    return subprocess.Popen([sys.executable, *map(str, arguments)], **keywords)


def run_on_failing_disk(
    library: Path,
    inputs: Path,
    folder: Path,
    seed: int,
    times: int,
    ways: Sequence[str] = WAYS,
    start: Callable[..., subprocess.Popen[str]] = start_python,
) -> Iterator[Found]:
    """Attempts as they are made: at the first operation of each kind, and at `times` - 1 others.

    Raises:
        RuntimeError: the process ended otherwise than it should.
    """
    command = "-m", "torturing.disks", library, inputs, folder / "disks", seed, times, *ways
    preloaded = [*filter(None, os.environ.get("LD_PRELOAD", "").split(":")), str(library)]  # a sanitizer is the first
    environment = {"LD_PRELOAD": ":".join(preloaded), "PYTHONPATH": os.pathsep.join(sys.path)}
    with start(*command, env=os.environ | environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield Found(**json.loads(line))
    if process.returncode:
        raise RuntimeError(f"attempts on a failing disk ended with {process.returncode}")


class FailingDisk:
    """The library that this process runs under."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.failing_disk_arm.argtypes = [
            ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long,
        ]  # fmt: skip
        self._library.failing_disk_matched.restype = ctypes.c_long

    def attempt(self, stage: Stage, inputs: Path, out: Path, part: str, *how: int) -> tuple[Outcome, int]:
        """Run a stage in a child, in which operations on files with `part` in their names fail; how many there were.

        The result is the digest of what it made, unless that is published later.
        """

        def work() -> tuple[str | None, str, int, str | None]:
            stage.make_ready(inputs, out)
            self._library.failing_disk_arm(part.encode(), *how)
            error, message = None, ""
            try:
                stage.run(inputs, out)
            except Exception as failure:  # whatever it is: the caller looks at it
                error, message = type(failure).__name__, str(failure)
            matched = self._library.failing_disk_matched()
            self._library.failing_disk_arm(b"", 0, 0, 0, 0)
            published = out.exists() and not stage.in_place
            return error, message, matched, stage.digest(out) if published else None

        outcome = in_child(work)
        if not outcome.ended:
            return outcome, 1
        error, message, matched, digest = outcome.result  # type: ignore[misc]
        return Outcome(digest, error, message), matched


def below_inputs(
    disk: FailingDisk, name: str, inputs: Path, out: Path, expected: str, random: np.random.Generator, times: int
) -> Iterator[Found]:
    """Reads of each file fail for ever, fail a few times, or give half of what was asked."""
    stage = ALL[name]
    for part in _parts_read(stage, inputs, out):
        places = [0]
        if times > 1:
            _, reads = disk.attempt(stage, inputs, out, part, READ, HALF, 1 << 40, 0)
            _remove(out)
            if not reads:
                continue
            places += [int(place) for place in random.integers(reads, size=times - 1)]
        for place, (error, length) in itertools.product(
            places, ((errno.EIO, FOR_EVER), (errno.EIO, RECOVERS), (HALF, FOR_EVER))
        ):
            outcome, reads = disk.attempt(stage, inputs, out, part, READ, error, place, length)
            if not reads:
                _remove(out)
                break
            what = f"{os.strerror(error) if error else 'half'} at read {place} of {part}, {length} times"
            if length == FOR_EVER and error and not outcome.ended:
                named = outcome.error in stage.read_errors and part in outcome.message
                at_fault = "the disk failed" in outcome.message or "StoreError" in stage.read_errors
                failure = None if named and at_fault else str(outcome)
            else:
                failure = None if outcome.ended else str(outcome)
            yield Found(f"reads of {name}", what, failure or finished(stage, inputs, out, expected, outcome))


def _parts_read(stage: Stage, inputs: Path, out: Path) -> list[str]:
    """What the names of files end with that a stage may read: of its inputs, and of what it goes on with."""
    parts = [
        f"{directory}/{file.name}"
        for directory in (stage.reads, *stage.also_reads) for file in sorted((inputs / directory).iterdir())
    ]  # fmt: skip
    if stage.in_place:
        stage.make_ready(inputs, out)
        parts += [str(file.relative_to(out.parent.parent)) for file in sorted(out.rglob("*")) if file.is_file()]
        _remove(out)
    return parts


def at_outputs(
    disk: FailingDisk, name: str, inputs: Path, out: Path, expected: str, random: np.random.Generator, times: int
) -> Iterator[Found]:
    """Operations on what is written fail: one of each kind and error, or as many as `times` says."""
    stage, part = STAGES[name], f"{out.parent.name}/"
    for operation, errors in WRITING.items():
        _, number = disk.attempt(stage, inputs, out, part, operation, HALF, 1 << 40, 0)
        _remove(out)
        for error in errors if number else ():
            for place in {0, *(int(place) for place in random.integers(number, size=times - 1))}:
                passing = error in (HALF, errno.EINTR)
                how = operation, error, place, 1 if passing else FOR_EVER
                outcome, _ = disk.attempt(stage, inputs, out, part, *how)
                what = f"{os.strerror(error) if error else 'half'} at {NAMES[operation]} {place} of {number}"
                failure = None
                if not outcome.ended:
                    expected_error = "DiskFullError" if error == errno.ENOSPC else "WriteError"
                    named = outcome.error == expected_error and out.stem in outcome.message
                    failure = str(outcome) if passing or not named else None
                yield Found(f"writes of {name}", what, failure or finished(stage, inputs, out, expected, outcome))


def finished(stage: Stage, inputs: Path, out: Path, expected: str, outcome: Outcome) -> str | None:
    """What is wrong with what the run left, or with what the next run makes of it; removes it."""

    def again() -> str:
        stage.run(inputs, out)
        return stage.digest(out)

    if not outcome.ended and not any(out.parent.iterdir()):
        return None  # where nothing is left the next run is a first one
    try:
        if out.exists() and not stage.in_place:
            if outcome.result != expected:
                return f"{outcome}, and what it published is not whole"
        else:
            made = in_child(again)
            if not made.ended:
                return f"{outcome}, then {made}"
            if made.result != expected:
                return f"{outcome}, then it makes {made.result}"
        left = [path.name for path in out.parent.iterdir() if path != out]
        return f"{outcome}, then it leaves {left}" if left and not outcome.ended else None
    finally:
        _remove(out)


def _remove(out: Path) -> None:
    shutil.rmtree(out.parent)
    out.parent.mkdir()


def main() -> None:
    """In the process under the library."""
    library, inputs, folder, seed, times, *ways = sys.argv[1:]
    disk, random, out_folder = FailingDisk(library), np.random.default_rng(int(seed)), Path(folder)
    out_folder.mkdir()
    for way in ways:
        kind, name = way.split("/")
        stage, out = ALL[name], out_folder / f"output{ALL[name].suffix}"
        stage.make_ready(Path(inputs), out)

        def undisturbed(stage: Stage = stage, out: Path = out) -> str:
            stage.run(Path(inputs), out)
            return stage.digest(out)

        whole = in_child(undisturbed)
        assert whole.ended, whole
        expected = str(whole.result)
        _remove(out)
        attempts = below_inputs if kind == "reads" else at_outputs
        for found in attempts(disk, name, Path(inputs), out, expected, random, int(times)):
            print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
