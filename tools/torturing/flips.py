"""One bit of a graph, of samples or of a packed directory changes; then it is verified, and read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from diskgnn.errors import ArtifactError
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.formats.verification import verify_artifact
from torturing.children import in_child
from torturing.stages import READERS, STAGES, load

RESTORED = 0.1  # of what was refused is read again when it is whole


def made_by(reader: str, inputs: Path, out: Path) -> str:
    """What names the result of reading."""
    if reader == "load":
        return load(inputs, out)
    STAGES[reader].run(inputs, out)
    return STAGES[reader].digest(out)


@contextmanager
def flipped(path: Path, position: int, bit: int) -> Iterator[None]:
    """With one bit changed, and the same time of change."""

    def flip() -> None:
        times = path.stat()
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1 << bit]))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    flip()
    try:
        yield
    finally:
        flip()


def flip_some(
    inputs: Path, folder: Path, expected: Mapping[str, str], attempts: Sequence[tuple[str, np.random.Generator]]
) -> list[str | None]:
    """Change a bit of a directory in each attempt; what went wrong in it, if anything did.

    All are made in one child: starting one costs as much as reading what is damaged. If it dies of an attempt, each
    gets a child of its own.
    """

    def work() -> list[str | None]:
        return [flip_one(directory, inputs, folder, expected[directory], random) for directory, random in attempts]

    outcome = in_child(work)
    if outcome.ended:
        return list(outcome.result)  # type: ignore[call-overload]
    shutil.rmtree(folder, ignore_errors=True)
    if len(attempts) == 1:
        return [f"{_what(*_drawn(attempts[0][0], inputs, attempts[0][1]))}: {outcome}"]
    return [failure for attempt in attempts for failure in flip_some(inputs, folder, expected, [attempt])]


def _drawn(directory: str, inputs: Path, random: np.random.Generator) -> tuple[Path, int, int]:
    name = str(random.choice(sorted(path.name for path in (inputs / directory).iterdir())))
    path = inputs / directory / name
    return path, int(random.integers(path.stat().st_size)), int(random.integers(8))


def _what(path: Path, position: int, bit: int) -> str:
    return f"bit {bit} of byte {position} of {path.parent.name}/{path.name}"


def flip_one(directory: str, inputs: Path, folder: Path, expected: str, random: np.random.Generator) -> str | None:
    """Change a bit, look whether `verify` and the reader notice; what went wrong, if anything did."""
    path, position, bit = _drawn(directory, inputs, random)
    folder.mkdir()
    with flipped(path, position, bit):
        failure = _unnoticed(path, inputs, folder / "out", expected)
    if failure is None and random.random() < RESTORED and not (folder / "out").exists():
        failure = _restored(READERS[directory], inputs, folder / "out", expected)
    shutil.rmtree(folder)
    return failure and f"{_what(path, position, bit)}: {failure}"


def _unnoticed(path: Path, inputs: Path, out: Path, expected: str) -> str | None:
    """What is wrong with how a damaged file is dealt with."""
    directory = path.parent.name
    try:
        verify_artifact(path.parent)
    except ArtifactError:
        pass
    else:
        if path.name != MANIFEST:  # where the manifest says the same, it has not changed
            return "verify does not notice"
    try:
        made = made_by(READERS[directory], inputs, out)
    except ArtifactError as error:
        named = path.name in str(error) or path.name == MANIFEST
        return None if named and not out.exists() else f"{error!r}, {out.exists()=}"
    except Exception as error:  # none but that is promised
        return repr(error)
    return None if made == expected else "it goes unnoticed into what is made"


def _restored(reader: str, inputs: Path, out: Path, expected: str) -> str | None:
    """Read once more, after the bit was flipped back."""
    made = made_by(reader, inputs, out)
    left = sorted(path.name for path in out.parent.iterdir() if path != out)
    return None if made == expected and not left else f"once whole again, it makes {made} and leaves {left}"
