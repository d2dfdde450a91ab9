"""A fold under the runner: what a killed run left of it, its pieces with commits in between, and its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.files import faults
from diskgnn.files.disk_space import allocated_bytes
from diskgnn.progress.reporter import Advance, Reporter
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import FINISHED, Note, State, WorkFolder
from diskgnn.work.written_spans import require_written


class Output:
    """The files of a fold while it runs, and what it holds back. The runner opens and closes it.

    Files are opened in their order, handed over and closed in reverse.
    """

    def __init__(self, files: Sequence[StepFile], state: State, advance: Advance, advanced: int) -> None:
        self._files, self._state, self._advance, self.advanced = files, state, advance, advanced
        self._handing: list[Callable[[], None]] = []

    def advance(self, count: int) -> None:
        """Tells how much farther the step is. The runner notes it, for the run after a kill."""
        self.advanced += count
        self._advance(count)

    @contextmanager
    def stage(self, reporter: Reporter, description: str, total: int, unit: str) -> Iterator[Advance]:
        """Begins a stage of `reporter` where a killed run stood, which is told what `advance` is from now on."""
        with reporter.stage(description, total, unit) as self._advance:
            self._advance(self.advanced)
            yield self.advance

    def before_commit(self, hand_over: Callable[[], None]) -> None:
        """Has `hand_over` called before each commit, and at the end: to write what is still held in buffers."""
        self._handing.append(hand_over)

    def hand_over(self, *, to_files: bool = True) -> None:
        """Has the step write what it holds back, and files what they do."""
        for hand_over in self._handing:
            hand_over()
        for file in reversed(self._files if to_files else ()):
            file.hand_over()

    @property
    def stays_here(self) -> bool:
        """Returns False if a file is written to a store at once: nobody can go on with that."""
        return not any(file.is_streamed for file in self._files)

    def __enter__(self) -> Output:
        with ExitStack() as opening:
            for file in self._files:
                file.open(self._state)
                opening.push(file)
            self._opened = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)


Step = Callable[[State, Output], Generator[int, None, None]]


class Fold:
    """One fold of a stage: what a killed run noted of it, if that had the same key and followed from the same folds.

    Args:
        folder: where it works.
        name: of the step, as STAGE.STEP.
        files: that it writes.
        fills: shuffles that it fills.
        key: what a killed run must have had alike.
        follows: `begun` of each fold that it follows from.
    """

    def __init__(
        self,
        folder: WorkFolder,
        name: str,
        files: Sequence[StepFile],
        fills: Sequence[Shuffle],
        key: npt.ArrayLike,
        follows: Sequence[npt.NDArray[Any]],
    ) -> None:
        self._folder, self._name, self._files, self._fills = folder, name, files, fills
        is_lost = any(shuffle.in_memory for shuffle in fills) or any(file.is_streamed for file in files)
        self._is_durable = folder.is_resumable and not is_lost
        self._noted = noted_alike(folder, name, key, follows) if self._is_durable else {}
        self._is_finished, self._is_committed = FINISHED in self._noted, bool(self._noted)
        self._complete: list[str] = self._noted[FINISHED].tolist() if self._is_finished else []
        self._handled_bytes, self._advanced = 0, int(self._noted.get("advanced", 0))
        # A number that it has from its beginning on: what follows from it begins anew if it does.
        self.begun = np.array(self._noted.get("begun", np.frombuffer(os.urandom(8), np.uint64)[0]))
        self._about = {"key": np.array(key), "after": np.array(follows, np.uint64), "begun": self.begun}
        if not self._noted:  # whoever goes on later must not find a note of what is written over now
            folder.forget(name)
            for file in files:
                if file.begins:
                    folder.remove(file.name)

    def run(self, step: Step, first: Mapping[str, npt.ArrayLike], advance: Advance) -> State:
        """Runs the step, or what a killed run left of it. Returns the state at its end.

        Args:
            step: the step itself.
            first: its state at the beginning.
            advance: told how far the step is, beginning with what a killed run has done.

        Raises:
            DamagedStepError: what the killed run left is not what it wrote.
        """
        firsts = {**first, **{name: array for file in self._files for name, array in file.first().items()}}
        noted_state = section(self._noted, "state") if self._noted else firsts
        if missing := sorted(firsts.keys() - noted_state.keys()):  # of another version, which did not count this yet
            raise DamagedStepError(self._name, f"{self._folder.staging} has a note without {', '.join(missing)}")
        state = {name: np.array(value) for name, value in noted_state.items()}
        if self._noted:
            self._require_whole(state)
            advance(self._advanced)
        with ExitStack() as closed:
            for shuffle in self._fills:
                closed.callback(shuffle.close)
                noted = section(self._noted, f"spill/{shuffle.name}") if self._noted else None
                shuffle.open(noted, for_more=not self._is_finished)
            if not self._is_finished:
                self._run_pieces(step, state, advance)
        return state

    def _require_whole(self, state: State) -> None:
        """Compares what a killed run left. Complete files that nobody goes on with become files of the artifact."""
        if not all(self._folder.adopt(name) for name in self._complete):
            raise DamagedStepError(self._name, f"{self._folder.staging} does not hold what was written")
        for file in self._files:
            if not (self._is_finished and file.ends):
                require_written(file.path, file.written(state), self._name)

    def _run_pieces(self, step: Step, state: State, advance: Advance) -> None:
        output = Output(self._files, state, advance, self._advanced)
        with output, closing(step(state, output)) as pieces:
            for num_bytes in pieces:
                faults.point("work.piece")
                self._handled_bytes += num_bytes
                if self._is_durable and output.stays_here and self._folder.is_due(num_bytes):
                    output.hand_over()
                    self._note(state, output.advanced)
                    self._folder.commit()
                    self._is_committed = True
            output.hand_over(to_files=self._is_durable)
        self._complete = list(self._folder.checksums(file.name for file in self._files if file.ends))
        if self._is_durable:
            self._note(state, output.advanced, self._complete)

    def _note(self, state: State, advanced: int, complete: Sequence[str] | None = None) -> None:
        """Has the step noted as it is now; at its end, with the files that are `complete`."""
        noted = with_state({**self._about, "advanced": np.array(advanced)}, state)
        if complete is not None:
            noted[FINISHED] = np.array(complete, str)
        for shuffle in self._fills:
            noted |= {f"spill/{shuffle.name}/{name}": array for name, array in shuffle.state().items()}
        complete = complete or []
        written = [file.name for file in self._files if file.name not in complete and file.path.exists()]
        self._folder.note(self._name, Note(noted, [*(shuffle.name for shuffle in self._fills), *written], complete))

    def end(self, consumes: Collection[Shuffle]) -> None:
        """Commits what is worth it, has files sent, and removes shuffles that nobody reads any more."""
        folder, sent = self._folder, [file.name for file in self._files if file.is_sent] if self._folder.sends else []
        folder.send_at_commit(sent)
        # A step may write files of which it has yielded nothing.
        more_bytes = sum(allocated_bytes(folder.path(name)) for name in self._complete) - self._handled_bytes
        is_due = self._is_durable and folder.is_due(max(0, more_bytes))
        # Where it was committed half-way its end is, too; and a kill must not find both its inputs and its output gone.
        if self._is_committed or is_due or sent or any(folder.is_noted(shuffle.step) for shuffle in consumes):
            folder.commit()
        for shuffle in consumes:
            folder.leave_out(shuffle.step, shuffle.name)
            shuffle.remove()


def noted_alike(folder: WorkFolder, name: str, key: npt.ArrayLike, follows: npt.ArrayLike = ()) -> State:
    """Returns what was noted of a step, by a killed run or this one, if that had the same key and followed from the
    same; else {}."""
    noted = folder.noted(name)
    is_alike = np.array_equal(noted.get("key", ()), key) and np.array_equal(noted.get("after", ()), follows)
    return noted if is_alike else {}


def with_state(about: State, state: State) -> State:
    """Returns a copy of `state` as it is noted, behind what is noted beside it."""
    return {**about, **{f"state/{name}": array.copy() for name, array in state.items()}}


def section(noted: State, prefix: str) -> State:
    """Returns that part of a note whose names begin with the prefix and a slash."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in noted.items() if name.startswith(f"{prefix}/")}
