"""Damage that is aimed: each stage is killed while a file of each kind lies in its work folder, that file is damaged,
and the stage goes on, with as much memory or with another budget.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torturing.children import in_child
from torturing.harms import HARMS, KINDS, Harm, flip, harm_some, kind_of, left_in
from torturing.kills import Passes, Undisturbed, run
from torturing.stages import STAGES, Stage

_LARGE = {"shuffle", "extents", "array", "unit", "places"}  # of whose bytes the next run needs some
_TELLING = {"journal", "layout", "manifest"}  # which units are finished: they are made again without these


@dataclass(frozen=True)
class Aim:
    """A file of a kind that a stage leaves when it is killed."""

    stage: str
    kind: str

    @property
    def number(self) -> int:
        """Returns one that no other has."""
        return list(STAGES).index(self.stage) * len(KINDS) + list(KINDS).index(self.kind)


@dataclass(frozen=True)
class Hit:
    """One run after damage: how, and what went wrong."""

    harm: str
    failure: str | None


def aims_of(name: str, wholes: list[Undisturbed]) -> list[Aim]:
    """Returns one for each kind of file that a stage leaves."""
    found = {kind_of(Path(file)) for whole in wholes for file in whole.files}
    return [Aim(name, kind) for kind in KINDS if kind in found]


def hit(
    aim: Aim, stage: Stage, wholes: list[Undisturbed], inputs: Path, folder: Path, random: np.random.Generator,
    number: int,
) -> Iterator[Hit]:  # fmt: skip
    """Kills a stage while a file has all its bytes, sooner rather than later, or at the last moment when it is there;
    of large files both. Then damages it in some ways, which follow from `number`, each time before another run.
    """
    for is_last in (False, True) if aim.kind in _LARGE else (number % 2 == 0,):
        whole = _any([each for each in wholes if any(kind_of(Path(file)) == aim.kind for file in each.files)], random)
        name = _any([file for file in whole.files if kind_of(Path(file)) == aim.kind], random)
        first, full, last = whole.files[name]
        moment = last if is_last else first + int((full - first) * random.random() ** 2)
        yield from _hit(aim, stage, (whole, wholes), (name, moment), inputs, folder, random, number + is_last)


def _hit(
    aim: Aim, stage: Stage, runs: tuple[Undisturbed, list[Undisturbed]], target: tuple[str, int], inputs: Path,
    folder: Path, random: np.random.Generator, number: int,
) -> Iterator[Hit]:  # fmt: skip
    folder.mkdir()
    out = folder / f"out{stage.suffix}"
    stage.make_ready(inputs, out)
    (whole, wholes), (name, moment) = runs, target
    point, after = whole.passes[moment]
    killed, died = Passes(), f"killed at {point} after {after} with {whole.memory or 'all'} bytes"

    def work() -> None:
        with killed.counted(point, after):
            run(stage, inputs, out, whole.memory)

    outcome = in_child(work)
    if outcome.signal is None:
        shutil.rmtree(folder)
        yield Hit("", f"not {died}: {outcome}")
        return
    kept = folder.with_name(f"{folder.name}-kept")
    folder.rename(kept)
    ways = _ways(aim.kind, number)
    for part, harms in enumerate(ways):
        shutil.copytree(kept, folder)
        files = left_in(folder)
        # Threads may have come less far than without a kill.
        aimed = [folder / name] if folder / name in files else [path for path in files if kind_of(path) == aim.kind]
        if not aimed:
            shutil.rmtree(folder)
            break
        first = _any(aimed, random)
        others = [path for path in files if path != first]
        hurt = [first, *(_any(others, random) for _ in harms[1:] if others)]
        told = harm_some(hurt, harms[: len(hurt)], random, (part, len(ways)))
        last = _any(wholes, random)
        # An artifact that is whole is made again as one; so is what units have used up of each other.
        may_repeat = any(kind_of(path) in _TELLING or not path.parent.name.endswith(".partial") for path in hurt)
        made = None if may_repeat or stage.units_use_up or last is not whole else killed.counts.get("work.unit", 0)
        failure = _again(stage, whole, last, made, len(hurt), inputs, folder)
        yield Hit("two" if len(hurt) > 1 else harms[0].__name__, failure and f"{died}, {told}: {failure}")
        shutil.rmtree(folder)
    shutil.rmtree(kept)


def _any(items: list, random: np.random.Generator):  # type: ignore[no-untyped-def, type-arg]
    return items[int(random.integers(len(items)))]


def _ways(kind: str, number: int) -> list[tuple[Harm, ...]]:
    other = HARMS[1 + number % (len(HARMS) - 1)]
    two = [(flip, HARMS[number // 2 % len(HARMS)])] if number % 3 == 0 else []
    return [*[(flip,)] * (2 if kind in _LARGE else 1), (other,), *two]


def _again(
    stage: Stage, whole: Undisturbed, last: Undisturbed, made: int | None, num_hurt: int, inputs: Path, folder: Path
) -> str | None:
    """Runs a stage again, of which a run `made` so many units, if that counts; says what is wrong then."""
    out, passes = folder / f"out{stage.suffix}", Passes()

    def work() -> str:
        with passes.counted():
            run(stage, inputs, out, last.memory)
        return stage.digest(out)

    memory = last.memory or "all"
    if (found := in_child(work)).result != whole.digest:
        return f"run again with {memory} bytes it made {found}, expected {whole.digest}"
    if names := sorted(path.name for path in folder.iterdir() if path != out):
        return f"run again with {memory} bytes it left {names}"
    if made is not None:
        # The last unit may not have been committed, and each file that is damaged belongs to one.
        most = whole.points.get("work.unit", 0) - max(0, made - 1) + num_hurt
        if (again := passes.counts.get("work.unit", 0)) > most:
            return f"run again it made {again} units after {made}, at most {most} were missing"
    return None
