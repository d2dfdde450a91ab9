"""Ids cut into ranges, by a sample: so small that the ids of one range fit in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn._native import find_ranges
from diskgnn.importers.tables.strings import string_content
from diskgnn.system.resources import Resources
from diskgnn.units import format_size
from diskgnn.work.work_folder import State

# What joining a range holds for each id beside its bytes, which are there twice: its node, and Arrow's hash table.
_ID_OVERHEAD_BYTES = 96
_SAMPLE_IDS = 1 << 16
_MAX_RANGES = 1 << 12
MOST_PART_IDS = 1 << 18


def to_bytes(ids: pa.Array) -> npt.NDArray[np.uint8]:
    """Ids as the bytes of a record."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("id", ids.type)])) as file:
        file.write_batch(pa.record_batch([ids], names=["id"]))
    return np.frombuffer(sink.getvalue(), np.uint8)


def of_bytes(content: npt.NDArray[np.uint8]) -> pa.Array:
    """Returns what `to_bytes` was given."""
    return pa.ipc.open_stream(pa.py_buffer(content)).read_all().column("id").combine_chunks()


class IdSample:
    """A sample of a stream of ids, every so many of them, and how many bytes they have in all."""

    KEYS = ("kept", "numbers")  # of its state

    def __init__(self, kind: pa.DataType) -> None:
        self.kind, self.count, self.total_bytes = kind, 0, 0
        self._kept: list[pa.Array] = []
        self._stride, self._num_kept = 1, 0

    def state(self) -> State:
        """Returns what `of` needs to go on from here."""
        kept = pa.concat_arrays(self._kept or [pa.array([], self.kind)])
        return {"kept": to_bytes(kept), "numbers": np.array([self.count, self.total_bytes, self._stride])}

    @staticmethod
    def of(state: State, kind: pa.DataType) -> IdSample:
        """Returns the sample whose `state` that was."""
        sample = IdSample(kind)
        sample._kept = [of_bytes(state["kept"])]
        sample._num_kept = len(sample._kept[0])
        sample.count, sample.total_bytes, sample._stride = state["numbers"].tolist()
        return sample

    def add(self, ids: pa.Array) -> None:
        """`ids` follow what was added before."""
        kept = ids.take(pa.array(np.arange(-self.count % self._stride, len(ids), self._stride)))
        self._kept.append(kept)
        self._num_kept += len(kept)
        self.count += len(ids)
        self.total_bytes += ids.nbytes
        while self._num_kept > 2 * _SAMPLE_IDS:
            self._stride *= 2
            merged = pa.concat_arrays(self._kept)
            self._kept = [merged.take(pa.array(np.arange(0, len(merged), 2)))]
            self._num_kept = len(self._kept[0])

    def ranges(self, resources: Resources) -> IdRanges:
        """Returns ranges of which one can be joined within the memory, were each id there only once.

        Raises:
            SmallBudgetError: there would be too many of them; names the smallest budget that works.
        """
        # Half of the memory for a range that is twice as large as they are on average.
        needed_bytes = 2 * self.total_bytes + _ID_OVERHEAD_BYTES * self.count
        what = f"to join one part in {_MAX_RANGES} of {self.count} ids of {format_size(self.total_bytes)}"
        resources.require(what, -(-4 * needed_bytes // _MAX_RANGES))
        count = max(1, -(-4 * needed_bytes // resources.memory_bytes))
        if not self._num_kept or count == 1:
            return IdRanges(pa.array([], self.kind))
        ordered = pc.unique(sorted_ids(pa.concat_arrays(self._kept)))
        places = np.unique(np.arange(1, count) * len(ordered) // count)
        return IdRanges(ordered.take(pa.array(places[places > 0])))

    def part_ids(self, memory_bytes: int) -> int:
        """Returns how many ids to hold at once where several copies of them are made."""
        mean_bytes = self.total_bytes // max(self.count, 1) + 16
        return int(np.clip(memory_bytes // (32 * mean_bytes), 1 << 12, MOST_PART_IDS))


@dataclass(frozen=True)
class IdRanges:
    """Consecutive ranges of ids, R of them: range r has the ids from bounds[r - 1] on, up to bounds[r]."""

    bounds: pa.Array  # [R - 1], ascending

    @property
    def count(self) -> int:
        """R."""
        return len(self.bounds) + 1

    def find(self, ids: pa.Array) -> npt.NDArray[np.uint16]:
        """Returns [n] the range of each of `ids` [n]."""
        if pa.types.is_integer(ids.type):
            return np.searchsorted(np.asarray(self.bounds), np.asarray(ids), side="right").astype(np.uint16)
        ranges = np.empty(len(ids), np.uint16)
        find_ranges(*string_content(ids), *string_content(self.bounds), ranges)
        return ranges


def sorted_ids(ids: pa.Array) -> pa.Array:
    """Ids in ascending order."""
    return ids.take(pc.array_sort_indices(ids))
