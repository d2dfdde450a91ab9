"""An artifact that a stage makes within its own work folder, by another stage, and reads before it is at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from diskgnn.errors import ArtifactError
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.work_folder import WorkFolder

if TYPE_CHECKING:
    from pathlib import Path

Made = TypeVar("Made")


class StepArtifact(Generic[Made]):
    """A directory in a work folder, which `Work.artifact` returns.

    Args:
        folder: where it lies.
        step: that makes it, as STAGE.STEP.
        name: of the directory.
        made: what making it returned; None if a killed run had made it.
    """

    def __init__(self, folder: WorkFolder, step: str, name: str, made: Made | None) -> None:
        self._folder, self._step, self._name, self.made = folder, step, name, made
        self.path = folder.path(name)

    @contextmanager
    def reading(self) -> Iterator[Path]:
        """Yields its path. Nothing but the artifact is to be read in the block.

        Raises:
            DamagedStepError: it is damaged, and removed: `Work.run` makes it again.
        """
        try:
            yield self.path
        except ArtifactError as error:
            self._folder.remove(self._name)
            raise DamagedStepError(self._step, f"{self.path} is not what was written") from error
