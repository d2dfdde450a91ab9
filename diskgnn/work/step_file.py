"""The files of a fold: each is declared once, before the step runs, and the runner does the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from diskgnn.files.checked_files import npy_file_bytes
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter
from diskgnn.work.written_spans import Written

if TYPE_CHECKING:
    from typing_extensions import Self


class StepFile:
    """A file of an artifact that a fold writes; this one the step opens, writes and registers by itself.

    The runner removes what a killed run left of it when the step begins anew, makes it durable at each commit, and
    compares it when a run goes on: as a whole if it is complete, else what is `written`. Within the step it is opened
    and closed, so that others are written for the step: `ArrayFile`, `SavedArray`, the files of rows of packing.

    Args:
        writer: of the artifact.
        name: of the file.
        begins: False if a step before has begun it.
        ends: False if steps go on with it that come after.
    """

    num_bytes = 0  # that it will have, where that is known before
    is_streamed = False  # it goes to a store before it is whole: nobody could go on with it
    is_sent = False  # nobody reads it here: where the artifact goes to a store, it goes when the step is committed

    def __init__(self, writer: ArtifactWriter, name: str, *, begins: bool = True, ends: bool = True) -> None:
        self.writer, self.name, self.begins, self.ends = writer, name, begins, ends

    @property
    def path(self) -> Path:
        """Returns the path in the folder of the artifact."""
        return self.writer.path(self.name)

    @property
    def parts(self) -> Sequence[StepFile]:
        """Returns itself, behind the files that are written along with it."""
        return [self]

    def first(self) -> State:
        """Returns what the state of the step has of this file when that begins: arrays that keep their shape."""
        return {}

    def written(self, state: State) -> Iterable[Written]:
        """Yields what is written, and will not be written again, as `state` says."""
        del state
        return ()

    def open(self, state: State) -> None:
        """Begins the file, or goes on where `state` says. What it writes from now on it notes there."""

    def hand_over(self) -> None:
        """Writes what is held in memory, so that `state` says what lies in the file."""

    def close(self) -> None:
        """Completes the file, and registers it unless others go on with it."""

    def abandon(self) -> None:
        """Closes the file after an error."""

    def __enter__(self) -> Self:
        self.open(self.first())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


class SavedArray(StepFile):
    """A .npy file of an array in memory: it is written when the step ends, as the array is then."""

    def __init__(self, writer: ArtifactWriter, name: str, array: npt.NDArray[Any]) -> None:
        super().__init__(writer, name)
        self.array, self.num_bytes = array, npy_file_bytes(array.dtype, array.shape)

    def close(self) -> None:
        """Writes it."""
        self.writer.save_array(self.name, self.array)
