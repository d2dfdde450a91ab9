"""Stages that are killed and go on: plain code that runs steps, under one runner that keeps every promise.

A stage is a function of `Work`. After a kill it is simply run again: what a finished step found comes from the journal,
and a step that was stopped goes on after its last commit. No algorithm asks where it stood.

    def sort(work: Work, lines: Lines) -> int:
        found = work.shuffle("split", "lines", 256)
        work.fold("split", partial(split, lines, found), {"read": 0})
        return int(work.fold("merge", partial(merge, found), {"lines": 0}, consumes=[found])["lines"])

A *fold* is a generator `step(state, output)`. It works in pieces, in their order, keeps what the next piece needs in
`state` (named arrays, changed in place), and yields after each piece how many bytes it handled. Between two pieces the
runner may commit: it makes durable what was written and notes the state, data first. A kill costs what came after the
last commit, which is half a GiB or two seconds of work. Where nobody would go on, nothing is committed.

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
it, and at its end by itself. Of files that it does not write with `output.array` it says in one place, as `written`,
which spans of them its state stands for.

What a killed run left is compared with checksums before it is used. What is damaged is made again, once, by running the
stage again without the step that made it, and then without those that filled what it had consumed; or without all
steps, where a map consumed that. A step that follows from others begins anew if one of these did.

Files that only this run reads are `scratch`: they go at the end of a block, and before the stage begins if a killed run
left them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn.files import faults
from diskgnn.files.disk_space import DiskBudget, allocated_bytes
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.required_space import require_space
from diskgnn.work.shuffle import DamagedStepError, Shuffle
from diskgnn.work.work_folder import FINISHED, Note, State, WorkFolder
from diskgnn.work.writer import ArtifactWriter
from diskgnn.work.written_spans import Written, require_written

UnitFiles = Mapping[str, int]  # by name, the CRC-32C of each file that a unit left
Result = TypeVar("Result")
Unit = TypeVar("Unit")

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
        self._begun: dict[str, npt.NDArray[Any]] = {}  # by step: a number that it has from its beginning on
        self._consumes: dict[str, set[str]] = {}  # by step: those that filled the shuffles that it consumes
        self._fills: dict[str, dict[str, Shuffle]] = {}  # by step, by name

    def run(self, stage: Callable[[Work], Result]) -> Result:
        """Runs a stage; once more for each step whose files turn out to be damaged.

        Raises:
            DamagedStepError: they are damaged again: the disk does not keep what is written to it.
        """
        made_again: set[str] = set()
        while True:
            self._folder.remove(self._scratch_folder.name)
            self._fills.clear()
            try:
                return stage(self)
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
        run: Callable[[State, Output], Generator[int, None, None]],
        first: Mapping[str, npt.ArrayLike],
        *,
        key: npt.ArrayLike = (),
        consumes: Sequence[Shuffle] = (),
        written: Callable[[State], Iterable[tuple[str, Iterable[Written]]]] = lambda _: (),
        is_resumable: bool = True,
        sends: bool = False,
    ) -> State:
        """Runs a step, or what a killed run left of it.

        Args:
            step: its name. If a shuffle that it fills is in memory it is not committed, but run again.
            run: the step itself; see the head of this module.
            first: its state at the beginning; the step may add arrays to it.
            key: what a killed run must have had alike, such as what this step follows from (`begun`); else the step
                begins anew.
            consumes: shuffles that nobody reads after it.
            written: says what is written, by `state`, to files that the step writes by itself: their names, and spans
                that are not written again. A run that goes on compares them, if they are not complete.
            is_resumable: a killed run goes on with it; if not, it is never committed.
            sends: nobody reads its files here: where the artifact goes to a store, they go at once.

        Returns:
            The state at its end.
        """
        self._consumes[self._full(step)] = {shuffle.step for shuffle in consumes}
        fills = self._fills.get(self._full(step), {}).values()
        durable = is_resumable and self._folder.is_resumable and not any(shuffle.in_memory for shuffle in fills)
        before = self._before(step, key) if durable else {}
        is_finished = FINISHED in before
        if not before:  # whoever goes on later must not find a note of what is written over now
            self.forget(step)
        self._begun[step] = before.get("begun", np.frombuffer(os.urandom(8), np.uint64)[0])
        about = {"key": np.array(key), "begun": np.array(self._begun[step])}
        is_committed, handled_bytes = bool(before), 0
        state = {name: np.array(value) for name, value in {**first, **_section(before, "state")}.items()}
        names: list[str] = before[FINISHED].tolist() if is_finished else []
        if not all(self._folder.adopt(name) for name in names):
            raise DamagedStepError(self._full(step), f"{self._folder.staging} does not hold what was written")
        for name, spans in written(state) if before else ():
            if name not in names:
                require_written(self._folder.path(name), spans, self._full(step))
        with ExitStack() as closed:
            for shuffle in fills:
                closed.callback(shuffle.close)
                noted = _section(before, f"spill/{shuffle.name}") if before else None
                shuffle.open(noted, for_more=not is_finished)
            if not is_finished:
                assert isinstance(self._folder, ArtifactWriter)
                output = Output(self._folder, self._full(step), before)
                with output, closing(run(state, output)) as pieces:
                    for num_bytes in pieces:
                        faults.point("work.piece")
                        handled_bytes += num_bytes
                        if durable and output.stays_here and self._folder.is_due(num_bytes):
                            output.hand_over()
                            self._note(step, about, state, fills, output)
                            self.commit()
                            is_committed = True
                names = output.names
                if durable:
                    self._note(step, about, state, fills, output, finished=True)
        sends = sends and self._folder.sends
        if sends:
            self._folder.send_at_commit(names)
        # A step may write files of which it has yielded nothing.
        more_bytes = sum(allocated_bytes(self._folder.path(name)) for name in names) - handled_bytes
        is_due = durable and self._folder.is_due(max(0, more_bytes))
        # Where it was committed half-way its end is, too; and a kill must not find both its inputs and its output gone.
        if is_committed or is_due or sends or any(not shuffle.in_memory for shuffle in consumes):
            self.commit()
        for shuffle in consumes:
            shuffle.remove()
        return state

    def is_finished(self, step: str, *, key: npt.ArrayLike = ()) -> bool:
        """Returns True if a killed run has finished a fold: then nobody needs what only this one reads."""
        return FINISHED in self._before(step, key)

    def begun(self, step: str) -> npt.NDArray[Any]:
        """Returns a number that a fold, which was run, has from its beginning on: a `key` of those that follow."""
        return self._begun[step]

    def _before(self, step: str, key: npt.ArrayLike) -> State:
        """Returns what was noted of a step that had the same key, maybe in this run."""
        noted = self._folder.noted(self._full(step))
        return noted if np.array_equal(noted.get("key", ()), key) else {}

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
                        self._folder.finish(unit_files)
                        self._folder.consume(consumes(unit))
                        if self._folder.is_due(sum(allocated_bytes(self._folder.path(name)) for name in unit_files)):
                            self._folder.commit()
        self._folder.consume(consumes_at_end)
        self._folder.commit()

    def shuffle(self, step: str, name: str, num_partitions: int, *, in_memory: bool = False) -> Shuffle:
        """Returns a shuffle of this stage, which `step` is going to fill."""
        path = self._folder.path(f"{self._name}.{name}")
        if in_memory and path.exists():  # of a killed run with less memory
            self._folder.disk.remove(path, allocated_bytes(path))
        made = Shuffle(self._full(step), None if in_memory else path, num_partitions, self._folder.disk)
        self._fills.setdefault(self._full(step), {})[name] = made
        return made

    def state_of(self, step: str) -> State:
        """Returns the state of a step, or what was passed to `note`, as it was noted last; {} if nothing was."""
        return _section(self._folder.noted(self._full(step)), "state")

    def note(self, name: str, state: State, files: Sequence[str] = ()) -> None:
        """Has `state` noted at the next commit: what later steps follow from, and which `files` hold it."""
        self._folder.note(self._full(name), Note(_noting({}, state), files))

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

    def require_space(self, needed_bytes: int, what: str, files: Sequence[str]) -> None:
        """Refuses to write `what` of `needed_bytes` in all, which go to `files` and to this stage's own, if the disk
        cannot hold that. What a killed run left of it counts as free.

        Raises:
            DiskFullError: names the bytes missing.
        """
        require_space(self._folder, needed_bytes, what, of=[f"{self._name}.", *files])

    @property
    def _scratch_folder(self) -> Path:
        return self._folder.path(f"{self._name}.scratch")

    def _full(self, step: str) -> str:
        return f"{self._name}.{step}"

    def _note(
        self,
        step: str,
        about: State,
        state: State,
        fills: Collection[Shuffle],
        output: Output,
        *,
        finished: bool = False,
    ) -> None:
        noted = _noting(about, state)
        for shuffle in fills:
            noted |= {f"spill/{shuffle.name}/{name}": array for name, array in shuffle.state().items()}
        if finished:
            noted[FINISHED] = np.array(output.names, str)
        else:
            noted |= output.state()
        files = [*(shuffle.name for shuffle in fills), *(output.shared_names if finished else output.open_names)]
        self._folder.note(self._full(step), Note(noted, files, output.names if finished else ()))


class Scratch:
    """Files in a folder of their own that are claimed of the disk, and removed together."""

    def __init__(self, folder: Path, disk: DiskBudget) -> None:
        self._folder, self._disk, self._claimed_bytes = folder, disk, 0
        folder.mkdir(parents=True)

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


class Output:
    """The files of the artifact that a fold writes, front to back. The runner opens and closes it."""

    def __init__(self, writer: ArtifactWriter, step: str, before: State) -> None:
        self._writer, self._step, self._before = writer, step, before
        self._files, self._opened = list[ArrayFile](), ExitStack()
        self._shared, self._own = list[str](), list[str]()  # files that the step writes by itself
        self._handing: list[Callable[[], None]] = []

    def array(
        self,
        name: str,
        dtype: npt.DTypeLike,
        rows: int | None,
        row_shape: tuple[int, ...] = (),
        *,
        checksums: str | None = None,
        may_stream: bool = False,
    ) -> ArrayFile:
        """Returns .npy file `name` of shape [rows, *row_shape], see `ArrayFile`; with the rows of the last commit.

        Raises:
            DamagedStepError: a killed run wrote some of it, which is not what it was.
        """
        begun = _section(self._before, f"file/{name}")
        file = ArrayFile(self._writer, name, dtype, rows, row_shape, checksums, may_stream=may_stream)
        if begun and not file.go_on(begun):
            raise DamagedStepError(self._step, f"{self._writer.path(name)} is not what was written")
        self._files.append(self._opened.enter_context(file))
        return file

    def begin(self, names: Iterable[str]) -> None:
        """Has files begin with the step: unless it goes on, what a killed run left of them is removed."""
        if not self._before:
            for name in names:
                self._writer.remove(name)

    def writes(self, own: Sequence[str] = (), *, shared: Sequence[str] = ()) -> None:
        """Has files that the step writes by itself made durable at each commit. Its `own` are complete at its end;
        others go on with those that are `shared`. What is `written` to them is compared when a run goes on."""
        self._own += own
        self._shared += shared

    def before_commit(self, hand_over: Callable[[], None]) -> None:
        """Has `hand_over` called before each commit but the last: to write what is still held in buffers."""
        self._handing.append(hand_over)

    def hand_over(self) -> None:
        """Calls them."""
        for hand_over in self._handing:
            hand_over()

    @property
    def stays_here(self) -> bool:
        """False if a file is written to a store at once: nobody can go on with that."""
        return not any(file.is_streamed for file in self._files)

    @property
    def open_names(self) -> list[str]:
        """Names of the files that are being written."""
        begun = [name for name in self._own if self._writer.path(name).exists()]
        return [*(name for file in self._files for name in file.names), *begun, *self.shared_names]

    @property
    def shared_names(self) -> list[str]:
        """Names of the files that other steps go on with."""
        return [name for name in self._shared if self._writer.path(name).exists()]

    @property
    def names(self) -> list[str]:
        """Names of all files, when they are complete."""
        return [*(name for file in self._files for name in file.names), *self._own]

    def state(self) -> State:
        """Returns what the next run needs to go on with these files."""
        return {f"file/{file.name}/{name}": array for file in self._files for name, array in file.done().items()}

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)


def _noting(about: State, state: State) -> State:
    """A copy of `state`, as it is noted."""
    return {**about, **{f"state/{name}": array.copy() for name, array in state.items()}}


def _section(noted: State, prefix: str) -> State:
    return {name.removeprefix(f"{prefix}/"): array for name, array in noted.items() if name.startswith(f"{prefix}/")}
