"""Stages that are killed and go on: plain code that runs steps, under one runner that keeps every promise.

A stage is a function of `Work`. After a kill it is simply run again: what a finished step found comes from the journal,
and a step that was stopped goes on after its last commit. No algorithm asks where it stood.

    def sort(work: Work, lines: Lines) -> int:
        found = work.shuffle("split", "lines", 256)
        work.fold("split", partial(split, lines, found), {"read": 0}, spills=[found])
        return int(work.fold("merge", partial(merge, found), {"lines": 0}, consumes=[found])["lines"])

A *fold* is a generator `step(state, output)`. It works in pieces, in their order, keeps what the next piece needs in
`state` (named arrays, changed in place), and yields after each piece how many bytes it handled. Between two pieces the
runner may commit: it makes durable what was written and notes the state, data first. A kill costs what came after the
last commit, which is half a GiB or two seconds of work. Where nobody would go on, nothing is committed.

A number in the state is an array, too, without dimensions: `int(state["read"])` reads it, `state["read"] += 1` changes
it in place. What a step holds back when it yields, in buffers, it has to hand over when `output.before_commit` asks for
it, and at its end by itself.

What a killed run left is compared with checksums before it is used. What is damaged is made again, once, by running the
stage again without the step that made it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn.storage import faults
from diskgnn.storage.array_file import ArrayFile
from diskgnn.storage.disk_space import allocated_bytes, require_free_bytes
from diskgnn.storage.shuffle import DamagedStepError, Shuffle
from diskgnn.storage.writer import ArtifactWriter

State = dict[str, npt.NDArray[Any]]
Result = TypeVar("Result")

# Waiting for the disk takes 10 to 30 ms. After so many bytes, and at most this often, nobody notices that.
_COMMIT_BYTES = 512 << 20
_SECONDS_A_BYTE = 2 / _COMMIT_BYTES


def is_long(num_bytes: int) -> bool:
    """True if a stage that handles so many bytes is worth a commit."""
    return num_bytes > faults.reading("unit.bytes", _COMMIT_BYTES)


class Work:
    """The steps of one stage, in the staging folder of an artifact.

    Args:
        writer: of the artifact; what a killed run left is used only if it is resumable.
        name: of the stage; its own files in the folder begin with it.
    """

    def __init__(self, writer: ArtifactWriter, name: str) -> None:
        self._writer, self._name = writer, name
        # Not committed: by step, what is to be noted, the files that it claims, and those that are complete.
        self._pending: dict[str, tuple[State, Sequence[str], Sequence[str]]] = {}
        self._handled_bytes, self._committed_seconds = 0, time.monotonic()

    def run(self, stage: Callable[[Work], Result]) -> Result:
        """Runs a stage; once more for each step whose files turn out to be damaged.

        Raises:
            DamagedStepError: they are damaged again: the disk does not keep what is written to it.
        """
        made_again: set[str] = set()
        while True:
            try:
                return stage(self)
            except DamagedStepError as error:
                if error.step in made_again:
                    raise
                made_again.add(error.step)
                self.forget(error.step)

    def fold(
        self,
        step: str,
        run: Callable[[State, Output], Generator[int, None, None]],
        first: Mapping[str, npt.ArrayLike],
        *,
        key: npt.ArrayLike = (),
        spills: Sequence[Shuffle] = (),
        consumes: Sequence[Shuffle] = (),
        is_kept: bool = True,
    ) -> State:
        """Runs a step, or what a killed run left of it.

        Args:
            step: its name.
            run: the step itself; see the head of this module.
            first: its state at the beginning.
            key: what a killed run must have had alike; else the step begins anew.
            spills: that it fills. If one is in memory the step is not committed, but run again.
            consumes: that nobody reads after it.
            is_kept: a killed run goes on with it; if not, it is never committed.

        Returns:
            The state at its end.
        """
        durable = is_kept and self._writer.is_resumable and not any(spill.in_memory for spill in spills)
        before = self._noted(step, key) if durable else {}
        is_committed = bool(before)
        state = {name: np.array(before.get(f"state/{name}", value)) for name, value in first.items()}
        with ExitStack() as closed:
            for spill in spills:
                closed.callback(spill.close)
                noted = _section(before, f"spill/{spill.name}") if before else None
                spill.open(noted, for_more="finished" not in before)
            if "finished" not in before:
                output = Output(self._writer, step, before)
                with output, closing(run(state, output)) as pieces:
                    for num_bytes in pieces:
                        faults.point("work.piece")
                        if durable and output.stays_here and self.is_due(num_bytes):
                            output.hand_over()
                            self._note(step, key, state, spills, output)
                            self.commit()
                            is_committed = True
                if durable:
                    self._note(step, key, state, spills, output, finished=True)
            elif not all(self._writer.adopt(name) for name in before["finished"].tolist()):
                raise DamagedStepError(step, f"{self._writer.staging} does not hold what was written")
        # Where it was committed half-way its end is, too; and a kill must not find both its inputs and its output gone.
        if is_committed or any(not spill.in_memory for spill in consumes):
            self.commit()
        for spill in consumes:
            spill.remove()
        return state

    def shuffle(self, step: str, name: str, num_partitions: int, *, in_memory: bool = False) -> Shuffle:
        """Returns a shuffle of this stage, which `step` is going to fill."""
        path = self._writer.path(f"{self._name}.{name}")
        if in_memory and path.exists():  # of a killed run with less memory
            self._writer.disk.remove(path, allocated_bytes(path))
        return Shuffle(step, None if in_memory else path, num_partitions, self._writer.disk)

    def state_of(self, step: str) -> State:
        """Returns the state of a step, or what was passed to `note`, as it was noted last; {} if nothing was."""
        return _section(self._noted(step, None), "state")

    def note(self, name: str, state: State, files: Sequence[str] = ()) -> None:
        """Has `state` noted at the next commit: what later steps follow from, and which `files` hold it."""
        self._pending[name] = _noting((), state), files, ()

    def forget(self, name: str) -> None:
        """What was noted of a step is true no more."""
        self._pending.pop(name, None)
        self._writer.forget(f"{self._name}.{name}")

    def commit(self) -> None:
        """Makes durable what was noted, and the files that hold it, first."""
        for step, (noted, files, complete) in self._pending.items():
            self._writer.keep(complete)
            self._writer.record(f"{self._name}.{step}", noted, claims=files)
        self._pending.clear()
        self._handled_bytes, self._committed_seconds = 0, time.monotonic()

    def require_space(self, needed_bytes: int, what: str, files: Sequence[str]) -> None:
        """Refuses to write `what` of `needed_bytes` in all, which go to `files` and to this stage's own, if the disk
        cannot hold that. What a killed run left of it counts as free.

        Raises:
            DiskFullError: names the bytes missing.
        """
        if self._writer.outbox is not None:
            self._writer.outbox.drain()  # what is complete goes, and makes room
        own = (path for path in self._writer.staging.iterdir() if path.name.startswith(f"{self._name}."))
        there = sum(map(allocated_bytes, [*own, *map(self._writer.path, files)]))
        require_free_bytes(self._writer.staging, max(0, needed_bytes - there), what, disk=self._writer.disk)

    def _noted(self, step: str, key: npt.ArrayLike | None) -> State:
        """What was noted of a step, in this run or a killed one; {} if nothing, or not under `key` (None: any)."""
        pending = self._pending.get(step)
        noted = (self._writer.recorded(f"{self._name}.{step}") or {}) if pending is None else pending[0]
        return noted if key is None or np.array_equal(noted.get("key", ()), key) else {}

    def _note(
        self,
        step: str,
        key: npt.ArrayLike,
        state: State,
        spills: Sequence[Shuffle],
        output: Output,
        *,
        finished: bool = False,
    ) -> None:
        noted = _noting(key, state)
        for spill in spills:
            noted |= {f"spill/{spill.name}/{name}": array for name, array in spill.state().items()}
        if finished:
            noted["finished"] = np.array(output.names, str)
        else:
            noted |= output.state()
        claims = [*(spill.name for spill in spills), *(output.shared_names if finished else output.open_names)]
        self._pending[step] = noted, claims, output.names if finished else ()

    def is_due(self, handled_bytes: int) -> bool:
        """Returns True if it is time for a commit, now that so many bytes more were handled."""
        self._handled_bytes += handled_bytes
        if not self._writer.is_resumable:
            return False
        least_bytes = faults.reading("unit.bytes", _COMMIT_BYTES)
        seconds = time.monotonic() - self._committed_seconds
        return self._handled_bytes >= least_bytes and seconds >= least_bytes * _SECONDS_A_BYTE


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
        file = self._writer.array_file(name, dtype, rows, row_shape, checksums=checksums, may_stream=may_stream)
        if begun and not file.go_on(begun):
            raise DamagedStepError(self._step, f"{self._writer.path(name)} is not what was written")
        self._files.append(self._opened.enter_context(file))
        return file

    def claim(self, own: Sequence[str] = (), *, shared: Sequence[str] = ()) -> None:
        """Has files that the step writes by itself made durable at each commit. Its `own` are complete at its end;
        others go on with those that are `shared`. The step compares with its state what a killed run left of them."""
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
        return [*(file.name for file in self._files), *begun, *self.shared_names]

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


def _noting(key: npt.ArrayLike, state: Mapping[str, npt.NDArray[Any]]) -> State:
    """A copy of `state`, as it is noted."""
    return {"key": np.array(key), **{f"state/{name}": array.copy() for name, array in state.items()}}


def _section(noted: State, prefix: str) -> State:
    return {name.removeprefix(f"{prefix}/"): array for name, array in noted.items() if name.startswith(f"{prefix}/")}
