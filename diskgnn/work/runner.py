"""Stages that are killed and go on: plain code that runs steps, under one runner that keeps every promise.

A stage is a function of `Work`. After a kill it is simply run again: what a finished step found comes from the journal,
and a step that was stopped goes on after its last commit. An algorithm finds where it stood in its state. Few stages
ask whether a step is finished, to spare what only that one needs.

    def sort(work: Work, writer: ArtifactWriter, lines: Lines) -> int:
        found = work.shuffle("split", "lines", 256)
        file = ArrayFile(writer, "lines.npy", np.int64, len(lines))
        work.fold("split", partial(split, lines, found), {"read": 0})
        done = work.fold("merge", partial(merge, found, file), {"lines": 0}, files=[file], consumes=[found])
        return int(done["lines"])

A *fold* is a generator `step(state, output)`. It works in pieces, in their order, keeps what the next piece needs in
`state` (named arrays, changed in place), and yields after each piece how many bytes it handled. Between two pieces the
runner may commit: it makes durable what was written and notes the state, data first. A kill costs what came after the
last commit: half a GiB and two seconds of work, or ten seconds, and the piece. Stages that take less are never
committed, and begin anew.

A *map* is a generator of units that do not depend on each other. It is given the units that no killed run has finished,
and yields each with the files that it left, in any order. So it may keep open what is dear, and work on several at a
time; nothing of that is ever noted.

    def sample(missing: Iterator[Shard]) -> Generator[tuple[Shard, UnitFiles], None, None]:
        with load_topology() as topology:
            for shard in missing:
                yield shard, {shard.file: write(topology, shard)}

    work.map("sample", shards, sample, files=lambda shard: [shard.file])

A unit may consume files of units before: they are removed as soon as what was made of them is committed.

A number in the state is an array, too, without dimensions: `int(state["read"])` reads it, `state["read"] += 1` changes
it in place. What a step holds back when it yields, in buffers, it has to hand over when `output.before_commit` asks for
it. A progress bar is a stage of `output`, which knows where it begins. The `files` that it writes are declared before
it runs (`step_file`): the runner opens them, where they go on, makes them durable, closes them and sends them.

An *artifact* that a stage needs is made in its folder by a stage of its own, which has its own work folder there, and
goes on by itself. It is read within `reading()`, so that it is made again if it is damaged.

    hops = work.artifact("hops", lambda path: propagate(graph, path, hops=3))
    with hops.reading() as path, HopsLoader(path, "test") as loader:
        ...

What a killed run left is compared with checksums before it is used. What is damaged is made again, once, by running the
stage again without the step that made it, and then without those that filled what it had consumed; or without all
steps, where a map consumed that. A step that follows from others begins anew if one of these did.

Files that only this run reads are `scratch`: they go at the end of a block, and before the stage begins if a killed run
left them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.files import faults
from diskgnn.files.destination import lock_of
from diskgnn.files.disk_space import UNLIMITED, DiskBudget, allocated_bytes
from diskgnn.progress.reporter import Advance
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.fold import Fold, Step, noted_alike, section, with_state
from diskgnn.work.journal import note_bytes
from diskgnn.work.required_space import require_space
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.step_artifact import StepArtifact
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import FINISHED, Note, State, WorkFolder

UnitFiles = Mapping[str, int]  # by name, the CRC-32C of each file that a unit left
Result = TypeVar("Result")
Unit = TypeVar("Unit")

_OWN_NUMBERS = 64  # at most, about, for what a note says beside the state: keys and names
# In place of the name of a step that is to be made again: all; or those units of maps whose files are damaged.
ALL_STEPS, SOME_UNITS = "", "units"


class Work:
    """The steps of one stage, in the staging folder of an artifact.

    Args:
        folder: where it works; what a killed run left there is used only if it is resumable. Folds need that of an
            artifact.
        name: of the stage; its own files in the folder begin with it.
    """

    def __init__(self, folder: WorkFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._begun: dict[str, npt.NDArray[Any]] = {}  # by step, see `Fold`
        self._consumes: dict[str, set[str]] = {}  # by step: those that filled the shuffles that it consumes
        self._fills: dict[str, dict[str, Shuffle]] = {}  # by step, by name

    def run(self, stage: Callable[[Work], Result]) -> Result:
        """Runs a stage; once more for each step whose files turn out to be damaged. Wrong input leaves nothing.

        Raises:
            InputError: what the stage reads is wrong: whoever corrects it begins anew.
            DamagedStepError: they are damaged again: the disk does not keep what is written to it.
        """
        made_again: set[str] = set()
        while True:
            self._folder.remove(self._scratch_folder.name)
            self._fills.clear()
            try:
                return stage(self)
            except InputError:
                self._folder.leave_nothing()
                raise
            except DamagedStepError as error:
                step = error.step
                if step == SOME_UNITS and step in made_again:  # what they are made of may have been used up
                    step = ALL_STEPS
                is_own = step in (ALL_STEPS, SOME_UNITS) or step.startswith(f"{self._name}.")
                if step in made_again or not is_own:  # but of the stage around this one, maybe
                    raise
                made_again.add(step)
                made_again -= self._consumes.get(step, set())  # what they made was used up, not damaged again
                if step == ALL_STEPS:
                    self._folder.restart()
                else:
                    self._folder.restart_step(step)

    def fold(
        self,
        step: str,
        run: Step,
        first: Mapping[str, npt.ArrayLike],
        *,
        files: Sequence[StepFile] = (),
        key: npt.ArrayLike = (),
        after: Sequence[str] = (),
        consumes: Sequence[Shuffle] = (),
        advance: Advance = lambda _: None,
    ) -> State:
        """Runs a step, or what a killed run left of it.

        Args:
            step: its name. If a shuffle that it fills is in memory it is not committed, but run again.
            run: the step itself; see the head of this module.
            first: its state at the beginning; the step may add arrays to it.
            files: those that it writes.
            key: what a killed run must have had alike; else the step begins anew.
            after: folds that it follows from; it begins anew if one of them did.
            consumes: shuffles that nobody reads after it.
            advance: of a bar that several steps share: told what the step tells `output.advance`, and first how far a
                killed run was.

        Returns:
            The state at its end.
        """
        fills = [*self._fills.get(full := self._full(step), {}).values()]
        parts = [part for file in files for part in file.parts]
        fold = Fold(self._folder, full, parts, fills, key, [self._begun[each] for each in after])
        self._begun[step], self._consumes[full] = fold.begun, {shuffle.step for shuffle in consumes}
        state = fold.run(run, first, advance)
        fold.end(consumes)
        return state

    def is_finished(self, step: str, *, key: npt.ArrayLike = ()) -> bool:
        """Returns True if a killed run has finished a fold that follows from no other: then nobody needs what only this
        one reads."""
        return FINISHED in noted_alike(self._folder, self._full(step), key)

    def map(
        self,
        units: Iterable[Unit],
        run: Callable[[Iterator[Unit]], Generator[tuple[Unit, UnitFiles], None, None]],
        *,
        files: Callable[[Unit], Sequence[str]],
        consumes: Callable[[Unit], Collection[str]] = lambda _: (),
        consumes_at_end: Collection[str] = (),
        adopted: Callable[[Unit], object] = lambda _: None,
    ) -> None:
        """Runs those of independent units that no killed run has finished.

        Args:
            units: in the order in which they are given to `run`.
            run: the step itself; see the head of this module. It is not called if no unit is missing.
            files: names of the files that a unit leaves; units must not share any.
            consumes: names of files, of units before, that nobody needs when a unit is finished.
            consumes_at_end: the same when all units are.
            adopted: told of each unit that a killed run has finished.

        Raises:
            DamagedStepError: a unit's files are not what they were, and what they were made of is gone.
        """

        def missing() -> Iterator[Unit]:
            # A killed run was at its end if all are gone, together. It may have consumed some unit by unit.
            is_at_end = bool(consumes_at_end) and all(self._folder.is_consumed(name) for name in consumes_at_end)
            for unit in units:
                # Each is looked at, so that what is damaged is removed.
                names = files(unit)
                whole = [self._folder.is_consumed(name) or self._folder.adopt(name) for name in names]
                if all(whole):
                    self._folder.send_at_commit(names)
                    self._folder.consume(consumes(unit))
                    adopted(unit)
                    continue
                if is_at_end or any(self._folder.is_consumed(name) for name in consumes(unit)):
                    raise DamagedStepError(ALL_STEPS, f"{self._folder.staging} does not hold what was written")
                yield unit

        waiting = missing()
        with self._folder.disk.relieved(self._folder.give_back):
            for first in waiting:  # `run` may load what is dear before it asks for a unit
                with closing(run(chain([first], waiting))) as running:
                    for unit, unit_files in running:
                        assert unit_files.keys() == set(files(unit)), (unit_files.keys(), files(unit))
                        faults.point("work.unit")
                        self._folder.complete(unit_files)
                        self._folder.consume(consumes(unit))
                        if self._folder.is_due(sum(allocated_bytes(self._folder.path(name)) for name in unit_files)):
                            self._folder.commit()
        self._folder.consume(consumes_at_end)
        self._folder.commit()

    def artifact(self, name: str, make: Callable[[Path], Result]) -> StepArtifact[Result]:
        """Returns an artifact in this folder, which a stage of its own makes there unless a killed run has.

        Args:
            name: of the directory.
            make: makes it at a path, or goes on with what a killed run left of it. It may take as much of the disk as
                this folder, which counts what is there afterwards.
        """
        self._folder.keep(name)
        path, made = self._folder.path(name), None
        if path.exists():
            lock_of(path).unlink(missing_ok=True)  # of a run that was killed when it had given the directory its name
        else:
            made = make(path)
            self._folder.disk.look()
        return StepArtifact(self._folder, self._full(name), name, made)

    def shuffle(
        self, step: str, name: str, num_partitions: int, *, in_memory: bool = False, keeps_places: bool = False
    ) -> Shuffle:
        """Returns a shuffle of this stage, which `step` is going to fill."""
        path = self._folder.path(f"{self._name}.{name}")
        if in_memory:  # of a killed run with less memory
            self._folder.disk.remove(path)
        made = Shuffle(
            self._full(step), None if in_memory else path, num_partitions, self._folder.disk, keeps_places=keeps_places
        )
        self._fills.setdefault(self._full(step), {})[name] = made
        return made

    def state_of(self, step: str) -> State:
        """Returns the state of a step, or what was passed to `note`, as it was noted last; {} if nothing was."""
        return section(self._folder.noted(self._full(step)), "state")

    @staticmethod
    def note_bytes(state: State, files: Sequence[StepFile] = ()) -> int:
        """Returns the most that the notes of a step take of the disk: of its state, or what this has beside that of
        `files` at the beginning."""
        states = [state, *(part.first() for file in files for part in file.parts)]
        noted = {name: array for each in states for name, array in with_state({}, each).items()}
        return note_bytes(noted | {name: np.empty(_OWN_NUMBERS, np.uint64) for name in ("key", "after", FINISHED)})

    def note(self, name: str, state: State, files: Sequence[str] = ()) -> None:
        """Has `state` noted at the next commit: what later steps follow from, and which `files` hold it."""
        self._folder.note(self._full(name), Note(with_state({}, state), files))

    def forget(self, name: str) -> None:
        """Removes what was noted of a step: it is true no more."""
        self._folder.forget(self._full(name))

    def commit(self) -> None:
        """Makes durable what was noted and what units left, of all stages in this folder."""
        self._folder.commit()

    @contextmanager
    def scratch(self, name: str) -> Iterator[Scratch]:
        """Yields a folder for files that only this run reads. They are removed when the block ends."""
        scratch = Scratch(self._scratch_folder / name, self._folder.disk)
        try:
            yield scratch
        finally:
            scratch.remove()

    def require_space(self, needed_bytes: int, what: str, files: Sequence[StepFile] = ()) -> None:
        """Refuses to write `what` of `needed_bytes` in all, which go to `files` and to this stage's own, if the disk
        cannot hold that. What a killed run left of it counts as free.

        Raises:
            DiskFullError: names the bytes missing.
        """
        names = (part.name for file in files for part in file.parts)
        require_space(self._folder, needed_bytes, what, of=[f"{self._name}.", *names])

    @property
    def _scratch_folder(self) -> Path:
        return self._folder.path(f"{self._name}.scratch")

    def _full(self, step: str) -> str:
        return f"{self._name}.{step}"


class Scratch:
    """Files in a folder of their own that are claimed of the disk, and removed together."""

    def __init__(self, folder: Path, disk: DiskBudget = UNLIMITED) -> None:
        self._folder, self._disk, self._claimed_bytes = folder, disk, 0
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Returns where to write a file; whoever does claims its bytes first."""
        return self._folder / name

    def claim(self, num_bytes: int) -> None:
        """Says that so many bytes more are about to be written.

        Raises:
            DiskFullError: that would be more than the command may take.
        """
        self._disk.claim(num_bytes)
        self._claimed_bytes += num_bytes

    def remove(self) -> None:
        """Removes the files, and gives back what was claimed for them."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # others have theirs beside it
            self._folder.parent.rmdir()
        self._disk.release(self._claimed_bytes)
        self._claimed_bytes = 0
