"""What a killed run recorded of the replacing of ids, and the records of this one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diskgnn.importers.ids.scratch_files import State
from diskgnn.storage.disk_space import DiskBudget
from diskgnn.storage.pace import Pace
from diskgnn.storage.writer import ArtifactWriter

_ID_BYTES = 32  # typical, with what is kept beside it


class IdRecords:
    """Records of the replacing of about `num_ids` ids; none if these are too few to be worth it."""

    def __init__(self, writer: ArtifactWriter, num_ids: int, generation: str = "") -> None:
        self.writer, self._num_ids, self._generation = writer, num_ids, generation
        self.has_units = self.pace(num_ids).has_units

    def of_ranges(self, generation: int) -> IdRecords:
        """The records of all that depends on ranges, of which there are new ones where there is less memory."""
        return IdRecords(self.writer, self._num_ids, f"-{generation}")

    @property
    def disk(self) -> DiskBudget:
        """Of which scratch is claimed."""
        return self.writer.disk

    def pace(self, num_ids: int) -> Pace:
        """Of a stage with so many ids."""
        return Pace(num_ids * _ID_BYTES)

    def is_done(self, pace: Pace, num_ids: int) -> bool:
        """Whether a unit of `pace` is complete with so many ids more."""
        return self.has_units and pace.has_units and pace.done(num_ids * _ID_BYTES)

    def last(self, stage: str) -> State:
        """What was recorded last of a stage; nothing if there is no record."""
        return (self.writer.recorded(self._name(stage)) or {}) if self.has_units else {}

    def note(self, stage: str, state: State, claims: Sequence[Path] = ()) -> None:
        """Record how far a stage is, durably, after the files and folders of `claims`."""
        if self.has_units:
            names = [str(path.relative_to(self.writer.staging)) for path in dict.fromkeys(claims)]
            self.writer.record(self._name(stage), state, claims=names)

    def _name(self, stage: str) -> str:
        return f"ids{self._generation}-{stage}"
