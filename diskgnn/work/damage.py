"""The error of a step whose files, or notes, are not what it wrote. `Work.run` makes that step again."""

from __future__ import annotations

from diskgnn.errors import ArtifactError


class DamagedStepError(ArtifactError):
    """A file or note of a step is not what the step wrote: the disk does not keep it, or somebody changed it."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(f"{message}; run the same command again")
        self.step = step  # that has to be made again, as STAGE.STEP
        self._message = message

    def __reduce__(self) -> tuple[type[DamagedStepError], tuple[str, str]]:
        return type(self), (self.step, self._message)  # another process may find the damage
