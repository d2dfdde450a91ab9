"""SIGKILL at any moment and at every named point of every stage, and damage to what it left; then it is run again."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diskgnn.files import faults
from torturing.children import in_child
from torturing.stages import Stage

UNIT_BYTES = 1 << 10  # or stages as small as these have no units


@dataclass(frozen=True)
class Undisturbed:
    """A run of a stage that nothing happened to."""

    digest: str
    seconds: float
    points: dict[str, int]  # how often it passed each named point


def undisturbed(stage: Stage, inputs: Path, folder: Path) -> Undisturbed:
    """Run it once, in a child."""
    out, passes = folder / f"out{stage.suffix}", Counter[str]()

    def work() -> tuple[str, float, dict[str, int]]:
        with ExitStack() as stack:
            for name in faults.POINTS:
                stack.enter_context(faults.armed(name, lambda name=name: passes.update([name])))
            started = time.perf_counter()
            _run(stage, inputs, out)
            seconds = time.perf_counter() - started
        return stage.digest(out), seconds, dict(passes)

    folder.mkdir()
    stage.make_ready(inputs, out)
    outcome = in_child(work)
    assert outcome.ended, outcome
    shutil.rmtree(folder)
    return Undisturbed(*outcome.result)  # type: ignore[misc]


def _run(stage: Stage, inputs: Path, out: Path) -> None:
    with faults.pretending("unit.bytes", UNIT_BYTES):
        stage.run(inputs, out)


def _flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[int(place * (len(data) - 1))] ^= 1 << int(8 * place) % 8
        path.write_bytes(data)


def _cut(path: Path, place: float) -> None:
    os.truncate(path, int(place * path.stat().st_size))


def _lengthen(path: Path, place: float) -> None:
    with path.open("ab") as file:
        file.write(bytes([int(255 * place)]) * int(1 + 5000 * place))


def _remove(path: Path, place: float) -> None:
    path.unlink()


def _harmed(folder: Path, random: np.random.Generator) -> str | None:
    """Damages a file of a work folder, if there is one; says how."""
    hidden = (path for path in folder.iterdir() if path.name.startswith(".") and path.is_dir())
    files = sorted(path for each in hidden for path in each.rglob("*") if path.is_file())
    if not files:
        return None
    path, harm = files[random.integers(len(files))], (_flip, _cut, _lengthen, _remove)[random.integers(4)]
    harm(path, place := float(random.random()))
    return f"{harm.__name__[1:]} {path.relative_to(folder)} at {place:.3f}"


def killed(stage: Stage, whole: Undisturbed, inputs: Path, folder: Path, random: np.random.Generator) -> str | None:
    """Kills a stage some times, damages what it leaves every other time, and finishes it.

    Returns:
        What went wrong, if anything did.
    """
    folder.mkdir()
    out = folder / f"out{stage.suffix}"
    stage.make_ready(inputs, out)
    story = []
    while not story or random.random() < 0.3:
        point = str(random.choice(sorted(whole.points))) if whole.points and random.random() < 0.6 else None
        passes = int(random.integers(whole.points[point])) if point else 0
        moment = float(random.uniform(0, 1.1 * whole.seconds))
        story.append(f"{point} after {passes}" if point else f"{moment:.3f} s")

        def work(point: str | None = point, passes: int = passes) -> None:
            with ExitStack() as stack:
                if point:
                    die = faults.armed(point, lambda: os.kill(os.getpid(), signal.SIGKILL), after=passes)
                    stack.enter_context(die)
                _run(stage, inputs, out)

        outcome = in_child(work, None if point else moment)
        if outcome.error not in (None, "OutputExistsError"):
            return f"killed at {story}: {outcome.error}: {outcome.message}"
        published = out.exists() and not stage.in_place
        if published and (found := in_child(lambda: stage.digest(out))).result != whole.digest:
            return f"killed at {story}: what it published is {found}"
        if random.random() < 0.5 and (harm := _harmed(folder, random)) is not None:
            story.append(harm)
    again = in_child(lambda: _run(stage, inputs, out))
    if not again.ended and not (published and again.error == "OutputExistsError"):
        return f"killed at {story}, run again: {again}"
    if (found := in_child(lambda: stage.digest(out))).result != whole.digest:
        return f"killed at {story}, run again: it made {found}, expected {whole.digest}"
    if left := sorted(path.name for path in folder.iterdir() if path != out):
        return f"killed at {story}, run again: it left {left}"
    shutil.rmtree(folder)
    return None
