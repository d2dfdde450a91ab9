"""Damage that is aimed: each stage is killed while a file of each kind lies in its work folder, that file is damaged,
and the stage goes on, with as much memory or with another budget. What a stage reads of its own is damaged while it
runs, too; and where a kill tore its journal, it is killed once more.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from torturing.children import in_child
from torturing.harms import HARMS, KINDS, Harm, filling, flip, flip_first, harm_some, kind_of, left_in, spoil, tear
from torturing.kills import Passes, Undisturbed, repeated, run
from torturing.stages import STAGES, Stage

T = TypeVar("T")

_LARGE = {
    "shuffle",
    "extents",
    "array",
    "unit",
    "places",
    "static",
    "initial",
}  # of whose bytes the next run needs some
_PIECES = ("work.unit", "work.piece")  # points at which a unit of a map, or a piece of a fold, is finished
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


@dataclass(frozen=True)
class _Shot:
    """A stage that is killed at a moment, for the sake of a file that lies there then."""

    aim: Aim
    stage: Stage
    whole: Undisturbed  # with the budget of the run that is killed
    wholes: list[Undisturbed]
    name: str
    moment: int
    inputs: Path
    folder: Path

    @property
    def out(self) -> Path:
        """Returns what is made."""
        return self.folder / f"out{self.stage.suffix}"

    @property
    def told(self) -> str:
        """Says when."""
        point, after = self.whole.passes[self.moment]
        return f"at {point} after {after} with {self.whole.memory or 'all'} bytes"


def aims_of(name: str, wholes: list[Undisturbed]) -> list[Aim]:
    """Returns one for each kind of file that a stage leaves."""
    found = {kind_of(Path(file)) for whole in wholes for file in whole.files}
    return [Aim(name, kind) for kind in KINDS if kind in found]


def hit(
    aim: Aim, stage: Stage, wholes: list[Undisturbed], inputs: Path, folder: Path, random: np.random.Generator,
    number: int,
) -> Iterator[Hit]:  # fmt: skip
    """Kills a stage at a moment of a file's life or two. Then damages it in some ways, which follow from `number`, each
    time before another run.
    """
    having = [each for each in wholes if any(kind_of(Path(file)) == aim.kind for file in each.files)]
    in_pieces = max(having, key=_num_pieces)

    def shot(whole: Undisturbed, moment: Callable[[Undisturbed, str, np.random.Generator], int]) -> _Shot:
        names = [file for file in whole.files if kind_of(Path(file)) == aim.kind]
        if moment is _between_pieces:
            names = [name for name in names if _pieces_of(whole, name)] or names
        name = _any(names, random)
        return _Shot(aim, stage, whole, wholes, name, moment(whole, name, random), inputs, folder)

    moments = [_MOMENTS[number % len(_MOMENTS)]]
    if aim.kind in _LARGE:
        moments.append(_between_pieces)
    if aim.kind == "extents":
        moments.append(_at_last)
    for turn, moment in enumerate(dict.fromkeys(moments)):
        aimed = shot(in_pieces if moment is _between_pieces else _any(having, random), moment)
        yield from _hit(aimed, random, _ways(aimed, number + turn), goes_on_alike=(number + turn) % 3 > 0)
    if aim.kind == "journal":
        # With a small budget, if there is one: folds that spill to memory begin anew.
        small = max((each for each in having if each.memory), key=_num_pieces, default=in_pieces)
        pieces = [at for at, (point, _) in enumerate(small.passes) if point in _PIECES]
        for at in pieces[1 :: max(1, len(pieces) // 4)]:
            yield _hit_nothing(shot(small, lambda *_, at=at: at))
    if aim.kind == "shuffle" or (aim.kind == "unit" and stage.units_use_up):
        yield _hit_meanwhile(shot(in_pieces, _while_it_is_whole), random)
    if aim.kind == "journal" and not stage.units_use_up and having[0].points.get("work.unit", 0) > 2:
        yield _hit_twice(shot(having[0], _after_a_unit), random)


def _num_pieces(whole: Undisturbed) -> int:
    return sum(whole.points.get(point, 0) for point in _PIECES)


def _while_it_grows(whole: Undisturbed, name: str, random: np.random.Generator) -> int:
    """Returns a moment until it has all its bytes, sooner rather than later."""
    first, full, _ = whole.files[name]
    return first + int((full - first) * random.random() ** 2)


def _between_pieces(whole: Undisturbed, name: str, random: np.random.Generator) -> int:
    """Returns one when a part of a step was committed, if that may be: while the file grows, or at the last piece if it
    has its space from the beginning.
    """
    first, full, last = whole.files[name]
    pieces = [at for at in range(first, last + 1) if whole.passes[at][0] == "work.piece"]
    return _any(_pieces_of(whole, name) or pieces[-1:] or [full], random)


def _pieces_of(whole: Undisturbed, name: str) -> list[int]:
    """Returns moments when a piece was committed of a file that has more."""
    first, full, _ = whole.files[name]
    return [at for at in range(first, full) if whole.passes[at][0] == "work.piece"][1:]


def _while_it_is_whole(whole: Undisturbed, name: str, random: np.random.Generator) -> int:
    """Returns one when others work: at each named point as often, however often that is passed."""
    _, full, last = whole.files[name]
    moments = range(full, last + 1)
    point = _any(sorted({whole.passes[at][0] for at in moments}), random)
    return _any([at for at in moments if whole.passes[at][0] == point], random)


def _at_last(whole: Undisturbed, name: str, random: np.random.Generator) -> int:
    """Returns the last one when it lies there."""
    return whole.files[name][-1]


def _after_a_unit(whole: Undisturbed, name: str, random: np.random.Generator) -> int:
    """Returns the one when a unit was committed, and a second one is made."""
    return [tuple(each) for each in whole.passes].index(("work.unit", 1))


_MOMENTS = (_while_it_grows, _while_it_is_whole, _at_last)


def _ways(shot: _Shot, number: int) -> list[tuple[Harm, ...]]:
    """Returns the ways in which a file is damaged: what happens to it, and to others."""
    kind, is_last = shot.aim.kind, shot.moment == shot.whole.files[shot.name][-1]
    # Some of what has its space from the beginning is written over, whatever it is.
    in_place = kind in ("static", "initial")
    ways: list[tuple[Harm, ...]] = [(spoil if in_place or (kind in _LARGE and number % 2) else flip,)]
    ways.append((HARMS[1 + number % (len(HARMS) - 1)],))
    if number % 3 == 0:
        ways.append((flip, HARMS[number // 2 % len(HARMS)]))
    if in_place:
        ways.append((flip_first,))
    gaps = shot.whole.gaps.get(Path(shot.name).name, ()) if is_last else ()
    return [*ways, *((filling(places),) for places in gaps if places)]


def _killed(shot: _Shot, point: str, after: int) -> tuple[dict[str, int], bool]:
    """Returns the points that a run has passed which was to be killed at one of them, and whether it was."""
    passes = Passes()

    def work() -> None:
        with passes.counted(point, after):
            run(shot.stage, shot.inputs, shot.out, shot.whole.memory)

    is_killed = in_child(work).signal is not None  # before what it has counted is looked at
    return passes.counts, is_killed


def _begun(shot: _Shot) -> tuple[dict[str, int], bool]:
    """Does so the first time."""
    shot.folder.mkdir()
    shot.stage.make_ready(shot.inputs, shot.out)
    return _killed(shot, *shot.whole.passes[shot.moment])


def _hit(
    shot: _Shot, random: np.random.Generator, ways: list[tuple[Harm, ...]], *, goes_on_alike: bool
) -> Iterator[Hit]:
    folder, whole = shot.folder, shot.whole
    made, is_killed = _begun(shot)
    if not is_killed:
        shutil.rmtree(folder)
        yield Hit("", f"not killed {shot.told}")
        return
    kept = folder.with_name(f"{folder.name}-kept")
    folder.rename(kept)
    for part, harms in enumerate(ways):
        shutil.copytree(kept, folder)
        files = left_in(folder)
        if not (aimed := _aimed(shot)):
            shutil.rmtree(folder)
            break
        first = _any(aimed, random)
        others = [path for path in files if path != first]
        hurt = [first, *(_any(others, random) for _ in harms[1:] if others)]
        told = harm_some(hurt, harms[: len(hurt)], random, (part, len(ways)))
        last = whole if goes_on_alike else _any(shot.wholes, random)
        # An artifact that is whole is made again as one; so is what units have used up of each other.
        may_repeat = any(kind_of(path) in _TELLING or not path.parent.name.endswith(".partial") for path in hurt)
        most = None
        if not may_repeat and not shot.stage.units_use_up and last is whole:
            # The last unit may not have been committed, and each file that is damaged belongs to one.
            most = whole.points.get("work.unit", 0) - max(0, made.get("work.unit", 0) - 1) + len(hurt)
        failure = _again(shot, last, most)
        yield Hit("two" if len(hurt) > 1 else harms[0].__name__, failure and f"killed {shot.told}, {told}: {failure}")
        shutil.rmtree(folder)
    shutil.rmtree(kept)


def _aimed(shot: _Shot) -> list[Path]:
    """Returns the file to damage, or those like it: threads may have come less far than without a kill."""
    files = left_in(shot.folder)
    path = shot.folder / shot.name
    return [path] if path in files else [path for path in files if kind_of(path) == shot.aim.kind]


def _hit_nothing(shot: _Shot) -> Hit:
    """Kills a stage, and goes on: of what is noted, nothing is repeated."""
    made, _ = _begun(shot)
    failure = _again(shot, shot.whole, None, made=made)
    shutil.rmtree(shot.folder)
    return Hit("none", failure and f"killed {shot.told}: {failure}")


def _hit_meanwhile(shot: _Shot, random: np.random.Generator) -> Hit:
    """Damages what the stage reads again later while it runs."""
    moment, place = tuple(shot.whole.passes[shot.moment]), float(random.random())
    shot.folder.mkdir()
    shot.stage.make_ready(shot.inputs, shot.out)

    def damage(point: str, after: int) -> None:
        if (point, after) == moment and (path := shot.folder / shot.name).exists():
            spoil(path, place)

    failure = _again(shot, shot.whole, None, damage)
    shutil.rmtree(shot.folder)
    return Hit("spoil", failure and f"{shot.name} damaged {shot.told}, at {place:.3f}: {failure}")


def _hit_twice(shot: _Shot, random: np.random.Generator) -> Hit:
    """Tears the journal, and kills the run that goes on with it, too: what that has made is not made once more."""
    _begun(shot)
    told = harm_some(aimed := _aimed(shot)[:1], [tear] * len(aimed), random)
    units = shot.whole.points["work.unit"]
    _, is_killed = _killed(shot, "work.unit", units // 2)
    failure = _again(shot, shot.whole, units - units // 2 if is_killed else None)
    shutil.rmtree(shot.folder)
    return Hit("tear", failure and f"killed {shot.told}, {told}, and at work.unit after {units // 2}: {failure}")


def _any(items: Sequence[T], random: np.random.Generator) -> T:
    return items[int(random.integers(len(items)))]


def _again(
    shot: _Shot, last: Undisturbed, most: int | None, told: Callable[[str, int], None] = lambda point, after: None,
    made: dict[str, int] | None = None,
) -> str | None:  # fmt: skip
    """Runs a stage again, of which so many units are missing at `most`, or all but what was `made`; says what is wrong
    then.
    """
    passes = Passes()

    def work() -> str:
        with passes.counted(told=told):
            run(shot.stage, shot.inputs, shot.out, last.memory)
        return shot.stage.digest(shot.out)

    memory = last.memory or "all"
    if (found := in_child(work)).result != shot.whole.digest:
        return f"run again with {memory} bytes it made {found}, expected {shot.whole.digest}"
    if names := sorted(path.name for path in shot.folder.iterdir() if path != shot.out):
        return f"run again with {memory} bytes it left {names}"
    if most is not None and (again := passes.counts.get("work.unit", 0)) > most:
        return f"run again it made {again} units, at most {most} were missing"
    return None if made is None else repeated(shot.whole, [made, passes.counts])
