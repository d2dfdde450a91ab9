"""One bit of a graph, of samples or of a packed directory changes; then it is verified, and read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from diskgnn.errors import ArtifactError
from diskgnn.storage.artifacts import MANIFEST
from diskgnn.storage.verification import verify_artifact
from torturing.children import in_child
from torturing.stages import READERS, STAGES, load


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


def flip_one(directory: str, inputs: Path, folder: Path, expected: str, random: np.random.Generator) -> str | None:
    """Change a bit, look whether `verify` and the reader notice; what went wrong, if anything did."""
    name = str(random.choice(sorted(path.name for path in (inputs / directory).iterdir())))
    path = inputs / directory / name
    position, bit = int(random.integers(path.stat().st_size)), int(random.integers(8))
    what, out = f"bit {bit} of byte {position} of {directory}/{name}", folder / "out"

    def work() -> str | None:
        try:
            verify_artifact(path.parent)
        except ArtifactError:
            pass
        else:
            if name != MANIFEST:  # where the manifest says the same, it has not changed
                return "verify does not notice"
        try:
            made = made_by(READERS[directory], inputs, out)
        except ArtifactError as error:
            named = name in str(error) or name == MANIFEST
            return None if named and not out.exists() else f"{error!r}, {out.exists()=}"
        return None if made == expected else "it goes unnoticed into what is made"

    folder.mkdir()
    with flipped(path, position, bit):
        outcome = in_child(work)
    if outcome.ended and outcome.result is None and not out.exists():
        outcome = in_child(lambda: _restored(READERS[directory], inputs, out, expected))
    shutil.rmtree(folder)
    return None if outcome.ended and outcome.result is None else f"{what}: {outcome.result or outcome}"


def _restored(reader: str, inputs: Path, out: Path, expected: str) -> str | None:
    """Read once more, after the bit was flipped back."""
    made = made_by(reader, inputs, out)
    left = sorted(path.name for path in out.parent.iterdir() if path != out)
    return None if made == expected and not left else f"once whole again, it makes {made} and leaves {left}"
