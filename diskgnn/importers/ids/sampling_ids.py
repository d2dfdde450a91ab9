"""The first reading of ids of the user's: ranges for each type of nodes, and the file of those that a list has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from diskgnn.importers.ids.id_ranges import IdRanges, IdSample, of_bytes, to_bytes
from diskgnn.importers.ids.id_records import IdRecords
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.id_types import id_file_kind
from diskgnn.importers.ids.known_ids import IdFile
from diskgnn.importers.ids.scratch_files import State, prefixed, within
from diskgnn.importers.ids.user_ids import UserIds
from diskgnn.progress import Reporter
from diskgnn.schema import EdgeType
from diskgnn.storage import artifacts
from diskgnn.storage.pace import Pace

_FIRST_CHUNK_IDS = 1 << 16  # before it is known how long ids are
_STAGE = "ranges"


@dataclass(frozen=True)
class SampledIds:
    """What is known of the ids of one type of nodes after the first reading."""

    kind: pa.DataType  # of `id_keys`
    file_kind: pa.DataType
    ranges: IdRanges
    count: int  # of ids that were read
    mean_bytes: int
    chunk_ids: int  # how many to hold at once where several copies of them are made


def sample_ids(
    found: UserIds, records: IdRecords, memory_bytes: int, reporter: Reporter
) -> tuple[dict[str, SampledIds], int]:
    """Read listed ids, and those that edges mention if nothing lists them. Goes on where a killed run was.

    Returns:
        (what is known by type of nodes; for how many bytes of memory the ranges were made: those of a killed run stay
        unless there is less now).
    """
    return _Sampling(found, records, memory_bytes, reporter).run()


class _Sampling:
    def __init__(self, found: UserIds, records: IdRecords, memory_bytes: int, reporter: Reporter) -> None:
        self._found, self._records, self._memory_bytes, self._reporter = found, records, memory_bytes, reporter
        self._state = dict(records.last(_STAGE))

    def run(self) -> tuple[dict[str, SampledIds], int]:
        types = {**self._found.listed, **self._found.mentioned}
        mentioning = {
            edge_type: found
            for edge_type, found in self._found.ends.items()
            if {edge_type[0], edge_type[2]} & {*self._found.mentioned}
        }
        total = sum(found.num_rows for found in (*self._found.listed.values(), *mentioning.values()))
        with self._reporter.stage("read ids", total, "ids") as advance:
            for name, column in self._found.listed.items():
                self._read_listed(name, column, advance)
            self._read_mentioned(mentioning, self._records.pace(2 * total), advance)
        if not 0 < int(self._state.get("memory", 0)) <= self._memory_bytes:
            for name in types:
                bounds = self._sample(name).ranges(self._memory_bytes).bounds
                self._state[f"{name}/bounds"] = to_bytes(bounds)
            self._record({"memory": np.array(self._memory_bytes)})
        return {name: self._sampled(name) for name in types}, int(self._state["memory"])

    def _read_listed(self, name: str, column: IdColumns, advance: Callable[[int], None]) -> None:
        file_name, writer = artifacts.ids_file(name), self._records.writer

        def write() -> None:
            sample = IdSample(column.key_kinds[0])
            file = IdFile(writer.path(file_name), id_file_kind(column.kinds[0]), writer.disk)
            for (ids,) in column.chunks(_FIRST_CHUNK_IDS, 0):
                sample.add(ids)
                file.add(ids)
                advance(len(ids))
            file.close()
            writer.add(file_name, crc32c=file.crc32c)
            self._record(prefixed(name, sample.so_far()))  # before the file is a unit, which the sample goes with

        if not self._records.has_units:
            write()
        elif writer.unit([file_name], write):
            advance(column.num_rows)

    def _read_mentioned(
        self, mentioning: Mapping[EdgeType, IdColumns], pace: Pace, advance: Callable[[int], None]
    ) -> None:
        """What is read of edges, all types one after the other, is counted in rows."""
        position = done = int(self._state.get("rows", 0))
        advance(done)
        samples = {name: self._sample(name) for name in self._found.mentioned}
        for edge_type, found in mentioning.items():
            skipped = min(done, found.num_rows)
            done -= skipped
            if skipped == found.num_rows:
                continue
            for chunk in found.chunks(_FIRST_CHUNK_IDS, skipped):
                for end, ids in zip((edge_type[0], edge_type[2]), chunk, strict=True):
                    if end in samples:
                        samples[end].add(ids)
                position += len(chunk[0])
                advance(len(chunk[0]))
                if self._records.is_done(pace, 2 * len(chunk[0])):
                    self._record(_of(samples, position))
        if mentioning:
            self._record(_of(samples, position))

    def _record(self, state: State) -> None:
        self._state |= state
        self._records.note(_STAGE, self._state)

    def _sample(self, name: str) -> IdSample:
        listed = self._found.listed.get(name)
        kind = self._found.mentioned[name] if listed is None else listed.key_kinds[0]
        return IdSample.after({key: self._state[f"{name}/{key}"] for key in ("kept", "numbers")
                               if f"{name}/{key}" in self._state}, kind)  # fmt: skip

    def _sampled(self, name: str) -> SampledIds:
        sample, listed = self._sample(name), self._found.listed.get(name)
        return SampledIds(
            sample.kind,
            id_file_kind(sample.kind if listed is None else listed.kinds[0]),
            IdRanges(of_bytes(within(name, self._state)["bounds"])),
            sample.count,
            sample.total_bytes // max(sample.count, 1),
            sample.chunk_ids(self._memory_bytes),
        )


def _of(samples: Mapping[str, IdSample], position: int) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {"rows": np.array(position)}
    for name, sample in samples.items():
        found |= prefixed(name, sample.so_far())
    return found
