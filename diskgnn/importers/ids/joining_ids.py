"""All ids of a type of nodes are looked up, range by range: the longest stage after they were brought to ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diskgnn.importers.ids.id_records import IdRecords
from diskgnn.importers.ids.known_ids import IdFile, Known, ListedIds, MentionedIds
from diskgnn.importers.ids.lookups import Lookup
from diskgnn.importers.ids.sampling_ids import SampledIds
from diskgnn.importers.ids.scratch_files import ScratchFiles, prefixed, within
from diskgnn.progress import Reporter
from diskgnn.storage import artifacts, faults


@dataclass
class NodeIds:
    """The ids of one type of nodes, and all that names nodes by them."""

    name: str  # of the type
    sampled: SampledIds
    listed: str | None  # what has the ids of all nodes, for messages; None: edges mention them
    lookups: list[Lookup] = field(default_factory=list)
    mentions: list[Lookup] = field(default_factory=list)  # of `lookups`, if what they name is there

    @property
    def hint(self) -> str:
        """What may be wrong with an id that no node has."""
        if self.listed is None:
            return "; expected those that edges mention"
        return f"; the nodes are those of {self.listed}: add it there, or leave it out here"


class Joining:
    """Answers the lookups of one type of nodes. Goes on where a killed run was.

    Args:
        records: of what was replaced.
        ids: what is looked up.
        folder: for scratch.
        reporter: told about the ranges.
    """

    def __init__(self, records: IdRecords, ids: NodeIds, folder: Path, reporter: Reporter) -> None:
        self._records, self._ids, self._folder, self._reporter = records, ids, folder, reporter
        self._writer, self._stage = records.writer, f"join-{ids.name}"
        self._state = records.last(self._stage)

    def run(self) -> int:
        """The number of nodes.

        Raises:
            InputError: an id twice in the list.
            DamagedScratchError: scratch is not what was written.
        """
        ids, count = self._ids, self._ids.sampled.ranges.count
        first = int(self._state.get("answered", 0))
        answers = [lookup.begin(within(str(number), self._state)) for number, lookup in enumerate(ids.lookups)]
        known = self._listed() if ids.listed is not None else self._mentioned()
        pace = self._records.pace(sum(lookup.count for lookup in ids.lookups))
        answered: list[int] = []
        with self._reporter.stage("join ids", count, "ranges") as advance:
            advance(first)
            for number in range(first, count):
                faults.point("ids.join")
                there = known.read(number)
                num_ids = sum(lookup.answer(number, there) for lookup in ids.lookups)
                answered.append(number)
                advance(1)
                if self._records.is_done(pace, num_ids) or number + 1 == count:
                    self._note(number + 1, known, answers)
                    for each in answered:
                        known.drop(each)
                    answered.clear()
        if isinstance(known, MentionedIds):
            self._write_ids(known)
            return known.count
        return ids.sampled.count

    def _note(self, answered: int, known: Known, answers: Sequence[ScratchFiles]) -> None:
        """Ranges up to here are answered, durably; what they were answered from may go."""
        state: dict[str, np.ndarray] = {"answered": np.array(answered)}
        claims: list[Path] = []
        for number, files in enumerate(answers):
            state |= prefixed(str(number), files.so_far())
            claims += files.claims()
        if isinstance(known, MentionedIds):
            state |= prefixed("known", known.so_far())
            claims += known.claims()
        self._records.note(self._stage, state, claims)
        for lookup in self._ids.lookups:
            lookup.drop_answered()

    def _listed(self) -> ListedIds:
        """The ids of the list, brought to their ranges."""
        ids, stage = self._ids, f"known-{self._ids.name}"
        state = self._records.last(stage)
        path = self._writer.path(artifacts.ids_file(ids.name))
        known = ListedIds(
            path, ids.sampled.ranges, ids.sampled.kind, self._folder, str(ids.listed), self._writer.disk,
            within("files", state),
        )  # fmt: skip
        row, pace = int(state.get("rows", 0)), self._records.pace(ids.sampled.count)
        if int(self._state.get("answered", 0)) == ids.sampled.ranges.count or row == ids.sampled.count:
            return known
        for count in known.spread(row, ids.sampled.chunk_ids):
            row += count
            if self._records.is_done(pace, count) or row == ids.sampled.count:
                done = {"rows": np.array(row), **prefixed("files", known.so_far())}
                self._records.note(stage, done, known.claims())
        return known

    def _mentioned(self) -> MentionedIds:
        ids = self._ids
        return MentionedIds(
            ids.mentions, ids.sampled.ranges, ids.sampled.kind, self._folder, self._writer.disk,
            within("known", self._state),
        )  # fmt: skip

    def _write_ids(self, known: MentionedIds) -> None:
        """The file of the ids, unless they count the nodes."""
        name = artifacts.ids_file(self._ids.name)
        path = self._writer.path(name)
        dense = False

        def write() -> None:
            nonlocal dense
            file = IdFile(path, self._ids.sampled.file_kind, self._writer.disk)
            known.write(file)
            dense = file.counts_rows
            if not dense:
                self._writer.add(name, crc32c=file.crc32c)

        if not self._writer.adopt(name):
            write()
            if dense:
                self._writer.disk.remove(path, path.stat().st_blocks * 512)
            else:
                self._writer.keep([name])
