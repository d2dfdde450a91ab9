"""SIGKILL at any moment and at every named point of every stage, and damage to what it left; then it is run again, with
as much memory or with another budget.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diskgnn.errors import OutputExistsError
from diskgnn.files import faults
from torturing.children import in_child
from torturing.harms import HARMS, harm_some, left_in
from torturing.stages import Stage, budget_of_data_alone, gaps_of

UNIT_BYTES = 1  # each unit is committed, or stages as small as these have none
NAMES = sorted(faults.POINTS)


@dataclass(frozen=True)
class Undisturbed:
    """A run of a stage that nothing happened to."""

    digest: str
    seconds: float
    points: dict[str, int]  # how often it passed each named point
    memory: int | None  # bytes that it was allowed; None: what the machine has
    passes: list[tuple[str, int]]  # of all points in turn: which one, and how often it was passed before
    files: dict[str, list[int]]  # of a work folder: passes at which each appears, has all of its bytes, is there last
    gaps: dict[str, list[list[int]]]  # in extents: places of zeros between parts, and of those behind the last ones


class Passes:
    """Counts in a child, which may die, how often it passes each point."""

    def __init__(self) -> None:
        self._counts = np.frombuffer(mmap.mmap(-1, 8 * len(NAMES)), np.int64)

    @contextmanager
    def counted(
        self, deadly: str | None = None, after: int = 0, told: Callable[[str, int], None] = lambda name, after: None
    ) -> Iterator[None]:
        """Counts within the block, tells of each pass, and dies at a point that was passed `after` times before."""

        def at(number: int) -> None:
            told(NAMES[number], int(self._counts[number]))
            if NAMES[number] == deadly and self._counts[number] == after:
                os.kill(os.getpid(), signal.SIGKILL)
            self._counts[number] += 1

        with ExitStack() as stack:
            for number, name in enumerate(NAMES):
                stack.enter_context(faults.armed(name, lambda number=number: at(number)))
            yield

    @property
    def counts(self) -> dict[str, int]:
        """Returns the points that were passed, and how often."""
        return {name: count for name, count in zip(NAMES, self._counts.tolist(), strict=True) if count}


def undisturbed(stage: Stage, inputs: Path, folder: Path, *, with_files: bool = True) -> list[Undisturbed]:
    """Runs it in a child with all memory, and with each of its small budgets. Looks for files all the time, unless
    nobody aims at one.
    """
    found = [_undisturbed(stage, inputs, folder, memory, with_files) for memory in (None, *stage.small)]
    assert len({each.digest for each in found}) == 1, found
    return found


def _undisturbed(stage: Stage, inputs: Path, folder: Path, memory: int | None, with_files: bool) -> Undisturbed:
    out, passes = folder / f"out{stage.suffix}", Passes()

    order, files, sizes = list[tuple[str, int]](), dict[str, list[int]](), dict[str, int]()

    def look(point: str, after: int) -> None:
        order.append((point, after))
        # Nothing but its log changes while a shuffle is written, hundreds of times.
        if not with_files or point == "shuffle.write" or (not stage.in_place and out.exists()):
            return
        for path in left_in(folder):
            try:
                name, size, now = str(path.relative_to(folder)), path.stat().st_size, len(order) - 1
            except FileNotFoundError:  # a thread of the stage has removed it since
                continue
            appeared, full, _ = files.get(name, (now, now, now))
            files[name] = [appeared, now if size > sizes.get(name, -1) else full, now]
            sizes[name] = max(size, sizes.get(name, -1))

    def work() -> list[object]:
        started = time.perf_counter()
        with passes.counted(told=look):
            run(stage, inputs, out, memory)
        seconds = time.perf_counter() - started
        return [stage.digest(out), seconds, order, files, gaps_of(out)]

    folder.mkdir()
    stage.make_ready(inputs, out)
    outcome = in_child(work)
    assert outcome.ended, outcome
    shutil.rmtree(folder)
    digest, seconds, order, files, gaps = outcome.result  # type: ignore[misc]
    return Undisturbed(digest, seconds, passes.counts, memory, order, files, gaps)


def run(stage: Stage, inputs: Path, out: Path, memory: int | None) -> None:
    """Runs a stage in units as small as its inputs."""
    given = {} if memory is None else {"memory": memory}
    with faults.pretending("unit.bytes", UNIT_BYTES), budget_of_data_alone():
        stage.run(inputs, out, **given)


def _harmed(folder: Path, random: np.random.Generator) -> str | None:
    """Damages a file of a work folder, if there is one; says how."""
    if not (files := left_in(folder)):
        return None
    return harm_some([files[random.integers(len(files))]], [HARMS[random.integers(len(HARMS))]], random)


def killed(
    stage: Stage, wholes: list[Undisturbed], inputs: Path, folder: Path, random: np.random.Generator
) -> str | None:
    """Kills a stage some times, damages what it leaves every other time, and finishes it.

    Returns:
        What went wrong, if anything did.
    """
    folder.mkdir()
    out, digest = folder / f"out{stage.suffix}", wholes[0].digest
    stage.make_ready(inputs, out)
    story, passed = list[str](), list[dict[str, int]]()
    budgets, harms, at_points = set[int | None](), 0, True
    while not story or random.random() < 0.3:
        whole = wholes[random.integers(len(wholes))]
        point = str(random.choice(sorted(whole.points))) if whole.points and random.random() < 0.7 else None
        after = int(random.integers(whole.points[point])) if point else 0
        moment = float(random.uniform(0, 1.1 * whole.seconds))
        story.append(f"{point} after {after}" if point else f"{moment:.3f} s")
        story[-1] += f" with {whole.memory} bytes" if whole.memory else ""
        budgets.add(whole.memory)
        at_points = at_points and point is not None  # at a moment, pieces too small for a commit may be finished
        passes = Passes()

        def work(
            point: str | None = point, after: int = after, memory: int | None = whole.memory, passes: Passes = passes
        ) -> None:
            with passes.counted(point, after):
                run(stage, inputs, out, memory)

        outcome = in_child(work, None if point else moment)
        passed.append(passes.counts)
        if outcome.error not in (None, "OutputExistsError"):
            return f"killed at {story}: {outcome.error}: {outcome.message}"
        published = out.exists() and not stage.in_place
        if published and (found := in_child(lambda: stage.digest(out))).result != digest:
            return f"killed at {story}: what it published is {found}"
        if random.random() < 0.5 and (harm := _harmed(folder, random)) is not None:
            story.append(harm)
            harms += 1
    last, passes = wholes[random.integers(len(wholes))], Passes()
    story.append(f"run again with {last.memory or 'all'} bytes")
    budgets.add(last.memory)

    def again() -> str:
        try:
            with passes.counted():
                run(stage, inputs, out, last.memory)
        except OutputExistsError:
            if not published:
                raise
        return stage.digest(out)

    if (found := in_child(again)).result != digest:
        return f"killed at {story}: it made {found}, expected {digest}"
    if left := sorted(path.name for path in folder.iterdir() if path != out):
        return f"killed at {story}: it left {left}"
    if not harms and at_points and len(budgets) == 1 and (more := repeated(last, [*passed, passes.counts])):
        return f"killed at {story}: {more}"
    shutil.rmtree(folder)
    return None


def repeated(whole: Undisturbed, runs: list[dict[str, int]]) -> str | None:
    """Says if more was repeated than what each kill found unfinished. Folds that spill to memory begin anew."""
    for kind in ("work.unit", "work.piece") if whole.memory else ("work.unit",):
        made, expected = sum(run.get(kind, 0) for run in runs), whole.points.get(kind, 0)
        if made > expected + len(runs) - 1:
            return f"{made} passes of {kind}, {expected} without kills"
    return None
